//! Reads a pod's resources and the annotations that its scheduler wrote.

use core::num::NonZeroU32;

use k8s_openapi::api::core::v1::{Container, Pod};

use limits::GpuId;

use crate::claims::{ClaimError, ContainerClaims};
use crate::quantity::whole;
use crate::table::{GPU_IDS, WORDS, Word};
use crate::{Claim, Dialect, Need, NeedError, PodClaims};

/// An annotation cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the annotation {name}: {source}")]
pub struct AnnotationError {
    /// The annotation's name.
    pub name: &'static str,
    /// The reason.
    pub source: ClaimError,
}

/// The annotation with a pod's claims that stays until the pod ends.
#[must_use]
pub const fn lasting(dialect: Dialect) -> &'static str {
    let names = dialect.annotations();
    match (dialect, names.real) {
        // Their device plugins remove allocated devices from the other annotation.
        (Dialect::Volcano | Dialect::Hami, Some(real)) => real,
        _ => names.claimed,
    }
}

/// The value of an annotation.
#[must_use]
pub fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// The containers of a pod in the order in which the kubelet allocates their devices.
pub fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers))
}

/// The containers that have a slot in this dialect's claims, in order.
#[must_use]
pub fn slots(pod: &Pod, dialect: Dialect) -> Vec<&str> {
    match dialect {
        // As of HAMi 2.9.
        Dialect::Hami => containers(pod).map(|container| container.name.as_str()).collect(),
        _ => requesting(pod, dialect),
    }
}

/// The containers whose slots are not empty, in order. Volcano has no slots for init containers.
fn requesting(pod: &Pod, dialect: Dialect) -> Vec<&str> {
    let init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let init = init.filter(|_| dialect == Dialect::Hami);
    let all = init.chain(pod.spec.iter().flat_map(|spec| &spec.containers));
    all.filter(|one| requests(one, dialect)).map(|one| one.name.as_str()).collect()
}

fn requests(container: &Container, dialect: Dialect) -> bool {
    let said = |wanted| {
        let mut names = WORDS.iter().filter(|(of, word, _)| (*of, *word) == (dialect, wanted));
        names.find_map(|(.., name)| quantity(container, name))
    };
    match said(Word::Number) {
        Some(number) => whole(number).is_ok_and(|number| number > 0),
        // Volcano gives one GPU to a container that requests only memory.
        None => dialect == Dialect::Volcano && said(Word::Memory).is_some(),
    }
}

/// The requested quantity of a resource: the limit, or else the request.
fn quantity<'a>(container: &'a Container, name: &str) -> Option<&'a str> {
    let resources = container.resources.as_ref()?;
    let limit = resources.limits.as_ref().and_then(|all| all.get(name));
    let quantity = limit.or_else(|| resources.requests.as_ref()?.get(name))?;
    Some(&quantity.0)
}

/// Whether all containers of a pod have ended, so that it holds no GPU.
#[must_use]
pub fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// The phase of device allocation, as written by scheduler and node.
fn phase(pod: &Pod, dialect: Dialect) -> Option<&str> {
    let phase = dialect.annotations().phase?;
    let from = if phase.is_label { &pod.metadata.labels } else { &pod.metadata.annotations };
    from.as_ref()?.get(phase.name).map(String::as_str)
}

/// Whether the scheduler has assigned the pod, and its containers do not have their GPUs yet.
#[must_use]
pub fn is_allocating(pod: &Pod, dialect: Dialect) -> bool {
    match dialect.annotations().phase {
        Some(names) => phase(pod, dialect) == Some(names.allocating),
        // Without a phase annotation, a pod that does not run yet may still be waiting.
        None => {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            matches!(phase, None | Some("Pending"))
        }
    }
}

/// Whether the scheduler has been told that the containers have their GPUs.
#[must_use]
pub fn has_succeeded(pod: &Pod, dialect: Dialect) -> bool {
    let names = dialect.annotations().phase;
    names.is_some_and(|names| phase(pod, dialect) == Some(names.succeeded))
}

/// Whether the scheduler has been told that the allocation has failed.
#[must_use]
pub fn has_failed(pod: &Pod, dialect: Dialect) -> bool {
    let names = dialect.annotations().phase;
    names.is_some_and(|names| phase(pod, dialect) == Some(names.failed))
}

/// A container's request. `None`: it requests no GPU.
///
/// # Errors
/// [`NeedError`]
pub fn need(
    pod: &Pod,
    container: &Container,
    dialects: &[Dialect],
) -> Result<Option<Need>, NeedError> {
    Need::of(dialects, |word, name| {
        if word.is_annotation() { annotation(pod, name) } else { quantity(container, name) }
    })
}

/// The claims that the scheduler of this dialect wrote for a pod. `factor`: the node's memory factor.
///
/// # Errors
/// [`AnnotationError`]
pub fn claims(
    pod: &Pod,
    dialect: Dialect,
    factor: NonZeroU32,
) -> Result<PodClaims, AnnotationError> {
    let mut claims = read(pod, dialect, lasting(dialect), factor)?;
    if dialect == Dialect::VgpuRs {
        for_all_others(pod, &mut claims)?;
    }
    Ok(claims)
}

/// vgpu.rs: containers that its annotation does not name have all GPUs of the pod.
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
    for container in pod.spec.iter().flat_map(|spec| &spec.containers) {
        let container = container.name.clone();
        if claims.of(&container).is_none() {
            claims.0.push(ContainerClaims { container, claims: all.clone() });
        }
    }
    Ok(())
}

/// The GPUs that the containers really have, as written by the node. `factor`: the node's memory factor.
///
/// # Errors
/// [`AnnotationError`]
pub fn real(pod: &Pod, dialect: Dialect, factor: NonZeroU32) -> Result<PodClaims, AnnotationError> {
    match dialect.annotations().real {
        Some(name) => read(pod, dialect, name, factor),
        None => Ok(PodClaims::default()),
    }
}

/// Formats claims for [`claims`] to read. `slots`: the pod's.
#[must_use]
pub fn claims_text(
    mut claims: PodClaims,
    slots: &[&str],
    dialect: Dialect,
    factor: NonZeroU32,
) -> String {
    for claim in claims.0.iter_mut().flat_map(|of| &mut of.claims) {
        claim.memory_mib = claim.memory_mib.div_ceil(dialect.text_unit(factor));
    }
    claims.write(dialect, slots)
}

fn read(
    pod: &Pod,
    dialect: Dialect,
    name: &'static str,
    factor: NonZeroU32,
) -> Result<PodClaims, AnnotationError> {
    let Some(text) = annotation(pod, name) else { return Ok(PodClaims::default()) };
    let containers = requesting(pod, dialect);
    let wrong = |source| AnnotationError { name, source };
    let mut claims = PodClaims::read(dialect, text, &containers).map_err(wrong)?;
    for claim in claims.0.iter_mut().flat_map(|of| &mut of.claims) {
        let mib = claim.memory_mib.checked_mul(dialect.text_unit(factor));
        claim.memory_mib = mib.ok_or_else(|| wrong(ClaimError::TooMuch(claim.memory_mib)))?;
    }
    Ok(claims)
}

#[cfg(test)]
#[path = "encoders_tests.rs"]
mod tests;
