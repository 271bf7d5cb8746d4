//! How soon the driver notices a value stored in host memory, and how much processor time its polling costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use crate::support::*;

/// Two words of host memory, and the address of the first.
fn words() -> (&'static AtomicU32, &'static AtomicU32, u64) {
    let mut host = null();
    ok(cuMemHostAlloc(&mut host, 4096, 0));
    // SAFETY: fresh memory of that size, which nothing frees.
    unsafe {
        let second = host.cast::<u32>().add(16);
        (AtomicU32::from_ptr(host.cast()), AtomicU32::from_ptr(second), host as u64)
    }
}

/// Processor time that this process has used.
fn used() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The driver's polling interval for words that have not changed for a while.
const LOOK: Duration = Duration::from_micros(95);

/// A thread that only polls: at the driver's interval, and answers in a word of its own. The tests compare the driver
/// with what this thread takes on the same machine.
struct Plain {
    gate: Arc<AtomicU32>,
    done: Arc<AtomicU32>,
    ended: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Plain {
    fn start() -> Self {
        let [gate, done] = [0, 0].map(|value| Arc::new(AtomicU32::new(value)));
        let ended = Arc::new(AtomicBool::new(false));
        let (its_gate, its_done, its_end) = (gate.clone(), done.clone(), ended.clone());
        let thread = spawn(move || {
            // SAFETY: sets how late this thread's sleeps may end.
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
            while !its_end.load(SeqCst) {
                sleep(LOOK);
                its_done.store(its_gate.load(SeqCst), SeqCst);
            }
        });
        Self { gate, done, ended, thread }
    }

    fn end(self) {
        self.ended.store(true, SeqCst);
        self.thread.join().unwrap();
    }
}

/// Stores `number` and waits until the other side has copied it. Returns the time between.
fn answered(gate: &AtomicU32, done: &AtomicU32, number: u32) -> Duration {
    let begin = Instant::now();
    gate.store(number, SeqCst);
    while done.load(SeqCst) != number {
        std::thread::yield_now();
    }
    begin.elapsed()
}

#[test]
fn a_store_is_seen_and_a_write_appears_soon() {
    isolated(&[], || {
        let gpu = Gpu::warm();
        let (on, (gate, done, address)) = (stream(), words());
        let plain = Plain::start();
        let (mut took, mut plainly): (Vec<_>, Vec<_>) = (1..=300)
            .map(|round| {
                ok(cuStreamWaitValue32_v2(on, address, round, 0));
                gpu.launch(on, 1);
                ok(cuStreamWriteValue32_v2(on, address + 64, round, 0));
                sleep(Duration::from_millis(1));
                (answered(gate, done, round), answered(&plain.gate, &plain.done, round))
            })
            .unzip();
        plain.end();
        took.sort();
        plainly.sort();
        println!("p50 {:?} p90 {:?} max {:?}", took[150], took[270], took[299]);
        println!("a plain thread: p50 {:?} p90 {:?}", plainly[150], plainly[270]);
        assert!(took[150] < plainly[150] * 3, "{:?}, not {:?}", took[150], plainly[150]);
    });
}

/// The fraction of a core used, as the average of all rounds.
fn cost(times: &[Duration]) -> f64 {
    times.iter().sum::<Duration>().as_secs_f64() / (WHILE.as_secs_f64() * ROUNDS as f64)
}

const WHILE: Duration = Duration::from_millis(100);
const ROUNDS: usize = 5;

#[test]
fn looking_costs_little_while_held_and_nothing_otherwise() {
    isolated(&[], || {
        let gpu = Gpu::warm();
        let (on, (gate, done, address)) = (stream(), words());
        let in_a_while = || {
            let before = used();
            sleep(WHILE);
            used() - before
        };
        let plainly = || {
            let plain = Plain::start();
            let took = in_a_while();
            plain.end();
            took
        };
        let (mut held, mut plain, mut idle, mut busy) = (vec![], vec![], vec![], vec![]);
        // Alternate the cases: the machine's speed changes over time.
        for round in 1..=ROUNDS as u32 {
            plain.push(plainly());
            for number in 1..=100 {
                ok(cuStreamWaitValue32_v2(on, address, round, 0));
                gpu.launch(on, 1);
                ok(cuStreamWriteValue32_v2(on, address + 64, 100 * round + number, 0));
            }
            held.push(in_a_while());
            gate.store(round, SeqCst);
            eventually(|| done.load(SeqCst) == 100 * round + 100);
            idle.push(in_a_while());
            // While a long kernel runs, the write behind it needs no polling.
            gpu.launch(on, 300_000);
            ok(cuStreamWriteValue32_v2(on, address + 64, 0, 0));
            busy.push(in_a_while());
            ok(cuStreamSynchronize(on));
        }
        let [plain, held, idle, busy] = [plain, held, idle, busy].map(|times| cost(&times));
        println!(
            "of a core: held {held:.4}, idle {idle:.4}, busy {busy:.4}; a plain thread {plain:.4}"
        );
        assert!(held < plain * 3.0, "{held}, a plain thread {plain}");
        assert!(idle < plain * 0.25, "{idle}, a plain thread {plain}");
        assert!(busy < plain * 0.5, "{busy}, a plain thread {plain}");
    });
}
