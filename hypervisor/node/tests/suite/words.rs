//! What pods say in the words of systems that tell kubelets less.

use core::num::NonZeroU32;
use std::collections::BTreeMap;

use dialects::Dialect;
use dialects::gates::FeatureGates;
use dialects::registers::{self, HamiForm};
use dialects::table::offered;
use limits::{ComputeLimit, Limits, MemoryLimit, Priority};
use node::proto::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest,
    ContainerPreferredAllocationRequest, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse,
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
    /// Those of other resources, by name.
    others: BTreeMap<String, GoClient>,
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
        let count = offered(&[dialect], &FeatureGates::default()).len();
        let mut clients = BTreeMap::new();
        while clients.len() < count {
            let (request, client) = kubelet.registered().await;
            clients.insert(request.resource_name, client);
        }
        // Of several the first one by name, and the others beside it.
        let (_, client) = clients.pop_first().unwrap();
        Self { kubelet, server, agent, client, others: clients }
    }

    /// Which ids the kubelet had better give to a container that asks for so many. Those before `from` are in use.
    pub(crate) async fn preferred(&self, count: i32, from: u32) -> Result<Vec<String>, String> {
        let ids = |number: u8| (from..600).map(move |at| format!("{}::i{at}", gpu(number)));
        let one = ContainerPreferredAllocationRequest {
            available_device_i_ds: (0..2).flat_map(ids).collect(),
            must_include_device_i_ds: vec![],
            allocation_size: count,
        };
        let request = PreferredAllocationRequest { container_requests: vec![one] };
        let answer: Result<PreferredAllocationResponse, _> =
            self.client.call("GetPreferredAllocation", &request).await;
        let answer = answer.map_err(|(_, said)| said.replace("%20", " "))?;
        Ok(answer.container_responses[0].device_i_ds.clone())
    }

    /// The container `main` of a pod starts. What it may take of a GPU, and its settings.
    pub(crate) async fn start(
        &self,
        pod: &str,
        resource: &str,
        ids: &[String],
        on: u8,
    ) -> Result<(Limits, OwnerSettings), String> {
        self.start_by(&self.client, pod, resource, ids, on).await
    }

    async fn start_by(
        &self,
        client: &GoClient,
        pod: &str,
        resource: &str,
        ids: &[String],
        on: u8,
    ) -> Result<(Limits, OwnerSettings), String> {
        let one = ContainerAllocateRequest { devices_i_ds: ids.to_vec() };
        let request = AllocateRequest { container_requests: vec![one] };
        let answer: AllocateResponse = client.call("Allocate", &request).await.unwrap();
        self.kubelet.pods.give(pod, "main", resource, ids);
        let request = PreStartContainerRequest { devices_i_ds: ids.to_vec() };
        let started: Result<PreStartContainerResponse, _> =
            client.call("PreStartContainer", &request).await;
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
    assert!(said.unwrap_err().contains("; expected 0 (high) or 1 (low)"));
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
        let devices = registers::read(Dialect::Hami, &text, NonZeroU32::MIN).unwrap();
        assert_eq!((devices.len(), devices[1].gpu, devices[1].places), (2, gpu(1), 10));
        node.stop().await;
    }
}

const INDEX: &str = "tensor-fusion.ai/index";

/// Its operator gives each pod a number, which the kubelet sees as a count; all else are annotations.
#[tokio::test]
async fn a_pod_of_vgpu_rs_gets_its_gpus_and_what_its_annotations_say() {
    let node = Node::of(Dialect::VgpuRs, |options| {
        let file = options.library.join("gpu-info.yaml");
        std::fs::write(
            &file,
            "- {model: X, fullModelName: GPU, vendor: NVIDIA, costPerHour: 0.5, fp16TFlops: 71.2}",
        )
        .unwrap();
        options.gpu_info = Some(file);
    })
    .await;
    let index = |number: &str| json!({INDEX: number});
    let limits = json!({
        "tensor-fusion.ai/gpu-ids": gpu(1).to_string().to_lowercase(),
        "tensor-fusion.ai/tflops-limit": "17800m", "tensor-fusion.ai/vram-limit": "1Gi",
        "tensor-fusion.ai/tflops-request": "1", "tensor-fusion.ai/vram-request": "1Mi",
        "tensor-fusion.ai/qos": "Low", "tensor-fusion.ai/inject-container": "other", "tensor-fusion.ai/isolation": "soft",
    });
    node.server.objects.put(pod(
        "other",
        &json!({"tensor-fusion.ai/gpu-ids": gpu(0)}),
        &index("4"),
    ));
    node.server.objects.put(pod("worker", &limits, &index("3")));
    let ids = node.preferred(3, 0).await.unwrap();
    let (part, settings) = node.start("worker", INDEX, &ids, 1).await.unwrap();
    let low = ComputeLimit { priority: Priority::Low, ..ComputeLimit::fixed(250_000) };
    assert_eq!(part.compute, low);
    assert_eq!(part.memory, Some(MemoryLimit::new(GIB)));
    assert_eq!(settings.devices, Some(vec![gpu(1)]));
    assert_eq!(settings.name.as_deref(), Some("default/worker/main"));

    // By container, on both GPUs, and the pod's own list is for the others.
    let both = json!({
        "tensor-fusion.ai/container-gpus": json!({"main": [gpu(0), gpu(1)]}).to_string(),
        "tensor-fusion.ai/gpu-ids": "", "tensor-fusion.ai/vram-limit": "512Mi",
    });
    node.server.objects.put(pod("both", &both, &index("9")));
    let ids = node.preferred(9, 3).await.unwrap();
    let (part, settings) = node.start("both", INDEX, &ids, 0).await.unwrap();
    assert_eq!((part.compute, settings.devices.unwrap().len()), (ComputeLimit::NONE, 2));
    assert_eq!(part.memory, Some(MemoryLimit::new(GIB / 2)));
    node.server.objects.put(pod("few", &both, &index("1")));
    let said = node.preferred(1, 12).await.unwrap_err();
    assert!(said.contains("index requested; expected 2 to "), "{said}");

    // Not where its scheduler has put it, or with words that say nothing.
    let elsewhere = vec![format!("{}::i2000", gpu(1))];
    let said = node.start("other", INDEX, &elsewhere, 1).await.unwrap_err();
    assert!(said.contains("its scheduler has claimed"), "{said}");
    node.server.objects.put(pod(
        "much",
        &json!({"tensor-fusion.ai/vram-limit": "much"}),
        &index("5"),
    ));
    let said = node.start("much", INDEX, &[format!("{}::i2001", gpu(0))], 0).await.unwrap_err();
    assert!(said.contains("the annotation tensor-fusion.ai/vram-limit"), "{said}");
    // Nobody is told of what it has got.
    assert!(node.server.objects.written("PATCH", "/pods/").is_empty());
    node.stop().await;
}

/// Newer versions of its operator: number N is (N - 1) % 8 + 1 of the resource `index_` and (N - 1) / 8.
#[tokio::test]
async fn a_pod_of_a_newer_vgpu_rs_is_known_by_one_of_sixteen_resources() {
    let node = Node::of(Dialect::VgpuRs, |_| ()).await;
    let on = |gpu: u8, more: Value| {
        let mut all = json!({"tensor-fusion.ai/gpu-ids": super::support::gpu(gpu)});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    // Both ask for 3, by different names: 27 and 123.
    let said =
        on(0, json!({"tensor-fusion.ai/qos": "critical", "tensor-fusion.ai/isolation": "hard"}));
    node.server.objects.put(pod("one", &said, &json!({"tensor-fusion.ai/index_3": "3"})));
    node.server.objects.put(pod(
        "other",
        &on(1, json!({})),
        &json!({"tensor-fusion.ai/index_f": "3"}),
    ));
    for (pod, name, part, at) in [("other", "index_f", 15, 1), ("one", "index_3", 3, 0)] {
        let resource = format!("tensor-fusion.ai/{name}");
        let client = &node.others[&resource];
        let ids = (0..2)
            .flat_map(|number| (0..36).map(move |id| format!("{}::i{part}-{id}", gpu(number))));
        let one = ContainerPreferredAllocationRequest {
            available_device_i_ds: ids.collect(),
            must_include_device_i_ds: vec![],
            allocation_size: 3,
        };
        let request = PreferredAllocationRequest { container_requests: vec![one] };
        let answer: PreferredAllocationResponse =
            client.call("GetPreferredAllocation", &request).await.unwrap();
        let ids = answer.container_responses[0].device_i_ds.clone();
        assert!(
            ids.len() == 3 && ids.iter().all(|id| id.starts_with(&gpu(at).to_string())),
            "{ids:?}"
        );
        let (limits, settings) = node.start_by(client, pod, &resource, &ids, at).await.unwrap();
        assert_eq!((limits.compute, settings.devices), (ComputeLimit::NONE, Some(vec![gpu(at)])));
    }
    // What only hardware could do.
    let parted = on(0, json!({"tensor-fusion.ai/isolation": "partitioned"}));
    node.server.objects.put(pod("parted", &parted, &json!({"tensor-fusion.ai/index_0": "1"})));
    let resource = "tensor-fusion.ai/index_0";
    let ids = [format!("{}::i0-7", gpu(0))];
    let refused =
        node.start_by(&node.others[resource], "parted", resource, &ids, 0).await.unwrap_err();
    assert!(refused.contains("not partitioned by their hardware"), "{refused}");
    let events = || node.server.objects.written("POST", "/events");
    until("people are told", || events().iter().any(|event| event["reason"] == "GPURefused")).await;
    node.stop().await;
}
