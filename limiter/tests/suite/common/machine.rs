//! Measures how busy the machine was during a test.
//!
//! A program gets less than its share if threads that are ready have to wait for a processor, and never more. So an
//! upper bound of a share always applies. A lower bound is reduced, and a bound of a time is extended, by the delay of
//! a witness: a thread that does nothing but sleep. On a quiet machine the delay is zero.

use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, Once};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

/// How long the witness sleeps at a time.
const NAP: Duration = Duration::from_millis(1);
/// Any sleep may end this late.
const USUAL: Duration = Duration::from_micros(200);
/// In a program that waits for each kernel, several threads wait in turn: its own, the limiter's, the daemon's, the
/// simulated device's.
const IN_TURN: f64 = 3.0;
/// Everybody gets this part of their share, however busy the machine is.
const NEVER_LESS: f64 = 0.1;

/// When the witness was delayed, and for how long.
static LATE: Mutex<Vec<(Instant, Duration)>> = Mutex::new(Vec::new());
/// Processor time that the witness used.
static TOOK_NS: AtomicU64 = AtomicU64::new(0);

fn witness() {
    loop {
        let begun = Instant::now();
        sleep(NAP);
        let late = begun.elapsed().saturating_sub(NAP);
        if late > USUAL {
            LATE.lock().unwrap().push((begun, late));
        }
        let took = clock_gettime(ClockId::ThreadCPUTime);
        TOOK_NS.store(took.tv_sec as u64 * 1_000_000_000 + took.tv_nsec as u64, Relaxed);
    }
}

/// A period that is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    begun: Instant,
    took_ns: u64,
}

impl Measured {
    /// Begins a period.
    pub(crate) fn begin() -> Self {
        static WITNESS: Once = Once::new();
        WITNESS.call_once(|| drop(spawn(witness)));
        Self { begun: Instant::now(), took_ns: TOOK_NS.load(Relaxed) }
    }

    /// Ends it.
    pub(crate) fn end(self) -> Busy {
        let passed = self.begun.elapsed();
        let part = |time: Duration| time.as_secs_f64() / passed.as_secs_f64();
        let all = LATE.lock().unwrap();
        let late = || all.iter().filter(|(at, _)| *at >= self.begun).map(|(_, late)| *late);
        let took = Duration::from_nanos(TOOK_NS.load(Relaxed) - self.took_ns);
        Busy {
            late: part(late().sum()),
            longest: late().max().unwrap_or_default(),
            times: late().count() as u64,
            napping: part(took),
        }
    }
}

/// The delays of the witness in a period.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Busy {
    /// The part of the time in which the witness was ready and had to wait, and the longest such wait.
    late: f64,
    pub(crate) longest: Duration,
    /// The number of such waits.
    pub(crate) times: u64,
    /// The part of the time in which the witness ran: the cost of a thread that only sleeps for a millisecond at a
    /// time.
    pub(crate) napping: f64,
}

impl Busy {
    /// The least part of `wanted` that is accepted from a program that launches ahead, if a quiet machine delivers all
    /// but `tolerance` of it.
    pub(crate) fn least(self, wanted: f64, tolerance: f64) -> f64 {
        (wanted * (1.0 - self.late) - tolerance).max(wanted * NEVER_LESS)
    }

    /// The same for a program that waits for each kernel.
    pub(crate) fn least_in_turn(self, wanted: f64, tolerance: f64) -> f64 {
        (wanted / self.more() - tolerance).max(wanted * NEVER_LESS)
    }

    /// Whether everything stopped for so long that a daemon may have seemed gone, or a lease was held for much longer
    /// than granted.
    pub(crate) fn stood_still(self) -> bool {
        self.longest >= Duration::from_millis(100)
    }

    /// The factor by which a quiet machine may have done more.
    pub(crate) fn more(self) -> f64 {
        1.0 / (1.0 - IN_TURN * self.late).max(NEVER_LESS)
    }

    /// The longest acceptable time of something that takes at most `quiet` on a quiet machine.
    pub(crate) fn most(self, quiet: Duration) -> Duration {
        quiet.mul_f64(self.more()) + self.longest.mul_f64(IN_TURN)
    }

    /// The same in milliseconds.
    pub(crate) fn most_ms(self, quiet: u64) -> u64 {
        self.most(Duration::from_millis(quiet)).as_millis() as u64
    }
}
