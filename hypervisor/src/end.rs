//! What ends the daemon: any signal that would end a process which does not handle it. So the socket
//! is removed each time.

use std::io;
use std::ops::RangeInclusive;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGHUP, and SIGXFSZ: a log that has become too long for its file is no reason to end.
const IGNORED: [i32; 2] = [1, 25];

/// SIGINT, SIGQUIT, SIGTRAP, SIGUSR1, SIGUSR2, SIGALRM, SIGTERM, SIGSTKFLT, SIGXCPU, SIGVTALRM,
/// SIGPROF, SIGIO, SIGPWR, SIGSYS. The others cannot be handled, or tell of a fault of the program's
/// own.
const ENDING: [i32; 14] = [2, 3, 5, 10, 12, 14, 15, 16, 24, 26, 27, 29, 30, 31];

/// The real-time signals that the C library does not keep for itself.
const ENDING_REAL_TIME: RangeInclusive<i32> = 34..=64;

/// The signals that were asked for.
#[derive(Debug)]
pub(super) struct Ends {
    ending: Vec<(i32, Signal)>,
    _ignored: Vec<Signal>,
}

impl Ends {
    /// Handles the signals from now on, also those that the daemon was started with blocked. To be
    /// called inside the runtime, in the thread that waits for it.
    pub(super) fn new() -> io::Result<Self> {
        let handled = |number: i32| signal(SignalKind::from_raw(number));
        let numbers = || ENDING.into_iter().chain(ENDING_REAL_TIME);
        let ending = numbers().map(|number| Ok((number, handled(number)?)));
        let ignored = IGNORED.into_iter().map(handled);
        let ends = Self {
            ending: ending.collect::<io::Result<_>>()?,
            _ignored: ignored.collect::<io::Result<_>>()?,
        };
        // Only now: one that waits since before the start would have ended the process otherwise.
        session::signals::unblock(numbers().chain(IGNORED))?;
        Ok(ends)
    }

    /// Waits for a signal that ends the daemon, and returns its number.
    pub(super) async fn asked(&mut self) -> i32 {
        std::future::poll_fn(|context| {
            for (number, signal) in &mut self.ending {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }
}
