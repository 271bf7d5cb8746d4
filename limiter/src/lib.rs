//! `libcuda_limiter.so`: holds a CUDA program to its share of a GPU.
//!
//! Preloaded into a process, the library waits for the driver's libraries to be loaded and patches their functions in
//! memory; it exports no function. Until the first call into a patched function it does nothing else: no thread, no
//! network, no output.
//!
//! The layers, from the top. Each uses only those below it:
//!
//! * [`patch`]: notices the driver's libraries, patches them, reports the result
//! * [`hooks`]: one declaration for each driver function, and thin handlers
//! * [`process`], [`device`]: the state of this process, and its part for one device
//! * [`memory`]: reserve, call, commit; [`compute`]: the gate, the lanes of launches, the governor that opens and
//!   closes the gate. Neither knows of the other
//! * [`ledger`]: the session's ledger of a device
//! * [`exit_guard`]: keeps the driver alive under the limiter's own threads; [`own_thread`]: starts those threads
//! * [`driver_calls`]: the driver functions that the limiter itself calls
//! * [`environment`]: the variables that apply; [`verdict`]: the fate of calls when the limiter fails
//! * [`own_pages`]: releases the library's pages in processes that do not use CUDA
//! * [`build`], [`c_library`], [`clock`], [`device_list`], [`per_process`], [`report`], [`unpatched`]: small helpers
//!
//! State is static only if it is needed before [`process::Process`] exists, or by code that gets no reference to it;
//! each static says why. A forked child forgets one pointer, and the statics of `compute` (`compute::after_fork`).

mod build;
mod c_library;
mod clock;
mod compute;
mod device;
mod device_list;
mod driver_calls;
mod environment;
mod exit_guard;
mod hooks;
mod ledger;
mod memory;
mod own_pages;
mod own_thread;
mod patch;
mod per_process;
mod process;
mod report;
mod unpatched;
mod verdict;

/// Runs when the library is loaded: stores the environment, and starts the watch for the driver's libraries.
#[ctor::ctor(unsafe)]
fn start() {
    if !c_library::is_glibc() || c_library::has_more_rights() {
        return;
    }
    let _ = std::panic::catch_unwind(environment::keep);
    // SAFETY: a constructor, so the loader's list is at rest.
    unsafe { patch::start() };
    own_pages::give_back();
}
