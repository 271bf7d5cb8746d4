//! Stream-ordered allocations from a pool; called by the pool hooks through [`Memory`](super::Memory).
//!
//! The most by which the pool may grow is reserved before the driver is called. If that does not fit, the allocation
//! has to fit into the pool's own memory, as it does if a hole is large enough ([`Holes`](super::holes::Holes)).
//! Otherwise pools give back unused memory. If growth still does not fit, the allocation is tried all the same,
//! provided that the headroom covers what the pool may take, and undone if the pool has grown.

use super::device::DeviceMemory;
use super::headroom;
use super::holes::CHUNK;
use super::pools::{PoolCall, idle};
use super::refusal::{declined, is_over};
use super::reservation::{Reservation, lend};
use super::reserve::Reserve;
use crate::clock;
use crate::driver_calls::{self, undisturbing};
use driver::cuda::{CuResult, MemoryPool, Stream};
use session::layout::MemoryKind;

/// Runs a call that allocates `bytes` from a registered pool on `device`, in the order of a stream that is not being
/// captured. `address` is evaluated after success; `undo` frees what the call has allocated.
pub(super) fn allocate(
    reserve: &Reserve,
    device: &'static DeviceMemory,
    (pool, stream): (MemoryPool, Stream),
    bytes: u64,
    call: impl Fn() -> CuResult,
    address: impl Fn() -> u64,
    undo: impl Fn(),
) -> CuResult {
    let pools = &reserve.holdings.pools;
    // Runs the call with `reserved` bytes, to be placed in `hole` or where the driver chooses. `None`: the pool grew by
    // more than fits, and the allocation was freed again. An allocation without growth is always kept: the pool's
    // memory is charged already, whatever the limit is now.
    let attempt = |running: &PoolCall<'_>,
                   reserved: Option<Reservation>,
                   hole: Option<(u64, u64)>,
                   room: &dyn Fn() -> bool| {
        let before = pools.charged(pool);
        let result = call();
        pools.settle(pool, reserved);
        let grown = pools.charged(pool).saturating_sub(before);
        if result.is_ok() && grown > 0 && !room() {
            undo();
            return None;
        }
        let allocated = result.is_ok().then(|| (address(), bytes));
        pools.placed(running, hole, allocated, grown);
        Some(result)
    };
    let growth = bytes.checked_next_multiple_of(CHUNK).unwrap_or(u64::MAX);
    // Restore the headroom that an undone allocation had borrowed.
    let give_back = || {
        reserve.holdings.refresh(device, true);
        headroom::fill(device);
    };
    let refused = || {
        let _ = await_frees(device, stream);
        give_back();
        declined(device.ledger, bytes)
    };
    let grow = |reserved| {
        attempt(&pools.beside(pool), Some(reserved), None, &|| !stays_over(device))
            .unwrap_or_else(refused)
    };
    let fill_hole = || {
        let running = pools.alone(device, pool)?;
        let hole = pools.take_hole(pool, bytes)?;
        // If the driver does not use the hole, the headroom covers the growth as far as it suffices.
        let (reserved, lent) = lend(device, MemoryKind::Pool, growth).unzip();
        let room =
            || lent.as_ref().map_or_else(|| !is_over(device.ledger), headroom::Lent::give_back_all);
        let result = attempt(&running, reserved, Some(hole), &room);
        if let Some(lent) = lent {
            lent.give_back();
        }
        result
    };
    let grow_or_fill = |reserved: Option<Reservation>| match reserved {
        Some(reserved) => Some(grow(reserved)),
        None => fill_hole(),
    };
    if let Some(result) = grow_or_fill(reserve.reserve_at_once(device, MemoryKind::Pool, growth)) {
        return result;
    }
    reserve.holdings.refresh(device, true);
    if let Some(result) = grow_or_fill(reserve.reserve_again(device, MemoryKind::Pool, growth)) {
        return result;
    }
    if idle(pool) >= bytes
        && let Some((reserved, lent)) = lend(device, MemoryKind::Pool, growth)
    {
        let room = || lent.give_back_all();
        let result = attempt(&pools.beside(pool), Some(reserved), None, &room);
        lent.give_back();
        if let Some(result) = result {
            return result;
        }
    }
    // Memory that the stream has yet to free was not available before. The driver waits at this point as well.
    if pools.charged(pool) >= growth.min(CHUNK) && await_frees(device, stream) {
        give_back();
        if let Some(result) = grow_or_fill(reserve.reserve_again(device, MemoryKind::Pool, growth))
        {
            return result;
        }
    }
    declined(device.ledger, bytes)
}

/// Waits a limited time until a stream's work is done; returns whether it is. The driver releases what the stream freed
/// only after a waiting call has seen the stream complete, so this ends with such a call.
fn await_frees(device: &DeviceMemory, stream: Stream) -> bool {
    const STEP_NS: u64 = 500_000;
    let begun = clock::now();
    let longest = patience(device);
    let _waits = device.shared.changes.wait(device.ledger, 0);
    loop {
        match undisturbing(|| driver_calls::stream_query(stream)) {
            CuResult::NOT_READY if clock::now().saturating_sub(begun) < longest => {
                clock::sleep(STEP_NS);
            }
            CuResult::SUCCESS => {
                return undisturbing(|| driver_calls::stream_synchronize(stream)).is_ok();
            }
            _ => return false,
        }
    }
}

/// How long to wait for a stream, in ns: 2 s, plus the time that 100 ms of held work take at the session's share.
fn patience(device: &DeviceMemory) -> u64 {
    const USUAL_NS: u64 = 2_000_000_000;
    const HELD_NS: u64 = 100_000_000;
    const WHOLE_PPM: u64 = 1_000_000;
    const LEAST_PPM: u64 = WHOLE_PPM / 100;
    let share = device.ledger.page().map(|page| u64::from(page.limits().compute.share_ppm));
    let share = share.map_or(WHOLE_PPM, |ppm| ppm.clamp(LEAST_PPM, WHOLE_PPM));
    USUAL_NS + HELD_NS * WHOLE_PPM / share
}

/// Whether the session stays over its limit. For a moment other threads' growth of a pool counts twice: in the pool's
/// charge and in their reservations.
fn stays_over(device: &DeviceMemory) -> bool {
    const PATIENCE: u32 = 40;
    const STEP_NS: u64 = 50_000;
    let waits = |_| {
        let over = is_over(device.ledger);
        if over {
            clock::sleep(STEP_NS);
        }
        over
    };
    (0..PATIENCE).all(waits) && is_over(device.ledger)
}
