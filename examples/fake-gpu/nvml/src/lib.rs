//! The simulated `libnvidia-ml.so.1`, over the node that [`fake_node`] simulates. Tests and the demo load it in place
//! of NVML.
//!
//! It only reads the node: it creates no context and registers no process. As in NVML, utilization is sampled in
//! periods of a sixth of a second, and an idle process has no sample.

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
