//! The grammar of `hooks!`, and its parser.

use proc_macro2::Ident;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, FnArg, Pat, PatType, Path, Result, Token, Type, parenthesized, token};

mod keyword {
    syn::custom_keyword!(library);
    syn::custom_keyword!(changes);
    syn::custom_keyword!(memory);
    syn::custom_keyword!(jumps);
}

/// All declarations of one `hooks!`.
pub(crate) struct Declarations {
    pub(crate) section: Vec<Attribute>,
    pub(crate) library: Ident,
    /// Whether the functions allocate or free.
    pub(crate) changes_memory: bool,
    pub(crate) functions: Vec<Function>,
}

/// One declared function.
pub(crate) struct Function {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) symbols: Punctuated<Ident, Token![|]>,
    pub(crate) arguments: Vec<(Ident, Type)>,
    pub(crate) result: Type,
    pub(crate) handler: Path,
    /// Constants that the handler gets before the call's arguments.
    pub(crate) constants: Punctuated<Expr, Token![,]>,
    /// The function that decides whether a call may jump to the driver.
    pub(crate) jumps: Option<Path>,
}

impl Parse for Declarations {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let section = input.call(Attribute::parse_outer)?;
        input.parse::<keyword::library>()?;
        let library = input.parse()?;
        input.parse::<Token![;]>()?;
        let changes_memory = input.peek(keyword::changes);
        if changes_memory {
            input.parse::<keyword::changes>()?;
            input.parse::<keyword::memory>()?;
            input.parse::<Token![;]>()?;
        }
        let mut functions = Vec::new();
        while !input.is_empty() {
            functions.push(input.parse()?);
        }
        Ok(Self { section, library, changes_memory, functions })
    }
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        input.parse::<Token![fn]>()?;
        let symbols = Punctuated::parse_separated_nonempty(input)?;
        let content;
        parenthesized!(content in input);
        let arguments = Punctuated::<FnArg, Token![,]>::parse_terminated(&content)?
            .into_iter()
            .map(argument)
            .collect::<Result<_>>()?;
        input.parse::<Token![->]>()?;
        let result = input.parse()?;
        input.parse::<Token![=]>()?;
        let handler = input.call(Path::parse_mod_style)?;
        let constants = if input.peek(token::Paren) {
            let content;
            parenthesized!(content in input);
            Punctuated::parse_terminated(&content)?
        } else {
            Punctuated::new()
        };
        let jumps = if input.peek(keyword::jumps) {
            input.parse::<keyword::jumps>()?;
            input.parse::<Token![if]>()?;
            Some(input.call(Path::parse_mod_style)?)
        } else {
            None
        };
        input.parse::<Token![;]>()?;
        Ok(Self { attributes, symbols, arguments, result, handler, constants, jumps })
    }
}

fn argument(argument: FnArg) -> Result<(Ident, Type)> {
    match argument {
        FnArg::Typed(PatType { pat, ty, .. }) => match *pat {
            Pat::Ident(name) => Ok((name.ident, *ty)),
            other => Err(syn::Error::new_spanned(other, "an argument needs a plain name")),
        },
        FnArg::Receiver(receiver) => {
            Err(syn::Error::new_spanned(receiver, "driver functions have no self"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_symbols_share_a_declaration() {
        let parsed: Declarations = syn::parse_str(
            "/// Section\nlibrary Cuda;\n/// Doc\nfn cuA | cuA_ptsz (x: u32, y: *mut u8) -> CuResult = a::b;\nfn cuB() -> CuResult = c;",
        )
        .unwrap();
        assert_eq!(parsed.library, "Cuda");
        assert!(!parsed.changes_memory);
        assert_eq!(parsed.functions.len(), 2);
        assert_eq!(parsed.functions[0].symbols.len(), 2);
        assert_eq!(parsed.functions[0].arguments.len(), 2);
        assert!(parsed.functions[1].arguments.is_empty());
    }

    #[test]
    fn a_handler_may_have_constants() {
        let parsed: Declarations = syn::parse_str(
            "library Cuda; fn cuA(x: u32) -> CuResult = copy::plain(KIND, 4);\nfn cuB() -> CuResult = c;",
        )
        .unwrap();
        assert_eq!(parsed.functions[0].handler.segments.len(), 2);
        assert_eq!(parsed.functions[0].constants.len(), 2);
        assert!(parsed.functions[1].constants.is_empty());
    }

    #[test]
    fn a_call_may_go_straight_on() {
        let parsed: Declarations = syn::parse_str(
            "library Cuda; fn cuA(x: u32) -> CuResult = a jumps if b::passes; fn cuB() -> CuResult = c;",
        )
        .unwrap();
        assert_eq!(parsed.functions[0].jumps.as_ref().unwrap().segments.len(), 2);
        assert!(parsed.functions[1].jumps.is_none());
    }

    #[test]
    fn functions_that_change_memory_say_so() {
        let text = "library Cuda; changes memory; fn cuA() -> CuResult = a;";
        let parsed: Declarations = syn::parse_str(text).unwrap();
        assert!(parsed.changes_memory);
        assert_eq!(parsed.functions.len(), 1);
    }

    #[test]
    fn mistakes_are_named() {
        for text in [
            "fn cuA() -> CuResult = a;",
            "library Cuda; changes; fn cuA() -> CuResult = a;",
            "library Cuda; fn cuA(self) -> CuResult = a;",
            "library Cuda; fn cuA() = a;",
            "library Cuda; fn cuA() -> CuResult",
            "library Cuda; fn cuA() -> CuResult = a(1) b;",
            "library Cuda; fn cuA() -> CuResult = a jumps b;",
        ] {
            assert!(syn::parse_str::<Declarations>(text).is_err(), "{text}");
        }
    }
}
