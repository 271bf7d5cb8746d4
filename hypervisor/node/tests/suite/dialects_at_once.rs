//! Several dialects, one pool: what one takes is gone for the others.

use std::collections::BTreeMap;

use dialects::Dialect;
use dialects::table::RESOURCES;
use node::Options;
use node::proto::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, Empty, ListAndWatchResponse,
    PreStartContainerRequest, PreStartContainerResponse, UNHEALTHY,
};

use super::kubelets_side::{CORES, MEMORY, NUMBER, with_gates};
use super::support::{Agent, FakeKubelet, GoClient, Watched, gpu, shows};

const VOLCANO: &str = "volcano.sh/vgpu-number";
const VOLCANO_CORES: &str = "volcano.sh/vgpu-cores";

fn ids(letter: &str, numbers: std::ops::Range<u32>) -> Vec<String> {
    numbers.map(|number| format!("{}::{letter}{number}", gpu(0))).collect()
}

async fn allocate(client: &GoClient, ids: &[String]) -> Result<(), String> {
    let one = ContainerAllocateRequest { devices_i_ds: ids.to_vec() };
    let request = AllocateRequest { container_requests: vec![one] };
    let answer: Result<AllocateResponse, _> = client.call("Allocate", &request).await;
    answer.map(|_| ()).map_err(|(_, said)| said.replace("%20", " "))
}

async fn start(client: &GoClient, ids: &[String]) -> Result<(), String> {
    let request = PreStartContainerRequest { devices_i_ds: ids.to_vec() };
    let answer: Result<PreStartContainerResponse, _> =
        client.call("PreStartContainer", &request).await;
    answer.map(|_| ()).map_err(|(_, said)| said.replace("%20", " "))
}

/// The next list that hides so many ids.
async fn hides(watched: &mut Watched, count: usize) -> Vec<String> {
    loop {
        let list: ListAndWatchResponse = watched.next().await.unwrap();
        let hidden = list.devices.into_iter().filter(|device| device.health == UNHEALTHY);
        let hidden: Vec<String> = hidden.map(|device| device.id).collect();
        if hidden.len() == count {
            return hidden;
        }
    }
}

#[tokio::test]
async fn what_one_dialect_takes_is_gone_for_the_others() {
    let mut kubelet = FakeKubelet::running();
    let dialects = Dialect::ALL.to_vec();
    let agent = Agent::start(Options { dialects, ..with_gates(kubelet.path()) }, shows(1));
    let mut clients = BTreeMap::new();
    while clients.len() < RESOURCES.len() {
        let (request, client) = kubelet.registered().await;
        clients.insert(request.resource_name, client);
    }
    let mut places = clients[VOLCANO].watch("ListAndWatch", &Empty {}).await;
    let mut cores = clients[VOLCANO_CORES].watch("ListAndWatch", &Empty {}).await;
    assert!(hides(&mut places, 0).await.is_empty() && hides(&mut cores, 0).await.is_empty());

    let place = ids("", 3..4);
    for (resource, ids) in [(NUMBER, &place), (CORES, &ids("c", 0..10)), (MEMORY, &ids("m", 0..2))]
    {
        allocate(&clients[resource], ids).await.unwrap();
        kubelet.pods.give("first", "main", resource, ids);
    }
    assert_eq!(hides(&mut places, 1).await, place);
    // A kubelet that has not heard of it is refused.
    let said = allocate(&clients[VOLCANO], &place).await.unwrap_err();
    assert!(said.contains("is taken by the name nvidia.com/vgpu-number"), "{said}");
    start(&clients[NUMBER], &place).await.unwrap();
    assert_eq!(hides(&mut cores, 10).await.len(), 10);

    // The kubelet counts cores of the node; this GPU has no more than 90 left.
    let other = ids("", 4..5);
    for (resource, ids) in [(VOLCANO, &other), (VOLCANO_CORES, &ids("c", 0..95))] {
        allocate(&clients[resource], ids).await.unwrap();
        kubelet.pods.give("second", "main", resource, ids);
    }
    let said = start(&clients[VOLCANO], &other).await.unwrap_err();
    assert!(said.contains("are asked for: 95; 90 of 100 are left"), "{said}");

    kubelet.pods.end("first");
    assert!(hides(&mut cores, 0).await.is_empty());
    start(&clients[VOLCANO], &other).await.unwrap();
    agent.stop().await.unwrap();
}

/// Each list has all ids, so a kubelet gets one when it differs, and not more than some in a second.
#[tokio::test]
async fn kubelets_are_told_of_what_has_changed_and_not_too_often() {
    let mut kubelet = FakeKubelet::running();
    let dialects = vec![Dialect::VgpuManager, Dialect::Volcano];
    let agent = Agent::start(Options { dialects, ..with_gates(kubelet.path()) }, shows(1));
    let mut clients = BTreeMap::new();
    while clients.len() < 6 {
        let (request, client) = kubelet.registered().await;
        clients.insert(request.resource_name, client);
    }
    let mut own = clients[NUMBER].watch("ListAndWatch", &Empty {}).await;
    let mut others = clients[VOLCANO].watch("ListAndWatch", &Empty {}).await;
    assert!(hides(&mut own, 0).await.is_empty() && hides(&mut others, 0).await.is_empty());
    let begun = std::time::Instant::now();
    for place in 0..8 {
        allocate(&clients[NUMBER], &ids("", place..place + 1)).await.unwrap();
    }
    let mut lists = 0;
    loop {
        let list: ListAndWatchResponse = others.next().await.unwrap();
        lists += 1;
        let hidden = list.devices.iter().filter(|device| device.health == UNHEALTHY);
        if hidden.count() == 8 {
            break;
        }
    }
    let most = 1 + begun.elapsed().as_millis() / 250;
    assert!(lists <= most, "{lists} lists in {:?}", begun.elapsed());
    // Of its own places it knows.
    let more = tokio::time::timeout(
        std::time::Duration::from_millis(600),
        own.next::<ListAndWatchResponse>(),
    );
    assert!(more.await.is_err(), "nothing has changed");
    agent.stop().await.unwrap();
}
