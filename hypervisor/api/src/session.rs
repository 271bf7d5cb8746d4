//! Messages about sessions, their processes, and their leases.

use crate::{Policy, Priority};

word! {
    /// Whether a session has processes.
    pub enum Presence {
        /// The session has processes.
        Active,
        /// All processes have ended, but the session owes time.
        Left,
        /// The session is from before the daemon's start, and no process has registered again.
        Restored,
    }
}

message! {
    /// A container.
    pub struct Container {
        /// `docker`, `containerd`, `cri-o`, `podman`, or `unnamed` if its cgroup does not tell.
        pub runtime: String,
        /// The container's id.
        pub id: String,
        /// User id of the user whose own container this is ("rootless").
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub user: Option<u32>,
    }
}

word! {
    /// Whether leases are granted to a session.
    pub enum SessionState {
        /// Leases are granted.
        Running,
        /// No lease is granted until the session is thawed.
        Frozen,
    }
}

message! {
    /// The sessions.
    pub struct SessionList {
        /// Sessions that the caller may see.
        pub sessions: Vec<Session>,
        /// Number of other sessions.
        pub others: u64,
    }
}

message! {
    /// A session. User, container, pod and name together identify a session.
    pub struct Session {
        /// Id of the session in calls, as long as the daemon runs and knows the session.
        pub id: u64,
        /// User id of the session's user.
        pub uid: u32,
        /// The container of the session's processes, according to their cgroup.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub container: Option<Container>,
        /// UID of the pod.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub pod: Option<String>,
        /// Name of the session; sessions of other users may have the same name.
        pub name: String,
        /// Name given by `sluice run --name`, if the daemon sees the session's directory. The session's user can write
        /// anything there. Read every five seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub called: Option<String>,
        /// Whether the session has processes.
        pub presence: Presence,
        /// Whether leases are granted to the session.
        pub state: SessionState,
        /// Ids of the session's processes in the daemon's pid namespace.
        pub pids: Vec<i32>,
        /// Devices on which the session has a compute share.
        pub devices: Vec<SessionDevice>,
        /// The session's memory on each device that it has used, from its own pages, if the daemon sees them. Read
        /// every five seconds.
        pub memory: Vec<SessionMemory>,
    }
}

impl Session {
    /// UUIDs of the devices on which the session has a limit, or which it has used.
    #[must_use]
    pub fn uuids(&self) -> std::collections::BTreeSet<&str> {
        let limited = self.devices.iter().map(|device| device.uuid.as_str());
        limited.chain(self.memory.iter().map(|memory| memory.uuid.as_str())).collect()
    }

    /// The session's memory on a device.
    #[must_use]
    pub fn memory_on(&self, uuid: &str) -> Option<&SessionMemory> {
        self.memory.iter().find(|memory| memory.uuid == uuid)
    }
}

message! {
    /// A session's memory on a device, from its own pages, which the session's user can write.
    pub struct SessionMemory {
        /// The device's UUID.
        pub uuid: String,
        /// Memory limit, in bytes; omitted: no limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub limit_bytes: Option<u64>,
        /// The part of the limit that may be on the device, if less.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub real_bytes: Option<u64>,
        /// Memory in use, of all kinds.
        pub used_bytes: u64,
        /// Highest use so far.
        pub peak_bytes: u64,
        /// Linear memory and memory of the virtual memory API.
        pub data_bytes: u64,
        /// Contexts.
        pub context_bytes: u64,
        /// Pools.
        pub pool_bytes: u64,
        /// Graphs.
        pub graph_bytes: u64,
        /// Arrays.
        pub array_bytes: u64,
        /// Overcommitted memory, placed on the host.
        pub overcommitted_bytes: u64,
        /// Memory that the driver took without an allocating call.
        pub driver_bytes: u64,
        /// Memory kept free for code that the driver has yet to load.
        pub headroom_bytes: u64,
        /// Number of allocations refused because of the limits.
        pub refusals: u64,
    }
}

message! {
    /// A session on a device.
    pub struct SessionDevice {
        /// The device's UUID.
        pub uuid: String,
        /// The meaning of the share.
        pub policy: Policy,
        /// Compute share, in millionths of the device's time.
        pub share_ppm: u32,
        /// Burst limit under `balance`, in millionths of the device's time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub soft_ppm: Option<u32>,
        /// Weight for dividing idle time among sessions.
        pub weight: u32,
        /// Whether sessions of high priority come first.
        pub priority: Priority,
        /// Guaranteed time left, in microseconds. Negative: the session owes time.
        pub balance_us: i64,
        /// Device time charged since the session was first seen, in microseconds. A restart of the daemon does not
        /// reset it.
        pub charged_us: u64,
        /// The part of `charged_us` beyond the guaranteed share, in microseconds.
        pub spare_us: u64,
        /// Total time in which the session's processes waited for their turns since the daemon started, in
        /// microseconds.
        pub waited_us: u64,
        /// Fraction of the device's time charged in the last ten seconds, or since the daemon first saw the session
        /// there, in millionths.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub recent_ppm: Option<u32>,
        /// Fraction of the device's time charged since the daemon first saw the session there, or since the daemon
        /// started, in millionths.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub mean_ppm: Option<u32>,
        /// Utilization of the session's densest process while no other slows it down, in millionths.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub density_ppm: Option<u64>,
        /// Class of the session by utilization.
        pub class: Class,
        /// How the session shares the device with others that want it most of the time. Absent: there are none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub sharing: Option<Sharing>,
        /// Whether a process of the session waits for a lease.
        pub asks: bool,
    }
}

message! {
    /// The way in which sessions share a device that want it most of the time, and what one of them gets done.
    pub struct Sharing {
        /// The way that holds.
        pub way: SharingWay,
        /// Why it was chosen.
        pub reason: SharingReason,
        /// For how long it has held, in microseconds.
        pub since_us: u64,
        /// Launches that the session completes in turns, in a thousand seconds, when that was last measured.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub launches_in_turns: Option<u64>,
        /// The same for leases held at once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub launches_at_once: Option<u64>,
    }
}

word! {
    /// A way to share a device.
    pub enum SharingWay {
        /// One session after the other.
        Turns,
        /// All at once; the hardware slices the device.
        Overlap,
    }
}

word! {
    /// Why a way to share a device was chosen.
    pub enum SharingReason {
        /// The ways were not compared: not yet, or because nobody could get more.
        NotCompared,
        /// More gets done than in the other way.
        MoreDone,
        /// In the other way, a session would get less than it is guaranteed.
        Guarantee,
    }
}

word! {
    /// Whether a session fills the device by itself.
    pub enum Class {
        /// The session fills the device, or may do so. Such sessions take turns.
        Dense,
        /// The session leaves the device idle part of the time, and shares it with others.
        Sparse,
    }
}

message! {
    /// The answer to a freeze or a thaw.
    pub struct SessionAction {
        /// Id of the session.
        pub id: u64,
        /// The session's state from now on.
        pub state: SessionState,
        /// Whether the state was different before.
        pub changed: bool,
        /// Number of leases that the session still holds. With gates on threads they last for at most 50 more
        /// milliseconds.
        pub leases: u64,
    }
}

message! {
    /// The processes that the daemon serves.
    pub struct WorkerList {
        /// Processes that the caller may see.
        pub workers: Vec<Worker>,
        /// Number of other processes.
        pub others: u64,
    }
}

message! {
    /// Activity of a process on a device.
    pub struct WorkerDevice {
        /// The device's UUID.
        pub uuid: String,
        /// Activity of the process.
        pub state: WorkerState,
    }
}

word! {
    /// Activity of a process on a device.
    pub enum WorkerState {
        /// No activity known to the daemon.
        Idle,
        /// The process waits for a lease.
        Asking,
        /// The process holds a lease.
        Holding,
        /// The process holds a lease that others no longer wait for.
        Revoked,
    }
}

message! {
    /// A process that the daemon serves.
    pub struct Worker {
        /// Process id in the daemon's pid namespace.
        pub pid: i32,
        /// User id.
        pub uid: u32,
        /// Id of the process's session.
        pub session: u64,
        /// The systemd unit of the process.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub unit: Option<String>,
        /// Devices on which the process's session has a compute share.
        pub devices: Vec<WorkerDevice>,
        /// Devices on which the process's gates are in its streams.
        pub in_stream: Vec<String>,
    }
}

message! {
    /// The leases held.
    pub struct LeaseList {
        /// Leases that the caller may see.
        pub leases: Vec<Lease>,
        /// Number of other leases.
        pub others: u64,
    }
}

message! {
    /// A lease.
    pub struct Lease {
        /// The device's UUID.
        pub uuid: String,
        /// Id of the session that holds the lease.
        pub session: u64,
        /// Id of the process that holds the lease.
        pub pid: i32,
        /// How long the lease has been held, in microseconds.
        pub held_us: u64,
        /// Whether the lease is charged as idle time.
        pub spare: bool,
        /// Whether others no longer wait for the lease.
        pub revoked: bool,
    }
}
