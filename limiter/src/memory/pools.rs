//! Memory pools, charged by what they have reserved from the device
//! (`CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`).
//!
//! A pool keeps what is freed into it, so that a stream-ordered allocation may take nothing from the
//! device and a free may give nothing back. The most by which a pool may grow is reserved before the
//! driver is called; afterwards the pool's charge is set to what it really has.
//!
//! Where so much is not left, an allocation has to fit into what its pool has. It does where something
//! as large was freed ([`Holes`]). Else pools are asked to give back what they do not use. Where there is
//! no room even then, it may still fit between others: that is tried if the headroom covers what the
//! pool may take instead, and undone where it has.

use super::charge::{
    current_context, declined, is_over, release, remember, reserve_again, reserve_seen, trim,
};
use super::holes::Holes;
use super::tracker::{self, Allocation, Handle};
use super::{headroom, waiting};
use crate::clock;
use crate::device::Device;
use crate::driver_calls;
use crate::driver_calls::undisturbing;
use crate::per_process::PerProcess;
use core::sync::atomic::{AtomicU64, Ordering};
use driver::cuda::{CuResult, MemoryPool, POOL_RESERVED_CURRENT, POOL_USED_CURRENT, Stream};
use session::page::layout::Kind;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

/// What pools take from the device at a time, on current drivers; where a pool takes more, it is noticed
/// afterwards.
pub(super) const CHUNK: u64 = 32 << 20;

struct Pool {
    /// `None`: its memory is not of a device that is accounted.
    device: Option<&'static Device>,
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
    fn fresh(device: Option<&'static Device>) -> Self {
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
    undisturbing(|| driver_calls::pool_get_attribute(pool, attribute, (&raw mut value).cast()))
        .is_ok()
        .then_some(value)
}

/// A pool is known now, with memory on `device` or elsewhere.
pub(crate) fn known(pool: MemoryPool, device: Option<&'static Device>) {
    pools().entry(pool as usize).or_insert_with(|| Pool::fresh(device));
}

/// The program has made or imported a pool. Another one may have had its handle, and have ended without
/// a call that said so.
pub(crate) fn made(pool: MemoryPool, device: Option<&'static Device>) {
    let old = pools().insert(pool as usize, Pool::fresh(device));
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
        // Calls that ran meanwhile have not found it, and cannot have left.
        (taken.running, taken.alone) = (0, false);
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
        .find_map(|(&pool, of)| of.live.remove(&address).map(|bytes| (pool, bytes, of.trims)));
    let result = call();
    if let Some((pool, bytes, trims)) = taken
        && let Some(pool) = pools().get_mut(&pool)
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
pub(crate) fn waits(pool: MemoryPool) {
    if let Some(pool) = pools().get_mut(&(pool as usize)) {
        pool.waits = true;
        pool.holes.forget();
    }
}

/// Asks how much a pool has reserved, and sets its charge to that; gives the reservation of an
/// allocation just made back.
fn settle(pool: MemoryPool, in_flight: u64) {
    let asked = QUESTIONS.fetch_add(1, Ordering::Relaxed);
    let reserved = attribute(pool, POOL_RESERVED_CURRENT);
    let mut pools = pools();
    let Some(Pool { device: Some(device), charged, asked: last, live, holes, trims, .. }) =
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
        if reserved < *charged {
            *trims += 1;
            holes.trim(live);
        }
        (*charged, *last) = (reserved, asked);
    }
    drop(book);
    drop(pools);
    if let Err(damaged) = released {
        crate::report::once(format_args!("{damaged}"));
    }
}

/// A call that changes what a pool has, while it runs. One that needs a certain hole has to be alone:
/// the driver might give the hole to another, or back to the device.
struct Running {
    pool: usize,
    alone: bool,
    number: u64,
    /// Whether no other ran when it began.
    first: bool,
}

impl Running {
    /// How long one that wants to be alone waits for others, and how long others wait for it, in steps.
    const PATIENCE: u32 = 200;
    const LONG_PATIENCE: u32 = 10_000;
    const STEP_NS: u64 = 50_000;

    /// Beside others; waits a moment for one that is alone.
    fn beside(pool: MemoryPool) -> Self {
        let pool = pool as usize;
        let is_taken = || pools().get(&pool).is_some_and(|of| of.alone);
        for _ in 0..Self::LONG_PATIENCE {
            if let Some(running) = Self::enter(pool, |of| !of.alone) {
                return running;
            }
            if !is_taken() {
                break;
            }
            clock::sleep(Self::STEP_NS);
        }
        Self::enter(pool, |_| true).unwrap_or(Self { pool, alone: false, number: 0, first: false })
    }

    fn enter(pool: usize, may: impl Fn(&Pool) -> bool) -> Option<Self> {
        let mut pools = pools();
        let of = pools.get_mut(&pool).filter(|of| may(of))?;
        let first = of.running == 0;
        of.running += 1;
        of.calls += 1;
        Some(Self { pool, alone: false, number: of.calls, first })
    }

    /// Whether no other call has run since it began.
    fn was_alone(&self, of: &Pool) -> bool {
        self.alone || (self.first && of.calls == self.number)
    }

    /// Without others, once those that run are done; `None`: they are not after a moment.
    fn alone(device: &Device, pool: MemoryPool) -> Option<Self> {
        let _waits = waiting::begin(device, 0);
        let pool = pool as usize;
        let mut own = None;
        for _ in 0..Self::PATIENCE {
            match pools().get_mut(&pool) {
                Some(of) if own.is_some() && of.running == 0 => return own,
                Some(of) if own.is_none() && !of.alone => {
                    of.alone = true;
                    of.calls += 1;
                    own = Some(Self { pool, alone: true, number: of.calls, first: true });
                    if of.running == 0 {
                        return own;
                    }
                }
                Some(_) => {}
                None => return None,
            }
            clock::sleep(Self::STEP_NS);
        }
        None
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(of) = pools().get_mut(&self.pool) {
            if self.alone {
                of.alone = false;
            } else {
                of.running = of.running.saturating_sub(1);
            }
        }
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
            let _running = Running::beside(pool);
            let _ = undisturbing(|| driver_calls::pool_trim_to(pool, 0));
            given_back(pool);
        }
        settle(pool, 0);
    }
}

/// A pool has given back what it does not use.
fn given_back(pool: MemoryPool) {
    if let Some(Pool { live, holes, trims, .. }) = pools().get_mut(&(pool as usize)) {
        *trims += 1;
        holes.trim(live);
    }
}

/// Runs a call that may have a pool give memory back to the device.
pub(crate) fn shrink(pool: MemoryPool, call: impl FnOnce() -> CuResult) -> CuResult {
    let running = Running::beside(pool);
    let result = call();
    given_back(pool);
    drop(running);
    settle(pool, 0);
    result
}

/// Waits until a stream has done what is in it, for a while; whether it has. What it has freed is given back
/// only once that was seen by a call that waits, which this one ends with: by then there is nothing to wait for.
fn await_frees(device: &Device, stream: Stream) -> bool {
    const LONGEST_NS: u64 = 2_000_000_000;
    const STEP_NS: u64 = 500_000;
    let begun = session::clock::now_ns();
    let _waits = waiting::begin(device, 0);
    loop {
        match undisturbing(|| driver_calls::stream_query(stream)) {
            CuResult::NOT_READY if session::clock::now_ns().saturating_sub(begun) < LONGEST_NS => {
                clock::sleep(STEP_NS);
            }
            CuResult::SUCCESS => {
                return undisturbing(|| driver_calls::stream_synchronize(stream)).is_ok();
            }
            _ => return false,
        }
    }
}

/// Runs a call that allocates `bytes` from a known pool on `device`, in the order of a stream that is not
/// being captured. `address` is read after success, and `undo` frees what the call has allocated.
pub(crate) fn allocate(
    device: &'static Device,
    (pool, stream): (MemoryPool, Stream),
    bytes: u64,
    call: impl Fn() -> CuResult,
    address: impl Fn() -> u64,
    undo: impl Fn(),
) -> CuResult {
    let charged = || pools().get(&(pool as usize)).map_or(0, |pool| pool.charged);
    // Runs the call with some bytes reserved, to be placed in a hole or where the driver likes; `None`:
    // the pool has taken more than there is room for, and what was allocated is freed again. What the
    // pool had already is the program's, whatever has become of the limit.
    let attempt =
        |running: &Running, reserved, hole: Option<(u64, u64)>, room: &dyn Fn() -> bool| {
            let before = charged();
            let result = call();
            settle(pool, reserved);
            let grown = charged().saturating_sub(before);
            if result.is_ok() && grown > 0 && !room() {
                undo();
                return None;
            }
            if let Some(pool) = pools().get_mut(&(pool as usize)) {
                if let Some((start, bytes)) = hole {
                    pool.holes.add(start, bytes);
                }
                if result.is_ok() {
                    let address = address();
                    if grown > bytes && !pool.waits && running.was_alone(pool) {
                        // The rest of what it took lies behind.
                        pool.holes.add(address.saturating_add(bytes), grown - bytes);
                    }
                    pool.holes.cut(address, bytes);
                    pool.live.insert(address, bytes);
                }
            }
            Some(result)
        };
    let growth = bytes.checked_next_multiple_of(CHUNK).unwrap_or(u64::MAX);
    // What an allocation that was undone had borrowed of the headroom comes back first.
    let give_back = || {
        trim(device);
        headroom::refill(device);
    };
    let refused = || {
        let _ = await_frees(device, stream);
        give_back();
        declined(device, bytes)
    };
    let grow = || attempt(&Running::beside(pool), growth, None, &|| !stays_over(device));
    let fill_hole = || {
        let running = Running::alone(device, pool)?;
        let hole = take_hole(pool, bytes)?;
        // Should the driver not find it, the headroom covers what it takes instead, as far as there is so
        // much.
        let lent = headroom::lend(device, Kind::Pool, growth);
        let reserved = if lent.is_some() { growth } else { 0 };
        let room = || lent.as_ref().map_or_else(|| !is_over(device), headroom::Lent::give_back_all);
        let result = attempt(&running, reserved, Some(hole), &room);
        if let Some(lent) = lent {
            lent.give_back();
        }
        result
    };
    let grow_or_fill = |is_reserved: bool| {
        if is_reserved { Some(grow().unwrap_or_else(refused)) } else { fill_hole() }
    };
    if let Some(result) = grow_or_fill(reserve_seen(device, Kind::Pool, growth)) {
        return result;
    }
    trim(device);
    if let Some(result) = grow_or_fill(reserve_again(device, Kind::Pool, growth)) {
        return result;
    }
    if idle(pool) >= bytes
        && let Some(lent) = headroom::lend(device, Kind::Pool, growth)
    {
        let result = attempt(&Running::beside(pool), growth, None, &|| lent.give_back_all());
        lent.give_back();
        if let Some(result) = result {
            return result;
        }
    }
    // What the stream has yet to free cannot be given back before. This is the end of the way, where the
    // driver waits as well.
    if charged() >= growth.min(CHUNK) && await_frees(device, stream) {
        give_back();
        if let Some(result) = grow_or_fill(reserve_again(device, Kind::Pool, growth)) {
            return result;
        }
    }
    declined(device, bytes)
}

/// Whether a session uses more than it may, also once other threads' growth is no longer counted twice: in
/// the pool's figure, and as what they have reserved for it.
fn stays_over(device: &Device) -> bool {
    const PATIENCE: u32 = 40;
    const STEP_NS: u64 = 50_000;
    let waits = |_| {
        let over = is_over(device);
        if over {
            clock::sleep(STEP_NS);
        }
        over
    };
    (0..PATIENCE).all(waits) && is_over(device)
}

/// What a pool has and does not use.
fn idle(pool: MemoryPool) -> u64 {
    let figures = attribute(pool, POOL_RESERVED_CURRENT).zip(attribute(pool, POOL_USED_CURRENT));
    figures.map_or(0, |(reserved, used)| reserved.saturating_sub(used))
}

/// Takes a hole out of a pool's that an allocation of so many bytes fits into.
fn take_hole(pool: MemoryPool, bytes: u64) -> Option<(u64, u64)> {
    // It may have given something back since.
    settle(pool, 0);
    let idle = idle(pool);
    let mut pools = pools();
    let pool = pools.get_mut(&(pool as usize))?;
    if pool.holes.bytes() > idle {
        pool.holes.forget();
    }
    pool.holes.take(bytes)
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
