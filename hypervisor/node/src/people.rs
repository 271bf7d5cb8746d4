//! Serves people through the API server: applies limits that an annotation changes on running pods, and reports refused
//! memory and processes without a session as events.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use api::DeviceList;
use bytesize::ByteSize;
use dialects::claims::ContainerClaims;
use dialects::{Dialect, PodClaims, Share, pods};
use http_bidir_comm::client::{BlockingHttpClient, ClientError, Endpoint};
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::Resource;
use limits::GpuId;
use session::taken::Took;
use session::{Page, Refusals, Summary};
use tokio::sync::watch;

use crate::allocations::{Allocations, Decision, Held, WriteError};
use crate::amounts::{AmountError, Wish};
use crate::cluster::Cluster;
use crate::events::{Events, Kind, Told};
use crate::identity::Holder;
use crate::live::{self, ChangeError, LIMITS};
use crate::often::{Due, Often};
use crate::pool::{AllocationKey, Gpu, Pool};
use crate::starting;
use crate::words::{self, WordsError};

/// How often pods and allocations are checked.
const LOOK: Duration = Duration::from_secs(1);
/// How often the daemon is asked for processes without a session.
const ASK: Duration = Duration::from_secs(10);
/// Timeout of the daemon's answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// How many processes an event names.
const NAMED: usize = 3;

#[derive(Debug, thiserror::Error)]
enum NotChanged {
    #[error(transparent)]
    Change(#[from] ChangeError),
    #[error(transparent)]
    Words(#[from] WordsError),
    #[error(transparent)]
    Amount(#[from] AmountError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("{0} is not one of the node's GPUs any more")]
    NoGpu(GpuId),
}

/// The state of the loop.
#[derive(Clone)]
pub(crate) struct People {
    pub(crate) cluster: Cluster,
    pub(crate) allocations: Arc<Allocations>,
    pub(crate) pool: watch::Receiver<Arc<Pool>>,
    pub(crate) dialects: Arc<[Dialect]>,
    /// The daemon's socket on the node.
    pub(crate) socket: Arc<Path>,
    /// The daemon's socket inside containers.
    pub(crate) daemon: Arc<Path>,
    /// Receives GPUs that an operator has declared healthy.
    pub(crate) healthy: Sender<GpuId>,
}

/// The reported refusals, by allocation and GPU.
type Known = BTreeMap<(AllocationKey, GpuId), Often>;

impl People {
    /// Checks periodically. Never returns.
    pub(crate) async fn keep(self) -> Infallible {
        let mut known = self.told_before();
        let (mut strangers, mut declared) = (BTreeMap::new(), BTreeMap::new());
        let mut asked = None::<Instant>;
        loop {
            tokio::time::sleep(LOOK).await;
            if asked.is_none_or(|asked| asked.elapsed() >= ASK) {
                asked = Some(Instant::now());
                // Without a daemon, nothing is known of devices and processes.
                if let Some(list) = self.devices().await {
                    self.follow_operator(&list, &mut declared);
                    self.tell_of_strangers(list, &mut strangers);
                }
            }
            let pods = self.cluster.present();
            let held = self.allocations.held();
            known.retain(|(key, _), _| held.iter().any(|one| one.key == *key));
            for held in held {
                let holder = &held.holder;
                let Some(pod) = pods.get(&(holder.namespace.clone(), holder.pod.clone())) else {
                    continue;
                };
                // The watched pod of this name may be an earlier one.
                if held.pod.is_some() && held.pod != pod.metadata.uid {
                    continue;
                }
                self.follow(&held, pod).await;
                self.look_for_refusals(&held, pod, &mut known).await;
            }
        }
    }

    /// The refusals counted before this run, which are not reported again.
    fn told_before(&self) -> Known {
        let mut known = Known::new();
        for held in self.allocations.held() {
            let folder = self.allocations.session_of(&held.key);
            for gpu in held.gpus {
                let refused = summary(&folder, gpu).and_then(|summary| summary.refused);
                let often = Often::from(refused.map_or(0, |refused| refused.count));
                known.insert((held.key.clone(), gpu), often);
            }
        }
        known
    }

    async fn follow(&self, held: &Held, pod: &Arc<Pod>) {
        let text = pods::annotation(pod, LIMITS);
        if text == held.followed.as_deref() {
            return;
        }
        let (own, text) = (self.clone(), text.map(ToOwned::to_owned));
        let (work, about) = ((held.clone(), Arc::clone(pod)), pod.object_ref(&()));
        let worked = tokio::task::spawn_blocking(move || {
            let (held, pod) = work;
            let changed = own.change(&held, &pod, text.as_deref());
            // Recorded even if refused, so that a refused change is not applied later behind people's backs.
            if let Err(error) = own.allocations.followed(&held.key, text) {
                tracing::warn!(%error, "the annotation that was followed");
            }
            changed
        });
        let container = &held.holder.container;
        match worked.await {
            Ok(Ok(None)) => {}
            Ok(Ok(Some((said, dialect)))) => {
                // An earlier run may have ended before writing it.
                self.write_real(pod, &held.holder, dialect);
                let Some(said) = said else { return };
                tracing::info!(holder = %held.holder, said, "its limits are changed");
                let note = format!("limits changed: container {container}: {said}");
                let told = Told::once(Kind::Normal, "GPULimitsChanged", "ChangeLimits", note);
                self.tell(about, told);
            }
            Ok(Err(reason)) => {
                let note = format!("limits not changed: container {container}: {LIMITS}: {reason}");
                tracing::warn!(holder = %held.holder, note, "its limits stay");
                let told = Told::once(Kind::Warning, "GPULimitsRefused", "ChangeLimits", note);
                self.tell(about, told);
            }
            Err(ended) => tracing::error!(%ended, "changing limits"),
        }
    }

    /// Applies the annotation `text`. Returns the changes in words, if any, and the pod's dialect. Blocks on files and
    /// until processes have confirmed the change.
    fn change(
        &self,
        held: &Held,
        pod: &Pod,
        text: Option<&str>,
    ) -> Result<Option<(Option<String>, Dialect)>, NotChanged> {
        let mut own = Vec::new();
        for container in pods::containers(pod) {
            if pods::need(pod, container, &self.dialects).map_err(WordsError::from)?.is_some() {
                own.push(container.name.as_str());
            }
        }
        let all = text.map(|text| live::changes(text, &own)).transpose()?.unwrap_or_default();
        let change = all.get(&held.holder.container).copied().unwrap_or_default();
        let pool = Arc::clone(&self.pool.borrow());
        let (policy, factor) = (self.cluster.policy(), pool.memory_factor());
        let wish = words::wish(pod, &held.holder.container, &self.dialects, policy, factor)?;
        let Wish::Said { need, .. } = &wish else { return Ok(None) };
        let dialect = need.dialect;
        let find = |id: &GpuId| {
            let found: Option<&Gpu> = pool.gpus().iter().find(|gpu| gpu.id == *id);
            found.ok_or(NotChanged::NoGpu(*id))
        };
        let gpus = held.gpus.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        let parts = live::parts(&wish, change, &gpus, &pool)?;
        let before = |gpu: GpuId| {
            let known = held.shares.iter().find(|(one, _)| *one == gpu);
            known.map_or(Share::default(), |(_, share)| *share)
        };
        let said = parts.iter().map(|part| live::told(part.gpu, before(part.gpu), part.share));
        let said: Vec<String> = said.filter(|words| !words.is_empty()).collect();
        let (holder, daemon) = (held.holder.clone(), self.daemon.to_path_buf());
        let promised = parts.iter().map(|part| {
            let known = held.promised.iter().find(|(gpu, _)| *gpu == part.gpu);
            let known = known.map_or(Share::default(), |(_, share)| *share);
            // An init container's promise may be less than its share.
            let changed = |promised: u64, before: u64, after: u64| {
                promised.saturating_add(after).saturating_sub(before)
            };
            let Share { cores, memory_mib } = before(part.gpu);
            let share = Share {
                cores: changed(known.cores, cores, part.share.cores),
                memory_mib: changed(known.memory_mib, memory_mib, part.share.memory_mib),
            };
            (part.gpu, share)
        });
        let promised = promised.collect();
        let is_init = starting::is_init(pod, &holder.container);
        let uid = pod.metadata.uid.clone();
        let decision = Decision { holder, pod: uid, parts, promised, is_init, claim: None, daemon };
        // Written even if the promise is unchanged: an earlier run may have ended before it wrote the pages.
        let took = self.allocations.change(&held.key, &decision)?;
        let is_new = !said.is_empty();
        let said = is_new.then(|| format!("{}; {}", said.join("; "), seen_by(&took)));
        Ok(Some((said, dialect)))
    }

    /// Updates the annotation that VGPU-Manager's scheduler counts.
    fn write_real(&self, pod: &Arc<Pod>, holder: &Holder, dialect: Dialect) {
        if dialect != Dialect::VgpuManager {
            return;
        }
        let pool = Arc::clone(&self.pool.borrow());
        let is_its = |held: &Held| {
            (&held.holder.namespace, &held.holder.pod) == (&holder.namespace, &holder.pod)
        };
        let claims = |held: Held| {
            let claim = |&(gpu, share): &(GpuId, Share)| pool.claim(gpu, share);
            let claims = held.shares.iter().map(claim).collect();
            ContainerClaims { container: held.holder.container, claims }
        };
        let all = self.allocations.held().into_iter().filter(is_its).map(claims).collect();
        self.cluster.changed(pod, (dialect, PodClaims(all)));
    }

    /// Reports memory refused since the last look.
    async fn look_for_refusals(&self, held: &Held, pod: &Arc<Pod>, known: &mut Known) {
        let folder = self.allocations.session_of(&held.key);
        let gpus = held.gpus.clone();
        let looked = tokio::task::spawn_blocking(move || {
            let look = |gpu: GpuId| Some((gpu, summary(&folder, gpu)?));
            gpus.into_iter().filter_map(look).collect::<Vec<_>>()
        });
        let Ok(looked) = looked.await else { return };
        for (gpu, summary) in looked {
            let often = known.entry((held.key.clone(), gpu)).or_default();
            let Some(refused) = summary.refused else { continue };
            let series = format!("{gpu}/{}", refused.bytes);
            let due = often.take(refused.count, &series, Instant::now());
            if let Some(Due { count, series }) = due {
                let container = &held.holder.container;
                let note = denied(container, gpu, refused, &summary);
                let series = format!("{container}/{series}");
                let (kind, reason) = (Kind::Warning, "GPUMemoryDenied");
                let told = Told { kind, reason, action: "Allocate", note, series, count };
                self.tell(pod.object_ref(&()), told);
            }
        }
    }

    /// The devices as the daemon reports them.
    async fn devices(&self) -> Option<DeviceList> {
        let socket = self.socket.to_path_buf();
        let ask = move || -> Result<DeviceList, ClientError> {
            let client = BlockingHttpClient::new(Endpoint::Unix(socket));
            client.get(api::path::DEVICES, ANSWERS_WITHIN)
        };
        tokio::task::spawn_blocking(ask).await.ok()?.ok()
    }

    /// Passes on GPUs that an operator has declared healthy to the daemon. `known`: how often each was, at the last
    /// look.
    fn follow_operator(&self, list: &DeviceList, known: &mut BTreeMap<String, u64>) {
        for device in &list.devices {
            let before = known.insert(device.uuid.clone(), device.declared_healthy);
            let is_new = before.is_some_and(|before| before != device.declared_healthy);
            if let (true, Ok(gpu)) = (is_new && device.declared_healthy > 0, device.uuid.parse()) {
                tracing::info!(%gpu, "was declared healthy");
                // An error means that the receiver ended, with the program.
                _ = self.healthy.send(gpu);
            }
        }
    }

    /// Reports processes that use the node's GPUs without a session, as the daemon finds them.
    fn tell_of_strangers(&self, list: DeviceList, known: &mut BTreeMap<String, Often>) {
        for device in list.devices {
            let often = known.entry(device.uuid.clone()).or_default();
            let processes = &device.unknown_processes;
            let series = processes.first().map(|one| one.pid.to_string()).unwrap_or_default();
            let due = often.take(device.unknown_seen, &series, Instant::now());
            let Some(Due { count, series }) = due.filter(|_| !processes.is_empty()) else {
                continue;
            };
            let note = strangers(&device);
            let series = format!("{}/{series}", device.uuid);
            let (kind, reason) = (Kind::Warning, "GPUProcessWithoutSession");
            let told = Told { kind, reason, action: "Observe", note, series, count };
            self.tell(self.cluster.node(), told);
        }
    }

    /// Writes an event in the background, since the API server may be slow.
    fn tell(&self, about: ObjectReference, told: Told) {
        let events: Events = self.cluster.events();
        tokio::spawn(async move { events.tell(&about, told).await });
    }
}

/// Reads an allocation's page. `None` if it is unreadable: the container's processes may have damaged it.
fn summary(folder: &Path, gpu: GpuId) -> Option<Summary> {
    let page = Page::open_existing(&folder.join(format!("{gpu}.page"))).ok()?;
    page.look().ok().map(Summary::of)
}

fn denied(container: &str, gpu: GpuId, refused: Refusals, summary: &Summary) -> String {
    let asked = size(refused.bytes);
    let limit = summary.limits.memory.map_or_else(
        || "none".to_owned(),
        |memory| match memory.real {
            Some(real) => format!("{} ({} of it on the GPU)", size(memory.limit), size(real)),
            None => size(memory.limit),
        },
    );
    let used = size(refused.beside);
    format!(
        "GPU memory request denied: asked {asked}, limit {limit}, in use {used} (container {container}, {gpu})"
    )
}

fn size(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

fn seen_by(took: &[Vec<Took>]) -> String {
    let mut processes = BTreeMap::new();
    for took in took.iter().flatten() {
        let all = processes.entry(took.process.pid).or_insert(true);
        *all &= took.taken;
    }
    let (all, seen) = (processes.len(), processes.values().filter(|taken| **taken).count());
    let noun = |count: usize| if count == 1 { "process" } else { "processes" };
    if all == seen {
        format!("seen by {all} {}", noun(all))
    } else {
        format!("seen by {seen} of {all} processes; the others are stopped or of an earlier build")
    }
}

fn strangers(device: &api::Device) -> String {
    let one = |process: &api::UnknownProcess| {
        let name = process.name.as_deref().unwrap_or("unknown program");
        let user = process.uid.map(|uid| format!(" of user {uid}")).unwrap_or_default();
        let memory = process.memory_bytes.map(|bytes| format!(" with {}", size(bytes)));
        let (pid, memory) = (process.pid, memory.unwrap_or_default());
        format!("process {pid} ({}){user}{memory}", name.chars().take(40).collect::<String>())
    };
    let named: Vec<String> = device.unknown_processes.iter().take(NAMED).map(one).collect();
    let more = device.unknown_processes.len().saturating_sub(NAMED);
    let more = if more == 0 { String::new() } else { format!(", and {more} more") };
    let uuid = &device.uuid;
    format!(
        "{uuid} is used without a session, so that nothing limits it: {}{more}",
        named.join(", ")
    )
}
