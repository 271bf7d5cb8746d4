//! The session's ledger of one device, with this process's place in it.

use crate::config::OnFailure;
use crate::report;
use crate::verdict::LimiterFailure;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use limits::GpuId;
use limits::Limits;
use session::layout::{MemberSlot, MemoryKind, PageLayout};
use session::ledger::Ledger;
use session::{LedgerGuard, Membership, Page, PageError};
use std::path::Path;
use std::sync::OnceLock;

/// How often the dead are looked for where nothing is missing.
const REAP_PERIOD: Duration = Duration::from_millis(50);

/// What this process and the others of its session write down about a device.
pub(crate) struct DeviceLedger {
    uuid: GpuId,
    membership: Membership,
    on_failure: OnFailure,
    /// Why the page is not believed any more.
    broken: OnceLock<LimiterFailure>,
}

impl DeviceLedger {
    /// Takes a place in the session's page of the device. The limits are the page's from then on: those of
    /// whoever made the page, or as they were changed since.
    pub(crate) fn join(
        uuid: GpuId,
        limits: &Limits,
        session_dir: &Path,
        on_failure: OnFailure,
    ) -> Result<(Self, Limits), LimiterFailure> {
        let refused = |error: PageError| LimiterFailure(error.to_string());
        let page = Page::open(session_dir, uuid, limits).map_err(refused)?;
        let limits = page.look().map_err(refused)?.limits();
        let membership = Membership::claim(page).map_err(refused)?;
        Ok((Self { uuid, membership, on_failure, broken: OnceLock::new() }, limits))
    }

    pub(crate) const fn uuid(&self) -> GpuId {
        self.uuid
    }

    /// This process's place in the session's ledger.
    pub(crate) const fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Opens the session's ledger; `None`, and a line that says so, where that cannot be done.
    pub(crate) fn open(&self) -> Option<LedgerGuard<'_>> {
        self.or_say(self.membership.open())
    }

    /// The page's fields, for reading without the ledger.
    pub(crate) fn page(&self) -> Option<&PageLayout> {
        self.or_say(self.membership.look())
    }

    /// What the page says of this process.
    pub(crate) fn own_slot(&self) -> Option<&MemberSlot> {
        self.page()?.slots.get(self.membership.slot())
    }

    /// Gives back what dead processes left; `true`: there was something.
    pub(crate) fn reap(&self) -> bool {
        self.or_say(self.membership.reap()).is_some_and(|dead| dead > 0)
    }

    /// The page's fields without the dead, as far as a process of the session has looked for them a
    /// moment ago.
    pub(crate) fn page_reaped(&self) -> Option<&PageLayout> {
        self.or_say(self.membership.look_reaped(REAP_PERIOD))
    }

    /// Gives bytes back to the session; while the ledger cannot be opened, as soon as it can.
    pub(crate) fn release(&self, kind: MemoryKind, bytes: u64) {
        match self.open() {
            Some(mut opened) => {
                let released = opened.release(self.membership.slot(), kind, bytes);
                drop(opened);
                self.say_if_damaged(released);
            }
            None => self.membership.owe(kind, bytes),
        }
    }

    /// Says that bytes could not be given back.
    pub(crate) fn say_if_damaged(&self, released: Result<(), session::ledger::Damaged>) {
        if let Err(damaged) = released {
            report::once(format_args!("device {}: {damaged}", self.uuid));
        }
    }

    /// Why the limits of this device cannot be kept any more.
    pub(crate) fn broken(&self) -> Option<&LimiterFailure> {
        self.broken.get()
    }

    /// Whether calls have to fail because the limits cannot be kept any more.
    pub(crate) fn is_denied(&self) -> bool {
        self.broken().is_some_and(|refused| !self.lets_pass(refused))
    }

    /// Whether a call may go on where a limit of this device cannot be kept, for this reason. Says it.
    pub(crate) fn lets_pass(&self, refused: &LimiterFailure) -> bool {
        refused.lets_pass(self.on_failure)
    }

    /// Whether the session has a limit on this device, as of now.
    pub(crate) fn is_limited(&self) -> bool {
        self.page().is_none_or(|page| page.limits().limits_anything())
    }

    /// Whether the device's time is limited, as of now.
    pub(crate) fn is_scheduled(&self) -> bool {
        self.page().is_some_and(|page| page.limits().compute.is_limit())
    }

    /// Whether the session may use more of the device's memory than is on the device for it.
    pub(crate) fn is_oversubscribed(&self) -> bool {
        self.page().is_some_and(is_oversubscribed_by)
    }

    fn or_say<T>(&self, result: Result<T, PageError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error @ PageError::Damaged { .. }) => {
                let _ = self.broken.set(LimiterFailure(format!("device {}: {error}", self.uuid)));
                None
            }
            Err(error) => {
                report::once(format_args!("device {}: {error}", self.uuid));
                None
            }
        }
    }
}

/// What a session may still take on a device itself.
pub(crate) fn left(opened: &Ledger<'_>) -> u64 {
    let left = opened.limit().saturating_sub(opened.used());
    left.min(opened.real_limit().saturating_sub(opened.on_device()))
}

/// Whether the limits of a page say so: see [`DeviceLedger::is_oversubscribed`].
pub(crate) fn is_oversubscribed_by(page: &PageLayout) -> bool {
    page.memory_real.load(Relaxed) < page.memory_limit.load(Relaxed)
}
