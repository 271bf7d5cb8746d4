//! [`NvmlSource`]: devices as NVML shows them. NVML is loaded in the observing thread, never in an async thread.

use core::ffi::c_ulong;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use limits::GpuId;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, TemperatureSensor, TopologyLevel,
};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};

use crate::reading::{
    AllReadings, Clocks, DeviceReading, Ecc, GpuProcess, Hardware, Link, Memory, Reading,
    ThrottleReason, Unread, Utilization,
};
use crate::source::{Blind, Seen, Source, sleep};
use crate::xid::Xid;

/// With the version: the name without it needs a development package.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// Time between two readings of all devices.
const EVERY: Duration = Duration::from_secs(1);
/// Longest wait for an error event, in ms, before the thread checks whether it should end.
const WAIT_MS: u32 = 100;
/// NVML's number for an error that it cannot classify.
const UNKNOWN_XID: u64 = 999;

/// `NVML_AFFINITY_SCOPE_NODE`: NUMA nodes, not sockets.
const NEAR: u32 = 0;
/// Longest bit set of NUMA nodes, in words.
const NODE_WORDS: usize = 4;

/// A source that reads NVML.
#[derive(Clone, Debug)]
pub struct NvmlSource {
    library: PathBuf,
}

impl Default for NvmlSource {
    /// The driver's own library, found by the loader.
    fn default() -> Self {
        Self::at(Path::new(LIBRARY))
    }
}

impl NvmlSource {
    /// Loads NVML from this name or path.
    #[must_use]
    pub fn at(library: &Path) -> Self {
        Self { library: library.to_owned() }
    }
}

impl Source for NvmlSource {
    fn watch(&mut self, over: &AtomicBool, take: &mut dyn FnMut(Seen)) -> Result<(), Blind> {
        let nvml = Nvml::builder().lib_path(self.library.as_os_str()).init();
        let nvml = nvml.map_err(|error| blind(&error))?;
        let mut devices = list(&nvml)?;
        let mut events = subscribe(&nvml, &devices);
        while !over.load(Ordering::Acquire) {
            let begun = Instant::now();
            // A device appeared, or was lost when the devices were listed.
            if nvml.device_count().is_ok_and(|count| count as usize > devices.len()) {
                let again = list(&nvml)?;
                if again.len() > devices.len() {
                    devices = again;
                    events = subscribe(&nvml, &devices);
                }
            }
            let seen: Vec<_> = devices.iter().map(Listed::read).collect();
            take(Seen::Devices(AllReadings { taken: Instant::now(), devices: seen }));
            while begun.elapsed() < EVERY && !over.load(Ordering::Acquire) {
                let rest = EVERY.saturating_sub(begun.elapsed());
                match events.as_ref().map(|events| events.wait(WAIT_MS)) {
                    Some(Ok(event)) => {
                        let device = event.device.uuid().ok().and_then(|uuid| uuid.parse().ok());
                        if let Some((uuid, xid)) = device.zip(event.event_data) {
                            take(Seen::Xid(uuid, number(&xid)));
                        }
                    }
                    Some(Err(NvmlError::Timeout)) => {}
                    // Waiting would fail again at once.
                    Some(Err(_)) | None => sleep(rest, over),
                }
            }
        }
        Ok(())
    }
}

const fn number(xid: &XidError) -> Xid {
    match xid {
        XidError::Value(number) => Xid(*number),
        XidError::Unknown => Xid(UNKNOWN_XID),
    }
}

/// Removes the binding's prefix: the rest names the file (loader) or the reason (NVML).
fn blind(error: &NvmlError) -> Blind {
    Blind(error.to_string().trim_start_matches("a libloading error occurred: ").to_owned())
}

struct Listed<'nvml> {
    index: u32,
    uuid: GpuId,
    device: Device<'nvml>,
    links: Vec<(GpuId, Link)>,
}

/// The devices whose UUID can be read.
fn list(nvml: &Nvml) -> Result<Vec<Listed<'_>>, Blind> {
    let count = nvml.device_count().map_err(|error| blind(&error))?;
    let one = |index| {
        let device = nvml.device_by_index(index).ok()?;
        let uuid = device.uuid().ok()?.parse().ok()?;
        Some(Listed { index, uuid, device, links: Vec::new() })
    };
    let mut devices: Vec<Listed<'_>> = (0..count).filter_map(one).collect();
    let links = links(nvml, &devices);
    for (device, links) in devices.iter_mut().zip(links) {
        device.links = links;
    }
    Ok(devices)
}

/// Most NVLinks of any device.
const MOST_NVLINKS: u32 = 18;

/// PCI addresses of the other ends of a device's active NVLinks.
fn nvlinks(device: &Device<'_>) -> Vec<String> {
    let end = |link| {
        let link = device.link_wrapper_for(link);
        link.is_active().ok().filter(|active| *active)?;
        link.remote_pci_info().ok().map(|end| end.bus_id)
    };
    (0..MOST_NVLINKS).filter_map(end).collect()
}

/// For each device, its links to the others.
fn links(nvml: &Nvml, devices: &[Listed<'_>]) -> Vec<Vec<(GpuId, Link)>> {
    if devices.len() < 2 {
        return vec![Vec::new(); devices.len()];
    }
    let pci = |one: &Listed<'_>| one.device.pci_info().map(|pci| pci.bus_id).unwrap_or_default();
    let addresses: Vec<String> = devices.iter().map(pci).collect();
    let ends: Vec<Vec<String>> = devices.iter().map(|one| nvlinks(&one.device)).collect();
    let of = |from: usize| {
        let to = (0..devices.len()).filter(move |to| *to != from);
        to.filter_map(|to| {
            let link = match nvlinks_between(&addresses, &ends, (from, to)) {
                0 => {
                    let to = nvml.device_by_index(devices[to].index).ok()?;
                    pcie(&devices[from].device, to)?
                }
                links => Link::NvLinks(links),
            };
            Some((devices[to].uuid, link))
        })
        .collect()
    };
    (0..devices.len()).map(of).collect()
}

/// Direct NVLinks between two devices, plus the NVLinks to switches that both have.
fn nvlinks_between(addresses: &[String], ends: &[Vec<String>], (a, b): (usize, usize)) -> u32 {
    let direct = ends[a].iter().filter(|end| **end == addresses[b]).count();
    let to_switches = |of: usize| ends[of].iter().filter(|end| !addresses.contains(end)).count();
    u32::try_from(direct + to_switches(a).min(to_switches(b))).unwrap_or(u32::MAX)
}

fn pcie(from: &Device<'_>, to: Device<'_>) -> Option<Link> {
    Some(match from.topology_common_ancestor(to).ok()? {
        TopologyLevel::Internal => Link::Board,
        TopologyLevel::Single => Link::Switch,
        TopologyLevel::Multiple => Link::Switches,
        TopologyLevel::HostBridge => Link::HostBridge,
        TopologyLevel::Node => Link::Node,
        TopologyLevel::System => Link::System,
    })
}

/// Subscribes to the errors of all devices that report any. `None`: no device does.
fn subscribe<'nvml>(nvml: &'nvml Nvml, devices: &[Listed<'nvml>]) -> Option<EventSet<'nvml>> {
    let wanted = EventTypes::CRITICAL_XID_ERROR;
    let supports = |device: &&Listed<'_>| {
        device.device.supported_event_types().is_ok_and(|types| types.contains(wanted))
    };
    let mut able: Vec<_> = devices.iter().filter(supports).collect();
    // A refused registration consumes the whole set: retry without that device.
    while !able.is_empty() {
        let mut set = nvml.create_event_set().ok();
        let refused = able.iter().position(|device| {
            set = set.take().and_then(|set| device.device.register_events(wanted, set).ok());
            set.is_none()
        });
        match refused {
            None => return set,
            Some(index) => _ = able.remove(index),
        }
    }
    None
}

impl Listed<'_> {
    fn read(&self) -> DeviceReading {
        let Self { index, uuid, ref device, .. } = *self;
        let ecc = |kind| reading(device.total_ecc_errors(kind, EccCounter::Volatile));
        DeviceReading {
            index,
            uuid,
            name: reading(device.name()),
            hardware: self.hardware(),
            memory: reading(device.memory_info()).map(|memory| Memory {
                total: memory.total,
                reserved: memory.reserved,
                used: memory.used,
                free: memory.free,
            }),
            utilization: reading(device.utilization_rates())
                .map(|rates| Utilization { sm: rates.gpu, memory: rates.memory }),
            power_mw: reading(device.power_usage()),
            power_limit_mw: reading(device.enforced_power_limit()),
            temperature_c: reading(device.temperature(TemperatureSensor::Gpu)),
            clocks: Clocks {
                sm_mhz: reading(device.clock_info(Clock::SM)),
                memory_mhz: reading(device.clock_info(Clock::Memory)),
            },
            throttling: reading(device.current_throttle_reasons()).map(throttling),
            ecc: Ecc {
                corrected: ecc(MemoryError::Corrected),
                uncorrected: ecc(MemoryError::Uncorrected),
            },
            processes: self.processes(),
        }
    }

    fn hardware(&self) -> Hardware {
        let Self { ref device, .. } = *self;
        let near = reading(device.memory_affinity(NODE_WORDS, NEAR));
        let capability = reading(device.cuda_compute_capability());
        Hardware {
            pci: reading(device.pci_info()).map(|pci| pci.bus_id),
            numa: near.and_then(|nodes| first(&nodes).ok_or(Unread::NotSupported)),
            capability: capability.map(|one| (one.major.unsigned_abs(), one.minor.unsigned_abs())),
            mig: reading(device.mig_mode()).map(|mode| mode.current != 0),
            links: self.links.clone(),
        }
    }

    /// Includes clients of MPS, which NVML lists separately and not for all devices.
    fn processes(&self) -> Reading<Vec<GpuProcess>> {
        let mut found = reading(self.device.running_compute_processes())?;
        found.extend(self.device.mps_running_compute_processes().unwrap_or_default());
        let mut found: Vec<GpuProcess> = found.iter().map(process).collect();
        found.sort_unstable();
        found.dedup_by_key(|process| process.pid);
        Ok(found)
    }
}

/// Index of the lowest set bit.
fn first(set: &[c_ulong]) -> Option<u32> {
    let at = |(word, bits): (u32, &c_ulong)| {
        (*bits != 0).then(|| word * c_ulong::BITS + bits.trailing_zeros())
    };
    (0..).zip(set).find_map(at)
}

fn process(info: &ProcessInfo) -> GpuProcess {
    let bytes = match info.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    };
    GpuProcess { pid: info.pid, bytes }
}

fn reading<T>(result: Result<T, NvmlError>) -> Reading<T> {
    result.map_err(|error| match error {
        NvmlError::NotSupported
        | NvmlError::FunctionNotFound
        | NvmlError::FailedToLoadSymbol(_) => Unread::NotSupported,
        NvmlError::NoPermission => Unread::NotPermitted,
        NvmlError::GpuLost => Unread::Lost,
        NvmlError::ResetRequired => Unread::NeedsReset,
        other => Unread::Failed(other.to_string()),
    })
}

fn throttling(reasons: ThrottleReasons) -> BTreeSet<ThrottleReason> {
    let names = [
        (ThrottleReasons::GPU_IDLE, ThrottleReason::Idle),
        (ThrottleReasons::APPLICATIONS_CLOCKS_SETTING, ThrottleReason::Setting),
        (ThrottleReasons::SW_POWER_CAP, ThrottleReason::PowerCap),
        (ThrottleReasons::HW_SLOWDOWN, ThrottleReason::HardwareSlowdown),
        (ThrottleReasons::SYNC_BOOST, ThrottleReason::SyncBoost),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, ThrottleReason::SoftwareThermal),
        (ThrottleReasons::HW_THERMAL_SLOWDOWN, ThrottleReason::HardwareThermal),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, ThrottleReason::PowerBrake),
        (ThrottleReasons::DISPLAY_CLOCK_SETTING, ThrottleReason::DisplayClock),
    ];
    let set = names.into_iter().filter(|(bit, _)| reasons.contains(*bit));
    set.map(|(_, reason)| reason).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvlinks_count_directly_and_through_switches() {
        let addresses = ["a", "b", "c"].map(str::to_owned);
        let between = |a: &[&str], b: &[&str]| {
            let ends = |ends: &[&str]| ends.iter().map(|end| (*end).to_owned()).collect();
            nvlinks_between(&addresses, &[ends(a), ends(b), Vec::new()], (0, 1))
        };
        assert_eq!(between(&["b", "b", "c"], &["a", "a"]), 2);
        assert_eq!(between(&["s", "s", "t"], &["s", "t"]), 2);
        assert_eq!(between(&["b", "s"], &["a", "s"]), 2);
        assert_eq!(between(&["c"], &["c"]), 0);
        assert_eq!(between(&[], &["s"]), 0);
    }
}
