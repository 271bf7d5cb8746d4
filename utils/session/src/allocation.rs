//! The files that a node mounts into a container with an allocation; they replace a session's owner. The node agent
//! writes them, the limiter reads them.
//!
//! * [`FOLDER`], read-only: the container's identity and settings, in the file of [`crate::settings`]. It appears when
//!   the node knows which container the allocation belongs to; the first CUDA call waits for it.
//! * [`SESSION`]: the session's pages, created by the node and shared by processes of every user of the container.
//!
//! A container's processes can neither write to the first nor unmount it, so the environment cannot change the limits.
//!
//! In a container with a user namespace both belong to an unknown user, because kubelets do not map plugins' mounts.

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

/// The container's path of its allocation.
pub const FOLDER: &str = "/run/sluice/allocation";
/// The container's path of the session's pages.
pub const SESSION: &str = MOUNTED;
/// The container's path of the folder of its node's daemon.
pub const DAEMON: &str = "/run/sluice/daemon";

/// How often to poll for the allocation.
const STEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// Mode of root's folder for those who know its name: see [`crate::directory`]. Processes of any user may use the pages
/// in it, and only root creates them.
const FOR_ALL: u32 = 0o711;

/// The reason why this container's settings are unknown.
#[derive(Debug, thiserror::Error)]
pub enum AllocationError {
    /// The node has not written the allocation in time.
    #[error(
        "the limits of this container are not known: its node has not written {FOLDER}/{FILE} within {0:?}; \
         'hypervisor node' must run there, and kubelets do not say which GPUs init containers have"
    )]
    Late(Duration),
    /// The folder is not the node's.
    #[error("{FOLDER}: expected a folder of root, but this is {0}")]
    NotRoots(String),
    /// The folder cannot be examined.
    #[error("{FOLDER}: {0}")]
    Unseen(io::Error),
    /// The settings cannot be read.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

/// Whether this process is in a container with an allocation. True if [`FOLDER`] cannot be examined.
#[must_use]
pub fn is_here() -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    match fs::symlink_metadata(FOLDER) {
        Ok(_) => true,
        Err(error) => !matches!(error.kind(), NotFound | NotADirectory),
    }
}

/// The settings of this container; waits at most `within` for the node to write them.
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
        // The standard library's function panics if the kernel refuses the call.
        let _ = nanosleep(&STEP);
    }
}

/// Whether the folder is the node's, judged by its user. If that user is unknown, whoever created the container mounted
/// the folder, provided that nobody in the container can write to it.
fn is_nodes(uid: u32) -> bool {
    let is_read_only =
        || statvfs(FOLDER).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY));
    uid == 0 || may_be_outer_root(uid) && is_read_only()
}

/// Creates the folder of a container's session.
///
/// # Errors
/// The system's.
pub fn make_session(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(FOR_ALL).create(folder)?;
    // The umask may have removed rights.
    fs::set_permissions(folder, fs::Permissions::from_mode(FOR_ALL))
}

/// Creates the pages of a container's session with the limits on its devices, before the container learns of them.
///
/// # Errors
/// As for [`Page::open`].
pub fn make_pages(folder: &Path, devices: &[(GpuId, Limits)]) -> Result<(), PageError> {
    for (device, limits) in devices {
        let page = Page::open(folder, *device, limits)?;
        // An existing page may have older limits.
        if page.look()?.limits() != *limits {
            page.change_limits(limits)?;
        }
    }
    // Only root can create it, and any process of the container may be the first that uses its devices together.
    if let [(_, limits), _, ..] = devices {
        Page::open_of_all(folder, limits)?;
    }
    Ok(())
}
