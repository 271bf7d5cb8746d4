//! The folder of a user's sessions.
//!
//! Anyone can create a folder of any name in `/dev/shm`, so there are several names. A process uses the first folder
//! that belongs to its user; without one, the first that can be created. The environment has no influence, so all
//! processes of a user find the same folder.

use super::{DirectoryError, PREFIX, ROOT};
use crate::folder::{Folder, FolderError};
use rustix::io::Errno;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Number of numbered names after the plain one. They are tried only if the earlier ones do not belong to the user.
const SPARE: u32 = 63;

/// The folder of a user's sessions.
pub(super) struct Place {
    pub(super) folder: Folder,
    /// Why it is not the usual one, if so.
    pub(super) elsewhere: Option<String>,
}

/// Mode of a user's folders. Programs that root starts may become another user, who can pass through root's folder if
/// they know a name inside.
pub(super) const fn mode(uid: u32) -> u32 {
    if uid == 0 { 0o711 } else { 0o700 }
}

/// The possible folders of a user's sessions, the usual one first.
pub(super) fn all(root: &Path, uid: u32) -> impl Iterator<Item = PathBuf> {
    let plain = format!("{PREFIX}{}", title(uid));
    let spare = (1..=SPARE).map({
        let plain = plain.clone();
        move |number| format!("{plain}-{number}")
    });
    let root = root.to_owned();
    std::iter::once(plain).chain(spare).map(move |name| root.join(name))
}

/// The user's part of a folder's name. Builds from before the mode of root's folder changed use `0`, and refuse the new
/// mode.
fn title(uid: u32) -> String {
    if uid == 0 { ROOTS.to_owned() } else { uid.to_string() }
}

const ROOTS: &str = "root";

/// The last resort, in a folder where no other user can create anything.
pub(super) fn last(uid: u32) -> PathBuf {
    match uid {
        0 => Path::new("/run").join(format!("{PREFIX}{ROOTS}")),
        uid => PathBuf::from(format!("/run/user/{uid}/sluice")),
    }
}

/// The user whose folder has this name.
pub(super) fn user(name: &str) -> Option<u32> {
    let name = name.strip_prefix(PREFIX)?;
    let (of, number) = name.split_once('-').map_or((name, None), |(of, spare)| (of, Some(spare)));
    let is_spare = |number: &str| (1..=SPARE).any(|spare| spare.to_string() == number);
    let uid = if of == ROOTS { 0 } else { of.parse::<u32>().ok()? };
    ([title(uid), uid.to_string()].iter().any(|title| title == of) && number.is_none_or(is_spare))
        .then_some(uid)
}

/// The folder of this user; created if needed.
pub(super) fn own(uid: u32) -> Result<Place, DirectoryError> {
    let last = Some(last(uid)).filter(|last| last.parent().is_some_and(Path::is_dir));
    let places: Vec<PathBuf> = all(Path::new(ROOT), uid).chain(last).collect();
    choose(&places, uid)
}

fn choose(places: &[PathBuf], uid: u32) -> Result<Place, DirectoryError> {
    let mut taken: Option<&Path> = None;
    let mut free = Vec::new();
    let mut unusable = None;
    for path in places {
        match Folder::open(path) {
            // Such as a service's read-only /dev/shm, while other processes of the user write there.
            Ok(folder) if folder.uid() == uid && folder.is_read_only() => {
                unusable = unusable.or(Some(FolderError::io("write in", path)(Errno::ROFS)));
            }
            Ok(folder) if folder.uid() == uid => {
                return Ok(is_at(made_ready(folder, uid)?, taken.map(not_ones_own)));
            }
            Err(error) if error.is_absent() => free.push(path.as_path()),
            _ => taken = taken.or(Some(path)),
        }
    }
    for path in free {
        match make(path, uid) {
            Ok(folder) => {
                let before = taken.filter(|taken| *taken < path).map(not_ones_own);
                return Ok(is_at(folder, before.or(unusable.map(|error| error.to_string()))));
            }
            // Another user was faster.
            Err(DirectoryError::Folder(FolderError::Unsafe { .. })) => taken = taken.or(Some(path)),
            // Such as a container's /dev/shm that is read-only or missing.
            Err(DirectoryError::Folder(error)) if error.is_of_the_place() => {
                unusable = unusable.or(Some(error));
            }
            Err(error) => return Err(error),
        }
    }
    match (taken, unusable) {
        (None, Some(error)) => Err(error.into()),
        (taken, _) => {
            let path = taken.unwrap_or(Path::new(ROOT)).to_owned();
            Err(FolderError::Unsafe { path, wanted: wanted(uid), found: found_at(taken) }.into())
        }
    }
}

fn found_at(taken: Option<&Path>) -> String {
    taken.map_or_else(
        || "missing".to_owned(),
        |_| "owned by another user, like all other possible places".to_owned(),
    )
}

fn not_ones_own(taken: &Path) -> String {
    format!("{} does not belong to this user", taken.display())
}

fn is_at(folder: Folder, why_not: Option<String>) -> Place {
    let elsewhere =
        why_not.map(|why| format!("{why}; sessions are in {} instead", folder.path().display()));
    Place { folder, elsewhere }
}

/// Creates a folder, or opens the one that another process of the user has just created.
pub(super) fn make(path: &Path, uid: u32) -> Result<Folder, DirectoryError> {
    let (above, name) = path.parent().zip(path.file_name()).unwrap_or((path, path.as_os_str()));
    match Folder::open(above)?.make_closed(name) {
        Err(FolderError::Io { source, .. }) if source.kind() == ErrorKind::AlreadyExists => {}
        made => made?,
    }
    let folder = Folder::open(path).map_err(|error| match error {
        FolderError::Io { source, .. } if is_of_another_kind(&source) => {
            let found = "something else".to_owned();
            FolderError::Unsafe { path: path.to_owned(), wanted: wanted(uid), found }
        }
        other => other,
    })?;
    made_ready(folder, uid)
}

/// Whether the error means that something other than a directory exists there.
fn is_of_another_kind(error: &io::Error) -> bool {
    [Errno::NOTDIR, Errno::LOOP]
        .iter()
        .any(|kind| error.raw_os_error() == Some(kind.raw_os_error()))
}

/// Checks a folder. Opens root's folder to those who know a name inside, if nobody else could enter it.
fn made_ready(folder: Folder, uid: u32) -> Result<Folder, DirectoryError> {
    check(&folder, uid, &[0o700, mode(uid)])?;
    Ok(folder.with_mode(mode(uid))?)
}

pub(super) fn check(folder: &Folder, uid: u32, modes: &[u32]) -> Result<(), DirectoryError> {
    if folder.uid() == uid && modes.contains(&(folder.mode() & 0o777)) {
        return Ok(());
    }
    let found =
        format!("a directory of user {} with mode {:04o}", folder.uid(), folder.mode() & 0o777);
    let path = limits::session_name::told(folder.path());
    Err(FolderError::Unsafe { path, wanted: wanted(uid), found }.into())
}

fn wanted(uid: u32) -> String {
    format!("a directory that belongs to user {uid} with mode {:04o}", mode(uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_names_that_processes_use_stand_for_a_user() {
        for name in ["sluice-7", "sluice-7-1", "sluice-7-63"] {
            assert_eq!(user(name), Some(7), "{name}");
        }
        for name in ["sluice-root", "sluice-root-3", "sluice-0"] {
            assert_eq!(user(name), Some(0), "{name}");
        }
        for name in ["sluice-", "sluice-07", "sluice-+7", "sluice-7-", "sluice-7-64", "sluice-7-01"]
        {
            assert_eq!(user(name), None, "{name}");
        }
    }

    #[test]
    fn what_the_user_has_already_comes_before_what_could_be_made() {
        let uid = rustix::process::geteuid().as_raw();
        let root = tempfile::tempdir().unwrap();
        let places: Vec<_> = all(root.path(), uid).collect();
        fs::write(&places[0], "in the way").unwrap();
        let first = choose(&places, uid).unwrap();
        assert_eq!(first.folder.path(), places[1]);
        let told = first.elsewhere.unwrap();
        assert!(told.contains(&*places[0].to_string_lossy()), "{told}");
        // The other user gives up the name: existing sessions are found where they are.
        fs::remove_file(&places[0]).unwrap();
        let again = choose(&places, uid).unwrap();
        assert_eq!((again.folder.path(), again.elsewhere), (&*places[1], None));
    }

    #[test]
    fn where_nothing_can_be_made_the_next_place_is_used() {
        let uid = rustix::process::geteuid().as_raw();
        let root = tempfile::tempdir().unwrap();
        let absent = root.path().join("absent");
        let mut places: Vec<_> = all(&absent, uid).collect();
        let Err(error) = choose(&places, uid) else { panic!("a place was found") };
        assert!(error.to_string().contains(absent.to_str().unwrap()), "{error}");
        places.push(root.path().join("last"));
        let first = choose(&places, uid).unwrap();
        assert_eq!(first.folder.path(), root.path().join("last"));
        let told = first.elsewhere.unwrap();
        assert!(
            told.contains(absent.to_str().unwrap()) && told.contains("/last instead"),
            "{told}"
        );
        assert_eq!(choose(&places, uid).unwrap().elsewhere, None);
    }

    #[test]
    fn with_no_place_left_the_error_says_so() {
        let uid = rustix::process::geteuid().as_raw();
        let root = tempfile::tempdir().unwrap();
        let places: Vec<_> = all(root.path(), uid).collect();
        places.iter().for_each(|place| fs::write(place, "").unwrap());
        let Err(error) = choose(&places, uid) else { panic!("a place was found") };
        assert!(error.to_string().contains(&*places[0].to_string_lossy()), "{error}");
    }

    #[test]
    fn a_place_of_ones_own_that_others_may_write_to_is_an_error() {
        let uid = rustix::process::geteuid().as_raw();
        let root = tempfile::tempdir().unwrap();
        let places: Vec<_> = all(root.path(), uid).collect();
        fs::create_dir(&places[0]).unwrap();
        fs::set_permissions(&places[0], PermissionsExt::from_mode(0o777)).unwrap();
        assert!(choose(&places, uid).is_err());
    }
}
