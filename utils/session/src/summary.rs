//! What a session has and uses, on all of its devices.

use crate::directory::Found;
use crate::{PageError, Summary};
use limits::GpuId;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A session at a moment.
#[derive(Debug)]
pub struct SessionSummary {
    /// The devices that it has used, and what it has there.
    pub devices: Vec<(GpuId, Summary)>,
    /// Pages that are not valid, and why.
    pub damaged: Vec<(PathBuf, PageError)>,
}

impl SessionSummary {
    /// Reads a session's pages. Those that were removed since it was found are left out.
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

    /// Whether it has a living process.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.devices.iter().any(|(_, device)| !device.processes.is_empty())
    }
}

fn read(session: &Found, path: &Path) -> Result<(GpuId, Summary), PageError> {
    let page = session.open(path)?;
    Ok((page.device(), page.summary()?))
}
