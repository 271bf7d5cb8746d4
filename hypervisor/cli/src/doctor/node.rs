//! The node: shared memory, cgroup, daemon and its socket.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use api::{Health, Readiness, Reason, ReasonCode};
use http_bidir_comm::client::{BlockingHttpClient, Endpoint};
use protocol::socket::default_sockets;
use session::directory::{OwnedSession, ROOT};
use session::layout::PageLayout;

use crate::daemon_link::{self, PATIENCE};
use crate::remote;
use crate::status::{Bytes, Seconds};
use protocol::findings::{Checked, Wrong};

/// The status with which a daemon says that it is not ready.
const NOT_READY: u16 = 503;
/// What mends a daemon of this machine that does not do its work.
const RESTART: &str = "sudo systemctl restart sluice";

/// Where the pages are. There has to be room for those of some sessions.
pub(super) fn shared_memory() -> Checked {
    let mount = format!("sudo mount -t tmpfs -o mode=1777,size=1g tmpfs {ROOT}");
    let session =
        OwnedSession::create().map_err(|error| Wrong::broken(error.to_string(), &*mount))?;
    let folder = session.path().parent().unwrap_or(Path::new(ROOT)).to_owned();
    let free = rustix::fs::statvfs(&folder)
        .map(|found| found.f_bavail.saturating_mul(found.f_frsize))
        .map_err(|error| Wrong::broken(error.to_string(), &*mount))?;
    let page = size_of::<PageLayout>() as u64;
    if free < page * 64 {
        let found =
            format!("{} free in {}; a page takes {}", Bytes(free), folder.display(), Bytes(page));
        return Err(Wrong::note(found, "sluice prune"));
    }
    if let Some(elsewhere) = session.elsewhere() {
        return Err(Wrong::note(elsewhere, format!("ls -ld {ROOT}/sluice-*")));
    }
    Ok(format!("{}, {} free", folder.display(), Bytes(free)))
}

/// By what the daemon would know this process.
pub(super) fn cgroup() -> Checked {
    let groups = procfs::process::Process::myself().and_then(|own| own.cgroups());
    let groups = groups.map_err(|error| {
        Wrong::note(format!("cannot be read: {error}"), "sudo mount -t proc proc /proc")
    })?;
    let unified = groups.0.iter().find(|group| group.controllers.is_empty());
    let version = if groups.0.len() == 1 && unified.is_some() { "v2" } else { "v1" };
    let path = unified.or_else(|| groups.0.first()).map_or("/", |group| group.pathname.as_str());
    Ok(format!("{version}, {path}"))
}

/// The daemon, and whether it can serve.
pub(super) fn daemon(option: Option<&OsStr>, fake: bool) -> Checked {
    let start = match Path::new("/run/systemd/system").is_dir() {
        true => "sudo systemctl enable --now sluice.socket sluice.service",
        false => "hypervisor daemon &",
    };
    let remote = remote::client(option)
        .map_err(|error| Wrong::broken(error.to_string(), "unset HYPERVISOR_IP HYPERVISOR_PORT"))?;
    if let Some(client) = remote {
        return far(&client, fake);
    }
    let variable = std::env::var_os(limits::env::DAEMON_SOCKET);
    let choice = daemon_link::choose(option, variable.as_deref(), &default_sockets())
        .map_err(|error| Wrong::broken(error.to_string(), start))?;
    let Some(socket) = choice.socket else {
        let none =
            "none: sessions keep their own accounts, and nobody gives out idle time".to_owned();
        return Err(Wrong::note(choice.notice.unwrap_or(none), start));
    };
    let client = BlockingHttpClient::new(Endpoint::Unix(socket.clone()));
    let at = socket.display().to_string();
    let health: Health = client
        .get(api::path::HEALTH, PATIENCE)
        .map_err(|error| Wrong::broken(format!("{at}: {error}"), RESTART))?;
    readiness(&client, &at, &health, RESTART, fake)
}

/// A daemon that is reached by TCP: it may be another machine's.
fn far(client: &BlockingHttpClient, fake: bool) -> Checked {
    let at = client.endpoint().to_string();
    let restart = match client.endpoint() {
        Endpoint::Tcp { host, .. } => format!("ssh {host} {RESTART}"),
        Endpoint::Unix(_) => RESTART.to_owned(),
    };
    let health: Health = client.get(api::path::HEALTH, PATIENCE).map_err(|error| {
        let mend = remote::setting(&error)
            .map_or_else(|| restart.clone(), |name| format!("export {name}=FILE"));
        Wrong::broken(format!("{at}: {}", remote::told(&error)), mend)
    })?;
    readiness(client, &at, &health, &restart, fake)
}

/// Whether a daemon that answers can serve.
fn readiness(
    client: &BlockingHttpClient,
    at: &str,
    health: &Health,
    restart: &str,
    fake: bool,
) -> Checked {
    let place = format!("version {} at {at}", health.version);
    let readiness: Readiness = client
        .get_also(api::path::READY, NOT_READY, PATIENCE)
        .map_err(|error| Wrong::broken(format!("{place}: {error}"), restart))?;
    let up = format!("{place}, up for {}", Seconds(health.uptime_us));
    judge(&readiness, &place, &up, restart, fake)
}

fn judge(readiness: &Readiness, place: &str, up: &str, restart: &str, fake: bool) -> Checked {
    // No node shows a simulated GPU. The first program that uses it names it.
    let lacks = |reason: &&Reason| !(fake && reason.code == ReasonCode::NoDevice);
    let reasons: Vec<&Reason> = readiness.reasons.iter().filter(lacks).collect();
    if reasons.is_empty() {
        let unseen = match readiness.reasons.is_empty() {
            true => "",
            false => "; it learns of the simulated GPU from the first program that uses it",
        };
        return Ok(format!("{up}{unseen}"));
    }
    let words: Vec<&str> = reasons.iter().map(|reason| reason.message.as_str()).collect();
    let found = format!("{place}: {}", words.join("; "));
    let on_disk = |reason: &&Reason| reason.code == ReasonCode::StateNotWritten;
    let mend = match reasons.iter().any(on_disk) {
        true => "df -h",
        false => restart,
    };
    match reasons.iter().all(on_disk) {
        true => Err(Wrong::note(found, mend)),
        false => Err(Wrong::broken(found, mend)),
    }
}

/// The sockets that are looked at, and whether this user can connect.
pub(super) fn socket(option: Option<&OsStr>) -> Checked {
    let named = option.filter(|name| *name != "none").map(PathBuf::from);
    let places = named.map_or_else(default_sockets, |path| vec![path]);
    let mut said = Vec::new();
    for path in places {
        let Ok(found) = fs::metadata(&path) else { continue };
        let (mode, owner) = (found.mode() & 0o777, found.uid());
        let place = path.display();
        if !found.file_type().is_socket() {
            return Err(Wrong::broken(format!("{place} is not a socket"), format!("rm {place}")));
        }
        if let Err(reason) = daemon_link::answers(&path) {
            let found = format!("{place} (mode {mode:03o}, user {owner}): {reason}");
            return Err(Wrong::note(found, format!("rm {place} && hypervisor daemon")));
        }
        said.push(format!("{place} (mode {mode:03o}, user {owner}) answers"));
    }
    if said.is_empty() { Ok("there is none".to_owned()) } else { Ok(said.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::reports::FindingState;

    #[test]
    fn what_a_daemon_lacks_counts_where_it_matters() {
        let state = |codes: &[ReasonCode], fake| {
            let reason = |&code| Reason { code, message: "so".to_owned() };
            let reasons: Vec<Reason> = codes.iter().map(reason).collect();
            let readiness = Readiness { ready: reasons.is_empty(), reasons, state_file: None };
            judge(&readiness, "it", "it", RESTART, fake)
                .err()
                .map_or(FindingState::Ok, |wrong| wrong.state())
        };
        use ReasonCode::{NoDevice, SchedulerStuck, StateNotWritten};
        let (ok, note, broken) = (FindingState::Ok, FindingState::Note, FindingState::Broken);
        for (codes, real, fake) in [
            (&[][..], ok, ok),
            (&[NoDevice], broken, ok),
            (&[StateNotWritten], note, note),
            (&[NoDevice, StateNotWritten], broken, note),
            (&[SchedulerStuck], broken, broken),
            (&[SchedulerStuck, NoDevice], broken, broken),
        ] {
            assert_eq!((state(codes, false), state(codes, true)), (real, fake), "{codes:?}");
        }
    }
}
