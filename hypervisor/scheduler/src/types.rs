//! Identifiers, and the values that a scheduler and its caller exchange.

use limits::units::PPM_ONE;

/// Identifies a session within one caller of the scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// Identifies a worker within one caller of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u64);

/// Identifies a lease within one scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// The budget from which a lease is paid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Paid {
    /// The guaranteed share.
    Own,
    /// Time that would have been idle.
    Spare,
}

/// A way to share the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// One session after the other.
    #[default]
    Turns,
    /// All at once; the hardware slices the device.
    Overlap,
}

impl Way {
    /// The other way.
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Turns => Self::Overlap,
            Self::Overlap => Self::Turns,
        }
    }
}

/// The permission for a worker to use the device from now on, or to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The worker.
    pub worker: WorkerId,
    /// Identifies the lease in reports.
    pub lease: LeaseId,
    /// How long the worker may launch work from now on, in nanoseconds.
    pub length_ns: u64,
    /// Whether another session's worker holds a lease as well.
    pub shared: bool,
    /// Whether the sessions that want the device hold leases at once, so nobody waits for this one.
    pub overlaps: bool,
}

/// A worker's report on its lease since its previous report. A worker cannot have held the device for longer than was
/// measured here, nor used more than it held; any excess is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The time that the report covers, in nanoseconds.
    pub held_ns: u64,
    /// The part of it for which the worker estimates that it kept the device busy.
    pub estimated_ns: u64,
    /// The part of it in which the worker always had work queued.
    pub backlogged_ns: u64,
    /// The part of it in which the worker had no work and kept the lease, because nobody waited for it.
    pub idle_ns: u64,
    /// Number of launches that were completed until its end, since the worker joined.
    pub launches: u64,
    /// Whether the lease is over and its work done.
    pub done: bool,
}

impl Told {
    /// The lease is over and was not used at all.
    pub const UNUSED: Self =
        Self { held_ns: 0, estimated_ns: 0, backlogged_ns: 0, idle_ns: 0, launches: 0, done: true };

    pub(crate) fn at_most(self, measured_ns: u64) -> Self {
        let held_ns = self.held_ns.min(measured_ns);
        let estimated_ns = self.estimated_ns.min(held_ns);
        let backlogged_ns = self.backlogged_ns.min(held_ns);
        let idle_ns = self.idle_ns.min(held_ns);
        Self { held_ns, estimated_ns, backlogged_ns, idle_ns, ..self }
    }
}

/// A call that is invalid in the scheduler's present state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// No such session was added.
    #[error("session {0:?} is not known")]
    UnknownSession(SessionId),
    /// No such worker has joined.
    #[error("worker {0:?} is not known")]
    UnknownWorker(WorkerId),
    /// A session with a share of zero can never be granted anything.
    #[error("a share must be at least one millionth")]
    NoShare,
    /// A session without a compute limit does not ask.
    #[error("a session without a limit is not scheduled")]
    NotScheduled,
}

/// One, in millionths.
pub(crate) const WHOLE: u64 = PPM_ONE as u64;

/// `ppm` millionths of a time.
pub(crate) fn share_of(ns: u64, ppm: u64) -> u64 {
    portion(ns, ppm, WHOLE)
}

/// `part` of `whole` of a time; 0 if `whole` is 0.
pub(crate) fn portion(ns: u64, part: u64, whole: u64) -> u64 {
    let portion = (u128::from(ns) * u128::from(part)).checked_div(u128::from(whole));
    u64::try_from(portion.unwrap_or(0)).unwrap_or(u64::MAX)
}
