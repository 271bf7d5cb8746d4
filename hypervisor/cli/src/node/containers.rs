//! The names of containers. Their cgroups tell ids only; the names stand in files of the runtimes, which root can
//! read, and everybody's own podman, and in the names of the [logs](kubelet_logs) that kubelets keep.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use session::kubelet_logs;

/// No such file is longer.
const MOST_BYTES: u64 = 4 << 20;

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(rename = "Name")]
    name: String,
}

#[derive(Deserialize)]
struct PodmanContainer {
    id: String,
    #[serde(default)]
    names: Vec<String>,
}

/// The name of a container, where its runtime's files tell it. `user`: whose own container it is ("rootless").
pub(crate) fn name(runtime: &str, id: &str, user: Option<u32>) -> Option<String> {
    name_below(Path::new("/"), runtime, id, user)
}

fn name_below(root: &Path, runtime: &str, id: &str, user: Option<u32>) -> Option<String> {
    // The id becomes a part of a path.
    if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    match runtime {
        "docker" => {
            let path = root.join(format!("var/lib/docker/containers/{id}/config.v2.json"));
            let config: DockerConfig = read(&path)?;
            Some(config.name.trim_start_matches('/').to_owned())
        }
        "podman" => {
            let folder = match user {
                None => root.join("var/lib"),
                Some(uid) => home(root, uid)?.join(".local/share"),
            };
            of_podman(&folder.join("containers/storage"), id)
        }
        // A kubelet that names cgroups itself does not say which runtime it has.
        "containerd" | "cri-o" | "unnamed" => kubelet_logs::all(&root.join(kubelet_logs::FOLDER))
            .remove(id)
            .map(|one| one.to_string()),
        _ => None,
    }
    .filter(|name| !name.is_empty())
}

/// Each storage driver of podman has a folder with lists of its own: overlay, vfs and others. What `--rm` will remove is
/// in the second one.
fn of_podman(storage: &Path, id: &str) -> Option<String> {
    let folders = fs::read_dir(storage).ok()?.flatten();
    let folders = folders.filter(|folder| folder.file_name().as_bytes().ends_with(b"-containers"));
    let lists = folders.flat_map(|folder| {
        ["containers.json", "volatile-containers.json"].map(|list| folder.path().join(list))
    });
    let containers = lists.filter_map(|list| read::<Vec<PodmanContainer>>(&list)).flatten();
    containers.filter(|one| one.id == id).find_map(|one| one.names.into_iter().next())
}

fn home(root: &Path, uid: u32) -> Option<PathBuf> {
    use uzers::os::unix::UserExt;
    let user = uzers::get_user_by_uid(uid)?;
    Some(root.join(user.home_dir().strip_prefix("/").ok()?))
}

fn read<T: for<'text> Deserialize<'text>>(path: &Path) -> Option<T> {
    let mut text = Vec::new();
    let file = File::open(path).ok()?;
    file.metadata().ok()?.is_file().then_some(())?;
    file.take(MOST_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_in_the_runtimes_files() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("var/lib/docker/containers/ab12/config.v2.json", r#"{"ID":"ab12","Name":"/web"}"#);
        put("var/lib/docker/containers/cd34/config.v2.json", "{");
        put(
            "var/lib/containers/storage/overlay-containers/containers.json",
            r#"[{"id":"ee","names":["first","second"]},{"id":"ff"}]"#,
        );
        put(
            "var/lib/containers/storage/overlay-images/containers.json",
            r#"[{"id":"ef","names":["no"]}]"#,
        );
        put(
            "var/lib/containers/storage/vfs-containers/volatile-containers.json",
            r#"[{"id":"ea","names":["third"]}]"#,
        );
        put("var/log/containers/web-7_shop_main-ab12.log", "");
        put("var/log/containers/odd-ee.log", "");
        let name = |runtime, id| name_below(root.path(), runtime, id, None);
        assert_eq!(name("docker", "ab12").as_deref(), Some("web"));
        assert_eq!(name("podman", "ee").as_deref(), Some("first"));
        assert_eq!(name("podman", "ea").as_deref(), Some("third"));
        for runtime in ["containerd", "cri-o", "unnamed"] {
            assert_eq!(name(runtime, "ab12").as_deref(), Some("shop/web-7/main"));
        }
        for (runtime, id) in [
            ("containerd", "b12"),
            ("containerd", "ee"),
            ("docker", "cd34"),
            ("docker", "../docker/containers/ab12"),
            ("docker", ""),
            ("podman", "ff"),
            ("podman", "ef"),
            ("podman", "ab12"),
            ("other", "ab12"),
        ] {
            assert_eq!(name(runtime, id), None, "{runtime} {id}");
        }
    }
}
