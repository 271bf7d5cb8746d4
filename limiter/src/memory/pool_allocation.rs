//! Allocations from a pool.
//!
//! The most by which the pool may grow is reserved before the driver is called. Where so much is not left, an
//! allocation has to fit into what its pool has. It does where something as large was freed
//! ([`Holes`](super::holes::Holes)). Else pools are asked to give back what they do not use. Where there is no room even
//! then, it may still fit between others: that is tried if the headroom covers what the pool may take instead, and
//! undone where it has.

use super::device::DeviceMemory;
use super::headroom;
use super::pools::{CHUNK, PoolCall, idle};
use super::refusal::{declined, is_over};
use super::reservation::{Reservation, lend};
use super::reserve::Reserve;
use crate::clock;
use crate::driver_calls::{self, undisturbing};
use driver::cuda::{CuResult, MemoryPool, Stream};
use session::layout::MemoryKind;

/// Runs a call that allocates `bytes` from a known pool on `device`, in the order of a stream that is not
/// being captured. `address` is read after success, and `undo` frees what the call has allocated.
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
    // Runs the call with some bytes reserved, to be placed in a hole or where the driver likes; `None`:
    // the pool has taken more than there is room for, and what was allocated is freed again. What the
    // pool had already is the program's, whatever has become of the limit.
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
    // What an allocation that was undone had borrowed of the headroom comes back first.
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
        // Should the driver not find it, the headroom covers what it takes instead, as far as there is so
        // much.
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
    // What the stream has yet to free cannot be given back before. This is the end of the way, where the
    // driver waits as well.
    if pools.charged(pool) >= growth.min(CHUNK) && await_frees(device, stream) {
        give_back();
        if let Some(result) = grow_or_fill(reserve.reserve_again(device, MemoryKind::Pool, growth))
        {
            return result;
        }
    }
    declined(device.ledger, bytes)
}

/// Waits until a stream has done what is in it, for a while; whether it has. What it has freed is given back
/// only once that was seen by a call that waits, which this one ends with: by then there is nothing to wait for.
fn await_frees(device: &DeviceMemory, stream: Stream) -> bool {
    const LONGEST_NS: u64 = 2_000_000_000;
    const STEP_NS: u64 = 500_000;
    let begun = clock::now();
    let _waits = device.shared.changes.wait(device.ledger, 0);
    loop {
        match undisturbing(|| driver_calls::stream_query(stream)) {
            CuResult::NOT_READY if clock::now().saturating_sub(begun) < LONGEST_NS => {
                clock::sleep(STEP_NS);
            }
            CuResult::SUCCESS => {
                return undisturbing(|| driver_calls::stream_synchronize(stream)).is_ok();
            }
            _ => return false,
        }
    }
}

/// Whether a session uses more than it may, also once other threads' growth is no longer counted twice: in
/// the pool's figure, and as what they have reserved for it.
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
