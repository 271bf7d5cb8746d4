//! `--gpus`, as docker users write it.

use std::str::FromStr;

use super::Error;
use super::devices::{self, VisibleGpu};

/// The devices that a program may see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuRequest {
    /// All, as without the option.
    All,
    /// The first so many.
    Count(usize),
    /// These, by index or UUID.
    These(Vec<String>),
}

impl FromStr for GpuRequest {
    type Err = String;

    /// `all`, `2`, `count=2`, `device=0,1`, `"device=GPU-…,1"`: docker wants quotes where there is a comma.
    fn from_str(text: &str) -> Result<Self, String> {
        let accepted =
            "expected 'all', a number from 1, 'count=N' or 'device=LIST' with indices or UUIDs";
        let plain = text.trim().replace(['"', '\''], "");
        let (key, value) = plain.split_once('=').unwrap_or(("count", &plain));
        match (key, value) {
            ("count", "all") => Ok(Self::All),
            ("count", number) => match number.parse() {
                Ok(count) if count > 0 => Ok(Self::Count(count)),
                _ => Err(accepted.to_owned()),
            },
            ("device", list) => {
                let names: Vec<String> =
                    list.split(',').map(|name| name.trim().to_owned()).collect();
                if let Some(option) = names.iter().find(|name| name.contains('=')) {
                    return Err(format!("'{option}' applies to containers only; {accepted}"));
                }
                if names.iter().any(String::is_empty) {
                    return Err(accepted.to_owned());
                }
                Ok(Self::These(names))
            }
            ("capabilities" | "driver" | "options", _) => {
                Err(format!("'{key}' applies to containers only; {accepted}"))
            }
            _ => Err(accepted.to_owned()),
        }
    }
}

impl GpuRequest {
    /// Whether the program sees these alone.
    #[must_use]
    pub fn is_a_choice(&self) -> bool {
        *self != Self::All
    }

    /// The devices meant.
    ///
    /// # Errors
    /// [`Error::Usage`]: they do not exist.
    pub fn select(&self, all: &[VisibleGpu]) -> Result<Vec<VisibleGpu>, Error> {
        match self {
            Self::All => Ok(all.to_vec()),
            Self::Count(count) => all.get(..*count).map(<[_]>::to_vec).ok_or_else(|| {
                Error::Usage(format!(
                    "--gpus {count}: expected at most {}, the number of GPUs here",
                    all.len()
                ))
            }),
            Self::These(names) => devices::select(all, names, "--gpus: device"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_docker_users_write_it() {
        let these =
            |names: &[&str]| GpuRequest::These(names.iter().map(|&name| name.into()).collect());
        for (text, meant) in [
            ("all", GpuRequest::All),
            ("count=all", GpuRequest::All),
            ("2", GpuRequest::Count(2)),
            ("count=3", GpuRequest::Count(3)),
            ("device=0", these(&["0"])),
            ("device=0,1", these(&["0", "1"])),
            ("\"device=0,GPU-5a1ce000\"", these(&["0", "GPU-5a1ce000"])),
            ("'\"device=1\"'", these(&["1"])),
        ] {
            assert_eq!(text.parse(), Ok(meant), "{text}");
        }
        for wrong in
            ["", "0", "none", "-1", "device=", "device=0,", "gpu=1", "device=0,capabilities=x"]
        {
            let error = wrong.parse::<GpuRequest>().unwrap_err();
            assert!(error.contains("expected 'all', a number"), "{wrong}: {error}");
        }
    }
}
