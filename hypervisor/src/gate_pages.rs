//! The gate pages of the registered processes: memory of theirs by which a gate is opened and a lease
//! is ended early, and by which they say that a lease's work is done.

use std::collections::HashMap;
use std::sync::Arc;

use ::limits::GpuId;
use protocol::Register;
use scheduler::{LeaseId, WorkerId};
use session::gate_page::{AwaitedEnd, Bell, End, PeerGatePage};

use super::identity::Caller;
use super::limits::{GATE_PAGES, check_fair_part};

/// The pages, by worker. A worker without one opens its gate itself, keeps each lease until it ends,
/// and reports the end.
#[derive(Debug, Default)]
pub(super) struct GatePages {
    pages: HashMap<WorkerId, WorkerPage>,
    /// The leases whose ends are awaited; the latest is the last.
    awaited: Vec<(HeldLease, AwaitedEnd)>,
    /// Rings when there are more of them.
    bell: Arc<Bell>,
}

#[derive(Debug)]
struct WorkerPage {
    uid: u32,
    page: Arc<PeerGatePage>,
}

/// A lease, and who holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HeldLease {
    pub(super) worker: WorkerId,
    pub(super) device: GpuId,
    pub(super) lease: LeaseId,
}

impl GatePages {
    /// Keeps a worker's page, in place of the one that it had. `false`: its user has too many.
    pub(super) fn keep(&mut self, worker: WorkerId, caller: &Caller, page: PeerGatePage) -> bool {
        let uid = caller.owner.uid;
        let others = self.pages.iter().filter(|(other, _)| **other != worker);
        let has = others
            .fold((0, 0), |(own, all), (_, other)| (own + usize::from(other.uid == uid), all + 1));
        let fits = check_fair_part("gate pages", uid, has, GATE_PAGES);
        if let Err(refused) = &fits {
            said(caller, refused);
        } else {
            self.pages.insert(worker, WorkerPage { uid, page: Arc::new(page) });
        }
        fits.is_ok()
    }

    /// Whether a worker has a gate on a device that can be closed from here.
    pub(super) fn has_gate(&self, worker: WorkerId, device: GpuId) -> bool {
        self.pages.get(&worker).is_some_and(|own| own.page.has_block(device))
    }

    /// A lease is granted: its gate is opened, where its process named the closed gate's word when it
    /// asked, and its end is awaited. Returns whether it was opened. The answer is to follow.
    pub(super) fn grant(&mut self, held: HeldLease, word: Option<u32>) -> bool {
        let HeldLease { worker, device, lease } = held;
        self.forget_lease(worker, device);
        let Some(own) = self.pages.get(&worker) else { return false };
        let Some(end) = AwaitedEnd::new(&own.page, device, lease.0) else { return false };
        let opened = word.is_some_and(|word| own.page.grant(device, lease.0, word));
        self.awaited.push((held, end));
        self.bell.ring();
        opened
    }

    /// Ends a lease early. `false`: the worker's page has no gate for the device any more.
    pub(super) fn stop(&self, worker: WorkerId, device: GpuId, lease: LeaseId) -> bool {
        self.pages.get(&worker).is_some_and(|own| own.page.stop_early(device, lease.0))
    }

    /// Takes a lease away that its process keeps and does not use. `false`: it uses it.
    pub(super) fn take_away(&self, worker: WorkerId, device: GpuId, lease: LeaseId) -> bool {
        let is_idle = |own: &WorkerPage| own.page.is_idle(device, lease.0);
        self.pages.get(&worker).is_some_and(is_idle) && self.stop(worker, device, lease)
    }

    /// Says whether a lease may be kept while it is not used.
    pub(super) fn let_keep(&self, worker: WorkerId, device: GpuId, lease: LeaseId, may: bool) {
        if let Some(own) = self.pages.get(&worker) {
            own.page.let_keep(device, lease.0, may);
        }
    }

    /// Takes out the leases whose ends were reached, and those of which that is not clear. `called`:
    /// its process has just said something.
    pub(super) fn take_ended(&mut self, called: Option<HeldLease>) -> Vec<HeldLease> {
        let mut ended = Vec::new();
        self.awaited.retain(|(held, end)| match end.look() {
            End::Ahead => called != Some(*held),
            End::Reached => {
                ended.push(*held);
                false
            }
            End::Unclear => false,
        });
        ended
    }

    /// The leases whose ends are awaited, and how often the bell has rung.
    pub(super) fn awaited(&self) -> (Vec<HeldLease>, Vec<AwaitedEnd>, u32) {
        let (held, ends) = self.awaited.iter().cloned().unzip();
        (held, ends, self.bell.rings())
    }

    /// Awaits the ends of the present leases no more.
    pub(super) fn forget_awaited(&mut self) {
        self.awaited.clear();
    }

    pub(super) fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    /// A worker's lease on a device is over.
    pub(super) fn forget_lease(&mut self, worker: WorkerId, device: GpuId) {
        self.awaited.retain(|(held, _)| (held.worker, held.device) != (worker, device));
    }

    /// A worker has gone.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.pages.remove(&worker);
        self.awaited.retain(|(held, _)| held.worker != worker);
        // The thread that waits lets go of the page, too.
        self.bell.ring();
    }
}

/// The page that a process names in its registration, if it has one. Why it has none is no reason
/// to refuse the registration.
pub(super) async fn named(caller: &Caller, register: &Register) -> Option<PeerGatePage> {
    let descriptor = register.gates?.descriptor;
    let (pid, uid) = (caller.pid.unsigned_abs(), caller.owner.uid);
    // Not by a thread that serves others: giving back memory that the process has let go of
    // meanwhile takes as long as there is much of it.
    let fetched =
        tokio::task::spawn_blocking(move || PeerGatePage::of_process(pid, uid, descriptor));
    match fetched.await {
        Ok(Ok(page)) => Some(page),
        Ok(Err(error)) => {
            said(caller, &error);
            None
        }
        // The runtime is shutting down.
        Err(_) => None,
    }
}

fn said(caller: &Caller, reason: &dyn core::fmt::Display) {
    let (pid, uid) = (caller.pid, caller.owner.uid);
    tracing::debug!(pid, uid, %reason, "leases do not end early");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Owner;
    use session::gate_page::GatePage;

    #[test]
    fn a_user_has_no_more_pages_than_it_leaves_to_others() {
        let page = GatePage::create().unwrap();
        let mut pages = GatePages::default();
        let mut keep = |worker, uid| {
            let caller = Caller::new(1, Owner::user(uid));
            let mapped = PeerGatePage::map(page.as_fd()).unwrap();
            pages.keep(WorkerId(worker), &caller, mapped)
        };
        let first = (0..).take_while(|&n| keep(n, 1)).count();
        assert_eq!(first, GATE_PAGES / 2);
        // In place of one that it has.
        assert!(keep(3, 1) && !keep(9_999, 1));
        assert!(keep(10_000, 2));
        pages.forget(WorkerId(3));
        assert_eq!(pages.pages.len(), first);
    }
}
