//! A `libnvidia-ml.so.1` in software, over the node that [`fake_node`] simulates.
//!
//! It reads the node and changes nothing in it: it creates no context and registers no process. As
//! with the real library, utilisation comes in periods of a sixth of a second, and an idle process
//! has no sample.

mod device;
mod faults;
mod ffi;
mod processes;
mod sensors;
mod stub;
mod system;
mod tables;
mod utilization;
mod view;
