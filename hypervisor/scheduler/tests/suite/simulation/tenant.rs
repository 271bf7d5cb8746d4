//! A session: its behaviour, and the records of what it got.

use limits::ComputeLimit;

use super::{Dice, MS, WHOLE};
use scheduler::{Handover, Told};

/// What a session's reports say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Words {
    /// What is true.
    True,
    /// That it did not even hold.
    Nothing,
    /// That it held and used nothing.
    Idle,
    /// So many thousandths of what it used. `queued`: and that it always had work queued.
    Part { part: u64, queued: bool },
    /// The truth alone. Beside others: so many thousandths of it, and that it always had work
    /// queued.
    Loss { part: u64 },
    /// Anything.
    Anything,
}

impl Words {
    pub(super) fn about(self, truth: Told, alone: bool, dice: &mut Dice) -> Told {
        let Told { held_ns, estimated_ns, backlogged_ns, .. } = truth;
        let part = |part: u64| estimated_ns * part / 1000;
        match self {
            Self::True => truth,
            Self::Nothing => Told { held_ns: 0, estimated_ns: 0, backlogged_ns: 0, ..truth },
            Self::Idle => Told { estimated_ns: 0, backlogged_ns: 0, idle_ns: held_ns, ..truth },
            Self::Part { part: thousandths, queued } => {
                let backlogged_ns = if queued { held_ns } else { 0 };
                Told { estimated_ns: part(thousandths), backlogged_ns, ..truth }
            }
            Self::Loss { part: thousandths } => {
                let estimated_ns = if alone { estimated_ns } else { part(thousandths) };
                let backlogged_ns = if alone { backlogged_ns } else { held_ns };
                Told { estimated_ns, backlogged_ns, ..truth }
            }
            Self::Anything => {
                let [held_ns, estimated_ns, backlogged_ns, idle_ns] =
                    [(); 4].map(|()| dice.up_to(held_ns) * dice.up_to(1));
                Told { held_ns, estimated_ns, backlogged_ns, idle_ns, ..truth }
            }
        }
    }
}

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
    pub(crate) handover: Handover,
    /// It serves requests: one in so many nanoseconds on average, each of so many.
    pub(crate) requests: Option<(u64, u64)>,
    /// How often it reports on its lease.
    pub(crate) tell_ns: u64,
    /// From its next report on, it holds and sends nothing.
    pub(crate) frozen: bool,
    /// Its reports are as imprecise as real measurements: a lease's first milliseconds of backlog
    /// are missing, and estimates beside others are between half and a tenth more of the true
    /// value.
    pub(crate) rough: bool,
    /// What its reports say.
    pub(crate) words: Words,
    /// Its reports are true for `.0`, then say `words` for `.1`, again and again. (0, 0): always
    /// `words`.
    pub(crate) lies: (u64, u64),
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
            handover: Handover::OnThread,
            requests: None,
            tell_ns: 10 * MS,
            frozen: false,
            rough: false,
            words: Words::True,
            lies: (0, 0),
        }
    }

    /// With gates in its streams: they are opened and ended by the gate page, long before the report
    /// is there.
    pub(crate) fn in_stream(self) -> Self {
        let (way_ns, think_ns) = (200_000, 50_000);
        Self { handover: Handover::InStream, way_ns, think_ns, ..self }
    }

    /// Serves requests that arrive at random, one in `every_ns` on average.
    pub(crate) fn serves(self, every_ns: u64, length_ns: u64) -> Self {
        Self { requests: Some((every_ns, length_ns)), ..self }
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
    /// How often its lease was ended early.
    pub(crate) stopped: u64,
    /// From each request's arrival until it was done.
    pub(crate) latencies: Vec<u64>,
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
