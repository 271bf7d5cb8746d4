//! Host memory that the device can access; it takes no device memory.

use core::ffi::{c_uint, c_void};

use driver::cuda::{CuResult, DevicePtr};

use crate::capture;
use crate::context::device_of;
use crate::ffi::{Api, Out, api, ensure};
use crate::memory::{self, Allocation, Kind};
use crate::state::{Inner, with, with_context};

fn note(inner: &mut Inner, context: u64, base: u64, size: u64, kind: Kind) -> Api {
    let (_, device) = device_of(inner, context)?;
    let ours = kind == Kind::Host;
    inner.memory.insert(base, Allocation { size, taken: 0, device, context, kind, ours });
    Ok(())
}

pub(crate) extern "C" fn alloc(address: Out<*mut c_void>, size: usize) -> CuResult {
    alloc_with_flags(address, size, 0)
}

pub(crate) extern "C" fn alloc_with_flags(
    address: Out<*mut c_void>,
    size: usize,
    flags: c_uint,
) -> CuResult {
    api(|| {
        with_context(|_, inner, context| {
            address.required()?;
            ensure(size > 0 && flags & !7 == 0, CuResult::INVALID_VALUE)?;
            capture::unsafe_call(inner)?;
            let base = memory::map(size as u64, false)?;
            note(inner, context, base, size as u64, Kind::Host)?;
            address.set(base as *mut c_void);
            Ok(())
        })
    })
}

/// The form of CUDA 2, with a 32-bit size.
pub(crate) extern "C" fn alloc_v1(address: Out<*mut c_void>, size: c_uint) -> CuResult {
    alloc_with_flags(address, size as usize, 0)
}

pub(crate) extern "C" fn free(address: *mut c_void) -> CuResult {
    api(|| {
        with(|driver, inner| {
            let base = address as u64;
            let kind = inner.memory.get(&base).map(|found| found.kind);
            ensure(kind == Some(Kind::Host), CuResult::INVALID_VALUE)?;
            capture::unsafe_call(inner)?;
            memory::discard(driver, inner, base);
            Ok(())
        })
    })
}

pub(crate) extern "C" fn register(address: *mut c_void, size: usize, flags: c_uint) -> CuResult {
    /// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`
    const ALREADY: CuResult = CuResult(712);
    api(|| {
        with_context(|_, inner, context| {
            let base = address as u64;
            ensure(base != 0 && size > 0 && flags & !15 == 0, CuResult::INVALID_VALUE)?;
            let end = base.checked_add(size as u64).ok_or(CuResult::INVALID_VALUE)?;
            let overlaps = inner
                .memory
                .range(..end)
                .next_back()
                .is_some_and(|(&other, found)| other + found.size > base);
            ensure(!overlaps, ALREADY)?;
            capture::unsafe_call(inner)?;
            note(inner, context, base, size as u64, Kind::Registered)
        })
    })
}

pub(crate) extern "C" fn unregister(address: *mut c_void) -> CuResult {
    /// `CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED`
    const NOT_REGISTERED: CuResult = CuResult(713);
    api(|| {
        with(|driver, inner| {
            let base = address as u64;
            let kind = inner.memory.get(&base).map(|found| found.kind);
            ensure(kind == Some(Kind::Registered), NOT_REGISTERED)?;
            memory::discard(driver, inner, base);
            Ok(())
        })
    })
}

fn device_address(address: *mut c_void, flags: c_uint) -> Api<u64> {
    with_context(|_, inner, _| {
        ensure(flags == 0, CuResult::INVALID_VALUE)?;
        let found = memory::find(inner, address as u64).map(|(_, found)| found.kind);
        let host = matches!(found, Some(Kind::Host | Kind::Registered));
        ensure(host, CuResult::INVALID_VALUE)?;
        Ok(address as u64)
    })
}

pub(crate) extern "C" fn device_pointer(
    to: Out<DevicePtr>,
    address: *mut c_void,
    flags: c_uint,
) -> CuResult {
    api(|| {
        to.required()?.set(device_address(address, flags)?);
        Ok(())
    })
}

pub(crate) extern "C" fn flags(to: Out<c_uint>, address: *mut c_void) -> CuResult {
    api(|| {
        to.required()?;
        device_address(address, 0)?;
        to.set(2);
        Ok(())
    })
}
