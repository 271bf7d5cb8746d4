//! The source of leases: the daemon, or the session's own account in its page.

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

/// How often a waiting governor looks around: whether it is still wanted, whether a process of the
/// session has died with a lease.
const LOOK_NS: u64 = 10_000_000;

/// The account of this process's session on one device.
pub(super) struct Account {
    gate: &'static Gate,
    ledger: &'static DeviceLedger,
    daemon: Option<Daemon>,
    /// The governor's own CPU time.
    cpu: CpuTime,
}

impl Account {
    pub(super) fn new(gate: &'static Gate) -> Self {
        let daemon = gate.of.daemon.as_ref().map(Daemon::new);
        Self { gate, ledger: gate.ledger(), daemon, cpu: CpuTime::default() }
    }

    /// Waits for a lease. `None`: nobody wants one any more, or not yet.
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

    /// Whether the daemon withholds the device: a wait for that is no wait for a turn.
    pub(super) fn is_withheld(&self) -> bool {
        self.daemon.as_ref().is_some_and(Daemon::withholds)
    }

    /// Notes that a device of several is held under a lease from elsewhere.
    fn hold_together(&self, lease: Option<Lease>) {
        if let Some(lease) = lease.filter(|lease| lease.of_several)
            && let Some(set) = self.gate.collectives.known_set()
            && let Some(mut opened) = set.ledger().open()
        {
            opened.hold_elsewhere(set.ledger().membership().slot(), clock::now(), lease.end);
        }
    }

    /// What the own account is charged: of devices that are held together all of the time, whichever of them works.
    fn charge(lease: Lease, used: Used) -> u64 {
        if lease.of_several { used.needed_ns() } else { used.alone() }
    }

    /// The account that a lease is of: the device's, or that of several.
    fn account_of(&self, of_several: bool) -> &DeviceLedger {
        let set = self.gate.collectives.known_set().filter(|_| of_several);
        set.map_or(self.ledger, |set| set.ledger())
    }

    fn begin_own(&mut self) -> Option<Lease> {
        loop {
            // It may come to be held together with others while this waits.
            self.gate.may_be_together();
            let set = self.gate.collectives.set();
            let of_several = set.is_some();
            let ledger = set.map_or(self.ledger, Set::ledger);
            let membership = ledger.membership();
            let page = ledger.page();
            let bell = page.map_or(0, |page| page.lease_bell.load(Ordering::Acquire));
            // A process that died with a lease would hold up the others.
            if page.is_some_and(|page| page.holders.load(Ordering::Relaxed) > 0) {
                ledger.reap();
            }
            if let Some(lease) = set.and_then(begin_called) {
                return Some(lease);
            }
            let now = clock::now();
            // Not within the match, which would keep the ledger open while this sleeps.
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

    /// Charges for how the lease was used since this was last told, and asks for it to go on. What comes
    /// back is the lease as it stands now.
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
                // Goes on on the own account, if that has anything left.
                Err(_) => self.try_own().unwrap_or(Lease { end: clock::now(), id: None, ..lease }),
            };
        }
        self.note_own_use(lease, used);
        let (ledger, now) = (self.account_of(lease.of_several), clock::now());
        let slot = ledger.membership().slot();
        let charge = Self::charge(lease, used);
        let turn = ledger.open().map(|mut opened| opened.renew_lease(slot, now, charge));
        // While the gate is open nobody waits for the answer. It is not to be open for longer than the lease.
        if let Some(daemon) = &mut self.daemon {
            let end = match turn {
                Some(Turn::Granted(length)) => now.saturating_add(length),
                _ => lease.end,
            };
            daemon.look_for_it(self.ledger, end.saturating_sub(clock::now()));
        }
        // With a daemon that is back, the next lease is to come from there.
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

    /// Work that was launched under a lease that has ended still runs.
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
                // Its lease is over: this only charges.
                if let Some(mut opened) = ledger.open() {
                    let charge = Self::charge(lease, used);
                    let _ = opened.renew_lease(membership.slot(), clock::now(), charge);
                }
            }
        }
    }

    /// Ends a lease; tells how it was used since that was last told.
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
        // It was of another account, and is over there, too.
        if let Some(set) = self.gate.collectives.known_set() {
            end_in(set.ledger(), 0);
        }
    }

    /// What was used under a lease of several devices is noted in the device's own page, too. The daemon is told of
    /// what others have called for, and of what it was too late to grant: it granted no lease for that.
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

    /// Nobody wants a lease: tells the daemon what it does not know yet, instead of with the next
    /// question.
    pub(super) fn idle(&mut self) {
        self.note_cpu();
        if let Some(daemon) = &mut self.daemon {
            daemon.tell_the_rest(self.ledger);
            daemon.look_for_it(self.ledger, u64::MAX);
        }
    }
}

/// Sleeps for some nanoseconds, or until a sibling's lease ends.
fn wait_for_bell(page: Option<&PageLayout>, bell: u32, ns: u64) {
    let Some(page) = page else { return clock::sleep(ns) };
    let time = Timespec { tv_sec: 0, tv_nsec: i64::try_from(ns).unwrap_or(0).min(999_999_999) };
    let _ = futex::wait(&page.lease_bell, futex::Flags::empty(), bell, Some(&time));
}

/// A lease for what work on another device waits for, if it does.
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

/// Has the processes look again that wait for a lease.
pub(super) fn ring(page: &PageLayout) {
    page.lease_bell.fetch_add(1, Ordering::Release);
    let _ = futex::wake(&page.lease_bell, futex::Flags::empty(), i32::MAX as u32);
}

/// Notes in the page what was used under a daemon's lease. Beside other sessions the time of backlog tells
/// little: the hardware slices the device.
fn used_elsewhere(gate: &Gate, used: Used) {
    let sure = if gate.is_shared() { used.estimated_ns.min(used.held_ns) } else { used.alone() };
    if let Some(mut opened) = gate.ledger().open() {
        let slot = gate.ledger().membership().slot();
        opened.used_elsewhere(slot, clock::now(), used.needed_ns(), used.alone(), sure);
    }
}
