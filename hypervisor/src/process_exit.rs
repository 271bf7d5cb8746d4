//! Waits for the exit of a process. The core watches each registered process.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use session::process::pidfd;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Polling interval if the kernel has no pidfd (before Linux 5.3, and in some sandboxes).
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A watched process.
#[derive(Debug)]
pub(super) enum ProcessExit {
    /// A pidfd, which becomes readable at the exit.
    Descriptor(AsyncFd<OwnedFd>),
    /// Polls for the process.
    Polling(Pid),
}

impl ProcessExit {
    /// Starts to watch a process. Call inside the runtime.
    pub(super) fn start(pid: i32) -> io::Result<Self> {
        match pidfd(pid)? {
            Some(descriptor) => readable(descriptor).map(Self::Descriptor),
            None => Ok(Self::Polling(Pid::from_raw(pid).ok_or(Errno::SRCH)?)),
        }
    }

    /// Waits until the process has ended.
    pub(super) async fn ended(self) {
        match self {
            Self::Descriptor(descriptor) => {
                // An error only means that the runtime is shutting down.
                let _ = descriptor.readable().await;
            }
            Self::Polling(pid) => {
                while test_kill_process(pid) != Err(Errno::SRCH) {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            }
        }
    }
}

/// Registers a descriptor with the runtime.
#[expect(
    deprecated,
    reason = "deprecated for types whose as_raw_fd may lie; an OwnedFd keeps its one descriptor \
              open, and the successor is an unsafe function"
)]
fn readable(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor, Interest::READABLE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[tokio::test]
    async fn an_end_is_noticed_either_way() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let watches =
            [ProcessExit::start(pid).unwrap(), ProcessExit::Polling(Pid::from_raw(pid).unwrap())];
        let mut ends: Vec<_> = watches.into_iter().map(|w| tokio::spawn(w.ended())).collect();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(ends.iter().all(|end| !end.is_finished()));
        child.kill().unwrap();
        child.wait().unwrap();
        for end in &mut ends {
            tokio::time::timeout(Duration::from_secs(10), end).await.unwrap().unwrap();
        }
        assert!(ProcessExit::start(pid).is_err());
    }
}
