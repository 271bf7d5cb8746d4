//! What the API and metrics read from the daemon's state and change in it.

use std::sync::Arc;
use std::time::Instant;

use api::{
    Health, LeaseList, Readiness, Reason, ReasonCode, Session, SessionAction, SessionList,
    SessionState, WorkerList,
};

use super::Core;
use super::alive::{STATE_WITHIN, STEP, Stuck};
use crate::events::{Events, NoEventId, Place, Reader};
use crate::identity::{Caller, Owner};
use crate::log;
use crate::node::Node;
use crate::page_memory::{PageMemory, Registered};
use crate::refused::CallRefused;
use crate::status_quota::StatusPermit;
use session::process::ProcessIdentity;

/// A session whose limits are to be changed.
pub(crate) struct SessionToChange {
    pub(crate) uid: u32,
    pub(crate) name: String,
    pub(crate) is_frozen: bool,
    /// Whether its processes run in the daemon's own container or host, so that the daemon sees their files. A session
    /// of the same name and user in another container is a different session.
    pub(crate) is_beside: bool,
    pub(crate) processes: Vec<ProcessIdentity>,
}

impl Core {
    /// The owner whose sessions the caller may see and change; `None`: all sessions.
    pub(super) fn only<'caller>(&self, caller: &'caller Caller) -> Option<&'caller Owner> {
        (!caller.owner.sees_all(&self.own)).then_some(&caller.owner)
    }

    /// Computes an answer about the state, and returns it with the permit to send it.
    pub(super) async fn answer<T>(
        &self,
        caller: &Caller,
        make: impl FnOnce(&mut Node, Option<&Owner>, u64) -> Result<T, CallRefused> + Send,
    ) -> Result<(T, StatusPermit), CallRefused> {
        let mut permit = self.permit(caller).await?;
        let start = Instant::now();
        let made = {
            let mut state = self.state();
            let now = self.now(&mut state);
            make(&mut state.node, self.only(caller), now)
        };
        permit.took(start.elapsed(), Instant::now());
        Ok((made?, permit))
    }

    /// A permit for one answer; waits for the caller's turn.
    pub(crate) async fn permit(&self, caller: &Caller) -> Result<StatusPermit, CallRefused> {
        let permit = self.statuses.take(&caller.owner, Instant::now());
        let permit = permit.inspect_err(|refused| self.refusals.count(refused))?;
        tokio::time::sleep(permit.wait).await;
        Ok(permit)
    }

    pub(crate) async fn session_list(
        &self,
        caller: &Caller,
    ) -> Result<(SessionList, StatusPermit), CallRefused> {
        let pages = self.memory.last();
        self.answer(caller, |node, only, now| Ok(node.sessions(only, None, &pages, now))).await
    }

    /// One session. Sessions that the caller may not see count as unknown.
    pub(crate) async fn session(
        &self,
        caller: &Caller,
        id: u64,
    ) -> Result<(Session, StatusPermit), CallRefused> {
        let pages = self.memory.last();
        let one = |node: &mut Node, only: Option<&Owner>, now| {
            let mut found = node.sessions(only, Some(id), &pages, now);
            found.sessions.pop().ok_or(CallRefused::UnknownSession(id))
        };
        self.answer(caller, one).await
    }

    pub(crate) async fn worker_list(
        &self,
        caller: &Caller,
    ) -> Result<(WorkerList, StatusPermit), CallRefused> {
        self.answer(caller, |node, only, _| Ok(node.workers(only))).await
    }

    pub(crate) async fn lease_list(
        &self,
        caller: &Caller,
    ) -> Result<(LeaseList, StatusPermit), CallRefused> {
        self.answer(caller, |node, only, now| Ok(node.leases(only, now))).await
    }

    /// Freezes or thaws a session. Returns once that is saved for a restart, unless the disk fails.
    pub(crate) async fn freeze_or_thaw(
        &self,
        caller: &Caller,
        id: u64,
        frozen: bool,
    ) -> Result<SessionAction, CallRefused> {
        let done = self.set_frozen(caller, id, frozen)?;
        // Even if nothing has changed: another call's change may not be saved yet.
        if let Some(writing) = &self.writing {
            writing.catch_up().await;
        }
        Ok(done)
    }

    fn set_frozen(
        &self,
        caller: &Caller,
        id: u64,
        frozen: bool,
    ) -> Result<SessionAction, CallRefused> {
        let mut state = self.state();
        let now = self.now(&mut state);
        let (changed, leases) = state.node.set_frozen(id, frozen, self.only(caller), now)?;
        state.node.all_devices().into_iter().for_each(|uuid| state.hand_out(uuid, now));
        self.set_alarm(&mut state, now);
        let frozen = if frozen { SessionState::Frozen } else { SessionState::Running };
        Ok(SessionAction { id, state: frozen, changed, leases: leases as u64 })
    }

    /// A session whose limits the caller may change; its owner, name, and whether it is frozen.
    pub(crate) fn session_to_change(
        &self,
        caller: &Caller,
        id: u64,
    ) -> Result<SessionToChange, CallRefused> {
        let state = self.state();
        let (owner, name) = state.node.session_for(id, self.only(caller))?;
        Ok(SessionToChange {
            uid: owner.uid,
            name: name.to_owned(),
            is_frozen: state.node.is_frozen(id),
            is_beside: self.is_beside(owner),
            processes: state.node.processes_of(id),
        })
    }

    /// Whether an owner's processes run where the daemon runs, not in a container of their own.
    fn is_beside(&self, owner: &Owner) -> bool {
        (owner.pod, owner.container) == (self.own.pod, self.own.container)
    }

    /// A reader's place in the event stream.
    pub(crate) fn events_place(&self, caller: &Caller) -> Result<Place, CallRefused> {
        self.events.place(caller.owner.uid)
    }

    /// Reads the events that a caller may see.
    pub(crate) fn read_events(
        &self,
        caller: &Caller,
        place: Place,
        after: Option<&str>,
    ) -> Result<Reader, NoEventId> {
        Events::read(place, self.only(caller).copied(), after)
    }

    /// The owner under which the daemon's own process would count.
    pub(crate) const fn own(&self) -> &Owner {
        &self.own
    }

    /// The sessions that have processes.
    pub(crate) fn registered(&self) -> Vec<Registered> {
        self.state().node.registered()
    }

    /// Memory figures from the sessions' pages.
    pub(crate) fn page_memory(&self) -> Arc<PageMemory> {
        Arc::clone(&self.memory)
    }

    /// Counts, and publishes as an event, a refused call.
    pub(crate) fn tell_refused(&self, caller: &Caller, refused: &CallRefused) {
        self.refusals.count(refused);
        self.events.refuse(caller, refused.to_string());
    }

    pub(crate) fn health(&self) -> Health {
        Health {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_us: u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX),
            log_lines_lost: log::lines_lost(),
        }
    }

    /// Whether the daemon can serve, and the reasons if it cannot.
    pub(crate) async fn readiness(&self) -> Readiness {
        let mut reasons = Vec::new();
        let mut not_ready = |code, message| reasons.push(Reason { code, message });
        let known = self.knows_a_device().await;
        let stuck = if known.is_none() { Err(Stuck::State) } else { self.came_round() };
        if let Err(stuck) = stuck {
            not_ready(ReasonCode::SchedulerStuck, stuck.to_string());
        }
        if known == Some(false) && !self.sees_a_device() && !self.devices.any() {
            let message = "no GPU is visible on the node, and no process has named one";
            not_ready(ReasonCode::NoDevice, message.to_owned());
        }
        let ready = reasons.is_empty();
        let problem = self.writing.as_ref().and_then(|writing| writing.problem());
        reasons
            .extend(problem.map(|message| Reason { code: ReasonCode::StateNotWritten, message }));
        let file = self.writing.as_ref().map(|writing| writing.path().display().to_string());
        Readiness { ready, reasons, state_file: file }
    }

    /// Whether any process has named a device. `None`: the state's lock is held.
    async fn knows_a_device(&self) -> Option<bool> {
        let start = Instant::now();
        loop {
            let known = self.look_at(Node::knows_a_device);
            if known.is_some() || start.elapsed() >= STATE_WITHIN {
                return known;
            }
            tokio::time::sleep(STEP).await;
        }
    }

    pub(super) fn milliseconds(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
