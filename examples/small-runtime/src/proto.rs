//! The kubelet's container runtime API, v1alpha2.

#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::all,
    rust_2018_idioms,
    reason = "written by tonic-prost-build"
)]

tonic::include_proto!("runtime.v1alpha2");
