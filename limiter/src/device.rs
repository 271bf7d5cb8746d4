//! One device in this process, and the session's directory; [`process`](super::process) uses both.

use crate::compute::Gate;
use crate::ledger::DeviceLedger;
use crate::memory::DeviceMemory;
use crate::report;
use crate::verdict::LimiterFailure;
use config::{Config, DeviceIdentity};
use session::{Page, directory};
use std::path::{Path, PathBuf};

/// A device that has a ledger in this process.
pub(crate) struct Device {
    /// The session's ledger of the device.
    pub(crate) ledger: &'static DeviceLedger,
    pub(crate) memory: DeviceMemory,
    /// The gate for launches.
    pub(crate) gate: Gate,
}

/// The directory of this process's session: the one that `sluice run` created, or else one shared by all processes of
/// the same user, pid namespace (container) and pod that have the same limits on `devices`.
pub(crate) fn session_dir(
    config: &Config,
    devices: &[DeviceIdentity],
) -> Result<PathBuf, LimiterFailure> {
    let dir = match &config.session_dir {
        Some(dir) => directory::check(dir).map(|()| dir.clone()),
        None => directory::implicit(&(&config.identity, config.limits_fingerprint(devices))).map(
            |found| {
                if let Some(elsewhere) = found.elsewhere {
                    report::once(format_args!("{elsewhere}"));
                }
                found.path
            },
        ),
    };
    dir.map_err(|error| LimiterFailure(error.to_string()))
}

/// Whether any limit applies to a process with this configuration: one of its own, or one in a page of its session. An
/// unreadable page counts as a limit.
pub(crate) fn is_limited(config: &Config) -> bool {
    let limited = |path: &Path| match Page::open_existing(path) {
        Ok(page) => page.look().map_or(true, |layout| layout.limits().limits_anything()),
        Err(_) => true,
    };
    let in_session = |dir: &Path| {
        std::fs::read_dir(dir).is_ok_and(|entries| {
            let mut pages = entries.flatten().map(|entry| entry.path());
            pages.any(|path| Page::has_name_of_one(&path) && limited(&path))
        })
    };
    config.limits_anything() || config.session_dir.as_deref().is_some_and(in_session)
}
