//! What pods say in the words of systems that tell kubelets less.

use dialects::Dialect;
use dialects::registers::{self, HamiForm};
use limits::{ComputeLimit, Limits, MemoryLimit, Priority};
use node::proto::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, PreStartContainerRequest,
    PreStartContainerResponse,
};
use node::{ClusterOptions, Options};
use serde_json::{Value, json};
use session::Page;
use session::settings::OwnerSettings;

use super::kubelets_side::GIB;
use super::support::{Agent, ApiServer, FakeKubelet, GoClient, gpu, options, shows, until};

pub(crate) struct Node {
    pub(crate) kubelet: FakeKubelet,
    pub(crate) server: ApiServer,
    agent: Agent,
    pub(crate) client: GoClient,
}

impl Node {
    /// With two GPUs, and one resource of the kubelet.
    pub(crate) async fn of(dialect: Dialect, more: impl FnOnce(&mut Options)) -> Self {
        let mut kubelet = FakeKubelet::running();
        let server = ApiServer::start(kubelet.path()).await.unwrap();
        let kubeconfig = Some(server.kubeconfig.clone());
        let cluster = ClusterOptions { node: "here".to_owned(), kubeconfig };
        let memory_factor = 1.try_into().unwrap();
        let dialects = vec![dialect];
        let cluster = Some(cluster);
        let mut wanted = Options { cluster, dialects, memory_factor, ..options(kubelet.path()) };
        more(&mut wanted);
        let agent = Agent::start(wanted, shows(2));
        let (_, client) = kubelet.registered().await;
        Self { kubelet, server, agent, client }
    }

    /// The container `main` of a pod starts. What it may take of a GPU, and its settings.
    pub(crate) async fn start(
        &self,
        pod: &str,
        resource: &str,
        ids: &[String],
        on: u8,
    ) -> Result<(Limits, OwnerSettings), String> {
        let one = ContainerAllocateRequest { devices_i_ds: ids.to_vec() };
        let request = AllocateRequest { container_requests: vec![one] };
        let answer: AllocateResponse = self.client.call("Allocate", &request).await.unwrap();
        self.kubelet.pods.give(pod, "main", resource, ids);
        let request = PreStartContainerRequest { devices_i_ds: ids.to_vec() };
        let started: Result<PreStartContainerResponse, _> =
            self.client.call("PreStartContainer", &request).await;
        started.map_err(|(_, said)| said.replace("%20", " "))?;
        let key = &answer.container_responses[0].envs["SLUICE_ALLOCATION"];
        let folder = self.kubelet.path().join("allocations").join(key);
        let page = folder.join("session").join(format!("{}.page", gpu(on)));
        let limits = Page::open_existing(&page).unwrap().look().unwrap().limits();
        Ok((limits, OwnerSettings::of(&folder).unwrap()))
    }

    pub(crate) async fn stop(self) {
        self.agent.stop().await.unwrap();
    }
}

pub(crate) fn pod(name: &str, annotations: &Value, resources: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "default", "uid": format!("uid-of-{name}"), "annotations": annotations,
        },
        "spec": {"nodeName": "here", "containers": [{"name": "main", "resources": {"limits": resources}}]},
    })
}

/// Its pods say it by a resource, which its webhook makes a variable of: here the pod's page has it.
#[tokio::test]
async fn hamis_priority_holds_for_the_session() {
    let node = Node::of(Dialect::Hami, |_| ()).await;
    let words = |priority: &str| json!({"nvidia.com/gpu": "1", "nvidia.com/gpucores": "30", "nvidia.com/gpumem": "1024", "nvidia.com/priority": priority});
    for (at, (name, priority)) in [("low", "1"), ("high", "0")].into_iter().enumerate() {
        node.server.objects.put(pod(name, &json!({}), &words(priority)));
        let ids = [format!("{}::{at}", gpu(0))];
        let (limits, settings) = node.start(name, "nvidia.com/gpu", &ids, 0).await.unwrap();
        let is_low = name == "low";
        let wanted = if is_low { Priority::Low } else { Priority::High };
        assert_eq!(
            limits.compute,
            ComputeLimit { priority: wanted, ..ComputeLimit::fixed(300_000) }
        );
        assert_eq!(limits.memory, Some(MemoryLimit::new(GIB)));
        let said = settings.variables.get("SLUICE_PRIORITY").map(String::as_str);
        assert_eq!(said, is_low.then_some("low"));
    }
    node.server.objects.put(pod("none", &json!({}), &words("2")));
    let said = node.start("none", "nvidia.com/gpu", &[format!("{}::5", gpu(0))], 0).await;
    assert!(said.unwrap_err().contains("0 (high) and 1 (low) are accepted"));
    node.stop().await;
}

#[tokio::test]
async fn hamis_scheduler_is_told_in_the_form_that_it_reads() {
    for (form, begins) in [(HamiForm::Json, "[{\"id\":\""), (HamiForm::Fields, "GPU-")] {
        let node = Node::of(Dialect::Hami, |options| options.hami = form).await;
        let written = || node.server.objects.written("PATCH", "/nodes/here");
        until("it is", || !written().is_empty()).await;
        let all = written()[0]["metadata"]["annotations"].clone();
        let text = all["hami.io/node-nvidia-register"].as_str().unwrap().to_owned();
        assert!(text.starts_with(begins), "{text}");
        let devices = registers::read(Dialect::Hami, &text).unwrap();
        assert_eq!((devices.len(), devices[1].gpu, devices[1].places), (2, gpu(1), 10));
        node.stop().await;
    }
}
