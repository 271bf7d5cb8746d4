//! A `libnvidia-ml.so.1` made of software, over the node that [`fake_node`] simulates.
//!
//! It reads the node and changes nothing in it: no context is created, no process registered.
//! Utilisation comes in periods of a sixth of a second, and an idle process has no sample, as with
//! the real library.

mod device;
mod ffi;
mod processes;
mod stub;
mod system;
mod utilization;
mod view;
