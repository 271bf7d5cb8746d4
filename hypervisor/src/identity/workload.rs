//! The container, pod and systemd unit of a process, from its cgroup: `/proc/PID/cgroup` (cgroups(7)).
//!
//! The creator of a cgroup chooses its name, and a container may create cgroups inside its own. So the outermost
//! container of a path counts, and containers of a user's own service manager are marked with that user.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

/// What a process's cgroup shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// The container; `None`: the process runs on the host, or in an unknown kind of container.
    pub container: Option<Container>,
    /// The pod, if any.
    pub pod: Option<PodUid>,
    /// The innermost systemd unit around the container or process: a service or scope, else a slice.
    pub unit: Option<String>,
}

/// A container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Container {
    /// The container's runtime.
    pub runtime: Runtime,
    /// Its id.
    pub id: ContainerId,
    /// The user whose service manager created the container, for a rootless one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
}

/// A container runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Runtime {
    /// Docker.
    Docker,
    /// containerd, used by a kubelet or nerdctl.
    Containerd,
    /// CRI-O.
    CriO,
    /// Podman.
    Podman,
    /// The path contains only the id, as with the cgroupfs driver.
    Unnamed,
}

impl Runtime {
    const NAMES: [(Self, &'static str); 5] = [
        (Self::Docker, "docker"),
        (Self::Containerd, "containerd"),
        (Self::CriO, "cri-o"),
        (Self::Podman, "podman"),
        (Self::Unnamed, "unnamed"),
    ];
}

impl fmt::Display for Runtime {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(runtime, _)| runtime == self);
        out.write_str(name.map_or("", |(_, name)| name))
    }
}

impl FromStr for Runtime {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        let found = Self::NAMES.iter().find(|(_, name)| *name == text);
        found.map(|(runtime, _)| *runtime).ok_or(NotAnId { what: "runtime", accepted: NAMED })
    }
}

const NAMED: &str = "docker, containerd, cri-o, podman or unnamed";

/// A container's id: 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContainerId([u8; 32]);

/// A pod's UID: 32 hexadecimal digits. A static pod's UID is a hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PodUid([u8; 16]);

/// The text is not an id of the expected kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a {what}; expected {accepted}")]
pub struct NotAnId {
    what: &'static str,
    accepted: &'static str,
}

impl FromStr for ContainerId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        let not = NotAnId { what: "container's id", accepted: "one of 64 hexadecimal digits" };
        hex(text.bytes()).map(Self).ok_or(not)
    }
}

impl FromStr for PodUid {
    type Err = NotAnId;

    /// With `-`, with `_` (in unit names), or without separators.
    fn from_str(text: &str) -> Result<Self, NotAnId> {
        let not = NotAnId { what: "pod's UID", accepted: "one of 32 hexadecimal digits" };
        hex(text.bytes().filter(|byte| !matches!(byte, b'-' | b'_'))).map(Self).ok_or(not)
    }
}

/// Serializes the type as its text.
macro_rules! by_text {
    ($($type:ty),*) => {$(
        impl TryFrom<String> for $type {
            type Error = NotAnId;

            fn try_from(text: String) -> Result<Self, NotAnId> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }
    )*};
}

by_text!(Runtime, ContainerId, PodUid);

/// Parses exactly `N` bytes of lower-case hexadecimal digits.
fn hex<const N: usize>(digits: impl Iterator<Item = u8>) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let mut count = 0;
    for digit in digits {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        let byte = bytes.get_mut(count / 2)?;
        *byte = *byte << 4 | value;
        count += 1;
    }
    (count == 2 * N).then_some(bytes)
}

impl fmt::Display for ContainerId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(out, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for ContainerId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl fmt::Debug for PodUid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl Workload {
    /// Parses `/proc/PID/cgroup`: one line per hierarchy, `number:controllers:path`. Precedence: the unified hierarchy
    /// (version 2), systemd's own (version 1), then the others. The first path with a container counts, else the first
    /// with a pod, else the first with a unit.
    #[must_use]
    pub fn of_cgroup(file: &[u8]) -> Self {
        let mut lines: Vec<(u8, &[u8])> =
            file.split(|&byte| byte == b'\n').filter_map(path).collect();
        lines.sort_by_key(|(rank, _)| *rank);
        let mut best = Self::default();
        for (_, path) in lines {
            let found = Self::of_path(path);
            if found.detail() > best.detail() {
                best = found;
            }
        }
        best
    }

    fn detail(&self) -> u8 {
        match self {
            Self { container: Some(_), .. } => 3,
            Self { pod: Some(_), .. } => 2,
            Self { unit: Some(_), .. } => 1,
            _ => 0,
        }
    }

    /// Parses a path, which begins with `/../..` if it leads out of the cgroup namespace's root.
    fn of_path(path: &[u8]) -> Self {
        let mut found = Self::default();
        let (mut user, mut parent, mut is_slice) = (None, "", true);
        for segment in path.split(|&byte| byte == b'/') {
            let Ok(segment) = str::from_utf8(segment) else { continue };
            if let Some(number) = segment.strip_prefix("user@")
                && let Some(number) = number.strip_suffix(".service")
            {
                user = user.or(number.parse().ok());
            }
            if let Some((slice, rest)) = segment.split_once(".slice:") {
                // systemd's notation `slice:prefix:name` as one directory, created without systemd.
                found.pod = found.pod.or(pod_of_slice(slice));
                if let Some((prefix, id)) = rest.split_once(':')
                    && let Ok(id) = id.parse()
                {
                    let runtime = PREFIXES.iter().find(|(name, _)| *name == prefix);
                    let runtime = runtime.map_or(Runtime::Unnamed, |(_, runtime)| *runtime);
                    found.container = Some(Container { runtime, id, user });
                }
            } else {
                let slice = segment.strip_suffix(".slice");
                let pod = slice.and_then(pod_of_slice);
                found.pod = found.pod.or(pod).or_else(|| segment.strip_prefix("pod")?.parse().ok());
                let unit = segment.ends_with(".service") || segment.ends_with(".scope");
                if unit || slice.is_some() && is_slice {
                    found.unit = Some(segment.to_owned());
                    is_slice = !unit;
                }
                found.container =
                    container(segment, parent).map(|(runtime, id)| Container { runtime, id, user });
            }
            if found.container.is_some() {
                break;
            }
            parent = segment;
        }
        // A user's own service manager can give a cgroup any name.
        if user.is_some() {
            found.pod = None;
        }
        found
    }
}

/// Whether a cgroup lies beside that of this process, as its own cgroup namespace shows it.
pub(super) fn is_beside(file: &[u8]) -> bool {
    let is_it = |line: &[u8]| {
        let up = path(line).and_then(|(_, path)| path.strip_prefix(b"/../"));
        up.is_some_and(|name| !name.is_empty() && !name.starts_with(b".."))
    };
    file.split(|&byte| byte == b'\n').any(is_it)
}

/// Path and precedence of a line.
fn path(line: &[u8]) -> Option<(u8, &[u8])> {
    let mut parts = line.splitn(3, |&byte| byte == b':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    // A process may outlive its cgroup.
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    let rank = match (number, controllers) {
        (b"0", b"") => 0,
        (_, b"name=systemd") => 1,
        _ => 2,
    };
    Some((rank, path))
}

/// The UID in a pod's slice, `kubepods-burstable-podUID`, with `_` in the UID and possibly a longer prefix.
fn pod_of_slice(slice: &str) -> Option<PodUid> {
    let (before, uid) = slice.rsplit_once("-pod")?;
    if before.contains("kubepods") { uid.parse().ok() } else { None }
}

/// Prefixes of container ids, by runtime.
const PREFIXES: [(&str, Runtime); 5] = [
    ("docker", Runtime::Docker),
    ("cri-containerd", Runtime::Containerd),
    ("nerdctl", Runtime::Containerd),
    ("crio", Runtime::CriO),
    ("libpod", Runtime::Podman),
];

/// The container of a path's segment: `docker-ID.scope` (systemd driver), or without `.scope`, or the bare id (cgroupfs
/// driver). A container's monitor (`crio-conmon-ID.scope`) is not a container.
fn container(segment: &str, parent: &str) -> Option<(Runtime, ContainerId)> {
    let name = segment.strip_suffix(".scope").unwrap_or(segment);
    for (prefix, runtime) in PREFIXES {
        let id = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('-'));
        if let Some(id) = id.and_then(|id| id.parse().ok()) {
            return Some((runtime, id));
        }
    }
    let runtime = if parent == "docker" { Runtime::Docker } else { Runtime::Unnamed };
    Some((runtime, segment.parse().ok()?))
}
