//! The messages as they are on the wire. `golden/*.json` is what is written today. A change of these
//! files is a change of the contract.

#![allow(clippy::unwrap_used, reason = "a test may stop where it fails")]

mod any_text;
mod samples;
mod schemas;
mod sockets;
mod today;

use std::path::Path;

/// The checked-in JSON, without the trailing newline.
fn golden(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let text = std::fs::read_to_string(folder.join(name)).unwrap();
    text.strip_suffix('\n').unwrap().to_owned()
}
