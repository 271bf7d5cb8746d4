//! `libcuda_limiter.so`: holds a CUDA program to its share of a GPU.
//!
//! Preloaded into a process, it waits for the driver's libraries to be loaded and patches their
//! functions in memory; it exports no function of its own. Until the first call into a patched
//! function nothing else happens: no thread, no network, no output.
//!
//! The rooms, from the top; each uses those below it only:
//!
//! * [`patch`]: noticing the libraries, patching them, saying what was patched
//! * [`hooks`]: one declaration for each driver function, and thin handlers
//! * [`process`], [`device`]: the one value that holds what is known in this process, and a device's part of it
//! * [`memory`]: reserve, call, commit; [`compute`]: the gate, the lanes that launches go through, the governor that
//!   opens and closes. Neither knows of the other
//! * [`ledger`]: the session's ledger of a device
//! * [`exit_guard`]: keeps the driver alive under the limiter's own threads; [`own_thread`]: how those are started
//! * [`driver_calls`]: the driver functions that the limiter itself calls
//! * [`config`]: from environment variables to limits; [`verdict`]: what holds where the limiter fails
//! * [`clock`], [`device_list`], [`per_process`], [`report`], [`unpatched`]: small things
//!
//! A static is what has to be there before that value is made, or be found by code that is handed nothing;
//! each says why. All else is in [`process::Process`]: a forked child forgets one pointer, and what `compute` keeps in
//! statics (`compute::after_fork`).

mod clock;
mod compute;
#[allow(dead_code, reason = "the whole table is parsed, whatever is used")]
mod config;
mod device;
mod device_list;
mod driver_calls;
mod exit_guard;
mod hooks;
mod ledger;
mod memory;
mod own_thread;
mod patch;
mod per_process;
mod process;
mod report;
mod unpatched;
mod verdict;

/// Runs when the library is loaded: starts the watch for the driver's libraries.
#[ctor::ctor(unsafe)]
fn start() {
    // SAFETY: a constructor, so the loader's list is at rest.
    unsafe { patch::start() };
}
