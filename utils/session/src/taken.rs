//! Which processes of a session have taken a change of its limits. `sluice limit` waits for them.
//!
//! A page has one word per 32 slots: the number of a change, and a bit for each process that has taken it. The first
//! process that takes a later change resets the word. So a change of the limits clears nothing, and a late process does
//! no harm.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire};
use std::time::{Duration, Instant};

use crate::layout::{MemoryKind, PageLayout};
use crate::{Page, PageError, ProcessSummary};
use limits::Limits;

/// Interval of the polls.
const STEP: Duration = Duration::from_millis(1);

impl PageLayout {
    /// Records that the process in a slot applies the limits of this change.
    pub fn take_change(&self, slot: usize, change: u32) {
        let Some((word, bit)) = self.taken_word(slot) else { return };
        let taken = |word: u64| {
            let (known, bits) = parts(word);
            match is_later(change, known) {
                true => Some(u64::from(change) << 32 | bit),
                false if known == change => Some(u64::from(known) << 32 | bits | bit),
                false => None,
            }
        };
        // Fails for a change that is no longer the last one.
        let _ = word.fetch_update(AcqRel, Acquire, taken);
    }

    /// Whether the process in a slot has taken this change, or a later one.
    #[must_use]
    pub fn has_taken(&self, slot: usize, change: u32) -> bool {
        self.taken_word(slot).is_some_and(|(word, bit)| {
            let (known, bits) = parts(word.load(Acquire));
            !is_later(change, known) && bits & bit != 0
        })
    }

    fn taken_word(&self, slot: usize) -> Option<(&AtomicU64, u64)> {
        Some((self.taken.get(slot / 32)?, 1 << (slot % 32)))
    }
}

const fn parts(word: u64) -> (u32, u64) {
    ((word >> 32) as u32, word & 0xffff_ffff)
}

/// Whether a change is later; the numbers wrap.
const fn is_later(change: u32, than: u32) -> bool {
    change.wrapping_sub(than).cast_signed() > 0
}

/// A page whose limits were changed.
#[derive(Debug)]
pub struct Changed {
    page: Page,
    change: u32,
    /// The processes that should take the change.
    expected: Vec<ProcessSummary>,
}

impl Changed {
    /// Changes the limits of a page. Processes that compute on the device should take the change: those with a context
    /// there, or that have taken the previous change. A process that only has the page, as each process of a
    /// multi-device job has those of all devices, does not follow its limits.
    ///
    /// # Errors
    /// [`PageError::Damaged`]
    pub fn make(page: Page, limits: &Limits) -> Result<Self, PageError> {
        let layout = page.look()?;
        let before = layout.limit_changes.load(Acquire);
        let mut expected = page.summary()?.processes;
        expected.retain(|process| {
            process.bytes(MemoryKind::Context) > 0 || layout.has_taken(process.slot, before)
        });
        let change = page.change_limits(limits)?;
        Ok(Self { page, change, expected })
    }

    /// The page.
    #[must_use]
    pub const fn page(&self) -> &Page {
        &self.page
    }

    /// The expected processes and others that have taken the change.
    fn took(&self) -> Result<Vec<Took>, PageError> {
        let layout = self.page.look()?;
        let mut took = Vec::new();
        // Without processes that have ended meanwhile.
        for process in self.page.summary()?.processes {
            let taken = layout.has_taken(process.slot, self.change);
            let is_it = |expected: &ProcessSummary| {
                (expected.slot, expected.identity()) == (process.slot, process.identity())
            };
            if taken || self.expected.iter().any(is_it) {
                took.push(Took { process, taken });
            }
        }
        Ok(took)
    }
}

/// A process of a session whose limits were changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Took {
    /// The process.
    pub process: ProcessSummary,
    /// Whether it has taken the change.
    pub taken: bool,
}

/// Waits until each process that computes on a device has taken the change there, or until a given time. Returns the
/// processes per page. A process that is stopped, or of an earlier build, does not report.
///
/// # Errors
/// [`PageError::Damaged`]
pub fn wait_until_taken(changes: &[Changed], until: Instant) -> Result<Vec<Vec<Took>>, PageError> {
    loop {
        let mut all = true;
        for Changed { page, change, expected } in changes {
            let layout = page.look()?;
            all &= expected.iter().all(|process| layout.has_taken(process.slot, *change));
        }
        if all || Instant::now() >= until {
            break;
        }
        std::thread::sleep(STEP);
    }
    changes.iter().map(Changed::took).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Membership;
    use core::sync::atomic::Ordering::Relaxed;
    use limits::GpuId;
    use proptest::prelude::*;

    fn page(folder: &std::path::Path) -> Page {
        Page::open(folder, GpuId::from_bytes([1; 16]), &Limits::NONE).unwrap()
    }

    #[test]
    fn who_is_late_takes_nothing_away_and_says_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let page = page(folder.path());
        let first = page.change_limits(&Limits::NONE).unwrap();
        let layout = page.layout();
        layout.take_change(40, first);
        assert!(
            layout.has_taken(40, first)
                && !layout.has_taken(41, first)
                && !layout.has_taken(8, first)
        );
        let second = page.change_limits(&Limits::NONE).unwrap();
        assert!(!layout.has_taken(40, second));
        layout.take_change(41, second);
        // A process of the same word that was about to report before the second change.
        layout.take_change(42, first);
        assert!(
            layout.has_taken(41, second)
                && layout.has_taken(41, first)
                && !layout.has_taken(42, second)
        );
        layout.take_change(40, second);
        assert!(layout.has_taken(40, second) && layout.has_taken(41, second));
        layout.take_change(usize::MAX, second);
        assert!(!layout.has_taken(usize::MAX, second));
    }

    #[test]
    fn the_wait_is_bounded_and_nobody_has_nothing_to_take() {
        let folder = tempfile::tempdir().unwrap();
        let page = page(folder.path());
        let changed = Changed::make(page, &Limits::NONE).unwrap();
        let took = wait_until_taken(&[changed], Instant::now() + Duration::from_secs(3600));
        assert_eq!(took.unwrap(), [[]]);
    }

    #[test]
    fn only_who_computes_on_the_device_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let member = Membership::claim(page(folder.path())).unwrap();
        let change = |wait: Duration| {
            let changed = Changed::make(page(folder.path()), &Limits::NONE).unwrap();
            let took = wait_until_taken(&[changed], Instant::now() + wait).unwrap();
            took[0].iter().map(|took| (took.process.slot, took.taken)).collect::<Vec<_>>()
        };
        let slot = member.slot();
        // It only has the page. Waiting for it would take an hour.
        assert_eq!(change(Duration::from_secs(3600)), []);
        // It follows the limits, and is late now.
        let layout = member.look().unwrap();
        layout.take_change(slot, layout.limit_changes.load(Relaxed));
        assert_eq!(change(Duration::ZERO), [(slot, false)]);
        // It has a context, and is late again and again.
        layout.slots[slot].bytes[MemoryKind::Context as usize].store(1, Relaxed);
        assert_eq!(change(Duration::ZERO), [(slot, false)]);
        assert_eq!(change(Duration::ZERO), [(slot, false)]);
    }

    proptest! {
        /// Whatever a word contains, a process that takes a change has taken it, unless a later one is known.
        #[test]
        fn any_word_takes_a_change(word: u64, slot in 0usize..4096, change: u32) {
            let folder = tempfile::tempdir().unwrap();
            let page = page(folder.path());
            let layout = page.layout();
            layout.taken[slot / 32].store(word, core::sync::atomic::Ordering::Relaxed);
            let later = is_later((word >> 32) as u32, change);
            layout.take_change(slot, change);
            prop_assert!(later || layout.has_taken(slot, change));
        }
    }
}
