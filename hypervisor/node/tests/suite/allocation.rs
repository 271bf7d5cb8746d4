//! What a container gets.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use node::proto::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, Empty, ListAndWatchResponse, PreStartContainerRequest,
    PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse,
};
use node::{DeviceList, ImagePreloads};
use prost::Message;

use super::support::{Agent, FakeKubelet, GoClient, gpu, options, shows};

fn request(containers: &[&[String]]) -> AllocateRequest {
    let one = |ids: &&[String]| ContainerAllocateRequest { devices_i_ds: ids.to_vec() };
    AllocateRequest { container_requests: containers.iter().map(one).collect() }
}

async fn allocate(
    client: &GoClient,
    ids: &[String],
) -> Result<ContainerAllocateResponse, (String, String)> {
    let answer: AllocateResponse = client.call("Allocate", &request(&[ids])).await?;
    Ok(answer.container_responses.into_iter().next().unwrap())
}

fn place(number: u8, place: u32) -> String {
    format!("{}::{place}", gpu(number))
}

#[tokio::test]
async fn a_container_gets_its_gpus_and_a_folder_of_its_own() {
    let mut kubelet = FakeKubelet::running();
    let agent = Agent::start(options(kubelet.path()), shows(3));
    let (_, client) = kubelet.registered().await;
    let ids = [place(2, 4), place(0, 1)];
    let got = allocate(&client, &ids).await.unwrap();
    let key = got.envs["SLUICE_ALLOCATION"].clone();
    let visible = format!("{},{}", gpu(0), gpu(2));
    assert_eq!(got.envs["NVIDIA_VISIBLE_DEVICES"], visible);
    assert_eq!((got.envs.len(), got.devices.len(), got.annotations.len()), (2, 0, 0));
    let folder = kubelet.path().join("allocations").join(&key);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    // Nobody else on the node gets to pages that their containers' users may write.
    let modes =
        ["allocations", "allocations/ld.so.preload"].map(|path| mode(&kubelet.path().join(path)));
    assert_eq!(modes, [0o700, 0o644]);
    assert_eq!((mode(&folder), mode(&folder.join("session"))), (0o755, 0o711));
    let host = |below: &str| kubelet.path().join(below).display().to_string();
    let session = format!("allocations/{key}/session");
    let mounts = [
        ("/run/sluice/library", host("library"), true),
        ("/etc/ld.so.preload", host("allocations/ld.so.preload"), true),
        ("/run/sluice/daemon", host("daemon"), true),
        ("/run/sluice/allocation", folder.display().to_string(), true),
        ("/run/sluice/session", host(&session), false),
    ];
    let found = got.mounts.iter();
    let found =
        found.map(|one| (one.container_path.as_str(), one.host_path.clone(), one.read_only));
    assert_eq!(found.collect::<Vec<_>>(), mounts);
    let preloaded = fs::read_to_string(kubelet.path().join("allocations/ld.so.preload")).unwrap();
    let libraries = "/run/sluice/library/libcuda_limiter.so\n/run/sluice/library/libadd_path.so\n";
    assert_eq!(preloaded, libraries);
    let facts = fs::read_to_string(folder.join("allocation.json")).unwrap();
    let wanted = format!(
        "{{\"version\":1,\"resource\":\"nvidia.com/vgpu-number\",\"ids\":[\"{}\",\"{}\"],\"gpus\":[\"{}\",\"{}\"],\"library\":\"{}\"}}\n",
        place(0, 1),
        place(2, 4),
        gpu(0),
        gpu(2),
        kubelet.path().join("library").display()
    );
    assert_eq!(facts, wanted);
    // Asked again, in another order: the same. Other ids: another one.
    let [first, second] = ids;
    assert_eq!(allocate(&client, &[second, first.clone()]).await.unwrap(), got);
    assert_ne!(allocate(&client, &[first]).await.unwrap().envs["SLUICE_ALLOCATION"], key);
    agent.stop().await.unwrap();
    // Containers go on.
    assert!(folder.join("allocation.json").exists());
}

/// The bytes that a kubelet from 1.28 on reads, and that older ones skip.
#[tokio::test]
async fn devices_are_named_by_cdi_where_that_is_asked_for() {
    let mut kubelet = FakeKubelet::running();
    let mut wanted = options(kubelet.path());
    wanted.devices = DeviceList::Cdi;
    let agent = Agent::start(wanted, shows(2));
    let (_, client) = kubelet.registered().await;
    let mut got = allocate(&client, &[place(1, 3), place(0, 2)]).await.unwrap();
    assert_eq!(got.envs["NVIDIA_VISIBLE_DEVICES"], "void");
    assert!(got.devices.is_empty());
    // A map has no order on the wire, and paths are this test's own.
    got.envs.clear();
    got.mounts.clear();
    let golden = include_bytes!("cdi-devices.golden");
    assert_eq!(got.encode_to_vec(), golden, "{got:?}");
    agent.stop().await.unwrap();
}

/// What an image preloads is kept by a hook, which a container asks for by an annotation: old kubelets hand that on, too.
#[tokio::test]
async fn a_container_asks_for_the_hook_that_keeps_what_its_image_preloads() {
    let mut kubelet = FakeKubelet::running();
    let mut wanted = options(kubelet.path());
    let (cdi, program) = (kubelet.path().join("cdi"), kubelet.path().join("hypervisor"));
    wanted.image_preloads = Some(ImagePreloads { cdi: cdi.clone(), program: program.clone() });
    let said = Agent::start(wanted.clone(), shows(1)).fails().await;
    assert!(said.starts_with("--hook ") && said.contains("; expected "), "{said}");
    fs::write(&program, "").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let agent = Agent::start(wanted, shows(1));
    let (_, client) = kubelet.registered().await;
    let file = cdi.join("sluice.dev-preload.json");
    let own = kubelet.path().display().to_string();
    let written = || fs::read_to_string(&file).unwrap().replace(&own, "FOLDER");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/image-preloads.golden");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&golden, written()).unwrap();
    }
    assert_eq!(written(), fs::read_to_string(&golden).unwrap());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o644);
    let asks = |got: &ContainerAllocateResponse| {
        let mounted = got.mounts.iter().find(|one| one.container_path == "/etc/ld.so.preload");
        (got.annotations.clone(), mounted.unwrap().host_path.clone())
    };
    let annotation =
        ("cdi.k8s.io/sluice_preload".to_owned(), "sluice.dev/preload=image".to_owned());
    let got = allocate(&client, &[place(0, 1)]).await.unwrap();
    let folder = kubelet.path().join("allocations").join(&got.envs["SLUICE_ALLOCATION"]);
    let list = folder.join("ld.so.preload");
    assert_eq!(asks(&got), ([annotation].into(), list.display().to_string()));
    let libraries = "/run/sluice/library/libcuda_limiter.so\n/run/sluice/library/libadd_path.so\n";
    assert_eq!(fs::read_to_string(&list).unwrap(), libraries);
    assert_eq!(fs::metadata(&list).unwrap().permissions().mode() & 0o7777, 0o644);
    // A restart of the node takes both away, and the kubelet remembers what the container asks for.
    fs::remove_dir_all(&cdi).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let start = PreStartContainerRequest { devices_i_ds: vec![place(0, 1)] };
    let started: Result<PreStartContainerResponse, _> =
        client.call("PreStartContainer", &start).await;
    assert!(started.is_ok(), "{started:?}");
    assert_eq!(written(), fs::read_to_string(&golden).unwrap());
    assert_eq!(fs::read_to_string(&list).unwrap(), libraries);
    // Where the file cannot be there, all is as without: a runtime refuses devices that it does not know.
    fs::remove_dir_all(&cdi).unwrap();
    fs::write(&cdi, "in its place").unwrap();
    let got = allocate(&client, &[place(0, 2)]).await.unwrap();
    assert_eq!(asks(&got), ([].into(), format!("{own}/allocations/ld.so.preload")));
    agent.stop().await.unwrap();
}

/// The bytes that every kubelet reads, with the test's own paths as `FOLDER`.
#[tokio::test]
async fn the_drivers_libraries_are_mounted_where_no_runtime_brings_them() {
    let mut kubelet = FakeKubelet::running();
    let mut wanted = options(kubelet.path());
    wanted.devices = DeviceList::Mounts;
    let driver = kubelet.path().join("driver");
    wanted.driver = Some(driver.clone());
    let said = Agent::start(wanted.clone(), shows(1)).fails().await;
    assert!(said.starts_with("--devices mounts: --driver ") && said.contains("libcuda.so.1"));
    fs::create_dir(&driver).unwrap();
    for (version, name) in [("580.95.05", "libcuda.so"), ("580.95.05", "libnvidia-ml.so")] {
        fs::write(driver.join(format!("{name}.{version}")), "").unwrap();
        let link = driver.join(format!("{name}.1"));
        std::os::unix::fs::symlink(format!("{name}.{version}"), link).unwrap();
    }
    fs::write(driver.join("libnvidia-nvvm.so.4"), "").unwrap();
    let agent = Agent::start(wanted, shows(1));
    let (_, client) = kubelet.registered().await;
    let mut got = allocate(&client, &[place(0, 2)]).await.unwrap();
    assert_eq!(got.envs["NVIDIA_VISIBLE_DEVICES"], "void");
    assert!(got.cdi_devices.is_empty());
    got.envs.clear();
    let own = kubelet.path().canonicalize().unwrap().display().to_string();
    got.mounts.retain(|mount| mount.host_path.starts_with(&format!("{own}/driver/")));
    for mount in &mut got.mounts {
        mount.host_path = mount.host_path.replace(&own, "FOLDER");
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/driver-mounts.golden");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&golden, got.encode_to_vec()).unwrap();
    }
    assert_eq!(got.encode_to_vec(), fs::read(golden).unwrap(), "{got:?}");
    // A driver that has gone: the container does not start.
    fs::remove_dir_all(driver).unwrap();
    let (_, said) = allocate(&client, &[place(0, 3)]).await.unwrap_err();
    assert!(said.contains("--driver"), "{said}");
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn a_folder_that_a_restart_of_the_node_took_is_there_before_the_container() {
    let mut kubelet = FakeKubelet::running();
    let agent = Agent::start(options(kubelet.path()), shows(1));
    let (_, client) = kubelet.registered().await;
    let ids = vec![place(0, 0)];
    let got = allocate(&client, &ids).await.unwrap();
    let folder = kubelet.path().join("allocations").join(&got.envs["SLUICE_ALLOCATION"]);
    fs::remove_dir_all(&folder).unwrap();
    let start = PreStartContainerRequest { devices_i_ds: ids };
    let started: Result<PreStartContainerResponse, _> =
        client.call("PreStartContainer", &start).await;
    assert!(started.is_ok(), "{started:?}");
    assert!(folder.join("allocation.json").is_file() && folder.join("session").is_dir());
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn what_is_not_possible_is_refused_with_its_reason() {
    let mut kubelet = FakeKubelet::running();
    let agent = Agent::start(options(kubelet.path()), shows(2));
    let (_, client) = kubelet.registered().await;
    for (ids, status, said) in [
        (vec![], "3", "no ids"),
        (vec!["0".to_owned()], "3", "is no id of nvidia.com/vgpu-number on this node"),
        (vec![place(0, 10)], "3", "is no id of"),
        (vec![place(1, 0), place(1, 1)], "9", "on a GPU of its own"),
    ] {
        let (found, message) = allocate(&client, &ids).await.unwrap_err();
        // The message is percent-encoded on the wire.
        let message = message.replace("%20", " ");
        assert!(found == status && message.contains(said), "{ids:?}: {found} {message}");
    }
    // One that is refused spoils the whole call, and makes no folder.
    let good = [place(0, 0)];
    let call = request(&[&good, &[place(7, 7)]]);
    let answer: Result<AllocateResponse, _> = client.call("Allocate", &call).await;
    assert_eq!(answer.unwrap_err().0, "3");
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn the_kubelet_is_told_which_ids_to_take() {
    let mut kubelet = FakeKubelet::running();
    let agent = Agent::start(options(kubelet.path()), shows(2));
    let (_, client) = kubelet.registered().await;
    let ask = |available: Vec<String>, allocation_size| {
        let one = ContainerPreferredAllocationRequest {
            available_device_i_ds: available,
            must_include_device_i_ds: vec![],
            allocation_size,
        };
        PreferredAllocationRequest { container_requests: vec![one] }
    };
    let available = vec![place(0, 3), place(1, 4), place(1, 5)];
    let answer: PreferredAllocationResponse =
        client.call("GetPreferredAllocation", &ask(available.clone(), 2)).await.unwrap();
    assert_eq!(answer.container_responses[0].device_i_ds, [place(1, 4), place(0, 3)]);
    let answer: Result<PreferredAllocationResponse, _> =
        client.call("GetPreferredAllocation", &ask(available, 3)).await;
    assert_eq!(answer.unwrap_err().0, "9");
    agent.stop().await.unwrap();
}

#[tokio::test]
async fn many_calls_at_once_beside_a_list_that_is_watched() {
    let mut kubelet = FakeKubelet::running();
    let agent = Agent::start(options(kubelet.path()), shows(8));
    let (_, client) = kubelet.registered().await;
    let mut watched = client.watch("ListAndWatch", &Empty {}).await;
    assert_eq!(watched.next::<ListAndWatchResponse>().await.unwrap().devices.len(), 80);
    let calls: Vec<_> = (0..80_u8)
        .map(|number| {
            let client = client.clone();
            let id = place(number / 10, u32::from(number % 10));
            tokio::spawn(async move { allocate(&client, &[id]).await.unwrap() })
        })
        .collect();
    let mut keys = BTreeSet::new();
    for (number, call) in (0_u8..).zip(calls) {
        let got = call.await.unwrap();
        assert_eq!(got.envs["NVIDIA_VISIBLE_DEVICES"], gpu(number / 10).to_string());
        keys.insert(got.envs["SLUICE_ALLOCATION"].clone());
    }
    assert_eq!(keys.len(), 80);
    agent.stop().await.unwrap();
}
