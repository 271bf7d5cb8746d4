//! Managed memory. As with the real driver, it is on the host until something brings it to the device, and is evicted
//! when the device gets full. Only resident memory counts on the device. Advice applies to a whole allocation.

use core::ffi::{c_int, c_uint};

use driver::cuda::{self, CuResult, DevicePtr, LOCATION_DEVICE, MemLocation};

use crate::context::device_of;
use crate::ffi::{Api, Out, api, ensure};
use crate::memory::{self, Allocation, Kind};
use crate::state::{Driver, Inner, with, with_context};
use crate::{capture, stream};

/// `CU_DEVICE_CPU`
const CPU: c_int = -1;
/// `CU_MEM_ADVISE_SET_PREFERRED_LOCATION`
const PREFER: c_uint = 3;
/// `CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION`
const PREFER_NOTHING: c_uint = 4;
/// `CU_MEM_ADVISE_SET_ACCESSED_BY`
const ACCESS: c_uint = 5;
/// `CU_MEM_ADVISE_UNSET_ACCESSED_BY`
const NO_ACCESS: c_uint = 6;
/// The last advice.
const LAST_ADVICE: c_uint = 6;

pub(crate) extern "C" fn alloc(address: Out<DevicePtr>, size: usize, flags: c_uint) -> CuResult {
    api(|| {
        with_context(|_, inner, context| {
            address.required()?;
            ensure(size > 0, CuResult::INVALID_VALUE)?;
            ensure(matches!(flags, 1 | 2), CuResult::INVALID_VALUE)?;
            capture::unsafe_call(inner)?;
            let (_, device) = device_of(inner, context)?;
            let size = size as u64;
            let base = memory::map(size, false)?;
            let allocation = Allocation {
                size,
                taken: memory::rounded(size),
                device,
                context,
                kind: Kind::Managed { resident: false },
                ours: true,
            };
            inner.memory.insert(base, allocation);
            address.set(base);
            Ok(())
        })
    })
}

/// Moves the managed allocation at `base` to `device`, where a kernel or a fill writes it, unless it prefers the host.
pub(crate) fn bring(driver: &Driver, inner: &mut Inner, base: u64, device: u32) {
    if !inner.at_home.contains(&base) {
        move_to(driver, inner, base, device);
    }
}

/// Moves the managed allocation at `base` to a device if there is room.
fn move_to(driver: &Driver, inner: &mut Inner, base: u64, device: u32) {
    let Some(found) = inner.memory.get(&base).copied() else { return };
    let Kind::Managed { resident } = found.kind else { return };
    if resident && found.device == device {
        return;
    }
    if resident {
        send_home(driver, inner, base);
    }
    if driver.node.take(driver.process, device, found.taken).is_ok()
        && let Some(found) = inner.memory.get_mut(&base)
    {
        found.device = device;
        found.kind = Kind::Managed { resident: true };
    }
}

/// Moves a managed allocation from its device to the host.
fn send_home(driver: &Driver, inner: &mut Inner, base: u64) {
    if let Some(found) = inner.memory.get_mut(&base)
        && found.kind == (Kind::Managed { resident: true })
    {
        found.kind = Kind::Managed { resident: false };
        driver.node.give_back(driver.process, found.device, found.taken);
    }
}

/// Moves all managed memory from a device to the host.
pub(crate) fn evict(driver: &Driver, inner: &mut Inner, device: u32) {
    let resident: Vec<u64> = inner
        .memory
        .iter()
        .filter(|(_, found)| {
            found.device == device && found.kind == (Kind::Managed { resident: true })
        })
        .map(|(&base, _)| base)
        .collect();
    for base in resident {
        send_home(driver, inner, base);
    }
}

fn place(address: u64, size: usize, device: Option<c_int>) -> Api {
    with(|driver, inner| {
        let (base, found) = memory::find(inner, address).ok_or(CuResult::INVALID_VALUE)?;
        ensure(matches!(found.kind, Kind::Managed { .. }), CuResult::INVALID_VALUE)?;
        let end = address.checked_add(size as u64).ok_or(CuResult::INVALID_VALUE)?;
        ensure(size > 0 && end <= base + found.size, CuResult::INVALID_VALUE)?;
        match device {
            Some(ordinal) => {
                let device = driver.device(ordinal)?;
                move_to(driver, inner, base, device);
            }
            None => send_home(driver, inner, base),
        }
        Ok(())
    })
}

fn ordinal(location: MemLocation) -> Option<c_int> {
    (location.kind == LOCATION_DEVICE).then_some(location.id)
}

fn prefetch_to<const P: bool>(
    address: u64,
    size: usize,
    device: Option<c_int>,
    stream: cuda::Stream,
) -> Api {
    with(|driver, inner| {
        let target = stream::target::<P>(driver, inner, stream)?;
        capture::forbid_on(inner, target)
    })?;
    place(address, size, device)
}

pub(crate) extern "C" fn prefetch_v1<const P: bool>(
    address: DevicePtr,
    size: usize,
    device: c_int,
    stream: cuda::Stream,
) -> CuResult {
    let device = (device != CPU).then_some(device);
    api(|| prefetch_to::<P>(address, size, device, stream))
}

pub(crate) extern "C" fn prefetch<const P: bool>(
    address: DevicePtr,
    size: usize,
    location: MemLocation,
    flags: c_uint,
    stream: cuda::Stream,
) -> CuResult {
    api(|| {
        ensure(flags == 0, CuResult::INVALID_VALUE)?;
        prefetch_to::<P>(address, size, ordinal(location), stream)
    })
}

fn advise_any(address: u64, size: usize, advice: c_uint, device: Option<c_int>) -> Api {
    ensure((1..=LAST_ADVICE).contains(&advice), CuResult::INVALID_VALUE)?;
    with(|driver, inner| {
        let (base, found) = memory::find(inner, address).ok_or(CuResult::INVALID_VALUE)?;
        ensure(matches!(found.kind, Kind::Managed { .. }), CuResult::INVALID_VALUE)?;
        let end = address.checked_add(size as u64).ok_or(CuResult::INVALID_VALUE)?;
        ensure(size > 0 && end <= base + found.size, CuResult::INVALID_VALUE)?;
        if let (PREFER | ACCESS | NO_ACCESS, Some(ordinal)) = (advice, device) {
            driver.device(ordinal)?;
        }
        // Advice itself moves nothing.
        match advice {
            PREFER if device.is_none() => {
                inner.at_home.insert(base);
            }
            PREFER | PREFER_NOTHING => {
                inner.at_home.remove(&base);
            }
            _ => {}
        }
        Ok(())
    })
}

pub(crate) extern "C" fn advise_v1(
    address: DevicePtr,
    size: usize,
    advice: c_uint,
    device: c_int,
) -> CuResult {
    api(|| advise_any(address, size, advice, (device != CPU).then_some(device)))
}

pub(crate) extern "C" fn advise(
    address: DevicePtr,
    size: usize,
    advice: c_uint,
    location: MemLocation,
) -> CuResult {
    api(|| advise_any(address, size, advice, ordinal(location)))
}
