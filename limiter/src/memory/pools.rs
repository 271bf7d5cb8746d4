//! Memory pools, charged by what they have reserved from the device
//! (`CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`).
//!
//! A pool keeps what is freed into it, so that a stream-ordered allocation may take nothing from the
//! device and a free may give nothing back. An allocation is reserved in full before the driver is
//! called; afterwards the pool's charge is set to what it really has. Before anything is refused, pools
//! are asked to give back what they do not use.

use super::charge::{refused, release, reserve_plainly};
use crate::compute::undisturbing;
use crate::device::Device;
use crate::own;
use crate::per_process::PerProcess;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use utils::driver::cuda::{CuResult, MemoryPool, POOL_RESERVED_CURRENT, POOL_USED_CURRENT};
use utils::page::layout::Kind;

struct Pool {
    /// `None`: its memory is not a device's.
    device: Option<&'static Device>,
    charged: u64,
}

static POOLS: PerProcess<Mutex<HashMap<usize, Pool>>> = PerProcess::new();

/// In a forked child: the parent's pools are not the child's.
pub(crate) fn after_fork() {
    POOLS.forget();
}

fn pools() -> MutexGuard<'static, HashMap<usize, Pool>> {
    POOLS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

fn attribute(pool: MemoryPool, attribute: u32) -> Option<u64> {
    let mut value = 0_u64;
    undisturbing(|| own::pool_get_attribute(pool, attribute, (&raw mut value).cast()))
        .is_ok()
        .then_some(value)
}

/// A pool was made, on `device` or elsewhere.
pub(crate) fn created(pool: MemoryPool, device: Option<&'static Device>) {
    pools().insert(pool as usize, Pool { device, charged: 0 });
}

/// A pool is gone, and its memory with it.
pub(crate) fn destroyed(pool: MemoryPool) {
    if let Some(Pool { device: Some(device), charged }) = pools().remove(&(pool as usize)) {
        release(device, Kind::Pool, charged);
    }
}

/// Sets a pool's charge to `reserved`, and gives the reservation of an allocation just made back.
fn settle(pool: MemoryPool, reserved: u64, in_flight: u64) {
    let mut pools = pools();
    let Some(Pool { device: Some(device), charged }) = pools.get_mut(&(pool as usize)) else {
        return;
    };
    let seat = device.seat();
    let mut book = seat.book();
    let released = book.release(seat.slot(), Kind::Pool, in_flight.saturating_add(*charged));
    book.charge(seat.slot(), Kind::Pool, reserved);
    drop(book);
    *charged = reserved;
    drop(pools);
    if let Err(damaged) = released {
        crate::report::once(format_args!("{damaged}"));
    }
}

/// Brings the charges of a device's pools up to date; `trim`: after they have given back what they do
/// not use.
pub(super) fn refresh(device: &Device, trim: bool) {
    let of_device: Vec<usize> = pools()
        .iter()
        .filter(|(_, pool)| pool.device.is_some_and(|of| core::ptr::eq(of, device)))
        .map(|(&pool, _)| pool)
        .collect();
    for pool in of_device {
        let pool = pool as MemoryPool;
        if trim {
            let _ = undisturbing(|| own::pool_trim_to(pool, 0));
        }
        if let Some(reserved) = attribute(pool, POOL_RESERVED_CURRENT) {
            settle(pool, reserved, 0);
        }
    }
}

/// Runs a call that allocates `bytes` from a pool. `undo` frees what it has allocated.
pub(crate) fn allocate(
    device: &'static Device,
    pool: MemoryPool,
    bytes: u64,
    call: impl FnOnce() -> CuResult,
    undo: impl FnOnce(),
) -> CuResult {
    let on_device = pools()
        .entry(pool as usize)
        .or_insert(Pool { device: Some(device), charged: 0 })
        .device
        .is_some();
    if !on_device {
        return call();
    }
    // What the pool has and does not use costs nothing; anything else is reserved in full.
    let reserved = if reserve_plainly(device, Kind::Pool, bytes) {
        bytes
    } else if idle_bytes(pool) >= bytes {
        0
    } else {
        refresh(device, true);
        if !reserve_plainly(device, Kind::Pool, bytes) {
            return refused(device, bytes);
        }
        bytes
    };
    let result = call();
    match attribute(pool, POOL_RESERVED_CURRENT) {
        Some(now) => settle(pool, now, reserved),
        None => release(device, Kind::Pool, reserved),
    }
    let over = {
        let book = device.seat().book();
        book.used() > book.limit()
    };
    if result.is_ok() && reserved == 0 && over {
        // The pool could not make it from what it had.
        undo();
        return refused(device, bytes);
    }
    result
}

/// What a pool has reserved and does not use.
fn idle_bytes(pool: MemoryPool) -> u64 {
    let reserved = attribute(pool, POOL_RESERVED_CURRENT).unwrap_or(0);
    reserved.saturating_sub(attribute(pool, POOL_USED_CURRENT).unwrap_or(reserved))
}
