//! A device that the session uses together with others, as this process's gate sees it.
//!
//! Whoever launches a collective kernel says so in the page of all such devices. From then on the device's leases
//! of the own account come from there, and so does the answer to what may still be launched when a lease has
//! ended.

use super::clock;
use super::gate::Gate;
use crate::ledger::DeviceLedger;
use crate::report;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU64};
use session::layout::PageLayout;
use session::together::{LASTS_NS, Together};
use std::sync::OnceLock;

/// See [`Set::patience`]: where the others have launched fewer collectives or the numbers do not tell, and where all
/// have launched as many.
const STUCK_SOON_NS: u64 = 2_000_000;
const STUCK_NS: u64 = 20_000_000;

/// How long a device whose lease has ended may go on to launch what work on other devices waits for.
pub(super) const CATCH_UP_NS: u64 = 15_000_000;

/// See the module.
pub(super) struct Set {
    own: Together,
    /// The account of all.
    ledger: DeviceLedger,
}

impl Set {
    fn join(gate: &Gate) -> Option<Self> {
        match gate.ledger().join_those_together() {
            Ok((own, ledger)) => {
                // The device may be held already, under a lease of its own. Where streams wait it need not be.
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

    /// Whether another device has launched collectives that this one's program has yet to launch.
    pub(super) fn is_behind(&self) -> bool {
        self.asks(Together::is_behind)
    }

    /// Whether more may begin in the streams of another device.
    pub(super) fn others_are_open(&self) -> bool {
        self.asks(Together::others_are_open)
    }

    /// Whether all devices have begun as many collectives; `false` also where the numbers do not tell.
    pub(super) fn is_even(&self) -> bool {
        let differ = |own: &Together, page: &_| own.is_ahead(page) || own.is_behind(page);
        self.asks(Together::numbers_tell) && !self.asks(differ)
    }

    /// How long work of this device may stand still before it is taken to wait for what others are to launch.
    pub(super) fn patience(&self) -> u64 {
        let soon = |own: &Together, page: &_| own.is_ahead(page) || !own.numbers_tell(page);
        if self.asks(soon) { STUCK_SOON_NS } else { STUCK_NS }
    }

    /// Whether one of the devices is held: only that can call others.
    pub(super) fn is_held(&self) -> bool {
        self.asks(|_, page| page.holders.load(Relaxed) > 0)
    }

    /// Whether work on another device stands still and may wait for this one's.
    pub(super) fn is_called(&self, now: u64) -> bool {
        self.asks(|own, page| own.is_called(page, now))
    }

    /// Work stands still, and may wait for what other devices are to launch: until then all may. Returns the call.
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

/// What a device's gate knows of it.
#[derive(Default)]
pub(super) struct Collectives {
    /// What the device is held together with, once it was.
    set: OnceLock<Option<Set>>,
    /// The gate is open only until as many collectives were launched as on the other devices.
    catching_up: AtomicBool,
    /// Then, one more may be launched, whatever the numbers say.
    one_more: AtomicBool,
    /// How many have begun in this process's streams, and how many had when the gate was opened to catch up.
    begun: AtomicU64,
    begun_before: AtomicU64,
    /// When it was last presumed to be used together with others.
    presumed_at: AtomicU64,
}

impl Collectives {
    /// What the device was ever held together with.
    pub(super) fn known_set(&self) -> Option<&Set> {
        self.set.get()?.as_ref()
    }

    /// What it is held together with, if it is; as of now.
    pub(super) fn set(&self) -> Option<&Set> {
        let set = self.known_set()?;
        set.asks(Together::holds).then_some(set)
    }

    /// Whether other devices have launched collectives that this one's program has yet to launch.
    pub(super) fn are_behind(&self) -> bool {
        self.set().is_some_and(Set::is_behind)
    }

    /// Whether the gate is, or was last, open to catch up.
    pub(super) fn catch_up(&self) -> bool {
        self.catching_up.load(SeqCst)
    }

    /// Whether the gate was opened to catch up, and streams have.
    pub(super) fn streams_have_caught_up(&self) -> bool {
        let goes_on = || {
            !self.one_more.load(SeqCst) || self.begun.load(SeqCst) != self.begun_before.load(SeqCst)
        };
        self.catch_up() && !self.are_behind() && goes_on()
    }

    /// The gate is closed.
    pub(super) fn closed(&self) {
        self.catching_up.store(false, SeqCst);
    }
}

impl Gate {
    /// Opens until as many collectives were launched as on the other devices. If that is so already, the numbers
    /// do not tell what others wait for, and one more may be launched.
    pub(super) fn open_to_catch_up(&self, lease: Option<u64>) -> bool {
        let own = &self.collectives;
        own.one_more.store(!own.are_behind(), SeqCst);
        own.begun_before.store(own.begun.load(SeqCst), SeqCst);
        own.catching_up.store(true, SeqCst);
        self.open(lease)
    }

    /// A lease is about to be asked for. Where other devices of the session are used together, this one may be one of
    /// them: if each got its first lease by itself, two sessions could each hold what the other waits for. A device
    /// that then launches no collective is not presumed to be one of them for a while.
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

    /// What is held together with this device, where its streams wait for the gate.
    fn set_of_streams(&self) -> Option<(&Set, &PageLayout)> {
        self.stream_gate()?;
        let set = self.collectives.known_set()?;
        Some((set, set.ledger.page()?))
    }

    /// Tells the other devices how many collectives have begun in streams. To be called by the governor.
    pub(super) fn tell_collectives(&self) {
        let Some((set, page)) = self.set_of_streams() else { return };
        let more = self.lanes().iter().map(|lane| lane.take_collectives()).sum::<i64>();
        if more != 0 {
            self.collectives.begun.fetch_add(more.cast_unsigned(), SeqCst);
            set.own.collectives_begin(page, more);
        }
    }

    /// Tells them that more may begin, for so long or until the gate is closed. Before it is opened.
    pub(super) fn tell_open(&self, until: u64) {
        if let Some((set, page)) = self.set_of_streams() {
            set.own.is_open(page, until);
        }
    }

    /// Tells them that no more will, and how many have.
    pub(super) fn tell_closed(&self) {
        self.tell_collectives();
        if let Some((set, page)) = self.set_of_streams() {
            set.own.is_closed(page);
        }
    }

    /// A thread is about to launch a collective behind the gate in its stream, and its lane has counted it. Returns
    /// whether its batch is to end with it.
    pub(super) fn collective_waits_for_gate(&self) -> bool {
        let own = &self.collectives;
        let Some(set) = own.set.get_or_init(|| Set::join(self)) else { return false };
        let Some(page) = set.ledger.page() else { return false };
        set.own.is_used(page, self.share_ppm());
        let mut ahead = 0_u64;
        self.device_lanes.each(|lane| ahead = ahead.wrapping_add(lane.collectives_ahead()));
        set.own.ends_batch(page, ahead)
    }

    /// A thread is about to launch a collective. `false`: it is not to, because what others wait for has been
    /// launched, and the gate is closed.
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
            // With this one the device has caught up.
            self.shut();
        }
        goes
    }
}
