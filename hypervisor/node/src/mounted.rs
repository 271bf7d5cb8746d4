//! Finds the allocations that some process still has mounted. Needs the node's pid namespace.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::pool::AllocationKey;

/// Each process's directory in /proc, with its mount table.
fn mounts(proc: &Path) -> impl Iterator<Item = (PathBuf, String)> {
    let processes = fs::read_dir(proc).into_iter().flatten().flatten();
    let is_process =
        |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
    processes.filter(is_process).filter_map(|process| {
        // The process may have ended.
        let mounts = fs::read(process.path().join("mountinfo")).ok()?;
        Some((process.path(), String::from_utf8_lossy(&mounts).into_owned()))
    })
}

/// The index of the pod in `uids` that has a process with this allocation mounted.
pub(crate) fn by_pod(proc: &Path, key: &AllocationKey, uids: &[String]) -> Option<usize> {
    let with_it = mounts(proc).filter(|(_, mounts)| mounts.contains(key.as_str()));
    with_it.into_iter().find_map(|(process, _)| {
        let groups = fs::read_to_string(process.join("cgroup")).ok()?;
        // The systemd cgroup driver writes the UID with underscores.
        uids.iter().position(|uid| groups.contains(uid) || groups.contains(&uid.replace('-', "_")))
    })
}

/// Those of `keys` that any process has mounted.
pub(crate) fn among(proc: &Path, keys: &[AllocationKey]) -> BTreeSet<AllocationKey> {
    let mut mounted = BTreeSet::new();
    for (_, mounts) in mounts(proc) {
        if mounted.len() == keys.len() {
            break;
        }
        for key in keys.iter().filter(|key| mounts.contains(key.as_str())) {
            mounted.insert(key.clone());
        }
    }
    mounted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pod_whose_process_sees_an_allocation_is_found_by_its_control_group() {
        let proc = tempfile::tempdir().unwrap();
        let key = AllocationKey::named(&"a".repeat(64)).unwrap();
        let with = format!("22 1 0:1 /{} /run/sluice/allocation ro", key.as_str());
        for (pid, mounts, group) in [
            ("1", with.as_str(), "0::/system.slice/containerd.service"),
            ("2", "22 1 0:1 / / ro", "0::/kubepods/podu-1/c"),
            ("3", with.as_str(), "0::/kubepods.slice/kubepods-podu_2.slice/cri-containerd-c.scope"),
        ] {
            let folder = proc.path().join(pid);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("mountinfo"), mounts).unwrap();
            fs::write(folder.join("cgroup"), group).unwrap();
        }
        let uids = ["u-1".to_owned(), "u-2".to_owned()];
        assert_eq!(by_pod(proc.path(), &key, &uids), Some(1));
        assert_eq!(by_pod(proc.path(), &key, &uids[..1]), None);
        assert_eq!(among(proc.path(), std::slice::from_ref(&key)), BTreeSet::from([key]));
    }
}
