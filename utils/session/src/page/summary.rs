//! What a page holds, for display.

use super::{Page, PageError, slot_lock};
use crate::layout::{MemberSlot, MemoryKind, PageLayout};
use crate::process::ProcessIdentity;
use core::sync::atomic::Ordering::Relaxed;
use limits::Limits;

/// A session on one device at a moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// What it may take.
    pub limits: Limits,
    /// Bytes in use as reservations see them. What dead processes held counts until a reservation
    /// needs it.
    pub used: u64,
    /// Its processes.
    pub processes: Vec<ProcessSummary>,
    /// Whether any process has ever been a member.
    pub was_used: bool,
}

/// A process of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessSummary {
    /// Its slot in the page.
    pub slot: usize,
    /// Process id in its own namespace.
    pub pid: u32,
    /// Process id as NVML knows it (the host's); `None`: not known.
    pub host_pid: Option<u32>,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
    /// Whether it holds a lease of the session's own account.
    pub holding: bool,
    /// Whether it waits for one.
    pub waiting: bool,
    /// Device time that it has been charged, in nanoseconds.
    pub charged_ns: u64,
    /// Its utilization: how much of the time that it holds the device it keeps it busy, in
    /// millionths. `None`: not known.
    pub density_ppm: Option<u32>,
    bytes: [u64; MemoryKind::ALL.len()],
}

impl ProcessSummary {
    /// What it has of one kind.
    #[must_use]
    pub const fn bytes(&self, kind: MemoryKind) -> u64 {
        self.bytes[kind as usize]
    }

    /// What it has of all kinds, on the device and on the host.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.bytes.iter().fold(0, |sum, &bytes| sum.saturating_add(bytes))
    }

    /// Its identity in its own pid namespace.
    #[must_use]
    pub const fn identity(&self) -> ProcessIdentity {
        ProcessIdentity { pid: self.pid, start_time: self.start_time }
    }

    /// The name of its program, if the process can be seen from here.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        let ids = [self.host_pid.unwrap_or(self.pid), self.pid];
        let seen = ids.map(|pid| ProcessIdentity { pid, start_time: self.start_time });
        seen.into_iter().find_map(ProcessIdentity::name)
    }
}

impl Page {
    /// What the session has, and its living processes. If the page is in use, sums may be a moment
    /// older than their parts.
    ///
    /// # Errors
    /// [`PageError::Damaged`]
    pub fn summary(&self) -> Result<Summary, PageError> {
        let mut summary = Summary::of(self.look()?);
        summary
            .processes
            .retain(|process| slot_lock::is_alive(self, process.slot, process.identity()));
        Ok(summary)
    }
}

impl Summary {
    /// Reads a page. Any bytes give a summary; [`Page::look`] checks whether they are those of a
    /// page.
    #[must_use]
    pub fn of(layout: &PageLayout) -> Self {
        let end = layout.high_water.load(Relaxed) as usize;
        let process = |(slot, record): (usize, &MemberSlot)| {
            let pid = record.pid.load(Relaxed);
            (pid != 0).then(|| ProcessSummary {
                slot,
                pid,
                host_pid: Some(record.host_pid.load(Relaxed)).filter(|&pid| pid != 0),
                start_time: record.start_time.load(Relaxed),
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
        }
    }

    /// What the processes listed have of one kind.
    #[must_use]
    pub fn bytes(&self, kind: MemoryKind) -> u64 {
        self.processes.iter().fold(0, |sum, process| sum.saturating_add(process.bytes(kind)))
    }

    /// What the listed processes have of all kinds.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.processes.iter().fold(0, |sum, process| sum.saturating_add(process.total()))
    }

    /// The part of [`Self::total`] that is on the device itself.
    #[must_use]
    pub fn on_device(&self) -> u64 {
        self.total().saturating_sub(self.bytes(MemoryKind::Oversubscribed))
    }
}
