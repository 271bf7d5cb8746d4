//! What the pages say of the sessions.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use ::session::page::layout::Kind;
use ::session::page::{Page, PageError, Process, Summary};
use limits::{GpuId, Limits, Policy, Priority};
use serde::Serialize;

use crate::sluice::session;
use crate::sluice::sessions::Found;

/// All that `sluice status` knows.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The sessions.
    pub sessions: Vec<SessionReport>,
    /// Pages that cannot be believed.
    pub damaged: Vec<Damaged>,
}

/// A page that is none, or of another version.
#[derive(Debug, Clone, Serialize)]
pub struct Damaged {
    /// The session that it belongs to.
    pub session: String,
    /// The file.
    pub page: PathBuf,
    /// What is wrong with it.
    pub problem: String,
}

/// One session.
#[derive(Debug, Clone, Serialize)]
pub struct SessionReport {
    /// Its name.
    pub session: String,
    /// The user it belongs to.
    pub uid: u32,
    /// Its directory.
    pub directory: PathBuf,
    /// The devices that it has used.
    pub devices: Vec<DeviceReport>,
}

/// A session on one device.
#[derive(Debug, Clone, Serialize)]
pub struct DeviceReport {
    /// The device.
    pub uuid: GpuId,
    /// Its memory.
    pub memory: MemoryReport,
    /// Its time.
    pub compute: ComputeReport,
    /// Who is in it.
    pub processes: Vec<ProcessReport>,
    #[serde(skip)]
    pub(super) limits: Limits,
}

/// Memory of a session on one device, in bytes.
#[derive(Debug, Clone, Serialize)]
pub struct MemoryReport {
    /// The limit, if there is one.
    pub limit: Option<u64>,
    /// What of it may be on the device, if that is less.
    pub real: Option<u64>,
    /// What its living processes have.
    pub used: u64,
    /// What of it is on the device.
    pub on_device: u64,
    /// The same by kind.
    pub by_kind: ByKind,
    /// What is left of the limit.
    pub left: Option<u64>,
    /// How much more is in use than the limit allows.
    pub over: u64,
    /// Whether no allocation succeeds until it has shrunk.
    pub growth_refused: bool,
}

/// Bytes by what they are used for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ByKind {
    /// Linear memory and the virtual memory API.
    pub data: u64,
    /// Contexts.
    pub context: u64,
    /// Pools.
    pub pool: u64,
    /// Graphs.
    pub graph: u64,
    /// Arrays.
    pub array: u64,
    /// Placed on the host.
    pub oversubscribed: u64,
    /// Taken by the driver without being asked.
    pub driver: u64,
    /// Kept free for code that the driver has yet to place.
    pub headroom: u64,
}

impl ByKind {
    fn read(bytes: impl Fn(Kind) -> u64) -> Self {
        Self {
            data: bytes(Kind::Data),
            context: bytes(Kind::Context),
            pool: bytes(Kind::Pool),
            graph: bytes(Kind::Graph),
            array: bytes(Kind::Array),
            oversubscribed: bytes(Kind::Oversubscribed),
            driver: bytes(Kind::Driver),
            headroom: bytes(Kind::Headroom),
        }
    }

    /// The kinds by name.
    pub(super) fn named(&self) -> [(&'static str, u64); 8] {
        [
            ("data", self.data),
            ("context", self.context),
            ("pool", self.pool),
            ("graph", self.graph),
            ("array", self.array),
            ("oversubscribed", self.oversubscribed),
            ("driver", self.driver),
            ("headroom", self.headroom),
        ]
    }
}

/// Time of a session on one device.
#[derive(Debug, Clone, Serialize)]
pub struct ComputeReport {
    /// How the share is meant.
    pub policy: Policy,
    /// The share in millionths; of no meaning with policy `none`.
    pub share_ppm: u32,
    /// What is never exceeded.
    pub soft_ppm: Option<u32>,
    /// Part of idle time.
    pub weight: u32,
    /// Whether others come first.
    pub priority: Priority,
    /// The mean of what is known of its processes.
    pub density_ppm: Option<u32>,
}

/// A process of a session.
#[derive(Debug, Clone, Serialize)]
pub struct ProcessReport {
    /// Its id in its own namespace.
    pub pid: u32,
    /// Its id on the host, where it is known.
    pub host_pid: Option<u32>,
    /// Its name, where it can be seen from here.
    pub name: Option<String>,
    /// What it has, in bytes.
    pub bytes: u64,
    /// The same by kind.
    pub by_kind: ByKind,
    /// Whether it holds a lease of the session's own account.
    pub holding: bool,
    /// Whether it waits for one.
    pub waiting: bool,
    /// Device time that it has been charged by that account, in microseconds.
    pub charged_us: u64,
    /// How much of the time that it holds the device it keeps it busy, in millionths, where that is
    /// known.
    pub density_ppm: Option<u32>,
}

impl Report {
    /// Reads the pages of `sessions`; with `all` also of those in which nobody is.
    #[must_use]
    pub fn of(sessions: &[Found], all: bool) -> Self {
        let mut report = Self { sessions: Vec::new(), damaged: Vec::new() };
        for found in sessions {
            let mut devices = Vec::new();
            for page in &found.pages {
                match device(page) {
                    Ok(device) => devices.push(device),
                    // Removed since the directory was read.
                    Err(PageError::Io { source, .. })
                        if source.kind() == std::io::ErrorKind::NotFound => {}
                    Err(error) => report.damaged.push(Damaged {
                        session: found.name.clone(),
                        page: page.clone(),
                        problem: error.to_string(),
                    }),
                }
            }
            let in_use = devices.iter().any(|device| !device.processes.is_empty());
            if all || found.owned || in_use {
                report.sessions.push(SessionReport {
                    session: found.name.clone(),
                    uid: found.uid,
                    directory: found.path.clone(),
                    devices,
                });
            }
        }
        report
    }
}

/// Reads one page.
fn device(path: &Path) -> Result<DeviceReport, PageError> {
    let page = Page::open_existing(path)?;
    let summary = page.summary()?;
    let layout = page.look()?;
    let limits = summary.limits;
    let processes: Vec<_> = summary
        .processes
        .iter()
        .map(|process| {
            let slot = layout.slots.get(process.slot);
            ProcessReport {
                pid: process.pid,
                host_pid: process.host_pid,
                name: name(process),
                bytes: process.total(),
                by_kind: ByKind::read(|kind| process.bytes(kind)),
                holding: process.holding,
                charged_us: process.charged_ns / 1000,
                waiting: slot.is_some_and(|slot| slot.waiting_since_ns.load(Relaxed) != 0),
                density_ppm: slot.map(|slot| slot.density_ppm.load(Relaxed)).filter(|ppm| *ppm > 0),
            }
        })
        .collect();
    Ok(DeviceReport {
        uuid: page.device(),
        memory: memory(&summary),
        compute: ComputeReport {
            policy: limits.compute.policy,
            share_ppm: limits.compute.share_ppm,
            soft_ppm: limits.compute.soft_ppm,
            weight: limits.compute.weight,
            priority: limits.compute.priority,
            density_ppm: mean(processes.iter().filter_map(|process| process.density_ppm)),
        },
        processes,
        limits,
    })
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
        by_kind: ByKind::read(|kind| summary.bytes(kind)),
        left: limit.map(|limit| limit.saturating_sub(used)),
        over,
        growth_refused: over > 0,
    }
}

/// A process's name, if the process of that id is the one that is meant.
fn name(process: &Process) -> Option<String> {
    let is_meant =
        |pid: &u32| session::start_time(*pid).is_ok_and(|start| start == process.start_time);
    let pid = [process.host_pid.unwrap_or(process.pid), process.pid].into_iter().find(is_meant)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end_matches('\n').to_owned())
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
