//! Writing and reading the state file, and files that are left alone.

use super::*;
use proptest::prelude::*;

/// Today's format, and a possible later one with additional and unreadable parts.
const NOW: &str = include_str!("../../tests/golden/state-1.json");
const LATER: &str = include_str!("../../tests/golden/state-1-with-more.json");

fn golden() -> Snapshot {
    read(NOW.as_bytes()).unwrap()
}

fn place() -> (tempfile::TempDir, StateFile) {
    let folder = tempfile::tempdir().unwrap();
    let file = StateFile::take(folder.path()).unwrap();
    (folder, file)
}

#[test]
fn what_is_written_is_the_golden() {
    let snapshot = golden();
    assert_eq!((snapshot.sessions.len(), snapshot.devices.len()), (2, 1));
    let mut expected: serde_json::Value = serde_json::from_str(NOW).unwrap();
    let mut written: serde_json::Value = serde_json::from_slice(&text(&snapshot).unwrap()).unwrap();
    for moment in [&mut expected, &mut written] {
        assert!(moment["written"].take().is_u64());
    }
    assert_eq!(written, expected);
}

#[test]
fn an_old_reader_understands_new_data_and_a_new_one_old_data() {
    // Unknown fields are ignored, and so are unreadable sessions and accounts.
    assert_eq!(read(LATER.as_bytes()).unwrap(), golden());
    // A file without state.
    assert_eq!(read(br#"{"version":1}"#).unwrap(), Snapshot::default());
    let first = br#"{"version":1,"node":{"sessions":[{"uid":7,"name":"a"}]}}"#;
    let session = read(first).unwrap().sessions.remove(0);
    assert_eq!((session.owner, session.devices.len()), (crate::Owner::user(7), 0));
}

#[test]
fn what_cannot_be_understood_is_refused_with_a_reason() {
    let reason = |text: &str| read(text.as_bytes()).unwrap_err().to_string();
    assert_eq!(reason(r#"{"version":2,"node":"all is new"}"#), "its version is 2; expected 1");
    for damaged in ["", "{", "[]", "null", r#"{"version":1,"node":7}"#, &NOW[..NOW.len() / 2]] {
        assert!(reason(damaged).starts_with("it is damaged: "), "{damaged}");
    }
}

#[test]
fn a_file_replaces_the_former_one_as_a_whole() {
    let (folder, file) = place();
    assert!(file.read().unwrap().is_none());
    fs::write(folder.path().join("hypervisor.json.new"), "left by a killed daemon").unwrap();
    file.write(&Snapshot::default()).unwrap();
    assert_eq!(file.read().unwrap(), Some(Snapshot::default()));
    file.write(&golden()).unwrap();
    assert_eq!(file.read().unwrap(), Some(golden()));
    let names: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    let mode = fs::metadata(file.path()).unwrap().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_write_that_fails_leaves_the_former_file() {
    let (folder, file) = place();
    file.write(&golden()).unwrap();
    // The new file's path is taken by something that cannot be removed as a file.
    let new = folder.path().join("hypervisor.json.new");
    fs::create_dir(&new).unwrap();
    assert!(file.write(&Snapshot::default()).is_err());
    assert_eq!(file.read().unwrap(), Some(golden()));
    fs::remove_dir(&new).unwrap();
    file.write(&Snapshot::default()).unwrap();
}

#[test]
fn damaged_files_are_kept_aside() {
    let (folder, file) = place();
    for round in 1..=11 {
        fs::write(file.path(), format!("damaged {round}")).unwrap();
        assert!(file.read().is_err());
        let aside = file.put_aside().unwrap();
        assert_eq!(fs::read_to_string(aside).unwrap(), format!("damaged {round}"));
        assert!(file.read().unwrap().is_none());
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1 + ASIDE as usize);
}

#[test]
fn what_is_no_file_of_one_s_own_is_not_read() {
    let (folder, file) = place();
    let elsewhere = folder.path().join("elsewhere");
    fs::write(&elsewhere, NOW).unwrap();
    std::os::unix::fs::symlink(&elsewhere, file.path()).unwrap();
    assert!(file.read().is_err());
    fs::remove_file(file.path()).unwrap();
    fs::create_dir(file.path()).unwrap();
    assert!(file.read().is_err());
    file.put_aside().unwrap();
    let long = File::create(file.path()).unwrap();
    long.set_len(LONGEST + 1).unwrap();
    let problem = file.read().unwrap_err().to_string();
    assert!(problem.contains("at most"), "{problem}");
}

#[test]
fn a_folder_has_one_daemon() {
    let (folder, file) = place();
    let second = StateFile::take(folder.path()).unwrap_err().to_string();
    assert_eq!(second, "another daemon keeps its state there; name another directory with --state");
    drop(file);
    StateFile::take(folder.path()).unwrap();
    let nowhere = folder.path().join("no/folder");
    assert!(StateFile::take(&nowhere).is_err() && !nowhere.exists());
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(text: Vec<u8>) {
        let _ = read(&text);
    }

    /// A file that was cut or changed anywhere.
    #[test]
    fn a_damaged_file_is_read_or_refused(at in 0..NOW.len(), byte: u8, cut: bool) {
        let mut text = NOW.as_bytes().to_vec();
        text[at] = byte;
        if cut {
            text.truncate(at);
        }
        let _ = read(&text);
    }
}
