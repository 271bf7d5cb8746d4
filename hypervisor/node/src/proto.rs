//! The kubelet's APIs: for device plugins, v1beta1, of PodResources, v1, and for DRA drivers, v1. And NRI, the container
//! runtime's, with the protocol below it.

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

/// The API for DRA drivers.
pub mod dra {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

/// NRI: what a container runtime asks plugins.
pub mod nri {
    tonic::include_proto!("nri.pkg.api.v1alpha1");
}

/// The protocol of NRI.
pub mod ttrpc {
    tonic::include_proto!("ttrpc");
}

/// How DRA drivers are registered.
pub mod plugin_registration {
    tonic::include_proto!("pluginregistration");
}

/// The version of the device plugin API that both sides name.
pub const VERSION: &str = "v1beta1";
/// A device that may be given out.
pub const HEALTHY: &str = "Healthy";
/// One that may not.
pub const UNHEALTHY: &str = "Unhealthy";
