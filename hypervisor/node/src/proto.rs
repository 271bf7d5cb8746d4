//! Generated gRPC types: the kubelet's device plugin (v1beta1), PodResources (v1) and DRA (v1) APIs, and the container
//! runtime's NRI with ttrpc.

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

pub mod pod_resources {
    tonic::include_proto!("v1");
}

pub mod dra {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

/// NRI, through which a container runtime calls plugins.
pub mod nri {
    tonic::include_proto!("nri.pkg.api.v1alpha1");
}

pub mod ttrpc {
    tonic::include_proto!("ttrpc");
}

pub mod plugin_registration {
    tonic::include_proto!("pluginregistration");
}

/// The device plugin API version in registrations.
pub const VERSION: &str = "v1beta1";
/// Health of a device that may be allocated.
pub const HEALTHY: &str = "Healthy";
/// Health of a device that may not be allocated.
pub const UNHEALTHY: &str = "Unhealthy";
