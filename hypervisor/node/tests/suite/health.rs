//! Devices with faults are not given out.

use node::proto::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, Empty, HEALTHY,
    ListAndWatchResponse,
};
use observer::{Blind, Seen, Xid};

use super::support::{Agent, FakeKubelet, Watched, gpu, options, shows};

/// How many of each GPU's ids may be given out.
pub(crate) async fn healthy(watched: &mut Watched, gpus: u8) -> Vec<usize> {
    let list = watched.next::<ListAndWatchResponse>().await.unwrap();
    let of = |number| {
        let one = gpu(number).to_string();
        let own = list.devices.iter().filter(|device| device.id.starts_with(&one));
        own.filter(|device| device.health == HEALTHY).count()
    };
    (0..gpus).map(of).collect()
}

/// A DaemonSet's pod on a node without a GPU, or before its driver is loaded.
#[tokio::test]
async fn without_a_gpu_it_waits_for_one() {
    let mut kubelet = FakeKubelet::running();
    let blind = || Seen::Blind(Blind("libnvidia-ml.so.1: no such file".to_owned()));
    let idle = Agent::start(options(kubelet.path()), blind());
    idle.devices.send(shows(0)).unwrap();
    idle.stop().await.unwrap();
    let agent = Agent::start(options(kubelet.path()), blind());
    agent.devices.send(shows(0)).unwrap();
    agent.devices.send(shows(1)).unwrap();
    let (_, client) = kubelet.registered().await;
    let mut watched = client.watch("ListAndWatch", &Empty {}).await;
    assert_eq!(healthy(&mut watched, 1).await, [10]);
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn a_fault_is_told_at_once_and_nothing_is_given_out_there() {
    let mut kubelet = FakeKubelet::running();
    let agent = Agent::start(options(kubelet.path()), shows(2));
    let (_, client) = kubelet.registered().await;
    let mut watched = client.watch("ListAndWatch", &Empty {}).await;
    assert_eq!(healthy(&mut watched, 2).await, [10, 10]);
    // A program's own fault is none of the device's.
    agent.devices.send(Seen::Xid(gpu(0), Xid(31))).unwrap();
    agent.devices.send(Seen::Xid(gpu(0), Xid(79))).unwrap();
    assert_eq!(healthy(&mut watched, 2).await, [0, 10]);
    let id = format!("{}::0", gpu(0));
    let container_requests = vec![ContainerAllocateRequest { devices_i_ds: vec![id] }];
    let call = AllocateRequest { container_requests };
    let refused: Result<AllocateResponse, _> = client.call("Allocate", &call).await;
    assert_eq!(refused.unwrap_err().0, "9");
    // One that the driver lists no more.
    agent.devices.send(shows(1)).unwrap();
    assert_eq!(healthy(&mut watched, 2).await, [0, 0]);
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn while_nothing_can_be_seen_nothing_is_healthy() {
    let mut kubelet = FakeKubelet::running();
    let agent = Agent::start(options(kubelet.path()), shows(1));
    let (_, client) = kubelet.registered().await;
    let mut watched = client.watch("ListAndWatch", &Empty {}).await;
    assert_eq!(healthy(&mut watched, 1).await, [10]);
    agent.devices.send(Seen::Blind(Blind("driver not loaded".to_owned()))).unwrap();
    assert_eq!(healthy(&mut watched, 1).await, [0]);
    agent.devices.send(shows(2)).unwrap();
    assert_eq!(healthy(&mut watched, 2).await, [10, 10]);
    agent.stop().await.unwrap();
}
