//! Leader election: of several extenders, the holder of a Lease binds pods.
//!
//! Each kube-scheduler calls the extender beside it, and one kube-scheduler is active at a time. So an extender takes
//! the lease when it is called, and releases it when it has not been called for a while. The lease of a holder that
//! died can be taken after [`LASTS`], measured by the successor's clock.

use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use api_server::{CallError, answered, is_conflict, segment};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::Mutex;

use crate::binder::ANSWERS_WITHIN;
use crate::shared::Shared;

/// How long a lease is valid without renewal.
const LASTS: Duration = Duration::from_secs(10);
const RENEWED_EVERY: Duration = Duration::from_secs(2);
/// Without a call for this long, the lease is released: another extender may be called.
const IDLE: Duration = Duration::from_secs(10);

/// Why this extender refuses calls.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaseError {
    #[error("the extender {holder} holds the lease {lease}: it is succeeded {} s after its end", LASTS.as_secs())]
    Held { lease: String, holder: String },
    #[error("the lease {lease}: {source}")]
    Api { lease: String, source: CallError },
}

/// A handle to the lease.
#[derive(Clone)]
pub(crate) struct Leadership {
    leases: Api<Lease>,
    name: LeaseName,
    identity: Arc<str>,
    cluster: Shared,
    held: Arc<StdMutex<Held>>,
    /// Serializes changes of the lease.
    state: Arc<Mutex<State>>,
}

/// A Lease, as `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseName {
    namespace: String,
    name: String,
}

/// The text is no `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no lease; expected NAMESPACE/NAME, such as kube-system/sluice-extender")]
pub struct LeaseNameError(String);

impl std::str::FromStr for LeaseName {
    type Err = LeaseNameError;

    fn from_str(text: &str) -> Result<Self, LeaseNameError> {
        let parts = text.split_once('/');
        let parts = parts.filter(|(namespace, name)| {
            !namespace.is_empty() && !name.is_empty() && !name.contains('/')
        });
        let (namespace, name) = parts.ok_or_else(|| LeaseNameError(text.to_owned()))?;
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

impl std::fmt::Display for LeaseName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[derive(Debug, Default)]
struct Held {
    /// When the lease ends.
    until: Option<Instant>,
    called: Option<Instant>,
}

impl Held {
    /// Whether a write that starts now is answered before the lease ends.
    fn at(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now + ANSWERS_WITHIN < until)
    }
}

#[derive(Debug, Default)]
struct State {
    /// The version of the lease last seen, and when it was first seen.
    seen: Option<(String, Instant)>,
    /// The lease's `leaseTransitions` when this extender took it.
    transitions: Option<i32>,
}

impl State {
    /// Whether another holder's lease has ended.
    fn has_ended(&mut self, lease: &Lease, now: Instant) -> bool {
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        match &self.seen {
            Some((seen, since)) if *seen == version => now.duration_since(*since) >= LASTS,
            _ => {
                self.seen = Some((version, now));
                false
            }
        }
    }
}

fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

impl Leadership {
    pub(crate) fn new(client: Client, name: LeaseName, address: &str, cluster: Shared) -> Self {
        let leases = Api::namespaced(client, &segment(&name.namespace));
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let identity = format!("{}_{address}_{}", host.trim(), Timestamp::now().as_nanosecond());
        let (held, state) = (Arc::default(), Arc::default());
        Self { leases, name, identity: identity.into(), cluster, held, state }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a call. Returns whether the lease is held.
    fn called(&self) -> bool {
        let now = Instant::now();
        let mut held = self.held();
        held.called = Some(now);
        held.at(now)
    }

    pub(crate) async fn take(&self) -> Result<(), LeaseError> {
        if self.called() {
            return Ok(());
        }
        let mut state = self.state.lock().await;
        // Another call has taken it meanwhile.
        if self.called() {
            return Ok(());
        }
        let now = Instant::now();
        let failed = |source| LeaseError::Api { lease: self.name.to_string(), source };
        let own = segment(&self.name.name);
        let known = answered(ANSWERS_WITHIN, self.leases.get_opt(&own)).await.map_err(failed)?;
        let before = known.as_ref().map(holder).unwrap_or_default().to_owned();
        let is_other = !before.is_empty() && before != *self.identity;
        let held = || LeaseError::Held { lease: self.name.to_string(), holder: before.clone() };
        if is_other && !known.as_ref().is_some_and(|lease| state.has_ended(lease, now)) {
            return Err(held());
        }
        let spec = known.as_ref().and_then(|lease| lease.spec.as_ref());
        let count = spec.and_then(|spec| spec.lease_transitions).unwrap_or_default();
        // This extender has held the lease without interruption.
        let is_still_own = state.transitions == Some(count);
        let transitions = if is_still_own { count } else { count.saturating_add(1) };
        let lease = self.lease(known.as_ref(), Some(&self.identity), transitions);
        let how = PostParams::default();
        let written = match known {
            None => answered(ANSWERS_WITHIN, self.leases.create(&how, &lease)).await,
            Some(_) => answered(ANSWERS_WITHIN, self.leases.replace(&own, &how, &lease)).await,
        };
        match written {
            Ok(_) => {}
            Err(CallError::Failed(error)) if is_conflict(&error) => return Err(held()),
            Err(error) => return Err(failed(error)),
        }
        if !is_still_own {
            tracing::info!(lease = %self.name, "taken: the cluster is read anew");
            self.cluster.start_anew();
        }
        state.transitions = Some(transitions);
        self.holds_from(now);
        Ok(())
    }

    fn holds_from(&self, now: Instant) {
        self.held().until = Some(now + LASTS);
        self.cluster.has_lease();
    }

    /// The Lease object to write. `holder`: `None` to release it.
    fn lease(&self, known: Option<&Lease>, holder: Option<&str>, transitions: i32) -> Lease {
        let mut lease = known.cloned().unwrap_or_default();
        lease.metadata.name = Some(self.name.name.clone());
        lease.metadata.namespace = Some(self.name.namespace.clone());
        lease.metadata.managed_fields = None;
        let now = Some(MicroTime(Timestamp::now()));
        let before = lease.spec.take().filter(|spec| spec.holder_identity.as_deref() == holder);
        lease.spec = Some(LeaseSpec {
            acquire_time: before.map_or_else(|| now.clone(), |spec| spec.acquire_time),
            holder_identity: holder.map(ToOwned::to_owned),
            lease_duration_seconds: i32::try_from(LASTS.as_secs()).ok(),
            lease_transitions: Some(transitions),
            renew_time: now,
            ..LeaseSpec::default()
        });
        lease
    }

    /// Renews the lease while calls come; otherwise watches who holds it. Never returns.
    pub(crate) async fn keep(&self) {
        loop {
            tokio::time::sleep(RENEWED_EVERY).await;
            let is_wanted = self.cluster.lock().waiting.wants_lease();
            // Its kube-scheduler may not call again for minutes, while pods wait.
            if is_wanted && self.take().await.is_ok() {
                continue;
            }
            let mut state = self.state.lock().await;
            if let Err(error) = self.renew(&mut state).await {
                tracing::warn!(lease = %self.name, %error, "not renewed");
            }
        }
    }

    async fn renew(&self, state: &mut State) -> Result<(), CallError> {
        let now = Instant::now();
        let own = segment(&self.name.name);
        let known = answered(ANSWERS_WITHIN, self.leases.get_opt(&own)).await?;
        let Some(known) = known else { return Ok(()) };
        if holder(&known) != &*self.identity {
            self.held().until = None;
            state.has_ended(&known, now);
            return Ok(());
        }
        let Some(transitions) = state.transitions else { return Ok(()) };
        let is_called = {
            let mut held = self.held();
            let is_called = held.called.is_some_and(|at| now.duration_since(at) < IDLE);
            held.until = held.until.filter(|_| is_called);
            is_called
        };
        let holder = is_called.then_some(&*self.identity);
        let lease = self.lease(Some(&known), holder, transitions);
        let how = PostParams::default();
        answered(ANSWERS_WITHIN, self.leases.replace(&own, &how, &lease)).await?;
        if is_called {
            self.holds_from(now);
        }
        Ok(())
    }

    /// Releases the lease if it is held, so that another extender need not wait.
    pub(crate) async fn give_back(&self) {
        let mut state = self.state.lock().await;
        let is_held = {
            let mut held = self.held();
            held.called = None;
            held.until.is_some()
        };
        if is_held && let Err(error) = self.renew(&mut state).await {
            tracing::warn!(lease = %self.name, %error, "not given back");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_has_a_namespace_and_a_name() {
        let lease: LeaseName = "kube-system/sluice-extender".parse().unwrap();
        assert_eq!(lease.to_string(), "kube-system/sluice-extender");
        for text in ["", "x", "/x", "x/", "a/b/c"] {
            let said = text.parse::<LeaseName>().unwrap_err().to_string();
            assert!(said.contains("; expected NAMESPACE/NAME"), "{said}");
        }
    }
}
