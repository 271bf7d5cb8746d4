//! The names of containers. Their cgroups tell ids only; the names stand in files of the runtimes, which root can
//! read, and everybody's own podman.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;

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
            let list = "containers/storage/overlay-containers/containers.json";
            let folder = match user {
                None => root.join("var/lib"),
                Some(uid) => home(root, uid)?.join(".local/share"),
            };
            let containers: Vec<PodmanContainer> = read(&folder.join(list))?;
            containers.into_iter().find(|one| one.id == id)?.names.into_iter().next()
        }
        _ => None,
    }
    .filter(|name| !name.is_empty())
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
    use std::fs;

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
        let name = |runtime, id| name_below(root.path(), runtime, id, None);
        assert_eq!(name("docker", "ab12").as_deref(), Some("web"));
        assert_eq!(name("podman", "ee").as_deref(), Some("first"));
        for (runtime, id) in [
            ("docker", "cd34"),
            ("docker", "../docker/containers/ab12"),
            ("docker", ""),
            ("podman", "ff"),
            ("podman", "ab12"),
            ("cri-o", "ab12"),
        ] {
            assert_eq!(name(runtime, id), None, "{runtime} {id}");
        }
    }
}
