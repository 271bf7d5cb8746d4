//! A plugin of the container runtime, by the Node Resource Interface: containers that get their GPUs from others than the
//! node agent are given the limiter and limits as they are created.

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
/// How the plugin is called, and when: what adjusts devices comes before it.
const NAME: &str = "sluice";
const INDEX: &str = "90";
/// How long it is waited before a runtime is looked for again.
const AGAIN: Duration = Duration::from_secs(2);
/// How often it is looked which claims are still used.
const LOOK: Duration = Duration::from_secs(10);
/// How long after its container was created an allocation may be in no process.
const STARTS_WITHIN: Duration = Duration::from_secs(60);
/// Below which a container sees what is its node's.
const OWN: &str = "run/sluice";

/// What is needed for that.
#[derive(Clone, Debug)]
pub(crate) struct Plugin {
    pub(crate) socket: PathBuf,
    pub(crate) pool: watch::Receiver<Arc<Pool>>,
    pub(crate) allocations: Arc<Allocations>,
    pub(crate) injection: Injection,
    /// Where claims are, and people are told that there is no NRI.
    pub(crate) cluster: Option<Cluster>,
}

/// Why a container is not created.
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

/// What a container is granted.
enum Grant {
    /// Parts for itself.
    Own(Vec<Part>),
    /// Parts of the claim with this UID and this name.
    Claims(Vec<Part>, String, String),
    /// What it had before.
    Before(AllocationKey),
}

/// What a runtime has said since it was connected.
struct Calls {
    plugin: Plugin,
    /// The pods that it has told of so far.
    present: BTreeSet<String>,
}

impl Answers for Calls {
    async fn answer(&mut self, method: &str, payload: &[u8]) -> Result<Vec<u8>, String> {
        let done = self.plugin.handle(method, payload, &mut self.present).await;
        done.inspect_err(|reason| tracing::warn!(method, reason, "refused"))
    }
}

impl Plugin {
    /// For as long as the program runs.
    pub(crate) async fn keep(self) -> Infallible {
        let mut told = None;
        loop {
            let ended = match self.connected().await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            let reason = ended.to_string();
            // Each reason once: a node's runtime may have it switched off for ever.
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

    /// Gives back what claims had that no process sees any more: a runtime does not tell when a claim ends.
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

    /// Answers one call.
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
            // What is not asked for is answered by nothing.
            _ => Ok(Vec::new()),
        }
    }

    /// A container's mounts are made, and its program does not run yet.
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
            // Most containers have no allocation, and of this one it cannot be told.
            Err(error) => {
                tracing::warn!(%holder, %error, "what the container sees is not known");
                Ok(Vec::new())
            }
        }
    }

    /// A sandbox of a pod has ended. It may be an earlier one, whose pod goes on: what some process sees stays. A runtime may
    /// remove a sandbox at any time later, perhaps while its pod's next containers start.
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

    /// What is to be changed of a container. Only who may have a claim waits for the API server.
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

    /// Touches files.
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
        let how = (limits::Policy::Fixed, daemon);
        let decision = Decision::in_full(holder(pod, container), uid, parts.clone(), how);
        let decision = Decision { claim, ..decision };
        let key = self.allocations.grant(by, owner, &decision)?;
        tracing::info!(container = %decision.holder, key = key.as_str(), "its limits are written");
        self.mounts(&key)
    }

    /// By which a container sees an allocation.
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

/// Whether a mount there could lie over the node's own. Links of the image can lead there by any name in front.
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
