//! How soon a store is seen, and what looking for it costs.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::support::*;

/// Two words of host memory, and the first one's address.
fn words() -> (&'static AtomicU32, &'static AtomicU32, u64) {
    let mut host = null();
    ok(cuMemHostAlloc(&mut host, 4096, 0));
    // SAFETY: fresh memory of that size, which nothing frees.
    unsafe {
        let second = host.cast::<u32>().add(16);
        (AtomicU32::from_ptr(host.cast()), AtomicU32::from_ptr(second), host as u64)
    }
}

/// Processor time of this process.
fn used() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_store_is_seen_and_a_write_appears_soon() {
    isolated(&[], || {
        let gpu = Gpu::warm();
        let (on, (gate, done, address)) = (stream(), words());
        let mut took: Vec<_> = (1..=300)
            .map(|round| {
                ok(cuStreamWaitValue32_v2(on, address, round, 0));
                gpu.launch(on, 1);
                ok(cuStreamWriteValue32_v2(on, address + 64, round, 0));
                std::thread::sleep(Duration::from_millis(1));
                let begin = Instant::now();
                gate.store(round, SeqCst);
                while done.load(SeqCst) != round {
                    std::hint::spin_loop();
                }
                begin.elapsed()
            })
            .collect();
        took.sort();
        println!("p50 {:?} p90 {:?} max {:?}", took[150], took[270], took[299]);
        assert!(took[150] < Duration::from_micros(150), "{:?}", took[150]);
    });
}

#[test]
fn looking_costs_little_while_held_and_nothing_otherwise() {
    isolated(&[], || {
        let gpu = Gpu::warm();
        let (on, (gate, done, address)) = (stream(), words());
        let cost = |held: bool| {
            let before = used();
            std::thread::sleep(Duration::from_millis(500));
            let share = (used() - before).as_secs_f64() / 0.5;
            println!("held: {held}, {:.1} % of a core", share * 100.0);
            share
        };
        for round in 1..=100 {
            ok(cuStreamWaitValue32_v2(on, address, 1, 0));
            gpu.launch(on, 1);
            ok(cuStreamWriteValue32_v2(on, address + 64, round, 0));
        }
        let held = cost(true);
        gate.store(1, SeqCst);
        eventually(|| done.load(SeqCst) == 100);
        let idle = cost(false);
        // A kernel of 300 ms with a write behind it needs no looking.
        gpu.launch(on, 300_000);
        ok(cuStreamWriteValue32_v2(on, address + 64, 0, 0));
        let busy = cost(false);
        assert!(held < 0.15, "{held}");
        assert!(idle < 0.01, "{idle}");
        assert!(busy < 0.02, "{busy}");
    });
}
