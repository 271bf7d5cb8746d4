//! How the plugin stays known to the kubelet.

use std::sync::atomic::Ordering;
use std::time::Duration;

use node::proto::{DevicePluginOptions, Empty, ListAndWatchResponse, RegisterRequest};

use super::support::{Agent, FakeKubelet, GoClient, GoEncoder, options, shows, until};

const NUMBER: &str = "nvidia.com/vgpu-number";

async fn lists(client: &GoClient) -> usize {
    let mut watched = client.watch("ListAndWatch", &Empty {}).await;
    watched.next::<ListAndWatchResponse>().await.unwrap().devices.len()
}

#[test]
fn the_fake_kubelet_sends_what_grpc_go_sends() {
    // As a socket got it from grpc-go 1.27.1: two calls of GetDevicePluginOptions.
    const FIRST: &str = "838645a063b8632a4615ef97b9885d745b31aa6311537cbdcc42eba2d98d56aad263d48f418d6134d6c56c57\
        45b31aa5d072755f8b1d75d0620d263d4c4d65647a8a9acac8b4c7602b89d5c340027465864d833505b11f";
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/v1beta1.DevicePlugin/GetDevicePluginOptions"),
        (":authority", "/tmp/p/plugin.sock"),
        ("content-type", "application/grpc"),
        ("user-agent", "grpc-go/1.27.1"),
        ("te", "trailers"),
    ];
    let mut encoder = GoEncoder::default();
    let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex(encoder.block(&fields)), FIRST);
    assert_eq!(hex(encoder.block(&fields)), "8386c2c1c0bfbe");
}

#[tokio::test]
async fn it_registers_and_is_asked_for_its_list() {
    let mut kubelet = FakeKubelet::running();
    let agent = Agent::start(options(kubelet.path()), shows(2));
    let (request, client) = kubelet.registered().await;
    let wanted =
        DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true };
    let RegisterRequest { endpoint, resource_name, options: said, .. } = request;
    assert_eq!((resource_name.as_str(), said), (NUMBER, Some(wanted)));
    assert_eq!(client.call("GetDevicePluginOptions", &Empty {}).await, Ok(wanted));
    assert_eq!(lists(&client).await, 20);
    agent.stop().await.unwrap();
    assert!(!kubelet.plugins().join(endpoint).exists());
}

#[tokio::test]
async fn gates_offer_cores_and_memory() {
    let mut kubelet = FakeKubelet::running();
    let mut wanted = options(kubelet.path());
    wanted.gates = "CorePlugin=true,MemoryPlugin=true".parse().unwrap();
    let agent = Agent::start(wanted, shows(2));
    let mut found = Vec::new();
    for _ in 0..3 {
        let (request, client) = kubelet.registered().await;
        found.push((request.resource_name, lists(&client).await));
    }
    found.sort();
    let wanted = [("nvidia.com/vgpu-cores", 200), ("nvidia.com/vgpu-memory", 158), (NUMBER, 20)];
    assert_eq!(found, wanted.map(|(name, count)| (name.to_owned(), count)));
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn a_kubelet_that_comes_late_and_refuses_is_waited_for() {
    let mut kubelet = FakeKubelet::new();
    let agent = Agent::start(options(kubelet.path()), shows(1));
    let socket = kubelet.plugins().join("sluice-nvidia-com-vgpu-number.sock");
    until("it listens", || socket.exists()).await;
    kubelet.mood.refuses.store(2, Ordering::Release);
    kubelet.mood.takes = Duration::from_millis(300);
    // It deletes the plugin's socket, as each kubelet does.
    kubelet.start();
    let (_, client) = kubelet.registered().await;
    assert_eq!(lists(&client).await, 10);
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn a_kubelet_that_restarts_is_told_again() {
    let mut kubelet = FakeKubelet::running();
    let agent = Agent::start(options(kubelet.path()), shows(1));
    let (_, client) = kubelet.registered().await;
    let mut watched = client.watch("ListAndWatch", &Empty {}).await;
    assert!(watched.next::<ListAndWatchResponse>().await.is_some());
    for _ in 0..3 {
        kubelet.kill();
        kubelet.start();
        let (_, client) = kubelet.registered().await;
        assert_eq!(lists(&client).await, 10);
    }
    // What the first one watched has ended.
    assert!(watched.next::<ListAndWatchResponse>().await.is_none());
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn a_kubelet_that_is_replaced_and_deletes_nothing_is_told_again() {
    let mut kubelet = FakeKubelet::running();
    let agent = Agent::start(options(kubelet.path()), shows(1));
    let (request, client) = kubelet.registered().await;
    let _watched = client.watch("ListAndWatch", &Empty {}).await;
    kubelet.kill();
    let own = kubelet.plugins().join(&request.endpoint);
    let aside = kubelet.path().join("aside");
    std::fs::rename(&own, &aside).unwrap();
    kubelet.start();
    std::fs::rename(&aside, &own).unwrap();
    let (_, client) = kubelet.registered().await;
    assert_eq!(lists(&client).await, 10);
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn a_kubelet_that_does_not_watch_is_told_again_and_one_that_does_is_not() {
    let mut kubelet = FakeKubelet::running();
    let agent = Agent::start(options(kubelet.path()), shows(1));
    let (_, client) = kubelet.registered().await;
    drop(client);
    let (_, client) = kubelet.registered().await;
    let mut watched = client.watch("ListAndWatch", &Empty {}).await;
    assert!(watched.next::<ListAndWatchResponse>().await.is_some());
    // Twice as long as it waits for one that does not.
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(!kubelet.has_another());
    agent.stop().await.unwrap();
}
