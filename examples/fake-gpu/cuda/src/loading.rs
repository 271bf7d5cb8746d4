//! Loading code into a context, as far as other calls are affected.
//!
//! On an H200, `cuModuleLoadData` waits while a wait for a value holds a stream of its context, and keeps a lock of the
//! driver meanwhile, so that every other call of the process waits as well. Only a plain store can then release the
//! stream. With lazy loading, the first launch of each kernel loads it and waits in the same way.

use std::time::Duration;

use driver::cuda;

use crate::context::whole;
use crate::ffi::Api;
use crate::module::known;
use crate::state::{Driver, Inner};

/// How often the held streams are polled.
const LOOK: Duration = Duration::from_micros(30);

/// Whether modules are loaded at once instead of at their first use.
pub(crate) fn eager() -> bool {
    std::env::var("CUDA_MODULE_LOADING").is_ok_and(|value| value == "EAGER")
}

/// Waits until no wait for a value holds a stream of the context; 0: of any context. The caller keeps the driver's
/// lock.
pub(crate) fn wait(driver: &Driver, inner: &Inner, context: u64) {
    let concerned = |of: u64| context == 0 || whole(inner, of) == whole(inner, context);
    loop {
        let held = driver.node.lock().held_contexts(driver.process);
        if !held.into_iter().any(concerned) {
            return;
        }
        std::thread::sleep(LOOK);
    }
}

/// Loads a kernel at its first launch in a context.
pub(crate) fn launched(
    driver: &Driver,
    inner: &mut Inner,
    function: cuda::Function,
    context: u64,
) -> Api {
    let context = whole(inner, context);
    if known(inner, function)?.placed.contains(&context) {
        return Ok(());
    }
    if !eager() {
        wait(driver, inner, context);
    }
    known(inner, function)?.placed.push(context);
    Ok(())
}
