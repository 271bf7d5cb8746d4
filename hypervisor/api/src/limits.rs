//! Changes of limits, and who has taken them.

word! {
    /// How a share is meant.
    pub enum Policy {
        /// Never more than the share.
        Fixed,
        /// The share is guaranteed, and idle time comes on top.
        Balance,
        /// Not enforced.
        None,
    }
}

word! {
    /// Whether others come first.
    pub enum Priority {
        /// Before those of low priority.
        High,
        /// In what those of high priority leave.
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
    /// New limits. What is left out stays as it is.
    #[derive(Default)]
    #[cfg_attr(feature = "description", oai(deny_unknown_fields))]
    #[serde(deny_unknown_fields)]
    pub struct LimitChange {
        /// Change only this device of the session, by its UUID.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub device: Option<String>,
        /// Device memory, in bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_bytes: Option<u64>,
        /// How much of it may be on the device, in bytes. The rest is placed on the host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_real_bytes: Option<u64>,
        /// Take the memory limit away.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub no_memory_limit: Option<bool>,
        /// Share of the device's time, in millionths.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "description", oai(validator(minimum(value = "1"), maximum(value = "1000000"))))]
        pub share_ppm: Option<u32>,
        /// How the share is meant. `none` takes the compute share away.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub policy: Option<Policy>,
        /// The burst limit under `balance`, in millionths; at least the share.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "description", oai(validator(minimum(value = "1"), maximum(value = "1000000"))))]
        pub soft_ppm: Option<u32>,
        /// The part of spare time under `balance`, in relation to other sessions'.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "description", oai(validator(minimum(value = "1"), maximum(value = "10000"))))]
        pub weight: Option<u32>,
        /// Whether others come first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub priority: Option<Priority>,
    }
}

message! {
    /// The limits are changed. They hold for each process that has taken the change.
    pub struct LimitsChanged {
        /// The session.
        pub id: u64,
        /// Whether each of its processes has taken the change.
        pub taken_by_all: bool,
        /// The devices that were changed.
        pub devices: Vec<DeviceLimits>,
    }
}

message! {
    /// A session's limits on a device, and who has taken them.
    pub struct DeviceLimits {
        /// The device.
        pub uuid: String,
        /// Device memory, in bytes. Left out: no limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_bytes: Option<u64>,
        /// How much of it may be on the device, in bytes, if that is less.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_real_bytes: Option<u64>,
        /// How the share is meant.
        pub policy: Policy,
        /// Share of the device's time, in millionths; without meaning under `none`.
        pub share_ppm: u32,
        /// The burst limit under `balance`, in millionths.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub soft_ppm: Option<u32>,
        /// Its part of spare time, in relation to other sessions'.
        pub weight: u32,
        /// Whether others come first.
        pub priority: Priority,
        /// The limits before.
        pub before: FormerLimits,
        /// What its processes have of its memory, in bytes.
        pub used_bytes: u64,
        /// The session's processes on the device.
        pub processes: Vec<ProcessTook>,
    }
}

message! {
    /// A session's limits on a device before a change.
    pub struct FormerLimits {
        /// Device memory, in bytes. Left out: no limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_bytes: Option<u64>,
        /// How much of it might be on the device, in bytes, if that was less.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_real_bytes: Option<u64>,
        /// How the share was meant.
        pub policy: Policy,
        /// Share of the device's time, in millionths; without meaning under `none`.
        pub share_ppm: u32,
        /// The burst limit under `balance`, in millionths.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub soft_ppm: Option<u32>,
        /// Its part of spare time, in relation to other sessions'.
        pub weight: u32,
        /// Whether others came first.
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
    /// Whether a process has taken a change.
    pub struct ProcessTook {
        /// Its id in its own pid namespace.
        pub pid: u32,
        /// Its id on the host, if it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub host_pid: Option<u32>,
        /// Whether its launches and allocations go by the new limits. `false`: not yet; or it is stopped, or its
        /// library is of an earlier version, which does not say so.
        pub taken: bool,
    }
}
