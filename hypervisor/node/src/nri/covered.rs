//! Whether a container sees what its node has mounted into it. A volume of its pod may lie over that, by a path that leads
//! there over a link of its image: paths as they are written do not tell.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::fstat;

use crate::allocations::Allocations;
use crate::host::Host;
use crate::image_preloads;
use crate::injection::Injection;

/// The first of the node's mounts that a process with an allocation does not see as it was mounted.
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
    // Its list of preloads may be its own, where images keep theirs.
    let list = identity(&image_preloads::of(&folder));
    for mount in injection.mounts((&folder, &session), None)? {
        let inside = PathBuf::from(&mount.container_path);
        let seen = root.named(&inside).and_then(fstat).ok();
        let seen = seen.map(|seen| (seen.st_dev, seen.st_ino));
        if seen.is_none() || ![identity(Path::new(&mount.host_path)), list].contains(&seen) {
            return Ok(Some(inside));
        }
    }
    Ok(None)
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}
