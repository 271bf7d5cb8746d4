//! What survives the end of a daemon.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use api::{Presence, ReasonCode, Session, SessionAction, SessionState};
use protocol::LeaseReport;
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};

use crate::process::{Daemon, PATIENCE, admission, place, register};

const MOMENT: Duration = Duration::from_millis(20);

fn command(socket: &Path, state: &Path) -> Command {
    let mut command = Daemon::command(socket);
    command.arg("--state").arg(state);
    command
}

fn session(daemon: &Daemon) -> Option<Session> {
    daemon.sessions().into_iter().next()
}

fn charged(session: &Session) -> u64 {
    session.devices[0].charged_us
}

/// Uses the device for a moment, and owes for it: the share is tiny.
fn use_it(daemon: &Daemon) {
    let client = daemon.client();
    let worker = register(&client, "a", 10_000).unwrap();
    let lease = admission(&client, worker, None, Some(PATIENCE)).unwrap().unwrap();
    thread::sleep(MOMENT);
    let report = LeaseReport::busy(lease.id, MOMENT.as_micros() as u64);
    admission(&client, worker, Some(report), None).unwrap();
}

#[track_caller]
fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_debt_and_a_counter_survive_a_restart_and_a_kill() {
    let (dir, socket) = place();
    let state = dir.path().join("state");
    let mut daemon = Daemon::start_by(&mut command(&socket, &state), &socket);
    use_it(&daemon);
    let file = daemon.readiness().state_file.unwrap();
    assert_eq!(Path::new(&file), state.join("hypervisor.json"));
    let before = session(&daemon).unwrap();
    assert!(charged(&before) >= 15_000 && before.devices[0].balance_us < 0, "{before:?}");
    assert_eq!(daemon.signal(Signal::TERM), Some(0));

    let mut daemon = Daemon::start_by(&mut command(&socket, &state), &socket);
    let waits = session(&daemon).unwrap();
    assert_eq!((waits.presence, waits.pids.len()), (Presence::Restored, 0));
    assert!(charged(&waits) >= charged(&before), "{waits:?}");
    use_it(&daemon);
    let after = session(&daemon).unwrap();
    assert_eq!((after.presence, after.id), (Presence::Active, waits.id));
    assert!(charged(&after) >= charged(&before) + 15_000, "{after:?}");
    // What was charged is in the file before the daemon is killed.
    let written = fs::metadata(&file).unwrap().modified().unwrap();
    until("the file is written again", || {
        fs::metadata(&file).is_ok_and(|file| file.modified().unwrap() > written)
    });
    let shown = charged(&session(&daemon).unwrap());
    assert_eq!(daemon.signal(Signal::KILL), None);

    let daemon = Daemon::start_by(&mut command(&socket, &state), &socket);
    let again = session(&daemon).unwrap();
    assert!(charged(&again) >= shown, "{again:?} after {shown}");
}

#[test]
fn a_frozen_session_is_frozen_after_a_restart() {
    let (dir, socket) = place();
    let state = dir.path().join("state");
    let mut daemon = Daemon::start_by(&mut command(&socket, &state), &socket);
    let act = |daemon: &Daemon, action: &str| -> SessionAction {
        let id = session(daemon).unwrap().id;
        daemon.client().post(&api::path::session(id, action), &(), PATIENCE).unwrap()
    };
    let first = register(&daemon.client(), "a", 500_000).unwrap();
    let former = session(&daemon).unwrap().id;
    assert!(act(&daemon, "/freeze").changed);
    assert_eq!(daemon.signal(Signal::TERM), Some(0));

    let daemon = Daemon::start_by(&mut command(&socket, &state), &socket);
    let waits = session(&daemon).unwrap();
    assert_eq!((waits.presence, waits.state), (Presence::Restored, SessionState::Frozen));
    let client = daemon.client();
    let worker = register(&client, "a", 500_000).unwrap();
    assert!(waits.id != former && worker != first);
    assert_eq!(session(&daemon).unwrap().state, SessionState::Frozen);
    let moment = Some(Duration::from_millis(300));
    assert_eq!(admission(&client, worker, None, moment).unwrap(), None);
    assert!(act(&daemon, "/thaw").changed);
    assert!(admission(&client, worker, None, Some(PATIENCE)).unwrap().is_some());
}

#[test]
fn what_was_answered_about_a_freeze_survives_a_kill_at_once() {
    let (dir, socket) = place();
    let state = dir.path().join("state");
    let act = |daemon: &Daemon, action: &str| -> SessionAction {
        let id = session(daemon).unwrap().id;
        daemon.client().post(&api::path::session(id, action), &(), PATIENCE).unwrap()
    };
    let mut daemon = Daemon::start_by(&mut command(&socket, &state), &socket);
    register(&daemon.client(), "a", 500_000).unwrap();
    for (action, expected) in [
        ("/freeze", SessionState::Frozen),
        ("/thaw", SessionState::Running),
        ("/freeze", SessionState::Frozen),
    ] {
        assert!(act(&daemon, action).changed);
        assert_eq!(daemon.signal(Signal::KILL), None);
        daemon = Daemon::start_by(&mut command(&socket, &state), &socket);
        assert_eq!(session(&daemon).unwrap().state, expected, "{action}");
        register(&daemon.client(), "a", 500_000).unwrap();
    }
}

/// Whoever freezes and thaws all the time costs the disk a bounded number of writes, and everybody is answered.
#[test]
fn many_who_wait_for_the_disk_wait_together() {
    let (dir, socket) = place();
    let daemon = Daemon::start_by(&mut command(&socket, &dir.path().join("state")), &socket);
    register(&daemon.client(), "a", 500_000).unwrap();
    let id = session(&daemon).unwrap().id;
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                let client = daemon.client();
                for n in 0..4 {
                    let action = if n % 2 == 0 { "/freeze" } else { "/thaw" };
                    let path = api::path::session(id, action);
                    client.post::<_, SessionAction>(&path, &(), PATIENCE).unwrap();
                }
            });
        }
    });
    // One after the other they would take 2.56 s.
    assert!(start.elapsed() < Duration::from_millis(2_500), "{:?}", start.elapsed());
}

#[test]
fn without_a_folder_nothing_is_kept() {
    let (dir, socket) = place();
    let mut daemon = Daemon::start(&socket);
    use_it(&daemon);
    assert_eq!(daemon.readiness().state_file, None);
    assert_eq!(daemon.signal(Signal::TERM), Some(0));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    assert_eq!(session(&Daemon::start(&socket)), None);
    // systemd names one.
    let state = dir.path().join("state");
    let mut command = Daemon::command(&socket);
    let daemon = Daemon::start_by(command.env("STATE_DIRECTORY", &state), &socket);
    use_it(&daemon);
    assert!(daemon.readiness().state_file.unwrap().starts_with(&*state.to_string_lossy()));
}

#[test]
fn a_damaged_file_is_kept_aside_and_said() {
    let (dir, socket) = place();
    let (state, log) = (dir.path().join("state"), dir.path().join("log"));
    fs::create_dir(&state).unwrap();
    fs::write(state.join("hypervisor.json"), "{\"version\":1,\"node\":{").unwrap();
    let mut command = command(&socket, &state);
    command.stderr(File::create(&log).unwrap());
    let daemon = Daemon::start_by(&mut command, &socket);
    use_it(&daemon);
    let aside = state.join("hypervisor.json.damaged-1");
    assert_eq!(fs::read_to_string(&aside).unwrap(), "{\"version\":1,\"node\":{");
    until("the log says so", || {
        let said = fs::read_to_string(&log).unwrap();
        said.contains("it is damaged") && said.contains(&*aside.to_string_lossy())
    });
    until("a new file is written", || state.join("hypervisor.json").exists());
}

#[test]
fn a_disk_that_takes_nothing_stops_nobody_and_is_said_once() {
    let (dir, socket) = place();
    let (state, log) = (dir.path().join("state"), dir.path().join("log"));
    let real = command(&socket, &state);
    let mut command = Command::new("sh");
    command.args(["-c", r#"ulimit -S -f 0; exec "$0" "$@""#]);
    command.arg(real.get_program()).args(real.get_args()).env_clear();
    // Standard error is a pipe: the log has no room in a file either.
    command.stderr(std::process::Stdio::piped());
    let mut daemon = Daemon::start_by(&mut command, &socket);
    let stderr = daemon.process.stderr.take().unwrap();
    let copy = log.clone();
    thread::spawn(move || std::io::copy(&mut { stderr }, &mut File::create(copy).unwrap()));
    use_it(&daemon);
    let problem = || {
        let readiness = daemon.readiness();
        assert!(readiness.ready, "{readiness:?}");
        readiness.reasons.iter().any(|reason| reason.code == ReasonCode::StateNotWritten)
    };
    until("the daemon says so", problem);
    use_it(&daemon);
    // Nobody who changes something is kept waiting for it.
    let id = session(&daemon).unwrap().id;
    for action in ["/freeze", "/thaw"] {
        let start = Instant::now();
        let path = api::path::session(id, action);
        let done: SessionAction = daemon.client().post(&path, &(), PATIENCE).unwrap();
        assert!(done.changed && start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        assert!(problem());
    }
    assert!(!state.join("hypervisor.json").exists());
    // Longer than it takes to try again.
    thread::sleep(Duration::from_millis(4_500));
    let said = fs::read_to_string(&log).unwrap();
    assert_eq!(said.matches("cannot write the state").count(), 1, "{said}");
    let limits = Rlimit { current: None, maximum: None };
    prlimit(Some(Pid::from_child(&daemon.process)), Resource::Fsize, limits).unwrap();
    until("it goes on", || !problem());
    assert!(state.join("hypervisor.json").exists());
}

#[test]
fn a_folder_that_cannot_be_used_is_refused() {
    let (dir, socket) = place();
    let state = dir.path().join("state");
    let refused = |words: &str| {
        let output = command(&dir.path().join("other.sock"), &state).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(words) && said.contains(&*state.to_string_lossy()), "{said}");
    };
    fs::write(&state, "precious").unwrap();
    refused("not a directory");
    assert_eq!(fs::read_to_string(&state).unwrap(), "precious");
    fs::remove_file(&state).unwrap();
    let _daemon = Daemon::start_by(&mut command(&socket, &state), &socket);
    refused("another daemon keeps its state there");
}
