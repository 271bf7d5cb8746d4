//! Linear memory, physical memory and imported memory: reserve the bytes, call the driver, keep or release them.
//! The hooks call this through [`Memory`](super::Memory).
//!
//! Bytes are reserved first, so that no other process can take them during the call. No lock is held while the
//! driver works.

use super::device::{DeviceMemory, Devices};
use super::holdings::Holdings;
use super::overcommit::HostPlaced;
use super::refusal::{declined, refused};
use super::reserve::Reserve;
use super::tracker::Handle;
use driver::cuda::{CuResult, DevicePtr, MemoryPool};
use session::layout::MemoryKind;

/// Runs an allocating driver call for `bytes` of a device's memory. `handle` is evaluated after success and returns
/// the handle that will free the memory.
pub(super) fn allocate(
    reserve: &Reserve,
    device: &'static DeviceMemory,
    kind: MemoryKind,
    bytes: u64,
    call: impl FnOnce() -> CuResult,
    handle: impl FnOnce() -> Handle,
) -> CuResult {
    match reserve.reserve(device, kind, bytes) {
        Some(reservation) => reservation.spend(call, handle),
        None => refused(device.ledger, bytes),
    }
}

/// Like [`allocate`], for linear memory that may be placed on the host: runs `on_host` if the real part is used up
/// or the device is full. `address` is evaluated after either call has succeeded.
pub(super) fn allocate_anywhere(
    reserve: &Reserve,
    placed: &HostPlaced,
    device: &'static DeviceMemory,
    bytes: u64,
    call: impl FnOnce() -> CuResult,
    on_host: impl FnOnce() -> CuResult,
    address: impl Fn() -> DevicePtr,
) -> CuResult {
    let ledger = device.ledger;
    let on_device = reserve
        .reserve(device, MemoryKind::Data, bytes)
        .map(|reservation| reservation.spend(call, || Handle::Address(address())));
    match on_device {
        Some(result) if result != CuResult::OUT_OF_MEMORY || !ledger.is_overcommitted() => result,
        None if !ledger.is_overcommitted() => refused(ledger, bytes),
        Some(_) | None => place_on_host(placed, device, bytes, on_host, address),
    }
}

/// Runs a call that allocates managed memory on the host because it does not fit on the device.
pub(super) fn place_on_host(
    placed: &HostPlaced,
    device: &'static DeviceMemory,
    bytes: u64,
    call: impl FnOnce() -> CuResult,
    address: impl Fn() -> DevicePtr,
) -> CuResult {
    let Some(reservation) = placed.reserve(device, bytes) else {
        return declined(device.ledger, bytes);
    };
    let result = reservation.spend(call, || Handle::Address(address()));
    if result.is_ok() {
        tracing::debug!("device {}: placed {bytes} bytes on the host", device.ledger.uuid());
    }
    result
}

/// Runs `cuMemCreate` for `bytes` of a device; `handle` is evaluated after success.
pub(super) fn create_physical(
    reserve: &Reserve,
    device: &'static DeviceMemory,
    bytes: u64,
    call: impl FnOnce() -> CuResult,
    handle: impl FnOnce() -> u64,
) -> CuResult {
    let Some(reservation) = reserve.reserve(device, MemoryKind::Data, bytes) else {
        return refused(device.ledger, bytes);
    };
    let result = call();
    if result.is_ok() {
        reserve.holdings.physical.created(device, reservation.keep(), handle());
    }
    result
}

/// Runs `cuImportExternalMemory` for `bytes` of a device; `handle` is evaluated after success.
pub(super) fn import_external(
    reserve: &Reserve,
    device: &'static DeviceMemory,
    bytes: u64,
    call: impl FnOnce() -> CuResult,
    handle: impl FnOnce() -> Handle,
) -> CuResult {
    let Some(reservation) = reserve.reserve(device, MemoryKind::Data, bytes) else {
        return refused(device.ledger, bytes);
    };
    let result = call();
    if result.is_ok() {
        reserve.holdings.physical.external_imported(device, reservation.keep(), handle());
    }
    result
}

/// Runs a freeing driver call and releases the bytes.
///
/// The record is removed before the call: as soon as the driver has freed the memory, another thread may get the
/// same address.
pub(super) fn free(
    devices: &Devices,
    holdings: &Holdings,
    handle: Handle,
    call: impl FnOnce() -> CuResult,
) -> CuResult {
    let Some((device, allocation)) = devices.take(handle) else {
        return free_other(holdings, handle, call);
    };
    let result = call();
    if result.is_ok() {
        device.ledger.release(allocation.kind, allocation.bytes);
    } else {
        device.remember(handle, allocation);
    }
    result
}

/// Frees memory that has no record in a tracker: pool, external, shared, sparse or unknown memory.
fn free_other(holdings: &Holdings, handle: Handle, call: impl FnOnce() -> CuResult) -> CuResult {
    let Holdings { pools, physical, .. } = holdings;
    physical.free_external(handle, || match handle {
        Handle::Address(address) => pools.free(address, call),
        Handle::Array(array) | Handle::MipmappedArray(array) => physical.destroy_array(array, call),
        Handle::Pool(pool) => pools.destroy(pool as MemoryPool, physical, call),
        Handle::External(_) => call(),
    })
}
