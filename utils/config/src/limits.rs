//! What is set for one device, and the session's limits that follow from it.

use core::fmt;
use limits::named::Names;
use limits::request::{Device, Unused};
use limits::{GpuId, Limits, Request, RequestError, env};

/// The names of missing settings in errors.
pub(super) const NAMES: Names = Names {
    memory: env::MEMORY_LIMIT,
    real: env::MEMORY_REAL,
    share: env::COMPUTE_LIMIT,
    balance: env::POLICY,
};

/// A device, by all the names that a limit's key can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// Its UUID.
    pub uuid: GpuId,
    /// Its index as NVML counts, if known.
    pub host_index: Option<u32>,
    /// Its index as the program counts, if known.
    pub visible_index: Option<u32>,
}

/// A variable that was set but is overruled by another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overruled {
    /// The overruled variable.
    pub variable: String,
    /// The variable in force.
    pub by: String,
}

impl fmt::Display for Overruled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.variable, self.by)
    }
}

/// The settings for one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSettings {
    /// The limits that they ask for.
    pub request: Request,
    /// Set for this device, to another value than the one in force.
    pub overruled: Vec<Overruled>,
    /// Variables with an index as key that may be this device's: its index is unknown. If this is not empty,
    /// the request may be wrong and must not be used.
    pub unresolved: Vec<String>,
    /// A contradiction between settings. If there is one, the request must not be used.
    pub conflict: Option<RequestError>,
}

impl Default for DeviceSettings {
    fn default() -> Self {
        Self {
            request: Request::nothing(NAMES),
            overruled: Vec::new(),
            unresolved: Vec::new(),
            conflict: None,
        }
    }
}

impl DeviceSettings {
    /// The limits of a session that begins with these settings, on a device of `total` bytes.
    ///
    /// # Errors
    /// A contradiction, or a figure that is needed and unknown.
    pub fn session(&self, total: Option<u64>) -> Result<Limits, RequestError> {
        let device = Device { name: "the device", total };
        self.request.over(&Limits::NONE, device, Unused::Ignored)
    }
}

impl fmt::Display for DeviceSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.request.fmt(f)?;
        if !self.unresolved.is_empty() {
            let names = self.unresolved.join(", ");
            write!(f, ", undecided because the device's index is unknown: {names}")?;
        }
        match &self.conflict {
            Some(conflict) => write!(f, ", refused: {conflict}"),
            None => Ok(()),
        }
    }
}
