//! ResourceQuotas that API servers do not count.

use serde_json::{Value, json};

use super::{PATIENCE, Running, cluster, pod, rooms};

fn quota(hard: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus", "namespace": "default"},
        "spec": {"hard": {"limits.nvidia.com/vgpu-memory": hard}},
    })
}

/// What is said against a pod on the node that has room for it. Empty: nothing.
async fn said(extender: &Running, name: &str, memory_mib: u64) -> String {
    let wanted = json!({"Pod": pod(name, memory_mib), "NodeNames": ["roomy"]});
    let left = extender.post("/scheduler/filter", &wanted).await;
    left["FailedNodes"]["roomy"].as_str().unwrap_or_default().to_owned()
}

/// The watch tells of a quota by itself.
async fn until_said(extender: &Running, (name, memory_mib): (&str, u64), words: &str) {
    let start = std::time::Instant::now();
    loop {
        let found = said(extender, name, memory_mib).await;
        if found == words {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{found}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_namespace_gets_no_more_than_its_quota() {
    let (_folder, server, extender) = cluster().await;
    for (name, memory) in [("first", 2000), ("second", 1500), ("third", 1000)] {
        server.objects.put(pod(name, memory));
    }
    assert_eq!(extender.bind("first", "uid-of-first", "roomy").await, "");
    server.objects.change_quota(quota("3000"));
    let words = "ResourceQuota gpus: limits.nvidia.com/vgpu-memory: 1500 requested, 2000 of 3000 in use; expected at most 1000";
    until_said(&extender, ("second", 1500), words).await;
    assert_eq!(extender.bind("second", "uid-of-second", "roomy").await, words);
    assert_eq!(said(&extender, "third", 1000).await, "");
    assert_eq!(extender.bind("third", "uid-of-third", "roomy").await, "");
    server.objects.change_quota(quota("4500"));
    until_said(&extender, ("second", 1500), "").await;
    assert_eq!(extender.bind("second", "uid-of-second", "roomy").await, "");
    extender.stop().await;
}

#[tokio::test]
async fn a_quota_that_refuses_a_pod_ends_no_other_and_wakes_it_later() {
    let (_folder, server, extender) = cluster().await;
    for (name, memory) in [("first", 2000), ("small", 1000), ("large", 2000)] {
        server.objects.change(pod(name, memory));
    }
    assert_eq!(extender.bind("first", "uid-of-first", "roomy").await, "");
    server.objects.change_quota(quota("2500"));
    let refused = |asked, left| {
        format!(
            "ResourceQuota gpus: limits.nvidia.com/vgpu-memory: {asked} requested, 2000 of {} in use; expected at most {left}",
            2000 + left
        )
    };
    until_said(&extender, ("small", 1000), &refused(1000, 500)).await;
    let victims = json!({"Pods": [{"UID": "uid-of-first"}], "NumPDBViolations": 0});
    let wanted = json!({"Pod": pod("small", 1000), "NodeNameToMetaVictims": {"roomy": victims}});
    let answer = extender.post("/scheduler/preempt", &wanted).await;
    assert_eq!(answer["NodeNameToMetaVictims"], json!({}));
    assert_eq!(said(&extender, "large", 2000).await, refused(2000, 500));
    let woken = |name: &str| server.objects.written("PATCH", name).len();
    server.objects.change_quota(quota("3000"));
    rooms::until(|| woken("/pods/small") == 1).await;
    assert_eq!(woken("/pods/large"), 0);
    // Another pod of the namespace has ended.
    server.objects.remove("first");
    rooms::until(|| woken("/pods/large") == 1).await;
    extender.stop().await;
}
