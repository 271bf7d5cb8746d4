//! What the sessions' pages hold and what the daemon tells, as `sluice status --json` prints it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use api::SessionState;
use limits::turns::ratio_ppm;
use limits::units::PPM_ONE;
use limits::{ComputeLimit, GpuId, Policy};
use protocol::sessions::{
    ByKind, ComputeReport, ContainerReport, DamagedPage, DeviceReport, ElsewhereDevice,
    ElsewhereReport, MemoryReport, ProcessReport, SessionReport, SharingReason, SharingReport,
    SharingWay, StatusReport,
};
use session::directory::{Found, told};
use session::layout::MemoryKind;
use session::{Names, ProcessSummary, SessionSummary, Summary, clock};

use crate::node::gpus::Gpus;
use crate::node::{Node, containers};

/// Reads the pages of the sessions; those without a process only with `all`. With `unused`, the devices that no
/// process has used are in it as well, for sessions that have used others.
pub(crate) fn report(node: &Node, gpus: &Gpus, all: bool, unused: bool) -> StatusReport {
    let mut report = StatusReport {
        sessions: Vec::new(),
        damaged: Vec::new(),
        elsewhere: Vec::new(),
        gpus: Vec::new(),
        overcommitted: Vec::new(),
    };
    let mut names = Names::default();
    for found in &node.sessions {
        let mut summary = SessionSummary::of(found);
        let shown = all || found.owned || summary.is_in_use();
        report.damaged.extend(summary.damaged.drain(..).map(|(page, error)| DamagedPage {
            session: found.name.clone(),
            page: told(&page),
            problem: error.to_string(),
        }));
        // `sluice run` makes the pages of all devices that its limits are for.
        if !unused && summary.devices.iter().any(|(_, device)| device.was_used) {
            summary.devices.retain(|(_, device)| device.was_used);
        }
        if shown {
            report.sessions.push(session(node, gpus, found, &summary, &mut names));
        }
    }
    report.elsewhere = node.elsewhere(all).map(|known| elsewhere(known, gpus)).collect();
    report
}

fn session(
    node: &Node,
    gpus: &Gpus,
    found: &Found,
    summary: &SessionSummary,
    names: &mut Names,
) -> SessionReport {
    let (known, now) = (node.known(found), clock::now_ns());
    let of = |one: &(GpuId, Summary)| {
        let index = gpus.index(Some(found), one.0);
        let mut device = device(one, names, found.uid, index, now);
        let of_daemon = known.iter().flat_map(|known| &known.devices);
        if let Some(known) = of_daemon.into_iter().find(|known| known.uuid.parse() == Ok(one.0)) {
            prefer(&mut device.compute, known);
        }
        device
    };
    let devices: Vec<DeviceReport> = summary.devices.iter().map(of).collect();
    let settings = found.settings().unwrap_or_default();
    let first = || devices.iter().flat_map(|device| &device.processes).next()?.name.clone();
    SessionReport {
        session: found.name.clone(),
        name: settings.name,
        uid: found.uid,
        user: user(found.uid),
        container: known.and_then(|known| container(known.container.as_ref()?)),
        pod: known.and_then(|known| known.pod.clone()),
        command: settings.command.or_else(first),
        frozen: known.is_some_and(|known| known.state == SessionState::Frozen),
        directory: told(&found.path),
        devices,
    }
}

/// The daemon measures for itself: what it knows counts more than what the session's processes wrote.
fn prefer(compute: &mut ComputeReport, known: &api::SessionDevice) {
    if compute.policy != Policy::None {
        compute.recent_ppm = known.recent_ppm.or(compute.recent_ppm);
        compute.mean_ppm = known.mean_ppm.or(compute.mean_ppm);
        compute.sharing = known.sharing.as_ref().map(sharing);
    }
}

fn elsewhere(known: &api::Session, gpus: &Gpus) -> ElsewhereReport {
    let device = |name: &str| {
        let uuid = name.parse().ok()?;
        let index = gpus.index(None, uuid);
        let compute = known_compute_on(known, name);
        Some(ElsewhereDevice {
            uuid,
            index,
            compute,
            memory: known.memory_on(name).map(known_memory),
        })
    };
    ElsewhereReport {
        session: known.name.clone(),
        uid: known.uid,
        user: user(known.uid),
        container: known.container.as_ref().and_then(container),
        pod: known.pod.clone(),
        frozen: known.state == SessionState::Frozen,
        pids: known.pids.clone(),
        devices: known.uuids().into_iter().filter_map(device).collect(),
    }
}

/// A session's time on one of its devices, as the daemon knows it.
pub(crate) fn known_compute_on(known: &api::Session, uuid: &str) -> ComputeReport {
    let limited = known.devices.iter().find(|device| device.uuid == uuid);
    limited.map_or_else(unlimited, known_compute)
}

/// Of a session without a compute share nothing is measured.
fn unlimited() -> ComputeReport {
    let ComputeLimit { share_ppm, policy, soft_ppm, weight, priority } = ComputeLimit::NONE;
    ComputeReport {
        policy,
        share_ppm,
        soft_ppm,
        weight,
        priority,
        density_ppm: None,
        recent_ppm: None,
        mean_ppm: None,
        sharing: None,
        delivered_us: 0,
        waited_us: 0,
    }
}

/// A session's memory on a device, as the daemon has seen it in its pages.
fn known_memory(known: &api::SessionMemory) -> MemoryReport {
    let used = known.used_bytes;
    let over = known.limit_bytes.map_or(0, |limit| used.saturating_sub(limit));
    MemoryReport {
        limit: known.limit_bytes,
        real: known.real_bytes,
        used,
        peak: known.peak_bytes,
        on_device: used.saturating_sub(known.overcommitted_bytes),
        by_kind: ByKind {
            data: known.data_bytes,
            context: known.context_bytes,
            pool: known.pool_bytes,
            graph: known.graph_bytes,
            array: known.array_bytes,
            overcommitted: known.overcommitted_bytes,
            driver: known.driver_bytes,
            headroom: known.headroom_bytes,
        },
        left: known.limit_bytes.map(|limit| limit.saturating_sub(used)),
        over,
        growth_refused: over > 0,
    }
}

/// A session's time on a device, as the daemon knows it.
fn known_compute(device: &api::SessionDevice) -> ComputeReport {
    ComputeReport {
        policy: device.policy.into(),
        share_ppm: device.share_ppm,
        soft_ppm: device.soft_ppm,
        weight: device.weight,
        priority: device.priority.into(),
        density_ppm: device.density_ppm.and_then(|ppm| u32::try_from(ppm).ok()),
        recent_ppm: device.recent_ppm,
        mean_ppm: device.mean_ppm,
        delivered_us: device.charged_us,
        waited_us: device.waited_us,
        sharing: device.sharing.as_ref().map(sharing),
    }
}

/// What a session gets done in each way to share a device, in relation to the better one.
fn sharing(known: &api::Sharing) -> SharingReport {
    let (turns, at_once) = (known.launches_in_turns, known.launches_at_once);
    let better = turns.max(at_once).unwrap_or(0).max(1);
    let part = |launches| u32::try_from(ratio_ppm(launches, better)).unwrap_or(PPM_ONE);
    let both = turns.is_some() && at_once.is_some();
    SharingReport {
        way: match known.way {
            api::SharingWay::Turns => SharingWay::Turns,
            api::SharingWay::Overlap => SharingWay::Overlap,
        },
        reason: match known.reason {
            api::SharingReason::NotCompared => SharingReason::NotCompared,
            api::SharingReason::MoreDone => SharingReason::MoreDone,
            api::SharingReason::Guarantee => SharingReason::Guarantee,
        },
        since_us: known.since_us,
        in_turns_ppm: turns.filter(|_| both).map(part),
        at_once_ppm: at_once.filter(|_| both).map(part),
    }
}

/// A container, with its name if that is to be found.
pub(crate) fn container(known: &api::Container) -> Option<ContainerReport> {
    let api::Container { runtime, id, user } = known;
    let name = containers::name(runtime, id, *user);
    Some(ContainerReport { runtime: runtime.clone(), id: id.clone(), name })
}

/// A user's name.
pub(crate) fn user(uid: u32) -> Option<String> {
    Some(uzers::get_user_by_uid(uid)?.name().to_string_lossy().into_owned())
}

/// Whose folder a page is in.
pub(super) fn owner(page: &Path) -> u32 {
    fs::metadata(page).map_or(u32::MAX, |found| found.uid())
}

pub(crate) fn device(
    (uuid, summary): &(GpuId, Summary),
    names: &mut Names,
    uid: u32,
    index: Option<u32>,
    now_ns: u64,
) -> DeviceReport {
    let limit = summary.limits.compute;
    let densities = summary.processes.iter().filter_map(|process| process.density_ppm);
    // Without a limit nothing is measured.
    let measured = |share: Option<u32>| share.filter(|_| limit.policy != Policy::None);
    DeviceReport {
        uuid: *uuid,
        index,
        memory: memory(summary),
        compute: ComputeReport {
            policy: limit.policy,
            share_ppm: limit.share_ppm,
            soft_ppm: limit.soft_ppm,
            weight: limit.weight,
            priority: limit.priority,
            density_ppm: mean(densities),
            recent_ppm: measured(summary.recent_share_ppm(now_ns)),
            mean_ppm: measured(summary.mean_share_ppm(now_ns)),
            delivered_us: summary.delivered_ns / 1000,
            waited_us: summary.waited_ns / 1000,
            sharing: None,
        },
        age_us: summary.first_used_ns.map(|first| now_ns.saturating_sub(first) / 1000),
        refusals: summary.refused.map_or(0, |refused| refused.count),
        processes: summary.processes.iter().map(|found| process(found, names, uid)).collect(),
        unknown: summary.unknown,
    }
}

fn process(process: &ProcessSummary, names: &mut Names, uid: u32) -> ProcessReport {
    ProcessReport {
        pid: process.pid,
        host_pid: names.pid_of(process, uid),
        name: names.of(process, uid),
        bytes: process.total(),
        by_kind: by_kind(|kind| process.bytes(kind)),
        holding: process.holding,
        waiting: process.waiting,
        charged_us: process.charged_ns / 1000,
        density_ppm: process.density_ppm,
    }
}

fn mean(values: impl Iterator<Item = u32>) -> Option<u32> {
    let (sum, count) =
        values.fold((0, 0), |(sum, count), value| (sum + u64::from(value), count + 1));
    u32::try_from(sum.checked_div(count)?).ok()
}

fn memory(summary: &Summary) -> MemoryReport {
    let used = summary.total();
    let memory = summary.limits.memory;
    let limit = memory.map(|memory| memory.limit);
    let over = limit.map_or(0, |limit| used.saturating_sub(limit));
    MemoryReport {
        limit,
        real: memory.map(|memory| memory.on_device()).filter(|real| Some(*real) < limit),
        used,
        peak: summary.peak_bytes.max(used),
        on_device: summary.on_device(),
        by_kind: by_kind(|kind| summary.bytes(kind)),
        left: limit.map(|limit| limit.saturating_sub(used)),
        over,
        growth_refused: over > 0,
    }
}

fn by_kind(bytes: impl Fn(MemoryKind) -> u64) -> ByKind {
    ByKind {
        data: bytes(MemoryKind::Data),
        context: bytes(MemoryKind::Context),
        pool: bytes(MemoryKind::Pool),
        graph: bytes(MemoryKind::Graph),
        array: bytes(MemoryKind::Array),
        overcommitted: bytes(MemoryKind::Overcommitted),
        driver: bytes(MemoryKind::Driver),
        headroom: bytes(MemoryKind::Headroom),
    }
}

#[cfg(test)]
mod tests {
    use super::mean;

    #[test]
    fn a_mean_of_nothing_is_not_known() {
        assert_eq!(mean([].into_iter()), None);
        assert_eq!(mean([u32::MAX, u32::MAX].into_iter()), Some(u32::MAX));
        assert_eq!(mean([1, 4].into_iter()), Some(2));
    }
}
