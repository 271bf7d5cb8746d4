//! Sockets where something else is, and where nothing can be.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, chown, symlink};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;

use proptest::prelude::*;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;

use crate::process::{Daemon, freeze, place, register, thaw};

/// What is in a folder, and in the folders in it.
fn listed(folder: &Path) -> Vec<(String, u64, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let of = fs::symlink_metadata(&path).unwrap();
        found.push((path.display().to_string(), of.ino(), of.len()));
        if of.is_dir() {
            found.extend(listed(&path));
        }
    }
    found.sort();
    found
}

/// A daemon refuses this socket with these words, and leaves `folder` as it was.
#[track_caller]
fn is_refused(folder: &Path, socket: impl AsRef<OsStr>, words: &str) {
    let socket = Path::new(socket.as_ref());
    let before = listed(folder);
    let output = Daemon::command(socket).current_dir(folder).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{socket:?}: {said}");
    assert!(said.contains(words) && said.lines().count() == 1, "{socket:?}: {said}");
    assert!(said.starts_with("hypervisor: "), "{socket:?}: {said}");
    assert_eq!(listed(folder), before, "{socket:?}");
}

#[test]
fn what_is_refused_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    let at = |name: &str| folder.join(name);
    fs::write(at("file"), "precious").unwrap();
    fs::create_dir(at("folder")).unwrap();
    let _listener = UnixListener::bind(at("live")).unwrap();
    let _datagrams = UnixDatagram::bind(at("datagrams")).unwrap();
    symlink("live", at("link")).unwrap();
    symlink("nothing", at("dangling")).unwrap();
    mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let other = "exists and is not a server's socket";
    for name in ["file", "folder", "link", "dangling", "fifo", "datagrams"] {
        is_refused(folder, at(name), other);
    }
    is_refused(folder, at("live"), "is in use by a running server");
    is_refused(folder, at("none/socket"), "does not exist");
    is_refused(folder, at("none/deeper/socket"), "does not exist");
    is_refused(folder, at("file/socket"), "does not exist");
    is_refused(folder, at(&"x".repeat(108 - folder.as_os_str().len())), "expected at most 107");
    is_refused(folder, at(&"x".repeat(5000)), "expected at most 107");
    is_refused(folder, "none/..", "is not a socket path");
    is_refused(folder, "/", other);
    is_refused(folder, "folder/", other);
    assert_eq!(fs::read_to_string(at("file")).unwrap(), "precious");
}

#[test]
fn what_is_no_lock_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    let at = |name: &str| folder.join(name);
    fs::write(at("a.lock"), "precious").unwrap();
    fs::create_dir(at("b.lock")).unwrap();
    symlink("elsewhere", at("c.lock")).unwrap();
    mknodat(CWD, at("d.lock"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    // Empty, and still somebody's: a file with two names, and another user's.
    fs::write(at("precious"), "").unwrap();
    fs::hard_link(at("precious"), at("e.lock")).unwrap();
    let mut names = vec!["a", "b", "c", "d", "e"];
    if rustix::process::geteuid().is_root() {
        fs::write(at("f.lock"), "").unwrap();
        chown(at("f.lock"), Some(12_345), None).unwrap();
        names.push("f");
    }
    for name in names {
        is_refused(folder, at(name), "lock exists and is not a lock of user");
        assert!(at(&format!("{name}.lock")).symlink_metadata().is_ok(), "{name}");
    }
    assert_eq!(fs::read_to_string(at("a.lock")).unwrap(), "precious");
    assert!(!at("elsewhere").exists());
}

#[test]
fn the_longest_path_can_be_served() {
    let (dir, _) = place();
    let socket = dir.path().join("x".repeat(106 - dir.path().as_os_str().len()));
    assert_eq!(socket.as_os_str().len(), 107);
    let mut daemon = Daemon::start(&socket);
    register(&daemon.client(), "a", 1).unwrap();
    assert_eq!(daemon.signal(Signal::TERM), Some(0));
    assert_eq!(listed(dir.path()), []);
}

#[test]
fn a_daemon_that_stands_still_keeps_its_socket() {
    let (dir, socket) = place();
    let daemon = Daemon::start(&socket);
    freeze(&daemon.process);
    // Its queue is full: a call would wait.
    let waiting: Vec<_> = (0..2000)
        .map_while(|_| {
            let flags = rustix::net::SocketFlags::NONBLOCK;
            let stream = rustix::net::SocketType::STREAM;
            let family = rustix::net::AddressFamily::UNIX;
            let call = rustix::net::socket_with(family, stream, flags, None).unwrap();
            let address = rustix::net::SocketAddrUnix::new(&socket).unwrap();
            rustix::net::connect(&call, &address).ok().map(|()| call)
        })
        .collect();
    assert!(waiting.len() < 2000);
    is_refused(dir.path(), &socket, "is in use by a running server");
    drop(waiting);
    thaw(&daemon.process);
    register(&daemon.client(), "a", 1).unwrap();
}

/// The first daemon's files were removed by hand. It must not take those of the second with it.
#[test]
fn a_daemon_removes_only_its_own_socket() {
    let (dir, socket) = place();
    let mut first = Daemon::start(&socket);
    for (name, ..) in listed(dir.path()) {
        fs::remove_file(name).unwrap();
    }
    let mut second = Daemon::start(&socket);
    assert_eq!(first.signal(Signal::TERM), Some(0));
    register(&second.client(), "a", 1).unwrap();
    is_refused(dir.path(), &socket, "is in use by a running server");
    assert_eq!(second.signal(Signal::TERM), Some(0));
    assert_eq!(listed(dir.path()), []);
}

#[test]
fn of_many_daemons_at_once_one_serves() {
    let (dir, socket) = place();
    for _ in 0..5 {
        let mut all: Vec<_> = (0..8)
            .map(|_| Daemon::command(&socket).stderr(std::process::Stdio::null()).spawn().unwrap())
            .collect();
        let start = std::time::Instant::now();
        while all.len() > 1 {
            all.retain_mut(|daemon| daemon.try_wait().unwrap().is_none());
            assert!(start.elapsed() < crate::process::PATIENCE, "{} serve", all.len());
        }
        let mut one = all.pop().unwrap();
        while UnixStream::connect(&socket).is_err() {
            assert!(start.elapsed() < crate::process::PATIENCE);
        }
        rustix::process::kill_process(rustix::process::Pid::from_child(&one), Signal::TERM)
            .unwrap();
        assert_eq!(one.wait().unwrap().code(), Some(0));
        assert_eq!(listed(dir.path()), []);
    }
}

/// At no moment may others connect to a daemon that serves its own user only.
#[test]
fn the_mask_of_the_starter_opens_nothing() {
    let (_dir, socket) = place();
    for mask in ["000", "077", "777"] {
        let daemon = Daemon::command(&socket);
        let mut command = Command::new("sh");
        command.args(["-c", &format!(r#"umask {mask}; exec "$0" "$@""#)]);
        command.arg(daemon.get_program()).args(daemon.get_args());
        let mut daemon = Daemon::start_by(&mut command, &socket);
        let found = fs::symlink_metadata(&socket).unwrap();
        let wanted = if rustix::process::geteuid().is_root() { 0o666 } else { 0o600 };
        assert!(found.file_type().is_socket());
        assert_eq!(found.mode() & 0o777, wanted, "{mask}");
        assert_eq!(daemon.signal(Signal::TERM), Some(0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Whatever the name is: a socket that is served and removed, or a line and no trace.
    #[test]
    fn any_name_is_served_or_refused(name in "[a-z./ \u{1}-\u{1f}\u{202e}é-]{1,24}|[ -~]{80,120}|.{80,120}") {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("one/two/three/four/five/six/seven/eight/nine");
        fs::create_dir_all(&folder).unwrap();
        let name = name.replace('\0', "");
        let name = name.trim_start_matches(['/', '-']);
        // It may lead out of the folder, but not out of the test's.
        prop_assume!(name.matches("..").count() < 8 && !name.is_empty());
        let socket = Path::new(name);
        // What the daemon can serve, relative to its folder, may be too long for an address from the root.
        let links = tempfile::tempdir().unwrap();
        let link = links.path().join("link");
        symlink(folder.join(socket), &link).unwrap();
        let before = listed(dir.path());
        let mut daemon = Daemon::command(socket);
        daemon.current_dir(&folder).stderr(std::process::Stdio::piped());
        let mut daemon = daemon.spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&daemon);
        let start = std::time::Instant::now();
        let served = loop {
            if daemon.try_wait().unwrap().is_some() {
                break false;
            }
            if UnixStream::connect(&link).is_ok() {
                break true;
            }
            prop_assert!(start.elapsed() < crate::process::PATIENCE, "neither served nor refused");
        };
        if served {
            rustix::process::kill_process(pid, Signal::TERM).unwrap();
        }
        let output = daemon.wait_with_output().unwrap();
        prop_assert_eq!(output.status.code(), Some(i32::from(!served)));
        prop_assert_eq!(output.stderr.is_empty(), served);
        prop_assert_eq!(listed(dir.path()), before);
    }
}
