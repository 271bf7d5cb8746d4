//! What cannot be followed ends the program with a line that says what would be accepted.

use super::support::{Agent, FakeKubelet, options, shows};

#[tokio::test]
async fn folders_that_are_wrong() {
    let kubelet = FakeKubelet::new();
    let mut wrong = options(kubelet.path());
    wrong.kubelet = "kubelet".into();
    let said = Agent::start(wrong, shows(1)).fails().await;
    assert_eq!(said, "--kubelet-dir kubelet; expected a path that begins with /");
    let mut wrong = options(kubelet.path());
    wrong.kubelet = kubelet.path().join("none");
    let said = Agent::start(wrong, shows(1)).fails().await;
    assert!(said.contains("none/device-plugins: No such file"), "{said}");
    let mut wrong = options(kubelet.path());
    let file = kubelet.path().join("file");
    std::fs::write(&file, "").unwrap();
    wrong.allocations = file;
    let said = Agent::start(wrong, shows(1)).fails().await;
    assert!(said.starts_with("the allocations in ") && said.contains("file"), "{said}");
    let mut wrong = options(kubelet.path());
    wrong.daemon = kubelet.path().join("hypervisor.sock");
    let said = Agent::start(wrong, shows(1)).fails().await;
    assert!(said.contains("which every container sees; expected another folder"), "{said}");
    for (cdi, program, accepted) in [("cdi", "/bin/sh", "--cdi-dir cdi"), ("/x", "sh", "--hook sh")]
    {
        let mut wrong = options(kubelet.path());
        wrong.image_preloads =
            Some(node::ImagePreloads { cdi: cdi.into(), program: program.into() });
        let said = Agent::start(wrong, shows(1)).fails().await;
        assert_eq!(said, format!("{accepted}; expected a path that begins with /"));
    }
    std::fs::remove_file(kubelet.path().join("library/libadd_path.so")).unwrap();
    let said = Agent::start(options(kubelet.path()), shows(1)).fails().await;
    assert!(
        said.contains("libadd_path.so: No such file") && said.contains("; expected "),
        "{said}"
    );
}

#[tokio::test]
async fn numbers_that_do_not_fit() {
    let kubelet = FakeKubelet::new();
    let mut wrong = options(kubelet.path());
    wrong.gates = "MemoryPlugin=true".parse().unwrap();
    wrong.memory_factor = 1.try_into().unwrap();
    let said = Agent::start(wrong, shows(8)).fails().await;
    assert!(
        said.contains("nvidia.com/vgpu-memory: 652472 ids")
            && said.contains("--memory-factor of at least"),
        "{said}"
    );
    let mut wrong = options(kubelet.path());
    wrong.dialects.clear();
    let said = Agent::start(wrong, shows(8)).fails().await;
    assert_eq!(said, "no dialect is chosen; expected vgpu-manager, volcano, hami or vgpu-rs");
    let mut wrong = options(kubelet.path());
    wrong.gpu_info = Some(kubelet.path().join("none.yaml"));
    let said = Agent::start(wrong.clone(), shows(8)).fails().await;
    assert!(said.contains("--gpu-info") && said.contains("none.yaml: No such file"), "{said}");
    std::fs::write(kubelet.path().join("none.yaml"), "- model: T4").unwrap();
    let said = Agent::start(wrong, shows(8)).fails().await;
    assert!(said.ends_with("with model, fullModelName and fp16TFlops"), "{said}");
}

#[tokio::test]
async fn two_on_one_node() {
    let mut kubelet = FakeKubelet::running();
    let first = Agent::start(options(kubelet.path()), shows(1));
    let (_, _client) = kubelet.registered().await;
    let said = Agent::start(options(kubelet.path()), shows(1)).fails().await;
    assert!(said.starts_with("another `hypervisor node` uses "), "{said}");
    first.stop().await.unwrap();
    // Its folder is free again.
    let next = Agent::start(options(kubelet.path()), shows(1));
    let _ = kubelet.registered().await;
    next.stop().await.unwrap();
}
