//! Links: names under which the loader finds the limiter and the simulated driver.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use session::directory::{OwnedSession, told};

use super::environment::loader_can_name;
use super::parts::{self, Parts};
use super::{Error, library};

/// The names under which the loader finds the limiter, in the order in which it is to try them. The first is a link
/// in the session's directory `dir`: it tells the limiter to which session it belongs, whatever becomes of the
/// environment. The second is for a time when that directory is gone: without the limiter nothing would be refused.
/// Both are one file, which the loader loads once. In a session whose programs may become other users, that file is one
/// that all users can read: a copy, if need be. `dir` is that of `session`, or one inside it.
///
/// # Errors
/// [`Error::System`] and [`Error::NotForAll`] if what is needed cannot be made.
pub fn preloadable(
    session: &OwnedSession,
    dir: &Path,
    limiter: &Path,
) -> Result<[PathBuf; 2], Error> {
    if session.is_for_other_users() && !library::is_for_all_users(limiter) {
        let copy = session
            .lasting_copy(limiter, parts::LIMITER)
            .map_err(|problem| Error::NotForAll { path: limiter.to_owned(), problem })?;
        return Ok([link(&copy, dir, parts::LIMITER)?, copy]);
    }
    let of_session = link(limiter, dir, parts::LIMITER)?;
    if loader_can_name(limiter) {
        return Ok([of_session, limiter.to_owned()]);
    }
    // One that stays: a process that has lost its session must find the limiter, which then lets
    // nothing pass.
    let stable = session.lasting_link(limiter, parts::LIMITER)?;
    Ok([of_session, stable])
}

/// The same names in a session that another command made, as far as the loader can use them.
///
/// # Errors
/// As for [`library::check`]: what the loader would leave out.
pub fn of_session(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let of_session = dir.join(parts::LIMITER);
    library::check(&of_session)?;
    let target = fs::read_link(&of_session).ok().filter(|target| loader_can_name(target));
    Ok([Some(of_session), target].into_iter().flatten().collect())
}

/// Makes a link, if it is not there.
fn put_link(target: &Path, path: &Path) -> io::Result<()> {
    if fs::read_link(path).is_ok_and(|found| found == target) {
        return Ok(());
    }
    // Renamed into place: at no time is there none.
    let draft = path.with_extension(format!("draft-{}", std::process::id()));
    let _ = fs::remove_file(&draft);
    symlink(target, &draft)?;
    fs::rename(&draft, path)
}

/// Makes a directory in which the simulated driver, and its `nvidia-smi`, have the names that programs use.
///
/// # Errors
/// [`Error::PartMissing`] without the simulated driver, [`Error::System`] and [`Error::Directory`]
/// otherwise.
pub fn fake_driver(session: &OwnedSession, parts: &Parts) -> Result<PathBuf, Error> {
    let folder = session.subdirectory("fake-driver")?;
    for (file, name) in [parts::FAKE_CUDA, parts::FAKE_NVML, parts::FAKE_SMI] {
        link(&parts.find(file)?, &folder, name)?;
    }
    Ok(folder)
}

fn link(target: &Path, folder: &Path, name: &str) -> Result<PathBuf, Error> {
    let path = folder.join(name);
    put_link(target, &path)
        .map_err(|e| Error::system(format!("cannot make {}", told(&path).display()), e))?;
    Ok(path)
}
