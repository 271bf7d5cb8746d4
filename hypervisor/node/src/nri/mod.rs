//! The NRI (Node Resource Interface) plugin: when the container runtime creates a container that got its GPUs from KAI
//! or from NVIDIA's DRA driver, adds the limiter and writes its limits.

mod claims;
mod covered;
mod kai;
mod nvidia;
mod ttrpc;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::net::UnixStream;
use tokio::sync::watch;

use self::claims::{Claimed, ClaimedError};
use self::kai::{Asked, KaiError};
use self::nvidia::Has;
use self::ttrpc::{Answers, NriError, serve};
use crate::allocations::{Allocations, Decision, Grantor, WriteError};
use crate::amounts::Part;
use crate::cluster::Cluster;
use crate::events::{Kind, Told};
use crate::identity::Holder;
use crate::injection::{Injection, PRELOAD};
use crate::mounted;
use crate::plugin::{ALLOCATION, NONE_VISIBLE, VISIBLE};
use crate::pool::{AllocationKey, Pool};
use crate::proto::nri::{
    ConfigureResponse, Container, ContainerAdjustment, CreateContainerRequest,
    CreateContainerResponse, Event, KeyValue, Mount, PodSandbox, PodSandboxRequest,
    RegisterPluginRequest, StartContainerRequest, StateChangeEvent, SynchronizeRequest,
    SynchronizeResponse,
};
use crate::proto::ttrpc::Request;

/// The runtime's socket.
pub const NRI: &str = "/var/run/nri/nri.sock";
/// The plugin's name and index. Plugins that adjust devices have lower indices and run earlier.
const NAME: &str = "sluice";
const INDEX: &str = "90";
/// Pause before connecting to a runtime again.
const AGAIN: Duration = Duration::from_secs(2);
/// How often to look for claims that are no longer used.
const LOOK: Duration = Duration::from_secs(10);
/// How long after its creation a container may have no process that sees its allocation.
const STARTS_WITHIN: Duration = Duration::from_secs(60);
/// The directory, inside a container, of the node's mounts.
const OWN: &str = "run/sluice";

/// The plugin's state.
#[derive(Clone, Debug)]
pub(crate) struct Plugin {
    pub(crate) socket: PathBuf,
    pub(crate) pool: watch::Receiver<Arc<Pool>>,
    pub(crate) allocations: Arc<Allocations>,
    pub(crate) injection: Injection,
    /// `None`: no claims are read, and no event reports a missing NRI.
    pub(crate) cluster: Option<Cluster>,
}

#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Kai(#[from] KaiError),
    #[error(transparent)]
    Claimed(#[from] ClaimedError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("a volume at {0} would take its limits away; expected none at /{OWN} or {PRELOAD}")]
    Covered(String),
    #[error("a volume lies over {}, as the container sees it; expected none there, also by a link of its image", .0.display())]
    Hidden(PathBuf),
    #[error("the allocation's folder: {0}")]
    Folder(#[from] io::Error),
}

/// The source of a container's limits.
enum Grant {
    /// Parts granted to the container.
    Own(Vec<Part>),
    /// Parts of the claim with this UID.
    Claims(Vec<Part>, String, String),
    /// The allocation that the container had before.
    Before(AllocationKey),
}

/// The calls of one connection.
struct Calls {
    plugin: Plugin,
    /// The UIDs of the pods that the runtime has reported on this connection.
    present: BTreeSet<String>,
}

impl Answers for Calls {
    async fn answer(&mut self, method: &str, payload: &[u8]) -> Result<Vec<u8>, String> {
        let done = self.plugin.handle(method, payload, &mut self.present).await;
        done.inspect_err(|reason| tracing::warn!(method, reason, "refused"))
    }
}

impl Plugin {
    /// Connects to the runtime and answers it, again after each disconnect. Never returns.
    pub(crate) async fn keep(self) -> Infallible {
        let mut told = None;
        loop {
            let ended = match self.connected().await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            let reason = ended.to_string();
            // Reports each reason once: a runtime may have NRI switched off for good.
            if told.as_ref() != Some(&reason) {
                self.tell(&reason);
            }
            told = Some(reason);
            tokio::time::sleep(AGAIN).await;
        }
    }

    fn tell(&self, reason: &str) {
        let socket = self.socket.display();
        let note = format!(
            "NRI: {socket}: {reason}; containers of KAI's pods and with claims of NVIDIA's driver are not limited until \
             the container runtime has NRI switched on (containerd 2, or 1.7 with disable = false in its plugin io.containerd.nri.v1.nri)"
        );
        tracing::warn!(note, "no container runtime calls");
        let Some(cluster) = self.cluster.clone() else { return };
        let told = Told::once(Kind::Warning, "NRIUnavailable", "Connect", note);
        tokio::spawn(async move { cluster.events().tell(&cluster.node(), told).await });
    }

    /// Releases the shares of claims that no process sees any more: runtimes do not report the end of a claim.
    pub(crate) async fn forget_claims(self) -> Infallible {
        loop {
            tokio::time::sleep(LOOK).await;
            let allocations = Arc::clone(&self.allocations);
            let work = move || {
                let mounted = |keys: &[_]| mounted::among(Path::new("/proc"), keys);
                allocations.release_unused(Grantor::NvidiaClaim, STARTS_WITHIN, None, mounted)
            };
            if let Ok(Err(error)) = tokio::task::spawn_blocking(work).await {
                tracing::warn!(%error, "a claim's allocation cannot be removed");
            }
        }
    }

    async fn connected(&self) -> Result<Infallible, NriError> {
        let socket = UnixStream::connect(&self.socket).await?;
        let plugin =
            RegisterPluginRequest { plugin_name: NAME.to_owned(), plugin_idx: INDEX.to_owned() };
        let first = Request {
            service: "nri.pkg.api.v1alpha1.Runtime".to_owned(),
            method: "RegisterPlugin".to_owned(),
            payload: plugin.encode_to_vec(),
            timeout_nano: 0,
        };
        let calls = Calls { plugin: self.clone(), present: BTreeSet::new() };
        serve(socket, &first, calls).await
    }

    async fn handle(
        &self,
        method: &str,
        payload: &[u8],
        present: &mut BTreeSet<String>,
    ) -> Result<Vec<u8>, String> {
        let unread = |error: prost::DecodeError| format!("{method}: {error}");
        match method {
            "Configure" => {
                let of = |event: Event| 1 << (event as i32 - 1);
                let events = of(Event::CreateContainer)
                    | of(Event::StartContainer)
                    | of(Event::StopPodSandbox)
                    | of(Event::RemovePodSandbox);
                tracing::info!(socket = %self.socket.display(), "the container runtime calls");
                Ok(ConfigureResponse { events }.encode_to_vec())
            }
            "Synchronize" => {
                let SynchronizeRequest { pods, more } =
                    SynchronizeRequest::decode(payload).map_err(unread)?;
                present.extend(pods.into_iter().map(|pod| pod.uid));
                if !more {
                    let now = std::mem::take(present);
                    self.release(move |pod| !now.contains(pod)).await?;
                }
                Ok(SynchronizeResponse { more }.encode_to_vec())
            }
            "CreateContainer" => {
                let asked = CreateContainerRequest::decode(payload).map_err(unread)?;
                let (pod, container) =
                    (asked.pod.unwrap_or_default(), asked.container.unwrap_or_default());
                let holder = holder(&pod, &container);
                let refused = |refusal: Refusal| format!("sluice: {holder}: {refusal}");
                let adjust = self.adjust(pod, container).await.map_err(refused)?;
                Ok(CreateContainerResponse { adjust }.encode_to_vec())
            }
            "StopPodSandbox" => {
                let stopped = PodSandboxRequest::decode(payload).map_err(unread)?.pod;
                self.has_ended(stopped, Duration::ZERO).await
            }
            "RemovePodSandbox" => {
                let removed = PodSandboxRequest::decode(payload).map_err(unread)?.pod;
                self.has_ended(removed, STARTS_WITHIN).await
            }
            "StartContainer" => {
                let asked = StartContainerRequest::decode(payload).map_err(unread)?;
                self.starts(asked.pod, asked.container).await
            }
            "StateChange" => {
                let change = StateChangeEvent::decode(payload).map_err(unread)?;
                match change.event() {
                    Event::StartContainer => self.starts(change.pod, change.container).await,
                    Event::StopPodSandbox => self.has_ended(change.pod, Duration::ZERO).await,
                    Event::RemovePodSandbox => self.has_ended(change.pod, STARTS_WITHIN).await,
                    _ => Ok(Vec::new()),
                }
            }
            // Calls to which the plugin has not subscribed get an empty answer.
            _ => Ok(Vec::new()),
        }
    }

    /// Checks a created container, whose mounts exist and whose program does not run yet.
    async fn starts(
        &self,
        pod: Option<PodSandbox>,
        container: Option<Container>,
    ) -> Result<Vec<u8>, String> {
        let (pod, container) = (pod.unwrap_or_default(), container.unwrap_or_default());
        let holder = holder(&pod, &container);
        let (allocations, injection) = (Arc::clone(&self.allocations), self.injection.clone());
        let process = Path::new("/proc").join(container.pid.to_string());
        let work = move || covered::first(&process, &allocations, &injection);
        match tokio::task::spawn_blocking(work).await.map_err(|ended| ended.to_string())? {
            Ok(None) => Ok(Vec::new()),
            Ok(Some(path)) => Err(format!("sluice: {holder}: {}", Refusal::Hidden(path))),
            // Whether this container has an allocation is unknown too; most have none, so it starts.
            Err(error) => {
                tracing::warn!(%holder, %error, "what the container sees is not known");
                Ok(Vec::new())
            }
        }
    }

    /// Handles the end of a pod's sandbox. It may be an earlier sandbox of a pod that continues, or be removed while
    /// the pod's next containers start. So allocations that some process sees are kept.
    async fn has_ended(
        &self,
        pod: Option<PodSandbox>,
        at_least: Duration,
    ) -> Result<Vec<u8>, String> {
        let uid = pod.unwrap_or_default().uid;
        let allocations = Arc::clone(&self.allocations);
        let work = move || {
            allocations.release_unused(Grantor::Runtime, at_least, Some(&uid), |keys| {
                mounted::among(Path::new("/proc"), keys)
            })
        };
        let done = tokio::task::spawn_blocking(work).await.map_err(|ended| ended.to_string())?;
        done.map(|()| Vec::new()).map_err(|error| error.to_string())
    }

    async fn release(&self, is_over: impl Fn(&str) -> bool + Send + 'static) -> Result<(), String> {
        let allocations = Arc::clone(&self.allocations);
        let work = move || allocations.take_back(Grantor::Runtime, is_over);
        let done = tokio::task::spawn_blocking(work).await.map_err(|ended| ended.to_string())?;
        done.map_err(|error| error.to_string())
    }

    /// Computes the adjustments of a container. Waits for the API server only if the container may have a claim.
    async fn adjust(
        &self,
        pod: PodSandbox,
        container: Container,
    ) -> Result<Option<ContainerAdjustment>, Refusal> {
        let pool = Arc::clone(&self.pool.borrow());
        let asked = kai::asked(&pod.annotations, (&container.name, &container.env), &pool)?;
        let grant = match asked {
            Asked::Parts(parts) => Grant::Own(parts),
            Asked::Hide => {
                let env = vec![variable(VISIBLE, NONE_VISIBLE)];
                return Ok(Some(ContainerAdjustment { env, mounts: Vec::new() }));
            }
            Asked::Nothing => match self.claimed(&pod, &container).await {
                Ok(Some(Claimed { has: Has::Consumed(parts), uid, name })) => {
                    Grant::Claims(parts, uid, name)
                }
                Ok(Some(Claimed { has: Has::Each(parts), .. })) => Grant::Own(parts),
                Ok(Some(Claimed { has: Has::NoLimits, .. }) | None) => return Ok(None),
                Err(error @ ClaimedError::ApiServer(_)) => {
                    let before =
                        self.allocations.granted_before(&holder(&pod, &container), &pod.uid);
                    Grant::Before(before.ok_or(error)?)
                }
                Err(error) => return Err(error.into()),
            },
        };
        let own = self.clone();
        let work = move || own.create(&pod, &container, grant);
        tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?.map(Some)
    }

    /// Does the file work of [`Self::adjust`]; blocks.
    fn create(
        &self,
        pod: &PodSandbox,
        container: &Container,
        grant: Grant,
    ) -> Result<ContainerAdjustment, Refusal> {
        let mut mounted = container.mounts.iter().map(|mount| &mount.destination);
        if let Some(covering) = mounted.find(|path| covers(path)) {
            return Err(Refusal::Covered(covering.clone()));
        }
        let own = (&*pod.uid, &*container.name);
        let (by, owner, parts, claim) = match &grant {
            Grant::Own(parts) => (Grantor::Runtime, own, parts, None),
            Grant::Claims(parts, uid, name) => {
                (Grantor::NvidiaClaim, (&**uid, ""), parts, Some(name.clone()))
            }
            Grant::Before(key) => return self.mounts(key),
        };
        let (uid, daemon) = (Some(pod.uid.clone()), self.injection.daemon_inside());
        let decision = Decision::in_full(holder(pod, container), uid, parts.clone(), daemon);
        let decision = Decision { claim, ..decision };
        let key = self.allocations.grant(by, owner, &decision)?;
        tracing::info!(container = %decision.holder, key = key.as_str(), "its limits are written");
        self.mounts(&key)
    }

    /// The mounts through which a container sees an allocation.
    fn mounts(&self, key: &AllocationKey) -> Result<ContainerAdjustment, Refusal> {
        let (folder, session) = (self.allocations.of(key), self.allocations.session_of(key));
        let mounts = self.injection.mounts((&folder, &session), None)?.into_iter().map(|mount| {
            let mode = if mount.read_only { "ro" } else { "rw" };
            Mount {
                destination: mount.container_path,
                r#type: "bind".to_owned(),
                source: mount.host_path,
                options: ["bind", "private", mode].map(str::to_owned).into(),
            }
        });
        let env = vec![variable(ALLOCATION, key.as_str())];
        Ok(ContainerAdjustment { env, mounts: mounts.collect() })
    }
}

/// A container's value of `NVIDIA_VISIBLE_DEVICES`. The last occurrence counts, as for NVIDIA's container runtime.
fn visible(variables: &[String]) -> Option<&str> {
    let mut pairs = variables.iter().rev().filter_map(|text| text.split_once('='));
    pairs.find_map(|(name, value)| (name == VISIBLE).then_some(value))
}

fn variable(name: &str, value: &str) -> KeyValue {
    KeyValue { key: name.to_owned(), value: value.to_owned() }
}

fn holder(pod: &PodSandbox, container: &Container) -> Holder {
    Holder {
        namespace: pod.namespace.clone(),
        pod: pod.name.clone(),
        container: container.name.clone(),
    }
}

/// Whether a mount at this path could cover the node's own. Links of the image may lead there through any parent
/// directory.
fn covers(destination: &str) -> bool {
    let parts = Path::new(destination).components();
    let names: Vec<&str> = parts
        .filter_map(|part| match part {
            Component::Normal(name) => name.to_str(),
            Component::ParentDir => Some(".."),
            _ => None,
        })
        .collect();
    let has = |own: &str| {
        let own: Vec<&str> = own.split('/').filter(|name| !name.is_empty()).collect();
        names.windows(own.len()).any(|some| some == own)
    };
    names.contains(&"..") || has(OWN) || has(PRELOAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_over_the_nodes_own_mounts_are_known() {
        for path in [
            "/run/sluice",
            "/run/sluice/allocation",
            "/var/run//sluice/session/x",
            "/etc/ld.so.preload",
            "/run/./sluice",
            "/a/../run/sluice",
        ] {
            assert!(covers(path), "{path}");
        }
        for path in ["/run", "/run/sluices", "/data/run/x/sluice", "/etc", "/etc/ld.so.preload.d"] {
            assert!(!covers(path), "{path}");
        }
    }
}
