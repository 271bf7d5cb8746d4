//! What starts containers, for tests that have the kubelet's answers and no kubelet.

#![forbid(unsafe_code)]

pub mod container;
pub mod proto;
