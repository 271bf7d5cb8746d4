//! A device that is accounted in this process.

use crate::compute::Gate;
use crate::config::{Config, Identity};
use crate::memory::{Contexts, Tracker};
use crate::process::{self, Refused};
use crate::report;
use core::sync::atomic::AtomicU64;
use core::time::Duration;
use limits::Policy;
use limits::uuid::DeviceUuid;
use session::page::layout::{Layout, Slot};
use session::page::{BookGuard, Page, PageError, Seat, SessionLimits};
use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// How often the dead are looked for where nothing is missing.
const REAP_PERIOD: Duration = Duration::from_millis(50);

/// What this process keeps about a device.
pub(crate) struct Device {
    uuid: DeviceUuid,
    seat: Seat,
    /// Why the page is not believed any more.
    broken: OnceLock<Refused>,
    gate: Gate,
    /// What this process has taken.
    pub(crate) tracker: Tracker,
    /// The contexts among it.
    pub(crate) contexts: Contexts,
    /// Bytes of the images that the driver has been given, for their code to be placed.
    pub(crate) images: AtomicU64,
    /// What was left of the limit when this process last asked NVML.
    pub(crate) left_when_seen: AtomicU64,
}

impl Device {
    /// Takes a place in the session's page of the device. The limits are the page's from then on.
    pub(crate) fn new(
        uuid: DeviceUuid,
        limits: &SessionLimits,
        session_dir: &Path,
    ) -> Result<Self, Refused> {
        let refused = |error: session::page::PageError| Refused(error.to_string());
        let page = Page::open(session_dir, uuid, limits).map_err(refused)?;
        // Those of whoever made the page, or as they were changed since.
        let limits = SessionLimits::load(page.look().map_err(refused)?);
        Ok(Self {
            uuid,
            seat: Seat::claim(page).map_err(refused)?,
            broken: OnceLock::new(),
            gate: Gate::new(limits.policy != Policy::None),
            tracker: Tracker::default(),
            contexts: Contexts::default(),
            images: AtomicU64::new(0),
            left_when_seen: AtomicU64::new(0),
        })
    }

    pub(crate) const fn uuid(&self) -> DeviceUuid {
        self.uuid
    }

    /// This process's place in the session's book.
    pub(crate) const fn seat(&self) -> &Seat {
        &self.seat
    }

    /// Opens the session's book; `None`, and a line that says so, where that cannot be done.
    pub(crate) fn book(&self) -> Option<BookGuard<'_>> {
        self.or_say(self.seat.book())
    }

    /// The page's fields, for reading without the book.
    pub(crate) fn page(&self) -> Option<&Layout> {
        self.or_say(self.seat.look())
    }

    /// What the page says of this process.
    pub(crate) fn own_slot(&self) -> Option<&Slot> {
        self.page()?.slots.get(self.seat.slot())
    }

    /// Gives back what dead processes left; `true`: there was something.
    pub(crate) fn reap(&self) -> bool {
        self.or_say(self.seat.reap()).is_some_and(|dead| dead > 0)
    }

    /// The page's fields without the dead, as far as a process of the session has looked for them a
    /// moment ago.
    pub(crate) fn page_reaped(&self) -> Option<&Layout> {
        self.or_say(self.seat.look_reaped(REAP_PERIOD))
    }

    /// Why the limits of this device cannot be kept any more.
    pub(crate) fn broken(&self) -> Option<&Refused> {
        self.broken.get()
    }

    /// Whether calls have to fail because the limits cannot be kept any more.
    pub(crate) fn is_denied(&self) -> bool {
        self.broken().is_some_and(|refused| !process::get().goes_on_without(refused))
    }

    fn or_say<T>(&self, result: Result<T, PageError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error @ PageError::Damaged { .. }) => {
                let _ = self.broken.set(Refused(format!("device {}: {error}", self.uuid)));
                None
            }
            Err(error) => {
                report::once(format_args!("device {}: {error}", self.uuid));
                None
            }
        }
    }

    /// The gate that launches pass.
    pub(crate) const fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Whether the session has a limit on this device, as of now.
    pub(crate) fn is_limited(&self) -> bool {
        self.page().map(SessionLimits::load).is_none_or(|limits| limits.limits_anything())
    }
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
