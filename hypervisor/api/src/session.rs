//! Sessions, their processes, and their leases.

use crate::{Policy, Priority};

word! {
    /// Whether a session has processes.
    pub enum Presence {
        /// It has.
        Active,
        /// All have ended; it still owes time.
        Left,
        /// It is from before the daemon's start, and none has registered again.
        Restored,
    }
}

message! {
    /// A container.
    pub struct Container {
        /// `docker`, `containerd`, `cri-o`, `podman`, or `unnamed`: its cgroup does not tell.
        pub runtime: String,
        /// Its id.
        pub id: String,
        /// The user whose own container it is ("rootless").
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub user: Option<u32>,
    }
}

word! {
    /// Whether a session may use its devices.
    pub enum SessionState {
        /// It is granted leases.
        Running,
        /// It is granted nothing until it is thawed.
        Frozen,
    }
}

message! {
    /// The sessions that are known.
    pub struct SessionList {
        /// Those that the caller may see.
        pub sessions: Vec<Session>,
        /// How many there are beside them.
        pub others: u64,
    }
}

message! {
    /// A session. User, container, pod and name together tell sessions apart.
    pub struct Session {
        /// Names it in calls, for as long as the daemon runs and knows it.
        pub id: u64,
        /// The user it belongs to.
        pub uid: u32,
        /// The container that its processes run in, as their cgroup tells.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub container: Option<Container>,
        /// The UID of their pod.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub pod: Option<String>,
        /// Its name. Another user's session may have the same.
        pub name: String,
        /// What people call it: the name that `sluice run --name` gave it, where the daemon sees its folder. Its user can write
        /// there. Looked at every five seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub called: Option<String>,
        /// Whether it has processes.
        pub presence: Presence,
        /// Whether it may use its devices.
        pub state: SessionState,
        /// Its processes, by their ids in the daemon's pid namespace.
        pub pids: Vec<i32>,
        /// The devices on which it has a compute share.
        pub devices: Vec<SessionDevice>,
        /// Its memory on each device that it has used, by its own pages, where the daemon sees them. Looked at every five
        /// seconds.
        #[serde(default)]
        pub memory: Vec<SessionMemory>,
    }
}

impl Session {
    /// The devices that it has a limit on, or has used.
    #[must_use]
    pub fn uuids(&self) -> std::collections::BTreeSet<&str> {
        let limited = self.devices.iter().map(|device| device.uuid.as_str());
        limited.chain(self.memory.iter().map(|memory| memory.uuid.as_str())).collect()
    }

    /// Its memory on a device.
    #[must_use]
    pub fn memory_on(&self, uuid: &str) -> Option<&SessionMemory> {
        self.memory.iter().find(|memory| memory.uuid == uuid)
    }
}

message! {
    /// A session's memory on a device, by its own account: its user can write there.
    pub struct SessionMemory {
        /// The device.
        pub uuid: String,
        /// What it may have; left out: there is no limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub limit_bytes: Option<u64>,
        /// The part of it that may be on the device, if that is less.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub real_bytes: Option<u64>,
        /// What it has of all kinds.
        pub used_bytes: u64,
        /// The most that it has had.
        pub peak_bytes: u64,
        /// Linear memory and the virtual memory API.
        pub data_bytes: u64,
        /// Contexts.
        pub context_bytes: u64,
        /// Pools.
        pub pool_bytes: u64,
        /// Graphs.
        pub graph_bytes: u64,
        /// Arrays.
        pub array_bytes: u64,
        /// Placed on the host.
        pub overcommitted_bytes: u64,
        /// Taken by the driver without a call that says so.
        pub driver_bytes: u64,
        /// Kept free for code that the driver has yet to place.
        pub headroom_bytes: u64,
        /// Allocations that its limits refused.
        pub refusals: u64,
    }
}

message! {
    /// A session on a device.
    pub struct SessionDevice {
        /// The device.
        pub uuid: String,
        /// How the share is meant.
        pub policy: Policy,
        /// Its share of the device's time, in millionths.
        pub share_ppm: u32,
        /// Its burst limit under `balance`, in millionths.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub soft_ppm: Option<u32>,
        /// Its part of spare time, in relation to other sessions'.
        pub weight: u32,
        /// Whether others come first.
        pub priority: Priority,
        /// Guaranteed time that it may still use, in microseconds. Negative: it owes time.
        pub balance_us: i64,
        /// Device time that it has been charged since it was first seen, in microseconds. A restart of the daemon does not
        /// set it back.
        pub charged_us: u64,
        /// The part of `charged_us` that was spare time, in microseconds.
        pub spare_us: u64,
        /// For how long its processes have waited for their turns since the daemon's start, added up, in microseconds.
        #[serde(default)]
        pub waited_us: u64,
        /// The share of the device's time that it was charged in the last ten seconds, or since the daemon first saw it
        /// there, in millionths.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub recent_ppm: Option<u32>,
        /// The same since the daemon first saw it there, or since its start.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub mean_ppm: Option<u32>,
        /// The utilization of its densest process while no other slows it down, in millionths.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub density_ppm: Option<u64>,
        /// The class that follows from it.
        pub class: Class,
        /// Whether one of its processes asks for a lease.
        pub asks: bool,
    }
}

word! {
    /// Whether a session fills the device by itself.
    pub enum Class {
        /// It fills the device, or may do so. Such sessions use the device in turns.
        Dense,
        /// It leaves the device idle part of the time, and holds it beside others.
        Sparse,
    }
}

message! {
    /// The answer to a freeze or a thaw.
    pub struct SessionAction {
        /// The session.
        pub id: u64,
        /// What it is from now on.
        pub state: SessionState,
        /// Whether it was something else before.
        pub changed: bool,
        /// Leases that it still holds. Where gates are on threads they last for 50 milliseconds more at most.
        pub leases: u64,
    }
}

message! {
    /// The processes that are served.
    pub struct WorkerList {
        /// Those that the caller may see.
        pub workers: Vec<Worker>,
        /// How many there are beside them.
        pub others: u64,
    }
}

message! {
    /// What a process does on a device.
    pub struct WorkerDevice {
        /// The device.
        pub uuid: String,
        /// What it does there.
        pub state: WorkerState,
    }
}

word! {
    /// What a process does on a device.
    pub enum WorkerState {
        /// Nothing that the daemon knows of.
        Idle,
        /// It asks for a lease.
        Asking,
        /// It holds a lease.
        Holding,
        /// It holds a lease that others no longer wait for.
        Revoked,
    }
}

message! {
    /// A process that is served.
    pub struct Worker {
        /// Its id in the daemon's pid namespace.
        pub pid: i32,
        /// Its user.
        pub uid: u32,
        /// The id of its session.
        pub session: u64,
        /// The unit of systemd that it runs in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub unit: Option<String>,
        /// The devices on which its session has a compute share.
        pub devices: Vec<WorkerDevice>,
        /// The devices on which its gates are in its streams.
        pub in_stream: Vec<String>,
    }
}

message! {
    /// The leases that are held.
    pub struct LeaseList {
        /// Those that the caller may see.
        pub leases: Vec<Lease>,
        /// How many there are beside them.
        pub others: u64,
    }
}

message! {
    /// A lease that is held.
    pub struct Lease {
        /// The device.
        pub uuid: String,
        /// The id of the session that holds it.
        pub session: u64,
        /// The process that holds it.
        pub pid: i32,
        /// For how long it has been held, in microseconds.
        pub held_us: u64,
        /// Whether it is paid from spare time.
        pub spare: bool,
        /// Whether others no longer wait for it.
        pub revoked: bool,
    }
}
