//! Memory pools, charged by what they have reserved from the device (`CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`).
//!
//! A pool keeps what is freed into it. So a stream-ordered allocation may take nothing from the device, and a free may
//! give nothing back. [`pool_allocation`](super::pool_allocation) reserves the most by which a pool may grow before the
//! driver is called; afterwards the pool's charge is set to the driver's figure.

use super::device::DeviceMemory;
use super::holes::Holes;
use super::marks::Mark;
use super::physical::Physical;
use super::reservation::Reservation;
use super::tracker::{Allocation, Handle};
use crate::driver_calls::undisturbing;
use crate::{clock, driver_calls};
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use driver::cuda::{CuResult, MemoryPool, POOL_RESERVED_CURRENT, POOL_USED_CURRENT};
use session::layout::MemoryKind;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

/// How long an exclusive call waits for running calls, and how long other calls wait for an exclusive one, in steps.
const PATIENCE: u32 = 200;
const LONG_PATIENCE: u32 = 10_000;
const STEP_NS: u64 = 50_000;

struct Pool {
    /// `None` if the pool's memory is not on a device with a ledger.
    device: Option<&'static DeviceMemory>,
    charged: u64,
    /// Number of the query that gave `charged`; the answer to an older query must not replace it.
    asked: u64,
    /// Bytes of each live allocation, by address.
    live: BTreeMap<u64, u64>,
    /// Freed ranges that still belong to the pool.
    holes: Holes,
    /// The pool's mark, if it was exported.
    mark: Option<Mark>,
    /// How often the pool may have given memory back.
    trims: u64,
    /// Whether the program forbids reuse of freed memory before the freeing stream has reached the free.
    waits: bool,
    /// Running calls that allocate from the pool or shrink it, and the number of such calls so far.
    running: u32,
    calls: u64,
    /// Whether a running call is exclusive.
    alone: bool,
}

impl Pool {
    fn fresh(device: Option<&'static DeviceMemory>) -> Self {
        let (live, holes) = (BTreeMap::new(), Holes::default());
        Self {
            device,
            charged: 0,
            asked: 0,
            live,
            holes,
            mark: None,
            trims: 0,
            waits: false,
            running: 0,
            calls: 0,
            alone: false,
        }
    }
}

/// The pools that the program uses.
#[derive(Default)]
pub(crate) struct Pools {
    pools: Mutex<HashMap<usize, Pool>>,
    /// Held for reading while a thread queries pools that it does not itself use. A pool is destroyed only when no
    /// thread holds the lock.
    asking: RwLock<()>,
    /// Number of queries to the driver so far.
    questions: AtomicU64,
}

fn attribute(pool: MemoryPool, attribute: u32) -> Option<u64> {
    let mut value = 0_u64;
    undisturbing(|| driver_calls::pool_get_attribute(pool, attribute, (&raw mut value).cast()))
        .is_ok()
        .then_some(value)
}

/// Bytes that a pool has reserved and does not use.
pub(super) fn idle(pool: MemoryPool) -> u64 {
    let figures = attribute(pool, POOL_RESERVED_CURRENT).zip(attribute(pool, POOL_USED_CURRENT));
    figures.map_or(0, |(reserved, used)| reserved.saturating_sub(used))
}

impl Pools {
    fn pools(&self) -> MutexGuard<'_, HashMap<usize, Pool>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a pool whose memory is on `device`, if that device has a ledger.
    pub(crate) fn known(&self, pool: MemoryPool, device: Option<&'static DeviceMemory>) {
        self.pools().entry(pool as usize).or_insert_with(|| Pool::fresh(device));
    }

    /// Registers a new pool. An earlier pool with the same handle may have ended without a call.
    pub(crate) fn made(&self, pool: MemoryPool, device: Option<&'static DeviceMemory>) {
        let old = self.pools().insert(pool as usize, Pool::fresh(device));
        if let Some(Pool { device: Some(device), charged, .. }) = old {
            device.ledger.release(MemoryKind::Pool, charged);
        }
    }

    /// The device of a pool: `None` if the pool is unknown, `Some(None)` if it needs no charge.
    pub(crate) fn device_of(&self, pool: MemoryPool) -> Option<Option<&'static DeviceMemory>> {
        self.pools().get(&(pool as usize)).map(|pool| pool.device)
    }

    /// Marks a pool that the program has exported; `descriptor`: `None` for other handle types.
    pub(crate) fn exported(
        &self,
        pool: MemoryPool,
        physical: &Physical,
        descriptor: Option<RawFd>,
    ) {
        if let Some(of) = self.pools().get_mut(&(pool as usize)).filter(|of| of.device.is_some()) {
            of.mark = Some(physical.pool_exported(descriptor, of.mark));
        }
    }

    /// Runs `cuMemPoolDestroy`. Allocations from the pool live on until freed, each with its own charge; exported
    /// memory lives on while other processes may refer to it.
    pub(super) fn destroy(
        &self,
        pool: MemoryPool,
        physical: &Physical,
        call: impl FnOnce() -> CuResult,
    ) -> CuResult {
        if let Some(Some(_)) = self.device_of(pool) {
            self.settle(pool, None);
        }
        let taken = self.pools().remove(&(pool as usize));
        let sum =
            |live: &BTreeMap<u64, u64>| live.values().fold(0, |sum: u64, n| sum.saturating_add(*n));
        // If the pool has less, an unknown part of it has ended with a context: nothing is released.
        let is_known = |pool: &Pool| pool.mark.is_none() && sum(&pool.live) <= pool.charged;
        // Other threads may free memory of the pool at any moment, and must find its record.
        if let Some(of @ Pool { device: Some(device), live, .. }) = &taken
            && is_known(of)
        {
            for (&address, &bytes) in live {
                // The allocation outlives contexts, as its pool does.
                let allocation = Allocation { kind: MemoryKind::Pool, bytes, context: 0 };
                device.remember(Handle::Address(address), allocation);
            }
        }
        // From here on no thread queries the pool.
        drop(self.asking.write().unwrap_or_else(PoisonError::into_inner));
        let result = call();
        let Some(mut taken) = taken else { return result };
        if !result.is_ok() {
            if let Some(device) = taken.device.filter(|_| is_known(&taken)) {
                // Missing allocations were released by their own frees.
                let Pool { charged, live, .. } = &mut taken;
                live.retain(|&address, &mut bytes| {
                    let lives = device.tracker.take(Handle::Address(address)).is_some();
                    *charged = charged.saturating_sub(if lives { 0 } else { bytes });
                    lives
                });
            }
            // Calls that ran meanwhile did not find the pool, so they could not reset these.
            (taken.running, taken.alone) = (0, false);
            self.pools().insert(pool as usize, taken);
        } else if let Some(device) = taken.device {
            match taken.mark {
                Some(mark) => {
                    physical.outlives_pool(device, taken.charged, mark);
                    device.ledger.release(MemoryKind::Pool, taken.charged);
                }
                None => {
                    let rest = taken.charged.checked_sub(sum(&taken.live));
                    device.ledger.release(MemoryKind::Pool, rest.unwrap_or(0));
                }
            }
        }
        result
    }

    /// Runs a call that frees `address`, whether or not it belongs to a pool.
    pub(crate) fn free(&self, address: u64, call: impl FnOnce() -> CuResult) -> CuResult {
        // Remove the record before the call: afterwards another thread may get the same address.
        let taken = self
            .pools()
            .iter_mut()
            .find_map(|(&pool, of)| of.live.remove(&address).map(|bytes| (pool, bytes, of.trims)));
        let result = call();
        if let Some((pool, bytes, trims)) = taken
            && let Some(pool) = self.pools().get_mut(&pool)
        {
            if !result.is_ok() {
                pool.live.insert(address, bytes);
            } else if !pool.waits && pool.trims == trims {
                pool.holes.add(address, bytes);
                // Meanwhile another thread may have allocated a range that overlaps this one.
                let before = pool.live.range(..address).next_back();
                let within = pool.live.range(address..address.saturating_add(bytes));
                for (&start, &taken) in before.into_iter().chain(within) {
                    pool.holes.cut(start, taken);
                }
            }
        }
        result
    }

    /// Notes that the program forbids reuse of freed memory before the freeing stream has reached the free.
    pub(crate) fn waits(&self, pool: MemoryPool) {
        if let Some(pool) = self.pools().get_mut(&(pool as usize)) {
            pool.waits = true;
            pool.holes.forget();
        }
    }

    /// Sets a pool's charge to the driver's figure, and releases the reservation of the allocation just made.
    pub(super) fn settle(&self, pool: MemoryPool, in_flight: Option<Reservation>) {
        let asked = self.questions.fetch_add(1, Ordering::Relaxed) + 1;
        let reserved = attribute(pool, POOL_RESERVED_CURRENT);
        let mut pools = self.pools();
        let Some(Pool { device: Some(device), charged, asked: last, live, holes, trims, .. }) =
            pools.get_mut(&(pool as usize))
        else {
            return;
        };
        let ledger = device.ledger;
        let slot = ledger.membership().slot();
        let Some(mut opened) = ledger.open() else { return };
        let mut released = in_flight.map_or(Ok(()), |bytes| bytes.give_back_in(&mut opened));
        // The answer to a later query already includes this one.
        if let Some(reserved) = reserved.filter(|_| asked > *last) {
            released = released.and(opened.release(slot, MemoryKind::Pool, *charged));
            opened.charge(slot, MemoryKind::Pool, reserved);
            if reserved < *charged {
                *trims += 1;
                holes.trim(live);
            }
            (*charged, *last) = (reserved, asked);
        }
        drop(opened);
        drop(pools);
        ledger.say_if_damaged(released);
    }

    /// Updates the charges of a device's pools; `trim`: after they have given back unused memory.
    pub(super) fn refresh(&self, device: &DeviceMemory, trim: bool) {
        // Most programs have no pool.
        if self.pools().is_empty() {
            return;
        }
        let _asking = self.asking.read().unwrap_or_else(PoisonError::into_inner);
        let of_device: Vec<usize> = self
            .pools()
            .iter()
            .filter(|(_, pool)| pool.device.is_some_and(|of| ptr::eq(of, device)))
            .map(|(&pool, _)| pool)
            .collect();
        for pool in of_device {
            let pool = pool as MemoryPool;
            if trim {
                let _running = self.beside(pool);
                let _ = undisturbing(|| driver_calls::pool_trim_to(pool, 0));
                self.given_back(pool);
            }
            self.settle(pool, None);
        }
    }

    /// Updates the holes after a pool has given back unused memory.
    fn given_back(&self, pool: MemoryPool) {
        if let Some(Pool { live, holes, trims, .. }) = self.pools().get_mut(&(pool as usize)) {
            *trims += 1;
            holes.trim(live);
        }
    }

    /// Runs a call that may make a pool give memory back to the device.
    pub(crate) fn shrink(&self, pool: MemoryPool, call: impl FnOnce() -> CuResult) -> CuResult {
        let running = self.beside(pool);
        let result = call();
        self.given_back(pool);
        drop(running);
        self.settle(pool, None);
        result
    }

    /// The pool's charge in bytes.
    pub(super) fn charged(&self, pool: MemoryPool) -> u64 {
        self.pools().get(&(pool as usize)).map_or(0, |pool| pool.charged)
    }

    /// Ends an allocation that was meant for `hole`, if any. `allocated` is its address and bytes unless it failed; the
    /// pool has grown by `grown` bytes.
    pub(super) fn placed(
        &self,
        running: &PoolCall<'_>,
        hole: Option<(u64, u64)>,
        allocated: Option<(u64, u64)>,
        grown: u64,
    ) {
        let mut pools = self.pools();
        let Some(pool) = pools.get_mut(&running.pool) else { return };
        if let Some((start, bytes)) = hole {
            pool.holes.add(start, bytes);
        }
        if let Some((address, bytes)) = allocated {
            if grown > bytes && !pool.waits && running.was_alone(pool) {
                // The rest of the growth follows the allocation.
                pool.holes.add(address.saturating_add(bytes), grown - bytes);
            }
            pool.holes.cut(address, bytes);
            pool.live.insert(address, bytes);
        }
    }

    /// Removes and returns a hole of the pool that fits an allocation of `bytes`.
    pub(super) fn take_hole(&self, pool: MemoryPool, bytes: u64) -> Option<(u64, u64)> {
        // The pool may have given memory back meanwhile.
        self.settle(pool, None);
        let idle = idle(pool);
        let mut pools = self.pools();
        let pool = pools.get_mut(&(pool as usize))?;
        if pool.holes.bytes() > idle {
            pool.holes.forget();
        }
        pool.holes.take(bytes)
    }

    /// Begins a call that may run concurrently with others; waits a moment for an exclusive one.
    pub(super) fn beside(&self, pool: MemoryPool) -> PoolCall<'_> {
        let pool = pool as usize;
        let is_taken = || self.pools().get(&pool).is_some_and(|of| of.alone);
        for _ in 0..LONG_PATIENCE {
            if let Some(running) = self.enter(pool, |of| !of.alone) {
                return running;
            }
            if !is_taken() {
                break;
            }
            clock::sleep(STEP_NS);
        }
        self.enter(pool, |_| true).unwrap_or(PoolCall {
            pools: self,
            pool,
            alone: false,
            number: 0,
            first: false,
        })
    }

    fn enter(&self, pool: usize, may: impl Fn(&Pool) -> bool) -> Option<PoolCall<'_>> {
        let mut pools = self.pools();
        let of = pools.get_mut(&pool).filter(|of| may(of))?;
        let first = of.running == 0;
        of.running += 1;
        of.calls += 1;
        Some(PoolCall { pools: self, pool, alone: false, number: of.calls, first })
    }

    /// Begins an exclusive call after the running calls; `None` if those take too long.
    pub(super) fn alone(&self, device: &DeviceMemory, pool: MemoryPool) -> Option<PoolCall<'_>> {
        let _waits = device.shared.changes.wait(device.ledger, 0);
        let pool = pool as usize;
        let mut own = None;
        for _ in 0..PATIENCE {
            match self.pools().get_mut(&pool) {
                Some(of) if own.is_some() && of.running == 0 => return own,
                Some(of) if own.is_none() && !of.alone => {
                    of.alone = true;
                    of.calls += 1;
                    let number = of.calls;
                    own = Some(PoolCall { pools: self, pool, alone: true, number, first: true });
                    if of.running == 0 {
                        return own;
                    }
                }
                Some(_) => {}
                None => return None,
            }
            clock::sleep(STEP_NS);
        }
        None
    }
}

/// A running call that changes a pool's memory. A call that needs a certain hole has to be exclusive: otherwise the
/// driver might give the hole to another call, or back to the device.
pub(super) struct PoolCall<'a> {
    pools: &'a Pools,
    pool: usize,
    alone: bool,
    number: u64,
    /// Whether no other call was running at the start.
    first: bool,
}

impl PoolCall<'_> {
    /// Whether no other call has run since the start.
    fn was_alone(&self, of: &Pool) -> bool {
        self.alone || (self.first && of.calls == self.number)
    }
}

impl Drop for PoolCall<'_> {
    fn drop(&mut self) {
        if let Some(of) = self.pools.pools().get_mut(&self.pool) {
            if self.alone {
                of.alone = false;
            } else {
                of.running = of.running.saturating_sub(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_pool_has_no_device_and_a_foreign_one_needs_no_charge() {
        let (pools, pool) = (Pools::default(), 0x1234 as MemoryPool);
        assert!(pools.device_of(pool).is_none());
        pools.known(pool, None);
        assert!(matches!(pools.device_of(pool), Some(None)));
        let physical = Physical::default();
        let destroy = |result| pools.destroy(pool, &physical, || result);
        assert!(destroy(CuResult::INVALID_VALUE) == CuResult::INVALID_VALUE);
        assert!(pools.device_of(pool).is_some());
        assert!(destroy(CuResult::SUCCESS).is_ok());
        assert!(pools.device_of(pool).is_none());
    }
}
