//! Values in a process's own memory that its streams wait for.
//!
//! Only the process itself can read them, and a store is not a driver call. So the process checks
//! them whenever it takes the node's lock, and while it waits for something. Other processes see
//! whether the value was there at its last check.

use std::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Acquire, Relaxed},
};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::layout::{Op, State, StreamId};
use crate::node::Node;
use crate::queue::QueueError;

/// How a value is compared with another one ("Stream Memory Operations").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// At least the other, on the circle of 32-bit numbers.
    AtLeast,
    /// The same.
    Equal,
    /// Has at least one of the other's bits.
    And,
    /// There is a bit that neither has.
    Nor,
}

impl Condition {
    /// Whether `found` satisfies a stream that waits for `wanted`.
    #[must_use]
    pub fn holds(self, found: u32, wanted: u32) -> bool {
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
    /// Its address, a multiple of four.
    pub address: u64,
    /// The value to compare with.
    pub wanted: u32,
    /// How they are compared.
    pub condition: Condition,
}

impl Value {
    /// # Safety
    /// There are four readable bytes at `address`.
    unsafe fn there(&self) -> bool {
        // SAFETY: by this function's own condition; it is a multiple of four.
        let word = unsafe { AtomicU32::from_ptr(self.address as *mut u32) };
        self.condition.holds(word.load(Acquire), self.wanted)
    }
}

struct Waiting {
    stream: StreamId,
    /// The stream's position after the wait.
    position: u64,
    value: Value,
    there: bool,
}

/// What the streams of this process wait for.
#[derive(Default)]
pub(crate) struct Values {
    waiting: Mutex<Vec<Waiting>>,
    /// Whether there are any: most programs have none.
    any: AtomicBool,
}

/// The results of one check.
pub(crate) struct Looked<'a> {
    waiting: MutexGuard<'a, Vec<Waiting>>,
    any: &'a AtomicBool,
}

impl Values {
    fn waiting(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks them all; `None` if there are none.
    pub(crate) fn look(&self) -> Option<Looked<'_>> {
        if !self.any.load(Relaxed) {
            return None;
        }
        let mut waiting = self.waiting();
        for one in waiting.iter_mut() {
            // SAFETY: the caller that made the stream wait vouched for the memory until
            // `forget_values`, which takes the same lock.
            one.there = unsafe { one.value.there() };
        }
        Some(Looked { waiting, any: &self.any })
    }
}

impl Looked<'_> {
    /// Passes the results to the streams; `false` if that makes no difference to any.
    pub(crate) fn tell(&mut self, state: &mut State) -> bool {
        let mut found = false;
        self.waiting.retain(|one| {
            let waits = state.tell(one.stream, one.position, one.there);
            found |= waits && one.there;
            waits
        });
        self.any.store(!self.waiting.is_empty(), Relaxed);
        found
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
        // SAFETY: by this function's own condition.
        let there = unsafe { value.there() };
        let position = self.submit(stream, Op::value(there))?;
        let mut waiting = self.values.waiting();
        waiting.push(Waiting { stream, position, value, there });
        self.values.any.store(true, Relaxed);
        Ok(())
    }

    /// For memory that goes away: it is not read any more. A stream that waits for a value there
    /// goes on only if the value was there when the process last checked.
    pub fn forget_values(&self, from: u64, to: u64) {
        self.values.waiting().retain(|one| !(from..to).contains(&one.value.address));
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
        }
    }
}
