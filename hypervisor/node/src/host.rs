//! Resolves paths in the node's root file system, because this program may run in a pod.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, open, openat2};
use rustix::io::Errno;

/// The root of process 1: the node's root, if this program runs in the node's pid namespace.
const ROOT: &str = "/proc/1/root";

/// The node's root directory.
#[derive(Clone, Debug)]
pub(crate) struct Host(pub(crate) PathBuf);

impl Host {
    pub(crate) fn here() -> Self {
        let first = Path::new(ROOT);
        Self(if first.join("etc").is_dir() { first.to_owned() } else { PathBuf::from("/") })
    }

    /// Opens a path as the node's processes would, with links resolved inside the node's root.
    pub(crate) fn named(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let root = open(&self.0, flags | OFlags::DIRECTORY, Mode::empty())?;
        openat2(&root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)
    }

    /// Whether a path names the same file here and on the node, as far as visible.
    pub(crate) fn has_the_same(&self, path: &Path) -> bool {
        let own = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let identity = |file: OwnedFd| fstat(file).map(|found| (found.st_dev, found.st_ino));
        match (own.and_then(identity), self.named(path).and_then(identity)) {
            (Ok(own), Ok(nodes)) => own == nodes,
            (_, Err(error)) => matches!(error, Errno::ACCESS | Errno::PERM | Errno::NOSYS),
            (Err(_), Ok(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_nodes_links_are_followed_on_the_node() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("run/cdi")).unwrap();
        fs::create_dir_all(root.path().join("var")).unwrap();
        std::os::unix::fs::symlink("/run", root.path().join("var/run")).unwrap();
        let host = Host(root.path().to_owned());
        assert!(host.named(Path::new("/var/run/cdi")).is_ok());
        // These exist here, too, but are other directories.
        assert!(!host.has_the_same(Path::new("/run")) && !host.has_the_same(Path::new("/var/run")));
        assert!(Host(PathBuf::from("/")).has_the_same(root.path()));
        assert!(!Host(PathBuf::from("/")).has_the_same(&root.path().join("none")));
    }
}
