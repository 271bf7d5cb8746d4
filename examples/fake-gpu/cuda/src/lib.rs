//! A `libcuda.so.1` made of software, over the node that [`fake_node`] simulates.
//!
//! * [`exports`] is the list of every exported function with its versions; [`stub`] gives each one
//!   the shape that the real driver's entry points have.
//! * [`state`] holds what one process has (contexts, streams, memory ...), [`thread`] what one
//!   thread has.
//! * The other modules are the driver API's own chapters.
//!
//! The crate is strict where the real driver is: a wrong call gets the driver's error code.

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
