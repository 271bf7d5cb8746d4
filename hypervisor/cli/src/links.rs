//! Links: names under which the loader finds the limiter and the simulated driver.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use session::directory::{OwnedSession, told};

use super::Error;
use super::environment::loader_can_name;
use super::parts::{self, Parts};

/// The path of the limiter, under a name that the loader reads as one entry.
///
/// # Errors
/// [`Error::Directory`] if a link is needed and cannot be made.
pub fn preloadable(session: &OwnedSession, limiter: PathBuf) -> Result<PathBuf, Error> {
    if loader_can_name(&limiter) {
        return Ok(limiter);
    }
    // Not in the session's directory: a process that has lost its session must find the limiter.
    // It lets nothing pass then; the loader alone would run the program without it.
    Ok(session.lasting_link(&limiter, parts::LIMITER)?)
}

/// Makes a directory in which the simulated driver has the names that programs load.
///
/// # Errors
/// [`Error::PartMissing`] without the simulated driver, [`Error::System`] and [`Error::Directory`]
/// otherwise.
pub fn fake_driver(session: &OwnedSession, parts: &Parts) -> Result<PathBuf, Error> {
    let folder = session.subdirectory("fake-driver")?;
    for (file, name) in [parts::FAKE_CUDA, parts::FAKE_NVML] {
        link(&parts.find(file)?, &folder, name)?;
    }
    Ok(folder)
}

fn link(target: &Path, folder: &Path, name: &str) -> Result<PathBuf, Error> {
    let path = folder.join(name);
    symlink(target, &path)
        .map_err(|e| Error::system(format!("cannot make {}", told(&path).display()), e))?;
    Ok(path)
}
