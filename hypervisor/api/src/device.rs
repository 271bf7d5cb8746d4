//! Devices.

message! {
    /// The devices that the daemon observes, and those on which a session with a compute share has been seen.
    pub struct DeviceList {
        /// By UUID.
        pub devices: Vec<Device>,
        /// Whether the daemon sees the node's devices.
        #[serde(default)]
        pub observer: Observer,
    }
}

message! {
    /// Whether the daemon sees the node's devices.
    #[derive(Default)]
    pub struct Observer {
        /// Whether it does.
        pub sees: bool,
        /// Why it does not. Left out: it has not looked yet, or is told not to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub message: Option<String>,
        /// What happens where a process uses a device that no session knows.
        pub unknown_processes: UnknownProcesses,
    }
}

word! {
    /// What happens where a process uses a device that no session knows.
    #[derive(Default)]
    pub enum UnknownProcesses {
        /// It is reported.
        #[default]
        Report,
        /// No session is granted a lease on the device until the process has gone.
        Hold,
        /// The process is ended.
        Kill,
    }
}

word! {
    /// Whether a device is used.
    pub enum DeviceState {
        /// No process holds a lease or asks for one.
        Idle,
        /// A process holds a lease or asks for one.
        InUse,
    }
}

message! {
    /// A device.
    pub struct Device {
        /// Its UUID.
        pub uuid: String,
        /// Whether it is used.
        pub state: DeviceState,
        /// Whether it can be trusted with work.
        #[serde(default)]
        pub health: DeviceHealth,
        /// What is known against it, in words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub unhealthy: Option<String>,
        /// Why no lease is granted on it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub withheld: Option<Withheld>,
        /// Whether its operator has taken it out of service for new work. Leases are granted on it all the same.
        #[serde(default)]
        pub cordoned: bool,
        /// How often it was declared healthy since the daemon's start.
        #[serde(default)]
        pub declared_healthy: u64,
        /// What it showed last. Left out: it was never observed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub figures: Option<Figures>,
        /// How many processes use it now that no session knows.
        #[serde(default)]
        pub unknown: u64,
        /// How many there were since the daemon's start.
        #[serde(default)]
        pub unknown_seen: u64,
        /// Those that the caller may see.
        #[serde(default)]
        pub unknown_processes: Vec<UnknownProcess>,
        /// The sessions that the caller may see.
        pub own: Sums,
        /// All others.
        pub others: Sums,
    }
}

message! {
    /// Several sessions on a device, added up.
    #[derive(Default)]
    pub struct Sums {
        /// How many they are.
        pub sessions: u64,
        /// How many of them ask for a lease.
        pub asking: u64,
        /// How many leases they hold.
        pub leases: u64,
        /// Their shares of the device's time, in millionths. More than a million: they cannot all get theirs at once.
        pub share_ppm: u64,
        /// Device time that they have been charged since each was first seen, in microseconds.
        pub charged_us: u64,
    }
}

word! {
    /// Whether a device can be trusted with work.
    #[derive(Default)]
    pub enum DeviceHealth {
        /// It is not observed.
        #[default]
        Unknown,
        /// Nothing is known against it.
        Healthy,
        /// Something is. It stays so until it is declared healthy, or the daemon is restarted.
        Unhealthy,
    }
}

word! {
    /// Why no lease is granted on a device.
    pub enum Withheld {
        /// The device is unhealthy.
        Unhealthy,
        /// A process uses it that no session knows, and the daemon's policy is `hold`.
        UnknownProcess,
    }
}

message! {
    /// The answer to a device's being declared healthy.
    pub struct DeviceDeclared {
        /// The device.
        pub uuid: String,
        /// Whether it was unhealthy before.
        pub changed: bool,
    }
}

message! {
    /// A process on a device that no session knows: nothing limits it there.
    pub struct UnknownProcess {
        /// Its id in the daemon's pid namespace.
        pub pid: u32,
        /// Its user.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub uid: Option<u32>,
        /// The name of its program.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
        /// Device memory that it has, in bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_bytes: Option<u64>,
    }
}

message! {
    /// What a device shows, as the driver (NVML) has it. What could not be read is left out here, and named in
    /// `unread`.
    pub struct Figures {
        /// How long ago it was read, in microseconds.
        pub age_us: u64,
        /// Its place in the driver's order, as `nvidia-smi` counts.
        pub index: u32,
        /// The product's name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
        /// All of its memory, in bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_total_bytes: Option<u64>,
        /// What driver and firmware keep for themselves, in bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_reserved_bytes: Option<u64>,
        /// What processes have, in bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_used_bytes: Option<u64>,
        /// What is left, in bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_free_bytes: Option<u64>,
        /// Part of the time in which a kernel ran, in percent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub sm_percent: Option<u32>,
        /// Part of the time in which its memory was read or written, in percent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory_percent: Option<u32>,
        /// What it draws, in milliwatts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub power_mw: Option<u32>,
        /// What it may draw, in milliwatts.
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
        /// What keeps it from running faster: `idle`, `setting`, `power_cap`, `hardware_slowdown`, `sync_boost`,
        /// `software_thermal`, `hardware_thermal`, `power_brake`, `display_clock`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub throttled_by: Option<Vec<String>>,
        /// Errors in its memory that were corrected since the driver was loaded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub ecc_corrected: Option<u64>,
        /// Errors in its memory that could not be corrected since then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub ecc_uncorrected: Option<u64>,
        /// Processes with a compute context on it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub processes: Option<u64>,
        /// Errors that the driver reported since the daemon's start.
        #[serde(default)]
        pub xids: Vec<XidCount>,
        /// What could not be read, and why.
        #[serde(default)]
        pub unread: Vec<UnreadFigure>,
    }
}

message! {
    /// How often the driver reported an error.
    pub struct XidCount {
        /// Its number (XID).
        pub xid: u64,
        /// How often.
        pub count: u64,
    }
}

message! {
    /// A figure that could not be read.
    pub struct UnreadFigure {
        /// Which.
        pub figure: String,
        /// Why.
        pub message: String,
    }
}
