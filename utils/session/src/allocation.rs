//! What a node mounts into a container that it gave parts of GPUs to. It takes the place of a session's owner.
//!
//! * [`FOLDER`], read-only: who the container is and what holds in it, in the file of [`crate::settings`]. It is there
//!   when the node knows whose the allocation is, and the first CUDA call waits for it.
//! * [`SESSION`]: the session's pages, which the node has made. Processes of every user of the container share them.
//!
//! A container's processes can neither write to the first nor unmount it, so no environment moves the limits.
//!
//! In a container with a user namespace both are of a user whom it does not know: kubelets do not map what plugins mount.

use crate::folder::MOUNTED;
use crate::settings::{FILE, OwnerSettings, SettingsError};
use crate::user_namespace::may_be_outer_root;
use crate::{Page, PageError};
use ::limits::{GpuId, Limits};
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::thread::{Timespec, nanosleep};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// Where a container sees its allocation.
pub const FOLDER: &str = "/run/sluice/allocation";
/// Where it sees the session's pages.
pub const SESSION: &str = MOUNTED;
/// Where it sees the folder of its node's daemon.
pub const DAEMON: &str = "/run/sluice/daemon";

/// How often it is looked.
const STEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// Root's, for those who know its name: see [`crate::directory`]. Processes of each user may use the pages in it, and
/// only root makes some.
const FOR_ALL: u32 = 0o711;

/// Why it is not known what holds in this container.
#[derive(Debug, thiserror::Error)]
pub enum AllocationError {
    /// The node has not written it.
    #[error(
        "the limits of this container are not known: its node has not written {FOLDER}/{FILE} within {0:?}; \
         'hypervisor node' must run there, and kubelets do not say which GPUs init containers have"
    )]
    Late(Duration),
    /// The folder is not the node's.
    #[error("{FOLDER}: expected a folder of root, but this is {0}")]
    NotRoots(String),
    /// It cannot be looked at.
    #[error("{FOLDER}: {0}")]
    Unseen(io::Error),
    /// What stands there cannot be read.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

/// Whether this process is in a container with an allocation. What cannot be looked at may be one.
#[must_use]
pub fn is_here() -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    match fs::symlink_metadata(FOLDER) {
        Ok(_) => true,
        Err(error) => !matches!(error.kind(), NotFound | NotADirectory),
    }
}

/// What holds in this container. Waits that long for the node to write it.
///
/// # Errors
/// [`AllocationError`]
pub fn settings(within: Duration) -> Result<OwnerSettings, AllocationError> {
    let end = Instant::now() + within;
    loop {
        let found = fs::symlink_metadata(FOLDER).map_err(AllocationError::Unseen)?;
        if !found.is_dir() || !is_nodes(found.uid()) {
            let what = if found.is_dir() { "a folder" } else { "no folder" };
            let whose = format!("{what} of user {}", found.uid());
            return Err(AllocationError::NotRoots(whose));
        }
        match OwnerSettings::of(Path::new(FOLDER)) {
            Err(error) if error.is_absent() => {}
            found => return Ok(found?),
        }
        if Instant::now() >= end {
            return Err(AllocationError::Late(within));
        }
        // The standard library's panics where the kernel refuses the call.
        let _ = nanosleep(&STEP);
    }
}

/// Whether the folder is the node's, by its user. Where that one is not known, whoever made the container has mounted it,
/// since nobody in it can write to it.
fn is_nodes(uid: u32) -> bool {
    let is_read_only =
        || statvfs(FOLDER).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY));
    uid == 0 || may_be_outer_root(uid) && is_read_only()
}

/// Makes the folder of a container's session.
///
/// # Errors
/// The system's.
pub fn make_session(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(FOR_ALL).create(folder)?;
    // The process's umask has taken rights away.
    fs::set_permissions(folder, fs::Permissions::from_mode(FOR_ALL))
}

/// Makes the pages of a container's session with the limits on its devices, before the container is told of them.
///
/// # Errors
/// As for [`Page::open`].
pub fn make_pages(folder: &Path, devices: &[(GpuId, Limits)]) -> Result<(), PageError> {
    for (device, limits) in devices {
        let page = Page::open(folder, *device, limits)?;
        // One that was made before has the limits of then.
        if page.look()?.limits() != *limits {
            page.change_limits(limits)?;
        }
    }
    // Only root can make it, and any process of the container may be the first that uses its devices together.
    if let [(_, limits), _, ..] = devices {
        Page::open_of_all(folder, limits)?;
    }
    Ok(())
}
