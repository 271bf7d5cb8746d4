//! Starts containers for tests that replay a kubelet's answers without a kubelet.

#![forbid(unsafe_code)]

mod cdi;
pub mod container;
mod hooks;
pub mod proto;
