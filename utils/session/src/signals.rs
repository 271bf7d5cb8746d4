//! The signals that a process inherited blocked or ignored. A command that runs a program uses some of them itself, and
//! restores the inherited state for the program.

use core::mem::MaybeUninit;
use core::ptr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The calling thread's blocked signals and the process's ignored ones.
#[derive(Clone)]
pub struct Inherited {
    blocked: libc::sigset_t,
    ignored: Vec<i32>,
}

const LAST: i32 = 64;

impl Inherited {
    /// Reads the state. Must be called before handlers are set.
    #[must_use]
    pub fn read() -> Self {
        let mut blocked = MaybeUninit::uninit();
        // SAFETY: without a new mask nothing changes, and the old one is written.
        let blocked = unsafe {
            libc::sigemptyset(blocked.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), blocked.as_mut_ptr());
            blocked.assume_init()
        };
        // The Rust runtime sets SIGPIPE before `main`, and restores it for child programs.
        let ignored =
            (1..=LAST).filter(|&signal| signal != libc::SIGPIPE && is_ignored(signal)).collect();
        Self { blocked, ignored }
    }

    /// Whether a signal was ignored.
    #[must_use]
    pub fn ignores(&self, signal: i32) -> bool {
        self.ignored.contains(&signal)
    }

    /// Restores the state in the program that `command` starts.
    pub fn give_to(&self, command: &mut Command) {
        let Self { blocked, ignored } = self.clone();
        let set = move || {
            for &signal in &ignored {
                // SAFETY: allowed between fork and exec; no handler is set.
                if unsafe { libc::signal(signal, libc::SIG_IGN) } == libc::SIG_ERR {
                    return Err(io::Error::last_os_error());
                }
            }
            // SAFETY: as above; the set was read from the system.
            match unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const blocked, ptr::null_mut())
            } {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        };
        // SAFETY: the closure makes two system calls and allocates nothing.
        unsafe { command.pre_exec(set) };
    }
}

/// Unblocks signals in the calling thread, for signals that have a handler.
///
/// # Errors
/// The system's errors.
pub fn unblock(signals: impl IntoIterator<Item = i32>) -> io::Result<()> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the set is initialised first; a number that is no signal changes nothing.
    let error = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut())
    };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action nothing changes; the old one is written if the call succeeds.
    unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}
