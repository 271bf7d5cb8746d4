//! The relevant variables at one moment.
//!
//! A program may change its environment, or the memory that holds it, at any time; its limits must not change with
//! that.

use super::error::OneLine;
use super::variables::{Meaning, VARIABLES, Variable};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// The devices that a program sees, and their order. The driver reads this; here it determines what a visible index
/// means.
pub const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
/// Like [`VISIBLE_DEVICES`]: the order of devices.
pub const DEVICE_ORDER: &str = "CUDA_DEVICE_ORDER";

/// Copies of the variables in the table, and of those that determine what a visible index means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot(Vec<(OsString, OsString)>);

impl Snapshot {
    /// Copies this process's current variables.
    #[must_use]
    pub fn take() -> Self {
        std::env::vars_os().collect()
    }

    /// All variables.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.0.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }

    /// The value of a variable.
    #[must_use]
    pub fn value(&self, name: &OsStr) -> Option<&OsStr> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// The same variables, with the log variables of `other`.
    #[must_use]
    pub fn with_log_of(self, other: &Self) -> Self {
        let logs = |name: &OsStr| {
            row(name.as_bytes())
                .is_some_and(|row| matches!(row.meaning, Meaning::Log | Meaning::LogFile))
        };
        let kept = self.0.into_iter().filter(|(name, _)| !logs(name));
        Self(kept.chain(other.0.iter().filter(|(name, _)| logs(name)).cloned()).collect())
    }

    /// Names of the variables that differ from `decided` and would matter: they limit a session, choose its daemon, or
    /// decide what happens on a failure. Each name fits on a line.
    #[must_use]
    pub fn differing(&self, decided: &Self) -> Vec<String> {
        self.iter()
            .filter(|(name, value)| {
                !value.is_empty()
                    && row(name.as_bytes()).is_some_and(|row| decides(row.meaning))
                    && decided.value(name) != Some(value)
            })
            .map(|(name, _)| OneLine(&name.to_string_lossy()).to_string())
            .collect()
    }
}

/// Keeps the relevant variables, and the first of equal names, like `getenv`.
impl FromIterator<(OsString, OsString)> for Snapshot {
    fn from_iter<T: IntoIterator<Item = (OsString, OsString)>>(variables: T) -> Self {
        let mut kept: Vec<(OsString, OsString)> = Vec::new();
        for (name, value) in variables {
            let bytes = name.as_bytes();
            let counts = [VISIBLE_DEVICES, DEVICE_ORDER].iter().any(|one| one.as_bytes() == bytes)
                || row(bytes).is_some_and(|row| row.meaning != Meaning::AddPath);
            if counts && !kept.iter().any(|(known, _)| *known == name) {
                kept.push((name, value));
            }
        }
        Self(kept)
    }
}

/// The table's row for a variable, with or without an index.
fn row(name: &[u8]) -> Option<&'static Variable> {
    VARIABLES.iter().find(|row| match name.strip_prefix(row.name.as_bytes()) {
        Some([]) => true,
        Some([b'_', ..]) => row.takes_suffix() || row.refuses_suffix(),
        _ => false,
    })
}

/// Whether variables of this meaning affect a session's limits.
const fn decides(meaning: Meaning) -> bool {
    match meaning {
        Meaning::MemoryLimit
        | Meaning::MemoryReal
        | Meaning::MemoryRatio
        | Meaning::MemoryOversold
        | Meaning::ComputeLimit
        | Meaning::ComputePolicy
        | Meaning::SoftLimit
        | Meaning::Weight
        | Meaning::Priority
        | Meaning::OnFailure
        | Meaning::Gates
        | Meaning::DaemonSocket
        | Meaning::DaemonHost
        | Meaning::DaemonPort
        | Meaning::CudaHooks
        | Meaning::NvmlHooks
        | Meaning::ControlDisabled => true,
        // The session's directory has a separate message; the others do not affect limits.
        Meaning::SessionDir
        | Meaning::PodUid
        | Meaning::PodNamespace
        | Meaning::PodName
        | Meaning::ContainerName
        | Meaning::Log
        | Meaning::LogFile
        | Meaning::Ignored
        | Meaning::AddPath => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(pairs: &[(&str, &str)]) -> Snapshot {
        pairs.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))).collect()
    }

    #[test]
    fn only_what_matters_is_kept() {
        let taken = snapshot(&[
            ("HOME", "/root"),
            ("CUDA_MEM_LIMIT", "1g"),
            ("CUDA_MEM_LIMIT_3", "2g"),
            ("CUDA_MEM_LIMIT_3", "3g"),
            ("CUDA_MEM_LIMITS", "4g"),
            ("SLUICE_POLICY_0", "none"),
            ("CUDA_VISIBLE_DEVICES", "1"),
            ("TF_PATH", "/x"),
        ]);
        let names: Vec<_> =
            taken.iter().map(|(name, value)| (name.to_str(), value.to_str())).collect();
        assert_eq!(
            names,
            [
                (Some("CUDA_MEM_LIMIT"), Some("1g")),
                (Some("CUDA_MEM_LIMIT_3"), Some("2g")),
                (Some("CUDA_VISIBLE_DEVICES"), Some("1")),
            ]
        );
    }

    #[test]
    fn what_differs_is_named_and_what_is_equal_or_absent_is_not() {
        let decided = snapshot(&[("CUDA_MEM_LIMIT_0", "1g"), ("SLUICE_POLICY", "fixed")]);
        let differing = |pairs: &[(&str, &str)]| snapshot(pairs).differing(&decided);
        assert!(differing(&[]).is_empty());
        assert!(differing(&[("CUDA_MEM_LIMIT_0", "1g"), ("SLUICE_POLICY", "")]).is_empty());
        assert!(differing(&[("SLUICE_LOG", "info"), ("POD_NAME", "x")]).is_empty());
        assert!(differing(&[("CUDA_VISIBLE_DEVICES", "1")]).is_empty());
        assert_eq!(
            differing(&[("CUDA_MEM_LIMIT_0", "2g"), ("SLUICE_POLICY", "none")]),
            ["CUDA_MEM_LIMIT_0", "SLUICE_POLICY"]
        );
        assert_eq!(differing(&[("CUDA_DISABLE_CONTROL", "true")]), ["CUDA_DISABLE_CONTROL"]);
        assert_eq!(differing(&[("CUDA_MEM_LIMIT_\n", "1g")]), ["CUDA_MEM_LIMIT_\\n"]);
    }
}
