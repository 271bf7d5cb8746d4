//! The order of steps in which the governor opens a gate, and the daemon grants it or ends a lease early.
//!
//! Pure: this module decides only the next step. So a test can put the other side's steps between any two steps.

#[cfg(test)]
mod interleavings;

/// One step, for the caller to carry out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Step {
    /// Set the word's open bit.
    Open,
    /// Clear the open bit.
    Close,
    /// Change the word's count. Grants that name an earlier word have no effect from then on.
    Count,
    /// Change the count and clear the open bit in one operation.
    Withdraw,
    /// Set the open bit if the word is still the named one.
    Grant,
    /// Read which lease was ended early.
    LookAtStop,
    /// Store which lease is ended early.
    StoreStop,
    /// Ring the bell.
    Ring,
}

/// The daemon's steps to end a lease early. The stop comes first: a governor that opens after the gate was closed finds
/// it. The bell comes last: the governor that it wakes finds both.
pub(super) const STOPPING: [Step; 3] = [Step::StoreStop, Step::Close, Step::Ring];

/// A governor that is opening a gate.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Opening {
    lease: Option<u64>,
    next: Result<Step, bool>,
}

impl Opening {
    /// For a lease of the daemon, or for one without a number that no daemon can end.
    pub(super) const fn new(lease: Option<u64>) -> Self {
        Self { lease, next: Ok(Step::Open) }
    }

    /// The next step. `Err(true)`: the gate is open; `Err(false)`: it is closed, because the lease was ended early.
    pub(super) const fn next(&self) -> Result<Step, bool> {
        self.next
    }

    /// Continues after a step. `stop`: the value read by [`Step::LookAtStop`].
    ///
    /// The governor reads the stop after opening. If the daemon's `Close` came earlier, the governor sees its stop; if
    /// it came later, the daemon has closed the gate.
    pub(super) fn saw(&mut self, stop: u64) {
        self.next = match self.next {
            Ok(Step::Open) => Ok(Step::LookAtStop),
            Ok(Step::LookAtStop) if is_stopped(self.lease, stop) => Ok(Step::Close),
            Ok(Step::LookAtStop) => Err(true),
            _ => Err(false),
        };
    }
}

/// The steps of a governor that withdraws its request. A later grant finds another word, and an earlier one is undone.
/// One operation, so that the governor learns whether it has closed an open gate: another thread of its process may
/// have opened it because the limit was lifted.
pub(super) const WITHDRAWING: [Step; 1] = [Step::Withdraw];

/// Whether a lease is the one that was ended early.
pub(super) fn is_stopped(lease: Option<u64>, stop: u64) -> bool {
    lease.is_some_and(|lease| lease != 0 && lease == stop)
}
