//! Checks whether a container sees what its node has mounted into it. A volume of its pod may lie over a mount, through
//! a link of its image, so comparing written paths is not enough.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::fstat;

use crate::allocations::Allocations;
use crate::host::Host;
use crate::image_preloads;
use crate::injection::{Injection, PRELOADED};

/// The first mount of the node that a process with an allocation does not see as it was mounted.
pub(crate) fn first(
    process: &Path,
    allocations: &Allocations,
    injection: &Injection,
) -> io::Result<Option<PathBuf>> {
    let mounts = fs::read(process.join("mountinfo"))?;
    let mounts = String::from_utf8_lossy(&mounts);
    let keys = allocations.keys();
    let Some(key) = keys.iter().find(|key| mounts.contains(key.as_str())) else { return Ok(None) };
    let (folder, session) = (allocations.of(key), allocations.session_of(key));
    let root = Host(process.join("root"));
    // A container may have its own preload list, which keeps the image's.
    let list = identity(&image_preloads::of(&folder));
    for mount in injection.mounts((&folder, &session), None)? {
        let inside = PathBuf::from(&mount.container_path);
        let seen = root.named(&inside).and_then(fstat).ok();
        let seen = seen.map(|seen| (seen.st_dev, seen.st_ino));
        let own = Path::new(&mount.host_path);
        if seen.is_none() || ![identity(own), list].contains(&seen) && !is_beside(own, seen) {
            return Ok(Some(inside));
        }
    }
    Ok(None)
}

/// Whether it is the library of another version: the kubelet mounts what an earlier agent told it.
fn is_beside(own: &Path, seen: Option<(u64, u64)>) -> bool {
    let holds_it = |folder: &Path| folder.join(PRELOADED[0]).is_file();
    let beside = own.parent().filter(|_| holds_it(own)).and_then(|all| fs::read_dir(all).ok());
    let mut others = beside.into_iter().flatten().flatten().map(|other| other.path());
    others.any(|other| holds_it(&other) && identity(&other) == seen)
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_versions_library_is_not_taken_for_a_volume() {
        let folder = tempfile::tempdir().unwrap();
        let version = |name: &str, file: &str| {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join(file), "").unwrap();
            path
        };
        let (own, other) = (version("2", PRELOADED[0]), version("1", PRELOADED[0]));
        let volume = version("volume", "x");
        assert!(is_beside(&own, identity(&other)) && !is_beside(&own, identity(&volume)));
        // The file mounted there is no library.
        assert!(!is_beside(&volume, identity(&other)));
    }
}
