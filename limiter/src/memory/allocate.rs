//! Reserve, call, commit; and free.
//!
//! The bytes are reserved first, so that no other process can take them meanwhile. No lock is held while the
//! driver works. If the call fails, its bytes are given back.

use super::device::{DeviceMemory, Devices};
use super::holdings::Holdings;
use super::overcommit::HostPlaced;
use super::refusal::{declined, refused};
use super::reserve::Reserve;
use super::tracker::Handle;
use driver::cuda::{CuResult, DevicePtr, MemoryPool};
use session::layout::MemoryKind;

/// Runs an allocating call of the driver for `bytes` of a device's memory. After success `handle` returns the
/// handle that will free the memory.
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

/// The same for linear memory. If the real part is used up, or the device is full, runs `on_host` instead.
/// After success `address` returns the address that either call has allocated.
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

/// Runs a call that places on the host memory that does not fit on the device.
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

/// Runs `cuMemCreate` for `bytes` of a device; `handle` is read after success.
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

/// Runs `cuImportExternalMemory` for `bytes` of a device; `handle` is read after success.
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

/// Runs a freeing call of the driver and gives the bytes back.
///
/// The record is taken out before the call: from the moment the driver has freed it, another thread
/// may get the same address for a new allocation.
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

/// Frees memory that has no charge of its own: of a pool, of external memory, shared, sparse, or unknown.
fn free_other(holdings: &Holdings, handle: Handle, call: impl FnOnce() -> CuResult) -> CuResult {
    let Holdings { pools, physical, .. } = holdings;
    physical.free_external(handle, || match handle {
        Handle::Address(address) => pools.free(address, call),
        Handle::Array(array) | Handle::MipmappedArray(array) => physical.destroy_array(array, call),
        Handle::Pool(pool) => pools.destroy(pool as MemoryPool, physical, call),
        Handle::External(_) => call(),
    })
}
