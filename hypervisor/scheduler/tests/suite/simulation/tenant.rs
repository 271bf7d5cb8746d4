//! A session: its behaviour, and the records of what it got.

use limits::ComputeLimit;

use super::{MS, WHOLE};

/// How a session behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tenant {
    pub(crate) quota: ComputeLimit,
    pub(crate) workers: u64,
    /// What each worker uses of the time that it holds if no other slows it down, in millionths.
    pub(crate) density_ppm: u64,
    /// From the end of a lease to the next ask.
    pub(crate) think_ns: u64,
    /// How far a holder's work runs past its lease at most. It goes on reporting meanwhile.
    pub(crate) overrun_ns: u64,
    /// From the end of its work to the arrival of the report, at most.
    pub(crate) way_ns: u64,
    /// Wants the device for `.0`, then idles for `.1`, again and again. (0, 0): always busy.
    pub(crate) phases: (u64, u64),
    /// How often it reports on its lease.
    pub(crate) tell_ns: u64,
    /// From its next report on, it holds and sends nothing.
    pub(crate) frozen: bool,
    /// Its reports are as imprecise as real measurements: a lease's first milliseconds of backlog
    /// are missing, and estimates beside others are between half and a tenth more of the true
    /// value.
    pub(crate) rough: bool,
}

impl Tenant {
    pub(crate) fn new(quota: ComputeLimit, density_ppm: u64) -> Self {
        Self {
            quota,
            workers: 1,
            density_ppm,
            think_ns: 0,
            overrun_ns: 0,
            way_ns: 0,
            phases: (0, 0),
            tell_ns: 10 * MS,
            frozen: false,
            rough: false,
        }
    }

    pub(crate) fn busy(share_ppm: u32) -> Self {
        Self::new(ComputeLimit::fixed(share_ppm), WHOLE)
    }
}

/// The records of one session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Books {
    /// When the session held, merged, in order.
    pub(crate) held: Vec<(u64, u64)>,
    /// The reported intervals, and what was used in each.
    pub(crate) used: Vec<(u64, u64, u64)>,
    pub(crate) used_ns: u64,
    /// How long its asks waited.
    pub(crate) waits: Vec<u64>,
    /// How often a lease ended although the worker wanted to go on.
    pub(crate) stops: u64,
    pub(super) open: u32,
}

impl Books {
    pub(crate) fn held_between(&self, from: u64, to: u64) -> u64 {
        let inside = |&(a, b): &(u64, u64)| b.min(to).saturating_sub(a.max(from));
        self.held.iter().map(inside).sum()
    }

    /// The 95th percentile of the waits.
    pub(crate) fn wait_p95(&self) -> u64 {
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        waits.get(waits.len() * 95 / 100).copied().unwrap_or(0)
    }
}
