//! The client of the daemon: asks for leases and reports their use, for a device's governor.

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

/// How long one request may stay open, and how much later the answer may come before the daemon counts as gone.
/// Together below 50 ms, so that a hung daemon does not hold up a program for longer.
const POLL: Duration = Duration::from_millis(15);
/// [`POLL`] for a device that others may call at any moment.
const CALLED_POLL: Duration = Duration::from_millis(3);
const GRACE: Duration = Duration::from_millis(20);
/// How long an answer that is due at once may take.
const AT_ONCE: Duration = Duration::from_millis(25);
/// How long a registration before a request may take.
const REGISTERED: Duration = Duration::from_millis(15);
/// If a request took longer than this, the delay was not the daemon's: this process (SIGSTOP) or the machine was
/// stopped.
const STOOD_STILL: Duration = Duration::from_millis(50);
/// A daemon that is back answers sooner, unless the machine is busy.
const LEAST_LOOK_NS: u64 = 1_000_000;
/// Report the daemon as gone after this time; a shorter absence may be a busy machine.
const GONE_NS: u64 = 500_000_000;
/// How long a withheld device is not used on the own account either, after the daemon last said so.
const WITHHELD_FOR_NS: u64 = 10_000_000_000;
/// A shorter lease is not worth opening the gate.
const SHORTEST_NS: u64 = 1_000_000;

/// How the daemon is reached, and by which name the session is known there.
pub(crate) struct Source {
    pub(crate) socket: PathBuf,
    /// The session's name.
    pub(crate) session: String,
}

/// The daemon, as one device's governor knows it.
pub(super) struct Daemon {
    client: BlockingHttpClient,
    session: String,
    worker: Option<u64>,
    /// The report that has not been sent yet.
    report: Option<LeaseReport>,
    /// The page's count of limit changes when the quota was last sent.
    told_changes: u32,
    /// Whether the device is used together with others.
    pub(super) together: bool,
    /// Time used outside of leases and not reported yet (ns).
    outside_ns: u64,
    /// Time used by leases of the session's own account and not reported yet (ns).
    own_ns: u64,
    /// Estimated work that was queued when the last lease ended (ns).
    queued_ns: u64,
    /// Set while the daemon cannot be reached.
    lost: Option<Loss>,
    /// Until when (ns, `clock::now`) the daemon's answer "withheld" is respected.
    withheld_until: Option<u64>,
}

/// The address of the daemon.
pub(super) fn endpoint(source: &Source) -> Endpoint {
    Endpoint::Unix(source.socket.clone())
}

/// A request for a lease.
#[derive(Clone, Copy)]
struct Question {
    /// How long the request may stay open.
    most: Duration,
    /// The gate word that the daemon may open.
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

    /// Whether the daemon has recently withheld the device from this session. This outlasts a late answer or a restart
    /// of the daemon, but not for ever, because nobody may be left to revoke it.
    pub(super) fn withholds(&self) -> bool {
        self.withheld_until.is_some_and(|until| clock::now() < until)
    }

    /// Whether the daemon answered the last request.
    pub(super) const fn is_there(&self) -> bool {
        self.lost.is_none()
    }

    /// Asks for a lease and reports the use of the last one. `Ok(None)`: not yet. With a gate in streams the lease may
    /// begin before the answer arrives.
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

    /// Reports the use of a lease and asks to extend it. `Ok(None)`: the end stays as it was.
    pub(super) fn renew(
        &mut self,
        ledger: &DeviceLedger,
        id: u64,
        used: Used,
    ) -> Result<Option<Lease>, Lost> {
        let report = Some(told(id, used, false));
        let at_once = Question { most: Duration::ZERO, word: None };
        let decision = self.exchange(ledger, report, Some(at_once), AT_ONCE).inspect_err(|_| {
            // Sent when the daemon answers again; otherwise all of the lease would count as used.
            self.report = Some(told(id, used, true));
        })?;
        Ok(decision.lease.and_then(|granted| believed(ledger, granted, clock::now()).ok()))
    }

    /// Reports the use of a lease.
    pub(super) fn tell(&mut self, ledger: &DeviceLedger, id: u64, used: Used) {
        if self.is_there() {
            let _ = self.exchange(ledger, Some(told(id, used, false)), None, AT_ONCE);
        }
    }

    /// Notes that a lease is over and `queued_ns` of work is queued behind the gate. Sent with the next request.
    pub(super) fn end(&mut self, id: u64, used: Used, queued_ns: u64) {
        self.report = Some(told(id, used, true));
        self.queued_ns = queued_ns;
    }

    /// Notes time that the device was used outside of leases. Sent with the next message.
    pub(super) const fn used_outside(&mut self, ns: u64) {
        self.outside_ns = self.outside_ns.saturating_add(ns);
    }

    /// Notes time that the device was used by leases of the session's own account. Meanwhile the daemon's account of
    /// the session kept earning, as far as it may save up. Sent with the next message.
    pub(super) const fn used_by_own_account(&mut self, ns: u64) {
        self.own_ns = self.own_ns.saturating_add(ns);
    }

    /// Sends what is unsent: the use of a lease, and a change of the limits.
    pub(super) fn tell_the_rest(&mut self, ledger: &DeviceLedger) {
        let changed = self.worker.is_some() && changes(ledger) != self.told_changes;
        if self.is_there() && (self.report.is_some() || changed) {
            let _ = self.exchange(ledger, self.report, None, AT_ONCE);
        }
    }

    /// Tries to reach a daemon that was gone. Called when nobody waits for the result for `most_ns`, because the daemon
    /// may still hang.
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
        // This process was stopped, not the daemon.
        let took = Duration::from_nanos(clock::now().saturating_sub(asked_at));
        if matches!(answer, Err(ClientError::Timeout { .. })) && took > STOOD_STILL {
            answer = self.try_exchange(ledger, report, ask, grace);
        }
        answer.map_err(|error| self.lost(&error.into()))
    }

    /// Called when the daemon answers again.
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
            // A lease of an earlier registration means nothing to this one.
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
        // A new registration has earned nothing yet.
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
        // Once per absence, whatever the errors are until the daemon is back.
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
        // A daemon that is only late still knows this process.
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
    /// The daemon could not be reached, or sent an invalid answer.
    #[error(transparent)]
    Call(#[from] ClientError),
    /// The session used more under its leases than a genuine daemon would grant.
    #[error("it grants more than this session's limit allows")]
    Distrust,
    /// As above, but part of the time was granted by the session's own account while the daemon was late.
    #[error(
        "with the time that this session's own account granted, it grants more than the limit allows"
    )]
    Ahead,
}

impl Trouble {
    /// Whether the daemon answers but is not trusted.
    const fn is_distrust(&self) -> bool {
        matches!(self, Self::Distrust | Self::Call(ClientError::Untrusted { .. }))
    }
}

/// The daemon cannot be used for now.
#[derive(Debug)]
pub(super) struct Lost;

/// Checks a granted lease, which began at `begun`: it may be at most as long as any daemon grants, and as the page
/// allows.
///
/// # Errors
/// If the lease is not to be trusted.
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
        overlaps: granted.overlaps,
        of_several: false,
        to_catch_up: false,
    })
}

/// Logs why the program waits if the reason is not that others have their turn.
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
        launches: used.launches,
        done,
    }
}

/// The session's quota, as in its page now; `None` without a page.
pub(super) fn quota(ledger: &DeviceLedger) -> Option<DeviceQuota> {
    Some(DeviceQuota { uuid: ledger.uuid(), limit: ledger.page()?.limits().compute })
}

/// The most time that the daemon saves up for the session (ns).
fn saved_up_ns(ledger: &DeviceLedger, together: bool) -> u64 {
    let handover = if together { Handover::Together } else { Handover::default() };
    let limit = ledger.page().map_or(ComputeLimit::NONE, |page| page.limits().compute);
    turns::burst_ns(limit.guaranteed_ppm(), handover)
}

fn changes(ledger: &DeviceLedger) -> u32 {
    ledger.page().map_or(0, |page| page.limit_changes.load(Ordering::Acquire))
}
