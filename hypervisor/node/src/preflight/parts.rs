//! Checks of the node itself: the kubelet, directories, libraries, the driver.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use limits::GpuId;
use protocol::findings::{Checked, Wrong};
use tokio::net::UnixStream;
use tokio::runtime::Handle;

use crate::Options;
use crate::device_files::DeviceFiles;
use crate::injection;
use crate::pod_resources::PodResourcesApi;
use crate::registration::KUBELET;

const NO_KUBELET: &str = "systemctl start kubelet; a pod mounts /var/lib/kubelet/device-plugins and \
                          /var/lib/kubelet/pod-resources of the node at these paths";

pub(super) fn user() -> Checked {
    if rustix::process::geteuid().is_root() {
        return Ok("root".to_owned());
    }
    let mend = "sudo hypervisor node --check; in a pod: securityContext.runAsUser 0";
    Err(Wrong::broken("not root: containers' pages belong to root", mend))
}

pub(super) fn options(options: &Options) -> Checked {
    let mend = "hypervisor node --help";
    let resources = options.resources().map_err(|error| Wrong::broken(error.to_string(), mend))?;
    options.gpu_info().map_err(|error| Wrong::broken(error.to_string(), mend))?;
    options.plugin_folder().map_err(|error| Wrong::broken(error.to_string(), NO_KUBELET))?;
    let names = resources.iter().map(|resource| options.names.written(resource.name));
    Ok(names.collect::<Vec<_>>().join(", "))
}

fn kubelet_socket(options: &Options) -> PathBuf {
    options.kubelet.join("device-plugins").join(KUBELET)
}

pub(super) fn kubelet(options: &Options, on: &Handle) -> Checked {
    let socket = kubelet_socket(options);
    let found =
        |error: io::Error| Wrong::broken(format!("{}: {error}", socket.display()), NO_KUBELET);
    on.block_on(UnixStream::connect(&socket)).map_err(found)?;
    Ok(format!("listens on {}", socket.display()))
}

/// Finds other GPU device plugins, by the sockets that answer beside the kubelet's: NVIDIA's own, or one of a system
/// that Sluice replaces.
pub(super) fn other_plugins(options: &Options, on: &Handle) -> Checked {
    let folder = options.kubelet.join("device-plugins");
    let resources = options.resources().unwrap_or_default();
    let own: Vec<String> = resources.iter().map(|resource| resource.socket()).collect();
    let entries = fs::read_dir(&folder)
        .map_err(|error| Wrong::broken(format!("{}: {error}", folder.display()), NO_KUBELET))?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let is_of_gpus = |name: &String| {
        let lower = name.to_ascii_lowercase();
        lower.ends_with(".sock") && ["nvidia", "gpu"].iter().any(|word| lower.contains(word))
    };
    let others = names.filter(|name| is_of_gpus(name) && !own.contains(name));
    let answers = |name: &String| on.block_on(UnixStream::connect(folder.join(name))).is_ok();
    let others: Vec<String> = others.filter(answers).collect();
    if others.is_empty() {
        return Ok("none for GPUs".to_owned());
    }
    let found = format!(
        "{} in {}: GPUs that another plugin gives out are not limited, and a resource that both offer is whose \
         registered last",
        others.join(", "),
        folder.display()
    );
    let mend = "remove that plugin from this node; with the GPU operator: kubectl label node NODE \
                nvidia.com/gpu.deploy.device-plugin=false";
    Err(Wrong::note(found, mend))
}

pub(super) fn pod_resources(options: &Options, on: &Handle) -> Checked {
    let pods = on.block_on(PodResourcesApi::of(&options.kubelet, options.names.clone()).list());
    let mend = "a kubelet from 1.20 on, with its feature gate KubeletPodResources (on if nothing is said), and in a pod \
                its folder pod-resources mounted";
    let pods = pods.map_err(|error| Wrong::broken(error.to_string(), mend))?;
    Ok(format!("tells of {} pods", pods.len()))
}

/// Checks the pid namespace: the kernel shows the process at a socket's other end only if it is visible from here.
pub(super) fn pid_namespace(options: &Options, on: &Handle) -> Checked {
    let socket = kubelet_socket(options);
    let peer = on.block_on(async { UnixStream::connect(&socket).await?.peer_cred() });
    let mend = "hostPID: true in the pod's specification";
    match peer.map(|peer| peer.pid()) {
        Ok(Some(pid)) if pid > 0 => Ok(format!("the node's: the kubelet is process {pid}")),
        Ok(_) => Err(Wrong::broken(
            "the kubelet's process cannot be seen from here: nor can those that still use an allocation",
            mend,
        )),
        Err(error) => Err(Wrong::broken(format!("{}: {error}", socket.display()), mend)),
    }
}

pub(super) fn library(folder: &Path) -> Checked {
    let mend = format!(
        "sluice inject {} in the image, or a package of Sluice on the node",
        folder.display()
    );
    injection::check(folder).map_err(|error| Wrong::broken(error.to_string(), mend.as_str()))?;
    for path in injection::files(folder) {
        let file = fs::read(&path).unwrap_or_default();
        if !file.starts_with(b"\x7fELF") {
            return Err(Wrong::broken(format!("{}: no library", path.display()), mend));
        }
        let mode = fs::metadata(&path).map(|found| found.permissions().mode()).unwrap_or_default();
        if mode & 0o444 != 0o444 {
            let found =
                format!("{}: mode {:o}: not everybody may read it", path.display(), mode & 0o7777);
            return Err(Wrong::broken(found, format!("chmod 755 {}", path.display())));
        }
    }
    on_the_node(folder)?;
    let musl = "programs of musl start without it";
    Ok(format!("{}: for glibc from 2.17 on; {musl}", folder.display()))
}

/// Checks that a directory exists or can be created, is writable, and is the node's.
pub(super) fn folder(folder: &Path) -> Checked {
    let shown = folder.display();
    let there = folder.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
    let mend = format!("mkdir -p {shown}; in a pod: a hostPath volume at this path");
    let may = rustix::fs::access(there, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK);
    may.map_err(|error| {
        Wrong::broken(format!("{}: not to be written to: {error}", there.display()), mend)
    })?;
    on_the_node(there)?;
    let is_there = if there == folder { "is there" } else { "is made at the start" };
    Ok(format!("{shown}: {is_there}"))
}

/// The kubelet mounts the directory by the node's path.
fn on_the_node(path: &Path) -> Result<(), Wrong> {
    let node = Path::new("/proc/1/root").join(path.strip_prefix("/").unwrap_or(path));
    let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    match (identity(path), identity(&node)) {
        (Ok(own), Ok(nodes)) if own == nodes => Ok(()),
        (_, Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        _ => Err(Wrong::broken(
            format!("{}: it is not the node's, and kubelets mount the node's", path.display()),
            format!(
                "hostPID: true, and a hostPath volume at {0} with mountPath {0}",
                path.display()
            ),
        )),
    }
}

/// A note only: without the daemon, memory limits hold, and each container enforces its compute share alone.
pub(super) fn daemon(socket: &Path) -> Checked {
    match std::os::unix::net::UnixStream::connect(socket) {
        Ok(_) => Ok(format!("listens on {}", socket.display())),
        Err(error) => {
            let found = format!("{}: {error}: containers do not take turns", socket.display());
            Err(Wrong::note(found, "systemctl start sluice, or the DaemonSet's container daemon"))
        }
    }
}

pub(super) fn driver(gpus: &Result<Vec<GpuId>, String>) -> Checked {
    let mend = "nvidia-smi has to work on the node; --nvml names the driver's libnvidia-ml.so.1; in a pod the driver's \
                libraries and devices come by runtimeClassName nvidia and NVIDIA_VISIBLE_DEVICES=all";
    match gpus {
        Ok(gpus) if !gpus.is_empty() => Ok(format!("shows {} GPUs", gpus.len())),
        Ok(_) => Err(Wrong::broken("no GPU is shown", mend)),
        Err(error) => Err(Wrong::broken(error.clone(), mend)),
    }
}

pub(super) fn device_files(gpus: &Result<Vec<GpuId>, String>) -> Checked {
    let gpus = gpus.as_deref().unwrap_or_default();
    let mend = "nvidia-modprobe -u -c=0; in a pod: /dev and /proc/driver/nvidia of the node at their paths";
    let files = DeviceFiles::default().of(gpus);
    let files = files.map_err(|error| Wrong::broken(error.to_string(), mend))?;
    Ok(match files.len() {
        0 => "the simulated GPU has none".to_owned(),
        count => format!("{count} for {} GPUs", gpus.len()),
    })
}
