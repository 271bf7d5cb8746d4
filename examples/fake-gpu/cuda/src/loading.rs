//! Loading code into a context, as far as other calls feel it.
//!
//! On an H200, `cuModuleLoadData` waits while a stream of its context is held by a wait for a value,
//! and keeps a lock of the driver meanwhile: every other call of the process then waits, too. Only a
//! store opens it. With lazy loading, the first launch of each kernel loads it and does the same.

use std::time::Duration;

use driver::cuda;

use crate::context::whole;
use crate::ffi::Api;
use crate::module::known;
use crate::state::{Driver, Inner};

/// How often the held streams are looked at.
const LOOK: Duration = Duration::from_micros(30);

/// Whether modules are loaded at once, not when something in them is first asked for.
pub(crate) fn eager() -> bool {
    std::env::var("CUDA_MODULE_LOADING").is_ok_and(|value| value == "EAGER")
}

/// Waits until no stream of the context is held by a wait for a value; 0: of any context. The
/// caller has the driver's lock and keeps it.
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

/// Loads a kernel that is launched in a context for the first time.
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
