//! What starts containers, for tests that have the kubelet's answers and no kubelet.

#![forbid(unsafe_code)]

mod cdi;
pub mod container;
mod hooks;
pub mod proto;
