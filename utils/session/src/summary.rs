//! A summary of a session on all its devices.

use crate::directory::Found;
use crate::{PageError, Summary};
use limits::GpuId;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A session at one moment.
#[derive(Debug)]
pub struct SessionSummary {
    /// The used devices, with the session's summary on each.
    pub devices: Vec<(GpuId, Summary)>,
    /// Invalid pages, with the reasons.
    pub damaged: Vec<(PathBuf, PageError)>,
}

impl SessionSummary {
    /// Reads a session's pages. Pages removed since the session was found are left out.
    #[must_use]
    pub fn of(session: &Found) -> Self {
        let mut summary = Self { devices: Vec::new(), damaged: Vec::new() };
        for path in &session.pages {
            match read(session, path) {
                Ok(device) => summary.devices.push(device),
                Err(PageError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {}
                Err(error) => summary.damaged.push((path.clone(), error)),
            }
        }
        summary
    }

    /// Whether the session has a living process.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.devices.iter().any(|(_, device)| !device.processes.is_empty())
    }
}

fn read(session: &Found, path: &Path) -> Result<(GpuId, Summary), PageError> {
    let page = session.open(path)?;
    Ok((page.device(), page.summary()?))
}
