//! `scripts/verified`: which checks passed, and on which inputs.

use crate::process;
use std::io::Write;
use std::process::{Command, Stdio};
use std::{fs, io};

/// A line for each check: its name, the digest of its inputs, and the date, separated by tabs.
const FILE: &str = "scripts/verified";

/// What `scripts/verified` says.
pub(super) struct Verified(Vec<[String; 3]>);

impl Verified {
    pub(super) fn read() -> Self {
        let text = fs::read_to_string(FILE).unwrap_or_default();
        let entries = text.lines().filter_map(|line| {
            let fields: Vec<String> = line.split('\t').map(str::to_owned).collect();
            fields.try_into().ok()
        });
        Self(entries.collect())
    }

    pub(super) fn write(&mut self) -> io::Result<()> {
        self.0.sort();
        let lines: Vec<String> = self.0.iter().map(|entry| entry.join("\t") + "\n").collect();
        if lines.is_empty() { Ok(()) } else { fs::write(FILE, lines.concat()) }
    }

    /// The date on which a check passed on just these inputs.
    pub(super) fn unchanged_since(&self, name: &str, inputs: &[&str]) -> Option<&str> {
        let [_, digest, date] = self.0.iter().find(|entry| entry[0] == name)?;
        (digest_of(inputs)? == *digest).then_some(date)
    }

    /// A check has passed.
    pub(super) fn note(&mut self, name: &str, inputs: &[&str]) {
        let date = process::output_of(Command::new("date").args(["--utc", "+%F"]));
        self.0.retain(|entry| entry[0] != name);
        if let (Some(digest), Some(date)) = (digest_of(inputs), date) {
            self.0.push([name.to_owned(), digest, date]);
        }
    }
}

/// A digest of files as they are committed. None where one has a change that is not, or git does not know them.
fn digest_of(inputs: &[&str]) -> Option<String> {
    let git = |arguments: &[&str]| {
        process::output_of(Command::new("git").args(arguments).arg("--").args(inputs))
    };
    let files = git(&["ls-files", "--stage"]).filter(|files| !files.is_empty())?;
    if !git(&["status", "--porcelain"])?.is_empty() {
        return None;
    }
    let mut sum =
        Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
    sum.stdin.take()?.write_all(files.as_bytes()).ok()?;
    let sum = sum.wait_with_output().ok()?;
    Some(String::from_utf8_lossy(&sum.stdout).split_whitespace().next()?.to_owned())
}
