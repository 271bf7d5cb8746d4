//! The lock that opens the book: who may take it, and from whom.
//!
//! A word of the page names the owner, a slot plus one. A slot belongs to the process that locks its byte
//! of the file, and the kernel unlocks that when the process ends. From an owner that has died the lock is
//! taken over, and while this is tried its slot is kept from being taken anew: a new process there would
//! own the lock by the same number.
//!
//! What is done next is decided here, step by step, so that tests can put every other process's steps,
//! and death, between any two of them.

#[cfg(test)]
mod interleavings;

/// One step in the world.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Step {
    /// Put oneself into the word in place of this value.
    Replace(u32),
    /// Ask whether the process of this slot lives.
    IsAlive(usize),
    /// Lock this slot's byte.
    LockSlot(usize),
    /// Unlock it again.
    UnlockSlot(usize),
    /// Nothing to do: the lock is taken, `recount`: from somebody else.
    Taken {
        /// The owner before may have left sums half changed.
        recount: bool,
    },
    /// The word names nobody that there can be.
    Impossible(u32),
}

/// What a step has shown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Seen {
    /// [`Step::Replace`]: done.
    Replaced,
    /// [`Step::Replace`]: it is this owner's.
    Owner(u32),
    /// [`Step::IsAlive`], [`Step::LockSlot`]
    Answer(bool),
    /// [`Step::UnlockSlot`]
    Done,
}

/// One process on its way to the lock.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Attempt {
    slot: usize,
    slots: usize,
    next: Step,
    /// Whether the byte of a dead owner's slot is held meanwhile, and what came of it.
    over: Option<(usize, bool)>,
}

/// The number by which a slot owns the lock.
pub(crate) fn number(slot: usize) -> u32 {
    u32::try_from(slot + 1).unwrap_or(u32::MAX)
}

impl Attempt {
    /// By the process on `slot`, of `slots` that there are.
    pub(crate) const fn new(slot: usize, slots: usize) -> Self {
        Self { slot, slots, next: Step::Replace(0), over: None }
    }

    /// What to do next.
    pub(crate) const fn next(&self) -> Step {
        self.next
    }

    /// Goes on after a step; tells the owner in whose favour this attempt begins anew, if so.
    pub(crate) fn saw(&mut self, seen: Seen) -> Option<u32> {
        let again = |owner| (Step::Replace(0), Some(owner));
        let (next, waits_for) = match (self.next, seen) {
            (Step::Replace(0), Seen::Owner(owner)) => (self.look_at(owner), None),
            (Step::Replace(old), Seen::Replaced | Seen::Owner(_)) => {
                let taken = seen == Seen::Replaced;
                match self.over.as_mut() {
                    Some((dead, result)) => {
                        *result = taken;
                        (Step::UnlockSlot(*dead), None)
                    }
                    None if taken => (Step::Taken { recount: old != 0 }, None),
                    None => again(old),
                }
            }
            (Step::IsAlive(slot), Seen::Answer(true))
            | (Step::LockSlot(slot), Seen::Answer(false)) => again(number(slot)),
            (Step::IsAlive(slot), _) => (Step::LockSlot(slot), None),
            (Step::LockSlot(slot), _) => {
                self.over = Some((slot, false));
                (Step::Replace(number(slot)), None)
            }
            (Step::UnlockSlot(slot), _) => match self.over.take() {
                Some((_, true)) => (Step::Taken { recount: true }, None),
                _ => again(number(slot)),
            },
            (done, _) => (done, None),
        };
        self.next = next;
        waits_for
    }

    fn look_at(&self, owner: u32) -> Step {
        match (owner as usize).checked_sub(1) {
            // Left by a former process in this slot, because the threads of this one are kept apart.
            Some(slot) if slot == self.slot => Step::Replace(owner),
            Some(slot) if slot < self.slots => Step::IsAlive(slot),
            Some(_) => Step::Impossible(owner),
            None => Step::Replace(0),
        }
    }
}
