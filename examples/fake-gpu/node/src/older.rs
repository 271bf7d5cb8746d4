//! Older drivers: versions, and missing functions.
//!
//! The lists are from `cargo xtask find-new-symbols --lacking`, for the drivers named in docs/compatibility.md.

use crate::config::ConfigError;
use std::collections::HashSet;

/// Variable with the branch of the driver to simulate.
pub const VARIABLE: &str = "SLUICE_FAKE_DRIVER";

/// A driver older than the default simulated one.
#[derive(Debug, PartialEq, Eq)]
pub struct Older {
    /// The driver's branch, which selects it.
    pub branch: &'static str,
    /// The driver's version.
    pub version: &'static str,
    /// The driver's CUDA version, such as 12040.
    pub cuda: i32,
    lacks: &'static str,
}

/// All older drivers.
pub static ALL: [Older; 3] = [
    Older {
        branch: "470",
        version: "470.256.02",
        cuda: 11040,
        lacks: include_str!("../drivers/470.txt"),
    },
    Older {
        branch: "535",
        version: "535.261.03",
        cuda: 12020,
        lacks: include_str!("../drivers/535.txt"),
    },
    Older {
        branch: "550",
        version: "550.163.01",
        cuda: 12040,
        lacks: include_str!("../drivers/550.txt"),
    },
];

/// The driver that a variable's value selects.
///
/// # Errors
/// The value selects no driver.
pub fn named(value: Option<String>) -> Result<Option<&'static Older>, ConfigError> {
    let Some(value) = value else { return Ok(None) };
    match ALL.iter().find(|older| older.branch == value) {
        Some(older) => Ok(Some(older)),
        None => Err(ConfigError {
            variable: VARIABLE,
            value,
            expected: "470, 535 or 550, or no such variable".to_owned(),
        }),
    }
}

/// The driver that this process's environment selects. An invalid value is reported when the node is opened.
#[must_use]
pub fn chosen() -> Option<&'static Older> {
    named(std::env::var(VARIABLE).ok()).unwrap_or_default()
}

impl Older {
    /// The missing functions.
    pub fn lacking(&self) -> impl Iterator<Item = &'static str> {
        self.lacks.lines()
    }

    /// Whether a function is missing.
    #[must_use]
    pub fn lacks(&self, symbol: &str) -> bool {
        self.lacking().any(|lacking| lacking == symbol)
    }

    /// A library's file without the names of the missing functions, so that neither the loader nor others find them.
    #[must_use]
    pub fn taken_out_of(&self, library: &[u8]) -> Vec<u8> {
        let lacking: HashSet<&[u8]> = self.lacking().map(str::as_bytes).collect();
        let mut taken = library.to_vec();
        let mut start = 0;
        // Names are between zero bytes. Changing the first letter changes the name.
        for part in library.split(|&byte| byte == 0) {
            if lacking.contains(part) {
                taken[start] = b'-';
            }
            start += part.len() + 1;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_driver_lacks_less() {
        for pair in ALL.windows(2) {
            assert!(pair[0].lacking().count() > pair[1].lacking().count());
            assert!(pair[0].cuda < pair[1].cuda);
        }
        let [first, .., last] = &ALL;
        assert!(first.lacks("cuLaunchKernelEx") && !last.lacks("cuLaunchKernelEx"));
        assert!(last.lacks("cuCtxCreate_v4") && !first.lacks("cuLaunchKernel"));
    }

    #[test]
    fn only_whole_names_are_taken_out() {
        let library =
            b"\0cuLaunchKernelEx\0cuLaunchKernel\0\0xcuLaunchKernelEx\0cuLaunchKernelEx_\0end";
        let taken =
            b"\0-uLaunchKernelEx\0cuLaunchKernel\0\0xcuLaunchKernelEx\0cuLaunchKernelEx_\0end";
        assert_eq!(ALL[0].taken_out_of(library), taken);
        assert_eq!(ALL[2].taken_out_of(library), library);
    }

    #[test]
    fn a_driver_is_named_by_its_branch() {
        assert_eq!(named(None), Ok(None));
        for older in &ALL {
            assert_eq!(named(Some(older.branch.to_owned())), Ok(Some(older)));
        }
        let error = named(Some("580".to_owned())).unwrap_err().to_string();
        assert!(error.contains("SLUICE_FAKE_DRIVER='580'") && error.contains("470"), "{error}");
    }
}
