//! Messages about the daemon's own health.

message! {
    /// The daemon is alive.
    pub struct Health {
        /// The daemon's version.
        pub version: String,
        /// Time since the daemon started, in microseconds.
        pub uptime_us: u64,
        /// Log lines lost because they could not be written or exceeded the rate limit.
        pub log_lines_lost: u64,
    }
}

message! {
    /// Whether the daemon can serve.
    pub struct Readiness {
        /// Whether the daemon can serve.
        pub ready: bool,
        /// Why the daemon cannot serve, and other problems.
        pub reasons: Vec<Reason>,
        /// Path of the file with state that survives a restart. Omitted if no state is kept.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub state_file: Option<String>,
    }
}

message! {
    /// A problem of the daemon.
    pub struct Reason {
        /// Kind of the problem.
        pub code: ReasonCode,
        /// The problem, in words.
        pub message: String,
    }
}

word! {
    /// Kind of a problem.
    pub enum ReasonCode {
        /// The scheduling thread makes no progress.
        SchedulerStuck,
        /// The node has no visible device.
        NoDevice,
        /// The state file could not be written, for example because the disk is full. The daemon serves nevertheless.
        StateNotWritten,
    }
}
