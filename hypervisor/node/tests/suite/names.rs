//! Resources that have other names in this cluster.

use node::proto::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, PreStartContainerRequest,
    PreStartContainerResponse,
};
use node::{ClusterOptions, Options};
use serde_json::json;

use super::kubelets_side::GIB;
use super::people::{has, page, pod};
use super::support::{Agent, ApiServer, FakeKubelet, gpu, options, shows};

#[tokio::test]
async fn kubelet_and_pods_know_resources_by_the_clusters_names() {
    let mut kubelet = FakeKubelet::running();
    let server = ApiServer::start(kubelet.path()).await.unwrap();
    let mut named = pod("named", &json!({}));
    named["spec"]["containers"][0]["resources"]["limits"] = json!({"example.com/gpu": "1", "nvidia.com/vgpu-cores": "10", "example.com/memory": "1024"});
    server.objects.put(named);
    let kubeconfig = Some(server.kubeconfig.clone());
    let wanted = Options {
        names: "nvidia.com/vgpu-number=example.com/gpu,nvidia.com/vgpu-memory=example.com/memory"
            .parse()
            .unwrap(),
        memory_factor: 1.try_into().unwrap(),
        cluster: Some(ClusterOptions { node: "here".to_owned(), kubeconfig }),
        ..options(kubelet.path())
    };
    let agent = Agent::start(wanted, shows(1));
    let (request, client) = kubelet.registered().await;
    assert_eq!(request.resource_name, "example.com/gpu");
    let ids = vec![format!("{}::3", gpu(0))];
    let one = ContainerAllocateRequest { devices_i_ds: ids.clone() };
    let request = AllocateRequest { container_requests: vec![one] };
    let answer: AllocateResponse = client.call("Allocate", &request).await.unwrap();
    kubelet.pods.give("named", "default", "example.com/gpu", &ids);
    let request = PreStartContainerRequest { devices_i_ds: ids };
    let _: PreStartContainerResponse = client.call("PreStartContainer", &request).await.unwrap();
    let key = &answer.container_responses[0].envs["SLUICE_ALLOCATION"];
    assert!(has(&page(&kubelet.path().join("allocations").join(key)), 10, GIB));
    agent.stop().await.unwrap();
}
