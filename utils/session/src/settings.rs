//! The settings of a session's owner, in a file of the session's directory. Written before the session's first process
//! starts.

use crate::directory;
use ::limits::GpuId;
use ::limits::session_name::told;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The file's name. Looked for beside any limiter, so it must be unique.
pub const FILE: &str = "sluice-session.json";
const VERSION: u32 = 1;
/// Upper bound for the file's length.
const MOST_BYTES: u64 = 1 << 20;

/// The settings of a session, whatever its processes' environments say.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct OwnerSettings {
    /// The variables that apply: limits of devices that have no page yet, the daemon, and the policy for failures of
    /// the limiter.
    pub variables: BTreeMap<String, String>,
    /// The only devices that the session may use; `None`: all.
    pub devices: Option<Vec<GpuId>>,
    /// The session's name for people.
    pub name: Option<String>,
    /// The command that it was created to run.
    pub command: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Written {
    version: u32,
    variables: BTreeMap<String, String>,
    devices: Option<Vec<GpuId>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    command: Option<String>,
}

/// The reason why a session's settings cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", told(path).display())]
pub struct SettingsError {
    path: PathBuf,
    problem: Problem,
}

#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("cannot write the settings of the session's owner: {0}")]
    Write(io::Error),
    #[error("cannot read the settings of the session's owner, so its limits are not known: {0}")]
    Read(io::Error),
    #[error("invalid settings of the session's owner, so its limits are not known: {0}")]
    Foreign(String),
}

impl SettingsError {
    /// Whether the file does not exist.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(&self.problem, Problem::Read(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

impl OwnerSettings {
    /// Writes the settings into a session's directory that has none yet.
    ///
    /// # Errors
    /// [`SettingsError`]
    pub fn write(&self, dir: &Path) -> Result<(), SettingsError> {
        let path = dir.join(FILE);
        let Self { variables, devices, name, command } = self.clone();
        let written = Written { version: VERSION, variables, devices, name, command };
        let made = serde_json::to_vec(&written).map_err(io::Error::other).and_then(|text| {
            if text.len() as u64 > MOST_BYTES {
                let reason =
                    format!("they have {} bytes; expected at most {MOST_BYTES}", text.len());
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
            }
            // Everyone who can enter the directory is a process of the session.
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o644).custom_flags(libc::O_NOFOLLOW);
            let mut file = options.open(&path)?;
            // The umask may have removed rights.
            file.set_permissions(fs::Permissions::from_mode(0o644))?;
            file.write_all(&text)
        });
        made.map_err(|error| SettingsError { path, problem: Problem::Write(error) })
    }

    /// Reads the settings of a session that has an owner.
    ///
    /// # Errors
    /// [`SettingsError`], also if there are no settings.
    pub fn of(dir: &Path) -> Result<Self, SettingsError> {
        let path = dir.join(FILE);
        let owner = fs::metadata(dir).map(|found| found.uid()).map_err(Problem::Read);
        let found = owner.and_then(|owner| read(owner, &path));
        found.map_err(|problem| SettingsError { path, problem })
    }

    /// Like [`Self::of`], if the file belongs to this user.
    ///
    /// # Errors
    /// [`SettingsError`]
    pub fn of_user(dir: &Path, uid: u32) -> Result<Self, SettingsError> {
        let path = dir.join(FILE);
        read(uid, &path).map_err(|problem| SettingsError { path, problem })
    }
}

fn read(owner: u32, path: &Path) -> Result<OwnerSettings, Problem> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
        .map_err(Problem::Read)?;
    let found = file.metadata().map_err(Problem::Read)?;
    if !found.is_file() || found.uid() != owner {
        return Err(Problem::Foreign(format!("it does not belong to user {owner}")));
    }
    let text = bounded(&file).map_err(Problem::Read)?;
    let written: Written =
        serde_json::from_slice(&text).map_err(|error| Problem::Foreign(error.to_string()))?;
    if written.version != VERSION {
        let version = written.version;
        return Err(Problem::Foreign(format!("its version is {version}; expected {VERSION}")));
    }
    let Written { variables, devices, name, command, .. } = written;
    Ok(OwnerSettings { variables, devices, name, command })
}

fn bounded(file: &File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

/// Whether a session's directory has an owner: it has an owner's name for sessions, or the owner's file. So a session
/// whose file, or whole directory, is gone still has one, and its limits are unknown.
#[must_use]
pub fn has_owner(dir: &Path) -> bool {
    directory::is_named_by_owner(dir) || fs::symlink_metadata(dir.join(FILE)).is_ok()
}

/// The session whose limiter is named in a value of `LD_PRELOAD`.
#[must_use]
pub fn preloaded_session(value: &OsStr) -> Option<&Path> {
    let entries = value.as_bytes().split(|byte| b": ".contains(byte));
    let mut folders = entries.filter_map(|entry| Path::new(OsStr::from_bytes(entry)).parent());
    folders.find(|folder| folder.is_absolute() && has_owner(folder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn settings() -> OwnerSettings {
        OwnerSettings {
            variables: [("CUDA_MEM_LIMIT".to_owned(), "1g".to_owned())].into(),
            devices: Some(vec![GpuId::from_bytes([7; 16])]),
            name: Some("train".to_owned()),
            command: Some("python train.py".to_owned()),
        }
    }

    #[test]
    fn they_come_back_as_they_were_written_and_are_written_once() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!has_owner(dir.path()));
        settings().write(dir.path()).unwrap();
        assert!(has_owner(dir.path()));
        assert_eq!(OwnerSettings::of(dir.path()).unwrap(), settings());
        assert!(OwnerSettings::default().write(dir.path()).is_err());
        assert_eq!(OwnerSettings::of(dir.path()).unwrap(), settings());
    }

    #[test]
    fn what_would_not_be_read_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let frame = serde_json::to_vec(&Written {
            version: VERSION,
            variables: [("A".to_owned(), String::new())].into(),
            devices: None,
            name: None,
            command: None,
        });
        let room = usize::try_from(MOST_BYTES).unwrap() - frame.unwrap().len();
        let of = |length| OwnerSettings {
            variables: [("A".to_owned(), "x".repeat(length))].into(),
            ..OwnerSettings::default()
        };
        let problem = of(room + 1).write(dir.path()).unwrap_err().to_string();
        assert!(problem.contains("1048577 bytes; expected at most 1048576"), "{problem}");
        assert!(!dir.path().join(FILE).exists());
        of(room).write(dir.path()).unwrap();
        assert_eq!(OwnerSettings::of(dir.path()).unwrap(), of(room));
    }

    #[test]
    fn what_is_not_an_owners_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let problem = || OwnerSettings::of(dir.path()).unwrap_err().to_string();
        assert!(problem().contains("cannot read"), "{}", problem());
        for wrong in ["", "{", "[]", r#"{"version":1}"#, r#"{"version":1,"variables":{"A":1}}"#] {
            fs::write(&path, wrong).unwrap();
            assert!(problem().contains("invalid settings"), "{wrong}: {}", problem());
        }
        fs::write(&path, r#"{"version":2,"variables":{},"devices":null}"#).unwrap();
        assert!(problem().contains("its version is 2"), "{}", problem());
        fs::remove_file(&path).unwrap();
        let elsewhere = dir.path().join("elsewhere");
        fs::write(&elsewhere, r#"{"version":1,"variables":{},"devices":null}"#).unwrap();
        symlink(&elsewhere, &path).unwrap();
        assert!(problem().contains("cannot read"), "{}", problem());
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(problem().contains("does not belong to user"), "{}", problem());
    }

    #[test]
    fn a_session_is_known_by_its_name_even_when_it_is_gone() {
        let gone = Path::new("/dev/shm/sluice-0/4711-1-0123456789abcdef");
        assert!(has_owner(gone));
        assert!(!has_owner(Path::new("/dev/shm/sluice-0/env-0123456789abcdef")));
        let preload = format!("/x/a.so:{}/libcuda_limiter.so /y/b.so", gone.display());
        assert_eq!(preloaded_session(preload.as_ref()), Some(gone));
        for other in ["", "/x/a.so:b.so", ":: :"] {
            assert_eq!(preloaded_session(other.as_ref()), None, "{other}");
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config { cases: 300, failure_persistence: None, ..Default::default() })]

        /// Any contents are either settings or an error.
        #[test]
        fn any_bytes_are_settings_or_an_error(
            at in 0_usize..200, byte: u8, cut in 0_usize..200, noise: Vec<u8>
        ) {
            let dir = tempfile::tempdir().unwrap();
            settings().write(dir.path()).unwrap();
            let path = dir.path().join(FILE);
            let mut text = fs::read(&path).unwrap();
            if let Some(place) = text.get_mut(at) {
                *place = byte;
            }
            text.truncate(text.len().saturating_sub(cut / 50));
            for written in [text, noise] {
                fs::write(&path, &written).unwrap();
                let _ = OwnerSettings::of(dir.path());
            }
        }
    }
}
