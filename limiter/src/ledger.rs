//! The session's ledger of one device, with this process's membership. Memory and compute charge through it.

use crate::verdict::LimiterFailure;
use crate::{clock, report};
use config::OnFailure;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use limits::GpuId;
use limits::Limits;
use session::layout::{MemberSlot, MemoryKind, PageLayout};
use session::ledger::{Ledger, RefusedFor};
use session::together::Together;
use session::{LedgerGuard, Membership, Page, PageError};
use std::path::Path;
use std::sync::OnceLock;

/// How often to look for dead processes while no bytes are missing.
const REAP_PERIOD: Duration = Duration::from_millis(50);

/// The ledger that the processes of a session share for a device.
pub(crate) struct DeviceLedger {
    uuid: GpuId,
    membership: Membership,
    on_failure: OnFailure,
    /// The reason why the page is no longer trusted.
    broken: OnceLock<LimiterFailure>,
}

impl DeviceLedger {
    /// Claims a slot in the session's page of the device. From then on the page's limits apply: the initial ones, or as
    /// changed since.
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

    /// Whether this session's directory permits a page of the devices that the session uses together.
    pub(crate) fn may_join_those_together(&self) -> bool {
        self.membership.folder().is_some_and(Together::may_join)
    }

    /// Joins the page of the devices that the session uses together, with a slot for this device.
    pub(crate) fn join_those_together(&self) -> Result<(Together, Self), LimiterFailure> {
        let refused = |error: PageError| LimiterFailure(error.to_string());
        let gone = || LimiterFailure("the session's directory is unknown".to_owned());
        let dir = self.membership.folder().ok_or_else(gone)?;
        let limits = self.membership.look().map_err(refused)?.limits();
        let (own, membership) = Together::join(dir, self.uuid, &limits).map_err(refused)?;
        let broken = OnceLock::new();
        Ok((own, Self { uuid: self.uuid, membership, on_failure: self.on_failure, broken }))
    }

    pub(crate) const fn uuid(&self) -> GpuId {
        self.uuid
    }

    /// This process's membership of the session's page.
    pub(crate) const fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Opens the session's ledger; reports a failure and returns `None`.
    pub(crate) fn open(&self) -> Option<LedgerGuard<'_>> {
        self.or_say(self.membership.open())
    }

    /// The page's fields, read without opening the ledger; reports a failure and returns `None`.
    pub(crate) fn page(&self) -> Option<&PageLayout> {
        self.or_say(self.membership.look())
    }

    /// Adds the time (ns) in which a process of the session had work queued and held no lease.
    pub(crate) fn note_wait(&self, waited_ns: u64) {
        if let Some(page) = self.page() {
            page.waited_ns.fetch_add(waited_ns, Relaxed);
        }
    }

    /// Records an allocation of `bytes` that failed for good.
    pub(crate) fn note_refusal(&self, reason: RefusedFor, bytes: u64) {
        if let Some(mut opened) = self.open() {
            opened.note_refusal(reason, bytes, clock::now());
        }
    }

    /// Adds CPU time (ns) of the limiter's own threads for this device.
    pub(crate) fn note_own_cpu(&self, used_ns: u64) {
        if let Some(page) = self.page() {
            page.limiter_cpu_ns.fetch_add(used_ns, Relaxed);
        }
    }

    /// This process's slot in the page.
    pub(crate) fn own_slot(&self) -> Option<&MemberSlot> {
        self.page()?.slots.get(self.membership.slot())
    }

    /// Whether another process of the session may be using the device.
    pub(crate) fn is_used_by_siblings(&self, now_ns: u64) -> bool {
        let own = self.own_slot().map(core::ptr::from_ref);
        let is_used = |slot: &MemberSlot| {
            own != Some(core::ptr::from_ref(slot)) && slot.work().until_ns() > now_ns
        };
        self.page().is_some_and(|page| {
            let end = page.high_water.load(Relaxed) as usize;
            page.slots.iter().take(end).any(is_used)
        })
    }

    /// Releases what dead processes held; returns whether there was anything.
    pub(crate) fn reap(&self) -> bool {
        self.or_say(self.membership.reap()).is_some_and(|dead| dead > 0)
    }

    /// The page's fields without dead processes. Looks for dead processes unless a process of the session has done so
    /// within [`REAP_PERIOD`].
    pub(crate) fn page_reaped(&self) -> Option<&PageLayout> {
        self.or_say(self.membership.look_reaped(REAP_PERIOD))
    }

    /// Releases bytes. If the ledger cannot be opened now, releases them when it can next be opened.
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

    /// Reports bytes that could not be released, unless the whole page is damaged, which is reported already.
    pub(crate) fn say_if_damaged(&self, released: Result<(), session::ledger::Damaged>) {
        if let Err(damaged) = released
            && self.page().is_some()
            && self.broken().is_none()
        {
            report::once(format_args!("device {}: {damaged}", self.uuid));
        }
    }

    /// The reason why the limits of this device can no longer be enforced.
    pub(crate) fn broken(&self) -> Option<&LimiterFailure> {
        self.broken.get()
    }

    /// Whether calls must fail because the limits can no longer be enforced.
    pub(crate) fn is_denied(&self) -> bool {
        self.broken().is_some_and(|refused| !self.lets_pass(refused))
    }

    /// Reports why a limit of this device cannot be enforced, and returns whether calls may go on without it.
    pub(crate) fn lets_pass(&self, refused: &LimiterFailure) -> bool {
        refused.lets_pass(self.on_failure)
    }

    /// Whether the session has a limit on this device now.
    pub(crate) fn is_limited(&self) -> bool {
        self.page().is_none_or(|page| page.limits().limits_anything())
    }

    /// Whether the device has a compute share now.
    pub(crate) fn is_scheduled(&self) -> bool {
        self.page().is_some_and(|page| page.limits().compute.is_limit())
    }

    /// Whether the session's memory limit is above the part of it that may be on the device.
    pub(crate) fn is_overcommitted(&self) -> bool {
        self.page().is_some_and(is_overcommitted_by)
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

/// Bytes that a session may still take on the device itself.
pub(crate) fn left(opened: &Ledger<'_>) -> u64 {
    let left = opened.limit().saturating_sub(opened.used());
    left.min(opened.real_limit().saturating_sub(opened.on_device()))
}

/// Whether a page's limits allow it: see [`DeviceLedger::is_overcommitted`].
pub(crate) fn is_overcommitted_by(page: &PageLayout) -> bool {
    page.memory_real.load(Relaxed) < page.memory_limit.load(Relaxed)
}
