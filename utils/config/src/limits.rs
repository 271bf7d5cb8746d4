//! The settings for one device, and the resulting limits of its session.

use core::fmt;
use limits::named::Names;
use limits::request::{Device, Unused};
use limits::{GpuId, Limits, Request, RequestError, env};

/// Names of missing settings in errors.
pub(super) const NAMES: Names = Names {
    memory: env::MEMORY_LIMIT,
    real: env::MEMORY_REAL,
    share: env::COMPUTE_LIMIT,
    balance: env::POLICY,
};

/// A device with all names that a limit's key may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// Its UUID.
    pub uuid: GpuId,
    /// NVML's index, if known.
    pub host_index: Option<u32>,
    /// CUDA's index in the process, if known.
    pub visible_index: Option<u32>,
}

/// A variable that is overruled by another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overruled {
    /// The overruled variable.
    pub variable: String,
    /// The variable that applies.
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
    /// The requested limits.
    pub request: Request,
    /// Variables set for this device, with other values than those that apply.
    pub overruled: Vec<Overruled>,
    /// Variables whose key is an index that may be this device's, because the device's index is unknown. If not empty,
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
    /// The initial limits of a session with these settings, on a device of `total` bytes.
    ///
    /// # Errors
    /// A contradiction, or an unknown size that is needed.
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
