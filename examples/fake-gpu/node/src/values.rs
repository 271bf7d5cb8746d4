//! Values in a process's own memory that its streams wait for or write.
//!
//! Only the process itself can access them, and a store is not a driver call. So the process checks the values whenever
//! it takes the node's lock; in between, while there are any, a thread of the simulated driver checks them
//! ([`Node::watch_values`]). Other processes see whether a value was there at the last check. A value is written when
//! its process notices that the stream has reached the write.
//!
//! The thread finds a store within 50 us, or 100 us if nothing has changed for long. An H200 takes 8.4 us from a store
//! until a kernel behind the wait has run.

use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::layout::{Op, State, StreamId};
use crate::node::{Node, clock};
use crate::queue::{LOOK_NS, QueueError};

/// Interval of the thread's checks while a stream waits, in nanoseconds. A check costs 3 to 5 us.
const WATCH_NS: u64 = 45_000;
/// The interval if nothing has changed for [`QUIET_NS`]: a twentieth of a core.
const WATCH_QUIET_NS: u64 = 95_000;
/// A stream may wait this long during another process's turn, in nanoseconds.
const QUIET_NS: u64 = 20_000_000;
/// Longest sleep while a write is outstanding, in nanoseconds.
const LONGEST_NS: u64 = 20_000_000;
/// Most rounds of writes, and waits that they end, in one call. Further rounds follow at the next check.
const MOST_ROUNDS: u32 = 1000;

/// Comparison of a value with the wanted one ("Stream Memory Operations").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// At least the wanted value, in cyclic order of that width.
    AtLeast,
    /// Equal to the wanted value.
    Equal,
    /// Has at least one bit of the wanted value.
    And,
    /// Some bit is set in neither value.
    Nor,
}

/// A value of either width.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Word {
    /// 32 bits.
    Narrow(u32),
    /// 64 bits.
    Wide(u64),
}

impl Word {
    /// Size in bytes; addresses are multiples of it.
    #[must_use]
    pub fn size(self) -> u64 {
        match self {
            Self::Narrow(_) => 4,
            Self::Wide(_) => 8,
        }
    }
}

impl Condition {
    /// Whether `found` satisfies a wait for `wanted`.
    #[must_use]
    pub fn holds(self, found: u32, wanted: u32) -> bool {
        match self {
            Self::AtLeast => found.wrapping_sub(wanted).cast_signed() >= 0,
            Self::Equal => found == wanted,
            Self::And => found & wanted != 0,
            Self::Nor => !(found | wanted) != 0,
        }
    }

    /// Like [`Self::holds`], for 64 bits.
    #[must_use]
    pub fn holds_wide(self, found: u64, wanted: u64) -> bool {
        match self {
            Self::AtLeast => found.wrapping_sub(wanted).cast_signed() >= 0,
            Self::Equal => found == wanted,
            Self::And => found & wanted != 0,
            Self::Nor => !(found | wanted) != 0,
        }
    }
}

/// A value that a stream waits for.
#[derive(Clone, Copy, Debug)]
pub struct Value {
    /// Its address.
    pub address: u64,
    /// The value to compare with.
    pub wanted: Word,
    /// The comparison.
    pub condition: Condition,
}

impl Value {
    /// # Safety
    /// There is a readable word of this width at `address`, which is a multiple of its size.
    unsafe fn there(&self) -> bool {
        match self.wanted {
            Word::Narrow(wanted) => {
                // SAFETY: by this function's own condition.
                let word = unsafe { AtomicU32::from_ptr(self.address as *mut u32) };
                self.condition.holds(word.load(Acquire), wanted)
            }
            Word::Wide(wanted) => {
                // SAFETY: by this function's own condition.
                let word = unsafe { AtomicU64::from_ptr(self.address as *mut u64) };
                self.condition.holds_wide(word.load(Acquire), wanted)
            }
        }
    }
}

/// # Safety
/// There is a writable word of this width at `address`, which is a multiple of its size.
unsafe fn store(address: u64, value: Word) {
    match value {
        Word::Narrow(value) => {
            // SAFETY: by this function's own condition.
            unsafe { AtomicU32::from_ptr(address as *mut u32) }.store(value, Release);
        }
        Word::Wide(value) => {
            // SAFETY: by this function's own condition.
            unsafe { AtomicU64::from_ptr(address as *mut u64) }.store(value, Release);
        }
    }
}

/// An operation on a word of the process's memory.
#[derive(Clone, Copy)]
enum Act {
    Wait {
        value: Value,
        /// Whether the value was there at the last check; `told`: what the node was last told.
        there: bool,
        told: bool,
    },
    Write {
        address: u64,
        value: Word,
    },
}

impl Act {
    fn address(&self) -> u64 {
        match self {
            Self::Wait { value, .. } => value.address,
            Self::Write { address, .. } => *address,
        }
    }
}

struct Pending {
    stream: StreamId,
    /// The stream's position after the operation.
    position: u64,
    act: Act,
}

/// The pending waits and writes of this process's streams, in order of submission.
#[derive(Default)]
pub(crate) struct Values {
    pending: Mutex<Vec<Pending>>,
    /// Whether any is pending: most programs have none.
    any: AtomicBool,
    /// Whether one was added that the thread has not seen.
    fresh: AtomicBool,
    /// Whether the thread sleeps long, and must be woken when one is added.
    rests: AtomicBool,
    more: Condvar,
    /// Whether the process is ending.
    closed: AtomicBool,
}

/// The results of a check.
pub(crate) struct Looked<'a> {
    pending: MutexGuard<'a, Vec<Pending>>,
    any: &'a AtomicBool,
    rounds: u32,
}

impl Values {
    fn pending(&self) -> MutexGuard<'_, Vec<Pending>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks all values; `None` if none is pending.
    pub(crate) fn look(&self) -> Option<Looked<'_>> {
        if !self.any.load(Relaxed) {
            return None;
        }
        let mut looked = Looked { pending: self.pending(), any: &self.any, rounds: 0 };
        looked.look_again();
        Some(looked)
    }

    fn add(&self, one: Pending) {
        let mut pending = self.pending();
        if self.closed.load(Relaxed) {
            return;
        }
        pending.push(one);
        self.any.store(true, Relaxed);
        self.fresh.store(true, Relaxed);
        if self.rests.swap(false, Relaxed) {
            self.more.notify_all();
        }
    }

    /// Stops checks and writes, and ends the thread.
    pub(crate) fn close(&self) {
        let mut pending = self.pending();
        self.closed.store(true, Relaxed);
        pending.clear();
        self.any.store(false, Relaxed);
        self.more.notify_all();
    }
}

impl Looked<'_> {
    pub(crate) fn look_again(&mut self) {
        for one in self.pending.iter_mut() {
            if let Act::Wait { value, there, .. } = &mut one.act {
                // SAFETY: who made the stream wait vouched for the memory until `forget_values`,
                // which takes the same lock.
                *there = unsafe { value.there() };
            }
        }
    }

    /// Tells the streams the results, and writes the values that streams have reached. `false` if nothing changed.
    pub(crate) fn tell(&mut self, state: &mut State) -> bool {
        let mut changed = false;
        self.pending.retain_mut(|one| match &mut one.act {
            Act::Wait { there, told, .. } => {
                let waits = state.tell(one.stream, one.position, *there);
                changed |= waits && *there != *told;
                *told = *there;
                waits
            }
            &mut Act::Write { address, value } => {
                let passed = state.passed(one.stream.slot, one.stream.generation, one.position);
                if passed {
                    // SAFETY: as for `look_again`.
                    unsafe { store(address, value) };
                    changed = true;
                }
                !passed
            }
        });
        self.any.store(!self.pending.is_empty(), Relaxed);
        self.rounds += 1;
        changed && self.rounds < MOST_ROUNDS
    }
}

impl Node {
    /// Makes a stream wait for a value.
    ///
    /// # Errors
    /// [`QueueError::Gone`].
    ///
    /// # Safety
    /// The memory stays readable until [`Node::forget_values`] was called for it.
    pub unsafe fn wait_for_value(&self, stream: StreamId, value: Value) -> Result<(), QueueError> {
        self.retry_while_full(stream, |state| {
            // SAFETY: by this function's own condition.
            let there = unsafe { value.there() };
            let position = state.push(stream, Op::value(there))?;
            let act = Act::Wait { value, there, told: there };
            self.values.add(Pending { stream, position, act });
            Ok(())
        })
    }

    /// Makes a stream write a value.
    ///
    /// # Errors
    /// [`QueueError::Gone`].
    ///
    /// # Safety
    /// The memory stays writable until [`Node::forget_values`] was called for it.
    pub unsafe fn write_value(
        &self,
        stream: StreamId,
        address: u64,
        value: Word,
    ) -> Result<(), QueueError> {
        self.retry_while_full(stream, |state| {
            let position = state.push(stream, Op::write())?;
            self.values.add(Pending { stream, position, act: Act::Write { address, value } });
            Ok(())
        })
    }

    /// Stops access to memory that is about to be freed. A stream that waits for a value there continues only if the
    /// value was there at the last check; pending writes are dropped.
    pub fn forget_values(&self, from: u64, to: u64) {
        self.values.pending().retain(|one| !(from..to).contains(&one.act.address()));
    }

    /// Checks the values while the process is registered, sleeping while none is pending. Runs in a thread of the
    /// driver.
    pub fn watch_values(&self) {
        // SAFETY: sets how late this thread's sleeps may end; other threads keep theirs.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        // When a write is due at the earliest, and when something last changed.
        let (mut due, mut news) = (0, 0);
        while let Some((waits, changed)) = self.glance() {
            let mut now = clock();
            if changed || self.values.fresh.swap(false, Relaxed) || now >= due {
                let state = self.lock();
                let next = self.next_write(&state);
                (now, news) = (state.now, state.now);
                due = next.map_or(u64::MAX, |ns| now + ns.max(LOOK_NS));
            }
            let until_due = due.saturating_sub(now).min(LONGEST_NS);
            if waits {
                let watch = if now - news < QUIET_NS { WATCH_NS } else { WATCH_QUIET_NS };
                std::thread::sleep(Duration::from_nanos(until_due.min(watch)));
            } else {
                let pending = self.values.pending();
                if !pending.is_empty() && !self.values.fresh.load(Relaxed) {
                    self.values.rests.store(true, Relaxed);
                    drop(self.values.more.wait_timeout(pending, Duration::from_nanos(until_due)));
                }
            }
        }
    }

    /// Sleeps until a value is pending. Returns whether a stream waits for one, and whether one differs from what the
    /// node was told; `None` if the process is ending.
    fn glance(&self) -> Option<(bool, bool)> {
        let mut pending = self.values.pending();
        while pending.is_empty() {
            if self.values.closed.load(Relaxed) || self.is_left() {
                return None;
            }
            self.values.rests.store(true, Relaxed);
            pending = self.values.more.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
        let (mut waits, mut changed) = (false, false);
        for one in pending.iter() {
            if let Act::Wait { value, told, .. } = &one.act {
                waits = true;
                // SAFETY: as for `look_again`.
                changed |= unsafe { value.there() } != *told;
            }
        }
        Some((waits, changed))
    }

    /// Least time until a stream reaches a write; `None` if a value must change first.
    fn next_write(&self, state: &State) -> Option<u64> {
        let pending = self.values.pending();
        let mut seen: Vec<StreamId> = Vec::new();
        let mut least = None;
        for one in pending.iter().filter(|one| matches!(one.act, Act::Write { .. })) {
            // Only a stream's first write counts.
            if !seen.contains(&one.stream) {
                seen.push(one.stream);
                let due = state.due_in(one.stream, one.position);
                least = least.into_iter().chain(due).min();
            }
        }
        least
    }
}

#[cfg(test)]
mod tests {
    use super::Condition::{And, AtLeast, Equal, Nor};

    #[test]
    fn conditions() {
        for (condition, found, wanted, expected) in [
            (AtLeast, 5, 5, true),
            (AtLeast, 6, 5, true),
            (AtLeast, 4, 5, false),
            (AtLeast, 2, u32::MAX - 1, true),
            (AtLeast, u32::MAX - 1, 2, false),
            (AtLeast, 1 << 31, 0, false),
            (AtLeast, 0, 1 << 31, false),
            (AtLeast, (1 << 31) - 1, 0, true),
            (Equal, 7, 7, true),
            (Equal, 8, 7, false),
            (And, 6, 3, true),
            (And, 4, 3, false),
            (And, 4, 0, false),
            (Nor, u32::MAX - 1, 1, false),
            (Nor, u32::MAX - 1, 0, true),
            (Nor, 0, 1, true),
        ] {
            assert_eq!(condition.holds(found, wanted), expected, "{condition:?} {found} {wanted}");
            // The same comparison, in the upper half.
            let wide = |half: u32| u64::from(half) << 32;
            if condition != Nor {
                let holds = condition.holds_wide(wide(found), wide(wanted));
                assert_eq!(holds, expected, "{condition:?} {found} {wanted}");
            }
        }
        assert!(!Nor.holds_wide(u64::MAX - 1, 1) && Nor.holds_wide(u32::MAX.into(), 0));
    }
}
