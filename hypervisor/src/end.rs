//! What ends the daemon: any signal that would end a process which does not handle it. So the socket
//! is removed each time.

use std::io;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGHUP, and SIGXFSZ: a log that has become too long for its file is no reason to end.
const IGNORED: [i32; 2] = [1, 25];

/// SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGTERM, SIGSTKFLT, SIGXCPU, SIGVTALRM, SIGPROF,
/// SIGIO, SIGPWR. The others cannot be handled, or tell of a fault of the program's own.
const ENDING: [i32; 12] = [2, 3, 10, 12, 14, 15, 16, 24, 26, 27, 29, 30];

/// The signals that were asked for.
#[derive(Debug)]
pub(super) struct Ends {
    ending: Vec<(i32, Signal)>,
    _ignored: Vec<Signal>,
}

impl Ends {
    /// Handles the signals from now on. To be called inside the runtime.
    pub(super) fn new() -> io::Result<Self> {
        let handled = |number: i32| signal(SignalKind::from_raw(number));
        let ending = ENDING.into_iter().map(|number| Ok((number, handled(number)?)));
        let ignored = IGNORED.into_iter().map(handled);
        Ok(Self {
            ending: ending.collect::<io::Result<_>>()?,
            _ignored: ignored.collect::<io::Result<_>>()?,
        })
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
