//! The lock of the ledger: which process may take it, and from whom.
//!
//! A word of the page names the owner: its slot's index plus one. A slot belongs to the process that locks the slot's
//! byte of the file; the kernel drops that lock when the process ends. The lock of a dead owner is taken over. During
//! the takeover the dead owner's byte is kept locked, because a new process in that slot would own the lock by the same
//! number.
//!
//! Pure: this module decides only the next step. So tests can put every other process's steps, and its death, between
//! any two steps.

#[cfg(test)]
mod interleavings;

/// One step of an attempt, for the caller to carry out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Step {
    /// Replace this value of the word by the own number.
    Replace(u32),
    /// Query whether this slot's process is alive.
    IsAlive(usize),
    /// Lock this slot's byte.
    LockSlot(usize),
    /// Unlock this slot's byte again.
    UnlockSlot(usize),
    /// Nothing more to do: the lock is taken.
    Taken {
        /// Whether the sums have to be recomputed, because the earlier owner may have left them half-changed.
        recount: bool,
    },
    /// The word names no possible owner.
    Impossible(u32),
}

/// The result of a step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum StepResult {
    /// [`Step::Replace`]: done.
    Replaced,
    /// [`Step::Replace`]: the word had this other value.
    Owner(u32),
    /// [`Step::IsAlive`], [`Step::LockSlot`]
    Answer(bool),
    /// [`Step::UnlockSlot`]
    Done,
}

/// One process's attempt to take the lock.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Attempt {
    slot: usize,
    slots: usize,
    next: Step,
    /// The dead owner's slot whose byte is locked meanwhile, and whether the takeover succeeded.
    over: Option<(usize, bool)>,
}

/// The word's value for the process in a slot.
pub(crate) fn number(slot: usize) -> u32 {
    u32::try_from(slot + 1).unwrap_or(u32::MAX)
}

impl Attempt {
    /// An attempt by the process in `slot`; the page has `slots` of them.
    pub(crate) const fn new(slot: usize, slots: usize) -> Self {
        Self { slot, slots, next: Step::Replace(0), over: None }
    }

    /// The next step.
    pub(crate) const fn next(&self) -> Step {
        self.next
    }

    /// Continues after a step. Returns the owner if the attempt starts over because another process took the lock.
    pub(crate) fn saw(&mut self, seen: StepResult) -> Option<u32> {
        let again = |owner| (Step::Replace(0), Some(owner));
        let (next, waits_for) = match (self.next, seen) {
            (Step::Replace(0), StepResult::Owner(owner)) => (self.look_at(owner), None),
            (Step::Replace(old), StepResult::Replaced | StepResult::Owner(_)) => {
                let taken = seen == StepResult::Replaced;
                match self.over.as_mut() {
                    Some((dead, result)) => {
                        *result = taken;
                        (Step::UnlockSlot(*dead), None)
                    }
                    None if taken => (Step::Taken { recount: old != 0 }, None),
                    None => again(old),
                }
            }
            (Step::IsAlive(slot), StepResult::Answer(true))
            | (Step::LockSlot(slot), StepResult::Answer(false)) => again(number(slot)),
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
            // Left by a former process in this slot, because the threads of this process exclude each other.
            Some(slot) if slot == self.slot => Step::Replace(owner),
            Some(slot) if slot < self.slots => Step::IsAlive(slot),
            Some(_) => Step::Impossible(owner),
            None => Step::Replace(0),
        }
    }
}
