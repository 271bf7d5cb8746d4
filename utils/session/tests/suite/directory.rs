//! The directories of sessions: where they are, who may enter, and how leftovers are removed.

use session::directory::{DirectoryError, FolderError, OwnedSession, list_in};
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

fn base() -> (tempfile::TempDir, PathBuf, u32) {
    let root = tempfile::tempdir().unwrap();
    let base = root.path().join("base");
    (root, base, rustix::process::getuid().as_raw())
}

/// Mode of a user's folders: programs that root starts may become another user.
fn mode(uid: u32) -> u32 {
    if uid == 0 { 0o711 } else { 0o700 }
}

/// Makes a session look as if no process had started to use it for long.
fn age(session: &Path) {
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    File::open(session.join("used")).unwrap().set_modified(long_ago).unwrap();
}

#[test]
fn a_session_is_private_and_removed_at_its_end() {
    let (_root, base, uid) = base();
    let session = OwnedSession::create_in(&base, uid).unwrap();
    let path = session.path().to_owned();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode(uid));
    assert_eq!(fs::metadata(&base).unwrap().permissions().mode() & 0o777, mode(uid));
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with(&format!("{}-", std::process::id())), "{name}");
    let secret = name.split_once('.').unwrap().1;
    assert!(secret.len() == 32 && u128::from_str_radix(secret, 16).is_ok(), "{name}");
    drop(session);
    assert!(!path.exists());
}

#[test]
fn a_base_that_others_can_write_to_is_refused() {
    let (_root, base, uid) = base();
    fs::create_dir(&base).unwrap();
    fs::set_permissions(&base, PermissionsExt::from_mode(0o777)).unwrap();
    let message = OwnedSession::create_in(&base, uid).unwrap_err().to_string();
    assert!(message.contains("mode 0777"), "{message}");
    let message = OwnedSession::create_in(&base, uid + 1).unwrap_err().to_string();
    assert!(message.contains(&format!("belongs to user {}", uid + 1)), "{message}");
    fs::remove_dir(&base).unwrap();
    symlink("/dev/shm", &base).unwrap();
    assert!(matches!(
        OwnedSession::create_in(&base, uid),
        Err(DirectoryError::Folder(FolderError::Unsafe { .. }))
    ));
}

/// The directory that a program is told to join.
#[test]
fn a_session_that_others_can_write_to_is_not_joined() {
    let root = tempfile::tempdir().unwrap();
    // Others may create folders beside it, as in `/dev/shm`.
    fs::set_permissions(root.path(), PermissionsExt::from_mode(0o1777)).unwrap();
    let session = root.path().join("session");
    fs::create_dir(&session).unwrap();
    for (mode, is_joined) in [
        (0o700, true),
        (0o755, true),
        (0o711, true),
        (0o770, false),
        (0o702, false),
        (0o1777, false),
    ] {
        fs::set_permissions(&session, PermissionsExt::from_mode(mode)).unwrap();
        let checked = session::directory::check(&session);
        assert_eq!(checked.is_ok(), is_joined, "{mode:o}: {checked:?}");
    }
}

#[test]
fn leftovers_of_the_dead_go_and_those_of_the_living_stay() {
    let (_root, base, uid) = base();
    let living = OwnedSession::create_in(&base, uid).unwrap();
    // This process's id with another start time: a reused pid.
    let dead = base.join(format!("{}-1-0123456789abcdef", std::process::id()));
    let used = base.join("4000000000-1-0123456789abcdef");
    let locked = base.join("4000000001-1-0123456789abcdef");
    let recent = base.join("4000000002-1-0123456789abcdef");
    let foreign = base.join("notes");
    for path in [&dead, &used, &locked, &recent, &foreign] {
        fs::create_dir(path).unwrap();
        fs::write(path.join("owner"), "").unwrap();
        fs::write(path.join("used"), "").unwrap();
    }
    let user = File::open(used.join("used")).unwrap();
    user.lock_shared().unwrap();
    let lock = File::open(locked.join("owner")).unwrap();
    lock.lock().unwrap();
    let all_but_recent = [&dead, &used, &locked, &foreign];
    all_but_recent.into_iter().for_each(|path| age(path));
    let next = OwnedSession::create_in(&base, uid).unwrap();
    assert!(!dead.exists());
    assert!(living.path().exists() && used.exists() && locked.exists() && foreign.exists());
    assert!(recent.exists(), "a program may be about to start there");
    drop(next);
    drop(user);
    drop(lock);
    // A concurrent test may have forked while the lock was open here: its child then holds the lock until it ends.
    let cleaned = || {
        [&used, &locked].into_iter().filter(|path| path.exists()).for_each(|path| age(path));
        let _last = OwnedSession::create_in(&base, uid).unwrap();
        !used.exists() && !locked.exists()
    };
    let start = Instant::now();
    while !cleaned() {
        assert!(start.elapsed() < Duration::from_secs(20), "leftovers stay");
        sleep(Duration::from_millis(20));
    }
    assert!(living.path().exists() && foreign.exists() && recent.exists());
}

/// A session found in use is given its full time again.
#[test]
fn a_session_in_use_is_young_afterwards() {
    let (_root, base, uid) = base();
    let _living = OwnedSession::create_in(&base, uid).unwrap();
    let used = base.join("4000000000-1-0123456789abcdef");
    fs::create_dir(&used).unwrap();
    fs::write(used.join("owner"), "").unwrap();
    fs::write(used.join("used"), "").unwrap();
    let user = File::open(used.join("used")).unwrap();
    user.lock_shared().unwrap();
    age(&used);
    drop(OwnedSession::create_in(&base, uid).unwrap());
    drop(user);
    drop(OwnedSession::create_in(&base, uid).unwrap());
    assert!(used.exists());
}

#[test]
fn sessions_are_directories_with_pages_or_an_owner() {
    let root = tempfile::tempdir().unwrap();
    let uid = rustix::process::getuid().as_raw();
    let base = root.path().join(format!("sluice-{uid}"));
    let demo = format!("{}-1-0123456789abcdef", u32::MAX);
    for folder in ["env-1", "empty", &demo, &format!("{demo}/tenant-a")] {
        fs::create_dir_all(base.join(folder)).unwrap();
    }
    for page in ["env-1/b.page", "env-1/a.page", "env-1/notes", &format!("{demo}/tenant-a/c.page")]
    {
        fs::write(base.join(page), "").unwrap();
    }
    symlink(base.join("env-1"), base.join("link")).unwrap();
    fs::create_dir_all(root.path().join(format!("sluice-{}/env-2", uid + 1))).unwrap();
    symlink(&base, root.path().join(format!("sluice-{}", uid + 3))).unwrap();
    let found = list_in(root.path(), None).unwrap().sessions;
    let names: Vec<_> = found.iter().map(|found| found.name.clone()).collect();
    assert_eq!(names, [format!("{demo}/tenant-a"), "env-1".to_owned()]);
    let pages = ["a.page", "b.page"].map(|page| base.join("env-1").join(page));
    assert_eq!((found[1].pages.as_slice(), found[1].owned), (pages.as_slice(), false));
    assert_eq!(list_in(root.path(), Some(uid + 2)).unwrap().sessions, []);
    assert_eq!(list_in(&root.path().join("absent"), None).unwrap().sessions, []);
}
