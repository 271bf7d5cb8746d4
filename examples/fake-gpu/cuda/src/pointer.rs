//! Queries about addresses (`cuPointerGetAttributes`, `cuMemGetAddressRange`).

use core::ffi::{c_int, c_uint, c_void};

use driver::cuda::{CuResult, DevicePtr};

use crate::ffi::{Api, In, Out, api, ensure};
use crate::memory::{self, Allocation, Kind};
use crate::state::{Inner, driver, with, with_context};

/// `CU_MEMORYTYPE_HOST`
const HOST: c_uint = 1;
/// `CU_MEMORYTYPE_DEVICE`
const DEVICE: c_uint = 2;

pub(crate) extern "C" fn range(
    base: Out<DevicePtr>,
    size: Out<usize>,
    address: DevicePtr,
) -> CuResult {
    api(|| {
        with_context(|_, inner, _| {
            let (start, found) = memory::find(inner, address).ok_or(CuResult::NOT_FOUND)?;
            base.set(start);
            size.set(found.size as usize);
            Ok(())
        })
    })
}

/// The form of CUDA 2, with 32-bit addresses.
pub(crate) extern "C" fn range_v1(
    base: Out<c_uint>,
    size: Out<c_uint>,
    address: c_uint,
) -> CuResult {
    api(|| {
        with_context(|_, inner, _| {
            let found = memory::find(inner, u64::from(address));
            let (start, found) = found.ok_or(CuResult::NOT_FOUND)?;
            base.set(start as c_uint);
            size.set(found.size as c_uint);
            Ok(())
        })
    })
}

fn on_host(found: &Allocation) -> bool {
    matches!(found.kind, Kind::Host | Kind::Registered)
}

fn put(
    driver: &crate::state::Driver,
    inner: &Inner,
    value: Out<c_void>,
    attribute: c_uint,
    address: u64,
) -> Api {
    let (base, found) = memory::find(inner, address).ok_or(CuResult::INVALID_VALUE)?;
    let managed = matches!(found.kind, Kind::Managed { .. });
    match attribute {
        1 => value.cast().set(found.context),
        2 => value.cast().set(if on_host(found) { HOST } else { DEVICE }),
        3 => value.cast().set(address),
        4 => {
            ensure(on_host(found) || managed, CuResult::INVALID_VALUE)?;
            value.cast().set(address);
        }
        7 => value.cast().set(base),
        8 => value.cast().set(u8::from(managed)),
        9 => {
            let ordinal = driver.visible.iter().position(|&device| device == found.device);
            value.cast().set(ordinal.map_or(-2, |ordinal| ordinal as c_int));
        }
        10 => value.cast().set(u8::from(found.kind == Kind::Linear)),
        11 => value.cast().set(base),
        12 => value.cast().set(found.size),
        13 => value.cast().set(1_u8),
        14 => value.cast().set(0_u64),
        15 => value.cast().set(0_u8),
        16 => value.cast().set(3_u32),
        17 => value.cast().set(match found.kind {
            Kind::Pool(pool) => pool,
            _ => 0,
        }),
        18 => value.cast().set(found.size),
        19 => value.cast().set(base),
        _ => return Err(CuResult::INVALID_VALUE),
    }
    Ok(())
}

pub(crate) extern "C" fn attribute(
    value: Out<c_void>,
    attribute: c_uint,
    address: DevicePtr,
) -> CuResult {
    api(|| {
        with_context(|driver, inner, _| {
            value.required()?;
            put(driver, inner, value, attribute, address)
        })
    })
}

/// `cuPointerGetAttributes`: zeros for an address that the driver does not know, as with the real driver.
pub(crate) extern "C" fn attributes(
    count: c_uint,
    attributes: In<c_uint>,
    values: In<Out<c_void>>,
    address: DevicePtr,
) -> CuResult {
    api(|| {
        driver()?;
        ensure(count > 0, CuResult::INVALID_VALUE)?;
        with(|driver, inner| {
            for index in 0..count as usize {
                let value = values.at(index)?.required()?;
                let attribute = attributes.at(index)?;
                if memory::find(inner, address).is_some() {
                    let _ = put(driver, inner, value, attribute, address);
                } else {
                    match attribute {
                        8 | 10 | 13 | 15 => value.cast().set(0_u8),
                        2 | 16 => value.cast().set(0_u32),
                        9 => value.cast().set(-2_i32),
                        _ => value.cast().set(0_u64),
                    }
                }
            }
            Ok(())
        })
    })
}

/// Only `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS` can be set, without effect.
pub(crate) extern "C" fn set_attribute(
    value: In<c_uint>,
    attribute: c_uint,
    address: DevicePtr,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            value.get()?;
            ensure(attribute == 6, CuResult::INVALID_VALUE)?;
            memory::find(inner, address).map(|_| ()).ok_or(CuResult::INVALID_VALUE)
        })
    })
}
