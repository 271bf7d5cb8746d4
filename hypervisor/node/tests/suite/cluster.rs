//! The node's part beside an API server: pods' words, schedulers' claims, and what is told.

use limits::{ComputeLimit, MemoryLimit};
use node::proto::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest,
    ContainerPreferredAllocationRequest, Empty, ListAndWatchResponse, PreStartContainerRequest,
    PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse,
};
use node::{ClusterOptions, Options};
use serde_json::{Value, json};
use session::Page;
use session::settings::OwnerSettings;

use super::kubelets_side::{GIB, NUMBER};
use super::support::{Agent, ApiServer, FakeKubelet, GoClient, gpu, options, shows, until};

/// The seed's example, where its scheduler has put it.
pub(crate) fn example(name: &str, claimed: u8) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "default", "uid": format!("uid-of-{name}"),
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true}],
            "labels": {"nvidia.com/assigned-phase": "allocating"},
            "annotations": {
                "nvidia.com/predicate-node": "here",
                "nvidia.com/predicate-time": "1716199325",
                "nvidia.com/pre-allocated": format!("default[{claimed}_{}_10_1024]", gpu(claimed)),
            },
        },
        "spec": {"nodeName": "here", "containers": [{"name": "default", "resources": {"limits": {
            "nvidia.com/vgpu-number": "1", "nvidia.com/vgpu-cores": "10", "nvidia.com/vgpu-memory": "1024"}}}]},
    })
}

async fn started() -> (FakeKubelet, ApiServer, Agent, GoClient) {
    let mut kubelet = FakeKubelet::running();
    let server = ApiServer::start(kubelet.path()).await.unwrap();
    let cluster =
        ClusterOptions { node: "here".to_owned(), kubeconfig: Some(server.kubeconfig.clone()) };
    let gates = "Reschedule=true,GPUTopology=true".parse().unwrap();
    let memory_factor = 1.try_into().unwrap();
    let wanted =
        Options { cluster: Some(cluster), gates, memory_factor, ..options(kubelet.path()) };
    let agent = Agent::start(wanted, shows(2));
    let (_, client) = kubelet.registered().await;
    (kubelet, server, agent, client)
}

async fn preferred(client: &GoClient) -> Vec<String> {
    let available =
        (0..2).flat_map(|number| (0..10).map(move |at| format!("{}::{at}", gpu(number))));
    let one = ContainerPreferredAllocationRequest {
        available_device_i_ds: available.collect(),
        must_include_device_i_ds: vec![],
        allocation_size: 1,
    };
    let request = PreferredAllocationRequest { container_requests: vec![one] };
    let answer: PreferredAllocationResponse =
        client.call("GetPreferredAllocation", &request).await.unwrap();
    answer.container_responses[0].device_i_ds.clone()
}

async fn starts(
    client: &GoClient,
    kubelet: &FakeKubelet,
    pod: &str,
    ids: &[String],
) -> Result<String, String> {
    let one = ContainerAllocateRequest { devices_i_ds: ids.to_vec() };
    let request = AllocateRequest { container_requests: vec![one] };
    let answer: AllocateResponse = client.call("Allocate", &request).await.unwrap();
    kubelet.pods.give(pod, "default", NUMBER, ids);
    let request = PreStartContainerRequest { devices_i_ds: ids.to_vec() };
    let started: Result<PreStartContainerResponse, _> =
        client.call("PreStartContainer", &request).await;
    started.map_err(|(_, said)| said.replace("%20", " "))?;
    Ok(answer.container_responses[0].envs["SLUICE_ALLOCATION"].clone())
}

/// Kubelets are told of places alone here: cores and memory are the pod's own words.
#[tokio::test]
async fn the_seeds_pod_gets_the_gpu_that_its_scheduler_chose_and_what_it_says() {
    let (kubelet, server, agent, client) = started().await;
    server.objects.put(example("gpu-pod", 1));
    let ids = preferred(&client).await;
    assert_eq!(ids, [format!("{}::0", gpu(1))]);
    let key = starts(&client, &kubelet, "gpu-pod", &ids).await.unwrap();
    // The next one has no claim: it gets what is free.
    assert_eq!(preferred(&client).await, [format!("{}::0", gpu(0))]);
    let folder = kubelet.path().join("allocations").join(key);
    assert_eq!(OwnerSettings::of(&folder).unwrap().name.unwrap(), "default/gpu-pod/default");
    let page =
        Page::open_existing(&folder.join("session").join(format!("{}.page", gpu(1)))).unwrap();
    let limits = page.look().unwrap().limits();
    assert_eq!(limits.memory, Some(MemoryLimit::new(GIB)));
    assert_eq!(limits.compute, ComputeLimit::fixed(100_000));
    until("its scheduler is told", || !server.objects.written("PATCH", "/pods/gpu-pod").is_empty())
        .await;
    let patch = &server.objects.written("PATCH", "/pods/gpu-pod")[0]["metadata"];
    assert_eq!(patch["labels"]["nvidia.com/assigned-phase"], "succeed");
    let real = format!("default[1_{}_10_1024]", gpu(1));
    assert_eq!(patch["annotations"], json!({"nvidia.com/real-allocated": real}));
    assert_eq!(patch["uid"], "uid-of-gpu-pod");
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn a_container_without_room_on_the_gpu_that_it_got_does_not_start_and_its_pod_is_made_anew() {
    let (kubelet, server, agent, client) = started().await;
    let mut large = example("large", 1);
    large["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/vgpu-cores"] = "95".into();
    large["metadata"]["annotations"]["nvidia.com/pre-allocated"] =
        format!("default[1_{}_95_1024]", gpu(1)).into();
    server.objects.put(large);
    starts(&client, &kubelet, "large", &[format!("{}::0", gpu(1))]).await.unwrap();
    server.objects.put(example("elsewhere", 0));
    let ids = [format!("{}::4", gpu(1))];
    let said = starts(&client, &kubelet, "elsewhere", &ids).await.unwrap_err();
    let lack = format!("cores of {} are asked for: 10; 5 of 100 are left", gpu(1));
    assert!(said.contains(&lack), "{said}");
    until("it is deleted", || !server.objects.written("DELETE", "/pods/elsewhere").is_empty())
        .await;
    let how = &server.objects.written("DELETE", "/pods/elsewhere")[0];
    assert_eq!(how["preconditions"]["uid"], "uid-of-elsewhere");
    let events = server.objects.written("POST", "/events");
    let told: Vec<_> = events.iter().map(|event| event["reason"].as_str().unwrap()).collect();
    assert_eq!(told, ["GPURefused", "Rescheduled"]);
    assert!(events[0]["note"].as_str().unwrap().contains(&lack));
    assert_eq!(events[0]["regarding"]["name"], "elsewhere");
    let patch = &server.objects.written("PATCH", "/pods/elsewhere")[0]["metadata"];
    assert_eq!(patch["labels"]["nvidia.com/assigned-phase"], "failed");
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn the_nodes_devices_are_registered_for_its_schedulers() {
    let (_kubelet, server, agent, client) = started().await;
    until("they are", || !server.objects.written("PATCH", "/nodes/here").is_empty()).await;
    let patch = &server.objects.written("PATCH", "/nodes/here")[0];
    let all = patch["metadata"]["annotations"].as_object().unwrap();
    assert_eq!(patch.as_object().unwrap().len(), 1);
    assert_eq!(
        all.keys().collect::<Vec<_>>(),
        [
            "nvidia.com/node-config-info",
            "nvidia.com/node-device-register",
            "nvidia.com/node-device-topology",
        ]
    );
    let text = all["nvidia.com/node-device-register"].as_str().unwrap();
    let devices =
        dialects::registers::read(dialects::Dialect::VgpuManager, text, 1.try_into().unwrap())
            .unwrap();
    assert_eq!(
        (devices.len(), devices[1].gpu, devices[1].memory_mib, devices[1].places),
        (2, gpu(1), 81_559, 10)
    );
    let hardware = &devices[1].hardware;
    assert_eq!(
        (hardware.numa, &*hardware.bus_id, hardware.capability),
        (Some(1), "0000:41:00.0", (9, 0))
    );
    assert_eq!(
        all["nvidia.com/node-device-topology"],
        r#"[{"index":0,"links":{"1":[24]}},{"index":1,"links":{"0":[24]}}]"#
    );
    let mut watched = client.watch("ListAndWatch", &Empty {}).await;
    let list = watched.next::<ListAndWatchResponse>().await.unwrap();
    let near = |number| {
        let one = gpu(number).to_string();
        let own = list.devices.iter().filter(|device| device.id.starts_with(&one));
        own.map(|device| device.topology.as_ref().unwrap().nodes[0].id).collect::<Vec<_>>()
    };
    assert_eq!((near(0), near(1)), (vec![0; 10], vec![1; 10]));
    agent.stop().await.unwrap();
}
