//! Keeps the libraries that an image preloads, after Sluice's, by a hook of the container runtime.
//!
//! The agent mounts a file over the image's `/etc/ld.so.preload`, but knows neither the image nor its root. A runtime's
//! `createRuntime` hook runs on the node before the container's root is changed, while the image's file is still
//! visible, and is told the root and the mounts. The hook appends the image's lines to Sluice's, in the mounted file.

mod cdi;
mod image;
mod list;
mod names;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;

pub(crate) use cdi::{HookFile, annotation, check};
pub use cdi::{HookFileError, install_hook};
pub use image::ImageError;
pub use list::ListError;
pub(crate) use list::of;

use self::list::List;
use self::names::Names;
use crate::injection::PRELOAD;

/// The directory from which runtimes read CDI files created at run time.
pub const CDI: &str = "/var/run/cdi";
/// The command that runs as the hook.
pub const COMMAND: &str = "keep-image-preloads";
/// Timeout of the hook: the image may be on a file system that does not answer.
const WITHIN: Duration = Duration::from_secs(2);
/// Longest state and configuration accepted from a runtime, in bytes.
const MOST_BYTES: u64 = 4 << 20;

/// How images' preload lists are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagePreloads {
    /// The directory from which the container runtime reads CDI files.
    pub cdi: PathBuf,
    /// Path of the hook's program on the node.
    pub program: PathBuf,
}

/// Why an image's preload list is not kept. The container starts nevertheless.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// The runtime's state or configuration cannot be read.
    #[error("{0}: {1}; expected what OCI runtimes write for hooks of 1.0")]
    Told(String, io::Error),
    /// The container has no mount at the preload path.
    #[error("nothing is mounted at {PRELOAD}; expected a container of 'hypervisor node'")]
    NoMount,
    /// The mounted file must not be written.
    #[error(transparent)]
    List(#[from] ListError),
    /// The image's list must not be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The timeout has passed.
    #[error("not done within {} s", WITHIN.as_secs())]
    Late,
}

#[derive(Deserialize)]
struct State {
    bundle: PathBuf,
}

#[derive(Deserialize)]
struct Config {
    root: Root,
    #[serde(default)]
    mounts: Vec<Mounted>,
}

#[derive(Deserialize)]
struct Root {
    path: PathBuf,
}

#[derive(Deserialize)]
struct Mounted {
    destination: PathBuf,
    #[serde(default)]
    source: PathBuf,
}

/// Runs the hook: reads a container's state and appends the image's list to that of its allocation in `allocations`.
/// Returns what was done, for the log.
///
/// # Errors
/// [`HookError`]. Sluice's lines are in the list in any case.
pub fn keep_image_preloads(
    allocations: PathBuf,
    state: impl Read + Send + 'static,
) -> Result<String, HookError> {
    let (tell, told) = mpsc::channel();
    // A thread that hangs ends with this process.
    thread::spawn(move || _ = tell.send(keep(&allocations, state)));
    told.recv_timeout(WITHIN).unwrap_or(Err(HookError::Late))
}

fn keep(allocations: &Path, state: impl Read) -> Result<String, HookError> {
    let State { bundle } = read("the state on standard input", state)?;
    let path = bundle.join("config.json");
    let told = || path.display().to_string();
    let file = File::open(&path).map_err(|error| HookError::Told(told(), error))?;
    let config: Config = read(&told(), file)?;
    // A later mount covers earlier ones.
    let mut mounts = config.mounts.iter().rev();
    let mounted = mounts.find(|one| one.destination == Path::new(PRELOAD));
    let list = List::open(allocations, &mounted.ok_or(HookError::NoMount)?.source)?;
    // A relative root path is relative to the bundle.
    let outcome = image::preloads(&bundle.join(config.root.path)).map_err(HookError::from);
    let outcome = outcome.map(|text| Names::of(&text));
    // Removes the names of an earlier container, even if this image's list cannot be read.
    let text = outcome.as_ref().map(Names::text).unwrap_or_default();
    let outcome = list.write(&text).map_err(HookError::from).and(outcome).map(|names| {
        let (kept, own) = (names.kept.len(), names.own);
        format!("of the image's {PRELOAD}: kept {kept}; libraries of Sluice, which are there already: {own}")
    });
    match &outcome {
        Ok(done) => list.tell(done),
        Err(error) => list.tell(&error.to_string()),
    }
    outcome
}

fn read<T: DeserializeOwned>(what: &str, from: impl Read) -> Result<T, HookError> {
    let failed = |error| HookError::Told(what.to_owned(), error);
    let mut text = Vec::new();
    from.take(MOST_BYTES).read_to_end(&mut text).map_err(failed)?;
    serde_json::from_slice(&text).map_err(|error| failed(error.into()))
}

#[cfg(test)]
mod tests;
