//! What a pod says of its containers' GPUs: its resources, and where its scheduler put it.

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::claims::ClaimError;
use crate::{Dialect, Need, NeedError, PodClaims};

/// An annotation that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the annotation {name}: {source}")]
pub struct AnnotationError {
    /// Its name.
    pub name: &'static str,
    /// Why.
    pub source: ClaimError,
}

/// Where a dialect's schedulers write what stays with the pod.
#[must_use]
pub const fn lasting(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::VgpuManager => dialect.annotations().claimed,
        // Their plugins take out of the other one what they have allocated.
        Dialect::Volcano | Dialect::Hami => dialect.annotations().real,
    }
}

/// An annotation of a pod.
#[must_use]
pub fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// The containers of a pod in the order in which kubelets give them devices.
pub fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers))
}

/// The names that HAMi's and Volcano's texts count.
#[must_use]
pub fn counted(pod: &Pod) -> Vec<&str> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| &spec.containers).map(|container| container.name.as_str()).collect()
}

/// Whether all of its containers have ended, so that it has no GPU any more.
#[must_use]
pub fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// What its scheduler and its node say of its devices.
fn phase(pod: &Pod, dialect: Dialect) -> Option<&str> {
    let phase = dialect.annotations().phase;
    let from = if phase.is_label { &pod.metadata.labels } else { &pod.metadata.annotations };
    from.as_ref()?.get(phase.name).map(String::as_str)
}

/// Whether its scheduler has put it there, and its containers do not have their GPUs yet.
#[must_use]
pub fn is_allocating(pod: &Pod, dialect: Dialect) -> bool {
    phase(pod, dialect) == Some(dialect.annotations().phase.allocating)
}

/// Whether its scheduler has been told that its containers have their GPUs.
#[must_use]
pub fn has_succeeded(pod: &Pod, dialect: Dialect) -> bool {
    phase(pod, dialect) == Some(dialect.annotations().phase.succeeded)
}

/// What a container asks for. `None`: no GPU.
///
/// # Errors
/// [`NeedError`]
pub fn need(container: &Container, dialects: &[Dialect]) -> Result<Option<Need>, NeedError> {
    let resources = container.resources.as_ref();
    Need::of(dialects, |name| {
        let limits = resources.and_then(|all| all.limits.as_ref()?.get(name));
        let value = limits.or_else(|| resources.and_then(|all| all.requests.as_ref()?.get(name)));
        value.map(|quantity| quantity.0.as_str())
    })
}

/// Where the pod's scheduler put its containers, if one of this dialect did.
///
/// # Errors
/// [`AnnotationError`]
pub fn claims(pod: &Pod, dialect: Dialect) -> Result<PodClaims, AnnotationError> {
    read(pod, dialect, lasting(dialect))
}

/// The GPUs that its containers have, by those who gave them out.
///
/// # Errors
/// [`AnnotationError`]
pub fn real(pod: &Pod, dialect: Dialect) -> Result<PodClaims, AnnotationError> {
    read(pod, dialect, dialect.annotations().real)
}

fn read(pod: &Pod, dialect: Dialect, name: &'static str) -> Result<PodClaims, AnnotationError> {
    let Some(text) = annotation(pod, name) else { return Ok(PodClaims::default()) };
    PodClaims::read(dialect, text, &counted(pod)).map_err(|source| AnnotationError { name, source })
}
