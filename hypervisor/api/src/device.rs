//! Messages about devices.

message! {
    /// The devices that the daemon observes, and those on which a session with a compute share was seen.
    pub struct DeviceList {
        /// The devices, by UUID.
        pub devices: Vec<Device>,
        /// Whether the daemon sees the node's devices.
        #[serde(default)]
        pub observer: Observer,
    }
}

message! {
    /// Whether the daemon can observe the node's devices.
    #[derive(Default)]
    pub struct Observer {
        /// Whether it can.
        pub sees: bool,
        /// Why it cannot. Omitted if it has not tried yet, or is configured not to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub message: Option<String>,
        /// Policy for processes outside any session.
        pub unknown_processes: UnknownProcesses,
    }
}

word! {
    /// What the daemon does about a process that uses a device outside any session.
    #[derive(Default)]
    pub enum UnknownProcesses {
        /// Report the process.
        #[default]
        Report,
        /// Grant no leases on the device until the process has gone.
        Hold,
        /// End the process.
        Kill,
    }
}

word! {
    /// Whether a device is in use.
    pub enum DeviceState {
        /// No process holds a lease or waits for one.
        Idle,
        /// A process holds a lease or waits for one.
        InUse,
    }
}

message! {
    /// A device.
    pub struct Device {
        /// The device's UUID.
        pub uuid: String,
        /// Whether the device is in use.
        pub state: DeviceState,
        /// Whether the device may be given work.
        #[serde(default)]
        pub health: DeviceHealth,
        /// The device's faults, in words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub unhealthy: Option<String>,
        /// Why no lease is granted on the device.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub withheld: Option<Withheld>,
        /// Whether an operator has taken the device out of service for new work. Leases are still granted on it.
        #[serde(default)]
        pub cordoned: bool,
        /// How often the device was declared healthy since the daemon started.
        #[serde(default)]
        pub declared_healthy: u64,
        /// Latest figures. Omitted if the device was never observed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub figures: Option<Figures>,
        /// Number of processes on the device outside any session.
        #[serde(default)]
        pub unknown: u64,
        /// Number of such processes since the daemon started.
        #[serde(default)]
        pub unknown_seen: u64,
        /// Such processes that the caller may see.
        #[serde(default)]
        pub unknown_processes: Vec<UnknownProcess>,
        /// Sums over the sessions that the caller may see.
        pub own: Sums,
        /// Sums over all other sessions.
        pub others: Sums,
    }
}

message! {
    /// Sums over several sessions on a device.
    #[derive(Default)]
    pub struct Sums {
        /// Number of sessions.
        pub sessions: u64,
        /// Number of sessions that wait for a lease.
        pub asking: u64,
        /// Number of leases held.
        pub leases: u64,
        /// Sum of the compute shares, in millionths. Above a million the device is overcommitted.
        pub share_ppm: u64,
        /// Device time charged since each session was first seen, in microseconds.
        pub charged_us: u64,
    }
}

word! {
    /// Whether a device may be given work.
    #[derive(Default)]
    pub enum DeviceHealth {
        /// The device is not observed.
        #[default]
        Unknown,
        /// No fault is known.
        Healthy,
        /// A fault is known. The device stays unhealthy until it is declared healthy or the daemon is restarted.
        Unhealthy,
    }
}

word! {
    /// Why no lease is granted on a device.
    pub enum Withheld {
        /// The device is unhealthy.
        Unhealthy,
        /// A process uses the device outside any session, and the policy is `hold`.
        UnknownProcess,
    }
}

message! {
    /// The answer to declaring a device healthy.
    pub struct DeviceDeclared {
        /// The device's UUID.
        pub uuid: String,
        /// Whether the device was unhealthy before.
        pub changed: bool,
    }
}

message! {
    /// A process that uses a device outside any session: no limit applies to it there.
    pub struct UnknownProcess {
        /// Process id in the daemon's pid namespace.
        pub pid: u32,
        /// User id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub uid: Option<u32>,
        /// Name of the program.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
        /// Device memory in use, in bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_bytes: Option<u64>,
    }
}

message! {
    /// Figures of a device from the driver (NVML). Unreadable figures are omitted, and named in `unread`.
    pub struct Figures {
        /// Age of the figures, in microseconds.
        pub age_us: u64,
        /// Index in the driver's order, as in `nvidia-smi`.
        pub index: u32,
        /// The product's name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
        /// Total memory, in bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_total_bytes: Option<u64>,
        /// Memory reserved by driver and firmware, in bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_reserved_bytes: Option<u64>,
        /// Memory used by processes, in bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_used_bytes: Option<u64>,
        /// Free memory, in bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_free_bytes: Option<u64>,
        /// Time in which a kernel ran, in percent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub sm_percent: Option<u32>,
        /// Time in which device memory was read or written, in percent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_percent: Option<u32>,
        /// Power draw, in milliwatts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub power_mw: Option<u32>,
        /// Power limit, in milliwatts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub power_limit_mw: Option<u32>,
        /// Temperature of the chip, in degrees Celsius.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub temperature_c: Option<u32>,
        /// Clock of the multiprocessors, in MHz.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub sm_clock_mhz: Option<u32>,
        /// Clock of the memory, in MHz.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_clock_mhz: Option<u32>,
        /// Reasons for reduced clocks: `idle`, `setting`, `power_cap`, `hardware_slowdown`, `sync_boost`,
        /// `software_thermal`, `hardware_thermal`, `power_brake`, `display_clock`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub throttled_by: Option<Vec<String>>,
        /// ECC errors corrected since the driver was loaded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub ecc_corrected: Option<u64>,
        /// Uncorrectable ECC errors since the driver was loaded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub ecc_uncorrected: Option<u64>,
        /// Number of processes with a compute context.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub processes: Option<u64>,
        /// Errors (XIDs) that the driver reported since the daemon started.
        #[serde(default)]
        pub xids: Vec<XidCount>,
        /// Unreadable figures, and the reasons.
        #[serde(default)]
        pub unread: Vec<UnreadFigure>,
    }
}

message! {
    /// Number of occurrences of an error.
    pub struct XidCount {
        /// Number of the error (XID).
        pub xid: u64,
        /// How often it occurred.
        pub count: u64,
    }
}

message! {
    /// An unreadable figure.
    pub struct UnreadFigure {
        /// Name of the figure.
        pub figure: String,
        /// Why it could not be read.
        pub message: String,
    }
}
