//! Whether the daemon lives, and whether it can serve.

message! {
    /// The daemon answers.
    pub struct Health {
        /// Its version.
        pub version: String,
        /// The time since its start, in microseconds.
        pub uptime_us: u64,
        /// Lines of its log that could not be written, or were too many.
        pub log_lines_lost: u64,
    }
}

message! {
    /// Whether the daemon can serve.
    pub struct Readiness {
        /// Whether it can.
        pub ready: bool,
        /// Why it cannot, and what else is wrong.
        pub reasons: Vec<Reason>,
        /// The file with what survives a restart. Left out: nothing is kept.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub state_file: Option<String>,
    }
}

message! {
    /// What is wrong with the daemon.
    pub struct Reason {
        /// What kind of reason it is.
        pub code: ReasonCode,
        /// The reason, in words.
        pub message: String,
    }
}

word! {
    /// What kind of reason it is.
    pub enum ReasonCode {
        /// The thread that decides does not come round.
        SchedulerStuck,
        /// The node shows no device.
        NoDevice,
        /// The file with what survives a restart could not be written the last time, as when the disk is full. The
        /// daemon serves all the same.
        StateNotWritten,
    }
}
