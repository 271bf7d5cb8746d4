//! The environment that turns a program into a member of a session.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use ::limits::{Request, env};

use super::devices::VisibleGpu;
use super::owner::{self, Label};
use super::{Error, limits};

/// All that a member of a session has to know.
#[derive(Debug, Clone)]
pub struct MemberEnvironment {
    /// The session's directory.
    pub session: PathBuf,
    /// What people know it by.
    pub label: Label,
    /// The names of the library to preload: see [`super::links::preloadable`].
    pub limiter: [PathBuf; 2],
    /// The directory with the simulated driver, if that is to be used.
    pub fake_driver: Option<PathBuf>,
    /// What it may take of each of `devices`.
    pub request: Request,
    /// The devices that the limits are for.
    pub devices: Vec<VisibleGpu>,
    /// Whether the program sees only `devices`.
    pub only_these: bool,
    /// The daemon's socket.
    pub daemon: Option<PathBuf>,
    /// Whether the user chose the daemon, or none. Then no other variable may name one.
    pub no_other_daemon: bool,
}

/// What the loader loads before a program's own libraries.
const PRELOAD: &str = "LD_PRELOAD";

/// Where programs are looked for without PATH, as by glibc.
pub(crate) const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The address of a daemon that listens by TCP, in the variables of vgpu.rs.
pub const DAEMON_BY_TCP: [&str; 2] = ["HYPERVISOR_IP", "HYPERVISOR_PORT"];

impl MemberEnvironment {
    /// The variables to set (`Some`) or to remove (`None`) in the environment that `current` reads.
    #[must_use]
    pub fn variables(
        &self,
        current: impl Fn(&str) -> Option<OsString>,
    ) -> Vec<(&'static str, Option<OsString>)> {
        let prepend = |name: &'static str, first: &OsStr| {
            (name, Some(prepended(first, current(name).as_deref())))
        };
        let [of_session, installed] = &self.limiter;
        let limiter = prepended(of_session.as_os_str(), Some(installed.as_os_str()));
        let mut variables = vec![
            (env::SESSION_DIR, Some(self.session.clone().into_os_string())),
            (env::DAEMON_SOCKET, self.daemon.clone().map(PathBuf::into_os_string)),
            (PRELOAD, Some(preloaded(&limiter, current(PRELOAD).unwrap_or_default()))),
            // The user's, and no program's.
            (env::TOKEN, None),
        ];
        if let Some(folder) = &self.fake_driver {
            variables.push(prepend("LD_LIBRARY_PATH", folder.as_os_str()));
            // Its `nvidia-smi` comes before the real one. An empty entry would be the current folder.
            let path = current("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
            variables.push(("PATH", Some(prepended(folder.as_os_str(), Some(&path)))));
        }
        if self.only_these {
            let uuids: Vec<_> = self.devices.iter().map(|device| device.uuid.to_string()).collect();
            variables.push(("CUDA_VISIBLE_DEVICES", Some(uuids.join(",").into())));
        }
        if self.no_other_daemon {
            variables.extend(DAEMON_BY_TCP.map(|name| (name, None)));
        }
        let limits = limits::variables(&self.request, &self.devices);
        variables.extend(limits.into_iter().map(|(name, value)| (name, value.map(Into::into))));
        variables
    }

    /// Writes down what holds in the session, whose program gets these variables on top of `current`.
    ///
    /// # Errors
    /// As for [`owner::decide`].
    pub fn decide(
        &self,
        current: impl IntoIterator<Item = (OsString, OsString)>,
        all: impl FnOnce() -> Vec<VisibleGpu>,
    ) -> Result<(), Error> {
        let mut variables: BTreeMap<OsString, OsString> = BTreeMap::new();
        for (name, value) in current {
            // The first of a name counts, as for `getenv`.
            variables.entry(name).or_insert(value);
        }
        for (name, value) in self.variables(|name| variables.get(OsStr::new(name)).cloned()) {
            match value {
                Some(value) => variables.insert(name.into(), value),
                None => variables.remove(OsStr::new(name)),
            };
        }
        owner::decide(&self.session, variables, self.label.clone(), &self.devices, all)
    }

    /// Gives `command` these variables, on top of the environment that `current` reads.
    pub fn apply(&self, command: &mut Command, current: impl Fn(&str) -> Option<OsString>) {
        for (name, value) in self.variables(current) {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
    }
}

/// Puts libraries back at the front of `LD_PRELOAD`, unless the first of them is there.
pub fn preload(command: &mut Command, libraries: &[PathBuf], current: Option<OsString>) {
    let current = current.unwrap_or_default();
    let entries: Vec<_> = current.as_bytes().split(|byte| b": ".contains(byte)).collect();
    if libraries.first().is_some_and(|first| !entries.contains(&first.as_os_str().as_bytes())) {
        let none = OsString::new();
        let own = libraries
            .iter()
            .rfold(none, |rest, library| prepended(library.as_os_str(), Some(&rest)));
        command.env(PRELOAD, preloaded(&own, current));
    }
}

/// `LD_PRELOAD` with `own` in front. Run-time libraries of sanitizers stay before it: they end a program in which they are
/// not the first.
fn preloaded(own: &OsStr, current: OsString) -> OsString {
    const SANITIZERS: [&[u8]; 6] =
        [b"libasan.", b"libhwasan.", b"liblsan.", b"libtsan.", b"libubsan.", b"libclang_rt."];
    let is_sanitizer = |entry: &&[u8]| {
        let name = entry.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        SANITIZERS.iter().any(|prefix| name.starts_with(prefix))
    };
    let entries = current.as_bytes().split(|byte| b": ".contains(byte));
    let (first, rest): (Vec<&[u8]>, Vec<&[u8]>) =
        entries.filter(|entry| !entry.is_empty()).partition(is_sanitizer);
    if first.is_empty() {
        return prepended(own, Some(&current));
    }
    let all: Vec<&[u8]> = first.into_iter().chain([own.as_bytes()]).chain(rest).collect();
    OsString::from_vec(all.join(&b':'))
}

/// `first:rest`. An empty `rest` adds no colon: an empty entry would mean the current directory.
fn prepended(first: &OsStr, rest: Option<&OsStr>) -> OsString {
    let mut value = first.to_owned();
    if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
        value.push(":");
        value.push(rest);
    }
    value
}

/// Whether the loader would read `path` as one entry of `LD_PRELOAD` or `LD_LIBRARY_PATH`. It
/// splits at colons, semicolons and spaces, and expands `$`.
#[must_use]
pub fn loader_can_name(path: &Path) -> bool {
    !path.as_os_str().as_bytes().iter().any(|byte| b":; \t\n$".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::super::cli::LimitArgs;
    use super::*;
    use ::limits::GpuId;

    fn environment() -> MemberEnvironment {
        MemberEnvironment {
            session: "/s".into(),
            label: Label::default(),
            limiter: ["/s/libcuda_limiter.so".into(), "/l/libcuda_limiter.so".into()],
            fake_driver: None,
            request: LimitArgs::default().request(),
            devices: vec![VisibleGpu {
                index: 0,
                uuid: GpuId::from_bytes([10; 16]),
                name: "Test".to_owned(),
                memory: 1,
            }],
            only_these: false,
            daemon: None,
            no_other_daemon: false,
        }
    }

    fn value(
        environment: &MemberEnvironment,
        name: &str,
        existing: &str,
    ) -> Option<Option<OsString>> {
        let current = |asked: &str| (asked == name).then(|| OsString::from(existing));
        environment.variables(current).into_iter().find(|v| v.0 == name).map(|v| v.1)
    }

    #[test]
    fn existing_preloads_are_kept_behind_the_limiter() {
        let plain = environment();
        let preload = |existing| value(&plain, "LD_PRELOAD", existing);
        let both = "/s/libcuda_limiter.so:/l/libcuda_limiter.so";
        assert_eq!(preload(""), Some(Some(both.into())));
        assert_eq!(preload("/x.so y.so"), Some(Some(format!("{both}:/x.so y.so").into())));
        let sanitizer = Some(Some(format!("/lib/libasan.so.8:{both}:/x.so:y.so").into()));
        assert_eq!(preload("/x.so /lib/libasan.so.8 y.so"), sanitizer);
        assert_eq!(value(&plain, "LD_LIBRARY_PATH", "/a"), None);
        assert_eq!(value(&plain, "CUDA_VISIBLE_DEVICES", "3"), None);
    }

    #[test]
    fn without_a_daemon_its_variable_is_removed() {
        assert_eq!(value(&environment(), env::DAEMON_SOCKET, "/old"), Some(None));
        assert_eq!(value(&environment(), "HYPERVISOR_IP", "10.0.0.1"), None);
        let chosen = MemberEnvironment { no_other_daemon: true, ..environment() };
        assert_eq!(value(&chosen, "HYPERVISOR_IP", "10.0.0.1"), Some(None));
    }

    #[test]
    fn names_that_the_loader_would_split() {
        assert!(loader_can_name(Path::new("/opt/sluice-1.0/libcuda_limiter.so")));
        for split in ["/a b/l.so", "/a:b/l.so", "/$HOME/l.so", "/a;b"] {
            assert!(!loader_can_name(Path::new(split)), "{split}");
        }
    }
}
