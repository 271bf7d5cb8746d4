//! The bytes that NVML shows for this process and for its session (`nvmlDeviceGetComputeRunningProcesses`). The
//! reconciliation and the NVML hooks use them.
//!
//! NVML lists processes by their host pids. In a container, this process learns its host pid when it creates a context:
//! it is the one pid that is listed afterwards and was not before.

use super::device::DeviceMemory;
use crate::driver_calls;
use crate::ledger::DeviceLedger;
use core::sync::atomic::Ordering::Relaxed;
use driver::nvml::{NvmlReturn, ProcessInfoV2, VALUE_NOT_AVAILABLE};
use session::layout::{MemberSlot, MemoryKind};
use std::os::unix::fs::MetadataExt;

/// Inode of the host's pid namespace (`PROC_PID_INIT_INO` of the kernel).
const HOST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
/// Upper bound for the length of NVML's list.
const MOST_PROCESSES: usize = 1 << 16;

/// The processes that NVML lists on a device.
pub(crate) struct Processes(Vec<ProcessInfoV2>);

impl Processes {
    /// Queries the list; `None` if NVML is unavailable.
    pub(super) fn now(device: &DeviceLedger) -> Option<Self> {
        let nvml = driver_calls::nvml::handle(device.uuid())?;
        // Spare entries for processes that appear meanwhile.
        let mut list = vec![ProcessInfoV2::default(); 64];
        loop {
            let mut count = u32::try_from(list.len()).ok()?;
            match driver_calls::nvml::processes(nvml, &mut count, list.as_mut_ptr()) {
                NvmlReturn::SUCCESS => {
                    list.truncate(count as usize);
                    return Some(Self(list));
                }
                NvmlReturn::INSUFFICIENT_SIZE if list.len() < MOST_PROCESSES => {
                    list.resize(list.len() * 4, ProcessInfoV2::default());
                }
                _ => return None,
            }
        }
    }

    /// Bytes that other processes of the session use beyond their charges and headroom: memory that the driver has
    /// taken for them by itself and that they have not yet charged. `known`: their charges before NVML was queried.
    pub(super) fn others_beyond(&self, known: &[SessionProcess], device: &DeviceLedger) -> u64 {
        if known.is_empty() {
            return 0;
        }
        let now = members_but_own(device);
        let beyond = |process: &ProcessInfoV2| {
            let of = |members: &[SessionProcess]| {
                let found = members.iter().find(|member| member.pid == process.pid)?;
                Some(found.bytes.saturating_add(found.kept))
            };
            let had = of(known)?.max(of(&now)?);
            let used = process.used_gpu_memory;
            (used != VALUE_NOT_AVAILABLE).then(|| used.saturating_sub(had))
        };
        self.0.iter().filter_map(beyond).fold(0, u64::saturating_add)
    }

    /// Bytes that this process uses; `None` if its host pid or its figure is unknown.
    pub(super) fn own_bytes(&self, device: &DeviceMemory) -> Option<u64> {
        let pid = own_pid(device)?;
        let own = self.0.iter().find(|process| process.pid == pid);
        // A process without a context is not listed.
        let bytes = own.map_or(0, |process| process.used_gpu_memory);
        (bytes != VALUE_NOT_AVAILABLE).then_some(bytes)
    }

    /// Learns this process's host pid from a list made after it has created a context, if the new entry is unambiguous.
    pub(super) fn learn_own_pid(&self, device: &DeviceMemory, before: Option<&Self>) {
        if own_pid(device).is_some() {
            return;
        }
        let own = std::process::id();
        let pid = if in_host_namespace() && self.0.iter().any(|process| process.pid == own) {
            own
        } else {
            let Some(before) = before else { return };
            let known = members(device.ledger);
            let old = |pid: u32| {
                known.iter().any(|member| member.pid == pid)
                    || before.0.iter().any(|process| process.pid == pid)
            };
            let mut fresh = self.0.iter().map(|process| process.pid).filter(|&pid| !old(pid));
            match (fresh.next(), fresh.next()) {
                (Some(pid), None) => pid,
                _ => return,
            }
        };
        device.shared.own_pid.store(pid, Relaxed);
        let _ = own_pid(device);
    }
}

/// This process's host pid. Writes it into the device's page for the other processes of the session.
fn own_pid(device: &DeviceMemory) -> Option<u32> {
    let pid = device.shared.own_pid.load(Relaxed);
    if pid != 0
        && let Some(slot) = device.ledger.own_slot()
    {
        slot.host_pid.store(pid, Relaxed);
    }
    (pid != 0).then_some(pid)
}

/// A process of the session.
pub(crate) struct SessionProcess {
    /// Its host pid, as in NVML's lists.
    pub(crate) pid: u32,
    /// Its charges in bytes, without `overcommitted` and `headroom`.
    pub(crate) bytes: u64,
    /// Its headroom in bytes.
    kept: u64,
}

/// The session's living processes with known host pids.
pub(crate) fn members(device: &DeviceLedger) -> Vec<SessionProcess> {
    device.reap();
    members_but(device, None)
}

/// The session's other processes with known host pids, including processes that have ended.
pub(super) fn members_but_own(device: &DeviceLedger) -> Vec<SessionProcess> {
    members_but(device, Some(device.membership().slot()))
}

fn members_but(device: &DeviceLedger, left_out: Option<usize>) -> Vec<SessionProcess> {
    let Some(layout) = device.page() else { return Vec::new() };
    let seated = (layout.high_water.load(Relaxed) as usize).min(layout.slots.len());
    let slots = layout.slots[..seated].iter().enumerate();
    let slots = slots.filter(|&(at, slot)| Some(at) != left_out && slot.pid.load(Relaxed) != 0);
    let slots: Vec<&MemberSlot> = slots.map(|(_, slot)| slot).collect();
    if slots.is_empty() {
        return Vec::new();
    }
    let same = in_host_namespace();
    let member = |slot: &MemberSlot| {
        // Outside of containers, a process's own pid is its host pid, unless another one was learnt.
        let pid = match (slot.host_pid.load(Relaxed), slot.pid.load(Relaxed)) {
            (_, 0) => return None,
            (0, pid) if same => pid,
            (0, _) => return None,
            (pid, _) => pid,
        };
        let bytes = |kind: MemoryKind| slot.bytes[kind as usize].load(Relaxed);
        let taken =
            |kind: &MemoryKind| !matches!(kind, MemoryKind::Overcommitted | MemoryKind::Headroom);
        let taken = MemoryKind::ALL.into_iter().filter(taken);
        let kept = bytes(MemoryKind::Headroom);
        Some(SessionProcess { pid, bytes: taken.map(bytes).fold(0, u64::saturating_add), kept })
    };
    slots.into_iter().filter_map(member).collect()
}

/// Whether this process is in the host's pid namespace.
fn in_host_namespace() -> bool {
    std::fs::metadata("/proc/self/ns/pid").is_ok_and(|of| of.ino() == HOST_PID_NAMESPACE)
}
