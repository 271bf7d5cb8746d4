//! Two extenders, of which one binds.

use std::collections::BTreeMap;

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::*;

const LEASE: &str = "kube-system/sluice-extender";

/// 200 nodes with four GPUs each, and 300 pods that ask for half of one.
fn fill(server: &ApiServer) {
    for at in 0..200 {
        let gpu = |index: u32| {
            format!(
                r#"{{"id":{index},"type":"A10","uuid":"GPU-00552014-5c87-89ac-b1a6-{at:06}{index:06}","core":100,"memory":8000,"number":4,"numa":0,"mig":false,"busId":"","capability":0.0,"healthy":true}}"#
            )
        };
        let register: Vec<String> = (0..4).map(gpu).collect();
        let register = format!("[{}]", register.join(","));
        server.objects.put_node(node(&format!("node-{at}"), Some(&register)));
    }
    for at in 0..300 {
        server.objects.put(pod(&format!("pod-{at}"), 4000));
    }
}

async fn bind(extender: &Running, at: usize) -> Option<String> {
    let (name, node) = (format!("pod-{at}"), format!("node-{}", at % 40));
    let uid = format!("uid-of-{name}");
    let wanted = json!({"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": node});
    let (status, body) = extender.call("POST", "/scheduler/bind", &wanted.to_string()).await?;
    assert_eq!(status, 200, "{body}");
    let answer: Value = serde_json::from_str(&body).unwrap();
    Some(answer["Error"].as_str().unwrap().to_owned())
}

/// What each GPU has been promised, by the bindings that were made.
fn promised(server: &ApiServer) -> BTreeMap<String, u64> {
    let mut promised = BTreeMap::new();
    for at in 0..300 {
        let pod = server.objects.pod(&format!("pod-{at}")).unwrap();
        let claimed = pod["metadata"]["annotations"]["nvidia.com/pre-allocated"].as_str();
        if let Some(claimed) = claimed {
            let gpu = claimed.split('_').nth(1).unwrap().to_owned();
            *promised.entry(gpu).or_default() += 4000;
        }
    }
    promised
}

#[tokio::test]
async fn after_the_end_of_the_one_that_binds_another_one_places_nothing_twice() {
    let folder = tempfile::tempdir().unwrap();
    let server = ApiServer::start(folder.path()).await.unwrap();
    fill(&server);
    let first = Running::start_with(server.kubeconfig.clone(), Some(LEASE)).await;
    let second = Running::start_with(server.kubeconfig.clone(), Some(LEASE)).await;
    // The first call takes the lease, and the cluster is read anew.
    let start = Instant::now();
    while !bind(&first, 0).await.unwrap().is_empty() {
        assert!(start.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let said = bind(&second, 1).await.unwrap();
    assert!(said.contains("holds the lease kube-system/sluice-extender"), "{said}");
    let filter = json!({"Pod": pod("pod-1", 4000), "NodeNames": ["node-1"]});
    let answer = second.post("/scheduler/filter", &filter).await;
    assert!(answer["Error"].as_str().unwrap().contains("holds the lease"), "{answer}");
    // It ends amid 200 bindings, and gives nothing back.
    let all = stream::iter(1..200).map(|at| bind(&first, at)).buffer_unordered(16);
    let all = all.collect::<Vec<_>>();
    let bound = || server.objects.written("POST", "/binding").len();
    let killed = async {
        while bound() < 60 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        first.served.abort();
    };
    let (_, ()) = tokio::join!(all, killed);
    let made = bound();
    assert!(made < 200, "all were made");
    let ended = Instant::now();
    for at in 1..300 {
        loop {
            match bind(&second, at).await.unwrap().as_str() {
                "" => break,
                // kube-scheduler would take another node.
                said if said.contains("have room") => break,
                // The first one has put it there.
                said if said.contains("already") => break,
                _ => tokio::time::sleep(Duration::from_millis(100)).await,
            }
            assert!(ended.elapsed() < Duration::from_secs(20), "pod-{at}");
        }
    }
    assert!(bound() >= 200);
    let promised = promised(&server);
    assert!(promised.values().all(|mib| *mib <= 8000), "{promised:?}");
    second.stop().await;
}

#[tokio::test]
async fn a_lease_that_is_given_back_is_taken_for_pods_that_got_no_answer() {
    let (_folder, server, alone) = cluster().await;
    alone.stop().await;
    server.objects.put(pod("train", 1024));
    server.objects.put(pod("beside", 1024));
    let first = Running::start_with(server.kubeconfig.clone(), Some(LEASE)).await;
    let second = Running::start_with(server.kubeconfig.clone(), Some(LEASE)).await;
    let until_bound = async |extender: &Running, pod: &str| {
        let start = Instant::now();
        while !extender.bind(pod, &format!("uid-of-{pod}"), "roomy").await.is_empty() {
            assert!(start.elapsed() < Duration::from_secs(5));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    until_bound(&first, "train").await;
    let holder =
        || server.objects.lease("sluice-extender").unwrap()["spec"]["holderIdentity"].clone();
    let before = holder();
    let filter = json!({"Pod": server.objects.pod("beside"), "NodeNames": ["roomy"]});
    let answer = second.post("/scheduler/filter", &filter).await;
    assert!(answer["Error"].as_str().unwrap().contains("holds the lease"), "{answer}");
    first.stop().await;
    let is_woken = || {
        let pod = server.objects.pod("beside").unwrap();
        pod["metadata"]["annotations"]["sluice.dev/room"].is_string()
    };
    rooms::until(is_woken).await;
    until_bound(&second, "beside").await;
    assert!(holder() != before && holder().is_string());
    second.stop().await;
}

/// The API server did not answer until the lease could not be relied on any more.
#[tokio::test]
async fn a_lease_that_was_kept_wakes_the_pods_that_got_no_answer() {
    let (_folder, server, alone) = cluster().await;
    alone.stop().await;
    server.objects.change(pod("train", 1024));
    let extender = Running::start_with(server.kubeconfig.clone(), Some(LEASE)).await;
    extender.until("/readyz", 200).await;
    let filter = json!({"Pod": pod("train", 1024), "NodeNames": ["roomy"]});
    let error = async || {
        let answer = extender.post("/scheduler/filter", &filter).await;
        answer["Error"].as_str().unwrap().to_owned()
    };
    let start = Instant::now();
    while !error().await.is_empty() {
        assert!(start.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let woken = || server.objects.written("PATCH", "/pods/train").len();
    let before = woken();
    server.objects.be_silent("/leases/sluice-extender");
    while !error().await.starts_with("the lease kube-system/sluice-extender: ") {
        assert!(start.elapsed() < 2 * PATIENCE);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    server.objects.speak();
    rooms::until(|| woken() > before).await;
    extender.stop().await;
}
