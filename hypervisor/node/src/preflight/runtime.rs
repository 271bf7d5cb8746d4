//! Checks of what mounts the driver's libraries into containers, and of the cgroup driver.

use std::fs;
use std::path::{Path, PathBuf};

use protocol::findings::{Checked, Wrong};

use crate::DeviceList;
use crate::driver_libraries::{self, DriverError};

/// Files that configure NVIDIA's runtime as the default one, each with the line that does so.
const CONFIGURED: [(&str, &str); 6] = [
    ("etc/containerd/config.toml", "default_runtime_name=nvidia"),
    ("etc/containerd/conf.d", "default_runtime_name=nvidia"),
    ("var/lib/rancher/k3s/agent/etc/containerd/config.toml", "default_runtime_name=nvidia"),
    ("etc/docker/daemon.json", "default-runtime:nvidia"),
    ("etc/crio/crio.conf", "default_runtime=nvidia"),
    ("etc/crio/crio.conf.d", "default_runtime=nvidia"),
];
/// containerd's configuration files.
pub(super) const CONTAINERD: [&str; 3] = [
    "etc/containerd/config.toml",
    "etc/containerd/conf.d",
    "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
];
const CDI: [&str; 3] = ["etc/cdi", "var/run/cdi", "run/cdi"];
/// The longest configuration file read, in bytes.
const MOST_BYTES: u64 = 4 << 20;

pub(super) fn nvidia(
    devices: DeviceList,
    driver: Option<&Path>,
    is_simulated: bool,
    root: &Path,
) -> Checked {
    if is_simulated {
        return Ok("the simulated GPU needs none of NVIDIA's".to_owned());
    }
    match devices {
        DeviceList::Cdi => {
            let mut found = CDI.iter().flat_map(|folder| files(&root.join(folder)));
            let found = found.find(|path| text(path).contains("nvidia.com/gpu"));
            let wrong = || {
                let mend = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml";
                Wrong::broken("--devices cdi: no CDI file names nvidia.com/gpu", mend)
            };
            found.map(|path| format!("CDI: {}", below(root, &path))).ok_or_else(wrong)
        }
        DeviceList::Mounts => {
            let wrong = |error: DriverError| {
                let mend = "the driver's package; in a pod, the node's folder mounted at its own path, and --driver DIR";
                Wrong::broken(format!("--devices mounts: {error}"), mend)
            };
            let folder = driver_libraries::find(driver).map_err(wrong)?;
            let count = driver_libraries::mounts(&folder).map_err(wrong)?.len();
            Ok(format!("{count} mounts of libraries in {}", folder.display()))
        }
        DeviceList::Files => {
            let names = |(place, word): &(&str, &str)| {
                files(&root.join(place)).into_iter().find(|path| plain(&text(path)).contains(word))
            };
            let wrong = || {
                let mend = "nvidia-ctk runtime configure --runtime=containerd --set-as-default && systemctl restart \
                            containerd; or runtimeClassName: nvidia in each pod; or --devices cdi or mounts";
                let found = "NVIDIA's container runtime is not the default: containers get no libraries of the driver";
                Wrong::note(found, mend)
            };
            let found = CONFIGURED.iter().find_map(names).ok_or_else(wrong)?;
            Ok(format!("NVIDIA's container runtime is the default: {}", below(root, &found)))
        }
    }
}

pub(super) fn files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect()
}

pub(super) fn text(path: &Path) -> String {
    let is_short = fs::metadata(path).is_ok_and(|found| found.len() <= MOST_BYTES);
    if is_short { fs::read_to_string(path).unwrap_or_default() } else { String::new() }
}

/// Removes comments, spaces and quotes.
pub(super) fn plain(text: &str) -> String {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines.flat_map(str::chars).filter(|c| !c.is_whitespace() && *c != '"').collect()
}

pub(super) fn below(root: &Path, path: &Path) -> String {
    format!("/{}", path.strip_prefix(root).unwrap_or(path).display())
}

/// Checks the cgroup names, of which kubelets use two forms: the daemon recognizes pods by them.
pub(super) fn cgroup(proc: &Path) -> Checked {
    let mut processes = fs::read_dir(proc).into_iter().flatten().flatten();
    let seen = processes.find_map(|process| {
        fs::read_to_string(process.path().join("cgroup")).ok().as_deref().and_then(driver_of)
    });
    let version = if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() { "v2" } else { "v1" };
    match seen {
        Some(driver) => Ok(format!("{version}, driver {driver}")),
        None => Err(Wrong::note(
            format!(
                "{version}; no pod's process can be seen, so the kubelet's driver is not known"
            ),
            "kubectl get pods --field-selector spec.nodeName=NODE, and again when one runs; in a pod: hostPID: true",
        )),
    }
}

fn driver_of(groups: &str) -> Option<&'static str> {
    if groups.contains("kubepods.slice") {
        Some("systemd")
    } else if groups.contains("/kubepods") {
        Some("cgroupfs")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_runtime_is_found_in_each_runtimes_own_words() {
        let root = tempfile::tempdir().unwrap();
        let look = |devices| nvidia(devices, Some(root.path()), false, root.path());
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert!(look(DeviceList::Files).is_err() && look(DeviceList::Cdi).is_err());
        put(
            "etc/containerd/config.toml",
            "# default_runtime_name = \"nvidia\"\ndefault_runtime_name = \"runc\"\n",
        );
        assert!(look(DeviceList::Files).is_err());
        for (path, text) in [
            ("etc/docker/daemon.json", "{\n  \"default-runtime\": \"nvidia\"\n}"),
            (
                "etc/crio/crio.conf.d/99-nvidia.conf",
                "[crio.runtime]\ndefault_runtime = \"nvidia\"\n",
            ),
            ("etc/containerd/config.toml", "  default_runtime_name = \"nvidia\" # by nvidia-ctk\n"),
        ] {
            put(path, text);
            assert!(look(DeviceList::Files).unwrap().ends_with(&format!("/{path}")), "{path}");
            fs::remove_file(root.path().join(path)).unwrap();
        }
        put("etc/cdi/nvidia.yaml", "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n");
        assert_eq!(look(DeviceList::Cdi).unwrap(), "CDI: /etc/cdi/nvidia.yaml");
        assert!(nvidia(DeviceList::Files, None, true, root.path()).is_ok());
        assert!(look(DeviceList::Mounts).is_err());
        put("libcuda.so.1", "");
        assert!(look(DeviceList::Mounts).unwrap().starts_with("2 mounts of libraries in /"));
    }

    #[test]
    fn cgroups_of_pods_tell_the_driver() {
        assert_eq!(
            driver_of("0::/kubepods.slice/kubepods-burstable.slice/x.scope\n"),
            Some("systemd")
        );
        assert_eq!(driver_of("4:cpu:/kubepods/besteffort/pod1/2\n"), Some("cgroupfs"));
        assert_eq!(driver_of("0::/system.slice/ssh.service\n"), None);
    }
}
