//! The source of leases: the daemon, or the session's own account in its page.

use super::clock;
use super::daemon::Daemon;
use super::gate::Gate;
use super::usage::Used;
use crate::ledger::DeviceLedger;
use core::sync::atomic::Ordering;
use rustix::thread::{Timespec, futex};
use session::ledger::Turn;

/// How often a waiting governor looks around: whether it is still wanted, whether a process of the
/// session has died with a lease.
const LOOK_NS: u64 = 10_000_000;

/// The right to launch until a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    /// On [`clock::now`].
    pub(super) end: u64,
    /// The daemon's name for it; `None`: of the own account.
    pub(super) id: Option<u64>,
    /// Whether another session may use the device at the same time.
    pub(super) shared: bool,
    /// Whether no other session gets one before this one ends.
    pub(super) exclusive: bool,
}

/// The account of this process's session on one device.
pub(super) struct Account {
    gate: &'static Gate,
    ledger: &'static DeviceLedger,
    daemon: Option<Daemon>,
}

impl Account {
    pub(super) fn new(gate: &'static Gate) -> Self {
        Self { gate, ledger: gate.ledger(), daemon: gate.daemon().map(Daemon::new) }
    }

    /// Waits for a lease. `None`: nobody wants one any more, or not yet.
    pub(super) fn begin(&mut self) -> Option<Lease> {
        if let Some(daemon) = &mut self.daemon
            && daemon.is_there()
            && self.ledger.is_scheduled()
            && let Ok(lease) = daemon.ask(self.ledger)
        {
            return lease;
        }
        self.begin_own()
    }

    fn begin_own(&mut self) -> Option<Lease> {
        let membership = self.ledger.membership();
        loop {
            let page = self.ledger.page();
            let bell = page.map_or(0, |page| page.lease_bell.load(Ordering::Acquire));
            // A process that died with a lease would hold up the others.
            if page.is_some_and(|page| page.holders.load(Ordering::Relaxed) > 0) {
                self.ledger.reap();
            }
            let now = clock::now();
            // Not within the match, which would keep the ledger open while this sleeps.
            let turn =
                self.ledger.open().map(|mut opened| opened.begin_lease(membership.slot(), now));
            if let Some(refused) = self.ledger.broken() {
                self.gate.fail(self.ledger.lets_pass(refused));
                return None;
            }
            match turn.unwrap_or(Turn::In(LOOK_NS)) {
                Turn::Granted(length) => {
                    return Some(Lease {
                        end: now + length,
                        id: None,
                        shared: false,
                        exclusive: false,
                    });
                }
                Turn::In(wait) => {
                    if let Some(daemon) = &mut self.daemon {
                        daemon.look_for_it(self.ledger, wait);
                    }
                    let rest = now.saturating_add(wait).saturating_sub(clock::now());
                    self.wait_for_bell(bell, rest.min(LOOK_NS));
                }
            }
            if !self.gate.is_wanted() {
                if let Some(mut opened) = self.ledger.open() {
                    opened.stop_waiting(membership.slot());
                }
                return None;
            }
        }
    }

    /// Sleeps for some nanoseconds, or until a sibling's lease ends.
    fn wait_for_bell(&self, bell: u32, ns: u64) {
        let Some(page) = self.ledger.page() else { return clock::sleep(ns) };
        let time = Timespec { tv_sec: 0, tv_nsec: i64::try_from(ns).unwrap_or(0).min(999_999_999) };
        let _ = futex::wait(&page.lease_bell, futex::Flags::empty(), bell, Some(&time));
    }

    /// Charges for how the lease was used since this was last told, and asks for it to go on. What comes
    /// back is the lease as it stands now.
    pub(super) fn renew(&mut self, lease: Lease, used: Used) -> Lease {
        if let (Some(id), Some(daemon)) = (lease.id, &mut self.daemon) {
            if !self.ledger.is_scheduled() {
                daemon.end(id, used);
                return self.try_own().unwrap_or(lease);
            }
            used_elsewhere(self.gate, used);
            return match daemon.renew(self.ledger, id, used) {
                Ok(Some(renewed)) => renewed,
                Ok(None) => lease,
                // Goes on on the own account, if that has anything left.
                Err(_) => self.try_own().unwrap_or(Lease { end: clock::now(), id: None, ..lease }),
            };
        }
        let (membership, now) = (self.ledger.membership(), clock::now());
        let turn = self
            .ledger
            .open()
            .map(|mut opened| opened.renew_lease(membership.slot(), now, used.alone()));
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
                Some(Lease { end: now + length, id: None, shared: true, exclusive: false })
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
                let membership = self.ledger.membership();
                membership.still_holding(clock::now());
                // Its lease is over: this only charges.
                if let Some(mut opened) = self.ledger.open() {
                    let _ = opened.renew_lease(membership.slot(), clock::now(), used.alone());
                }
            }
        }
    }

    /// Ends a lease; tells how it was used since that was last told.
    pub(super) fn end(&mut self, lease: Lease, used: Used) {
        match (lease.id, &mut self.daemon) {
            (Some(id), Some(daemon)) => {
                used_elsewhere(self.gate, used);
                daemon.end(id, used);
            }
            _ => {
                let membership = self.ledger.membership();
                if let Some(mut opened) = self.ledger.open() {
                    opened.end_lease(membership.slot(), clock::now(), used.alone());
                }
                if let Some(page) = self.ledger.page() {
                    page.lease_bell.fetch_add(1, Ordering::Release);
                    let bell = &page.lease_bell;
                    let _ = futex::wake(bell, futex::Flags::empty(), i32::MAX as u32);
                }
            }
        }
    }

    /// Nobody wants a lease: tells the daemon what it does not know yet, instead of with the next
    /// question.
    pub(super) fn idle(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            daemon.tell_the_rest(self.ledger);
            daemon.look_for_it(self.ledger, u64::MAX);
        }
    }
}

/// Notes in the page what was used under a daemon's lease. Beside other sessions the time of backlog tells
/// little: the hardware slices the device.
fn used_elsewhere(gate: &Gate, used: Used) {
    let sure = if gate.is_shared() { used.estimated_ns.min(used.held_ns) } else { used.alone() };
    if let Some(mut opened) = gate.ledger().open() {
        opened.used_elsewhere(clock::now(), used.alone(), sure);
    }
}
