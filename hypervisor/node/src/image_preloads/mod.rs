//! What images preload themselves stays preloaded, behind ours: by a hook of the container runtime.
//!
//! The agent mounts a file over an image's `/etc/ld.so.preload`, and knows neither image nor root. A runtime's
//! `createRuntime` hook runs on the node, before the container's root is changed, and is told both: there the image's
//! file is not covered yet. It writes what stands there behind our lines, into the file that is mounted.

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

/// The folder from which runtimes read CDI files that come and go.
pub const CDI: &str = "/var/run/cdi";
/// The command that is the hook.
pub const COMMAND: &str = "keep-image-preloads";
/// How long the hook may take. An image's file may be on a file system that does not answer.
const WITHIN: Duration = Duration::from_secs(2);
/// What a runtime tells is not longer.
const MOST_BYTES: u64 = 4 << 20;

/// How images' lists are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagePreloads {
    /// From where the container runtime reads CDI files.
    pub cdi: PathBuf,
    /// The hook's program, on the node.
    pub program: PathBuf,
}

/// Why what an image preloads is not kept. Its container starts all the same.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// The runtime's word cannot be read.
    #[error("{0}: {1}; expected what OCI runtimes write for hooks of 1.0")]
    Told(String, io::Error),
    /// Nothing is mounted there.
    #[error("nothing is mounted at {PRELOAD}; expected a container of 'hypervisor node'")]
    NoMount,
    /// What is mounted is not to be written to.
    #[error(transparent)]
    List(#[from] ListError),
    /// The image's list is not to be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// It takes too long.
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

/// The hook: reads a container's state and writes the list of its allocation in this folder. Returns what was done.
///
/// # Errors
/// [`HookError`]. Our own lines stand in the list all the same.
pub fn keep_image_preloads(
    allocations: PathBuf,
    state: impl Read + Send + 'static,
) -> Result<String, HookError> {
    let (tell, told) = mpsc::channel();
    // One that hangs ends with this process.
    thread::spawn(move || _ = tell.send(keep(&allocations, state)));
    told.recv_timeout(WITHIN).unwrap_or(Err(HookError::Late))
}

fn keep(allocations: &Path, state: impl Read) -> Result<String, HookError> {
    let State { bundle } = read("the state on standard input", state)?;
    let path = bundle.join("config.json");
    let told = || path.display().to_string();
    let file = File::open(&path).map_err(|error| HookError::Told(told(), error))?;
    let config: Config = read(&told(), file)?;
    // The later one covers those before it.
    let mut mounts = config.mounts.iter().rev();
    let mounted = mounts.find(|one| one.destination == Path::new(PRELOAD));
    let list = List::open(allocations, &mounted.ok_or(HookError::NoMount)?.source)?;
    // A relative path is the bundle's.
    let outcome = image::preloads(&bundle.join(config.root.path)).map_err(HookError::from);
    let outcome = outcome.map(|text| Names::of(&text));
    // What an earlier container had goes, also where this one's cannot be read.
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
