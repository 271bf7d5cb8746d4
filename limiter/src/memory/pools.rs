//! Memory pools, charged by what they have reserved from the device
//! (`CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`).
//!
//! A pool keeps what is freed into it, so that a stream-ordered allocation may take nothing from the
//! device and a free may give nothing back. An allocation is reserved in full before the driver is
//! called; afterwards the pool's charge is set to what it really has. Before anything is refused, pools
//! are asked to give back what they do not use.

use super::charge::{current_context, declined, release, remember, reserve_plainly};
use super::graphs;
use super::tracker::{self, Allocation, Handle};
use crate::compute::undisturbing;
use crate::device::Device;
use crate::own;
use crate::per_process::PerProcess;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use utils::driver::cuda::{CuResult, MemoryPool, POOL_RESERVED_CURRENT, POOL_USED_CURRENT};
use utils::page::layout::Kind;

/// What pools take from the device at a time, on current drivers; where a pool takes more, it is noticed
/// afterwards.
const CHUNK: u64 = 32 << 20;

struct Pool {
    /// `None`: its memory is not of a device that is accounted.
    device: Option<&'static Device>,
    charged: u64,
    /// When the figure that `charged` comes from was asked for; an older one must not replace it.
    asked: u64,
    /// What has been allocated and not been freed: address and bytes.
    live: HashMap<u64, u64>,
}

static POOLS: PerProcess<Mutex<HashMap<usize, Pool>>> = PerProcess::new();
/// Held for reading while pools are asked about that this thread's program does not use just now; a
/// pool is destroyed when nobody does that.
static ASKING: PerProcess<RwLock<()>> = PerProcess::new();
/// Counts questions.
static QUESTIONS: AtomicU64 = AtomicU64::new(1);

/// In a forked child: the parent's pools are not the child's.
pub(crate) fn after_fork() {
    POOLS.forget();
    ASKING.forget();
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

/// A pool is known now, with memory on `device` or elsewhere.
pub(crate) fn known(pool: MemoryPool, device: Option<&'static Device>) {
    let fresh = || Pool { device, charged: 0, asked: 0, live: HashMap::new() };
    pools().entry(pool as usize).or_insert_with(fresh);
}

/// The program has made or imported a pool. Another one may have had its handle, and have ended without
/// a call that said so.
pub(crate) fn made(pool: MemoryPool, device: Option<&'static Device>) {
    let fresh = Pool { device, charged: 0, asked: 0, live: HashMap::new() };
    let old = pools().insert(pool as usize, fresh);
    if let Some(Pool { device: Some(device), charged, .. }) = old {
        release(device, Kind::Pool, charged);
    }
}

/// The device of a pool: `None` if the pool is not known, `Some(None)` if it needs no charge.
pub(crate) fn device_of(pool: MemoryPool) -> Option<Option<&'static Device>> {
    pools().get(&(pool as usize)).map(|pool| pool.device)
}

/// Runs `cuMemPoolDestroy`. What was allocated from the pool lives on until it is freed, and stays
/// charged by itself.
pub(crate) fn destroy(pool: MemoryPool, call: impl FnOnce() -> CuResult) -> CuResult {
    let taken = pools().remove(&(pool as usize));
    // Other threads may free what is of the pool at any moment, and have to find it.
    if let Some(Pool { device: Some(device), live, .. }) = &taken {
        let context = current_context(device);
        for (&address, &bytes) in live {
            let allocation = Allocation { kind: Kind::Pool, bytes, context };
            remember(device, Handle::Address(address), allocation);
        }
    }
    // Nobody asks about it any more from here on.
    drop(ASKING.get().write().unwrap_or_else(PoisonError::into_inner));
    let result = call();
    let Some(mut taken) = taken else { return result };
    if !result.is_ok() {
        if taken.device.is_some() {
            // What is not there any more has been given back by itself.
            let Pool { charged, live, .. } = &mut taken;
            live.retain(|&address, &mut bytes| {
                let lives = tracker::take(Handle::Address(address)).is_some();
                *charged = charged.saturating_sub(if lives { 0 } else { bytes });
                lives
            });
        }
        pools().insert(pool as usize, taken);
    } else if let Some(device) = taken.device {
        let living = taken.live.values().fold(0, |sum: u64, &bytes| sum.saturating_add(bytes));
        if living > taken.charged {
            let slot = device.seat().slot();
            if let Some(mut book) = device.book() {
                book.charge(slot, Kind::Pool, living - taken.charged);
            }
        } else {
            release(device, Kind::Pool, taken.charged - living);
        }
    }
    result
}

/// Runs a call that frees `address`, which may be of a pool.
pub(crate) fn free(address: u64, call: impl FnOnce() -> CuResult) -> CuResult {
    // Forgotten first: once it is free, another thread may get the same address.
    let taken = pools()
        .iter_mut()
        .find_map(|(&pool, of)| of.live.remove(&address).map(|bytes| (pool, bytes)));
    let result = call();
    if let (false, Some((pool, bytes))) = (result.is_ok(), taken)
        && let Some(pool) = pools().get_mut(&pool)
    {
        pool.live.insert(address, bytes);
    }
    result
}

/// Asks how much a pool has reserved, and sets its charge to that; gives the reservation of an
/// allocation just made back.
fn settle(pool: MemoryPool, in_flight: u64) {
    let asked = QUESTIONS.fetch_add(1, Ordering::Relaxed);
    let reserved = attribute(pool, POOL_RESERVED_CURRENT);
    let mut pools = pools();
    let Some(Pool { device: Some(device), charged, asked: last, .. }) =
        pools.get_mut(&(pool as usize))
    else {
        return;
    };
    let seat = device.seat();
    let Some(mut book) = device.book() else {
        let device = *device;
        drop(pools);
        release(device, Kind::Pool, in_flight);
        return;
    };
    let mut released = book.release(seat.slot(), Kind::Pool, in_flight);
    // A figure asked for later contains what this one does.
    if let Some(reserved) = reserved.filter(|_| asked > *last) {
        released = released.and(book.release(seat.slot(), Kind::Pool, *charged));
        book.charge(seat.slot(), Kind::Pool, reserved);
        (*charged, *last) = (reserved, asked);
    }
    drop(book);
    drop(pools);
    if let Err(damaged) = released {
        crate::report::once(format_args!("{damaged}"));
    }
}

/// Brings the charges of a device's pools up to date; `trim`: after they have given back what they do
/// not use.
pub(super) fn refresh(device: &Device, trim: bool) {
    // In most programs there is none.
    if !POOLS.is_made() {
        return;
    }
    let _asking = ASKING.get().read().unwrap_or_else(PoisonError::into_inner);
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
        settle(pool, 0);
    }
}

/// Runs a call that may have a pool give memory back to the device.
pub(crate) fn shrink(pool: MemoryPool, call: impl FnOnce() -> CuResult) -> CuResult {
    let result = call();
    settle(pool, 0);
    result
}

/// Runs a call that allocates `bytes` from a known pool on `device`. `address` is read after success,
/// and `undo` frees what the call has allocated.
pub(crate) fn allocate(
    device: &'static Device,
    pool: MemoryPool,
    bytes: u64,
    call: impl Fn() -> CuResult,
    address: impl Fn() -> u64,
    undo: impl Fn(),
) -> CuResult {
    let charged = || pools().get(&(pool as usize)).map_or(0, |pool| pool.charged);
    // Runs the call with some bytes reserved; `None`: the pool has taken more than the limit leaves, and
    // what was allocated is freed again. What the pool had already is the program's, whatever has become
    // of the limit.
    let attempt = |reserved: u64| {
        let before = charged();
        let result = call();
        settle(pool, reserved);
        if !result.is_ok() {
            return Some(result);
        }
        if charged() > before && is_over(device) {
            undo();
            return None;
        }
        if let Some(pool) = pools().get_mut(&(pool as usize)) {
            pool.live.insert(address(), bytes);
        }
        Some(result)
    };
    let growth = bytes.checked_next_multiple_of(CHUNK).unwrap_or(u64::MAX);
    if reserve_plainly(device, Kind::Pool, growth) {
        return attempt(growth).unwrap_or_else(|| declined(device, bytes));
    }
    // What the pool has and does not use costs nothing.
    let idle = attribute(pool, POOL_RESERVED_CURRENT)
        .zip(attribute(pool, POOL_USED_CURRENT))
        .map_or(0, |(reserved, used)| reserved.saturating_sub(used));
    if idle >= bytes
        && let Some(result) = attempt(0)
    {
        return result;
    }
    refresh(device, true);
    graphs::refresh(device, true);
    if reserve_plainly(device, Kind::Pool, growth) {
        return attempt(growth).unwrap_or_else(|| declined(device, bytes));
    }
    declined(device, bytes)
}

fn is_over(device: &Device) -> bool {
    device
        .book()
        .is_some_and(|book| book.used() > book.limit() || book.on_device() > book.real_limit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_pool_has_no_device_and_a_foreign_one_needs_no_charge() {
        let pool = 0x1234 as MemoryPool;
        assert!(device_of(pool).is_none());
        known(pool, None);
        assert!(matches!(device_of(pool), Some(None)));
        assert!(destroy(pool, || CuResult::INVALID_VALUE) == CuResult::INVALID_VALUE);
        assert!(device_of(pool).is_some());
        assert!(destroy(pool, || CuResult::SUCCESS).is_ok());
        assert!(device_of(pool).is_none());
    }
}
