//! What the world consists of, and what is on its way in it.

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};

use fake_node::layout::StreamId;
use limiter_core::{Absence, LeaseUtilization, Neighbours, Tenure, Totals};
use limits::ComputeLimit;
use scheduler::{Grant, LeaseId, SessionId, Told, WorkerId};
use session::layout::PageLayout;

use crate::program::Program;
use crate::scenario::Words;

/// Something that happens at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A process of a tenant starts.
    Comes(usize),
    /// A process's thread goes on.
    Goes(usize),
    /// A governor wakes up, unless it has been woken since.
    Wakes(usize, u64),
    /// A message reaches the daemon.
    Arrives(usize, Message),
    /// An answer to a call reaches its governor.
    Answers(usize, u64, Answer),
    /// A call has waited at the daemon for long enough.
    PollEnds(usize, u64),
    /// A gate in streams is opened or closed by the daemon.
    GateOpens(usize, LeaseId),
    GateCloses(usize, LeaseId),
    /// The daemon sees that a lease is over.
    Ended(usize, LeaseId),
    /// The daemon learns that a process has ended.
    Gone(usize),
    /// The daemon's timer.
    Alarm(u64),
    /// The scenario's next trouble.
    Trouble(usize),
    /// A trouble is over.
    Better(usize),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) call: u64,
    pub(crate) kind: MessageKind,
    pub(crate) report: Option<(LeaseId, Told)>,
    pub(crate) outside_ns: u64,
    pub(crate) queued_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// Asks for a lease.
    Ask,
    /// Asks for a lease to go on.
    Renew(LeaseId),
    /// Only tells.
    Tell,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// A lease. Its gate was opened at that moment, if it is in streams.
    Granted(Grant, Option<u64>),
    /// No lease yet; `true`: it is withheld.
    NotYet(bool),
    /// The lease goes on, or ends as it was to end.
    Renewed(Option<Grant>),
    /// The daemon is not there.
    Lost,
}

/// An event and its time. Events of one moment happen in the order in which they were planned.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) at: u64,
    pub(crate) number: u64,
    pub(crate) event: Event,
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Planned {}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Planned {
    /// The first one is the greatest, as a heap wants it.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) quota: ComputeLimit,
    /// Its own account on each of its devices.
    pub(crate) pages: BTreeMap<u32, Box<PageLayout>>,
    /// How many slots of them have been used.
    pub(crate) slots: usize,
    /// Its processes stand still until then.
    pub(crate) stopped_until: u64,
}

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thread {
    /// It goes on at a moment that is planned.
    Runs,
    /// It waits for all that it has launched.
    Waits,
    /// It waits at the gate, or for room behind it.
    Blocked,
}

/// A process with one thread, and a stream on each of its devices.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) tenant: usize,
    pub(crate) program: Program,
    /// Its slot on the simulated node.
    pub(crate) slot: u32,
    pub(crate) governors: Vec<usize>,
    pub(crate) thread: Thread,
    pub(crate) steps: u64,
    pub(crate) alive: bool,
    pub(crate) collectives: u64,
    /// When its next request arrives.
    pub(crate) arrives_at: u64,
}

/// What is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Kernel,
    /// By number.
    Collective(u64),
    /// A wait for a value, and whether that is there.
    Value(bool),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) ns: u64,
    /// What it is taken to need.
    pub(crate) estimated_ns: u64,
    pub(crate) kind: Kind,
}

/// Work that has been handed to the device, and the stream's position after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub(crate) position: u64,
    pub(crate) work: Work,
}

/// What a governor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nobody wants a lease.
    Idle,
    /// It waits for the daemon's answer.
    Asking,
    /// It waits for the session's own account.
    Own,
    /// It waits for what is withheld.
    Withheld,
    /// The gate is open.
    Open,
    /// The same, and it waits for the daemon's answer.
    Renewing,
    /// The lease is over, and its work is not done.
    Draining,
    /// Its process has ended.
    Dead,
}

/// A process's limiter on one device.
#[derive(Debug)]
pub(crate) struct Governor {
    pub(crate) tenant: usize,
    pub(crate) process: usize,
    pub(crate) worker: WorkerId,
    pub(crate) session: SessionId,
    pub(crate) device: u32,
    pub(crate) stream: StreamId,
    /// Its slot in the session's page.
    pub(crate) slot: usize,
    pub(crate) in_stream: bool,
    pub(crate) words: Words,
    /// Estimates are so many thousandths of the truth.
    pub(crate) estimates: u64,
    pub(crate) phase: Phase,
    pub(crate) gate_open: bool,
    pub(crate) shared: bool,
    pub(crate) tenure: Option<Tenure>,
    pub(crate) utilization: LeaseUtilization,
    pub(crate) neighbours: Neighbours,
    pub(crate) absence: Option<Absence>,
    /// What has not been told yet.
    pub(crate) report: Option<(LeaseId, Told)>,
    /// What the renewal tells that is on its way.
    pub(crate) told: Option<(LeaseId, Told)>,
    pub(crate) outside_ns: u64,
    pub(crate) own_ns: u64,
    pub(crate) queued_ns: u64,
    /// Leases whose gates were closed before their answers came.
    pub(crate) closed: Option<LeaseId>,
    /// The number of its last call.
    pub(crate) call: u64,
    /// The number of its last planned wake-up, and when that is.
    pub(crate) alarm: u64,
    pub(crate) wakes_at: Option<u64>,
    pub(crate) held: VecDeque<Work>,
    /// What is estimated of all that is held.
    pub(crate) held_ns: u64,
    pub(crate) begun: VecDeque<Begun>,
    pub(crate) totals: Totals,
    /// What had been launched when the lease was asked for.
    pub(crate) before: Totals,
    pub(crate) busy_from: Option<u64>,
    /// What is done would have taken so long alone.
    pub(crate) done_ns: u64,
    /// Counts launches, and collectives that were begun.
    pub(crate) activity: u64,
    pub(crate) collectives: u64,
    /// When its gate was last closed, when the account was last told of what is left, and until when others wait for it.
    pub(crate) closed_at: u64,
    pub(crate) told_at: u64,
    pub(crate) called_until: u64,
    /// Its work was seen to wait for what its program launches next.
    pub(crate) dependent: bool,
}

impl Governor {
    /// Whether something waits at its gate.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether nothing that was launched is left.
    pub(crate) fn is_idle(&self) -> bool {
        self.held.is_empty() && self.begun.is_empty()
    }

    /// Work comes to the gate.
    pub(crate) fn hold(&mut self, work: Work) {
        self.held_ns += work.estimated_ns;
        self.held.push_back(work);
    }

    /// What came first goes on.
    pub(crate) fn pass(&mut self) {
        if let Some(work) = self.held.pop_front() {
            self.held_ns -= work.estimated_ns;
        }
    }

    /// What is held is never done.
    pub(crate) fn drop_held(&mut self) {
        self.held.clear();
        self.held_ns = 0;
    }

    pub(crate) fn gate(&self) -> (WorkerId, u32) {
        (self.worker, self.device)
    }
}
