//! `sluice status`

mod report;
mod view;

use std::io::{self, Write};

use session::directory;

use super::cli::StatusArgs;
use super::{Error, say};
use view::View;

/// Lists the sessions.
///
/// # Errors
/// [`Error::Directory`] if this user's sessions cannot be read.
pub fn run(arguments: &StatusArgs) -> Result<u8, Error> {
    let listing = directory::list()?;
    listing.left_out.iter().for_each(|left_out| say(left_out));
    let report = report::report(&listing.sessions, arguments.all, arguments.json);
    let text = if arguments.json {
        serde_json::to_string(&report)
            .map_err(|e| Error::system("cannot write JSON", io::Error::other(e)))?
            + "\n"
    } else {
        View(&report).to_string()
    };
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::system("cannot write to standard output", e))
        }
        _ => Ok(0),
    }
}
