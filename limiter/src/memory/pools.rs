//! Memory pools, charged by what they have reserved from the device
//! (`CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`).
//!
//! A pool keeps what is freed into it, so that a stream-ordered allocation may take nothing from the
//! device and a free may give nothing back. The most by which a pool may grow is reserved before the
//! driver is called ([`pool_allocation`](super::pool_allocation)); afterwards the pool's charge is set to what it
//! really has.

use super::device::DeviceMemory;
use super::holes::Holes;
use super::reservation::Reservation;
use super::tracker::{Allocation, Handle};
use crate::driver_calls::undisturbing;
use crate::{clock, driver_calls};
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use driver::cuda::{CuResult, MemoryPool, POOL_RESERVED_CURRENT, POOL_USED_CURRENT};
use session::layout::MemoryKind;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

/// What pools take from the device at a time, on current drivers; where a pool takes more, it is noticed
/// afterwards.
pub(super) const CHUNK: u64 = 32 << 20;
/// How long a call that wants to be alone waits for others, and how long others wait for it, in steps.
const PATIENCE: u32 = 200;
const LONG_PATIENCE: u32 = 10_000;
const STEP_NS: u64 = 50_000;

struct Pool {
    /// `None`: its memory is not of a device that is accounted.
    device: Option<&'static DeviceMemory>,
    charged: u64,
    /// When the figure that `charged` comes from was asked for; an older one must not replace it.
    asked: u64,
    /// What has been allocated and not been freed: address and bytes.
    live: BTreeMap<u64, u64>,
    /// What has been freed, and is the pool's still.
    holes: Holes,
    /// How often it may have given something back.
    trims: u64,
    /// Whether what was freed in another stream may not be used yet, by the program's own wish.
    waits: bool,
    /// Calls that allocate from it or have it give something back, while they run; how many there were.
    running: u32,
    calls: u64,
    /// Whether one is to be the only one.
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
    /// Held for reading while pools are asked about that this thread's program does not use just now; a
    /// pool is destroyed when nobody does that.
    asking: RwLock<()>,
    /// Counts questions. The first one has number one.
    questions: AtomicU64,
}

fn attribute(pool: MemoryPool, attribute: u32) -> Option<u64> {
    let mut value = 0_u64;
    undisturbing(|| driver_calls::pool_get_attribute(pool, attribute, (&raw mut value).cast()))
        .is_ok()
        .then_some(value)
}

/// What a pool has and does not use.
pub(super) fn idle(pool: MemoryPool) -> u64 {
    let figures = attribute(pool, POOL_RESERVED_CURRENT).zip(attribute(pool, POOL_USED_CURRENT));
    figures.map_or(0, |(reserved, used)| reserved.saturating_sub(used))
}

impl Pools {
    fn pools(&self) -> MutexGuard<'_, HashMap<usize, Pool>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pool is known now, with memory on `device` or elsewhere.
    pub(crate) fn known(&self, pool: MemoryPool, device: Option<&'static DeviceMemory>) {
        self.pools().entry(pool as usize).or_insert_with(|| Pool::fresh(device));
    }

    /// The program has made or imported a pool. Another one may have had its handle, and have ended without
    /// a call that said so.
    pub(crate) fn made(&self, pool: MemoryPool, device: Option<&'static DeviceMemory>) {
        let old = self.pools().insert(pool as usize, Pool::fresh(device));
        if let Some(Pool { device: Some(device), charged, .. }) = old {
            device.ledger.release(MemoryKind::Pool, charged);
        }
    }

    /// The device of a pool: `None` if the pool is not known, `Some(None)` if it needs no charge.
    pub(crate) fn device_of(&self, pool: MemoryPool) -> Option<Option<&'static DeviceMemory>> {
        self.pools().get(&(pool as usize)).map(|pool| pool.device)
    }

    /// Runs `cuMemPoolDestroy`. What was allocated from the pool lives on until it is freed, and stays
    /// charged by itself.
    pub(crate) fn destroy(&self, pool: MemoryPool, call: impl FnOnce() -> CuResult) -> CuResult {
        let taken = self.pools().remove(&(pool as usize));
        // Other threads may free what is of the pool at any moment, and have to find it.
        if let Some(Pool { device: Some(device), live, .. }) = &taken {
            let context = device.current_context();
            for (&address, &bytes) in live {
                let allocation = Allocation { kind: MemoryKind::Pool, bytes, context };
                device.remember(Handle::Address(address), allocation);
            }
        }
        // Nobody asks about it any more from here on.
        drop(self.asking.write().unwrap_or_else(PoisonError::into_inner));
        let result = call();
        let Some(mut taken) = taken else { return result };
        if !result.is_ok() {
            if let Some(device) = taken.device {
                // What is not there any more has been given back by itself.
                let Pool { charged, live, .. } = &mut taken;
                live.retain(|&address, &mut bytes| {
                    let lives = device.tracker.take(Handle::Address(address)).is_some();
                    *charged = charged.saturating_sub(if lives { 0 } else { bytes });
                    lives
                });
            }
            // Calls that ran meanwhile have not found it, and cannot have left.
            (taken.running, taken.alone) = (0, false);
            self.pools().insert(pool as usize, taken);
        } else if let Some(device) = taken.device {
            let living = taken.live.values().fold(0, |sum: u64, &bytes| sum.saturating_add(bytes));
            if living > taken.charged {
                let slot = device.ledger.membership().slot();
                if let Some(mut opened) = device.ledger.open() {
                    opened.charge(slot, MemoryKind::Pool, living - taken.charged);
                }
            } else {
                device.ledger.release(MemoryKind::Pool, taken.charged - living);
            }
        }
        result
    }

    /// Runs a call that frees `address`, which may be of a pool.
    pub(crate) fn free(&self, address: u64, call: impl FnOnce() -> CuResult) -> CuResult {
        // Forgotten first: once it is free, another thread may get the same address.
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
                // Another thread may have got it meanwhile, or a part; or what begins before and ends in it.
                let before = pool.live.range(..address).next_back();
                let within = pool.live.range(address..address.saturating_add(bytes));
                for (&start, &taken) in before.into_iter().chain(within) {
                    pool.holes.cut(start, taken);
                }
            }
        }
        result
    }

    /// The program does not want memory to be used again before the stream that freed it has got there.
    pub(crate) fn waits(&self, pool: MemoryPool) {
        if let Some(pool) = self.pools().get_mut(&(pool as usize)) {
            pool.waits = true;
            pool.holes.forget();
        }
    }

    /// Asks how much a pool has reserved, and sets its charge to that; gives the reservation of an
    /// allocation just made back.
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
        // A figure asked for later contains what this one does.
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

    /// Brings the charges of a device's pools up to date; `trim`: after they have given back what they do
    /// not use.
    pub(super) fn refresh(&self, device: &DeviceMemory, trim: bool) {
        // In most programs there is none.
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

    /// A pool has given back what it does not use.
    fn given_back(&self, pool: MemoryPool) {
        if let Some(Pool { live, holes, trims, .. }) = self.pools().get_mut(&(pool as usize)) {
            *trims += 1;
            holes.trim(live);
        }
    }

    /// Runs a call that may have a pool give memory back to the device.
    pub(crate) fn shrink(&self, pool: MemoryPool, call: impl FnOnce() -> CuResult) -> CuResult {
        let running = self.beside(pool);
        let result = call();
        self.given_back(pool);
        drop(running);
        self.settle(pool, None);
        result
    }

    /// What a pool is charged for.
    pub(super) fn charged(&self, pool: MemoryPool) -> u64 {
        self.pools().get(&(pool as usize)).map_or(0, |pool| pool.charged)
    }

    /// An allocation is over that was to be placed in a `hole`, if in any: it has so many bytes at an address, unless it
    /// failed, and the pool has grown by so much.
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
                // The rest of what it took lies behind.
                pool.holes.add(address.saturating_add(bytes), grown - bytes);
            }
            pool.holes.cut(address, bytes);
            pool.live.insert(address, bytes);
        }
    }

    /// Takes a hole out of a pool's that an allocation of so many bytes fits into.
    pub(super) fn take_hole(&self, pool: MemoryPool, bytes: u64) -> Option<(u64, u64)> {
        // It may have given something back since.
        self.settle(pool, None);
        let idle = idle(pool);
        let mut pools = self.pools();
        let pool = pools.get_mut(&(pool as usize))?;
        if pool.holes.bytes() > idle {
            pool.holes.forget();
        }
        pool.holes.take(bytes)
    }

    /// Begins a call beside others; waits a moment for one that is alone.
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

    /// Begins a call without others, once those that run are done; `None`: they are not after a moment.
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

/// A call that changes what a pool has, while it runs. One that needs a certain hole has to be alone:
/// the driver might give the hole to another, or back to the device.
pub(super) struct PoolCall<'a> {
    pools: &'a Pools,
    pool: usize,
    alone: bool,
    number: u64,
    /// Whether no other ran when it began.
    first: bool,
}

impl PoolCall<'_> {
    /// Whether no other call has run since it began.
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
        assert!(pools.destroy(pool, || CuResult::INVALID_VALUE) == CuResult::INVALID_VALUE);
        assert!(pools.device_of(pool).is_some());
        assert!(pools.destroy(pool, || CuResult::SUCCESS).is_ok());
        assert!(pools.device_of(pool).is_none());
    }
}
