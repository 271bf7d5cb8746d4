//! Results: one JSON object per line on stdout.

use std::io::Write;

use serde::Serialize;

use crate::Failure;

/// Prints `result` as one line and flushes it, so that a reader of the pipe gets it at once.
pub(crate) fn line(result: &impl Serialize) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, result).map_err(std::io::Error::from)?;
    out.write_all(b"\n")?;
    out.flush()?;
    Ok(())
}
