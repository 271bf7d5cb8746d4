//! A summary of a page, for display.

use super::slot_lock::{Onlooker, lock_is_kept, process_of};
use super::{Page, PageError};
use crate::clock;
use crate::layout::{MemberSlot, MemoryKind, PageLayout};
use crate::ledger::RefusedFor;
use crate::process::{self, ProcessIdentity, may_be_of};
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use limits::Limits;
use limits::recent::{Recent, WINDOW_NS, share_ppm};
use std::collections::HashMap;
use std::time::Instant;

/// How long to examine the processes of one page.
const PATIENCE: Duration = Duration::from_millis(100);

/// A session on one device at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// The session's limits.
    pub limits: Limits,
    /// Bytes in use as reservations see them; includes dead processes' bytes until a reservation needs them.
    pub used: u64,
    /// The session's living processes.
    pub processes: Vec<ProcessSummary>,
    /// Whether any process has ever been a member.
    pub was_used: bool,
    /// Number of these processes that may have ended: unknown, or not found out in time.
    pub unknown: usize,
    /// When the first process joined, on `CLOCK_MONOTONIC` in nanoseconds; `None`: none yet, or the page of an earlier
    /// build.
    pub first_used_ns: Option<u64>,
    /// GPU time of the session, in nanoseconds.
    pub delivered_ns: u64,
    /// Time in which processes had work queued and held no lease, summed over the processes, in nanoseconds.
    pub waited_ns: u64,
    /// Maximum of [`Self::used`] so far, in bytes.
    pub peak_bytes: u64,
    /// Use of the device in the last seconds.
    pub recent: Recent,
    /// The refused reservations of memory, if any.
    pub refused: Option<Refusals>,
    /// Number of failed allocations by reason.
    pub refused_for: [u64; RefusedFor::ALL.len()],
    /// CPU time of the limiter's own threads in the session's processes, in nanoseconds.
    pub limiter_cpu_ns: u64,
}

/// Refused reservations of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusals {
    /// Number of refusals.
    pub count: u64,
    /// Bytes that the last one asked for.
    pub bytes: u64,
    /// Bytes then in use under the bound that refused it; 0 from programs of earlier builds.
    pub beside: u64,
    /// Time of the last one, on `CLOCK_MONOTONIC` in nanoseconds.
    pub at_ns: u64,
}

/// A process of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessSummary {
    /// Its slot in the page.
    pub slot: usize,
    /// Process id in its own namespace.
    pub pid: u32,
    /// The host's process id, as in NVML; `None`: unknown.
    pub host_pid: Option<u32>,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
    /// Whether it holds a lease of the session's own account.
    pub holding: bool,
    /// Whether it waits for a lease of the own account.
    pub waiting: bool,
    /// GPU time of the process in nanoseconds, whoever granted the leases.
    pub charged_ns: u64,
    /// Utilization while it holds the device, in millionths; `None`: unknown.
    pub density_ppm: Option<u32>,
    bytes: [u64; MemoryKind::ALL.len()],
    /// Whether only its end unlocks its slot.
    lock_is_kept: bool,
}

impl ProcessSummary {
    /// Bytes of one kind.
    #[must_use]
    pub const fn bytes(&self, kind: MemoryKind) -> u64 {
        self.bytes[kind as usize]
    }

    /// Bytes of all kinds, on the device and on the host.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.bytes.iter().fold(0, |sum, &bytes| sum.saturating_add(bytes))
    }

    /// Its identity in its own pid namespace.
    #[must_use]
    pub const fn identity(&self) -> ProcessIdentity {
        ProcessIdentity { pid: self.pid, start_time: self.start_time }
    }
}

/// Finds processes in this pid namespace, and the names of their programs. Each process is examined once.
#[derive(Debug, Default)]
pub struct Names {
    looked_at: HashMap<u32, Option<(u64, String)>>,
    within: Option<HashMap<ProcessIdentity, Option<u32>>>,
}

impl Names {
    /// The id of a process in this pid namespace, if it is visible here and [may belong](may_be_of) to a session of
    /// this user. NVML may show the id in the process's own namespace.
    #[must_use]
    pub fn pid_of(&mut self, process: &ProcessSummary, uid: u32) -> Option<u32> {
        for pid in [process.host_pid.unwrap_or(process.pid), process.pid] {
            let found = may_be_of(pid, uid).then(|| self.look(pid).as_ref()).flatten();
            if found.is_some_and(|(start_time, _)| *start_time == process.start_time) {
                return Some(pid);
            }
        }
        let within = self.within.get_or_insert_with(process::within);
        within.get(&process.identity()).copied().flatten().filter(|&pid| may_be_of(pid, uid))
    }

    /// The name of the process's program.
    #[must_use]
    pub fn of(&mut self, process: &ProcessSummary, uid: u32) -> Option<String> {
        let pid = self.pid_of(process, uid)?;
        let (start_time, name) = self.look(pid).as_ref()?;
        (*start_time == process.start_time).then(|| name.clone())
    }

    fn look(&mut self, pid: u32) -> &Option<(u64, String)> {
        self.looked_at.entry(pid).or_insert_with(|| {
            let found = ProcessIdentity::of(pid)?;
            Some((found.start_time, found.name()?))
        })
    }
}

impl Page {
    /// A summary with the session's living processes. While the page is in use, sums may be slightly older than their
    /// parts.
    ///
    /// # Errors
    /// [`PageError::Damaged`]
    pub fn summary(&self) -> Result<Summary, PageError> {
        let mut summary = Summary::of(self.look()?);
        let mut onlooker = Onlooker::new(self, Instant::now() + PATIENCE);
        summary.processes.retain(|process| {
            onlooker.is_alive(process.slot, process.identity(), process.lock_is_kept)
        });
        summary.unknown = onlooker.unknown;
        Ok(summary)
    }
}

impl Summary {
    /// Summarises a page. Accepts any bytes; [`Page::look`] checks whether they are a page.
    #[must_use]
    pub fn of(layout: &PageLayout) -> Self {
        let end = layout.high_water.load(Relaxed) as usize;
        let process = |(slot, record): (usize, &MemberSlot)| {
            let ProcessIdentity { pid, start_time } = process_of(record);
            (pid != 0).then(|| ProcessSummary {
                slot,
                pid,
                start_time,
                lock_is_kept: lock_is_kept(record),
                host_pid: Some(record.host_pid.load(Relaxed)).filter(|&pid| pid != 0),
                holding: record.holding.load(Relaxed) == 1,
                waiting: record.waiting_since_ns.load(Relaxed) != 0,
                charged_ns: record.charged_ns.load(Relaxed),
                density_ppm: Some(record.density_ppm.load(Relaxed)).filter(|&ppm| ppm > 0),
                bytes: MemoryKind::ALL.map(|kind| record.bytes[kind as usize].load(Relaxed)),
            })
        };
        Self {
            limits: layout.limits(),
            used: layout.used.load(Relaxed),
            was_used: end > 0,
            processes: layout.slots.iter().enumerate().take(end).filter_map(process).collect(),
            unknown: 0,
            first_used_ns: Some(layout.first_used_ns.load(Relaxed)).filter(|&ns| ns > 0),
            delivered_ns: layout.delivered_ns.load(Relaxed),
            waited_ns: layout.waited_ns.load(Relaxed),
            peak_bytes: layout.peak_bytes.load(Relaxed),
            recent: layout.recent(),
            refused: match layout.refusals.load(Relaxed) {
                0 => None,
                count => Some(Refusals {
                    count,
                    bytes: layout.refused_bytes.load(Relaxed),
                    beside: layout.refused_beside.load(Relaxed),
                    at_ns: layout.refused_at_ns.load(Relaxed),
                }),
            },
            refused_for: RefusedFor::ALL
                .map(|reason| layout.refused_for[reason as usize].load(Relaxed)),
            limiter_cpu_ns: layout.limiter_cpu_ns.load(Relaxed),
        }
    }

    /// Whether the device was used, or a process joined, within `age`. Use is known for the last seconds only, which
    /// suffices.
    #[must_use]
    pub fn was_used_within(&self, age: Duration) -> bool {
        let now = clock::now_ns();
        let from = now.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX));
        let came = self.first_used_ns.is_some_and(|first| first >= from);
        let last = self.recent.0.iter().map(|second| second.number).max().unwrap_or(0);
        came || (last > 0 && last >= from / 1_000_000_000)
    }

    /// The share of the device's time used in the last ten seconds or since the first use, in millionths.
    #[must_use]
    pub fn recent_share_ppm(&self, now_ns: u64) -> Option<u32> {
        let since = now_ns.checked_sub(self.first_used_ns?)?;
        self.recent.share_ppm(now_ns, since.min(WINDOW_NS))
    }

    /// The share of the device's time used since the first use, in millionths.
    #[must_use]
    pub fn mean_share_ppm(&self, now_ns: u64) -> Option<u32> {
        share_ppm(self.delivered_ns.into(), now_ns.checked_sub(self.first_used_ns?)?)
    }

    /// Bytes of one kind of the listed processes.
    #[must_use]
    pub fn bytes(&self, kind: MemoryKind) -> u64 {
        self.processes.iter().fold(0, |sum, process| sum.saturating_add(process.bytes(kind)))
    }

    /// Bytes of all kinds of the listed processes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.processes.iter().fold(0, |sum, process| sum.saturating_add(process.total()))
    }

    /// The part of [`Self::total`] that is on the device itself.
    #[must_use]
    pub fn on_device(&self) -> u64 {
        self.total().saturating_sub(self.bytes(MemoryKind::Overcommitted))
    }
}
