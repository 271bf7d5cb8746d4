//! The simulated `libcuda.so.1`, over the node that [`fake_node`] simulates. Tests and the demo load it in place of the
//! driver.
//!
//! * `exports` lists every exported function with its forms; `stub` gives each one the entry code of the real driver
//! * `state` is the state of a process (contexts, streams, memory ...), `thread` that of a thread
//! * The other modules follow the sections of the driver API
//!
//! The crate is as strict as the real driver: an invalid call gets the driver's error code.

mod array;
mod attributes;
mod capture;
mod context;
mod copy;
mod device;
mod errors;
mod event;
mod exports;
mod external;
mod ffi;
mod graph;
mod graph_exec;
mod graph_memory;
mod green;
mod host;
mod host_calls;
mod launch;
mod loading;
mod managed;
mod memory;
mod module;
mod multicast;
mod pointer;
mod pool;
mod proc_address;
mod ptx;
mod refused;
mod sharing;
mod sparse;
mod state;
mod stream;
mod stream_memory;
mod stub;
mod thread;
mod vmm;
