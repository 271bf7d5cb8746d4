//! The real gum, through its Rust bindings.

use super::{Engine, Interceptor, Refusal};
use crate::HookEngine;
use core::ffi::c_void;
use frida_gum::{Error, Gum, NativePointer, interceptor};
use std::sync::OnceLock;

/// Kept for ever: dropping the last reference would undo every patch.
static GUM: OnceLock<Gum> = OnceLock::new();

/// Gum's interceptor, of which there is one per process.
struct Own(interceptor::Interceptor);

/// An engine over gum. Starts gum once per process, if the process may have the memory that gum needs.
pub(crate) fn engine() -> Box<dyn HookEngine> {
    let own = || Own(interceptor::Interceptor::obtain(GUM.get_or_init(Gum::obtain)));
    Box::new(Engine::over(own))
}

impl Interceptor for Own {
    fn begin(&mut self) {
        self.0.begin_transaction();
    }

    fn replace_fast(
        &mut self,
        function: *const c_void,
        replacement: *const c_void,
    ) -> Result<*const c_void, Refusal> {
        let [function, replacement] =
            [function, replacement].map(|address| NativePointer(address.cast_mut()));
        match self.0.replace_fast(function, replacement) {
            Ok(original) if !original.is_null() => Ok(original.0.cast_const()),
            Err(Error::InterceptorAlreadyReplaced | Error::WrongType) => Err(Refusal::Remembered),
            Ok(_) | Err(_) => Err(Refusal::Unfit),
        }
    }

    fn revert(&mut self, function: *const c_void) {
        self.0.revert(NativePointer(function.cast_mut()));
    }

    fn end(&mut self) {
        self.0.end_transaction();
    }
}
