//! `libcuda_limiter.so`: holds a CUDA program to its share of a GPU.
//!
//! Preloaded into a process, it waits for the driver's libraries to be loaded and patches their
//! functions in memory; it exports no function of its own. Until the first call into a patched
//! function nothing else happens: no thread, no network, no output. The rooms:
//!
//! * [`patch`]: noticing the libraries, patching them, saying what was patched
//! * [`hooks`]: one declaration for each driver function, and thin handlers
//! * [`config`]: from environment variables to limits
//! * [`runtime`], [`device`]: the process-wide state and a device's part of it
//! * [`memory`]: reserve, call, commit
//! * [`compute`]: the gate, the lanes that launches go through, the governor that opens and closes
//! * [`keeper`]: the thread that finds out what no call tells of
//! * [`per_process`]: statics that survive a fork
//! * [`own`]: the driver functions that the limiter itself calls
//! * [`own_thread`]: the threads that it starts
//! * [`report`]: what the limiter says, and where

mod clock;
mod compute;
#[allow(dead_code, reason = "the whole table is parsed, whatever is used")]
mod config;
mod device;
mod driver_calls;
mod exit_guard;
mod hooks;
mod ledger;
mod list;
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
