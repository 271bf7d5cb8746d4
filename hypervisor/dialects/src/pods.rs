//! What a pod says of its containers' GPUs: its resources, and where its scheduler put it.

use k8s_openapi::api::core::v1::{Container, Pod};

use limits::GpuId;

use crate::claims::{ClaimError, ContainerClaims};
use crate::table::GPU_IDS;
use crate::{Claim, Dialect, Need, NeedError, PodClaims};

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
    let names = dialect.annotations();
    match (dialect, names.real) {
        // Their plugins take out of the other one what they have allocated.
        (Dialect::Volcano | Dialect::Hami, Some(real)) => real,
        _ => names.claimed,
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
    let phase = dialect.annotations().phase?;
    let from = if phase.is_label { &pod.metadata.labels } else { &pod.metadata.annotations };
    from.as_ref()?.get(phase.name).map(String::as_str)
}

/// Whether its scheduler has put it there, and its containers do not have their GPUs yet.
#[must_use]
pub fn is_allocating(pod: &Pod, dialect: Dialect) -> bool {
    match dialect.annotations().phase {
        Some(names) => phase(pod, dialect) == Some(names.allocating),
        // All that is known is that it has not begun to run.
        None => {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            matches!(phase, None | Some("Pending"))
        }
    }
}

/// Whether its scheduler has been told that its containers have their GPUs.
#[must_use]
pub fn has_succeeded(pod: &Pod, dialect: Dialect) -> bool {
    let names = dialect.annotations().phase;
    names.is_some_and(|names| phase(pod, dialect) == Some(names.succeeded))
}

/// Whether its scheduler has been told that they do not get them.
#[must_use]
pub fn has_failed(pod: &Pod, dialect: Dialect) -> bool {
    let names = dialect.annotations().phase;
    names.is_some_and(|names| phase(pod, dialect) == Some(names.failed))
}

/// What a container of a pod asks for. `None`: no GPU.
///
/// # Errors
/// [`NeedError`]
pub fn need(
    pod: &Pod,
    container: &Container,
    dialects: &[Dialect],
) -> Result<Option<Need>, NeedError> {
    let resources = container.resources.as_ref();
    Need::of(dialects, |word, name| {
        if word.is_annotation() {
            return annotation(pod, name);
        }
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
    let mut claims = read(pod, dialect, lasting(dialect))?;
    if dialect == Dialect::VgpuRs {
        for_all_others(pod, &mut claims)?;
    }
    Ok(claims)
}

/// vgpu.rs: containers that are not named have the pod's GPUs.
fn for_all_others(pod: &Pod, claims: &mut PodClaims) -> Result<(), AnnotationError> {
    let text = annotation(pod, GPU_IDS).unwrap_or_default();
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let gpus: Result<Vec<GpuId>, _> = parts.map(str::parse).collect();
    let wrong = |_| {
        let source = ClaimError::gpu_ids(text);
        AnnotationError { name: GPU_IDS, source }
    };
    let all: Vec<Claim> = gpus.map_err(wrong)?.into_iter().map(Claim::of).collect();
    if all.is_empty() {
        return Ok(());
    }
    for name in counted(pod) {
        if claims.of(name).is_none() {
            let claims_of = ContainerClaims { container: name.to_owned(), claims: all.clone() };
            claims.0.push(claims_of);
        }
    }
    Ok(())
}

/// The GPUs that its containers have, by those who gave them out.
///
/// # Errors
/// [`AnnotationError`]
pub fn real(pod: &Pod, dialect: Dialect) -> Result<PodClaims, AnnotationError> {
    match dialect.annotations().real {
        Some(name) => read(pod, dialect, name),
        None => Ok(PodClaims::default()),
    }
}

fn read(pod: &Pod, dialect: Dialect, name: &'static str) -> Result<PodClaims, AnnotationError> {
    let Some(text) = annotation(pod, name) else { return Ok(PodClaims::default()) };
    PodClaims::read(dialect, text, &counted(pod)).map_err(|source| AnnotationError { name, source })
}
