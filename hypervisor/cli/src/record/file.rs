//! Recordings as files: a line of JSON for each sample (docs/api/record.schema.json).

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use protocol::record::{Sample, VERSION};
use serde::Deserialize;

/// The longest line that is read. One of 1,000 sessions has a megabyte.
const LONGEST: u64 = 64 << 20;
/// The most samples that are read: a day at one a second.
const MOST: usize = 100_000;

/// What is wrong with a recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// There is something of that name.
    #[error("{} exists and would be overwritten; name another file", .0.display())]
    Exists(PathBuf),
    /// The system refused.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was wanted.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A line that is no sample.
    #[error("{}, line {line}: {problem}; expected a line that 'sluice record' wrote", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A line of a version that is not known.
    #[error("{}, line {line}: format version {found}; expected 1 to {VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// Its version.
        found: u32,
    },
    /// No sample.
    #[error("{} has no samples; expected a file that 'sluice record' wrote", .0.display())]
    Empty(PathBuf),
    /// Too many samples.
    #[error("{} has more than {MOST} samples; split it into shorter files", .0.display())]
    Long(PathBuf),
}

/// Writes a recording.
#[derive(Debug)]
pub(crate) struct Recorder {
    file: File,
    path: PathBuf,
    rolls: Option<Rolls>,
}

/// When a recording begins anew.
#[derive(Debug)]
struct Rolls {
    keep: Duration,
    /// [`Sample::clock_us`] of the file's first sample.
    began_us: Option<u64>,
}

impl Recorder {
    /// A new file.
    ///
    /// # Errors
    /// [`RecordError::Exists`], [`RecordError::Io`]
    pub(crate) fn create(path: &Path) -> Result<Self, RecordError> {
        match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(file) => Ok(Self { file, path: path.to_owned(), rolls: None }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(RecordError::Exists(path.to_owned()))
            }
            Err(source) => {
                Err(RecordError::Io { what: "cannot make", path: path.to_owned(), source })
            }
        }
    }

    /// A recording without an end that keeps the last `keep` at least, and twice of it at most.
    ///
    /// # Errors
    /// [`RecordError::Io`]
    pub(crate) fn rolling(path: &Path, keep: Duration) -> Result<Self, RecordError> {
        set_aside(path)?;
        Ok(Self { rolls: Some(Rolls { keep, began_us: None }), ..Self::create(path)? })
    }

    /// Writes a sample in one piece: who reads along sees whole lines.
    ///
    /// # Errors
    /// [`RecordError::Io`]
    pub(crate) fn write(&mut self, sample: &Sample) -> Result<(), RecordError> {
        if let Some(Rolls { keep, began_us }) = &mut self.rolls {
            let lasts = sample.clock_us.saturating_sub(*began_us.get_or_insert(sample.clock_us));
            if Duration::from_micros(lasts) >= *keep {
                *self = Self::rolling(&self.path, *keep)?;
                return self.write(sample);
            }
        }
        let line = serde_json::to_string(sample).map_err(io::Error::other);
        let written = line.and_then(|line| self.file.write_all((line + "\n").as_bytes()));
        written.map_err(|source| RecordError::Io {
            what: "cannot write to",
            path: self.path.clone(),
            source,
        })
    }
}

/// Renames FILE to FILE.1, if it is there.
fn set_aside(path: &Path) -> Result<(), RecordError> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".1");
    match fs::rename(path, &aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(RecordError::Io { what: "cannot set aside", path: path.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}

/// All samples of a recording. Its last line may be cut short, where its writer was ended.
///
/// # Errors
/// [`RecordError`]
pub(crate) fn read(path: &Path) -> Result<Vec<Sample>, RecordError> {
    let io = |what| move |source| RecordError::Io { what, path: path.to_owned(), source };
    let file = File::open(path).map_err(io("cannot open"))?;
    let mut reader = BufReader::new(file);
    let mut samples = Vec::new();
    for number in 1_usize.. {
        let mut line = Vec::new();
        let length = reader.by_ref().take(LONGEST).read_until(b'\n', &mut line);
        if length.map_err(io("cannot read"))? == 0 {
            break;
        }
        let is_whole = line.ends_with(b"\n");
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match parse(&line) {
            Ok(sample) => samples.push(sample),
            Err(_) if !is_whole && !samples.is_empty() => break,
            Err(Fault::Version(found)) => {
                return Err(RecordError::Version { path: path.to_owned(), line: number, found });
            }
            Err(Fault::Text(problem)) => {
                return Err(RecordError::Line { path: path.to_owned(), line: number, problem });
            }
        }
        if samples.len() > MOST {
            return Err(RecordError::Long(path.to_owned()));
        }
    }
    if samples.is_empty() { Err(RecordError::Empty(path.to_owned())) } else { Ok(samples) }
}

enum Fault {
    Version(u32),
    Text(String),
}

fn parse(line: &[u8]) -> Result<Sample, Fault> {
    #[derive(Deserialize)]
    struct Head {
        version: u32,
    }
    let text = |error: serde_json::Error| Fault::Text(error.to_string());
    let Head { version } = serde_json::from_slice(line).map_err(text)?;
    if !(1..=VERSION).contains(&version) {
        return Err(Fault::Version(version));
    }
    serde_json::from_slice(line).map_err(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::tests::{compute, contained, memory, sample, session};

    fn lines() -> Vec<Sample> {
        let one = |second| {
            let train = session("train", compute(50, second * 1000, 0), memory(1, 2));
            let mut sample = sample(second, vec![train]);
            sample.status.elsewhere.push(contained("env-1"));
            sample
        };
        (1..4).map(one).collect()
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        let mut recorder = Recorder::create(&path).unwrap();
        lines().iter().for_each(|sample| recorder.write(sample).unwrap());
        assert_eq!(read(&path).unwrap(), lines());
        let again = Recorder::create(&path).unwrap_err().to_string();
        assert!(again.contains("exists") && again.contains("another file"), "{again}");
        // Its writer was killed.
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() - 10]).unwrap();
        assert_eq!(read(&path).unwrap(), lines()[..2]);
    }

    #[test]
    fn a_rolling_recording_keeps_the_last_samples_in_two_files() {
        let folder = tempfile::tempdir().unwrap();
        let [path, aside] = ["run.jsonl", "run.jsonl.1"].map(|name| folder.path().join(name));
        fs::write(&path, "of an earlier run\n").unwrap();
        let one = |second| sample(second, vec![session("train", compute(50, 0, 0), memory(1, 2))]);
        let mut recorder = Recorder::rolling(&path, Duration::from_secs(3)).unwrap();
        assert_eq!(fs::read_to_string(&aside).unwrap(), "of an earlier run\n");
        (1..=8).for_each(|second| recorder.write(&one(second)).unwrap());
        assert_eq!(read(&aside).unwrap(), [4, 5, 6].map(one));
        assert_eq!(read(&path).unwrap(), [7, 8].map(one));
    }

    #[test]
    fn what_is_no_recording_is_an_error_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        let good = serde_json::to_string(&lines()[0]).unwrap();
        let error = |text: &str| {
            fs::write(&path, text).unwrap();
            read(&path).unwrap_err().to_string()
        };
        assert!(error("").contains("no samples"));
        assert!(error("\n  \n").contains("no samples"));
        assert!(error(&format!("{good}\nhello\n{good}\n")).contains("line 2: "));
        assert!(error("{\"version\":1}\n").contains("line 1: "));
        let later = good.replacen("\"version\":1", "\"version\":2", 1);
        assert!(error(&format!("{later}\n")).contains("format version 2; expected 1 to 1"));
        // A later writer's fields are left alone.
        fs::write(&path, good.replacen('{', "{\"new\":3,", 1)).unwrap();
        assert_eq!(read(&path).unwrap(), lines()[..1]);
        let missing = read(&folder.path().join("none")).unwrap_err().to_string();
        assert!(missing.contains("cannot open"), "{missing}");
    }
}
