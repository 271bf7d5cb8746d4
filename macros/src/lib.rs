//! The `hooks!` macro: generates a hook from the declaration of a driver function. The limiter's `hooks` modules use
//! it.

#![forbid(unsafe_code)]

mod declaration;
mod expand;

use proc_macro::TokenStream;

/// Declares driver functions and the handlers that replace them.
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
/// For each function it generates, in the calling module:
/// * a type alias with the function's name, in the module `signature`: the C function pointer
/// * a `Slot` for the trampoline, and a `PatchedEntry` for the patched code
/// * a hook that calls the handler with a `Call` followed by the arguments. The `Call` holds the original, what the
///   function's name implies, and the process's state, which is made at the first call. The hook lets no panic out;
///   only the unwinding of a cancelled thread may pass through it
/// * a row in `TABLE`, a `&[Hook]`, with the symbol, its library and its documentation
///
/// `changes memory;` after the library: calls of these functions allocate or free, and are counted while they run
/// (`Memory::changes`).
///
/// `jumps if passes` after the handler: calls for which `passes(&Arguments, per_thread)` is true jump to the driver's
/// function without calling the handler, as do all calls while no device of the process has a compute share.
///
/// Alternatives after `|` are further symbols with the same signature and handler. `= handler(CONSTANT)` passes
/// constants to the handler between the `Call` and the arguments. The names `Call`, `Hook`, `Library`, `guard` and
/// `tail_jump` are taken from `crate::hooks`, `get` from `crate::process`, `Slot` and `PatchedEntry` from `hook`.
#[proc_macro]
pub fn hooks(input: TokenStream) -> TokenStream {
    match syn::parse::<declaration::Declarations>(input) {
        Ok(declarations) => expand::expand(&declarations).into(),
        Err(error) => error.to_compile_error().into(),
    }
}
