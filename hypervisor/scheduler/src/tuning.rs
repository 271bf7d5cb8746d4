//! The scheduler's constants: times in nanoseconds, bounds in millionths.

const MS: u64 = 1_000_000;

/// The constants of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// What messages may take: so much of the time between two reports may be missing from them, and
    /// for so long after its poll a worker is assumed to be about to send the next one.
    pub message_ns: u64,
    /// For how long after its end, or after the last report, a lease keeps others waiting. While work that it began
    /// runs on, reports come every 10 ms: a process that sends none was stopped, or lies.
    pub grace_ns: u64,
    /// For how long after its end a lease keeps others waiting at most, whatever is reported.
    /// Longer work is left to the hardware's own slicing.
    pub longest_drain_ns: u64,
    /// For how long after it was told to stop a worker keeps others waiting at most.
    pub stopped_ns: u64,
    /// The shortest time between a worker's turns alone. It doubles, up to eight times, while
    /// they show nothing new.
    pub alone_every_ns: u64,
    /// After a turn alone, none is given on the device for this many times its length, only to make
    /// sure.
    pub alone_spacing: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            message_ns: 2 * MS,
            grace_ns: 20 * MS,
            longest_drain_ns: 2_000 * MS,
            stopped_ns: 3 * MS,
            alone_every_ns: 1_000 * MS,
            alone_spacing: 20,
        }
    }
}
