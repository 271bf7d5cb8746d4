//! Events.

word! {
    /// What happened.
    pub enum EventKind {
        /// A session came.
        SessionCame,
        /// A session is forgotten: it has no process and owes nothing.
        SessionWent,
        /// The daemon goes by new limits of a session.
        LimitsChanged,
        /// A session was frozen.
        Frozen,
        /// A session was thawed.
        Thawed,
        /// A call was refused.
        Refused,
        /// The daemon does not see the node's devices from now on.
        ObserverBlind,
        /// It sees them again.
        ObserverSees,
        /// The driver reported an error of a device (XID).
        DeviceError,
        /// A device is unhealthy, or more is known against it. No lease is granted on it.
        DeviceUnhealthy,
        /// An operator has declared a device healthy.
        DeviceHealthy,
        /// A process uses a device that no session knows.
        UnknownProcess,
        /// It has gone, or a session knows it now.
        UnknownProcessGone,
        /// It was sent a signal that ends it, as the daemon's policy says.
        UnknownProcessKilled,
        /// Events are missing here: the reader was slow, came late, or the daemon was restarted.
        Lost,
    }
}

message! {
    /// Something that happened.
    pub struct Event {
        /// To go on after it: the value of `Last-Event-ID`.
        pub id: String,
        /// When, in microseconds after the daemon's start.
        pub at_us: u64,
        /// What.
        pub kind: EventKind,
        /// The user that it is about. Left out: everybody.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub uid: Option<u32>,
        /// The session's id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub session: Option<u64>,
        /// The session's name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
        /// The process.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub pid: Option<i32>,
        /// The device.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub uuid: Option<String>,
        /// The reason, in words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub message: Option<String>,
        /// `lost`: how many events are missing. Left out: not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub count: Option<u64>,
    }
}
