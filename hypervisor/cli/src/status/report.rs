//! The contents of the sessions' pages, as `sluice status --json` prints them.

use limits::GpuId;
use protocol::sessions::{
    ByKind, ComputeReport, DamagedPage, DeviceReport, MemoryReport, ProcessReport, SessionReport,
    StatusReport,
};
use session::directory::{Found, told};
use session::layout::MemoryKind;
use session::process::may_be_of;
use session::{Names, ProcessSummary, SessionSummary, Summary};

/// Reads the pages of `sessions`; sessions without a process only with `all`. With `unused`, the devices that no
/// process has used are in it as well, for sessions that have used others.
pub(super) fn report(sessions: &[Found], all: bool, unused: bool) -> StatusReport {
    let mut report = StatusReport { sessions: Vec::new(), damaged: Vec::new() };
    let mut names = Names::default();
    for found in sessions {
        let mut summary = SessionSummary::of(found);
        let shown = all || found.owned || summary.is_in_use();
        report.damaged.extend(summary.damaged.into_iter().map(|(page, error)| DamagedPage {
            session: found.name.clone(),
            page: told(&page),
            problem: error.to_string(),
        }));
        // `sluice run` makes the pages of all devices that its limits are for.
        if !unused && summary.devices.iter().any(|(_, device)| device.was_used) {
            summary.devices.retain(|(_, device)| device.was_used);
        }
        if shown {
            report.sessions.push(SessionReport {
                session: found.name.clone(),
                uid: found.uid,
                directory: told(&found.path),
                devices: {
                    let uid = found.uid;
                    let of = |found| device(found, &mut names, uid);
                    summary.devices.iter().map(of).collect()
                },
            });
        }
    }
    report
}

fn device((uuid, summary): &(GpuId, Summary), names: &mut Names, uid: u32) -> DeviceReport {
    let limit = summary.limits.compute;
    let densities = summary.processes.iter().filter_map(|process| process.density_ppm);
    DeviceReport {
        uuid: *uuid,
        memory: memory(summary),
        compute: ComputeReport {
            policy: limit.policy,
            share_ppm: limit.share_ppm,
            soft_ppm: limit.soft_ppm,
            weight: limit.weight,
            priority: limit.priority,
            density_ppm: mean(densities),
        },
        processes: summary.processes.iter().map(|found| process(found, names, uid)).collect(),
        unknown: summary.unknown,
    }
}

fn process(process: &ProcessSummary, names: &mut Names, uid: u32) -> ProcessReport {
    ProcessReport {
        pid: process.pid,
        host_pid: process.host_pid.filter(|&pid| may_be_of(pid, uid)),
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
        oversubscribed: bytes(MemoryKind::Oversubscribed),
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
