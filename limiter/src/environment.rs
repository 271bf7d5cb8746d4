//! The settings of this process, from variables that the program cannot influence after the load.
//!
//! In a container with an allocation (Kubernetes), the node's variables apply, from the mounted folder. In a session
//! with an owner (`sluice run`), the owner's variables apply, from the owner's file. Otherwise this process's own
//! variables apply, as of the library's load: a program may change its environment, or overwrite the memory that holds
//! it, before its first CUDA call, without effect.

use config::{Config, ConfigError, Snapshot};
use core::ffi::{CStr, c_void};
use core::mem;
use limits::GpuId;
use limits::env::SESSION_DIR;
use session::allocation::{self, AllocationError};
use session::settings::{self, OwnerSettings, SettingsError};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// How long the first CUDA call of a process waits for its container's limits. They are written before the container
/// starts, unless the kubelet was slow to tell which pod it belongs to.
const NODE_WRITES_WITHIN: Duration = Duration::from_secs(10);

/// The state at the library's load. Static, because the constructor fills it before any state of the process exists,
/// and a forked child keeps it. Set once, never waited for.
static AT_LOAD: OnceLock<AtLoad> = OnceLock::new();

#[derive(Clone)]
struct AtLoad {
    /// The process's own environment.
    variables: Snapshot,
    /// The path from which the loader loaded the library.
    loaded_as: Option<PathBuf>,
    /// `LD_PRELOAD`.
    preload: OsString,
    /// Whether this is a container with an allocation; independent of the environment.
    in_allocation: bool,
}

impl AtLoad {
    fn take() -> Self {
        let preload = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        let in_allocation = allocation::is_here();
        Self { variables: Snapshot::take(), loaded_as: loaded_as(), preload, in_allocation }
    }

    fn present() -> Self {
        AT_LOAD.get().cloned().unwrap_or_else(Self::take)
    }

    /// The session that `SLUICE_SESSION_DIR` names, if the path is absolute.
    fn named_session(&self) -> Option<&Path> {
        let named = self.variables.value(OsStr::new(SESSION_DIR)).map(Path::new);
        named.filter(|path| path.is_absolute())
    }

    /// The session with an owner that this process belongs to. The library's path comes first, because a program can
    /// easily change its variables. The paths in `LD_PRELOAD` still name a session whose directory is gone.
    fn owned_session(&self) -> Option<&Path> {
        let loaded_from = self.loaded_as.as_deref().and_then(Path::parent);
        loaded_from
            .filter(|dir| dir.is_absolute() && settings::has_owner(dir))
            .or_else(|| settings::preloaded_session(&self.preload))
            .or_else(|| self.named_session().filter(|dir| settings::has_owner(dir)))
    }
}

/// The directory of the session that this process was started in.
pub(crate) fn session() -> Option<PathBuf> {
    let at_load = AtLoad::present();
    if at_load.in_allocation {
        return Some(allocation::SESSION.into());
    }
    at_load.owned_session().or_else(|| at_load.named_session()).map(Path::to_owned)
}

/// Stores the present environment. Must be called once, from the constructor.
pub(crate) fn keep() {
    let _ = AT_LOAD.set(AtLoad::take());
}

/// The path by which the loader knows this library.
fn loaded_as() -> Option<PathBuf> {
    // SAFETY: plain data, for which zeros are valid.
    let mut found: libc::Dl_info = unsafe { mem::zeroed() };
    // SAFETY: an address inside this library; the loader fills the structure.
    let known = unsafe { libc::dladdr(keep as *const c_void, &raw mut found) } != 0;
    if !known || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader keeps a C string there as long as the library is loaded.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

/// The reason why this process's settings are unknown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Undecided {
    /// The owner's file is invalid.
    #[error(transparent)]
    Owner(#[from] SettingsError),
    /// The container's allocation is invalid.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// A variable is invalid.
    #[error(transparent)]
    Variable(#[from] ConfigError),
}

/// The settings of this process.
pub(crate) struct Decided {
    pub(crate) config: Config,
    /// The variables that apply.
    pub(crate) variables: Snapshot,
    /// The only devices that the session may use; `None`: all.
    pub(crate) only: Option<Vec<GpuId>>,
    /// Messages about the process's own variables that do not apply.
    pub(crate) in_vain: Vec<String>,
}

/// Reads the settings of this process.
///
/// # Errors
/// [`Undecided`]: the limits are unknown.
pub(crate) fn decided() -> Result<Decided, Undecided> {
    let at_load = AtLoad::present();
    let named = at_load.named_session();
    let own = at_load.variables.clone();
    let (dir, settings, decides) = if at_load.in_allocation {
        let decides = "in this container its node decides";
        (Path::new(allocation::SESSION), allocation::settings(NODE_WRITES_WITHIN)?, decides)
    } else if let Some(dir) = at_load.owned_session() {
        let decides = "in this session 'sluice run' decides, and 'sluice limit' changes it";
        (dir, OwnerSettings::of(dir)?, decides)
    } else {
        let config = Config::from_env(&own)?;
        return Ok(Decided { config, variables: own, only: None, in_vain: Vec::new() });
    };
    let OwnerSettings { variables, devices, .. } = settings;
    let pairs = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
    let own_place = [(SESSION_DIR.into(), dir.as_os_str().to_owned())];
    let variables: Snapshot = own_place.into_iter().chain(pairs).collect();
    let mut in_vain = Vec::new();
    if named.is_some_and(|named| named != dir) {
        in_vain.push(format!(
            "{SESSION_DIR} is not honoured: this process belongs to the session that preloads its limiter, or to its container's"
        ));
    }
    let differing = own.differing(&variables);
    if !differing.is_empty() {
        in_vain.push(format!("{}: not honoured; {decides}", differing.join(", ")));
    }
    // Each process chooses its own log level.
    let variables = variables.with_log_of(&own);
    let config = Config::from_env(&variables)?;
    Ok(Decided { config, variables, only: devices, in_vain })
}
