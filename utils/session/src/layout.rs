//! The layout of a session page. Processes of different builds share it: fields are only ever added at the end of their
//! block, and a change of meaning increments [`VERSION`].

use core::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64};
use limits::recent::KEPT;
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};

/// "sluicepg" in ASCII.
pub const MAGIC: u64 = 0x736c_7569_6365_7067;
/// Version of this layout.
pub const VERSION: u32 = 4;
/// The most processes of one session on one device.
pub const SLOTS: usize = 4096;
/// A memory limit that does not limit.
pub const NO_LIMIT: u64 = u64::MAX;

/// In [`MemberSlot::start_time`]: only the end of the process unlocks its slot. No start time has this bit, so builds
/// that do not know it take a process whose slot is unlocked for dead as well.
pub const LOCK_IS_KEPT: u64 = 1 << 63;

/// The use of device memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum MemoryKind {
    /// Linear, pitched and managed allocations, and physical memory of the virtual memory API.
    Data = 0,
    /// Contexts.
    Context = 1,
    /// Stream-ordered allocations from pools.
    Pool = 2,
    /// Allocation nodes of graphs.
    Graph = 3,
    /// Arrays and mipmapped arrays.
    Array = 4,
    /// Memory placed on the host because the real part was used up.
    Overcommitted = 5,
    /// Taken by the driver without a call that says how much (code, stacks, printf buffers), as far as NVML shows it.
    Driver = 6,
    /// Kept free of allocations, for code that the driver was given and has yet to place.
    Headroom = 7,
}

impl MemoryKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Data,
        Self::Context,
        Self::Pool,
        Self::Graph,
        Self::Array,
        Self::Overcommitted,
        Self::Driver,
        Self::Headroom,
    ];
}

/// A process of the session; all zero if the slot is free.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct MemberSlot {
    /// Process id in the process's own namespace; 0: the slot is free.
    pub pid: AtomicU32,
    /// 1 while the process holds a compute lease of the session's own account.
    pub holding: AtomicU32,
    /// Start time of the process, in clock ticks since boot (`/proc/PID/stat`, field 22), with [`LOCK_IS_KEPT`]; 0:
    /// unknown.
    pub start_time: AtomicU64,
    /// Bytes of device memory, by [`MemoryKind`].
    pub bytes: [AtomicU64; 8],
    /// End of the lease held, on `CLOCK_MONOTONIC` in nanoseconds.
    pub lease_end_ns: AtomicU64,
    /// The host's process id, as in NVML; 0: unknown.
    pub host_pid: AtomicU32,
    /// The process's utilization while it holds the device, in millionths; 0: unknown.
    pub density_ppm: AtomicU32,
    /// Since when the process has waited for a lease of the own account, on `CLOCK_MONOTONIC` in nanoseconds; 0: not
    /// waiting.
    pub waiting_since_ns: AtomicU64,
    /// Until when the use of its lease has been charged, on `CLOCK_MONOTONIC` in nanoseconds.
    pub charged_until_ns: AtomicU64,
    /// GPU time of the process in nanoseconds, whoever granted the leases.
    pub charged_ns: AtomicU64,
    /// Until when the device may be working for the process: see [`crate::work_mark`].
    pub work_mark: AtomicU64,
}

/// The most devices that a session can hold together.
pub const TOGETHER: usize = 32;

/// A device that the session uses together with others: see [`crate::together`].
#[repr(C)]
#[derive(Debug)]
pub struct TogetherDevice {
    /// The device's UUID; 0: the entry is free.
    pub uuid: [AtomicU64; 2],
    /// Until when the device counts as used together with others, on `CLOCK_MONOTONIC` in nanoseconds.
    pub until_ns: AtomicU64,
    /// Collectives that needed no gate any more: those launched, or with stream gates those begun.
    pub collectives: AtomicU64,
    /// `collectives` when none of the devices was last held.
    pub collectives_before: AtomicU64,
    /// The session's share of the device, in millionths.
    pub share_ppm: AtomicU32,
    /// `collectives` modulo [`crate::together::COLLECTIVES_OF_BATCH`], when the devices last agreed on that number.
    pub batches_from: AtomicU32,
    /// Until when more collectives may begin in its streams, on `CLOCK_MONOTONIC` in nanoseconds; 0: they wait for the
    /// gate.
    pub open_until_ns: AtomicU64,
    /// 1: its last lease ended before a collective that it had begun was done.
    pub left: AtomicU32,
    /// For later fields.
    pub more_unused: AtomicU32,
}

/// Use of the device in one second: [`limits::recent::Second`].
#[repr(C)]
#[derive(Debug)]
pub struct UsedInSecond {
    /// The number of the second on `CLOCK_MONOTONIC`.
    pub number: AtomicU64,
    /// GPU time used in it, in nanoseconds.
    pub used_ns: AtomicU64,
}

/// A session's ledger on one device.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct PageLayout {
    /// [`MAGIC`]
    pub magic: AtomicU64,
    /// [`VERSION`]
    pub version: AtomicU32,
    /// Number of slots: [`SLOTS`].
    pub slot_count: AtomicU32,
    /// The device's UUID.
    pub uuid: [AtomicU8; 16],
    /// The process that is changing the ledger: its slot's index plus one; 0: none.
    pub lock: AtomicU32,
    /// One past the highest slot ever used.
    pub high_water: AtomicU32,
    /// The memory limit in bytes; [`NO_LIMIT`]: none.
    pub memory_limit: AtomicU64,
    /// Sum of all slots' bytes, on the device and on the host.
    pub used: AtomicU64,
    /// Bytes of a context on this device; 0: unknown.
    pub context_bytes: AtomicU64,
    /// Share of the device's time, in millionths.
    pub share_ppm: AtomicU32,
    /// Processes that hold a lease of the session's own account.
    pub holders: AtomicU32,
    /// [`limits::bucket::Bucket::balance_ns`]
    pub balance_ns: AtomicI64,
    /// [`limits::bucket::Bucket::settled_at_ns`], on `CLOCK_MONOTONIC`.
    pub settled_at_ns: AtomicU64,
    /// Bytes of the limit that may be on the device itself; the rest is placed on the host. [`NO_LIMIT`]: all of them.
    pub memory_real: AtomicU64,
    /// Number of changes of the limits; readers compare it, or sleep on it.
    pub limit_changes: AtomicU32,
    /// [`limits::Policy`] as a number; see [`PageLayout::limits`].
    pub policy: AtomicU32,
    /// Policy `balance`: the burst limit, in millionths; 0: none.
    pub soft_share_ppm: AtomicU32,
    /// Policy `balance`: the session's weight when idle time is divided.
    pub weight: AtomicU32,
    /// [`limits::Priority`] as a number.
    pub priority: AtomicU32,
    /// Changes when a lease of the own account ends; processes that wait for a lease sleep on it.
    pub lease_bell: AtomicU32,
    /// Until when the session's use of the device has been charged, on `CLOCK_MONOTONIC` in nanoseconds.
    pub busy_until_ns: AtomicU64,
    /// The processes.
    pub slots: [MemberSlot; SLOTS],
    /// Sum of all slots' [`MemoryKind::Overcommitted`].
    pub on_host: AtomicU64,
    /// When a process last looked for dead processes, on `CLOCK_MONOTONIC` in nanoseconds.
    pub reaped_at_ns: AtomicU64,
    /// The bucket for leases from elsewhere: [`limits::bucket::Bucket::balance_ns`] ...
    pub elsewhere_ns: AtomicI64,
    /// ... and [`limits::bucket::Bucket::settled_at_ns`], on `CLOCK_MONOTONIC`; 0: never used.
    pub elsewhere_at_ns: AtomicU64,
    /// Only in the page of all devices: the devices used together.
    pub devices: [TogetherDevice; TOGETHER],
    /// Until when work on a device waits for work on others, on `CLOCK_MONOTONIC` in nanoseconds. Odd: for any of them;
    /// even: for those that are behind.
    pub called_until_ns: AtomicU64,
    /// 1: the devices do not launch equal numbers of collectives, or may not.
    pub numbers_differ: AtomicU64,
    /// The end of the leases that will not be renewed, on `CLOCK_MONOTONIC` in nanoseconds.
    pub last_end_ns: AtomicU64,
    /// Which processes have taken which change of the limits: see [`crate::taken`].
    pub taken: [AtomicU64; SLOTS / 32],
    /// When the first process joined, on `CLOCK_MONOTONIC` in nanoseconds; 0: none yet.
    pub first_used_ns: AtomicU64,
    /// GPU time of the session in nanoseconds, whoever granted the leases.
    pub delivered_ns: AtomicU64,
    /// Time in which processes had work queued and held no lease, summed over the processes, in nanoseconds.
    pub waited_ns: AtomicU64,
    /// Maximum of [`Self::used`] so far, in bytes.
    pub peak_bytes: AtomicU64,
    /// Use of the device in the last seconds.
    pub recent: [UsedInSecond; KEPT],
    /// Number of memory reservations refused for good, ...
    pub refusals: AtomicU64,
    /// ... the bytes that the last one asked for, ...
    pub refused_bytes: AtomicU64,
    /// ... and its time, on `CLOCK_MONOTONIC` in nanoseconds.
    pub refused_at_ns: AtomicU64,
    /// Number of failed allocations by reason: see [`crate::ledger::RefusedFor`].
    pub refused_for: [AtomicU64; 4],
    /// CPU time of the limiter's own threads in the session's processes, in nanoseconds.
    pub limiter_cpu_ns: AtomicU64,
    /// Until when use of the device has been charged to [`Self::elsewhere_ns`], on `CLOCK_MONOTONIC` in nanoseconds.
    pub elsewhere_until_ns: AtomicU64,
    /// When the session's own account was last charged, on `CLOCK_MONOTONIC` in nanoseconds.
    pub own_at_ns: AtomicU64,
    /// Bytes in use at the last refusal, under the bound that refused it.
    pub refused_beside: AtomicU64,
    /// For later fields.
    pub unused: [AtomicU64; 54],
    /// [`MAGIC`] again; missing if the file has been truncated, even by one byte.
    pub end: [AtomicU64; 4],
}

impl PageLayout {
    /// A private page with all fields 0.
    #[must_use]
    pub fn blank() -> Box<Self> {
        let memory = Layout::new::<Self>();
        // SAFETY: of the type's own size and alignment; all of its fields are atomics, for which zero
        // bytes are a valid value.
        unsafe {
            let bytes = alloc_zeroed(memory);
            if bytes.is_null() {
                handle_alloc_error(memory);
            }
            Box::from_raw(bytes.cast::<Self>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    /// Other builds rely on these offsets.
    #[test]
    fn offsets_are_fixed() {
        assert_eq!(offset_of!(PageLayout, lock), 32);
        assert_eq!(offset_of!(PageLayout, memory_limit), 40);
        assert_eq!(offset_of!(PageLayout, settled_at_ns), 80);
        assert_eq!(offset_of!(PageLayout, busy_until_ns), 120);
        assert_eq!(offset_of!(PageLayout, slots), 128);
        assert_eq!(offset_of!(PageLayout, on_host), 128 + 4096 * 128);
        assert_eq!(offset_of!(PageLayout, devices), offset_of!(PageLayout, on_host) + 32);
        assert_eq!(size_of::<TogetherDevice>(), 64);
        assert_eq!(offset_of!(PageLayout, taken), offset_of!(PageLayout, devices) + 2048 + 24);
        assert_eq!(offset_of!(PageLayout, first_used_ns), offset_of!(PageLayout, taken) + 1024);
        assert_eq!(offset_of!(PageLayout, recent), offset_of!(PageLayout, first_used_ns) + 32);
        assert_eq!(offset_of!(PageLayout, end) + 32, size_of::<PageLayout>());
        assert_eq!(offset_of!(MemberSlot, work_mark), 120);
        assert_eq!(size_of::<MemberSlot>(), 128);
        assert_eq!(size_of::<PageLayout>(), 4096 * 129);
    }
}
