//! An API server that is silent, away, or has forgotten: running containers keep their limits, and new ones wait for theirs.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;
use session::settings::OwnerSettings;

use super::cluster::example;
use super::kubelets_side::GIB;
use super::people::{Cluster, has, page, pod, started};
use super::support::{ApiServer, FakeKubelet, gpu, until};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Outage {
    Silent,
    Away,
}

impl Outage {
    fn begin(self, server: &mut ApiServer) {
        match self {
            Self::Silent => server.objects.be_silent(""),
            Self::Away => server.leave(),
        }
    }

    async fn end(self, server: &mut ApiServer) {
        match self {
            Self::Silent => server.objects.speak(),
            Self::Away => server.come_back().await.unwrap(),
        }
    }
}

fn is_written(folder: &Path) -> bool {
    OwnerSettings::of(folder).is_ok_and(|settings| settings.name.is_some())
}

/// It is over when running containers have kept their limits for so long.
pub(crate) async fn containers_go_through(outage: Outage, lasts: Duration) {
    let mut kubelet = FakeKubelet::running();
    let none = json!({});
    let mut cluster = started(&mut kubelet, vec![pod("before", &none), pod("ends", &none)]).await;
    let before = cluster.start(&kubelet, "before", 0).await;
    let ends = cluster.begin(&kubelet, "ends", 1).await;
    outage.begin(&mut cluster.server);
    cluster.server.objects.put(pod("after", &none));
    let after = cluster.begin(&kubelet, "after", 2).await;
    assert!(!is_written(&after), "nobody can tell what it asks for");
    let begun = Instant::now();
    // What waits keeps nothing else waiting.
    kubelet.pods.end("ends");
    until("what has ended is removed", || !ends.exists()).await;
    while {
        assert!(has(&before, 10, GIB) && !is_written(&after));
        begun.elapsed() < lasts
    } {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    outage.end(&mut cluster.server).await;
    until("its limits are written", || is_written(&after)).await;
    assert!(has(&page(&after), 10, GIB));
    let real = json!(format!("default[0_{}_10_1024]", gpu(0)));
    let objects = &cluster.server.objects;
    let told = || {
        let after = objects.pod("after").unwrap();
        after["metadata"]["annotations"]["nvidia.com/real-allocated"] == real
    };
    until("schedulers can see it", told).await;
    objects.change(pod("before", &json!({"sluice.dev/limits": "cores=20,memory=2GiB"})));
    until("what is changed now is followed", || has(&before, 20, 2 * GIB)).await;
    cluster.agent.stop().await.unwrap();
}

#[tokio::test]
async fn while_it_is_silent_running_containers_keep_their_limits_and_new_ones_wait() {
    containers_go_through(Outage::Silent, Duration::ZERO).await;
}

#[tokio::test]
async fn while_it_is_away_running_containers_keep_their_limits_and_new_ones_wait() {
    containers_go_through(Outage::Away, Duration::ZERO).await;
}

#[tokio::test]
async fn after_410_gone_what_has_changed_and_what_has_ended_meanwhile_is_seen() {
    let mut kubelet = FakeKubelet::running();
    let none = json!({});
    let pods = vec![pod("changed", &none), pod("replaced", &none)];
    let mut cluster = started(&mut kubelet, pods).await;
    let changed = cluster.start(&kubelet, "changed", 0).await;
    let greedy = |name: &str| pod(name, &json!({"sluice.dev/limits": "cores=20,memory=2GiB"}));
    cluster.server.leave();
    let objects = cluster.server.objects.clone();
    objects.change(greedy("changed"));
    objects.remove("replaced");
    let mut other = pod("replaced", &none);
    other["metadata"]["uid"] = "another".into();
    other["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/vgpu-cores"] = "30".into();
    objects.change(other);
    objects.forget_history();
    cluster.server.come_back().await.unwrap();
    until("the change is followed", || has(&changed, 20, 2 * GIB)).await;
    // The same name, and what the new one says.
    let replaced = cluster.start(&kubelet, "replaced", 1).await;
    assert!(has(&replaced, 30, GIB));
    let told = || {
        let found = objects.pod("replaced").unwrap();
        found["metadata"]["annotations"]["nvidia.com/real-allocated"].is_string()
    };
    until("it is told of the new one", told).await;
    // In the middle of a watch.
    let lists = objects.lists();
    objects.forget_history();
    until("it lists again", || objects.lists() > lists).await;
    let mut annotated = greedy("replaced");
    annotated["metadata"]["uid"] = "another".into();
    objects.change(annotated);
    until("the change is followed", || has(&replaced, 20, 2 * GIB)).await;
    cluster.agent.stop().await.unwrap();
}

/// Nobody tells of what has changed, and the node's kubelet has the new pod.
#[tokio::test]
async fn a_pod_that_has_gone_unheard_of_says_nothing_for_the_next_of_its_name() {
    let mut kubelet = FakeKubelet::running();
    let greedy = json!({"sluice.dev/limits": "cores=90,memory=4GiB"});
    let cluster = started(&mut kubelet, vec![pod("replaced", &greedy)]).await;
    // It is known by its words, which are followed.
    let first = cluster.start(&kubelet, "replaced", 0).await;
    until("the annotation is followed", || has(&first, 90, 4 * GIB)).await;
    let objects = cluster.server.objects.clone();
    objects.be_silent("/api/v1/pods");
    kubelet.pods.end("replaced");
    let mut other = pod("replaced", &json!({}));
    other["metadata"]["uid"] = "another".into();
    objects.remove("replaced");
    objects.put(other);
    let second = cluster.start(&kubelet, "replaced", 1).await;
    let told = || {
        objects.pod("replaced").unwrap()["metadata"]["annotations"]["nvidia.com/real-allocated"]
            .is_string()
    };
    until("it is told of the new one", told).await;
    // The first one's annotation is all that has been heard of.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(has(&second, 10, GIB));
    objects.speak();
    cluster.agent.stop().await.unwrap();
}

/// A container of a pod with two, on a place of a GPU.
async fn starts(
    cluster: &Cluster,
    kubelet: &FakeKubelet,
    container: &str,
    on: u8,
    place: u8,
) -> Result<PathBuf, String> {
    cluster.starts(kubelet, "two", container, format!("{}::{place}", gpu(on))).await
}

/// A pod of two containers that fit no GPU together.
fn two() -> serde_json::Value {
    let mut two = example("two", 0);
    let claims = format!("first[0_{}_10_1024];second[1_{}_95_1024]", gpu(0), gpu(1));
    two["metadata"]["annotations"]["nvidia.com/pre-allocated"] = claims.into();
    let own = two["spec"]["containers"][0].clone();
    let named = |name: &str, cores: &str| {
        let mut container = own.clone();
        container["name"] = name.into();
        container["resources"]["limits"]["nvidia.com/vgpu-cores"] = cores.into();
        container
    };
    two["spec"]["containers"] = json!([named("first", "10"), named("second", "95")]);
    two["metadata"]["ownerReferences"] = json!([]);
    two
}

/// What happened later is what holds, in whatever order the API server comes to it.
async fn the_last_word_holds(wanted: &str, steps: impl AsyncFnOnce(&Cluster, &FakeKubelet)) {
    let mut kubelet = FakeKubelet::running();
    let cluster = started(&mut kubelet, vec![two()]).await;
    let objects = cluster.server.objects.clone();
    objects.be_silent_to_writes("/pods/two");
    let begun = Instant::now();
    steps(&cluster, &kubelet).await;
    // The first word is about to be said again, and the second one is being said.
    tokio::time::sleep(Duration::from_millis(3100).saturating_sub(begun.elapsed())).await;
    objects.speak();
    let phase = || {
        let found = objects.pod("two").unwrap();
        found["metadata"]["labels"]["nvidia.com/assigned-phase"].clone()
    };
    until("its scheduler is told", || phase() == wanted).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(phase(), wanted);
    cluster.agent.stop().await.unwrap();
}

#[tokio::test]
async fn an_earlier_success_does_not_take_a_later_failure_back() {
    the_last_word_holds("failed", async |cluster, kubelet| {
        starts(cluster, kubelet, "first", 0, 0).await.unwrap();
        starts(cluster, kubelet, "second", 1, 0).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        kubelet.pods.end("two");
        starts(cluster, kubelet, "first", 0, 0).await.unwrap();
        let said = starts(cluster, kubelet, "second", 0, 1).await.unwrap_err();
        assert!(said.contains("95; 90 of 100 are left"), "{said}");
    })
    .await;
}

#[tokio::test]
async fn an_earlier_failure_does_not_take_a_later_success_back() {
    the_last_word_holds("succeed", async |cluster, kubelet| {
        starts(cluster, kubelet, "first", 0, 0).await.unwrap();
        starts(cluster, kubelet, "second", 0, 1).await.unwrap_err();
        tokio::time::sleep(Duration::from_secs(1)).await;
        kubelet.pods.end("two");
        starts(cluster, kubelet, "first", 0, 0).await.unwrap();
        starts(cluster, kubelet, "second", 1, 0).await.unwrap();
    })
    .await;
}

/// The kubelet does not tell whose it is before it has started.
#[tokio::test]
async fn a_container_that_turns_out_to_have_no_room_gets_no_limits_and_an_event() {
    let mut kubelet = FakeKubelet::running();
    let cluster = started(&mut kubelet, vec![two()]).await;
    kubelet.tells_of_no_pods();
    let first = starts(&cluster, &kubelet, "first", 0, 0).await.unwrap();
    let second = starts(&cluster, &kubelet, "second", 0, 1).await.unwrap();
    kubelet.tell_of_pods();
    until("it is told", || !cluster.events("GPURefused").is_empty()).await;
    let objects = cluster.server.objects.clone();
    let phase = || {
        let found = objects.pod("two").unwrap();
        found["metadata"]["labels"]["nvidia.com/assigned-phase"].clone()
    };
    until("so is its scheduler", || phase() == "failed").await;
    // Once: it is looked at again and again.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let events = cluster.events("GPURefused");
    let note = events[0]["note"].as_str().unwrap();
    assert!(note.contains("of 100 are left") && events.len() == 1, "{events:?}");
    assert_ne!(is_written(&first), is_written(&second));
    cluster.agent.stop().await.unwrap();
}

#[tokio::test]
async fn what_a_scheduler_waits_for_is_written_when_it_is_back() {
    let mut kubelet = FakeKubelet::running();
    let mut cluster = started(&mut kubelet, vec![example("gpu-pod", 0)]).await;
    let objects = cluster.server.objects.clone();
    let phase = || {
        let found = objects.pod("gpu-pod").unwrap();
        found["metadata"]["labels"]["nvidia.com/assigned-phase"].clone()
    };
    // First it hangs, and then it is away.
    objects.be_silent_to_writes("/pods/gpu-pod");
    let folder = cluster.begin(&kubelet, "gpu-pod", 0).await;
    until("its limits are written", || is_written(&folder)).await;
    cluster.server.leave();
    objects.speak();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(phase(), "allocating");
    cluster.server.come_back().await.unwrap();
    until("its scheduler is told", || phase() == "succeed").await;
    cluster.agent.stop().await.unwrap();
}
