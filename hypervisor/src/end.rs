//! Ends the daemon on any signal that would kill a process that does not handle it, so that the socket is always
//! removed.

use std::io;
use std::ops::RangeInclusive;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGHUP, and SIGXFSZ: a log file over its size limit is no reason to exit.
const IGNORED: [i32; 2] = [1, 25];

/// SIGINT, SIGQUIT, SIGTRAP, SIGUSR1, SIGUSR2, SIGALRM, SIGTERM, SIGSTKFLT, SIGXCPU, SIGVTALRM, SIGPROF, SIGIO, SIGPWR,
/// SIGSYS. The others cannot be handled or report a fault of the program itself.
const ENDING: [i32; 14] = [2, 3, 5, 10, 12, 14, 15, 16, 24, 26, 27, 29, 30, 31];

/// The real-time signals that the C library does not reserve.
const ENDING_REAL_TIME: RangeInclusive<i32> = 34..=64;

/// The handled signals.
#[derive(Debug)]
pub(super) struct Ends {
    ending: Vec<(i32, Signal)>,
    _ignored: Vec<Signal>,
}

impl Ends {
    /// Handles the signals from now on, including those that were blocked when the daemon started. Call inside the
    /// runtime, in the thread that waits.
    pub(super) fn new() -> io::Result<Self> {
        let handled = |number: i32| signal(SignalKind::from_raw(number));
        let numbers = || ENDING.into_iter().chain(ENDING_REAL_TIME);
        let ending = numbers().map(|number| Ok((number, handled(number)?)));
        let ignored = IGNORED.into_iter().map(handled);
        let ends = Self {
            ending: ending.collect::<io::Result<_>>()?,
            _ignored: ignored.collect::<io::Result<_>>()?,
        };
        // Unblocked last: a signal pending since before the start would otherwise kill the process.
        session::signals::unblock(numbers().chain(IGNORED))?;
        Ok(ends)
    }

    /// Waits for a signal that ends the daemon; returns its number.
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
