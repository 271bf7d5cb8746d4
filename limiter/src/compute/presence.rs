//! Tells the daemon of a process whose time is not limited on a device. It needs nothing from there. But who looks
//! after the node is to see its session, and to be able to limit it: in a container nobody else can.

use super::clock;
use super::daemon::{self, Source};
use crate::ledger::DeviceLedger;
use core::time::Duration;
use http_bidir_comm::client::BlockingHttpClient;
use protocol::{Register, Registered, path};

/// How long the daemon may take. Nobody waits for it but the thread that follows the limits.
const WITHIN: Duration = Duration::from_millis(100);
/// How often it is told again: it may be another one since.
const AGAIN_NS: u64 = 10_000_000_000;

/// What one device's follower tells.
pub(super) struct Presence {
    client: BlockingHttpClient,
    session: String,
    next: u64,
}

impl Presence {
    pub(super) fn new(source: &Source) -> Self {
        let client = BlockingHttpClient::new(daemon::endpoint(source));
        Self { client, session: source.session.clone(), next: 0 }
    }

    /// Tells it, now and then, while the device's time is not limited. A daemon that is not there, or does not take
    /// it, stands in nobody's way.
    pub(super) fn tell(&mut self, ledger: &DeviceLedger) {
        if ledger.is_scheduled() {
            // Its governor registers it.
            self.next = 0;
            return;
        }
        let now = clock::now();
        if now < self.next {
            return;
        }
        self.next = now.saturating_add(AGAIN_NS);
        let message = Register {
            protocol: protocol::VERSION,
            session: self.session.clone(),
            devices: daemon::quota(ledger).into_iter().collect(),
            gates: None,
        };
        if let Err(error) = self.client.post::<_, Registered>(path::REGISTER, &message, WITHIN) {
            tracing::debug!("device {}: the daemon was not told of it: {error}", ledger.uuid());
        }
    }
}
