//! The data behind the core's lock, and handing out leases.

use std::collections::HashMap;

use limits::GpuId;
use protocol::Register;
use scheduler::{Grant, Handover, WorkerId};
use session::gate_page::PeerGatePage;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::pending_poll::Granted;
use crate::clock::Clock;
use crate::gate_pages::{GatePages, HeldLease};
use crate::identity::Caller;
use crate::node::Node;

#[derive(Debug)]
pub(super) struct DaemonState {
    pub(super) node: Node,
    pub(super) clock: Clock,
    pub(super) waiting: HashMap<(WorkerId, GpuId), Waiter>,
    pub(super) watches: HashMap<WorkerId, AbortHandle>,
    pub(super) gates: GatePages,
    pub(super) tickets: u64,
    /// When the timer runs next, in schedulers' time.
    pub(super) alarm: u64,
}

impl DaemonState {
    /// Ends leases early, and grants leases on a device. A grant that no call takes is returned, and the scheduler
    /// decides again. Terminates, because each round removes a waiting worker.
    pub(super) fn hand_out(&mut self, uuid: GpuId, now: u64) {
        self.say_who_keeps(uuid, now);
        loop {
            let mut refused = false;
            let mut grants = self.node.decide_together(now);
            grants.extend(self.node.decide(uuid, now).into_iter().map(|grant| (uuid, grant)));
            // Before the grants, so that a granted lease starts on a device that is about to be free.
            let stopped = self.node.stopped(uuid, now);
            for &(worker, lease) in &stopped {
                if !self.gates.stop(worker, uuid, lease) {
                    // From now on other workers wait until this worker's leases end.
                    self.node.set_handover(worker, uuid, Handover::OnThread);
                }
            }
            for (device, grant) in grants {
                let Grant { worker, lease, .. } = grant;
                let waiter = self.waiting.remove(&(worker, device));
                if stopped.contains(&(worker, lease)) {
                    // Ended before the worker was told.
                    self.take_back(device, Granted { grant, opened: false }, now);
                    refused = true;
                    continue;
                }
                let word = waiter.as_ref().and_then(|waiter| waiter.gate);
                let opened = self.gates.grant(HeldLease { worker, device, lease }, word);
                let granted = Granted { grant, opened };
                let taken = waiter.is_some_and(|waiter| waiter.answer.send(granted).is_ok());
                if taken || opened {
                    self.node.was_granted(worker, device, now);
                }
                if !taken {
                    self.take_back(device, granted, now);
                    refused = true;
                }
            }
            if !refused {
                break;
            }
        }
        self.say_who_keeps(uuid, now);
    }

    /// Tells processes which unused leases on a device they may keep. A lease that is unused and may not be kept ends
    /// at once.
    fn say_who_keeps(&mut self, uuid: GpuId, now: u64) {
        for (worker, lease, may) in self.node.kept(uuid, now) {
            if may || !self.gates.take_away(worker, uuid, lease) {
                self.gates.let_keep(worker, uuid, lease, may);
            } else {
                self.node.ended(uuid, worker, lease, now);
            }
        }
    }

    /// Takes back a lease of which the worker was not told. If its gate was opened, the worker may have used the lease,
    /// and is charged.
    pub(super) fn take_back(&mut self, uuid: GpuId, granted: Granted, now: u64) {
        let Granted { grant: Grant { worker, lease, .. }, opened } = granted;
        self.gates.forget_lease(worker, uuid);
        if opened {
            self.gates.stop(worker, uuid, lease);
            self.node.end_unreported(uuid, worker, lease, now);
        } else {
            self.node.give_back(uuid, worker, lease, now);
        }
    }

    /// Stores the gate page of a registration, and tells the schedulers on which devices the worker's gates are in its
    /// streams.
    pub(super) fn take_gates(
        &mut self,
        worker: WorkerId,
        caller: &Caller,
        register: &Register,
        page: Option<PeerGatePage>,
    ) {
        let is_kept = page.is_some_and(|page| self.gates.keep(worker, caller, page));
        for device in &register.devices {
            // The lease ended with the registration.
            self.gates.forget_lease(worker, device.uuid);
            let in_stream = is_kept && self.gates.has_gate(worker, device.uuid);
            let handover = if in_stream { Handover::InStream } else { Handover::OnThread };
            self.node.set_handover(worker, device.uuid, handover);
        }
    }

    /// Removes a worker that has exited.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        if let Some(watch) = self.watches.remove(&worker) {
            watch.abort();
        }
        self.waiting.retain(|(waiting, _), _| *waiting != worker);
        self.gates.forget(worker);
    }
}

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) ticket: u64,
    pub(super) answer: oneshot::Sender<Granted>,
    /// The closed gate's word in the gate page, as the call named it.
    pub(super) gate: Option<u32>,
}
