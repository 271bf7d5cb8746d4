//! The verdict on a call, and the fate of calls when the limiter itself fails.

use crate::{report, unpatched};
use config::OnFailure;

/// A reason why the limiter cannot work. CUDA calls then fail or pass, as configured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct LimiterFailure(pub(crate) String);

/// The verdict on a call.
#[derive(Clone, Copy)]
pub(crate) enum Verdict<T> {
    /// There is a limit, or one may be set later: `T` keeps account and enforces it.
    Limited(T),
    /// There is nothing to limit, or the limiter is configured to let calls pass when it fails.
    Free,
    /// The limiter cannot do its work and is configured to let nothing pass.
    Denied,
}

impl<T> Verdict<T> {
    /// Applies `part` to the value.
    pub(crate) fn map<U>(self, part: impl FnOnce(T) -> U) -> Verdict<U> {
        match self {
            Self::Limited(whole) => Verdict::Limited(part(whole)),
            Self::Free => Verdict::Free,
            Self::Denied => Verdict::Denied,
        }
    }

    /// The value that enforces the limit, if any.
    pub(crate) fn limited(self) -> Option<T> {
        match self {
            Self::Limited(whole) => Some(whole),
            Self::Free | Self::Denied => None,
        }
    }
}

impl LimiterFailure {
    /// Reports the reason and returns the verdict.
    pub(crate) fn verdict<T>(&self, on_failure: OnFailure) -> Verdict<T> {
        match on_failure {
            OnFailure::Closed if unpatched::is_undone(&self.0) => {
                report::once(format_args!(
                    "{self}; calls to it are NOT limited and cannot be refused; other GPU calls of this process fail"
                ));
                Verdict::Denied
            }
            OnFailure::Closed => {
                report::once(format_args!("{self}; GPU calls of this process fail"));
                Verdict::Denied
            }
            OnFailure::Open => {
                report::once(format_args!("{self}; GPU calls of this process are NOT limited"));
                Verdict::Free
            }
        }
    }

    /// Reports the reason and returns whether calls pass.
    pub(crate) fn lets_pass(&self, on_failure: OnFailure) -> bool {
        matches!(self.verdict::<()>(on_failure), Verdict::Free)
    }
}
