//! Runs the program in the foreground, with as little interference as possible.
//!
//! The program stays in this process's group, so the terminal's job control reaches it directly.
//! What the terminal sends (^C, ^\, ^Z, a changed window size, a hang-up) is not sent on a second
//! time. What another process sends to `sluice` is passed on. When the program stops for job
//! control, `sluice` stops with it, so that the shell takes over. When `sluice` is continued, so is
//! the program.

use std::fs;
use std::io;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, waitpid};
use signal_hook::consts::signal::{
    SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH,
};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

use super::Error;

const PASSED_ON: [i32; 9] =
    [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT, SIGTSTP];

/// Runs `command` to its end and returns its exit status; 128 + n if signal n killed it.
///
/// # Errors
/// [`Error::Spawn`] if it cannot be started, [`Error::System`] if it cannot be waited for.
pub fn run(mut command: Command) -> Result<u8, Error> {
    let ignored = ignored_signals().unwrap_or(0);
    // Signals that are ignored (nohup, a shell's background job) stay ignored, here and in the
    // program.
    let watched =
        PASSED_ON.into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0).chain([SIGCHLD]);
    let mut signals = SignalsInfo::<WithOrigin>::new(watched)
        .map_err(|e| Error::system("cannot watch for signals", e))?;
    let program = command.get_program().display().to_string();
    let child = command.spawn().map_err(|source| Error::Spawn { program, source })?;
    let pid = Pid::from_child(&child);
    for origin in signals.forever() {
        if origin.signal != SIGCHLD {
            pass_on(&origin, pid);
        } else if let Some(code) = poll(pid)? {
            return Ok(code);
        }
    }
    Err(Error::system("cannot wait for the program", io::Error::other("the signals ended")))
}

fn pass_on(origin: &Origin, pid: Pid) {
    let Some(signal) = Signal::from_named_raw(origin.signal) else { return };
    let from_terminal = origin.cause == Cause::Kernel;
    if !from_terminal || signal == Signal::CONT {
        // It may have ended meanwhile; then the wait shows it.
        let _ = kill_process(pid, signal);
    }
}

/// Collects what happened to the program. Returns its exit code if it has ended.
fn poll(pid: Pid) -> Result<Option<u8>, Error> {
    loop {
        match waitpid(Some(pid), WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Err(Errno::INTR) => {}
            Err(e) => return Err(Error::system("cannot wait for the program", e)),
            Ok(None) => return Ok(None),
            Ok(Some((_, status))) => {
                if let Some(code) = exit_code(status) {
                    return Ok(Some(code));
                }
                stop_along(status);
            }
        }
    }
}

fn exit_code(status: WaitStatus) -> Option<u8> {
    let code = status.exit_status().or_else(|| status.terminating_signal().map(|n| 128 + n))?;
    Some(u8::try_from(code & 0xff).unwrap_or(u8::MAX))
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

/// The mask of ignored signals, bit n-1 for signal n (proc(5), `SigIgn`).
fn ignored_signals() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}
