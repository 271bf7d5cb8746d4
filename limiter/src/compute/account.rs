//! Obtains, renews and ends leases for the governor: from the daemon, or from the session's own account in its page.

use super::clock;
use super::daemon::Daemon;
use super::gate::Gate;
use super::together::Set;
use crate::ledger::DeviceLedger;
use crate::own_thread::CpuTime;
use core::sync::atomic::Ordering;
use limiter_core::{Lease, Used};
use rustix::thread::{Timespec, futex};
use session::layout::PageLayout;
use session::ledger::Turn;

/// How often a waiting governor checks whether a lease is still wanted and whether a process of the session died with a
/// lease.
const LOOK_NS: u64 = 10_000_000;

/// The session's account of one device, as this process uses it.
pub(super) struct Account {
    gate: &'static Gate,
    ledger: &'static DeviceLedger,
    daemon: Option<Daemon>,
    /// The CPU time of the governor thread.
    cpu: CpuTime,
}

impl Account {
    pub(super) fn new(gate: &'static Gate) -> Self {
        let daemon = gate.of.daemon.as_ref().map(Daemon::new);
        Self { gate, ledger: gate.ledger(), daemon, cpu: CpuTime::default() }
    }

    /// Waits for a lease. `None`: no lease is wanted any more, or none can be had yet.
    pub(super) fn begin(&mut self) -> Option<Lease> {
        self.gate.may_be_together();
        if let Some(daemon) = &mut self.daemon {
            daemon.together = self.gate.collectives.set().is_some();
        }
        if let Some(daemon) = &mut self.daemon
            && daemon.is_there()
            && self.ledger.is_scheduled()
        {
            let set = self.gate.collectives.set();
            if let Some(lease) = set.and_then(begin_called) {
                return Some(lease);
            }
            let may_be_called = set.is_some_and(Set::is_held);
            let answer = daemon.ask(self.ledger, self.gate.stream_gate(), may_be_called);
            if !matches!(answer, Ok(Some(_))) {
                self.gate.withdraw();
            }
            if let Ok(lease) = answer {
                let of_several = self.gate.collectives.set().is_some();
                let lease = lease.map(|lease| Lease { of_several, ..lease });
                self.hold_together(lease);
                return lease;
            }
        }
        if self.is_withheld()
            && let Some(daemon) = &mut self.daemon
            && self.ledger.is_scheduled()
        {
            daemon.look_for_it(self.ledger, LOOK_NS);
            clock::sleep(LOOK_NS);
            return None;
        }
        self.begin_own()
    }

    /// Whether the daemon withholds the device; waiting for that does not count as waiting for a turn.
    pub(super) fn is_withheld(&self) -> bool {
        self.daemon.as_ref().is_some_and(Daemon::withholds)
    }

    /// Notes in the shared page of several devices that this device is held under a daemon's lease.
    fn hold_together(&self, lease: Option<Lease>) {
        if let Some(lease) = lease.filter(|lease| lease.of_several)
            && let Some(set) = self.gate.collectives.known_set()
            && let Some(mut opened) = set.ledger().open()
        {
            opened.hold_elsewhere(set.ledger().membership().slot(), clock::now(), lease.end);
        }
    }

    /// What the own account is charged: devices that are held together are charged for the whole time, whichever of
    /// them works.
    fn charge(lease: Lease, used: Used) -> u64 {
        if lease.of_several { used.needed_ns() } else { used.alone() }
    }

    /// The account of a lease: that of the device, or that of the devices held together.
    fn account_of(&self, of_several: bool) -> &DeviceLedger {
        let set = self.gate.collectives.known_set().filter(|_| of_several);
        set.map_or(self.ledger, |set| set.ledger())
    }

    fn begin_own(&mut self) -> Option<Lease> {
        loop {
            // The device may become part of a set while this thread waits.
            self.gate.may_be_together();
            let set = self.gate.collectives.set();
            let of_several = set.is_some();
            let ledger = set.map_or(self.ledger, Set::ledger);
            let membership = ledger.membership();
            let page = ledger.page();
            let bell = page.map_or(0, |page| page.lease_bell.load(Ordering::Acquire));
            // A process that died with a lease would block the others.
            if page.is_some_and(|page| page.holders.load(Ordering::Relaxed) > 0) {
                ledger.reap();
            }
            if let Some(lease) = set.and_then(begin_called) {
                return Some(lease);
            }
            let now = clock::now();
            // Not in the match expression: that would keep the ledger open during the sleep.
            let turn = ledger.open().map(|mut opened| opened.begin_lease(membership.slot(), now));
            if let Some(refused) = ledger.broken() {
                self.gate.fail(self.ledger.lets_pass(refused));
                return None;
            }
            match turn.unwrap_or(Turn::In(LOOK_NS)) {
                Turn::Granted(length) => return Some(Lease::own(now, length, of_several)),
                Turn::In(wait) => {
                    if let Some(daemon) = &mut self.daemon {
                        daemon.look_for_it(self.ledger, wait);
                    }
                    let rest = now.saturating_add(wait).saturating_sub(clock::now());
                    wait_for_bell(page, bell, rest.min(LOOK_NS));
                }
            }
            if !self.gate.is_wanted() {
                if let Some(mut opened) = ledger.open() {
                    opened.stop_waiting(membership.slot());
                }
                return None;
            }
        }
    }

    /// Charges the use of a lease since the last report and asks to extend the lease. Returns the lease with its
    /// current end.
    pub(super) fn renew(&mut self, lease: Lease, used: Used) -> Lease {
        self.note_cpu();
        if let (Some(id), Some(daemon)) = (lease.id, &mut self.daemon) {
            if !self.ledger.is_scheduled() {
                daemon.end(id, used, 0);
                return self.try_own().unwrap_or(lease);
            }
            used_elsewhere(self.gate, used);
            return match daemon.renew(self.ledger, id, used) {
                Ok(Some(renewed)) => {
                    let renewed = Lease { of_several: lease.of_several, ..renewed };
                    if renewed.of_several {
                        self.account_of(true).membership().still_holding(renewed.end);
                    }
                    renewed
                }
                Ok(None) => lease,
                // Continue on the own account, if it has time left.
                Err(_) => self.try_own().unwrap_or(Lease { end: clock::now(), id: None, ..lease }),
            };
        }
        self.note_own_use(lease, used);
        let (ledger, now) = (self.account_of(lease.of_several), clock::now());
        let slot = ledger.membership().slot();
        let charge = Self::charge(lease, used);
        let turn = ledger.open().map(|mut opened| opened.renew_lease(slot, now, charge));
        // The gate is open, so nobody waits for this request; it must not outlast the lease.
        if let Some(daemon) = &mut self.daemon {
            let end = match turn {
                Some(Turn::Granted(length)) => now.saturating_add(length),
                _ => lease.end,
            };
            daemon.look_for_it(self.ledger, end.saturating_sub(clock::now()));
        }
        // If the daemon is back, the next lease has to come from the daemon.
        let own = self.daemon.as_ref().is_none_or(|daemon| !daemon.is_there());
        match turn {
            Some(Turn::Granted(length)) if own || !self.ledger.is_scheduled() => {
                Lease { end: now + length, ..lease }
            }
            _ => lease,
        }
    }

    fn try_own(&self) -> Option<Lease> {
        let (membership, now) = (self.ledger.membership(), clock::now());
        let turn = self.ledger.open().map(|mut opened| opened.begin_lease(membership.slot(), now));
        match turn {
            Some(Turn::Granted(length)) => {
                Some(Lease { shared: true, ..Lease::own(now, length, false) })
            }
            _ => None,
        }
    }

    /// Reports work that still runs after the end of its lease.
    pub(super) fn still_draining(&mut self, lease: Lease, used: Used) {
        match (lease.id, &mut self.daemon) {
            (Some(id), Some(daemon)) => {
                used_elsewhere(self.gate, used);
                daemon.tell(self.ledger, id, used);
            }
            _ => {
                self.note_own_use(lease, used);
                let ledger = self.account_of(lease.of_several);
                let membership = ledger.membership();
                membership.still_holding(clock::now());
                // The lease is over: this call only charges.
                if let Some(mut opened) = ledger.open() {
                    let charge = Self::charge(lease, used);
                    let _ = opened.renew_lease(membership.slot(), clock::now(), charge);
                }
            }
        }
    }

    /// Ends a lease and reports its use since the last report.
    pub(super) fn end(&mut self, lease: Lease, used: Used) {
        self.note_cpu();
        match (lease.id, &mut self.daemon) {
            (Some(id), Some(daemon)) => {
                used_elsewhere(self.gate, used);
                daemon.end(id, used, self.gate.queued_ns());
            }
            _ => {
                self.note_own_use(lease, used);
                let ledger = self.account_of(lease.of_several);
                end_in(ledger, Self::charge(lease, used));
                if lease.of_several {
                    return;
                }
            }
        }
        // A lease of the devices' shared account ends here too.
        if let Some(set) = self.gate.collectives.known_set() {
            end_in(set.ledger(), 0);
        }
    }

    /// Records in the device's own page what was used under a lease of several devices, and reports it to the daemon:
    /// that includes the time used to catch up with other devices, for which the daemon granted no lease.
    fn note_own_use(&mut self, lease: Lease, used: Used) {
        if lease.of_several {
            used_elsewhere(self.gate, used);
        }
        match &mut self.daemon {
            Some(daemon) if lease.to_catch_up => daemon.used_outside(used.needed_ns()),
            Some(daemon) => daemon.used_by_own_account(Self::charge(lease, used)),
            None => {}
        }
    }

    fn note_cpu(&mut self) {
        self.ledger.note_own_cpu(self.cpu.since());
    }

    /// Called when no lease is wanted: sends unsent reports to the daemon now, instead of with the next request.
    pub(super) fn idle(&mut self) {
        self.note_cpu();
        if let Some(daemon) = &mut self.daemon {
            daemon.tell_the_rest(self.ledger);
            daemon.look_for_it(self.ledger, u64::MAX);
        }
    }
}

/// Sleeps for `ns` nanoseconds, or until another process of the session ends its lease.
fn wait_for_bell(page: Option<&PageLayout>, bell: u32, ns: u64) {
    let Some(page) = page else { return clock::sleep(ns) };
    let time = Timespec { tv_sec: 0, tv_nsec: i64::try_from(ns).unwrap_or(0).min(999_999_999) };
    let _ = futex::wait(&page.lease_bell, futex::Flags::empty(), bell, Some(&time));
}

/// Begins a lease if stuck work on another device may wait for this one.
fn begin_called(set: &Set) -> Option<Lease> {
    let now = clock::now();
    if !set.is_called(now) {
        return None;
    }
    let mut opened = set.ledger().open()?;
    let length = opened.begin_called_lease(set.ledger().membership().slot(), now)?;
    Some(Lease { to_catch_up: true, ..Lease::own(now, length, true) })
}

/// Ends this process's lease in an account.
fn end_in(ledger: &DeviceLedger, used_ns: u64) {
    if let Some(mut opened) = ledger.open() {
        opened.end_lease(ledger.membership().slot(), clock::now(), used_ns);
    }
    if let Some(page) = ledger.page() {
        ring(page);
    }
}

/// Wakes the session's processes that wait for a lease.
pub(super) fn ring(page: &PageLayout) {
    page.lease_bell.fetch_add(1, Ordering::Release);
    let _ = futex::wake(&page.lease_bell, futex::Flags::empty(), i32::MAX as u32);
}

/// Records in the page what was used under a daemon's lease. Beside other sessions the backlogged time says little,
/// because the hardware time-slices the device.
fn used_elsewhere(gate: &Gate, used: Used) {
    let sure = if gate.is_shared() { used.estimated_ns.min(used.held_ns) } else { used.alone() };
    if let Some(mut opened) = gate.ledger().open() {
        let slot = gate.ledger().membership().slot();
        opened.used_elsewhere(slot, clock::now(), used.needed_ns(), used.alone(), sure);
    }
}
