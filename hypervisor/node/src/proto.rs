//! The kubelet's device plugin API, v1beta1, and its PodResources API, v1.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::missing_errors_doc,
    clippy::unwrap_used,
    rust_2018_idioms,
    reason = "written by tonic-prost-build"
)]

tonic::include_proto!("v1beta1");

/// The PodResources API.
pub mod pod_resources {
    tonic::include_proto!("v1");
}

/// The version of the device plugin API that both sides name.
pub const VERSION: &str = "v1beta1";
/// A device that may be given out.
pub const HEALTHY: &str = "Healthy";
/// One that may not.
pub const UNHEALTHY: &str = "Unhealthy";
