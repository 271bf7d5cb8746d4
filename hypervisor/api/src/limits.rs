//! Messages about changes of limits.

word! {
    /// The meaning of a compute share.
    pub enum Policy {
        /// The session never gets more than the share.
        Fixed,
        /// The share is guaranteed, and idle time is added.
        Balance,
        /// No compute limit.
        None,
    }
}

word! {
    /// Whether a session gives way to others.
    pub enum Priority {
        /// The session does not give way.
        High,
        /// The session runs when no session of high priority wants the device.
        Low,
    }
}

impl From<limits::Policy> for Policy {
    fn from(policy: limits::Policy) -> Self {
        match policy {
            limits::Policy::Fixed => Self::Fixed,
            limits::Policy::Balance => Self::Balance,
            limits::Policy::None => Self::None,
        }
    }
}

impl From<Policy> for limits::Policy {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Fixed => Self::Fixed,
            Policy::Balance => Self::Balance,
            Policy::None => Self::None,
        }
    }
}

impl From<limits::Priority> for Priority {
    fn from(priority: limits::Priority) -> Self {
        match priority {
            limits::Priority::High => Self::High,
            limits::Priority::Low => Self::Low,
        }
    }
}

impl From<Priority> for limits::Priority {
    fn from(priority: Priority) -> Self {
        match priority {
            Priority::High => Self::High,
            Priority::Low => Self::Low,
        }
    }
}

message! {
    /// New limits. Omitted limits stay unchanged.
    #[derive(Default)]
    #[cfg_attr(feature = "description", oai(deny_unknown_fields))]
    #[serde(deny_unknown_fields)]
    pub struct LimitChange {
        /// UUID of the only device to change; omitted: all devices of the session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub device: Option<String>,
        /// Memory limit, in bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_bytes: Option<u64>,
        /// The part of the memory limit that may be on the device, in bytes. The rest is placed on the host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_real_bytes: Option<u64>,
        /// Remove the memory limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub no_memory_limit: Option<bool>,
        /// Compute share, in millionths of the device's time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "description", oai(validator(minimum(value = "1"), maximum(value = "1000000"))))]
        pub share_ppm: Option<u32>,
        /// The meaning of the share. `none` removes the compute share.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub policy: Option<Policy>,
        /// The burst limit under `balance`, in millionths; at least the share.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "description", oai(validator(minimum(value = "1"), maximum(value = "1000000"))))]
        pub soft_ppm: Option<u32>,
        /// Weight for dividing idle time among sessions under `balance`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "description", oai(validator(minimum(value = "1"), maximum(value = "10000"))))]
        pub weight: Option<u32>,
        /// Whether sessions of high priority come first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub priority: Option<Priority>,
    }
}

message! {
    /// The limits after a change. They apply to each process that has applied the change.
    pub struct LimitsChanged {
        /// Id of the session.
        pub id: u64,
        /// Whether all of the session's processes have applied the change.
        pub taken_by_all: bool,
        /// The changed devices.
        pub devices: Vec<DeviceLimits>,
    }
}

message! {
    /// A session's limits on a device, and which processes have applied them.
    pub struct DeviceLimits {
        /// The device's UUID.
        pub uuid: String,
        /// Memory limit, in bytes. Omitted: no limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_bytes: Option<u64>,
        /// The part of the memory limit that may be on the device, in bytes, if less.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_real_bytes: Option<u64>,
        /// The meaning of the share.
        pub policy: Policy,
        /// Compute share, in millionths of the device's time; meaningless under `none`.
        pub share_ppm: u32,
        /// The burst limit under `balance`, in millionths.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub soft_ppm: Option<u32>,
        /// Weight for dividing idle time among sessions.
        pub weight: u32,
        /// Whether sessions of high priority come first.
        pub priority: Priority,
        /// The limits before the change.
        pub before: FormerLimits,
        /// Device memory used by the session's processes, in bytes.
        pub used_bytes: u64,
        /// The session's processes on the device.
        pub processes: Vec<ProcessTook>,
    }
}

message! {
    /// A session's limits on a device before a change.
    pub struct FormerLimits {
        /// Memory limit, in bytes. Omitted: no limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_bytes: Option<u64>,
        /// The part of the memory limit that might be on the device, in bytes, if less.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_real_bytes: Option<u64>,
        /// The meaning of the share.
        pub policy: Policy,
        /// Compute share, in millionths of the device's time; meaningless under `none`.
        pub share_ppm: u32,
        /// The burst limit under `balance`, in millionths.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub soft_ppm: Option<u32>,
        /// Weight for dividing idle time among sessions.
        pub weight: u32,
        /// Whether sessions of high priority came first.
        pub priority: Priority,
    }
}

impl From<&limits::Limits> for FormerLimits {
    fn from(limits: &limits::Limits) -> Self {
        let limits::Limits { memory, compute } = limits;
        Self {
            memory_bytes: memory.map(|memory| memory.limit),
            memory_real_bytes: memory.and_then(|memory| memory.real),
            policy: compute.policy.into(),
            share_ppm: compute.share_ppm,
            soft_ppm: compute.soft_ppm,
            weight: compute.weight,
            priority: compute.priority.into(),
        }
    }
}

message! {
    /// Whether a process has applied a change.
    pub struct ProcessTook {
        /// Process id in the process's own pid namespace.
        pub pid: u32,
        /// Process id on the host, if known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub host_pid: Option<u32>,
        /// Whether the process's launches and allocations obey the new limits. `false`: not yet; or the process is
        /// stopped, or its library is an earlier version, which does not report this.
        pub taken: bool,
    }
}
