//! The identity of a process: its id and start time, because an id alone may be reused.

use crate::clock;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A clock tick of the kernel's interfaces, in ns.
const TICK_NS: i64 = 10_000_000;

/// A process of this pid namespace, distinguished from any other with the same id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ProcessIdentity {
    /// The process id.
    pub pid: u32,
    /// The start time, in clock ticks since boot.
    pub start_time: u64,
}

impl ProcessIdentity {
    /// The present process with this id; `None`: there is none, or it has ended.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        start_time(pid).map(|start_time| Self { pid, start_time })
    }

    /// This process. The start time is 0 if the system does not tell it.
    #[must_use]
    pub fn own() -> Self {
        let pid = std::process::id();
        // In a new pid namespace, `/proc` may still be that of the outer one, where the id is another process's.
        let shown = fs::read_link("/proc/self").ok();
        let is_shown = shown.is_some_and(|shown| shown.as_os_str() == pid.to_string().as_str());
        Self::of(pid).filter(|_| is_shown).unwrap_or(Self { pid, start_time: 0 })
    }

    /// Whether the process is running.
    #[must_use]
    pub fn is_running(self) -> bool {
        start_time(self.pid) == Some(self.start_time)
    }

    /// The name of its program, if it is running.
    #[must_use]
    pub fn name(self) -> Option<String> {
        let name = fs::read_to_string(format!("/proc/{}/comm", self.pid)).ok()?;
        self.is_running().then(|| name.trim_end_matches('\n').to_owned())
    }
}

/// Whether the process with this id may belong to a session of this user. Another user's page may lie, so only
/// processes of that user count. Root's pages are out of others' reach, and root's programs may become other users.
#[must_use]
pub fn may_be_of(pid: u32, uid: u32) -> bool {
    // The directory belongs to the process's effective user.
    uid == 0 || fs::metadata(format!("/proc/{pid}")).is_ok_and(|found| found.uid() == uid)
}

/// The start time of a process of this pid namespace, in clock ticks since boot: field 22 of `/proc/PID/stat`
/// (proc_pid_stat(5)), without the offset of this process's time namespace. `None`: there is no such process, or it is
/// a zombie.
#[must_use]
pub fn start_time(pid: u32) -> Option<u64> {
    let shown = started(&fs::read(format!("/proc/{pid}/stat")).ok()?)?;
    let ahead = clock::boot_offset_ns().div_euclid(TICK_NS);
    Some(shown.wrapping_sub(ahead.cast_unsigned()))
}

fn started(stat: &[u8]) -> Option<u64> {
    // The name, field 2, may contain any bytes, including spaces and parentheses.
    let name_ends = stat.iter().rposition(|&byte| byte == b')')?;
    let mut fields = str::from_utf8(stat.get(name_ends + 1..)?).ok()?.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X" | "x") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Processes of inner pid namespaces, by their identity there, with their ids here. `None` for an identity that two
/// processes share.
pub(crate) fn within() -> HashMap<ProcessIdentity, Option<u32>> {
    let mut found = HashMap::new();
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        if let Some(inner) = innermost(&status)
            && let Some(start_time) = start_time(pid)
        {
            let identity = ProcessIdentity { pid: inner, start_time };
            found.entry(identity).and_modify(|known| *known = None).or_insert(Some(pid));
        }
    }
    found
}

/// The id in the innermost of several pid namespaces, from `/proc/PID/status` (proc_pid_status(5)).
fn innermost(status: &str) -> Option<u32> {
    let mut ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace();
    ids.next()?;
    ids.next_back()?.parse().ok()
}

/// A descriptor that becomes readable when a process ends (pidfd_open(2)). `None`: not supported (before Linux 5.3, and
/// in some sandboxes).
///
/// # Errors
/// The system's errors; `ESRCH`: there is no such process.
pub fn pidfd(pid: i32) -> io::Result<Option<OwnedFd>> {
    let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
    let opened = pidfd_open(pid, PidfdFlags::NONBLOCK).or_else(|error| match error {
        // The flag is newer than the system call.
        Errno::INVAL => pidfd_open(pid, PidfdFlags::empty()),
        other => Err(other),
    });
    match opened {
        Ok(descriptor) => Ok(Some(descriptor)),
        Err(Errno::NOSYS | Errno::PERM) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A pidfd, as from [`pidfd`], of the process that connected a Unix socket (unix(7), SO_PEERPIDFD), even if that
/// process has ended and its id was reused. `None`: not supported (before Linux 6.5, and in some sandboxes).
///
/// # Errors
/// The system's errors; the process may be gone.
pub fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let mut descriptor: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes one number of this length, and its length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut descriptor).cast(),
            &raw mut length,
        )
    };
    if result == 0 && descriptor >= 0 {
        // SAFETY: the kernel has just made it for this process, and nobody else knows it.
        return Ok(Some(unsafe { OwnedFd::from_raw_fd(descriptor) }));
    }
    match Errno::from_io_error(&io::Error::last_os_error()) {
        Some(Errno::NOPROTOOPT | Errno::NOSYS | Errno::PERM | Errno::OPNOTSUPP) => Ok(None),
        Some(error) => Err(error.into()),
        None => Err(Errno::SRCH.into()),
    }
}

/// Whether the process of a pidfd has ended.
#[must_use]
pub fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(poll(&mut polled, Some(&now)), Ok(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_id_in_the_innermost_namespace() {
        assert_eq!(innermost("Name:\tsh\nNSpid:\t550\t12\t3\nNSpgid:\t1\n"), Some(3));
        assert_eq!(innermost("NSpid:\t550\n"), None);
        assert_eq!(innermost("Pid:\t550\n"), None);
    }

    #[test]
    fn a_process_is_of_its_user_or_of_a_session_of_roots() {
        let (pid, uid) = (std::process::id(), rustix::process::geteuid().as_raw());
        assert!(may_be_of(pid, uid) && may_be_of(pid, 0));
        assert!(!may_be_of(pid, uid + 1) && !may_be_of(u32::MAX, uid + 1));
    }

    proptest! {
        #[test]
        fn any_bytes_tell_a_start_or_none(stat: Vec<u8>) {
            let _ = started(&stat);
        }

        /// A process can choose any name, but cannot fake its start time.
        #[test]
        fn the_name_of_a_process_tells_nothing(
            name in prop::collection::vec(any::<u8>(), 0..16),
            start: u64,
            dead: bool,
        ) {
            let mut stat = b"12 (".to_vec();
            stat.extend(&name);
            let state = if dead { "Z" } else { "S" };
            stat.extend(format!(") {state} {} {start} 0 0\n", "1 ".repeat(18).trim_end()).bytes());
            prop_assert_eq!(started(&stat), (!dead).then_some(start));
        }
    }
}
