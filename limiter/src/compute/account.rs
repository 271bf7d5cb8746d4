//! Where leases come from: the daemon, or the session's own account in its page.

use super::clock;
use crate::config::{Config, DaemonAddress};
use crate::device::Device;
use crate::{report, runtime};
use core::sync::atomic::Ordering;
use core::time::Duration;
use http_bidir_comm::client::{BlockingHttpClient, ClientError, Endpoint};
use utils::ledger::Turn;
use utils::protocol::{
    self, Admission, Decision, DeviceQuota, LeaseReport, Policy, Priority, Register, Registered,
    path,
};

/// The longest lease of the own account: a whole share would never end.
const LONGEST_LEASE_NS: u64 = 1_000_000_000;
/// How often a waiting governor looks around: whether it is still wanted, whether a process of the
/// session has died with a lease.
const LOOK_NS: u64 = 10_000_000;
/// How long one question to the daemon may stay open.
const POLL: Duration = Duration::from_millis(250);
/// How much longer the answer may take before the daemon counts as gone.
const GRACE: Duration = Duration::from_millis(100);
/// How long the own account is used before the daemon is tried again.
const RETRY_NS: u64 = 1_000_000_000;

/// The right to launch until a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    /// On [`clock::now`].
    pub(super) end: u64,
    /// The daemon's name for it; `None`: of the own account.
    id: Option<u64>,
}

/// The account of this process's session on one device.
pub(super) struct Account {
    device: &'static Device,
    daemon: Option<Daemon>,
}

struct Daemon {
    client: BlockingHttpClient,
    session: String,
    worker: Option<u64>,
    /// What has not been told yet.
    report: Option<LeaseReport>,
    /// Not before this moment.
    retry_at: u64,
    /// It could not be reached last time.
    gone: bool,
}

impl Account {
    pub(super) fn new(device: &'static Device) -> Self {
        let daemon = runtime::get().config().and_then(Daemon::new);
        Self { device, daemon }
    }

    /// Waits for a lease. `None`: nobody wants one any more, or not yet.
    pub(super) fn begin(&mut self) -> Option<Lease> {
        if let Some(daemon) = &mut self.daemon
            && clock::now() >= daemon.retry_at
        {
            match daemon.ask(self.device) {
                Ok(lease) => return lease,
                Err(error) => daemon.lost(&error),
            }
        }
        self.begin_own()
    }

    fn begin_own(&self) -> Option<Lease> {
        let seat = self.device.seat();
        loop {
            // A process that died with a lease would go on being charged for.
            if self.device.page().is_some_and(|page| page.holders.load(Ordering::Relaxed) > 0) {
                self.device.reap();
            }
            let now = clock::now();
            // Not within the match, which would keep the book open while this sleeps.
            let turn = self.device.book().map(|mut book| book.begin_lease(seat.slot(), now));
            if let Some(refused) = self.device.broken() {
                self.device.gate().fail(runtime::get().goes_on_without(refused));
                return None;
            }
            match turn.unwrap_or(Turn::In(LOOK_NS)) {
                Turn::Granted(length) => {
                    return Some(Lease { end: now + length.min(LONGEST_LEASE_NS), id: None });
                }
                Turn::In(wait) => clock::sleep(wait.min(LOOK_NS)),
            }
            if !self.device.gate().is_wanted() {
                return None;
            }
        }
    }

    /// Ends a lease that was held for some nanoseconds.
    pub(super) fn end(&mut self, lease: &Lease, held_ns: u64) {
        match (lease.id, &mut self.daemon) {
            (Some(id), Some(daemon)) => {
                daemon.report = Some(LeaseReport {
                    lease: id,
                    held_us: held_ns.div_ceil(1000),
                    estimated_us: held_ns.div_ceil(1000),
                    backlogged_us: held_ns.div_ceil(1000),
                    done: true,
                });
            }
            _ => {
                let seat = self.device.seat();
                if let Some(mut book) = self.device.book() {
                    book.end_lease(seat.slot(), clock::now());
                }
            }
        }
    }

    /// Nobody wants a lease: tells the daemon what it does not know yet, instead of with the next
    /// question.
    pub(super) fn idle(&mut self) {
        if let Some(daemon) = &mut self.daemon
            && daemon.report.is_some()
            && let Err(error) = daemon.exchange(self.device, None)
        {
            daemon.lost(&error);
        }
    }
}

impl Daemon {
    fn new(config: &Config) -> Option<Self> {
        let endpoint = match config.daemon.as_ref()? {
            DaemonAddress::Unix(path) => Endpoint::Unix(path.clone()),
            DaemonAddress::Tcp { host, port } => {
                Endpoint::Tcp { host: host.clone(), port: *port, token: None }
            }
        };
        Some(Self {
            client: BlockingHttpClient::new(endpoint),
            session: runtime::get().session_name(),
            worker: None,
            report: None,
            retry_at: 0,
            gone: false,
        })
    }

    /// Asks for a lease, and tells how the last one was used.
    fn ask(&mut self, device: &Device) -> Result<Option<Lease>, ClientError> {
        let decision = self.exchange(device, Some(POLL))?;
        Ok(decision.lease.map(|lease| Lease {
            end: clock::now() + lease.length_us.saturating_mul(1000),
            id: Some(lease.id),
        }))
    }

    fn exchange(
        &mut self,
        device: &Device,
        wait: Option<Duration>,
    ) -> Result<Decision, ClientError> {
        let worker = match self.worker {
            Some(worker) => worker,
            None => self.register(device)?,
        };
        let ask = wait.map(|wait| u64::try_from(wait.as_micros()).unwrap_or(u64::MAX));
        let message =
            Admission { worker, uuid: wire_uuid(device), report: self.report, ask, quota: None };
        let to = if wait.is_some() { path::ADMISSION } else { path::REPORT };
        let decision = self.client.call(to, &message, wait.unwrap_or_default() + GRACE)?;
        self.report = None;
        Ok(decision)
    }

    fn register(&mut self, device: &Device) -> Result<u64, ClientError> {
        let share_ppm = device.page().map_or(1, |page| page.share_ppm.load(Ordering::Relaxed));
        let message = Register {
            protocol: protocol::VERSION,
            session: self.session.clone(),
            devices: vec![DeviceQuota {
                uuid: wire_uuid(device),
                share_ppm,
                policy: Policy::Fixed,
                soft_ppm: None,
                weight: 1,
                priority: Priority::High,
            }],
        };
        // A lease of a former registration is nothing to this one.
        self.report = None;
        let Registered { worker } = self.client.call(path::REGISTER, &message, GRACE)?;
        tracing::info!("device {}: leases come from {}", device.uuid(), self.client.endpoint());
        self.worker = Some(worker);
        self.gone = false;
        Ok(worker)
    }

    fn lost(&mut self, error: &ClientError) {
        // Once for each time that it goes, whatever the errors are until it is back.
        if !self.gone {
            report::once(format_args!(
                "daemon at {}: {error}; continuing with this session's own account",
                self.client.endpoint()
            ));
        }
        self.gone = true;
        self.worker = None;
        self.report = None;
        self.retry_at = clock::now() + RETRY_NS;
    }
}

/// The form of a UUID on the wire.
fn wire_uuid(device: &Device) -> String {
    device.uuid().to_string().to_ascii_lowercase()
}
