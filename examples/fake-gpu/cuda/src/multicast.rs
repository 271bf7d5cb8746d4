//! Multicast objects: address ranges that reach memory of several devices. Bound memory stays on its device after its
//! own handles are released.

use core::ffi::c_uint;

use driver::cuda::{
    ALLOCATION_PINNED, AllocationHandle, AllocationProp, CuResult, Device, DevicePtr,
    HANDLE_TYPE_POSIX_FD, LOCATION_DEVICE, MemLocation, MulticastProp,
};

use crate::ffi::{Api, In, Out, api, ensure};
use crate::memory::{GRANULE, Kind};
use crate::state::{Driver, Inner, with};
use crate::vmm;

/// Recommended granularity, in bytes.
const RECOMMENDED: u64 = 512 << 20;
/// Interval of the polls for a complete team.
const LOOK: core::time::Duration = core::time::Duration::from_millis(1);

/// Memory bound at an offset.
struct Bound {
    device: u32,
    offset: u64,
    size: u64,
    /// The physical allocation, which the binding keeps alive; `None`: memory of a pool, which it does not.
    physical: Option<u64>,
}

/// A multicast object; its handle is one of virtual memory management.
pub(crate) struct Multicast {
    size: u64,
    wanted: usize,
    devices: Vec<u32>,
    bound: Vec<Bound>,
}

impl Multicast {
    /// Whether all devices of the team have been added.
    fn complete(&self) -> bool {
        self.devices.len() == self.wanted
    }
}

fn check(driver: &Driver, prop: &MulticastProp) -> Api {
    let devices = prop.num_devices as usize;
    ensure((1..=driver.visible.len()).contains(&devices), CuResult::INVALID_VALUE)?;
    ensure(prop.flags == 0, CuResult::INVALID_VALUE)?;
    let types = u64::from(HANDLE_TYPE_POSIX_FD);
    ensure(prop.handle_types & !types == 0, CuResult::NOT_SUPPORTED)
}

pub(crate) extern "C" fn create(to: Out<AllocationHandle>, prop: In<MulticastProp>) -> CuResult {
    api(|| {
        with(|driver, inner| {
            to.required()?;
            let prop = prop.get()?;
            check(driver, &prop)?;
            let size = prop.size as u64;
            ensure(size > 0 && size.is_multiple_of(GRANULE), CuResult::INVALID_VALUE)?;
            let told = AllocationProp {
                kind: ALLOCATION_PINNED,
                handle_types: prop.handle_types as c_uint,
                location: MemLocation { kind: LOCATION_DEVICE, id: 0 },
                win32_handle_meta_data: core::ptr::null_mut(),
                alloc_flags: [0; 8],
            };
            let key = vmm::addresses_only(inner, size, told)?;
            let wanted = prop.num_devices as usize;
            let made = Multicast { size, wanted, devices: Vec::new(), bound: Vec::new() };
            inner.vmm.multicast.insert(key, made);
            to.set(key);
            Ok(())
        })
    })
}

fn known(inner: &mut Inner, key: AllocationHandle) -> Api<&mut Multicast> {
    inner.vmm.multicast.get_mut(&key).ok_or(CuResult::INVALID_VALUE)
}

pub(crate) extern "C" fn add_device(key: AllocationHandle, device: Device) -> CuResult {
    api(|| {
        with(|driver, inner| {
            let device = driver.device(device)?;
            let found = known(inner, key)?;
            let new = !found.devices.contains(&device) && !found.complete();
            ensure(new, CuResult::INVALID_VALUE)?;
            found.devices.push(device);
            Ok(())
        })
    })
}

/// Waits until all devices have been added, as the driver does for binding and mapping. Other handles have no team.
pub(crate) fn wait_for_team(key: AllocationHandle) -> Api {
    loop {
        let complete =
            |inner: &Inner| inner.vmm.multicast.get(&key).is_none_or(Multicast::complete);
        if with(|_, inner| Ok(complete(inner)))? {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
}

fn bind(inner: &mut Inner, key: AllocationHandle, at: Bound, flags: u64) -> Api {
    let found = known(inner, key)?;
    let whole = at.size > 0 && at.size.is_multiple_of(GRANULE) && at.offset.is_multiple_of(GRANULE);
    ensure(whole && flags == 0, CuResult::INVALID_VALUE)?;
    let end = at.offset.checked_add(at.size).ok_or(CuResult::INVALID_VALUE)?;
    ensure(end <= found.size, CuResult::INVALID_VALUE)?;
    ensure(found.devices.contains(&at.device), CuResult::INVALID_VALUE)?;
    let free = !found.bound.iter().any(|other| {
        other.device == at.device && other.offset < end && at.offset < other.offset + other.size
    });
    ensure(free, CuResult::INVALID_VALUE)?;
    let physical = at.physical;
    found.bound.push(at);
    if let Some(physical) = physical {
        vmm::bind(inner, physical);
    }
    Ok(())
}

pub(crate) extern "C" fn bind_memory(
    key: AllocationHandle,
    offset: usize,
    memory: AllocationHandle,
    memory_offset: usize,
    size: usize,
    flags: u64,
) -> CuResult {
    api(|| {
        wait_for_team(key)?;
        with(|_, inner| {
            let (device, length) = vmm::on_device(inner, memory)?;
            let end = memory_offset.checked_add(size).ok_or(CuResult::INVALID_VALUE)? as u64;
            let inside = end <= length && (memory_offset as u64).is_multiple_of(GRANULE);
            ensure(inside, CuResult::INVALID_VALUE)?;
            let physical = Some(memory);
            let at = Bound { device, offset: offset as u64, size: size as u64, physical };
            bind(inner, key, at, flags)
        })
    })
}

/// `cuMulticastBindMem_v2`; the device must be that of the memory.
pub(crate) extern "C" fn bind_memory_for(
    key: AllocationHandle,
    device: Device,
    offset: usize,
    memory: AllocationHandle,
    memory_offset: usize,
    size: usize,
    flags: u64,
) -> CuResult {
    let is_of = api(|| {
        with(|_, inner| {
            ensure(vmm::on_device(inner, memory)?.0 == device as u32, CuResult::INVALID_DEVICE)
        })
    });
    if is_of.is_ok() { bind_memory(key, offset, memory, memory_offset, size, flags) } else { is_of }
}

/// `cuMulticastBindAddr_v2`; the device must be that of the memory.
pub(crate) extern "C" fn bind_address_for(
    key: AllocationHandle,
    _device: Device,
    offset: usize,
    address: DevicePtr,
    size: usize,
    flags: u64,
) -> CuResult {
    bind_address(key, offset, address, size, flags)
}

pub(crate) extern "C" fn bind_address(
    key: AllocationHandle,
    offset: usize,
    address: DevicePtr,
    size: usize,
    flags: u64,
) -> CuResult {
    api(|| {
        wait_for_team(key)?;
        with(|_, inner| {
            let (base, found) =
                crate::memory::find(inner, address).ok_or(CuResult::INVALID_VALUE)?;
            let end = address.checked_add(size as u64).ok_or(CuResult::INVALID_VALUE)?;
            let inside = end <= base + found.size && address.is_multiple_of(GRANULE);
            ensure(inside, CuResult::INVALID_VALUE)?;
            let (device, physical) = match found.kind {
                Kind::Mapped { .. } => {
                    let (device, physical) = vmm::mapped_at(inner, base)?;
                    (device, Some(physical))
                }
                Kind::Pool(_) => (found.device, None),
                _ => return Err(CuResult::INVALID_VALUE),
            };
            let at = Bound { device, offset: offset as u64, size: size as u64, physical };
            bind(inner, key, at, flags)
        })
    })
}

pub(crate) extern "C" fn unbind(
    key: AllocationHandle,
    device: Device,
    offset: usize,
    size: usize,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            let device = driver.device(device)?;
            let found = known(inner, key)?;
            let place = found
                .bound
                .iter()
                .position(|b| (b.device, b.offset, b.size) == (device, offset as u64, size as u64));
            let bound = found.bound.remove(place.ok_or(CuResult::INVALID_VALUE)?);
            if let Some(physical) = bound.physical {
                vmm::unbind(driver, inner, physical);
            }
            Ok(())
        })
    })
}

/// Frees a multicast object that is neither held nor mapped, and releases the bound memory.
pub(crate) fn remove(driver: &Driver, inner: &mut Inner, key: AllocationHandle) {
    let Some(found) = inner.vmm.multicast.remove(&key) else { return };
    for physical in found.bound.iter().filter_map(|bound| bound.physical) {
        vmm::unbind(driver, inner, physical);
    }
}

pub(crate) extern "C" fn granularity(
    to: Out<usize>,
    prop: In<MulticastProp>,
    option: c_uint,
) -> CuResult {
    api(|| {
        let driver = crate::state::driver()?;
        to.required()?;
        check(driver, &prop.get()?)?;
        match option {
            0 => to.set(GRANULE as usize),
            1 => to.set(RECOMMENDED as usize),
            _ => return Err(CuResult::INVALID_VALUE),
        }
        Ok(())
    })
}
