//! The layout of the page of the node: 64-bit words in the machine's byte order.
//!
//! Word 2 counts the writes, and is odd during one. A reader that finds the same even number before and after has a
//! consistent copy. Later writers of the same version may make a device's entry longer, and append more after the
//! devices.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, fence};

use limits::GpuId;

use super::{NodeDevice, NodeFigures, NodeHealth, NodePageError};

/// The version of the layout.
pub const VERSION: u64 = 1;
/// The most devices in the page.
pub const MOST_DEVICES: usize = 64;
/// Number of words before the devices.
const HEAD: usize = 8;
/// Number of words per device.
const ENTRY: usize = 8;
/// Number of words of the page.
pub(super) const WORDS: usize = HEAD + MOST_DEVICES * ENTRY;
/// Length of the page in bytes.
pub const LENGTH: usize = WORDS * size_of::<u64>();

const MAGIC: u64 = u64::from_le_bytes(*b"sluicend");
const AT_MAGIC: usize = 0;
const AT_VERSION: usize = 1;
const AT_COUNT_OF_WRITES: usize = 2;
const AT_WRITTEN: usize = 3;
const AT_DEVICES: usize = 4;
const AT_ENTRY: usize = 5;
/// An unknown number, and an unknown percentage.
const NONE: u64 = u64::MAX;
const NO_PERCENT: u64 = u8::MAX as u64;
/// Attempts to read a consistent copy. A write takes about a microsecond, once a second.
const ATTEMPTS: u32 = 1_000;

/// The words of a page, in shared memory or in a test.
pub(super) trait Words {
    fn load(&self, at: usize) -> u64;
    fn store(&self, at: usize, value: u64);
    /// The count of writes, read before anything else.
    fn begin(&self) -> u64;
    /// The count of writes, read after everything else.
    fn end(&self) -> u64;
}

impl Words for [AtomicU64; WORDS] {
    fn load(&self, at: usize) -> u64 {
        self.get(at).map_or(0, |word| word.load(Relaxed))
    }

    fn store(&self, at: usize, value: u64) {
        if let Some(word) = self.get(at) {
            word.store(value, Relaxed);
        }
    }

    fn begin(&self) -> u64 {
        self[AT_COUNT_OF_WRITES].load(Acquire)
    }

    fn end(&self) -> u64 {
        fence(Acquire);
        self[AT_COUNT_OF_WRITES].load(Relaxed)
    }
}

/// Whether a file with this beginning is a page, of any version.
pub(super) fn is_page(beginning: [u8; 8]) -> bool {
    u64::from_ne_bytes(beginning) == MAGIC
}

/// Writes the head of an empty page.
pub(super) fn write_head(words: &impl Words) {
    for (at, value) in
        [(AT_MAGIC, MAGIC), (AT_VERSION, VERSION), (AT_ENTRY, ENTRY as u64), (AT_DEVICES, 0)]
    {
        words.store(at, value);
    }
}

/// The stores of a write, in order. Devices that do not fit are left out.
pub(super) fn stores(figures: &NodeFigures) -> Vec<(usize, u64)> {
    let count = figures.devices.len().min(MOST_DEVICES);
    let mut stores = vec![(AT_WRITTEN, figures.written_ns), (AT_DEVICES, count as u64)];
    for (index, device) in figures.devices.iter().take(MOST_DEVICES).enumerate() {
        let from = HEAD + index * ENTRY;
        stores.extend(encode(device).into_iter().enumerate().map(|(at, word)| (from + at, word)));
    }
    stores
}

/// Writes the whole page.
pub(super) fn write(words: &[AtomicU64; WORDS], figures: &NodeFigures) {
    let count = &words[AT_COUNT_OF_WRITES];
    // Odd even if an earlier writer has left it odd.
    let during = count.load(Relaxed) | 1;
    count.store(during, Relaxed);
    fence(Release);
    for (at, value) in stores(figures) {
        words.store(at, value);
    }
    count.store(during.wrapping_add(1), Release);
}

/// Reads a consistent copy.
pub(super) fn read(words: &(impl Words + ?Sized)) -> Result<NodeFigures, NodePageError> {
    if words.load(AT_MAGIC) != MAGIC {
        return Err(NodePageError::NoPage);
    }
    let version = words.load(AT_VERSION);
    if version != VERSION {
        return Err(NodePageError::Version(version));
    }
    for _ in 0..ATTEMPTS {
        let before = words.begin();
        if before.is_multiple_of(2) {
            let figures = decode(words);
            if words.end() == before {
                return figures;
            }
        }
        core::hint::spin_loop();
    }
    Err(NodePageError::Busy(ATTEMPTS))
}

fn decode(words: &(impl Words + ?Sized)) -> Result<NodeFigures, NodePageError> {
    let (count, entry) = (words.load(AT_DEVICES), words.load(AT_ENTRY));
    let fits = |count: &usize| *count <= MOST_DEVICES;
    let size = usize::try_from(count).ok().filter(fits).zip(usize::try_from(entry).ok());
    let Some((size, entry)) = size.filter(|(size, entry)| {
        *entry >= ENTRY && size.checked_mul(*entry).is_some_and(|all| all <= WORDS - HEAD)
    }) else {
        return Err(NodePageError::Devices(count));
    };
    let one = |index| {
        let from = HEAD + index * entry;
        device(core::array::from_fn(|at| words.load(from + at)))
    };
    Ok(NodeFigures { written_ns: words.load(AT_WRITTEN), devices: (0..size).map(one).collect() })
}

fn encode(device: &NodeDevice) -> [u64; ENTRY] {
    let uuid = u128::from_be_bytes(device.uuid.bytes());
    let percent = |value: Option<u8>| value.map_or(NO_PERCENT, u64::from);
    let health = match device.health {
        NodeHealth::Healthy => 0,
        NodeHealth::Unhealthy => 1,
    };
    [
        (uuid >> 64) as u64,
        uuid as u64,
        device.memory_total.unwrap_or(NONE),
        device.memory_used.unwrap_or(NONE),
        percent(device.sm_percent) | percent(device.memory_percent) << 8 | health << 16,
        device.read_ns,
        0,
        0,
    ]
}

fn device([high, low, total, used, small, read_ns, ..]: [u64; ENTRY]) -> NodeDevice {
    let uuid = (u128::from(high) << 64 | u128::from(low)).to_be_bytes();
    let known = |value: u64| (value != NONE).then_some(value);
    let percent = |shift: u32| {
        let value = small >> shift & NO_PERCENT;
        u8::try_from(value).ok().filter(|_| value != NO_PERCENT)
    };
    NodeDevice {
        uuid: GpuId::from_bytes(uuid),
        memory_total: known(total),
        memory_used: known(used),
        sm_percent: percent(0),
        memory_percent: percent(8),
        // Unknown values count as unhealthy.
        health: if small >> 16 & 0xff == 0 { NodeHealth::Healthy } else { NodeHealth::Unhealthy },
        read_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn page() -> [AtomicU64; WORDS] {
        let words = [const { AtomicU64::new(0) }; WORDS];
        write_head(&words);
        words
    }

    #[test]
    fn what_is_written_is_read() {
        let device = |number: u8| NodeDevice {
            uuid: GpuId::from_bytes([number; 16]),
            memory_total: Some(u64::from(number) << 30),
            memory_used: (number.is_multiple_of(2)).then_some(7),
            sm_percent: (number.is_multiple_of(3)).then_some(100),
            memory_percent: Some(number),
            health: if number.is_multiple_of(5) {
                NodeHealth::Unhealthy
            } else {
                NodeHealth::Healthy
            },
            read_ns: 5,
        };
        let words = page();
        assert_eq!(read(&words).unwrap(), NodeFigures::default());
        let figures = NodeFigures { written_ns: 9, devices: (0..64).map(device).collect() };
        write(&words, &figures);
        assert_eq!(read(&words).unwrap(), figures);
        assert_eq!(figures.age_ns(11), 2);
        // More devices than fit.
        let more = NodeFigures { written_ns: 9, devices: (0..99).map(device).collect() };
        write(&words, &more);
        assert_eq!(read(&words).unwrap(), figures);
        write(&words, &NodeFigures { written_ns: 10, devices: vec![device(3)] });
        assert_eq!(read(&words).unwrap().devices, [device(3)]);
    }

    #[test]
    fn what_is_no_page_is_an_error() {
        let words = page();
        words.store(AT_DEVICES, 65);
        assert!(matches!(read(&words), Err(NodePageError::Devices(65))));
        words.store(AT_DEVICES, 1);
        words.store(AT_ENTRY, 7);
        assert!(matches!(read(&words), Err(NodePageError::Devices(1))));
        // A later writer's entries are longer.
        words.store(AT_ENTRY, 16);
        assert_eq!(read(&words).unwrap().devices.len(), 1);
        words.store(AT_COUNT_OF_WRITES, 1);
        assert!(matches!(read(&words), Err(NodePageError::Busy(_))));
        words.store(AT_VERSION, 2);
        assert!(matches!(read(&words), Err(NodePageError::Version(2))));
        words.store(AT_MAGIC, 0);
        assert!(matches!(read(&words), Err(NodePageError::NoPage)));
    }
}
