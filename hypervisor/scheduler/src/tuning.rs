//! The scheduler's constants: times in nanoseconds, bounds in millionths.

const MS: u64 = 1_000_000;

/// The constants of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// The shortest lease, and the shortest prolongation of one.
    pub shortest_rest_ns: u64,
    /// How much of the time between two reports may be missing from them: messages take a while.
    pub message_ns: u64,
    /// For how long after its end, or after the last report, a lease keeps others waiting.
    pub grace_ns: u64,
    /// For how long after its end a lease keeps others waiting at most, whatever is reported.
    /// Longer work is left to the hardware's own slicing.
    pub longest_drain_ns: u64,
    /// For this long after its poll, a worker is assumed to be about to send the next one.
    pub linger_ns: u64,
    /// A worker is slowed down if it has work queued for this much more of the time than it uses.
    pub waiting_ppm: u64,
    /// A utilization that was last measured this long ago gives way to the next measurement.
    pub stale_ns: u64,
    /// How much held time a first measurement takes.
    pub known_ns: u64,
    /// How long a turn alone is at most.
    pub alone_ns: u64,
    /// How long a turn alone may keep others away beyond its length.
    pub alone_limit_ns: u64,
    /// The shortest time between a worker's turns alone. It doubles, up to `alone_rest_ns`, while
    /// they show nothing new.
    pub alone_every_ns: u64,
    /// The longest time between turns alone of a worker that stays in doubt.
    pub alone_rest_ns: u64,
    /// After a turn alone, none is given on the device for this many times its length, only to make
    /// sure.
    pub alone_spacing: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            shortest_rest_ns: MS / 2,
            message_ns: 2 * MS,
            grace_ns: 250 * MS,
            longest_drain_ns: 2_000 * MS,
            linger_ns: 2 * MS,
            waiting_ppm: 100_000,
            stale_ns: 500 * MS,
            known_ns: 10 * MS,
            alone_ns: 15 * MS,
            alone_limit_ns: 100 * MS,
            alone_every_ns: 1_000 * MS,
            alone_rest_ns: 8_000 * MS,
            alone_spacing: 20,
        }
    }
}
