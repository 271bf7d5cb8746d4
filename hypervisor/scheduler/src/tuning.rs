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
    /// How long a probe gives the device to one worker alone.
    pub probe_ns: u64,
    /// The longest time that a probe keeps others away.
    pub probe_limit_ns: u64,
    /// The shortest time between probes of one worker. It doubles, up to `probe_rest_ns`, while
    /// probes show nothing new.
    pub probe_every_ns: u64,
    /// When the last suspicion has ended, none begins for this many times the time that suspicions
    /// lasted.
    pub trust_times: u64,
    /// The longest time between probes of a worker that stays in doubt.
    pub probe_rest_ns: u64,
    /// After a probe, none starts on the device for this many times its length.
    pub probe_spacing: u64,
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
            probe_ns: 15 * MS,
            probe_limit_ns: 100 * MS,
            probe_every_ns: 1_000 * MS,
            trust_times: 2,
            probe_rest_ns: 8_000 * MS,
            probe_spacing: 20,
        }
    }
}
