//! The reader's protocol, with steps of a writer between any two of its own.

use core::cell::Cell;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use limits::GpuId;

use super::words::{self, WORDS, Words, read, stores};
use super::{NodeDevice, NodeFigures, NodeHealth};

/// Figures in which every field tells the write.
fn figures(number: u64) -> NodeFigures {
    let device = |_| NodeDevice {
        uuid: GpuId::from_bytes([number as u8; 16]),
        memory_total: Some(number),
        memory_used: Some(number),
        sm_percent: Some(number as u8),
        memory_percent: Some(number as u8),
        health: NodeHealth::Healthy,
        read_ns: number,
    };
    // The number of devices changes as well.
    NodeFigures { written_ns: number, devices: (0..1 + number % 2).map(device).collect() }
}

/// A page to which another thread writes while it is read: `at_once` stores before each load of the reader, beginning
/// with load `from`.
struct Written {
    words: Box<[AtomicU64; WORDS]>,
    steps: Vec<(usize, u64)>,
    done: Cell<usize>,
    loads: Cell<usize>,
    from: usize,
    at_once: usize,
}

impl Written {
    /// One completed write, then two more as steps.
    fn new(from: usize, at_once: usize) -> Self {
        let words = Box::new([const { AtomicU64::new(0) }; WORDS]);
        words::write_head(&*words);
        words::write(&words, &figures(1));
        let count = 2;
        let before = words.load(count);
        let mut steps = Vec::new();
        for write in 0..2 {
            let during = before + 1 + 2 * write;
            steps.push((count, during));
            steps.extend(stores(&figures(write + 2)));
            steps.push((count, during + 1));
            // A pause: stores to an unused word.
            steps.extend([(7, 0); 60]);
        }
        Self { words, steps, done: Cell::new(0), loads: Cell::new(0), from, at_once }
    }

    fn step(&self) {
        let load = self.loads.get();
        self.loads.set(load + 1);
        if load < self.from {
            return;
        }
        for _ in 0..self.at_once {
            if let Some(&(at, value)) = self.steps.get(self.done.get()) {
                self.words[at].store(value, Relaxed);
                self.done.set(self.done.get() + 1);
            }
        }
    }
}

impl Words for Written {
    fn load(&self, at: usize) -> u64 {
        self.step();
        self.words.load(at)
    }

    fn store(&self, at: usize, value: u64) {
        self.words.store(at, value);
    }

    fn begin(&self) -> u64 {
        self.step();
        self.words.begin()
    }

    fn end(&self) -> u64 {
        self.step();
        self.words.end()
    }
}

#[test]
fn no_read_is_torn_whenever_the_page_is_written() {
    let mut seen = [0; 4];
    for from in 0..60 {
        for at_once in 1..45 {
            let page = Written::new(from, at_once);
            let found = read(&page).unwrap();
            assert_eq!(found, figures(found.written_ns), "from {from}, {at_once} at once");
            seen[found.written_ns as usize] += 1;
        }
    }
    // Each of the three writes was read.
    assert!(seen[1..].iter().all(|&count| count > 0), "{seen:?}");
}
