//! How often a process asked for figures of memory, for tests that count.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::OnceLock;

/// Names a file that gets one byte for each question.
const FILE: &str = "SLUICE_FAKE_ASKED";
/// NVML was asked for processes.
pub const PROCESSES: u8 = b'l';
/// The driver was asked for a device's free memory.
pub const FREE_MEMORY: u8 = b'i';

/// Notes a question, if the process is told to.
pub fn note(question: u8) {
    static TO: OnceLock<Option<File>> = OnceLock::new();
    let open = || OpenOptions::new().create(true).append(true).open(std::env::var_os(FILE)?).ok();
    if let Some(mut file) = TO.get_or_init(open).as_ref() {
        // A count that cannot be written is a test that fails.
        let _ = file.write_all(&[question]);
    }
}
