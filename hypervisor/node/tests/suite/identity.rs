//! Whose an allocation is, what is written for it, and when it goes.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::Ordering;
use std::time::Instant;

use limits::MemoryLimit;
use session::settings::OwnerSettings;

use super::kubelets_side::{Admitted, GIB, MEMORY, NUMBER, Node, with_gates};
use super::support::{Agent, FakeKubelet, gpu, shows, until};

#[tokio::test]
async fn limits_are_there_before_the_container_and_in_the_variables_of_the_core() {
    let mut kubelet = FakeKubelet::running();
    let agent = Agent::start(with_gates(kubelet.path()), shows(2));
    let node = Node::of(&mut kubelet, 2).await;
    let container = node.admit("pod", "main", 10, 1).await;
    // Not yet all of its resources may be there.
    assert_eq!(container.written(), None);
    node.start(&container).await.unwrap();
    assert_eq!(container.written(), Some(container.wanted()));
    let settings = OwnerSettings::of(&container.folder).unwrap();
    let wanted = [
        ("CONTAINER_NAME", "main".to_owned()),
        ("POD_NAME", "pod".to_owned()),
        ("POD_NAMESPACE", "default".to_owned()),
        ("SLUICE_DAEMON", "/run/sluice/daemon/hypervisor.sock".to_owned()),
        ("TENSOR_FUSION_CUDA_MEM_LIMIT", format!("{{\"{}\":1073741824}}", gpu(0))),
        ("TENSOR_FUSION_CUDA_UP_LIMIT", format!("{{\"{}\":10.0}}", gpu(0))),
    ];
    let wanted: BTreeMap<_, _> = wanted.map(|(name, value)| (name.to_owned(), value)).into();
    assert_eq!(settings.variables, wanted);
    // It starts again, as after a crash: nothing changes.
    node.start(&container).await.unwrap();
    assert_eq!(container.written(), Some(container.wanted()));
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn a_kubelet_that_is_slow_or_says_no_or_does_not_tell_keeps_containers_waiting_and_no_more() {
    let mut kubelet = FakeKubelet::running();
    let agent = Agent::start(with_gates(kubelet.path()), shows(2));
    let node = Node::of(&mut kubelet, 2).await;
    // Slow: the container waits for the answer.
    kubelet.pods.takes_ms.store(700, Ordering::Release);
    let slow = node.admit("slow", "main", 5, 2).await;
    node.start(&slow).await.unwrap();
    assert_eq!(slow.written(), Some(slow.wanted()));
    // It says no: the container starts, and gets its limits when the kubelet tells.
    kubelet.pods.takes_ms.store(0, Ordering::Release);
    kubelet.pods.refuses.store(true, Ordering::Release);
    let refused = node.admit("refused", "main", 6, 3).await;
    node.start(&refused).await.unwrap();
    assert_eq!(refused.written(), None);
    kubelet.pods.refuses.store(false, Ordering::Release);
    until("its limits are written", || refused.written() == Some(refused.wanted())).await;
    // Nobody listens; then somebody does again.
    kubelet.tells_of_no_pods();
    let unheard = node.admit("unheard", "main", 7, 4).await;
    node.start(&unheard).await.unwrap();
    assert_eq!(unheard.written(), None);
    kubelet.tell_of_pods();
    until("its limits are written", || unheard.written() == Some(unheard.wanted())).await;
    // It never answers: the container does not wait for ever.
    kubelet.pods.takes_ms.store(u32::MAX, Ordering::Release);
    let stuck = node.admit("stuck", "main", 8, 5).await;
    node.start(&stuck).await.unwrap();
    assert_eq!(stuck.written(), None);
    agent.stop().await.unwrap();
}

/// The plugin is asked for one resource after the other, and what is listed meanwhile is a part of the container.
#[tokio::test]
async fn a_part_of_what_a_container_asks_for_is_not_taken_for_all_of_it() {
    let mut kubelet = FakeKubelet::running();
    let agent = Agent::start(with_gates(kubelet.path()), shows(1));
    let node = Node::of(&mut kubelet, 1).await;
    let container = node.admit("pod", "main", 0, 0).await;
    // The agent asks while the memory is not there yet.
    let before = kubelet.pods.asked.load(Ordering::Acquire);
    until("it has asked", || kubelet.pods.asked.load(Ordering::Acquire) > before + 1).await;
    assert_eq!(container.written(), None);
    let memory = node.take(MEMORY, 2);
    node.allocate(MEMORY, &memory).await;
    node.pods.give("pod", "main", MEMORY, &memory);
    node.start(&container).await.unwrap();
    let (name, limits) = Admitted::written(&container).unwrap();
    assert_eq!(
        (name.as_str(), limits.memory),
        ("default/pod/main", Some(MemoryLimit::new(2 * GIB)))
    );
    assert!(!limits.compute.is_limit());
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn what_contradicts_itself_or_no_gpu_can_give_does_not_start() {
    let mut kubelet = FakeKubelet::running();
    let agent = Agent::start(with_gates(kubelet.path()), shows(2));
    let node = Node::of(&mut kubelet, 2).await;
    let one = node.admit("one", "main", 10, 1).await;
    let (_, places) = one.ids.iter().find(|(resource, _)| *resource == NUMBER).unwrap();
    node.pods.give("other", "main", NUMBER, places);
    let said = node.start(&one).await.unwrap_err();
    assert!(said.contains("these ids for default/one/main and for default/other/main"), "{said}");
    assert_eq!(one.written(), None);
    node.pods.end("other");
    node.start(&one).await.unwrap();
    // Another one's, although nothing was allocated in between.
    node.pods.end("one");
    node.pods.give("thief", "main", NUMBER, places);
    let said = node.start(&one).await.unwrap_err();
    assert!(said.contains("lists it for default/thief/main, and has listed it for"), "{said}");
    assert_eq!(one.written(), Some(one.wanted()));
    let greedy = node.admit("greedy", "main", 101, 1).await;
    let said = node.start(&greedy).await.unwrap_err();
    assert!(said.contains("101 cores of each of its GPUs are asked for"), "{said}");
    let large = node.admit("large", "main", 1, 80).await;
    let said = node.start(&large).await.unwrap_err();
    assert!(said.contains("81920 MiB of GPU-"), "{said}");
    assert_eq!((greedy.written(), large.written()), (None, None));
    agent.stop().await.unwrap();
}

/// Kubelets give a pod's later containers what its init containers had, and list those alone.
#[tokio::test]
async fn an_init_container_has_the_limits_of_the_container_with_its_ids_or_none() {
    let mut kubelet = FakeKubelet::running();
    let agent = Agent::start(with_gates(kubelet.path()), shows(2));
    let node = Node::of(&mut kubelet, 2).await;
    // Both are allocated before the first starts; the main container has the same place.
    let place = node.take(NUMBER, 1);
    node.allocate(NUMBER, &place).await;
    node.allocate(NUMBER, &place).await;
    let memory = node.take(MEMORY, 3);
    node.allocate(MEMORY, &memory).await;
    node.pods.give("pod", "main", NUMBER, &place);
    node.pods.give("pod", "main", MEMORY, &memory);
    node.start_with(&place).await.unwrap();
    let holders = || -> Vec<Option<String>> {
        let folders = fs::read_dir(&node.folder).unwrap().map(|entry| entry.unwrap().path());
        let folders = folders.filter(|path| path.join("allocation.json").exists());
        folders.map(|path| OwnerSettings::of(&path).ok().and_then(|found| found.name)).collect()
    };
    assert_eq!(holders(), [Some("default/pod/main".to_owned())]);
    node.start_with(&place).await.unwrap();
    // One with a place that no other container gets is let start, and is given no limits.
    let alone = [format!("{}::7", gpu(1))];
    node.allocate(NUMBER, &alone).await;
    node.start_with(&alone).await.unwrap();
    let mut found = holders();
    found.sort();
    assert_eq!(found, [None, Some("default/pod/main".to_owned())]);
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn what_has_ended_goes_and_what_lives_stays_also_when_the_agent_restarts() {
    let mut kubelet = FakeKubelet::running();
    let agent = Agent::start(with_gates(kubelet.path()), shows(2));
    let node = Node::of(&mut kubelet, 2).await;
    let living = node.admit("living", "main", 10, 1).await;
    let ending = node.admit("ending", "main", 10, 1).await;
    for container in [&living, &ending] {
        node.start(container).await.unwrap();
    }
    let asked = kubelet.pods.asked.load(Ordering::Acquire);
    until("it has looked", || kubelet.pods.asked.load(Ordering::Acquire) > asked + 2).await;
    assert!(ending.folder.exists());
    node.end(&ending);
    let begun = Instant::now();
    until("it is removed", || !ending.folder.exists()).await;
    println!("removed {:?} after the kubelet listed it no more", begun.elapsed());
    assert!(living.written().is_some());
    // The next pod gets the same ids, and other limits.
    let next = node.admit("next", "main", 20, 2).await;
    assert_eq!(next.folder, ending.folder);
    node.start(&next).await.unwrap();
    assert_eq!(next.written(), Some(next.wanted()));
    agent.stop().await.unwrap();
    node.end(&next);
    let agent = Agent::start(with_gates(kubelet.path()), shows(2));
    until("what ended meanwhile is removed", || !next.folder.exists()).await;
    assert_eq!(living.written(), Some(living.wanted()));
    let node = Node::of(&mut kubelet, 2).await;
    node.start(&living).await.unwrap();
    assert_eq!(living.written(), Some(living.wanted()));
    agent.stop().await.unwrap();
}

/// A kubelet that has just started may list no pod, while its containers run.
#[tokio::test]
async fn what_some_process_still_sees_stays() {
    let mut kubelet = FakeKubelet::running();
    let agent = Agent::start(with_gates(kubelet.path()), shows(1));
    let node = Node::of(&mut kubelet, 1).await;
    let container = node.admit("pod", "main", 10, 1).await;
    node.start(&container).await.unwrap();
    let script = "mount --bind \"$0\" /mnt && echo ready && read -r over";
    let mut sees = std::process::Command::new("unshare")
        .args(["--mount", "sh", "-ec", script])
        .arg(&container.folder)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 5];
    let out = sees.stdout.as_mut().unwrap();
    if std::io::Read::read_exact(out, &mut ready).is_err() {
        super::skipped::skipped("namespaces are not permitted here");
        _ = sees.wait();
        return;
    }
    let looks = async |more: u32| {
        let asked = kubelet.pods.asked.load(Ordering::Acquire);
        until("it has looked", || kubelet.pods.asked.load(Ordering::Acquire) > asked + more).await;
    };
    looks(2).await;
    node.end(&container);
    looks(5).await;
    assert_eq!(container.written(), Some(container.wanted()));
    drop(sees.stdin.take());
    _ = sees.wait();
    until("nobody sees it any more", || !container.folder.exists()).await;
    agent.stop().await.unwrap();
}

/// Two pods with two containers each, created at the same time, again and again, with ids that have just become free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_that_are_created_at_once_are_never_mixed_up() {
    const ROUNDS: usize = 500;
    let mut kubelet = FakeKubelet::running();
    let agent = Agent::start(with_gates(kubelet.path()), shows(2));
    let node = Node::of(&mut kubelet, 2).await;
    let begun = Instant::now();
    for round in 0..ROUNDS {
        let pods = (0..2_usize).map(|pod| {
            let node = node.clone();
            tokio::spawn(async move {
                let name = format!("pod-{round}-{pod}");
                let mut containers = Vec::new();
                for at in 0..2 {
                    let (cores, memory) =
                        (1 + (round + pod) % 5 + at, 1 + (round + 2 * pod + at) % 7);
                    containers.push(node.admit(&name, &format!("c{at}"), cores, memory).await);
                }
                for container in &containers {
                    node.start(container).await.unwrap();
                }
                containers
            })
        });
        let pods: Vec<_> = pods.collect();
        let mut containers = Vec::new();
        for pod in pods {
            containers.extend(pod.await.unwrap());
        }
        for container in &containers {
            assert_eq!(container.written(), Some(container.wanted()), "round {round}");
        }
        containers.iter().for_each(|container| node.end(container));
    }
    println!("{ROUNDS} rounds in {:?}", begun.elapsed());
    let folders = || fs::read_dir(&node.folder).unwrap().count();
    // The lock, and what is preloaded.
    until("all are removed", || folders() == 2).await;
    agent.stop().await.unwrap();
}
