//! Runs the program in the foreground, with as little interference as possible.
//!
//! The program stays in this process's group, so the terminal's job control reaches it directly.
//! What the terminal sends (^C, ^\, ^Z, a changed window size, a hang-up) is not sent on a second
//! time. What another process sends to `sluice` is passed on. When the program stops for job
//! control, `sluice` stops with it, so that the shell takes over. When `sluice` is continued, so is
//! the program.

//!
//! `sluice` is the parent of whatever the program leaves behind (a subreaper), and of all orphans
//! where it is the first process of a container. It takes note of their ends. So it knows when the
//! program has ended whether anything of it is left.

use std::io;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, WaitStatus, getpid, kill_process,
    set_child_subreaper, setrlimit, wait,
};
use session::directory::AtEnd;
use session::signals::{self, Inherited};
use signal_hook::consts::signal::{
    SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH,
};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

use super::Error;

const PASSED_ON: [i32; 9] =
    [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT, SIGTSTP];

/// How long descendants may take to end after the program.
const PATIENCE: Duration = Duration::from_millis(100);
const NAP: Duration = Duration::from_millis(2);

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Its exit status; 128 + n if signal n killed it.
    pub code: u8,
    /// The signal that killed it.
    pub signal: Option<i32>,
    /// What happens to the session, given the descendants that are left.
    pub left: AtEnd,
}

/// Runs `command` to its end.
///
/// # Errors
/// [`Error::Spawn`] if it cannot be started, [`Error::System`] if it cannot be waited for.
pub fn run(mut command: Command) -> Result<Ended, Error> {
    let inherited = Inherited::read();
    // Signals that are ignored (nohup, a shell's background job) stay ignored, here and in the
    // program.
    let watched: Vec<i32> = PASSED_ON
        .into_iter()
        .filter(|signal| !inherited.ignores(*signal))
        .chain([SIGCHLD])
        .collect();
    let mut signals = SignalsInfo::<WithOrigin>::new(&watched)
        .map_err(|e| Error::system("cannot watch for signals", e))?;
    signals::unblock(watched).map_err(|e| Error::system("cannot watch for signals", e))?;
    inherited.give_to(&mut command);
    // Without it, orphans go to another process, and only locks tell what is left.
    let _ = set_child_subreaper(Some(getpid()));
    let others = has_children();
    let program = command.get_program().display().to_string();
    let child = command.spawn().map_err(|source| Error::Spawn { program, source })?;
    let pid = Pid::from_child(&child);
    for origin in signals.forever() {
        if origin.signal != SIGCHLD {
            pass_on(&origin, pid);
        } else if let Some(status) = poll(pid)? {
            let signal = status.terminating_signal();
            let code = signal.map_or_else(|| status.exit_status().unwrap_or(0), |n| 128 + n);
            let code = u8::try_from(code & 0xff).unwrap_or(u8::MAX);
            return Ok(Ended { code, signal, left: left(others) });
        }
    }
    Err(Error::system("cannot wait for the program", io::Error::other("the signal stream ended")))
}

impl Ended {
    /// Ends this process as its program ended: by the same signal, so that shells and service managers see what they would
    /// see without `sluice`. Returns the status to exit with if the program was not killed, or if this is the first process
    /// of a pid namespace, which signals of its own do not end.
    #[must_use]
    pub fn end_alike(self) -> u8 {
        if let Some(signal) = self.signal.filter(|_| !getpid().is_init()) {
            // A core dump of this process would replace the program's.
            let none = Rlimit { current: Some(0), maximum: Some(0) };
            let _ = setrlimit(Resource::Core, none);
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
        self.code
    }
}

/// Makes `wait` report the end of children even if this process was started with SIGCHLD ignored.
///
/// # Errors
/// [`Error::System`]
/// [`Error::System`]
pub fn hear_of_ends() -> Result<(), Error> {
    signal_hook::flag::register(SIGCHLD, std::sync::Arc::default())
        .map(|_| ())
        .map_err(|e| Error::system("cannot watch for signals", e))
}

/// Whether this process has children already: the process that became `sluice` by execve(2) may have started some.
fn has_children() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            found => return found.is_ok(),
        }
    }
}

/// What happens to the session after the program's end. `others`: this process had children before, which cannot be
/// told from descendants of the program.
fn left(others: bool) -> AtEnd {
    // The kernel ends all processes of a pid namespace with the first.
    if getpid().is_init() {
        return AtEnd::Remove;
    }
    if others {
        return AtEnd::RemoveIfUnused;
    }
    let start = Instant::now();
    loop {
        match wait(WaitOptions::NOHANG) {
            Err(Errno::CHILD) => return AtEnd::RemoveIfUnused,
            Ok(None) if start.elapsed() < PATIENCE => sleep(NAP),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            _ => return AtEnd::Stay,
        }
    }
}

fn pass_on(origin: &Origin, pid: Pid) {
    let Some(signal) = Signal::from_named_raw(origin.signal) else { return };
    let from_terminal = origin.cause == Cause::Kernel;
    if !from_terminal || signal == Signal::CONT {
        // The process may have ended meanwhile; the next wait shows that.
        let _ = kill_process(pid, signal);
    }
}

/// Reaps the program and orphans. Returns how the program ended, if it has.
fn poll(program: Pid) -> Result<Option<WaitStatus>, Error> {
    loop {
        match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Err(Errno::INTR) => {}
            Err(e) => return Err(Error::system("cannot wait for the program", e)),
            Ok(None) => return Ok(None),
            Ok(Some((pid, status))) if pid == program => {
                if !status.stopped() {
                    return Ok(Some(status));
                }
                stop_along(status);
            }
            Ok(Some(_)) => {}
        }
    }
}

/// A debugger's SIGSTOP is not followed: a user who then continues the program would not know that
/// `sluice` has to be continued as well.
fn stop_along(status: WaitStatus) {
    const JOB_CONTROL: [Signal; 3] = [Signal::TSTP, Signal::TTIN, Signal::TTOU];
    let stopped_by = status.stopping_signal().and_then(Signal::from_named_raw);
    if stopped_by.is_some_and(|signal| JOB_CONTROL.contains(&signal)) {
        let _ = kill_process(getpid(), Signal::STOP);
    }
}
