//! Identity of callers: the trait, and the default by uid and cgroup.

mod workload;
#[cfg(test)]
mod workload_tests;

use core::fmt;
use std::fs::File;
use std::io::{self, Read};

use http_bidir_comm::server::{ApiError, Peer};
use poem::http::StatusCode;
use serde::{Deserialize, Serialize};
use session::process::ProcessIdentity;

pub use self::workload::{Container, ContainerId, NotAnId, PodUid, Runtime, Workload};

/// Identifies the process at the other end of a connection, and its owner. Called once per connection, in a thread that
/// also serves others: it must not block.
pub trait Identity: fmt::Debug + Send + Sync {
    /// Identifies the process that the kernel names. If the process ends meanwhile, the result is discarded.
    ///
    /// # Errors
    /// [`Unidentified`]: the connection's calls are refused.
    fn caller(&self, peer: Peer) -> Result<Caller, Unidentified>;
}

/// A calling process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Process id in the daemon's pid namespace.
    pub pid: i32,
    /// Start time in clock ticks since boot, if known; distinguishes the process from a later one with the same id.
    pub started: Option<u64>,
    /// The owner on whose behalf the process calls.
    pub owner: Owner,
    /// The systemd unit that the process runs in.
    pub unit: Option<String>,
}

impl Caller {
    /// A process without start time and unit.
    #[must_use]
    pub const fn new(pid: i32, owner: Owner) -> Self {
        Self { pid, started: None, owner, unit: None }
    }

    /// Whether the process is still running, and its id not reused.
    pub(crate) fn is_present(&self) -> bool {
        let Some(start_time) = self.started else { return true };
        ProcessIdentity { pid: self.pid.unsigned_abs(), start_time }.is_running()
    }
}

/// Owner of sessions. A process of another owner can neither join such a session by name nor see it: sessions with the
/// same name and user in two containers are two sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// The user id that the kernel reports. Quotas of connections, processes and sessions are per user.
    pub uid: u32,
    /// The pod, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodUid>,
    /// The container, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
}

/// The level at which an overcommitted device is divided first: user, pod or container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Party {
    User(u32),
    Pod(PodUid),
    Container(ContainerId),
}

impl Owner {
    /// The owner for a user's processes outside containers.
    #[must_use]
    pub const fn user(uid: u32) -> Self {
        Self { uid, pod: None, container: None }
    }

    /// The owner for a user's processes in a workload.
    #[must_use]
    pub const fn within(uid: u32, workload: &Workload) -> Self {
        Self { uid, pod: workload.pod, container: workload.container }
    }

    /// Whether this owner sees all sessions: root and the daemon's own user do, on the node itself and in the daemon's
    /// own container.
    pub(crate) fn sees_all(&self, daemon: &Self) -> bool {
        let on_node = (self.pod, self.container) == (None, None);
        let beside = (self.pod, self.container) == (daemon.pod, daemon.container);
        (on_node || beside) && (self.uid == 0 || self.uid == daemon.uid)
    }

    /// The party. A user's own (rootless) containers all belong to that user's party, however many there are.
    pub(crate) fn party(&self) -> Party {
        match (self.container, self.pod) {
            (Some(Container { user: Some(user), .. }), _) => Party::User(user),
            (_, Some(pod)) => Party::Pod(pod),
            (Some(container), None) => Party::Container(container.id),
            (None, None) => Party::User(self.uid),
        }
    }
}

/// The caller could not be identified.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("process {pid} cannot be identified: {reason}")]
pub struct Unidentified {
    /// Process id of the caller.
    pub pid: i32,
    /// Why.
    pub reason: String,
}

impl From<Unidentified> for ApiError {
    fn from(unidentified: Unidentified) -> Self {
        ApiError::new(StatusCode::FORBIDDEN, unidentified.to_string())
    }
}

/// Identifies a process by its user, from the kernel, and its container and pod, from its cgroup.
#[derive(Clone, Copy, Debug)]
pub struct KernelIdentity {
    /// Whether `/proc` shows the daemon's own pid namespace. If not, ids in `/proc` denote other processes, and a
    /// caller is known only by its user.
    proc_is_ours: bool,
    /// This process.
    own: Owner,
    /// Whether it runs in a pod: kubelets tell each container so.
    in_pod: bool,
}

impl Default for KernelIdentity {
    fn default() -> Self {
        let proc_is_ours = ProcessIdentity::own().start_time != 0;
        let file = read_cgroup("self").ok().filter(|_| proc_is_ours).unwrap_or_default();
        let uid = rustix::process::geteuid().as_raw();
        Self {
            proc_is_ours,
            own: Owner::within(uid, &Workload::of_cgroup(&file)),
            in_pod: std::env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
        }
    }
}

impl KernelIdentity {
    /// The owner that this process itself is.
    pub(crate) const fn own(&self) -> Owner {
        self.own
    }

    /// Whose a process of this user and with this cgroup is. Containers of the daemon's own pod count as the daemon's: the node
    /// agent is one.
    fn owner(&self, uid: u32, workload: &Workload, file: &[u8]) -> Owner {
        let is_same_pod = workload.pod.is_some() && workload.pod == self.own.pod;
        let is_beside = self.in_pod && self.own.pod.is_none() && workload::is_beside(file);
        match is_same_pod || is_beside {
            true => Owner { uid, ..self.own },
            false => Owner::within(uid, workload),
        }
    }
}

impl Identity for KernelIdentity {
    fn caller(&self, peer: Peer) -> Result<Caller, Unidentified> {
        let Peer { pid, uid } = peer;
        if !self.proc_is_ours {
            return Ok(Caller::new(pid, Owner::user(uid)));
        }
        let not = |reason: String| Unidentified { pid, reason };
        let Some(known) = ProcessIdentity::of(pid.unsigned_abs()) else {
            return Err(not("it has ended".to_owned()));
        };
        let file = read_cgroup(pid).map_err(|error| not(format!("its cgroup: {error}")))?;
        let workload = Workload::of_cgroup(&file);
        let owner = self.owner(uid, &workload, &file);
        Ok(Caller { pid, started: Some(known.start_time), owner, unit: workload.unit })
    }
}

/// Longest part of `/proc/PID/cgroup` that is read. A path has up to 4 KiB, and there are about 14 hierarchies.
const CGROUP_LIMIT: u64 = 64 * 1024;

/// A kernel without cgroups has no such file for any process.
fn read_cgroup(pid: impl fmt::Display) -> io::Result<Vec<u8>> {
    let file = match File::open(format!("/proc/{pid}/cgroup")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !has_cgroups() => {
            return Ok(Vec::new());
        }
        other => other?,
    };
    let mut text = Vec::new();
    file.take(CGROUP_LIMIT).read_to_end(&mut text)?;
    Ok(text)
}

fn has_cgroups() -> bool {
    std::fs::exists("/proc/self/cgroup").unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(digit: &str, user: Option<u32>) -> Option<Container> {
        let id = digit.repeat(64).parse().unwrap();
        Some(Container { runtime: Runtime::Docker, id, user })
    }

    #[test]
    fn the_kernel_names_this_process() {
        let (pid, uid) = (std::process::id().cast_signed(), rustix::process::geteuid().as_raw());
        let identity = KernelIdentity::default();
        let caller = identity.caller(Peer { pid, uid }).unwrap();
        assert_eq!((caller.pid, caller.owner), (pid, identity.own()));
        assert!(caller.is_present());
        let other = Caller { started: caller.started.map(|start| start + 1), ..caller };
        assert!(!other.is_present());
        let gone = identity.caller(Peer { pid: i32::MAX, uid }).unwrap_err().to_string();
        assert_eq!(gone, format!("process {} cannot be identified: it has ended", i32::MAX));
    }

    #[test]
    fn root_in_a_container_does_not_see_all() {
        let (daemon, root) = (Owner::user(7), Owner::user(0));
        assert!(root.sees_all(&daemon) && daemon.sees_all(&daemon));
        assert!(!Owner::user(8).sees_all(&daemon));
        let inside = Owner { container: container("a", None), ..root };
        assert!(!inside.sees_all(&daemon));
        // A daemon in a container.
        let beside = Owner { uid: 7, ..inside };
        assert!(inside.sees_all(&beside) && root.sees_all(&beside));
        let next = Owner { container: container("b", None), ..root };
        assert!(!next.sees_all(&beside));
    }

    /// containerd gives each container a cgroup namespace, in which its own path is `/`. CRI-O may show the node's.
    #[test]
    fn only_containers_of_the_daemons_own_pod_are_the_daemons() {
        let id = "b".repeat(64);
        let slice = |pod: &str| format!("kubepods-besteffort-pod{}.slice", pod.repeat(32));
        let scope = format!("cri-containerd-{id}.scope");
        let (beside, own) = (format!("0::/../{scope}"), format!("0::/{}/{scope}", slice("1")));
        let others = [
            format!("0::/../../{}/{scope}", slice("2")),
            format!("0::/{}/{scope}", slice("2")),
            format!("0::/../../../../docker-{id}.scope"),
        ];
        let pod = Some("1".repeat(32).parse().unwrap());
        let hidden = KernelIdentity { proc_is_ours: true, own: Owner::user(0), in_pod: true };
        let shown = KernelIdentity {
            own: Owner { pod, container: container("a", None), ..Owner::user(0) },
            ..hidden
        };
        let sees_all = |identity: &KernelIdentity, text: &str| {
            let workload = Workload::of_cgroup(text.as_bytes());
            identity.owner(0, &workload, text.as_bytes()).sees_all(&identity.own)
        };
        assert!(sees_all(&hidden, &beside) && sees_all(&shown, &own));
        for identity in [hidden, shown, KernelIdentity { in_pod: false, ..hidden }] {
            for other in &others {
                assert!(!sees_all(&identity, other), "{identity:?}: {other}");
            }
        }
        let in_docker = KernelIdentity { in_pod: false, ..hidden };
        assert!(!sees_all(&in_docker, &beside));
    }

    #[test]
    fn containers_of_the_node_are_parties_and_a_user_s_own_are_not() {
        let of = |container| Owner { container, ..Owner::user(1000) }.party();
        assert_ne!(of(container("a", None)), of(container("b", None)));
        assert_eq!(of(container("a", Some(7))), Party::User(7));
        let pod = Some("2fc932ce-fdcc-454b-97bd-aadfdeb4c340".parse().unwrap());
        let in_pod = |digit| Owner { pod, container: container(digit, None), uid: 0 }.party();
        assert_eq!(in_pod("a"), in_pod("b"));
    }
}
