//! Generates the code of the declared hooks.

use crate::declaration::{Declarations, Function};
use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};
use syn::{Attribute, Expr, ExprLit, Lit, Meta, Path};

pub(crate) fn expand(declarations: &Declarations) -> TokenStream {
    let Declarations { section, library, changes_memory, functions } = declarations;
    let section = text(section);
    let mut aliases = TokenStream::new();
    let mut items = TokenStream::new();
    let mut rows = TokenStream::new();
    for function in functions {
        let mut doc = text(&function.attributes);
        if doc.is_empty() {
            doc.clone_from(&section);
        }
        for symbol in &function.symbols {
            aliases.extend(alias(function, symbol));
            items.extend(hook(function, symbol, *changes_memory));
            let name = symbol.to_string();
            let (mut entry, slot) = names(symbol);
            let patch = patch(symbol);
            if let Some(passes) = &function.jumps {
                items.extend(tail_jump(symbol, passes));
                entry = format_ident!("jump_{symbol}");
            }
            rows.extend(quote! {
                crate::hooks::Hook {
                    library: crate::hooks::Library::#library,
                    symbol: #name,
                    doc: #doc,
                    entry: #entry as *const ::core::ffi::c_void,
                    slot: &#slot,
                    patch: &#patch,
                },
            });
        }
    }
    quote! {
        /// The functions' C signatures, by symbol.
        #[allow(non_camel_case_types, dead_code)]
        pub(crate) mod signature {
            use super::*;
            #aliases
        }
        #items
        /// One row for each symbol declared here.
        pub(crate) static TABLE: &[crate::hooks::Hook] = &[#rows];
    }
}

fn names(symbol: &Ident) -> (Ident, Ident) {
    (format_ident!("hook_{symbol}"), format_ident!("SLOT_{symbol}"))
}

/// The name of the static for the patched code.
fn patch(symbol: &Ident) -> Ident {
    format_ident!("PATCH_{symbol}")
}

fn alias(function: &Function, symbol: &Ident) -> TokenStream {
    let types = function.arguments.iter().map(|(_, ty)| ty);
    let result = &function.result;
    quote! {
        pub(crate) type #symbol = unsafe extern "C" fn(#(#types),*) -> #result;
    }
}

/// Whether a null stream, passed or implied, means the calling thread's own stream: in `_ptsz`
/// functions, which take a stream, and in `_ptds` functions, which wait.
fn is_per_thread(symbol: &str) -> bool {
    symbol.ends_with("_ptsz") || symbol.ends_with("_ptds")
}

fn hook(function: &Function, symbol: &Ident, changes_memory: bool) -> TokenStream {
    let (entry, slot) = names(symbol);
    let patch = patch(symbol);
    let name = symbol.to_string();
    let per_thread = is_per_thread(&name);
    let arguments = function.arguments.iter().map(|(name, ty)| quote!(#name: #ty));
    let passed = function.arguments.iter().map(|(name, _)| name);
    let Function { result, handler, .. } = function;
    let constants = function.constants.iter();
    let counted = changes_memory.then(|| quote!(let _changing = process.memory.changes();));
    quote! {
        #[allow(non_upper_case_globals)]
        static #slot: ::hook::Slot = ::hook::Slot::new();
        #[allow(non_upper_case_globals)]
        static #patch: ::hook::PatchedEntry = ::hook::PatchedEntry::new();

        #[allow(non_snake_case, clippy::too_many_arguments)]
        unsafe extern "C-unwind" fn #entry(#(#arguments),*) -> #result {
            crate::hooks::guard(#name, || {
                let process = crate::process::get();
                #counted
                // SAFETY: the slot is filled before the first caller can arrive here. It holds the
                // trampoline of the function of this name, whose signature is the declared one.
                let original = unsafe {
                    ::core::mem::transmute::<*const ::core::ffi::c_void, signature::#symbol>(
                        #slot.get(),
                    )
                };
                // By path, because an argument may have the handler's name.
                self::#handler(
                    crate::hooks::Call { original, symbol: #name, per_thread: #per_thread, process },
                    #(#constants,)*
                    #(#passed),*
                )
            })
        }
    }
}

/// An entry before the hook. A call that may pass jumps to the driver's own function, with
/// registers and stack as they came: no argument is copied, and there is no extra frame.
fn tail_jump(symbol: &Ident, passes: &Path) -> TokenStream {
    let (hook, slot) = names(symbol);
    let (entry, ask) = (format_ident!("jump_{symbol}"), format_ident!("ask_{symbol}"));
    let per_thread = is_per_thread(&symbol.to_string());
    quote! {
        #[allow(non_snake_case)]
        extern "C" fn #ask(found: *const u64) -> bool {
            crate::hooks::tail_jump::ask(|| {
                // SAFETY: the entry below passes the address at which it has put the arguments.
                let arguments = unsafe { crate::hooks::tail_jump::Arguments::found_at(found) };
                self::#passes(&arguments, #per_thread)
            })
        }

        #[cfg(target_arch = "x86_64")]
        #[allow(non_snake_case)]
        #[unsafe(naked)]
        unsafe extern "C" fn #entry() {
            // As [`crate::hooks::tail_jump`] describes. The path of calls that are not checked lies
            // in one cache line: between two launches, the driver's own code fills the caches.
            ::core::arch::naked_asm!(
                ".p2align 6",
                ".cfi_startproc",
                "cmp byte ptr [rip + {ungated_word}], {ungated}",
                "jne 3f",
                "2:",
                "jmp qword ptr [rip + {slot}]",
                "3:",
                "sub rsp, 56",
                ".cfi_adjust_cfa_offset 56",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8",
                "mov [rsp + 40], r9",
                "mov rdi, rsp",
                "call {ask}",
                "mov rdi, [rsp]",
                "mov rsi, [rsp + 8]",
                "mov rdx, [rsp + 16]",
                "mov rcx, [rsp + 24]",
                "mov r8, [rsp + 32]",
                "mov r9, [rsp + 40]",
                "add rsp, 56",
                ".cfi_adjust_cfa_offset -56",
                "test al, al",
                "jne 2b",
                "jmp {hook}",
                ".cfi_endproc",
                ungated_word = sym crate::compute::fast_path::FAST_PATH,
                ungated = const crate::compute::fast_path::UNGATED,
                ask = sym #ask,
                hook = sym #hook,
                slot = sym #slot,
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[allow(non_snake_case)]
        #[unsafe(naked)]
        unsafe extern "C" fn #entry() {
            // As above, with eight argument registers; the return address is in a register, too.
            ::core::arch::naked_asm!(
                ".p2align 6",
                ".cfi_startproc",
                "adrp x16, {ungated_word}",
                "ldrb w16, [x16, :lo12:{ungated_word}]",
                "cmp w16, {ungated}",
                "b.ne 3f",
                "2:",
                "adrp x16, {slot}",
                "ldr x16, [x16, :lo12:{slot}]",
                "br x16",
                "3:",
                "sub sp, sp, 96",
                ".cfi_adjust_cfa_offset 96",
                "stp x29, x30, [sp, 80]",
                ".cfi_rel_offset x29, 80",
                ".cfi_rel_offset x30, 88",
                "stp x0, x1, [sp]",
                "stp x2, x3, [sp, 16]",
                "stp x4, x5, [sp, 32]",
                "stp x6, x7, [sp, 48]",
                "mov x0, sp",
                "bl {ask}",
                "mov w16, w0",
                "ldp x0, x1, [sp]",
                "ldp x2, x3, [sp, 16]",
                "ldp x4, x5, [sp, 32]",
                "ldp x6, x7, [sp, 48]",
                "ldp x29, x30, [sp, 80]",
                "add sp, sp, 96",
                ".cfi_adjust_cfa_offset -96",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "tbnz w16, 0, 2b",
                "b {hook}",
                ".cfi_endproc",
                ungated_word = sym crate::compute::fast_path::FAST_PATH,
                ungated = const crate::compute::fast_path::UNGATED,
                ask = sym #ask,
                hook = sym #hook,
                slot = sym #slot,
            )
        }
    }
}

/// The text of the doc comments, in one line.
fn text(attributes: &[Attribute]) -> String {
    let mut text = String::new();
    for attribute in attributes {
        if let Meta::NameValue(pair) = &attribute.meta
            && pair.path.is_ident("doc")
            && let Expr::Lit(ExprLit { lit: Lit::Str(line), .. }) = &pair.value
        {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(line.value().trim());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(declaration: &str) -> String {
        let text = format!("library Cuda; {declaration}");
        expand(&syn::parse_str(&text).unwrap()).to_string()
    }

    #[test]
    fn the_suffix_says_what_a_null_stream_means() {
        for symbol in ["cuMemcpy_ptds", "cuMemcpyHtoD_v2_ptds", "cuMemcpyAsync_ptsz"] {
            assert!(is_per_thread(symbol), "{symbol}");
            let code = code(&format!("fn {symbol}(bytes: usize) -> CuResult = copy;"));
            assert!(code.contains("per_thread : true"), "{code}");
        }
        for symbol in ["cuMemcpy", "cuMemcpyHtoD_v2", "cuMemcpyAsync"] {
            assert!(!is_per_thread(symbol), "{symbol}");
            let code = code(&format!("fn {symbol}(bytes: usize) -> CuResult = copy;"));
            assert!(code.contains("per_thread : false"), "{code}");
        }
    }

    #[test]
    fn what_jumps_on_has_an_entry_of_its_own() {
        let code = code("fn cuA | cuA_ptsz (bytes: usize) -> CuResult = copy jumps if goes;");
        assert!(code.contains("entry : jump_cuA as") && code.contains("entry : jump_cuA_ptsz as"));
        assert!(code.contains("goes (& arguments , true)"), "{code}");
    }

    #[test]
    fn constants_come_before_the_arguments() {
        let code = code("fn cuA(bytes: usize) -> CuResult = copy(KIND, 4);");
        assert!(code.contains("} , KIND , 4 , bytes)"), "{code}");
    }
}
