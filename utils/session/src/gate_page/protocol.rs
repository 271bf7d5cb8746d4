//! In which order the governor opens a gate, and the daemon opens it for a lease or ends one early.
//!
//! This module decides the next step only; it carries out none. So a test can put the other side's
//! steps between any two steps.

#[cfg(test)]
mod interleavings;

/// One step, for the caller to carry out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Step {
    /// Set the word's open bit.
    Open,
    /// Clear it.
    Close,
    /// Change the word's count. A grant that names the former word does nothing from now on.
    Count,
    /// Change the count and clear the bit at once.
    Withdraw,
    /// Set the open bit if the word is the one that was asked with.
    Grant,
    /// Read which lease was ended early.
    LookAtStop,
    /// Store which lease ends early.
    StoreStop,
    /// Ring the bell.
    Ring,
}

/// The daemon's steps. The stop comes first: a governor that opens after the gate was closed finds
/// it. The bell comes last: a governor that it wakes finds both.
pub(super) const STOPPING: [Step; 3] = [Step::StoreStop, Step::Close, Step::Ring];

/// A governor on its way to an open gate.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Opening {
    lease: Option<u64>,
    next: Result<Step, bool>,
}

impl Opening {
    /// For a lease of the daemon, or one without a number that no daemon can end.
    pub(super) const fn new(lease: Option<u64>) -> Self {
        Self { lease, next: Ok(Step::Open) }
    }

    /// What to do next. `Err`: nothing; the gate is open, or it is not, because the lease was
    /// ended early.
    pub(super) const fn next(&self) -> Result<Step, bool> {
        self.next
    }

    /// Continues after a step. `stop`: what [`Step::LookAtStop`] has read.
    ///
    /// It looks after it has opened. If the daemon's `Close` came before that, the daemon's stop is
    /// seen; if it came later, it has closed the gate.
    pub(super) fn saw(&mut self, stop: u64) {
        self.next = match self.next {
            Ok(Step::Open) => Ok(Step::LookAtStop),
            Ok(Step::LookAtStop) if is_stopped(self.lease, stop) => Ok(Step::Close),
            Ok(Step::LookAtStop) => Err(true),
            _ => Err(false),
        };
    }
}

/// The steps of a governor that gives up asking. A grant that comes later finds another word, and one
/// that came before is undone. In one step, so that it knows whether it has closed an open gate:
/// others of its process may have opened it, because the limit was taken away.
pub(super) const WITHDRAWING: [Step; 1] = [Step::Withdraw];

/// Whether a lease is the one that was ended early.
pub(super) fn is_stopped(lease: Option<u64>, stop: u64) -> bool {
    lease.is_some_and(|lease| lease != 0 && lease == stop)
}
