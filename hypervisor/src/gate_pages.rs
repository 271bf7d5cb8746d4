//! The gate pages of the registered processes: memory of theirs by which a lease is ended early.

use std::collections::HashMap;

use ::limits::GpuId;
use protocol::Register;
use scheduler::{LeaseId, WorkerId};
use session::gate_page::PeerGatePage;

use super::identity::Caller;
use super::limits::{GATE_PAGES, check_fair_part};

/// The pages, by worker. A worker without one keeps each lease until it ends.
#[derive(Debug, Default)]
pub(super) struct GatePages(HashMap<WorkerId, WorkerPage>);

#[derive(Debug)]
struct WorkerPage {
    uid: u32,
    page: PeerGatePage,
}

impl GatePages {
    /// Keeps a worker's page, in place of the one that it had. `false`: its user has too many.
    pub(super) fn keep(&mut self, worker: WorkerId, caller: &Caller, page: PeerGatePage) -> bool {
        let uid = caller.owner.uid;
        let others = self.0.iter().filter(|(other, _)| **other != worker);
        let has = others
            .fold((0, 0), |(own, all), (_, other)| (own + usize::from(other.uid == uid), all + 1));
        let fits = check_fair_part("gate pages", uid, has, GATE_PAGES);
        if let Err(refused) = &fits {
            said(caller, refused);
        } else {
            self.0.insert(worker, WorkerPage { uid, page });
        }
        fits.is_ok()
    }

    /// Whether a worker has a gate on a device that can be closed from here.
    pub(super) fn has_gate(&self, worker: WorkerId, device: GpuId) -> bool {
        self.0.get(&worker).is_some_and(|own| own.page.has_block(device))
    }

    /// Ends a lease early.
    pub(super) fn stop(&self, worker: WorkerId, device: GpuId, lease: LeaseId) {
        if let Some(own) = self.0.get(&worker) {
            own.page.stop_early(device, lease.0);
        }
    }

    /// A worker has gone.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.0.remove(&worker);
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
    tracing::debug!(pid, uid, %reason, "leases end when they end");
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
            let caller = Caller { pid: 1, owner: Owner::user(uid) };
            let mapped = PeerGatePage::map(page.as_fd()).unwrap();
            pages.keep(WorkerId(worker), &caller, mapped)
        };
        let first = (0..).take_while(|&n| keep(n, 1)).count();
        assert_eq!(first, GATE_PAGES / 2);
        // In place of one that it has.
        assert!(keep(3, 1) && !keep(9_999, 1));
        assert!(keep(10_000, 2));
        pages.forget(WorkerId(3));
        assert_eq!(pages.0.len(), first);
    }
}
