//! The agent is killed at each step of a container's start and started again, and so is the kubelet: folders, limits and
//! what is free end the same.

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::kubelets_side::{NUMBER, Node, with_gates};
use super::support::{Agent, FakeKubelet, shows, until};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The folder is there, and the kubelet has its answer.
    Allocated,
    /// The container starts, and its limits are not written.
    Started,
    /// They are.
    Written,
}

fn folders(folder: &Path) -> usize {
    // Beside the lock, and what is preloaded.
    fs::read_dir(folder).unwrap().count() - 2
}

async fn agent_is_killed(step: Step) {
    let mut kubelet = FakeKubelet::running();
    let agent = Agent::start(with_gates(kubelet.path()), shows(2));
    let node = Node::of(&mut kubelet, 2).await;
    let container = node.admit("pod", "main", 10, 1).await;
    if step != Step::Allocated {
        kubelet.pods.refuses.store(step == Step::Started, Ordering::Release);
        node.start(&container).await.unwrap();
    }
    agent.kill().await;
    assert_eq!(container.written().is_some(), step == Step::Written, "{step:?}");
    // What it was about to make.
    fs::create_dir_all(node.folder.join(".draft-7/session")).unwrap();
    kubelet.pods.refuses.store(false, Ordering::Release);
    let agent = Agent::start(with_gates(kubelet.path()), shows(2));
    let node = Node::of(&mut kubelet, 2).await;
    if step == Step::Allocated {
        node.start(&container).await.unwrap();
    }
    until("its limits are written", || container.written() == Some(container.wanted())).await;
    assert_eq!(folders(&node.folder), 1);
    // Once more, as after a crash of the container.
    node.start(&container).await.unwrap();
    assert_eq!(container.written(), Some(container.wanted()));
    node.end(&container);
    until("nothing is left over", || folders(&node.folder) == 0).await;
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn before_the_container_starts() {
    agent_is_killed(Step::Allocated).await;
}

#[tokio::test]
async fn before_its_limits_are_written() {
    agent_is_killed(Step::Started).await;
}

#[tokio::test]
async fn after_its_limits_are_written() {
    agent_is_killed(Step::Written).await;
}

/// It has forgotten what it asked for: the pod gets other ids, and those of the lost call are free again.
#[tokio::test]
async fn a_kubelet_that_is_killed_during_allocate_leaves_nothing_behind() {
    let mut kubelet = FakeKubelet::running();
    let agent = Agent::start(with_gates(kubelet.path()), shows(2));
    let node = Node::of(&mut kubelet, 2).await;
    let lost = node.take(NUMBER, 1);
    node.allocate(NUMBER, &lost).await;
    kubelet.kill();
    assert_eq!(folders(&node.folder), 1);
    kubelet.start();
    let node = Node::of(&mut kubelet, 2).await;
    // Or the same ones, as often as it likes.
    let again = node.take(NUMBER, 1);
    assert_eq!(again, lost);
    for _ in 0..2 {
        node.allocate(NUMBER, &again).await;
    }
    assert_eq!(folders(&node.folder), 1);
    let container = node.admit("pod", "main", 10, 1).await;
    node.start(&container).await.unwrap();
    until("what nobody has is removed", || folders(&node.folder) == 1).await;
    assert_eq!(container.written(), Some(container.wanted()));
    agent.stop().await.unwrap();
}

/// The same where it waits for the answer, which nobody takes.
#[tokio::test]
async fn a_kubelet_that_is_killed_before_allocate_is_answered_leaves_nothing_behind() {
    let mut kubelet = FakeKubelet::running();
    let agent = Agent::start(with_gates(kubelet.path()), shows(2));
    let mut node = Node::of(&mut kubelet, 2).await;
    let mut unanswered = 0;
    for waits_ms in [0, 0, 1, 2, 3] {
        let lost = node.take(NUMBER, 1);
        let call = node.allocate(NUMBER, &lost);
        let answered = tokio::time::timeout(Duration::from_millis(waits_ms), call).await;
        unanswered += usize::from(answered.is_err());
        // Its connections end with it.
        kubelet.kill();
        drop(node);
        kubelet.start();
        node = Node::of(&mut kubelet, 2).await;
    }
    assert!(unanswered > 0, "it is never killed during a call");
    // The first ids, by other calls.
    let container = node.admit("pod", "main", 10, 1).await;
    node.start(&container).await.unwrap();
    until("what nobody has is removed", || folders(&node.folder) == 1).await;
    assert_eq!(container.written(), Some(container.wanted()));
    node.end(&container);
    until("nothing is left over", || folders(&node.folder) == 0).await;
    agent.stop().await.unwrap();
}
