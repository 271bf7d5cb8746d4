//! Device handles, names and memory. As in NVML, `CUDA_VISIBLE_DEVICES` has no effect.

use core::ffi::{c_char, c_int, c_uint, c_ulong};

use driver::nvml::{MEMORY_V2_VERSION, Memory, MemoryV2, NvmlDevice, NvmlReturn};
use fake_node::identity;

use crate::faults::check_present;
use crate::ffi::{Api, Out, Text, api, put_text};
use crate::system::node;

/// Handles are numbers starting here, and never dereferenced.
const FIRST_HANDLE: usize = 0x6_0000_0000;
/// Distance between two handles.
const STEP: usize = 16;
/// `NVML_BRAND_NVIDIA`
const BRAND: c_uint = 14;

/// A device's handle.
pub(crate) fn handle(device: u32) -> NvmlDevice {
    (FIRST_HANDLE + device as usize * STEP) as NvmlDevice
}

/// The index of a handle's device; an error for a lost device.
pub(crate) fn known(device: NvmlDevice) -> Api<u32> {
    let node = node()?;
    let offset = (device as usize).wrapping_sub(FIRST_HANDLE);
    if offset.is_multiple_of(STEP) && offset / STEP < node.config().devices as usize {
        let index = (offset / STEP) as u32;
        check_present(index)?;
        Ok(index)
    } else {
        Err(NvmlReturn::INVALID_ARGUMENT)
    }
}

pub(crate) extern "C" fn count(count: Out<c_uint>) -> NvmlReturn {
    api(|| count.put(node()?.config().devices))
}

pub(crate) extern "C" fn by_index(index: c_uint, device: Out<NvmlDevice>) -> NvmlReturn {
    api(|| {
        if index >= node()?.config().devices {
            return Err(NvmlReturn::INVALID_ARGUMENT);
        }
        device.put(handle(index))
    })
}

fn find(device: Out<NvmlDevice>, matches: impl Fn(u32) -> bool) -> Api {
    if device.is_null() {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    let found = (0..node()?.config().devices).find(|&index| matches(index));
    device.put(handle(found.ok_or(NvmlReturn::NOT_FOUND)?))
}

pub(crate) extern "C" fn by_uuid(uuid: Text, device: Out<NvmlDevice>) -> NvmlReturn {
    api(|| {
        node()?;
        let uuid = uuid.string()?;
        find(device, |index| identity::uuid_text(index).eq_ignore_ascii_case(&uuid))
    })
}

pub(crate) extern "C" fn by_pci(id: Text, device: Out<NvmlDevice>) -> NvmlReturn {
    api(|| {
        node()?;
        let id = id.string()?;
        find(device, |index| identity::pci_matches(&id, index))
    })
}

pub(crate) extern "C" fn index(device: NvmlDevice, index: Out<c_uint>) -> NvmlReturn {
    api(|| index.put(known(device)?))
}

pub(crate) extern "C" fn uuid(device: NvmlDevice, to: Out<c_char>, length: c_uint) -> NvmlReturn {
    api(|| put_text(to, length, &identity::uuid_text(known(device)?)))
}

pub(crate) extern "C" fn name(device: NvmlDevice, to: Out<c_char>, length: c_uint) -> NvmlReturn {
    api(|| {
        known(device)?;
        put_text(to, length, identity::NAME)
    })
}

pub(crate) extern "C" fn brand(device: NvmlDevice, brand: Out<c_uint>) -> NvmlReturn {
    api(|| {
        known(device)?;
        brand.put(BRAND)
    })
}

/// `nvmlPciInfo_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PciInfo {
    legacy: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    /// PCI device and vendor id.
    id: c_uint,
    subsystem: c_uint,
    text: [u8; 32],
}

fn fixed<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    for (to, from) in bytes.iter_mut().take(N - 1).zip(text.bytes()) {
        *to = from;
    }
    bytes
}

pub(crate) extern "C" fn pci(device: NvmlDevice, to: Out<PciInfo>) -> NvmlReturn {
    api(|| {
        let index = known(device)?;
        let short = identity::pci_text(index);
        to.put(PciInfo {
            legacy: fixed(&short),
            domain: 0,
            bus: identity::pci_bus(index),
            device: 0,
            id: 0x2335_10de,
            subsystem: 0x18be_10de,
            text: fixed(&format!("0000{short}")),
        })
    })
}

pub(crate) extern "C" fn compute_capability(
    device: NvmlDevice,
    major: Out<c_int>,
    minor: Out<c_int>,
) -> NvmlReturn {
    api(|| {
        known(device)?;
        major.put(identity::CAPABILITY.0)?;
        minor.put(identity::CAPABILITY.1)
    })
}

/// `nvmlDeviceGetMemoryAffinity`: sets of NUMA nodes, and of sockets, which are the same here.
pub(crate) extern "C" fn memory_affinity(
    device: NvmlDevice,
    length: c_uint,
    set: Out<c_ulong>,
    _scope: c_uint,
) -> NvmlReturn {
    api(|| {
        let node = identity::numa_node(known(device)?);
        if set.is_null() || length == 0 {
            return Err(NvmlReturn::INVALID_ARGUMENT);
        }
        for word in 0..length {
            let bit = node.checked_sub(word * c_ulong::BITS).filter(|bit| *bit < c_ulong::BITS);
            set.put_at(word as usize, bit.map_or(0, |bit| 1 << bit))?;
        }
        Ok(())
    })
}

/// Whether memory is reported to this process. A GPU that shares the machine's memory does not report it.
fn check_tells_memory() -> Api {
    let refuses = std::env::var_os("SLUICE_FAKE_NVML_MEMORY").is_some_and(|value| value == "0");
    if refuses { Err(NvmlReturn::NOT_SUPPORTED) } else { Ok(()) }
}

pub(crate) extern "C" fn memory(device: NvmlDevice, to: Out<Memory>) -> NvmlReturn {
    api(|| {
        let index = known(device)?;
        check_tells_memory()?;
        let state = node()?.lock_reaped();
        let (total, free) = (state.config.memory, state.free_memory(index));
        to.put(Memory { total, free, used: total - free })
    })
}

pub(crate) extern "C" fn memory_v2(device: NvmlDevice, to: Out<MemoryV2>) -> NvmlReturn {
    api(|| {
        let index = known(device)?;
        let version = to.get()?.version;
        if version != MEMORY_V2_VERSION {
            return Err(NvmlReturn::ARGUMENT_VERSION_MISMATCH);
        }
        check_tells_memory()?;
        let state = node()?.lock_reaped();
        let (total, free) = (state.config.memory, state.free_memory(index));
        to.put(MemoryV2 { version, total, reserved: 0, free, used: total - free })
    })
}

/// For modes that are off on the simulated device.
pub(crate) extern "C" fn off(device: NvmlDevice, mode: Out<c_uint>) -> NvmlReturn {
    api(|| {
        known(device)?;
        mode.put(0)
    })
}

fn constant(device: NvmlDevice, to: Out<c_uint>, value: c_uint) -> NvmlReturn {
    api(|| {
        known(device)?;
        to.put(value)
    })
}

/// PCIe generation.
pub(crate) extern "C" fn link_generation(device: NvmlDevice, to: Out<c_uint>) -> NvmlReturn {
    constant(device, to, 5)
}

/// PCIe lanes.
pub(crate) extern "C" fn link_width(device: NvmlDevice, to: Out<c_uint>) -> NvmlReturn {
    constant(device, to, 16)
}

/// For functions that the simulated device does not support.
pub(crate) extern "C" fn not_supported(device: NvmlDevice) -> NvmlReturn {
    api(|| {
        known(device)?;
        Err(NvmlReturn::NOT_SUPPORTED)
    })
}
