//! Ends processes outside any session, if the operator has chosen so.
//!
//! The wrong process must not be hit. When a process is first found, a pidfd is opened. The signal is sent only if a
//! later reading of the driver's list finds the same process again: then the pidfd refers to the process that the
//! driver named.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use ::limits::GpuId;
use observer::UnknownProcess;
use rustix::process::{Signal, pidfd_send_signal};
use session::process::{has_ended, pidfd, start_time};

use super::census::FoundByDevice;

/// Time between SIGTERM and SIGKILL.
const PATIENCE: Duration = Duration::from_secs(10);

/// A process to be ended.
#[derive(Debug)]
struct Marked {
    process: OwnedFd,
    since: Instant,
    asked: Option<Instant>,
    ended: bool,
}

/// Processes to be ended, by pid and start time.
#[derive(Debug, Default)]
pub(super) struct Eviction(HashMap<(u32, u64), Marked>);

impl Eviction {
    /// Takes the unknown processes of a reading. Returns the signals that were sent.
    pub(super) fn round(
        &mut self,
        found: &FoundByDevice,
        taken: Instant,
    ) -> Vec<(GpuId, UnknownProcess, &'static str)> {
        let mut present = HashMap::new();
        for (&uuid, found) in found {
            for one in found.iter().filter(|one| one.is_certain) {
                if let Some(started) = one.process.started {
                    present.entry((one.process.pid, started)).or_insert((uuid, &one.process));
                }
            }
        }
        self.0.retain(|key, _| present.contains_key(key));
        let mut sent = Vec::new();
        for (key, (uuid, process)) in present {
            match self.0.get_mut(&key) {
                Some(marked) => {
                    let signal = marked.next_signal(taken);
                    sent.extend(signal.map(|signal| (uuid, process.clone(), signal)));
                }
                None => {
                    if let Some(marked) = Marked::new(key) {
                        self.0.insert(key, marked);
                    }
                }
            }
        }
        sent
    }
}

impl Marked {
    fn new((pid, started): (u32, u64)) -> Option<Self> {
        let process = pidfd(i32::try_from(pid).ok()?).ok()??;
        // The pidfd refers to the process that was found.
        (start_time(pid) == Some(started)).then(|| Self {
            process,
            since: Instant::now(),
            asked: None,
            ended: false,
        })
    }

    /// Sends the signal that is due, once a later reading has found the process again.
    fn next_signal(&mut self, taken: Instant) -> Option<&'static str> {
        if taken <= self.since || self.ended || has_ended(self.process.as_fd()) {
            return None;
        }
        let (signal, name) = match self.asked {
            None => (Signal::TERM, "SIGTERM"),
            Some(asked) if asked.elapsed() >= PATIENCE => (Signal::KILL, "SIGKILL"),
            Some(_) => return None,
        };
        if let Err(error) = pidfd_send_signal(&self.process, signal) {
            tracing::debug!(%error, "{name} could not be sent");
            return None;
        }
        self.asked = self.asked.or_else(|| Some(Instant::now()));
        self.ended = signal == Signal::KILL;
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;
    use crate::observe::census::Found;

    const GPU: GpuId = GpuId::from_bytes([1; 16]);

    fn found(pid: u32, started: Option<u64>, is_certain: bool) -> FoundByDevice {
        let process = UnknownProcess { pid, started, uid: None, name: None, bytes: None };
        [(GPU, vec![Found { process, is_certain }])].into()
    }

    #[test]
    fn only_a_process_that_is_found_again_gets_a_signal() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let started = start_time(pid);
        let mut eviction = Eviction::default();
        let mut round = |found: &FoundByDevice, taken| {
            eviction.round(found, taken).into_iter().map(|sent| sent.2).collect::<Vec<_>>()
        };
        let certain = found(pid, started, true);
        let earlier = Instant::now();
        assert_eq!(round(&certain, Instant::now()), [""; 0]);
        // A reading from before the pidfd was opened proves nothing.
        assert_eq!(round(&certain, earlier), [""; 0]);
        // Gone and back: starts over.
        assert_eq!(round(&FoundByDevice::new(), Instant::now()), [""; 0]);
        assert_eq!(round(&certain, Instant::now()), [""; 0]);
        assert_eq!(round(&found(pid, started, false), Instant::now()), [""; 0]);
        // Another process with the same pid.
        for _ in 0..3 {
            let other = found(pid, started.map(|ticks| ticks + 1), true);
            assert_eq!(round(&other, Instant::now()), [""; 0]);
        }
        assert!(child.try_wait().unwrap().is_none());
        assert_eq!(round(&certain, Instant::now()), [""; 0]);
        assert_eq!(round(&certain, Instant::now()), ["SIGTERM"]);
        assert_eq!(round(&certain, Instant::now()), [""; 0]);
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
        assert_eq!(round(&certain, Instant::now()), [""; 0]);
    }
}
