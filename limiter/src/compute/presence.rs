//! Tells the daemon of a process without a limit on a device's time. The process needs nothing from the daemon, but an
//! administrator has to see its session and be able to limit it; in a container the daemon is the only way. Called by
//! [`super::follow`].

use super::clock;
use super::daemon::{self, Source};
use super::gate::Gate;
use super::stream_gate;
use crate::ledger::DeviceLedger;
use crate::own_thread::{self, CpuTime};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use http_bidir_comm::client::BlockingHttpClient;
use protocol::{Register, Registered, path};
use std::sync::Arc;

/// How long the request may take. Nothing waits for it.
const WITHIN: Duration = Duration::from_secs(1);
/// How often the request is repeated: the daemon may have been restarted.
const AGAIN_NS: u64 = 10_000_000_000;

/// The registration of one device.
pub(super) struct Presence {
    next: u64,
    /// Whether a thread is sending it.
    tells: Arc<AtomicBool>,
}

impl Presence {
    pub(super) fn new() -> Self {
        Self { next: 0, tells: Arc::default() }
    }

    /// Registers with the daemon now and then, while the device's time is not limited. Errors are ignored, because the
    /// process needs no daemon.
    pub(super) fn tell(&mut self, gate: &'static Gate) {
        let Some(source) = gate.of.daemon.as_ref() else { return };
        if gate.ledger().is_scheduled() {
            // The governor registers the device.
            self.next = 0;
            return;
        }
        let now = clock::now();
        if now < self.next || self.tells.swap(true, Ordering::Acquire) {
            return;
        }
        self.next = now.saturating_add(AGAIN_NS);
        let tells = Arc::clone(&self.tells);
        let started = own_thread::start("sluice-presence", move || {
            tell(source, gate.ledger());
            gate.ledger().note_own_cpu(CpuTime::default().since());
            tells.store(false, Ordering::Release);
        });
        if let Err(error) = started {
            self.tells.store(false, Ordering::Release);
            tracing::debug!("cannot start the thread that registers with the daemon: {error}");
        }
    }
}

fn tell(source: &Source, ledger: &DeviceLedger) {
    let message = Register {
        protocol: protocol::VERSION,
        session: source.session.clone(),
        devices: daemon::quota(ledger).into_iter().collect(),
        // As the governor has registered them, or they would count as gone.
        gates: stream_gate::descriptor(),
    };
    // A limit was set meanwhile, so the governor registers.
    if ledger.is_scheduled() {
        return;
    }
    let client = BlockingHttpClient::new(daemon::endpoint(source));
    if let Err(error) = client.post::<_, Registered>(path::REGISTER, &message, WITHIN) {
        tracing::debug!("device {}: not registered with the daemon: {error}", ledger.uuid());
    }
}
