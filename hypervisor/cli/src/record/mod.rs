//! `sluice record`: writes down what the node shows, again and again.

pub mod file;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::spawn;
use std::time::{Duration, Instant};

use protocol::record::Sample;
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::cli::RecordArgs;
use super::sample::Sampler;
use super::series::rows;
use super::{Error, say};
use file::Recorder;

/// Records until it is asked to end, the time is over, or the session has ended. A daemon on another machine may be
/// away for a while: its samples are missing then.
///
/// # Errors
/// [`Error::Record`] for the file; as for `sluice status` otherwise, if the first look fails.
pub fn run(arguments: &RecordArgs) -> Result<u8, Error> {
    let sampler = Sampler::new(arguments.daemon.as_deref());
    let first = sampler.take()?;
    let mut recorder = match arguments.keep {
        Some(keep) => Recorder::rolling(&arguments.file, keep)?,
        None => Recorder::create(&arguments.file)?,
    };
    let ends = ends()?;
    let start = Instant::now();
    let (mut next, mut was_there, mut is_missing, mut count) = (start, false, false, 0_u64);
    let mut is_told = false;
    let mut taken = Ok(first);
    loop {
        match taken {
            Err(Error::Daemon(_)) if is_missing => {}
            Err(error @ Error::Daemon(_)) => {
                is_missing = true;
                say(&format!("{error}; samples are missing from here until it answers"));
            }
            Err(error) => return Err(error),
            Ok(mut sample) => {
                is_missing = false;
                if let Some(session) = &arguments.session {
                    keep_only(&mut sample, session);
                    let is_there = !rows(&sample).is_empty();
                    if was_there && !is_there {
                        break;
                    }
                    was_there |= is_there;
                    if !was_there && !is_told {
                        is_told = true;
                        say(&format!("no session {session} yet; waiting for it"));
                    }
                }
                // Before the session is there, nothing is worth a line.
                if was_there || arguments.session.is_none() {
                    recorder.write(&sample)?;
                    count += 1;
                }
            }
        }
        next = after(next, arguments.interval);
        let end = arguments.length.map(|length| start + length);
        if end.is_some_and(|end| next > end) || !is_time(&ends, next) {
            break;
        }
        taken = sampler.take();
    }
    say(&format!("wrote {count} samples to {}", arguments.file.display()));
    Ok(0)
}

/// Signals that ask for the end.
pub(crate) fn ends() -> Result<Receiver<()>, Error> {
    let (sender, ends): (Sender<()>, _) = channel();
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| Error::system("cannot watch for signals", error))?;
    spawn(move || {
        for _ in signals.forever() {
            if sender.send(()).is_err() {
                return;
            }
        }
    });
    Ok(ends)
}

/// When the next sample is due. Those that were missed are left out: rates between samples that are close together mean
/// little.
pub(crate) fn after(due: Instant, interval: Duration) -> Instant {
    let now = Instant::now();
    if due + interval < now { now + interval } else { due + interval }
}

/// Waits until then. `false`: the end was asked for before.
pub(crate) fn is_time(ends: &Receiver<()>, then: Instant) -> bool {
    let left = then.saturating_duration_since(Instant::now());
    matches!(ends.recv_timeout(left), Err(RecvTimeoutError::Timeout))
}

/// Leaves out the sessions that are not meant by a name, the beginning of one, or a container.
fn keep_only(sample: &mut Sample, wanted: &str) {
    let is_it = |name: &str| name.starts_with(wanted);
    sample
        .status
        .sessions
        .retain(|session| is_it(&session.session) || session.name.as_deref().is_some_and(is_it));
    sample.status.elsewhere.retain(|session| {
        let container = session.container.as_ref();
        let container =
            container.is_some_and(|one| is_it(&one.id) || one.name.as_deref().is_some_and(is_it));
        is_it(&session.session) || container
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::tests::{compute, contained, memory, sample, session};

    #[test]
    fn one_session_is_kept() {
        let kept = |wanted: &str| {
            let both = ["train", "serve"].map(|name| session(name, compute(1, 0, 0), memory(1, 2)));
            let mut sample = sample(1, both.into());
            sample.status.elsewhere.push(contained("env-1"));
            keep_only(&mut sample, wanted);
            rows(&sample).iter().map(|row| row.name.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(kept("tr"), ["train"]);
        assert_eq!(kept("1-serve"), ["serve"]);
        assert_eq!(
            (kept("web"), kept("ab1")),
            (vec!["env-1".to_owned()], vec!["env-1".to_owned()])
        );
        assert_eq!(kept("other"), [""; 0]);
    }
}
