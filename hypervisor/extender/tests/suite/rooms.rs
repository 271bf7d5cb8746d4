//! What the extender knows of room: at once after a binding, and when it is there again.

use serde_json::{Value, json};

use super::*;

impl Running {
    /// Which nodes are left, and why others are not.
    async fn filter(&self, pod: &Value, nodes: &[&str]) -> (Vec<String>, Value) {
        let wanted = json!({"Pod": pod, "NodeNames": nodes});
        let answer = self.post("/scheduler/filter", &wanted).await;
        assert_eq!(answer["Error"], "", "{answer}");
        let left = serde_json::from_value(answer["NodeNames"].clone()).unwrap();
        (left, answer["FailedNodes"].clone())
    }
}

/// A pod on `roomy` with all of its GPU's memory.
fn full(name: &str) -> Value {
    let mut full = pod(name, 8000);
    full["spec"]["nodeName"] = "roomy".into();
    full["metadata"]["annotations"] =
        json!({"nvidia.com/pre-allocated": format!("main[0_{GPU}_30_8000]")});
    full
}

pub(crate) async fn until(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_binding_counts_at_once_and_lists_nothing() {
    let (_folder, server, extender) = cluster().await;
    let lists = server.objects.lists();
    server.objects.put(pod("train", 6000));
    // Nothing is told of pods from now on.
    server.objects.be_silent("/api/v1/pods");
    assert_eq!(extender.bind("train", "uid-of-train", "roomy").await, "");
    let (left, failed) = extender.filter(&pod("beside", 6000), &["roomy"]).await;
    assert!(left.is_empty());
    assert_eq!(
        failed["roomy"],
        "container main asks for 1 GPU with 30 cores and 6000 MiB: 0 of 1 GPUs have room (1 with too little memory left, at most 2000 MiB); 1 GPU with 30 cores and 2000 MiB would fit on node roomy"
    );
    let said = extender.bind("beside", "uid-of-beside", "roomy").await;
    assert_eq!(said, "the pod default/beside has gone");
    server.objects.put(pod("beside", 6000));
    let said = extender.bind("beside", "uid-of-beside", "roomy").await;
    assert!(said.starts_with("node roomy: container main asks for 1 GPU"), "{said}");
    assert_eq!(server.objects.lists(), lists);
    server.objects.speak();
    extender.stop().await;
}

/// What kube-scheduler queues again: its own watch may have been faster than the extender's.
#[tokio::test]
async fn a_refused_pod_is_woken_when_a_gpu_is_free() {
    let (_folder, server, extender) = cluster().await;
    let woken = || server.objects.written("PATCH", "/pods/train").len();
    for round in 0..20 {
        server.objects.change(full("full"));
        let mut train = pod("train", 1024);
        train["metadata"]["uid"] = round.to_string().into();
        server.objects.change(train.clone());
        until_refused(&extender, &train).await;
        assert_eq!(woken(), round);
        let freed = Instant::now();
        server.objects.remove("full");
        until(|| woken() > round).await;
        assert!(freed.elapsed() < Duration::from_secs(2), "{:?}", freed.elapsed());
        let patch = server.objects.written("PATCH", "/pods/train").pop().unwrap();
        assert_eq!(patch["metadata"]["uid"], train["metadata"]["uid"]);
        assert!(patch["metadata"]["annotations"]["sluice.dev/room"].is_string(), "{patch}");
        let (left, _) = extender.filter(&train, &["roomy"]).await;
        assert_eq!(left, ["roomy"]);
        server.objects.remove("train");
    }
    extender.stop().await;
}

async fn until_refused(extender: &Running, waits: &Value) {
    let start = Instant::now();
    while !extender.filter(waits, &["roomy"]).await.0.is_empty() {
        assert!(start.elapsed() < PATIENCE);
    }
}

/// Of two that wait only the first is woken; one that has gone takes nobody's room, though kube-scheduler tries it once more; a node that kube-scheduler did not ask about wakes nobody.
#[tokio::test]
async fn as_many_pods_are_woken_as_have_room() {
    let (_folder, server, extender) = cluster().await;
    server.objects.change_node(node("bare", Some(&register().replace("00552014", "00000001"))));
    server.objects.change(full("full"));
    let waits = |(name, priority): (&str, u32)| {
        let mut waits = pod(name, 8000);
        waits["spec"]["priority"] = priority.into();
        server.objects.change(waits.clone());
        waits
    };
    let [low, high, gone] = [("low", 1), ("high", 2), ("gone", 3)].map(waits);
    until_refused(&extender, &gone).await;
    server.objects.remove("gone");
    for waits in [&low, &high] {
        until_refused(&extender, waits).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    until_refused(&extender, &gone).await;
    server.objects.change_node(node("bare", Some(&register())));
    server.objects.remove("full");
    let woken = |name: &str| server.objects.written("PATCH", name).len();
    until(|| woken("/pods/high") == 1).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!((woken("/pods/high"), woken("/pods/low")), (1, 0));
    extender.stop().await;
}

#[tokio::test]
async fn nodes_are_ranked_by_the_pods_policy() {
    let (_folder, server, extender) = cluster().await;
    let other = register().replace("00552014", "00000001");
    server.objects.change_node(node("empty", Some(&other)));
    server.objects.change(full("full"));
    for (policy, roomy, empty) in [("binpack", 10, 0), ("spread", 0, 10), ("none", 0, 0)] {
        let mut wants = pod("train", 1024);
        wants["metadata"]["annotations"] = json!({"nvidia.com/node-scheduler-policy": policy});
        let wanted = json!({"Pod": wants, "NodeNames": ["roomy", "empty"]});
        let expected =
            json!([{"Host": "roomy", "Score": roomy}, {"Host": "empty", "Score": empty}]);
        let start = Instant::now();
        loop {
            let scores = extender.post("/scheduler/prioritize", &wanted).await;
            if scores == expected {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{policy}: {scores}");
        }
    }
    let mut unknown = pod("train", 1024);
    unknown["metadata"]["annotations"] = json!({"nvidia.com/device-scheduler-policy": "full"});
    let (left, failed) = extender.filter(&unknown, &["roomy"]).await;
    assert!(left.is_empty());
    assert!(failed["roomy"].as_str().unwrap().ends_with("; expected binpack, spread or none"));
    extender.stop().await;
}

/// kube-scheduler needs one victim by its count of places, and the pod more by memory.
#[tokio::test]
async fn as_many_pods_are_preempted_as_the_pod_needs() {
    let (_folder, server, extender) = cluster().await;
    for (name, mib, priority) in [("a", 1000, 1), ("b", 2000, 2), ("c", 3000, 3), ("d", 2000, 9)] {
        let mut holds = full(name);
        holds["spec"]["priority"] = priority.into();
        holds["metadata"]["annotations"] =
            json!({"nvidia.com/pre-allocated": format!("main[0_{GPU}_20_{mib}]")});
        server.objects.change(holds);
    }
    let uid = |name: &str| json!({"UID": format!("uid-of-{name}")});
    let preempt = async |mib: u64, proposed: Value| {
        let mut high = pod("high", mib);
        high["spec"]["priority"] = 5.into();
        let victims = json!({"Pods": proposed, "NumPDBViolations": 0});
        let wanted = json!({"Pod": high, "NodeNameToMetaVictims": {"roomy": victims}});
        let answer = extender.post("/scheduler/preempt", &wanted).await;
        answer["NodeNameToMetaVictims"]["roomy"]["Pods"].clone()
    };
    let start = Instant::now();
    // One of them comes first.
    while !preempt(6001, json!([uid("a")])).await.is_null() {
        assert!(start.elapsed() < PATIENCE);
    }
    assert_eq!(preempt(1000, json!([uid("a")])).await, json!([uid("a")]));
    // The lowest first, and none that need not end.
    assert_eq!(preempt(3000, json!([uid("a")])).await, json!([uid("a"), uid("b")]));
    assert_eq!(preempt(3000, Value::Null).await, json!([uid("a"), uid("b")]));
    assert_eq!(preempt(6000, json!([uid("a")])).await, json!([uid("a"), uid("b"), uid("c")]));
    extender.stop().await;
}
