//! Leases from the daemon.

use super::stream_gate::StreamGate;
use super::{clock, stream_gate};
use crate::ledger::DeviceLedger;
use crate::report;
use core::sync::atomic::Ordering;
use core::time::Duration;
use http_bidir_comm::client::{BlockingHttpClient, ClientError, Endpoint};
use limiter_core::{Absence, Lease, Used};
use limits::ComputeLimit;
use limits::turns::{self, Handover};
use protocol::{
    self, Admission, Decision, DeviceQuota, LONGEST_LEASE_US, LeaseReport, Register, Registered,
    Withheld, path,
};
use std::path::PathBuf;

/// How long one question may stay open, and how much longer the answer may take before the daemon counts
/// as gone: a daemon that stands still must not hold a program up for longer than 50 ms.
const POLL: Duration = Duration::from_millis(15);
/// The same of one that others may call for at any moment.
const CALLED_POLL: Duration = Duration::from_millis(3);
const GRACE: Duration = Duration::from_millis(20);
/// How long an answer that is due at once may take.
const AT_ONCE: Duration = Duration::from_millis(25);
/// How long a registration may take: it comes before a question.
const REGISTERED: Duration = Duration::from_millis(15);
/// What takes longer than any call may was not the daemon's fault: this process was stopped meanwhile (SIGSTOP), or the
/// machine was.
const STOOD_STILL: Duration = Duration::from_millis(50);
/// A daemon that is back answers within less, unless the machine is busy.
const LEAST_LOOK_NS: u64 = 1_000_000;
/// A daemon that has not answered for so long is worth a word. Less is a busy machine.
const GONE_NS: u64 = 500_000_000;
/// How long what it withholds is not taken from the own account either, after it was last said.
const WITHHELD_FOR_NS: u64 = 10_000_000_000;
/// A lease that is to be shorter than this is not worth opening the gate.
const SHORTEST_NS: u64 = 1_000_000;

/// Where the daemon is, and by which name it is asked.
pub(crate) struct Source {
    pub(crate) socket: PathBuf,
    /// The session's.
    pub(crate) session: String,
}

/// The daemon, as one device's governor knows it.
pub(super) struct Daemon {
    client: BlockingHttpClient,
    session: String,
    worker: Option<u64>,
    /// What has not been told yet.
    report: Option<LeaseReport>,
    /// The page's count of changes when the quota was last told.
    told_changes: u32,
    /// Whether the device is used together with others.
    pub(super) together: bool,
    /// For how long the device was used outside of leases, which was not told yet.
    outside_ns: u64,
    /// What the session's own account granted meanwhile, and was used, which was not told yet.
    own_ns: u64,
    /// What was queued when the last lease ended.
    queued_ns: u64,
    /// It could not be reached last time.
    lost: Option<Loss>,
    /// It grants this session nothing until it says otherwise, or until then.
    withheld_until: Option<u64>,
}

/// The place that it is asked at.
pub(super) fn endpoint(source: &Source) -> Endpoint {
    Endpoint::Unix(source.socket.clone())
}

/// Asks for a lease.
#[derive(Clone, Copy)]
struct Question {
    /// How long it may stay open.
    most: Duration,
    /// What the daemon may open the gate with.
    word: Option<u32>,
}

#[derive(Clone, Copy)]
struct Loss {
    absence: Absence,
    told: bool,
}

impl Daemon {
    pub(super) fn new(source: &Source) -> Self {
        Self {
            client: BlockingHttpClient::new(endpoint(source)),
            session: source.session.clone(),
            worker: None,
            report: None,
            told_changes: 0,
            together: false,
            outside_ns: 0,
            own_ns: 0,
            queued_ns: 0,
            lost: None,
            withheld_until: None,
        }
    }

    /// Whether it said lately that this session is to have nothing for now. That holds while it is late, or is started
    /// anew; not for ever, if nobody is left who could take it back.
    pub(super) fn withholds(&self) -> bool {
        self.withheld_until.is_some_and(|until| clock::now() < until)
    }

    /// Whether it answered last time, as far as it has been asked.
    pub(super) const fn is_there(&self) -> bool {
        self.lost.is_none()
    }

    /// Asks for a lease, and tells how the last one was used. `Ok(None)`: not yet. With a gate in streams the
    /// lease may have begun before the answer comes.
    pub(super) fn ask(
        &mut self,
        ledger: &DeviceLedger,
        gate: Option<&StreamGate>,
        may_be_called: bool,
    ) -> Result<Option<Lease>, Lost> {
        let asked_at = clock::now();
        let word = gate.and_then(|gate| gate.block().ask());
        let most = if may_be_called { CALLED_POLL } else { POLL };
        let question = Question { most, word };
        let answer = self.exchange(ledger, self.report, Some(question), GRACE);
        let Decision { lease, withheld } = answer?;
        self.withheld_until = withheld.map(|_| clock::now().saturating_add(WITHHELD_FOR_NS));
        let Some(granted) = lease else {
            if let Some(withheld) = withheld {
                tell_withheld(ledger, withheld);
            }
            return Ok(None);
        };
        let now = clock::now();
        let begun = gate.and_then(|gate| gate.block().granted_at(granted.id));
        let begun = begun.map_or(now, |at| at.clamp(asked_at, now));
        believed(ledger, granted, begun).map(Some).map_err(|trouble| {
            let unused = Some(told(granted.id, Used::default(), true));
            let _ = self.try_exchange(ledger, unused, None, AT_ONCE);
            self.lost(&trouble)
        })
    }

    /// Tells how a lease is used, and asks for it to go on. `Ok(None)`: it ends when it was to end.
    pub(super) fn renew(
        &mut self,
        ledger: &DeviceLedger,
        id: u64,
        used: Used,
    ) -> Result<Option<Lease>, Lost> {
        let report = Some(told(id, used, false));
        let at_once = Question { most: Duration::ZERO, word: None };
        let decision = self.exchange(ledger, report, Some(at_once), AT_ONCE).inspect_err(|_| {
            // Told when it answers again, or all of the lease would count as used.
            self.report = Some(told(id, used, true));
        })?;
        Ok(decision.lease.and_then(|granted| believed(ledger, granted, clock::now()).ok()))
    }

    /// Tells how a lease is used.
    pub(super) fn tell(&mut self, ledger: &DeviceLedger, id: u64, used: Used) {
        if self.is_there() {
            let _ = self.exchange(ledger, Some(told(id, used, false)), None, AT_ONCE);
        }
    }

    /// A lease is over, and so much is queued behind the gate. Told with the next question.
    pub(super) fn end(&mut self, id: u64, used: Used, queued_ns: u64) {
        self.report = Some(told(id, used, true));
        self.queued_ns = queued_ns;
    }

    /// The device was used for so long outside of leases. Told with the next message.
    pub(super) const fn used_outside(&mut self, ns: u64) {
        self.outside_ns = self.outside_ns.saturating_add(ns);
    }

    /// The device was used for so long by leases of the session's own account. The daemon's account went on earning
    /// meanwhile, as far as it saves up. Told with the next message.
    pub(super) const fn used_by_own_account(&mut self, ns: u64) {
        self.own_ns = self.own_ns.saturating_add(ns);
    }

    /// Tells what has not been told: how a lease was used, that the limits have changed.
    pub(super) fn tell_the_rest(&mut self, ledger: &DeviceLedger) {
        let changed = self.worker.is_some() && changes(ledger) != self.told_changes;
        if self.is_there() && (self.report.is_some() || changed) {
            let _ = self.exchange(ledger, self.report, None, AT_ONCE);
        }
    }

    /// Tries to reach a daemon that was gone. To be called when nobody waits for the answer for `most_ns`: the
    /// daemon may still stand still.
    pub(super) fn look_for_it(&mut self, ledger: &DeviceLedger, most_ns: u64) {
        let is_time = |loss: Loss| loss.absence.is_over(clock::now());
        if most_ns >= LEAST_LOOK_NS && self.lost.is_some_and(is_time) {
            let most = AT_ONCE.min(Duration::from_nanos(most_ns));
            match self.try_exchange(ledger, self.report, None, most) {
                Ok(_) => self.find(),
                Err(error) => self.lose(&error.into()),
            }
        }
    }

    fn exchange(
        &mut self,
        ledger: &DeviceLedger,
        report: Option<LeaseReport>,
        ask: Option<Question>,
        grace: Duration,
    ) -> Result<Decision, Lost> {
        let asked_at = clock::now();
        let mut answer = self.try_exchange(ledger, report, ask, grace);
        // It was this process that stood still.
        let took = Duration::from_nanos(clock::now().saturating_sub(asked_at));
        if matches!(answer, Err(ClientError::Timeout { .. })) && took > STOOD_STILL {
            answer = self.try_exchange(ledger, report, ask, grace);
        }
        answer.map_err(|error| self.lost(&error.into()))
    }

    /// It answers again.
    fn find(&mut self) {
        self.lost = None;
        report::regained(format_args!(
            "daemon at {}: it is back; leases come from there again",
            self.client.endpoint()
        ));
    }

    fn try_exchange(
        &mut self,
        ledger: &DeviceLedger,
        report: Option<LeaseReport>,
        ask: Option<Question>,
        grace: Duration,
    ) -> Result<Decision, ClientError> {
        let most = ask.map_or(Duration::ZERO, |question| question.most);
        let (worker, report) = match self.worker {
            Some(worker) => (worker, report),
            // A lease of a former registration is nothing to this one.
            None => (self.register(ledger, REGISTERED.min(most + grace))?, None),
        };
        let changes = changes(ledger);
        let quota = if changes == self.told_changes { None } else { quota(ledger) };
        let outside_ns =
            self.outside_ns.saturating_add(self.own_ns.min(saved_up_ns(ledger, self.together)));
        let microseconds = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let message = Admission {
            worker,
            uuid: ledger.uuid(),
            report,
            ask: ask.map(|question| microseconds(question.most)),
            quota,
            gate: ask.and_then(|question| question.word),
            together: self.together,
            outside_us: outside_ns / 1000,
            queued_us: self.queued_ns / 1000,
        };
        let to = if ask.is_some() { path::ADMISSION } else { path::REPORT };
        let decision = self.client.post(to, &message, most + grace)?;
        self.told_changes = changes;
        self.report = None;
        (self.outside_ns, self.own_ns) = (0, 0);
        Ok(decision)
    }

    fn register(&mut self, ledger: &DeviceLedger, most: Duration) -> Result<u64, ClientError> {
        let changes = changes(ledger);
        let message = Register {
            protocol: protocol::VERSION,
            session: self.session.clone(),
            devices: quota(ledger).into_iter().collect(),
            gates: stream_gate::descriptor(),
        };
        stream_gate::forget_leases(ledger.uuid());
        let Registered { worker } = self.client.post(path::REGISTER, &message, most)?;
        tracing::info!("device {}: leases come from {}", ledger.uuid(), self.client.endpoint());
        self.report = None;
        // It has earned nothing yet.
        self.own_ns = 0;
        self.told_changes = changes;
        self.worker = Some(worker);
        Ok(worker)
    }

    fn lost(&mut self, trouble: &Trouble) -> Lost {
        self.lose(trouble);
        Lost
    }

    fn lose(&mut self, trouble: &Trouble) {
        let now = clock::now();
        let absence = Absence::begin(now);
        let loss = self.lost.get_or_insert(Loss { absence, told: false });
        loss.absence.fails(now, trouble.is_distrust());
        // Once for each time that it goes, whatever the errors are until it is back.
        let gone = loss.absence.lasts_ns(now) >= GONE_NS || trouble.is_distrust();
        if !loss.told && gone {
            loss.told = report::lost(
                now,
                format_args!(
                    "daemon at {}: {trouble}; continuing with this session's own account",
                    self.client.endpoint()
                ),
            );
        }
        // One that is only late still knows this process.
        if !matches!(
            trouble,
            Trouble::Call(ClientError::Timeout { .. }) | Trouble::Distrust | Trouble::Ahead
        ) {
            self.worker = None;
            self.report = None;
        }
    }
}

/// Why the daemon is not used for now.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    /// It could not be reached, or did not answer as a daemon does.
    #[error(transparent)]
    Call(#[from] ClientError),
    /// The session has used so much by its leases that it cannot be a true daemon.
    #[error("it grants more than this session's limit allows")]
    Distrust,
    /// The same, but part of it was granted by the session's own account while the daemon was late.
    #[error(
        "with the time that this session's own account granted, it grants more than the limit allows"
    )]
    Ahead,
}

impl Trouble {
    /// Whether it answers, but is not believed.
    const fn is_distrust(&self) -> bool {
        matches!(self, Self::Distrust | Self::Call(ClientError::Untrusted { .. }))
    }
}

/// The daemon could not be reached.
#[derive(Debug)]
pub(super) struct Lost;

/// What is believed of a grant: no more than any daemon grants, and no more than the page allows.
/// It began at `begun`.
///
/// # Errors
/// Why nothing of it is.
fn believed(ledger: &DeviceLedger, granted: protocol::Lease, begun: u64) -> Result<Lease, Trouble> {
    let now = clock::now();
    let (allowed, only_here) = ledger.open().map_or((0, true), |mut opened| {
        (opened.allowed_elsewhere(now), opened.is_granted_elsewhere_only(now))
    });
    let length = allowed.min(granted.length_us.min(LONGEST_LEASE_US) * 1000);
    if allowed < SHORTEST_NS {
        return Err(if only_here { Trouble::Distrust } else { Trouble::Ahead });
    }
    Ok(Lease {
        begun,
        end: begun.saturating_add(length),
        id: Some(granted.id),
        shared: granted.shared,
        exclusive: granted.exclusive,
        of_several: false,
        to_catch_up: false,
    })
}

/// Says why the program waits, where that is no matter of turns.
fn tell_withheld(ledger: &DeviceLedger, withheld: Withheld) {
    let why = match withheld {
        Withheld::Frozen => "this session is frozen",
        Withheld::Unhealthy => "the device is unhealthy",
        Withheld::UnknownProcess => "a process outside any session uses it",
        Withheld::Other => "the reason is unknown to this version",
    };
    report::each_once(format_args!(
        "device {}: the daemon grants no GPU time for now: {why}; see `sluice status`",
        ledger.uuid()
    ));
}

fn told(id: u64, used: Used, done: bool) -> LeaseReport {
    LeaseReport {
        lease: id,
        held_us: used.held_ns / 1000,
        estimated_us: used.estimated_ns / 1000,
        backlogged_us: used.backlogged_ns / 1000,
        idle_us: used.idle_ns / 1000,
        done,
    }
}

/// The session's quota, as its page has it now.
pub(super) fn quota(ledger: &DeviceLedger) -> Option<DeviceQuota> {
    Some(DeviceQuota { uuid: ledger.uuid(), limit: ledger.page()?.limits().compute })
}

/// The most that the daemon's account of the session saves up.
fn saved_up_ns(ledger: &DeviceLedger, together: bool) -> u64 {
    let handover = if together { Handover::Together } else { Handover::default() };
    let limit = ledger.page().map_or(ComputeLimit::NONE, |page| page.limits().compute);
    turns::burst_ns(limit.guaranteed_ppm(turns::LOW_PRIORITY_PPM), handover)
}

fn changes(ledger: &DeviceLedger) -> u32 {
    ledger.page().map_or(0, |page| page.limit_changes.load(Ordering::Acquire))
}
