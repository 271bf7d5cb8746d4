//! A device that is accounted in this process.

use crate::compute::Gate;
use crate::config::{Config, Identity};
use crate::ledger::Ledger;
use crate::memory::DeviceMemory;
use crate::verdict::Refused;
use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What this process keeps about a device.
pub(crate) struct Device {
    /// The session's book of it.
    pub(crate) ledger: &'static Ledger,
    pub(crate) memory: DeviceMemory,
    /// The gate that launches pass.
    pub(crate) gate: Gate,
}

/// The directory of this process's session: the one that `sluice run` made, else one for all
/// processes of this user, pid namespace (container) and pod that carry the same limits.
pub(crate) fn session_dir(config: &Config) -> Result<PathBuf, Refused> {
    if let Some(dir) = &config.session_dir {
        return if dir.is_dir() {
            Ok(dir.clone())
        } else {
            Err(Refused(format!(
                "{}={}: not a directory; it has to be the one that `sluice run` made",
                limits::env::SESSION_DIR,
                dir.display()
            )))
        };
    }
    let user = rustix::process::geteuid().as_raw();
    let base = PathBuf::from(format!("/dev/shm/sluice-{user}"));
    let dir = base.join(format!("env-{:016x}", implicit_session(config)));
    for dir in [&base, &dir] {
        private_directory(dir, user)
            .map_err(|error| Refused(format!("session directory {}: {error}", dir.display())))?;
    }
    Ok(dir)
}

/// Tells one implicit session from another.
fn implicit_session(config: &Config) -> u64 {
    let mut hasher = DefaultHasher::new();
    let Identity { .. } = &config.identity;
    config.identity.hash(&mut hasher);
    config.limits_fingerprint().hash(&mut hasher);
    if let Ok(namespace) = fs::metadata("/proc/self/ns/pid") {
        namespace.ino().hash(&mut hasher);
    }
    hasher.finish()
}

/// Makes a directory that only this user can enter, or checks that it is one.
fn private_directory(path: &Path, user: u32) -> std::io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        other => return other,
    }
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_dir() || metadata.uid() != user || metadata.mode() & 0o077 != 0 {
        return Err(std::io::Error::other("it has to be a directory of this user's, mode 0700"));
    }
    Ok(())
}

/// Whether the program is to see only some of the host's devices, or in another order.
pub(crate) fn is_narrowed_down() -> bool {
    ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"]
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}
