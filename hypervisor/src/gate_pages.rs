//! The gate pages of registered processes. Through this shared memory the daemon opens gates and ends leases early, and
//! processes signal that a lease's work is done.

use std::collections::HashMap;
use std::sync::Arc;

use ::limits::GpuId;
use protocol::Register;
use scheduler::{LeaseId, WorkerId};
use session::gate_page::{AwaitedEnd, Bell, End, PeerGatePage};

use super::identity::Caller;
use super::limits::{GATE_PAGES, check_fair_part};

/// Gate pages by worker. A worker without one opens its gates itself, keeps each lease until it ends, and reports the
/// end.
#[derive(Debug, Default)]
pub(super) struct GatePages {
    pages: HashMap<WorkerId, WorkerPage>,
    /// Leases whose ends are awaited, the latest last.
    awaited: Vec<(HeldLease, AwaitedEnd)>,
    /// Wakes the waiting thread when `awaited` changes.
    bell: Arc<Bell>,
}

#[derive(Debug)]
struct WorkerPage {
    uid: u32,
    page: Arc<PeerGatePage>,
}

/// A lease and its holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HeldLease {
    pub(super) worker: WorkerId,
    pub(super) device: GpuId,
    pub(super) lease: LeaseId,
}

impl GatePages {
    /// Stores a worker's page, replacing an earlier one. `false`: the user has too many pages.
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

    /// Whether the worker's page has a gate for the device, which the daemon can close.
    pub(super) fn has_gate(&self, worker: WorkerId, device: GpuId) -> bool {
        self.pages.get(&worker).is_some_and(|own| own.page.has_block(device))
    }

    /// Opens the gate of a granted lease if the process named the closed gate's word in its call, and awaits the
    /// lease's end. Returns whether the gate was opened. The answer to the call follows.
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

    /// Ends a lease early. `false`: the worker's page no longer has a gate for the device.
    pub(super) fn stop(&self, worker: WorkerId, device: GpuId, lease: LeaseId) -> bool {
        self.pages.get(&worker).is_some_and(|own| own.page.stop_early(device, lease.0))
    }

    /// Ends a lease that its process keeps without using it. `false`: the lease is in use.
    pub(super) fn take_away(&self, worker: WorkerId, device: GpuId, lease: LeaseId) -> bool {
        let is_idle = |own: &WorkerPage| own.page.is_idle(device, lease.0);
        self.pages.get(&worker).is_some_and(is_idle) && self.stop(worker, device, lease)
    }

    /// Tells the process whether it may keep an unused lease.
    pub(super) fn let_keep(&self, worker: WorkerId, device: GpuId, lease: LeaseId, may: bool) {
        if let Some(own) = self.pages.get(&worker) {
            own.page.let_keep(device, lease.0, may);
        }
    }

    /// Removes and returns the leases whose work is done. Stops awaiting leases whose page is inconsistent, and
    /// `called`: its process has signalled although the end is not reached.
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

    /// Leases whose ends are awaited, those ends, and the bell's count.
    pub(super) fn awaited(&self) -> (Vec<HeldLease>, Vec<AwaitedEnd>, u32) {
        let (held, ends) = self.awaited.iter().cloned().unzip();
        (held, ends, self.bell.rings())
    }

    /// Stops awaiting the ends of all current leases.
    pub(super) fn forget_awaited(&mut self) {
        self.awaited.clear();
    }

    pub(super) fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    /// Stops awaiting a worker's lease on a device: it is over.
    pub(super) fn forget_lease(&mut self, worker: WorkerId, device: GpuId) {
        self.awaited.retain(|(held, _)| (held.worker, held.device) != (worker, device));
    }

    /// Removes a worker that has exited.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.pages.remove(&worker);
        self.awaited.retain(|(held, _)| held.worker != worker);
        // Wakes the waiting thread, which then releases its reference to the page.
        self.bell.ring();
    }
}

/// The gate page named in a registration. A page that cannot be used is no reason to refuse the registration.
pub(super) async fn named(caller: &Caller, register: &Register) -> Option<PeerGatePage> {
    let descriptor = register.gates?.descriptor;
    let (pid, uid) = (caller.pid.unsigned_abs(), caller.owner.uid);
    // In a thread that may block: unmapping memory that the process has released takes time proportional to its size.
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
        // In place of one that this user holds.
        assert!(keep(3, 1) && !keep(9_999, 1));
        assert!(keep(10_000, 2));
        pages.forget(WorkerId(3));
        assert_eq!(pages.pages.len(), first);
    }
}
