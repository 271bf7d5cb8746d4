//! A connection to the daemon's socket: admission, and identification of the caller. `serve` calls this for each
//! connection.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use http_bidir_comm::server::{ApiError, ConnectionFilter, Lines, Pace, Peer};
use poem::{FromRequest, Request, RequestBody};
use session::process::{has_ended, peer_pidfd, pidfd};

use super::connection_quota::{ConnectionPermit, ConnectionQuota};
use super::identity::{Caller, Identity, Owner, Unidentified};
use super::pacing::{Pacing, Pacings};

/// Rate at which each user may open connections; the burst covers all of them reconnecting after a restart of the
/// daemon. The caller's container is looked up only after this delay.
const OPENED: Pace = Pace { each_second: 200, at_once: 2_000 };

/// Admits or refuses each connection by the quota of its user.
#[derive(Debug)]
pub(super) struct ConnectionAdmission {
    quota: Arc<ConnectionQuota>,
    opened: Lines<u32>,
    callers: Arc<Callers>,
}

/// Identification and rate limit of callers.
#[derive(Debug)]
struct Callers {
    identity: Arc<dyn Identity>,
    pacings: Pacings,
}

impl ConnectionAdmission {
    pub(super) fn new(quota: Arc<ConnectionQuota>, identity: Arc<dyn Identity>) -> Self {
        let callers = Arc::new(Callers { identity, pacings: Pacings::default() });
        Self { quota, opened: Lines::new(OPENED), callers }
    }
}

/// An admitted connection that has not begun.
#[derive(Debug)]
pub(super) struct Admitted {
    permit: ConnectionPermit,
    wait: Duration,
    callers: Arc<Callers>,
}

/// An admitted and identified connection.
#[derive(Debug)]
pub(super) struct Connection {
    caller: Result<Caller, Unidentified>,
    pub(super) pacing: Pacing,
    _permit: ConnectionPermit,
}

impl ConnectionFilter for ConnectionAdmission {
    type Permit = Admitted;
    type Connection = Connection;

    fn admit(&self, peer: Peer) -> Result<Self::Permit, ApiError> {
        let permit = self.quota.take(peer.uid)?;
        let wait = self.opened.of(peer.uid).spend();
        Ok(Admitted { permit, wait, callers: Arc::clone(&self.callers) })
    }

    fn wait(admitted: &Admitted) -> Duration {
        admitted.wait
    }

    fn begin(admitted: Admitted, peer: Peer, socket: BorrowedFd<'_>) -> Connection {
        let Admitted { permit, callers, .. } = admitted;
        let caller = identify(&*callers.identity, peer, socket);
        let owner = caller.as_ref().map_or_else(|_| Owner::user(peer.uid), |caller| caller.owner);
        let pacing = callers.pacings.of(owner.party(), peer.pid);
        Connection { caller, pacing, _permit: permit }
    }
}

/// Identifies the caller. Its process id may have been reused by the time `/proc` is read; the connection's pidfd
/// (SO_PEERPIDFD) tells.
fn identify(
    identity: &dyn Identity,
    peer: Peer,
    socket: BorrowedFd<'_>,
) -> Result<Caller, Unidentified> {
    let Peer { pid, .. } = peer;
    let not = |reason: &str| Unidentified { pid, reason: reason.to_owned() };
    if pid <= 0 {
        return Err(not("it is in a pid namespace that the daemon cannot see"));
    }
    const ENDED: &str = "it has ended";
    let process = match peer_pidfd(socket) {
        Ok(Some(process)) => Some(process),
        Ok(None) => pidfd(pid).map_err(|_| not(ENDED))?,
        Err(_) => return Err(not(ENDED)),
    };
    let caller = identity.caller(peer)?;
    if process.is_some_and(|process| has_ended(process.as_fd())) {
        return Err(not(ENDED));
    }
    Ok(caller)
}

impl<'a> FromRequest<'a> for Caller {
    async fn from_request(request: &'a Request, _: &mut RequestBody) -> poem::Result<Self> {
        // Over TCP the caller is known by its token.
        if let Some(caller) = request.extensions().get::<Caller>() {
            return Ok(caller.clone());
        }
        let connection = request.extensions().get::<Arc<Connection>>();
        let caller = connection.map_or_else(
            || Err(Unidentified { pid: 0, reason: "no connection of a process".to_owned() }),
            |connection| connection.caller.clone(),
        );
        Ok(caller.map_err(ApiError::from)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{KernelIdentity, Owner};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::Command;

    /// An identity that accepts any process with the caller's id, as after reuse of the id.
    #[derive(Debug)]
    struct Anybody;

    impl Identity for Anybody {
        fn caller(&self, peer: Peer) -> Result<Caller, Unidentified> {
            Ok(Caller::new(peer.pid, Owner::user(peer.uid)))
        }
    }

    #[test]
    #[expect(clippy::zombie_processes, reason = "the child's child is to outlive it")]
    fn a_process_that_has_ended_is_not_taken_for_the_one_that_has_its_id_now() {
        const CONNECT: &str = "TEST_CONNECT";
        if let Some(path) = std::env::var_os(CONNECT) {
            // The child: connects, passes its connection to its own child, and exits.
            let connection = std::os::fd::OwnedFd::from(UnixStream::connect(path).unwrap());
            Command::new("cat").stdin(connection).spawn().unwrap();
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        let name = std::thread::current().name().unwrap().to_owned();
        command.args(["--exact", &name]).env(CONNECT, &path);
        let mut child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
        let (stream, _) = listener.accept().unwrap();
        let peer = Peer { pid: child.id().cast_signed(), uid: rustix::process::geteuid().as_raw() };
        child.wait().unwrap();
        let refused = identify(&Anybody, peer, stream.as_fd()).unwrap_err();
        assert_eq!(refused.reason, "it has ended");
    }

    #[test]
    fn a_process_that_lives_is_identified() {
        let (one, _other) = UnixStream::pair().unwrap();
        let (pid, uid) = (std::process::id().cast_signed(), rustix::process::geteuid().as_raw());
        let identity = KernelIdentity::default();
        let caller = identify(&identity, Peer { pid, uid }, one.as_fd()).unwrap();
        assert_eq!((caller.pid, caller.owner), (pid, identity.own()));
        let unseen = identify(&identity, Peer { pid: 0, uid }, one.as_fd()).unwrap_err();
        assert!(unseen.reason.contains("pid namespace"), "{unseen}");
    }
}
