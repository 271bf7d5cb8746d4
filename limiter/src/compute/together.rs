//! A device that the session uses together with others, as this process's gate sees it.
//!
//! A thread that launches a collective kernel records that in the page that all such devices share. From then on that
//! page grants the device's leases of the own account, and says what may still be launched after a lease has ended.

use super::clock;
use super::fast_path::FAST_PATH;
use super::gate::Gate;
use crate::ledger::DeviceLedger;
use crate::report;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU64};
use session::layout::PageLayout;
use session::together::{LASTS_NS, Together};
use std::sync::OnceLock;

/// Values of [`Set::patience`]: the first if the other devices have launched fewer collectives or the counts are
/// unknown, the second if all have launched equally many.
const STUCK_SOON_NS: u64 = 2_000_000;
const STUCK_NS: u64 = 20_000_000;

/// How long a device whose lease has ended may continue to launch collectives that other devices wait for.
pub(super) const CATCH_UP_NS: u64 = 15_000_000;

/// The devices that are used together.
pub(super) struct Set {
    own: Together,
    /// The account of all of them.
    ledger: DeviceLedger,
}

impl Set {
    fn join(gate: &Gate) -> Option<Self> {
        match gate.ledger().join_those_together() {
            Ok((own, ledger)) => {
                // The device may already be held under a lease of its own. With gates in streams that is not necessary.
                if gate.lease().is_some()
                    && let Some(mut opened) = ledger.open()
                {
                    let now = clock::now();
                    opened.hold_elsewhere(ledger.membership().slot(), now, now);
                }
                Some(Self { own, ledger })
            }
            Err(error) => {
                let uuid = gate.ledger().uuid();
                report::once(format_args!(
                    "device {uuid} cannot be held together with others: {error}"
                ));
                None
            }
        }
    }

    pub(super) const fn ledger(&self) -> &DeviceLedger {
        &self.ledger
    }

    fn asks(&self, question: impl FnOnce(&Together, &PageLayout) -> bool) -> bool {
        self.ledger.page().is_some_and(|page| question(&self.own, page))
    }

    /// Whether another device has launched collectives that this device's program has yet to launch.
    pub(super) fn is_behind(&self) -> bool {
        self.asks(Together::is_behind)
    }

    /// Whether more collectives may begin in the streams of another device.
    pub(super) fn others_are_open(&self) -> bool {
        self.asks(Together::others_are_open)
    }

    /// Whether all devices have begun equally many collectives; `false` also if the counts are unknown.
    pub(super) fn is_even(&self) -> bool {
        let differ = |own: &Together, page: &_| own.is_ahead(page) || own.is_behind(page);
        self.asks(Together::numbers_tell) && !self.asks(differ)
    }

    /// How long (ns) this device's work may stand still before it is assumed to wait for launches on other devices.
    pub(super) fn patience(&self) -> u64 {
        let soon = |own: &Together, page: &_| own.is_ahead(page) || !own.numbers_tell(page);
        if self.asks(soon) { STUCK_SOON_NS } else { STUCK_NS }
    }

    /// Whether one of the devices is held: only a held device can call others.
    pub(super) fn is_held(&self) -> bool {
        self.asks(|_, page| page.holders.load(Relaxed) > 0)
    }

    /// Whether work on another device is stuck and may wait for this device.
    pub(super) fn is_called(&self, now: u64) -> bool {
        self.asks(|own, page| own.is_called(page, now))
    }

    /// Called if work is stuck and may wait for launches on other devices: allows all of them to launch until `until`.
    /// Returns the number of the call.
    pub(super) fn call_others(&self, until: u64) -> u64 {
        let Some(page) = self.ledger.page() else { return 0 };
        let call = self.own.call_others(page, until);
        super::account::ring(page);
        call
    }

    /// A lease ends; `stuck`: a collective stands still that has begun. For the sake of what `call` was made for nobody
    /// is to go on any more.
    pub(super) fn ends(&self, stuck: bool, call: u64) {
        if let Some(page) = self.ledger.page() {
            self.own.ends(page, stuck);
            Together::call_is_over(page, call);
        }
    }
}

/// A gate's state of collectives.
#[derive(Default)]
pub(super) struct Collectives {
    /// The set of devices, once there was one.
    set: OnceLock<Option<Set>>,
    /// The gate is open only until this device has launched as many collectives as the other devices.
    catching_up: AtomicBool,
    /// While catching up, one more collective may be launched whatever the counts say.
    one_more: AtomicBool,
    /// Collectives that have begun in this process's streams: now, and when the gate was opened to catch up.
    begun: AtomicU64,
    begun_before: AtomicU64,
    /// When the device was last presumed to be used together with others (ns).
    presumed_at: AtomicU64,
}

impl Collectives {
    /// The set of devices that this one was ever used together with.
    pub(super) fn known_set(&self) -> Option<&Set> {
        self.set.get()?.as_ref()
    }

    /// The set of devices, if they are used together now.
    pub(super) fn set(&self) -> Option<&Set> {
        let set = self.known_set()?;
        set.asks(Together::holds).then_some(set)
    }

    /// Whether other devices have launched collectives that this device's program has yet to launch.
    pub(super) fn are_behind(&self) -> bool {
        self.set().is_some_and(Set::is_behind)
    }

    /// Whether the gate is, or was last, open to catch up.
    pub(super) fn catch_up(&self) -> bool {
        self.catching_up.load(SeqCst)
    }

    /// Whether the gate was opened to catch up and the streams have caught up.
    pub(super) fn streams_have_caught_up(&self) -> bool {
        let goes_on = || {
            !self.one_more.load(SeqCst) || self.begun.load(SeqCst) != self.begun_before.load(SeqCst)
        };
        self.catch_up() && !self.are_behind() && goes_on()
    }

    /// Called when the gate is closed.
    pub(super) fn closed(&self) {
        self.catching_up.store(false, SeqCst);
    }
}

impl Gate {
    /// Opens the gate until this device has launched as many collectives as the others. If it already has, the counts
    /// do not show what the others wait for, and one more may be launched.
    pub(super) fn open_to_catch_up(&self, lease: Option<u64>) -> bool {
        let own = &self.collectives;
        own.one_more.store(!own.are_behind(), SeqCst);
        own.begun_before.store(own.begun.load(SeqCst), SeqCst);
        own.catching_up.store(true, SeqCst);
        self.open(lease)
    }

    /// Called before a lease is requested. If other devices of the session are used together, this one may belong to
    /// them: if each got its first lease separately, two sessions could each hold what the other waits for. A device
    /// that then launches no collective is not presumed to belong for a while.
    pub(super) fn may_be_together(&self) {
        let (own, now) = (&self.collectives, clock::now());
        let last = own.presumed_at.load(Relaxed);
        let lately = last != 0 && now.saturating_sub(last) < LASTS_NS;
        if lately || own.set().is_some() {
            return;
        }
        if own.known_set().is_none() && !self.ledger().may_join_those_together() {
            return;
        }
        let Some(set) = own.set.get_or_init(|| Set::join(self)) else { return };
        if set.asks(|own, page| own.may_be_used(page, self.share_ppm())) {
            own.presumed_at.store(now, Relaxed);
        }
    }

    fn share_ppm(&self) -> u32 {
        self.ledger().page().map_or(0, |page| page.share_ppm.load(Relaxed))
    }

    /// The set of devices, if this device's streams wait at the gate.
    fn set_of_streams(&self) -> Option<(&Set, &PageLayout)> {
        self.stream_gate()?;
        let set = self.collectives.known_set()?;
        Some((set, set.ledger.page()?))
    }

    /// Tells the other devices how many collectives have begun in streams. Called by the governor.
    pub(super) fn tell_collectives(&self) {
        let Some((set, page)) = self.set_of_streams() else { return };
        let more = self.lanes().iter().map(|lane| lane.take_collectives()).sum::<i64>();
        if more != 0 {
            self.collectives.begun.fetch_add(more.cast_unsigned(), SeqCst);
            set.own.collectives_begin(page, more);
        }
    }

    /// Tells the other devices that more collectives may begin until `until`, or until the gate is closed. Called
    /// before the gate is opened.
    pub(super) fn tell_open(&self, until: u64) {
        if let Some((set, page)) = self.set_of_streams() {
            set.own.is_open(page, until);
        }
    }

    /// Tells the other devices that no more collectives begin, and how many have begun.
    pub(super) fn tell_closed(&self) {
        self.tell_collectives();
        if let Some((set, page)) = self.set_of_streams() {
            set.own.is_closed(page);
        }
    }

    /// Called before a collective is launched behind the gate in its stream, after its lane has counted it. Returns
    /// whether the batch has to end with it.
    pub(super) fn collective_waits_for_gate(&self) -> bool {
        let own = &self.collectives;
        let Some(set) = own.set.get_or_init(|| Set::join(self)) else { return false };
        let Some(page) = set.ledger.page() else { return false };
        set.own.is_used(page, self.share_ppm());
        if !FAST_PATH.has_one_place() {
            self.device_lanes.hold_no_more();
        }
        let mut ahead = 0_u64;
        self.device_lanes.each(|lane| ahead = ahead.wrapping_add(lane.collectives_ahead()));
        set.own.ends_batch(page, ahead)
    }

    /// Called before a collective is launched. `false`: it must wait, because the device has caught up and the gate is
    /// closed.
    pub(super) fn collective_begins(&self) -> bool {
        let own = &self.collectives;
        let Some(set) = own.set.get_or_init(|| Set::join(self)) else { return true };
        let Some(page) = set.ledger.page() else { return true };
        set.own.is_used(page, self.share_ppm());
        let goes = !own.catch_up() || set.own.is_behind(page) || own.one_more.swap(false, SeqCst);
        if goes {
            set.own.collectives_begin(page, 1);
        }
        if own.catch_up() && !set.own.is_behind(page) {
            // With this collective the device has caught up.
            self.shut();
        }
        goes
    }
}
