//! Proc-macros that turn one declaration of a driver function into everything a hook needs.

#![forbid(unsafe_code)]

mod declaration;
mod expand;

use proc_macro::TokenStream;

/// Declares driver functions and the handlers that stand in for them.
///
/// ```text
/// macros::hooks! {
///     /// CUDA driver API, Memory Management.
///     library Cuda;
///
///     /// Linear memory.
///     fn cuMemAlloc_v2(dptr: *mut DevicePtr, bytesize: usize) -> CuResult = linear;
///     fn cuLaunchKernel | cuLaunchKernel_ptsz (f: Function, stream: Stream) -> CuResult = launch;
/// }
/// ```
///
/// For each function it makes, in the module where it stands:
/// * a type alias of the function's own name in the module `signature`: the C function pointer;
/// * a `Slot` for the way back into the original;
/// * a hook that calls the handler with a `Call` (the original, what the name says, and the
///   process's value, which is made at the first call) followed by the arguments, and that lets no panic out; only the end of a cancelled thread may pass through it;
/// * a row in `TABLE`, a `&[Hook]`, with the symbol, its library and its documentation.
///
/// `changes memory;` after the library: calls of these functions allocate or free, and are counted
/// while they run (`Memory::changes`).
///
/// `jumps if passes` after the handler: calls that `passes(&Arguments, per_thread)` says yes to, and all of them while
/// no device of the process is limited in time, jump to the driver's function without coming by the handler.
///
/// Alternatives after `|` are further symbols of the same signature and handler. `= handler(CONSTANT)`
/// gives the handler constants between the `Call` and the arguments. The names `Call`,
/// `Hook`, `Library`, `guard` and `tail_jump` are taken from `crate::hooks`, `get` from `crate::process`, `Slot` from `hook`.
#[proc_macro]
pub fn hooks(input: TokenStream) -> TokenStream {
    match syn::parse::<declaration::Declarations>(input) {
        Ok(declarations) => expand::expand(&declarations).into(),
        Err(error) => error.to_compile_error().into(),
    }
}
