//! The kubelet's side of a node: how containers get what they ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use limits::{ComputeLimit, Limits, MemoryLimit};
use node::Options;
use node::proto::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, ContainerAllocateResponse,
    PreStartContainerRequest, PreStartContainerResponse,
};
use session::Page;
use session::settings::OwnerSettings;

use super::support::{FakeKubelet, GoClient, Pods, gpu, options};

pub(crate) const NUMBER: &str = "nvidia.com/vgpu-number";
pub(crate) const CORES: &str = "nvidia.com/vgpu-cores";
pub(crate) const MEMORY: &str = "nvidia.com/vgpu-memory";
pub(crate) const GIB: u64 = 1 << 30;

pub(crate) fn with_gates(folder: &Path) -> Options {
    let gates = "CorePlugin=true,MemoryPlugin=true".parse().unwrap();
    Options { gates, ..options(folder) }
}

/// The kubelet's side of a node: which ids are free, and how containers get them.
#[derive(Clone)]
pub(crate) struct Node {
    clients: Arc<BTreeMap<String, GoClient>>,
    pub(crate) pods: Pods,
    pub(crate) folder: PathBuf,
    free: Arc<Mutex<BTreeMap<&'static str, BTreeSet<String>>>>,
}

/// A container that has its ids.
pub(crate) struct Admitted {
    pub(crate) pod: String,
    pub(crate) name: String,
    pub(crate) ids: Vec<(&'static str, Vec<String>)>,
    pub(crate) folder: PathBuf,
    /// What the kubelet is to do for it.
    pub(crate) answer: ContainerAllocateResponse,
}

impl Node {
    pub(crate) async fn of(kubelet: &mut FakeKubelet, gpus: u8) -> Self {
        let mut clients = BTreeMap::new();
        while clients.len() < 3 {
            let (request, client) = kubelet.registered().await;
            clients.insert(request.resource_name, client);
        }
        let ids = |letter: &str, count: u32| -> BTreeSet<String> {
            let of = |number| (0..count).map(move |at| format!("{}::{letter}{at}", gpu(number)));
            (0..gpus).flat_map(of).collect()
        };
        let free = [(NUMBER, ids("", 10)), (CORES, ids("c", 100)), (MEMORY, ids("m", 79))];
        Self {
            clients: clients.into(),
            pods: kubelet.pods.clone(),
            folder: kubelet.path().join("allocations"),
            free: Arc::new(Mutex::new(free.into())),
        }
    }

    /// Who calls a resource's plugin.
    pub(crate) fn client(&self, resource: &str) -> &GoClient {
        &self.clients[resource]
    }

    pub(crate) fn take(&self, resource: &'static str, count: usize) -> Vec<String> {
        let mut free = self.free.lock().unwrap();
        let free = free.get_mut(resource).unwrap();
        // From the front: what has just become free is given out again.
        let taken: Vec<String> = free.iter().take(count).cloned().collect();
        assert_eq!(taken.len(), count, "{resource}");
        taken.iter().for_each(|id| _ = free.remove(id));
        taken
    }

    /// All resources of a container, one after the other, as kubelets do: each is listed when it is allocated. A
    /// kubelet's order is that of a map.
    pub(crate) async fn admit(
        &self,
        pod: &str,
        name: &str,
        cores: usize,
        memory: usize,
    ) -> Admitted {
        let mut wanted = vec![(NUMBER, 1), (CORES, cores), (MEMORY, memory)];
        let length = wanted.len();
        wanted.rotate_left((cores + memory) % length);
        let taken = wanted.into_iter().filter(|(_, count)| *count > 0);
        let taken = taken.map(|(resource, count)| (resource, self.take(resource, count))).collect();
        self.admit_with(pod, name, taken).await
    }

    /// The same with these ids.
    pub(crate) async fn admit_with(
        &self,
        pod: &str,
        name: &str,
        ids: Vec<(&'static str, Vec<String>)>,
    ) -> Admitted {
        let mut answer = None;
        for (resource, taken) in &ids {
            let got = self.allocate(resource, taken).await;
            if *resource == NUMBER {
                answer = Some(got);
            }
            self.pods.give(pod, name, resource, taken);
        }
        let answer = answer.unwrap();
        let folder = self.folder.join(&answer.envs["SLUICE_ALLOCATION"]);
        Admitted { pod: pod.to_owned(), name: name.to_owned(), ids, folder, answer }
    }

    pub(crate) async fn allocate(
        &self,
        resource: &str,
        ids: &[String],
    ) -> ContainerAllocateResponse {
        let one = ContainerAllocateRequest { devices_i_ds: ids.to_vec() };
        let request = AllocateRequest { container_requests: vec![one] };
        let answer: AllocateResponse =
            self.clients[resource].call("Allocate", &request).await.unwrap();
        answer.container_responses.into_iter().next().unwrap()
    }

    pub(crate) async fn start(&self, admitted: &Admitted) -> Result<(), String> {
        let (_, ids) = admitted.ids.iter().find(|(resource, _)| *resource == NUMBER).unwrap();
        self.start_with(ids).await
    }

    pub(crate) async fn start_with(&self, ids: &[String]) -> Result<(), String> {
        let request = PreStartContainerRequest { devices_i_ds: ids.to_vec() };
        let answer: Result<PreStartContainerResponse, _> =
            self.clients[NUMBER].call("PreStartContainer", &request).await;
        answer.map(|_| ()).map_err(|(_, said)| said.replace("%20", " "))
    }

    pub(crate) fn end(&self, admitted: &Admitted) {
        self.pods.end(&admitted.pod);
        let mut free = self.free.lock().unwrap();
        for (resource, ids) in &admitted.ids {
            free.get_mut(resource).unwrap().extend(ids.iter().cloned());
        }
    }
}

impl Admitted {
    /// Whom the folder says that it is for, and the limits in it.
    pub(crate) fn written(&self) -> Option<(String, Limits)> {
        let settings = OwnerSettings::of(&self.folder).ok()?;
        let [gpu] = settings.devices.unwrap()[..] else { panic!("one GPU is asked for") };
        let page = self.folder.join("session").join(format!("{gpu}.page"));
        let limits = Page::open_existing(&page).unwrap().look().unwrap().limits();
        Some((settings.name.unwrap(), limits))
    }

    pub(crate) fn wanted(&self) -> (String, Limits) {
        let count = |wanted| {
            let found = self.ids.iter().find(|(resource, _)| *resource == wanted);
            found.map_or(0, |(_, ids)| u32::try_from(ids.len()).unwrap())
        };
        let memory = MemoryLimit::new(u64::from(count(MEMORY)) * GIB);
        let compute = ComputeLimit::fixed(count(CORES) * 10_000);
        (format!("default/{}/{}", self.pod, self.name), Limits { memory: Some(memory), compute })
    }
}
