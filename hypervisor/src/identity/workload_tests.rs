//! Cgroup paths as documented for runtimes and systemd, and arbitrary ones.

use super::workload::*;
use proptest::prelude::*;

const ID: &str = "9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d";
const INNER: &str = "ec08435e04266c5ba381fccbb829f626d11d8ddf5f8f547263c7a2d79ab4787a";
const POD: &str = "2fc932ce-fdcc-454b-97bd-aadfdeb4c340";

/// `ID`, `INNER`, `POD` and, with `_`, `P_O_D` stand for ids.
fn of(text: &str) -> Workload {
    let text = text.replace("INNER", INNER).replace("ID", ID);
    let text = text.replace("P_O_D", &POD.replace('-', "_")).replace("POD", POD);
    Workload::of_cgroup(text.as_bytes())
}

#[test]
fn what_runtimes_make_is_known() {
    use Runtime::{Containerd, CriO, Docker, Podman, Unnamed};
    let slices = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podP_O_D.slice";
    // File, runtime, whether a pod is found, user of a rootless container.
    let table: &[(&str, Runtime, bool, Option<u32>)] = &[
        // Docker, with both cgroup drivers, in versions 2 and 1.
        ("0::/system.slice/docker-ID.scope", Docker, false, None),
        ("0::/docker/ID", Docker, false, None),
        (
            "12:name=systemd:/docker/ID\n11:hugetlb:/docker/ID\n1:cpuset:/docker/ID",
            Docker,
            false,
            None,
        ),
        (
            "10:devices:/system.slice/docker-ID.scope\n1:name=systemd:/system.slice/docker-ID.scope",
            Docker,
            false,
            None,
        ),
        ("0::/docker/buildkit/ID", Unnamed, false, None),
        ("10:net_prio:/ID\n9:perf_event:/ID\n2:cpu:/ID", Unnamed, false, None),
        // Some hierarchies, without the unified one.
        (
            "11:memory:/docker/ID\n10:rdma:/\n1:name=systemd:/docker/ID\n0::/system.slice/containerd.service",
            Docker,
            false,
            None,
        ),
        // Rootless Docker.
        (
            "0::/user.slice/user-1000.slice/user@1000.service/user.slice/docker-ID.scope",
            Docker,
            false,
            Some(1000),
        ),
        // A kubelet's containers, with both cgroup drivers.
        (&format!("0::{slices}/cri-containerd-ID.scope"), Containerd, true, None),
        (
            &format!(
                "11:cpuset:{slices}/cri-containerd-ID.scope\n1:name=systemd:{slices}/cri-containerd-ID.scope"
            ),
            Containerd,
            true,
            None,
        ),
        (&format!("0::{slices}/crio-ID.scope"), CriO, true, None),
        (&format!("0::{slices}/crio-ID.scope/container"), CriO, true, None),
        (&format!("8:memory:{slices}/docker-ID.scope"), Docker, true, None),
        (
            "0::/kubepods.slice/kubepods-podP_O_D.slice/cri-containerd-ID.scope",
            Containerd,
            true,
            None,
        ),
        (
            "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-podP_O_D.slice/cri-containerd-ID.scope",
            Containerd,
            true,
            None,
        ),
        ("11:devices:/kubepods/besteffort/podPOD/ID", Unnamed, true, None),
        ("0::/kubepods/podPOD/ID", Unnamed, true, None),
        ("0::/kubepods/burstable/podPOD/crio-ID", CriO, true, None),
        ("11:freezer:/kubepods/besteffort/podPOD/ID/kube-proxy", Unnamed, true, None),
        // The kubelet's slice for systemd, the runtime's name for cgroupfs.
        (
            "11:pids:/system.slice/containerd.service/kubepods-burstable-podP_O_D.slice:cri-containerd:ID",
            Containerd,
            true,
            None,
        ),
        ("0::/kubepods-burstable-podP_O_D.slice:cri-containerd:ID", Containerd, true, None),
        // Podman: root's, rootless, and with a separate cgroup for the payload.
        ("0::/machine.slice/libpod-ID.scope", Podman, false, None),
        ("0::/machine.slice/libpod-ID.scope/container", Podman, false, None),
        ("0::/machine.slice/machine-libpod_pod_INNER.slice/libpod-ID.scope", Podman, false, None),
        ("9:pids:/libpod_parent/libpod-ID", Podman, false, None),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope/container",
            Podman,
            false,
            Some(1000),
        ),
        ("0::/system.slice/nerdctl-ID.scope", Containerd, false, None),
        // The outermost container counts, whatever is created inside it.
        (
            "9:name=systemd:/docker/ID/docker/INNER\n2:freezer:/docker/ID/docker/INNER",
            Docker,
            false,
            None,
        ),
        ("0::/docker/ID/kubelet/kubepods/burstable/podPOD/INNER", Docker, false, None),
        (
            "0::/system.slice/docker-ID.scope/user.slice/user-0.slice/user@0.service/x.scope",
            Docker,
            false,
            None,
        ),
        // Seen from another cgroup namespace.
        ("0::/../docker-ID.scope", Docker, false, None),
        ("0::/../ID", Unnamed, false, None),
        ("0::/../../podPOD/ID", Unnamed, true, None),
        ("0::/../../../burstable/podPOD/ID", Unnamed, true, None),
        (
            "0::/../../kubepods-besteffort-podP_O_D.slice/cri-containerd-ID.scope",
            Containerd,
            true,
            None,
        ),
        // The container has ended, and a process of it remains.
        ("0::/system.slice/docker-ID.scope (deleted)", Docker, false, None),
        // A user cannot create a pod.
        (
            "0::/user.slice/user-7.slice/user@7.service/kubepods-podP_O_D.slice/cri-containerd-ID.scope",
            Containerd,
            false,
            Some(7),
        ),
        (
            "0::/user.slice/user-7.slice/user@7.service/user@0.service/docker-ID.scope",
            Docker,
            false,
            Some(7),
        ),
    ];
    for &(text, runtime, pod, user) in table {
        let found = of(text);
        let container = Container { runtime, id: ID.parse().unwrap(), user };
        assert_eq!(found.container, Some(container), "{text}");
        assert_eq!(found.pod, pod.then(|| POD.parse().unwrap()), "{text}");
    }
}

#[test]
fn what_is_in_no_container_runs_on_the_host() {
    let table: &[(&str, Option<&str>)] = &[
        ("0::/", None),
        ("", None),
        (
            "9:name=systemd:/\n8:pids:/\n4:memory:/process_api/7c8db46b4e210928cab64036ffbed329\n0::/",
            None,
        ),
        ("0::/init.scope", Some("init.scope")),
        ("0::/user.slice/user-1000.slice/session-3.scope", Some("session-3.scope")),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-org.gnome.Terminal.slice/vte-spawn-1.scope",
            Some("vte-spawn-1.scope"),
        ),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice", Some("user@1000.service")),
        ("1:name=systemd:/system.slice/cron.service\n0::/", Some("cron.service")),
        ("0::/system.slice/system-getty.slice", Some("system-getty.slice")),
        ("0::/system.slice/docker.service", Some("docker.service")),
        ("13:name=systemd:/user/1000.user/c2.session\n12:pids:/", None),
        // A container's monitor.
        ("0::/machine.slice/libpod-conmon-ID.scope", Some("libpod-conmon-ID.scope")),
        ("0::/system.slice/crio-conmon-ID.scope", Some("crio-conmon-ID.scope")),
        // Not ids: too short, too long, upper case.
        ("0::/docker/31cb02944da7", None),
        ("0::/docker/ID0", None),
        ("0::/system.slice/docker-short.scope", Some("docker-short.scope")),
        ("0::/docker/9EC39B91F3D70E1BEFF50A308F77067065EA6BE0D91A3378375056CD4422CF3D", None),
        // Not a kubelet's.
        ("0::/mine.slice/mine-podP_O_D.slice", Some("mine-podP_O_D.slice")),
    ];
    for (text, unit) in table {
        let found = of(text);
        let unit = unit.map(|unit| unit.replace("ID", ID).replace("P_O_D", &POD.replace('-', "_")));
        assert_eq!(found, Workload { unit, ..Workload::default() }, "{text}");
    }
}

#[test]
fn a_container_is_in_a_unit_and_a_pod_without_one_is_a_pod() {
    let unit = |text| of(text).unit;
    assert_eq!(unit("0::/system.slice/docker-ID.scope"), Some(format!("docker-{ID}.scope")));
    assert_eq!(
        unit("0::/system.slice/containerd.service/podPOD/ID"),
        Some("containerd.service".into())
    );
    let found = of("0::/kubepods.slice/kubepods-podP_O_D.slice");
    assert_eq!((found.pod, found.container), (Some(POD.parse().unwrap()), None));
    // A static pod's UID is a hash.
    let found = of("0::/kubepods/burstable/pod89f4f2cb511c3b0b7e5272cff5ec37bf/ID");
    assert_eq!(found.pod.unwrap().to_string(), "89f4f2cb-511c-3b0b-7e52-72cff5ec37bf");
}

#[test]
fn names_are_read_as_they_are_written() {
    for runtime in ["docker", "containerd", "cri-o", "podman", "unnamed"] {
        assert_eq!(runtime.parse::<Runtime>().unwrap().to_string(), runtime);
    }
    assert!("runc".parse::<Runtime>().is_err());
    assert_eq!(ID.parse::<ContainerId>().unwrap().to_string(), ID);
    assert_eq!(POD.parse::<PodUid>().unwrap().to_string(), POD);
    let words = "x".parse::<ContainerId>().unwrap_err().to_string();
    assert_eq!(words, "not a container's id; expected one of 64 hexadecimal digits");
}

proptest! {
    #[test]
    fn any_bytes_are_read(file: Vec<u8>) {
        let _ = Workload::of_cgroup(&file);
    }

    /// Paths from meaningful pieces: whatever follows a container changes nothing.
    #[test]
    fn nobody_inside_a_container_can_be_another_one(
        inside in prop::collection::vec(prop::sample::select(vec![
            "docker", INNER, "..", "user@0.service", "x.slice", "x.scope", "kubepods", "",
            "pod2fc932ce-fdcc-454b-97bd-aadfdeb4c341", "crio-conmon-x.scope", "a:b:c", "é",
        ]), 0..8),
        own in prop::sample::select(vec![
            "/docker/ID", "/kubepods/burstable/podPOD/ID", "/system.slice/docker-ID.scope",
            "/user.slice/user-9.slice/user@9.service/user.slice/libpod-ID.scope",
        ]),
    ) {
        let alone = of(&format!("0::{own}"));
        prop_assert!(alone.container.is_some());
        let path = format!("0::{own}/{}", inside.join("/"));
        prop_assert_eq!(of(&path), alone);
    }

    /// Below a user's own service manager, a host user cannot pose as a container or pod of the node.
    #[test]
    fn a_user_s_own_containers_are_that_user_s(
        inside in prop::collection::vec(prop::sample::select(vec![
            "docker", INNER, "user@0.service", "kubepods-pod2fc932ce_fdcc_454b_97bd_aadfdeb4c341.slice",
            "kubepods", "pod2fc932ce-fdcc-454b-97bd-aadfdeb4c341", "user.slice", "",
        ]), 0..8),
    ) {
        let found = of(&format!("0::/user.slice/user-9.slice/user@9.service/{}", inside.join("/")));
        prop_assert_eq!(found.pod, None);
        prop_assert!(found.container.is_none_or(|container| container.user == Some(9)));
    }
}
