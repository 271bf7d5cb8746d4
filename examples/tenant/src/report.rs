//! Results: one JSON object to a line on stdout.

use std::io::Write;

use serde::Serialize;

use crate::Failure;

/// Prints `result` as one line and flushes it, so that a reader at the other end of a pipe sees
/// it at once.
pub(crate) fn line(result: &impl Serialize) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, result).map_err(std::io::Error::from)?;
    out.write_all(b"\n")?;
    out.flush()?;
    Ok(())
}
