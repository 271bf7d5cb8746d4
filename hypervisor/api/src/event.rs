//! Messages about events.

word! {
    /// Kind of an event.
    pub enum EventKind {
        /// A session appeared.
        SessionCame,
        /// A session was forgotten: it has no process and owes no time.
        SessionWent,
        /// The daemon applies new limits of a session.
        LimitsChanged,
        /// A session was frozen.
        Frozen,
        /// A session was thawed.
        Thawed,
        /// A call was refused.
        Refused,
        /// The daemon can no longer observe the node's devices.
        ObserverBlind,
        /// The daemon observes the node's devices again.
        ObserverSees,
        /// The driver reported a device's error (XID).
        DeviceError,
        /// A device has a new or increased fault. No lease is granted on it.
        DeviceUnhealthy,
        /// An operator has declared a device healthy.
        DeviceHealthy,
        /// A process started to use a device outside any session.
        UnknownProcess,
        /// The process has gone, or now belongs to a session.
        UnknownProcessGone,
        /// The process was sent a signal that ends it, according to the daemon's policy.
        UnknownProcessKilled,
        /// Events are missing here: the reader was slow or late, or the daemon was restarted.
        Lost,
    }
}

message! {
    /// An event.
    pub struct Event {
        /// Id of the event; `Last-Event-ID` with this value continues after it.
        pub id: String,
        /// Time of the event, in microseconds since the daemon started.
        pub at_us: u64,
        /// Kind of the event.
        pub kind: EventKind,
        /// User id of the user concerned. Omitted if all users are.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub uid: Option<u32>,
        /// Id of the session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub session: Option<u64>,
        /// Name of the session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
        /// Process id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub pid: Option<i32>,
        /// UUID of the device.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub uuid: Option<String>,
        /// The reason, in words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub message: Option<String>,
        /// For `lost`: number of missing events. Omitted if unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub count: Option<u64>,
    }
}
