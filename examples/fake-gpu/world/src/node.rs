//! The state of the world: sessions, processes and governors, and the events and messages between them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};

use fake_node::layout::StreamId;
use limiter_core::{Absence, LeaseUtilization, Neighbours, Tenure, Totals};
use limits::ComputeLimit;
use scheduler::{Grant, LeaseId, SessionId, Told, WorkerId};
use session::layout::PageLayout;

use crate::program::Program;
use crate::scenario::Words;

/// An event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A process of a tenant starts.
    Comes(usize),
    /// A process's thread continues.
    Goes(usize),
    /// A governor wakes up, unless it has been woken since.
    Wakes(usize, u64),
    /// A message reaches the daemon.
    Arrives(usize, Message),
    /// An answer to a call reaches its governor.
    Answers(usize, u64, Answer),
    /// The poll of a call ends at the daemon.
    PollEnds(usize, u64),
    /// The daemon opens or closes a gate in streams.
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
    /// Asks to extend a lease.
    Renew(LeaseId),
    /// Only reports.
    Tell,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// A lease, and when its gate was opened if that is in streams.
    Granted(Grant, Option<u64>),
    /// No lease yet; `true`: the device is withheld.
    NotYet(bool),
    /// The extended lease; `None`: its end stays.
    Renewed(Option<Grant>),
    /// The daemon is gone.
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
    /// Reversed: the earliest event is the greatest, as `BinaryHeap` needs it.
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
    /// Number of used slots in the pages.
    pub(crate) slots: usize,
    /// Until when its processes are stopped.
    pub(crate) stopped_until: u64,
}

/// The state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thread {
    /// It continues at a planned moment.
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

/// The kind of work that is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Kernel,
    /// A collective, by number.
    Collective(u64),
    /// A wait for a value, and whether the value was written.
    Value(bool),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) ns: u64,
    /// Its estimate.
    pub(crate) estimated_ns: u64,
    pub(crate) kind: Kind,
}

/// Work that was handed to the device, and the stream's position after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub(crate) position: u64,
    pub(crate) work: Work,
}

/// The state of a governor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No lease is wanted.
    Idle,
    /// It waits for the daemon's answer.
    Asking,
    /// It waits for the session's own account.
    Own,
    /// It waits for a withheld device.
    Withheld,
    /// The gate is open.
    Open,
    /// The gate is open, and the governor waits for the daemon's answer.
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
    /// Estimates relative to the true times, in thousandths.
    pub(crate) estimates: u64,
    pub(crate) phase: Phase,
    pub(crate) gate_open: bool,
    pub(crate) shared: bool,
    pub(crate) tenure: Option<Tenure>,
    pub(crate) utilization: LeaseUtilization,
    pub(crate) neighbours: Neighbours,
    pub(crate) absence: Option<Absence>,
    /// The report that has not been sent yet.
    pub(crate) report: Option<(LeaseId, Told)>,
    /// The report of the renewal that is under way.
    pub(crate) told: Option<(LeaseId, Told)>,
    pub(crate) outside_ns: u64,
    pub(crate) own_ns: u64,
    pub(crate) queued_ns: u64,
    /// A lease whose gate was closed before its answer arrived.
    pub(crate) closed: Option<LeaseId>,
    /// The number of its last call.
    pub(crate) call: u64,
    /// The number of its last planned wake-up, and its time.
    pub(crate) alarm: u64,
    pub(crate) wakes_at: Option<u64>,
    pub(crate) held: VecDeque<Work>,
    /// The estimate of all held work.
    pub(crate) held_ns: u64,
    pub(crate) begun: VecDeque<Begun>,
    pub(crate) totals: Totals,
    /// Totals when the lease was requested.
    pub(crate) before: Totals,
    pub(crate) busy_from: Option<u64>,
    /// Solo time of the work that is done.
    pub(crate) done_ns: u64,
    /// Number of launches, and of collectives that have begun.
    pub(crate) activity: u64,
    pub(crate) collectives: u64,
    /// When its gate was last closed, and when the use of remaining work was last reported.
    pub(crate) closed_at: u64,
    pub(crate) told_at: u64,
    pub(crate) called_until: u64,
    /// Whether its work was seen to wait for its program's next launches.
    pub(crate) dependent: bool,
}

impl Governor {
    /// Whether work waits at the gate.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether nothing launched is left.
    pub(crate) fn is_idle(&self) -> bool {
        self.held.is_empty() && self.begun.is_empty()
    }

    /// Adds work at the gate.
    pub(crate) fn hold(&mut self, work: Work) {
        self.held_ns += work.estimated_ns;
        self.held.push_back(work);
    }

    /// Lets the first work pass.
    pub(crate) fn pass(&mut self) {
        if let Some(work) = self.held.pop_front() {
            self.held_ns -= work.estimated_ns;
        }
    }

    /// Drops held work, which will never run.
    pub(crate) fn drop_held(&mut self) {
        self.held.clear();
        self.held_ns = 0;
    }

    pub(crate) fn gate(&self) -> (WorkerId, u32) {
        (self.worker, self.device)
    }
}
