//! Changes by the daemon, of sessions whose pages it reaches and this process does not: those in containers.

use std::io::{self, Write};

use ::limits::gpu::GpuChoice;
use ::limits::memory::{MemoryLimit, Part};
use ::limits::request::MemoryRequest;
use ::limits::units::Amount;
use ::limits::{ComputeLimit, GpuId, Limits, Policy, Shown};
use api::{FormerLimits, LimitChange, LimitsChanged, Session};
use http_bidir_comm::client::ClientError;
use protocol::reports::{LimitReport, TookChange};

use super::{TAKEN_WITHIN, changed_device, say_late, told};
use crate::Error;
use crate::cli::LimitArguments;
use crate::daemon_link::PATIENCE;
use crate::node::Node;
use crate::node::gpus::Gpus;
use crate::say;
use crate::status::json;

/// Has the daemon change the limits of a session.
pub(super) fn change(
    node: &Node,
    session: &Session,
    arguments: &LimitArguments,
    gpus: &Gpus,
) -> Result<u8, Error> {
    let none = || Error::Daemon("none knows this session".to_owned());
    let daemon = &node.daemon.as_ref().ok_or_else(none)?.client;
    let change = asked(session, arguments, gpus)?;
    let path = api::path::session(session.id, "/limits");
    let path = format!("{path}?wait_ms={}", TAKEN_WITHIN.as_millis());
    let answer: Result<LimitsChanged, ClientError> = daemon.put(&path, &change, PATIENCE);
    let changed = answer.map_err(|error| match error {
        ClientError::Refused { message, .. } => Error::Usage(message),
        other => Error::Daemon(other.to_string()),
    })?;
    let report = report(session, &changed);
    let mut text = format!("{} of user {}\n", Shown(&session.name), session.uid);
    for device in &changed.devices {
        let Ok(uuid) = device.uuid.parse() else { continue };
        text += &told(uuid, &limits(&device.before), &limits(&after(device)), device.used_bytes);
    }
    let text = if arguments.json { json(&report)? } else { text };
    let _ = io::stdout().lock().write_all(text.as_bytes());
    if !arguments.json {
        let processes = changed.devices.iter().flat_map(|device| &device.processes);
        let late = processes.filter(|process| !process.taken).map(|process| process.pid).collect();
        say_late(&late).iter().for_each(|line| say(line));
    }
    Ok(0)
}

/// What the daemon is asked for. It does not know the size of a device.
fn asked(session: &Session, arguments: &LimitArguments, gpus: &Gpus) -> Result<LimitChange, Error> {
    let request = arguments.request();
    let device = match &arguments.device {
        Some(wanted) => Some(chosen(session, wanted, gpus)?),
        None => None,
    };
    let sizes = || {
        let all = session.uuids().into_iter().filter_map(|uuid| uuid.parse().ok());
        let all = all.filter(|uuid| device.is_none_or(|device| device == *uuid));
        all.map(|uuid: GpuId| gpus.memory(uuid)).collect::<Vec<_>>()
    };
    let bytes = |amount: Amount| match amount {
        Amount::Bytes(bytes) => Ok(bytes),
        Amount::Ppm(_) => {
            let sizes = sizes();
            let first = sizes.first().copied().flatten();
            let same = sizes.iter().all(|size| *size == first);
            amount.of(first).filter(|_| same).ok_or_else(|| {
                Error::Usage(
                    "a percentage of a device is not accepted here, because the size is unknown or differs between \
                     the session's devices; expected a size such as 8GiB"
                        .to_owned(),
                )
            })
        }
    };
    let mut change = LimitChange {
        device: device.map(|uuid| uuid.to_string()),
        share_ppm: request.share.map(|share| share.value),
        policy: request.policy.map(|policy| policy.value.into()),
        soft_ppm: request.soft.map(|soft| soft.value),
        weight: request.weight.map(|weight| weight.value),
        priority: request.priority.map(|priority| priority.value.into()),
        ..LimitChange::default()
    };
    match request.memory.map(|memory| memory.value) {
        Some(MemoryRequest::Limit(amount)) => change.memory_bytes = Some(bytes(amount)?),
        Some(MemoryRequest::NoLimit) => change.no_memory_limit = Some(true),
        None => {}
    }
    if let Some(Part::Amount(amount)) = request.real.map(|real| real.value) {
        change.memory_real_bytes = Some(bytes(amount)?);
    }
    Ok(change)
}

/// A device of the session.
fn chosen(session: &Session, wanted: &str, gpus: &Gpus) -> Result<GpuId, Error> {
    let own: Vec<GpuId> =
        session.uuids().into_iter().filter_map(|uuid| uuid.parse().ok()).collect();
    let choice: Option<GpuChoice> = wanted.parse().ok();
    let fits = |uuid: &&GpuId| {
        choice.as_ref().is_some_and(|choice| choice.fits(gpus.index(None, **uuid), uuid))
    };
    let mut fitting = own.iter().filter(fits);
    match (fitting.next(), fitting.next()) {
        (Some(one), None) => Ok(*one),
        _ => {
            let own: Vec<_> = own.iter().map(GpuId::to_string).collect();
            Err(Error::Usage(format!(
                "--device '{wanted}' does not name exactly one device that session {} has used; expected one of {}",
                session.name,
                own.join(", ")
            )))
        }
    }
}

fn report(session: &Session, changed: &LimitsChanged) -> LimitReport {
    let device = |device: &api::DeviceLimits| {
        let (before, after) = (limits(&device.before), limits(&after(device)));
        let mut told =
            changed_device(device.uuid.parse().ok()?, &before, &after, device.used_bytes);
        let took = |process: &api::ProcessTook| TookChange {
            pid: process.pid,
            host_pid: process.host_pid,
            taken: process.taken,
        };
        told.processes = device.processes.iter().map(took).collect();
        Some(told)
    };
    LimitReport {
        session: session.name.clone(),
        uid: session.uid,
        taken_by_all: changed.taken_by_all,
        devices: changed.devices.iter().filter_map(device).collect(),
    }
}

fn after(device: &api::DeviceLimits) -> FormerLimits {
    FormerLimits {
        memory_bytes: device.memory_bytes,
        memory_real_bytes: device.memory_real_bytes,
        policy: device.policy,
        share_ppm: device.share_ppm,
        soft_ppm: device.soft_ppm,
        weight: device.weight,
        priority: device.priority,
    }
}

fn limits(told: &FormerLimits) -> Limits {
    Limits {
        memory: told.memory_bytes.map(|limit| MemoryLimit { limit, real: told.memory_real_bytes }),
        compute: ComputeLimit {
            policy: Policy::from(told.policy),
            share_ppm: told.share_ppm,
            soft_ppm: told.soft_ppm,
            weight: told.weight,
            priority: told.priority.into(),
        },
    }
}
