//! Which processes of a session have taken a change of its limits.
//!
//! A page has a word for each 32 of its slots: the number of a change, and a bit for each process that has taken it.
//! Whoever takes a later change begins the word anew. So the one who changes the limits has nothing to clear, and a
//! process that is late changes nothing.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire};
use std::time::{Duration, Instant};

use crate::layout::PageLayout;
use crate::{Page, PageError, ProcessSummary};

/// How often the words are looked at.
const STEP: Duration = Duration::from_millis(1);

impl PageLayout {
    /// The process in a slot goes by the limits that are those of this change, or of a later one.
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

/// Numbers begin again at zero.
const fn is_later(change: u32, than: u32) -> bool {
    change.wrapping_sub(than).cast_signed() > 0
}

/// A page whose limits were changed.
#[derive(Debug)]
pub struct Changed {
    /// The page.
    pub page: Page,
    /// From [`Page::change_limits`].
    pub change: u32,
}

/// A process of a session whose limits were changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Took {
    /// The process.
    pub process: ProcessSummary,
    /// Whether it has taken the change.
    pub taken: bool,
}

/// Waits until each process has taken the changes, until a given time. Returns who has, for each page. A process that
/// is stopped or of an earlier build does not say so.
///
/// # Errors
/// [`PageError::Damaged`]
pub fn wait_until_taken(changes: &[Changed], until: Instant) -> Result<Vec<Vec<Took>>, PageError> {
    let mut slots = Vec::new();
    for changed in changes {
        slots.push(
            changed
                .page
                .summary()?
                .processes
                .iter()
                .map(|process| process.slot)
                .collect::<Vec<_>>(),
        );
    }
    loop {
        let mut all = true;
        for (Changed { page, change }, slots) in changes.iter().zip(&slots) {
            let layout = page.look()?;
            all &= slots.iter().all(|&slot| layout.has_taken(slot, *change));
        }
        if all || Instant::now() >= until {
            break;
        }
        std::thread::sleep(STEP);
    }
    // Without those that have ended meanwhile.
    changes
        .iter()
        .map(|Changed { page, change }| {
            let (layout, processes) = (page.look()?, page.summary()?.processes);
            let took = |process: ProcessSummary| Took {
                process,
                taken: layout.has_taken(process.slot, *change),
            };
            Ok(processes.into_iter().map(took).collect())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use limits::{GpuId, Limits};
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
        // Of the same word; it was about to say so before the second change.
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
        let change = page.change_limits(&Limits::NONE).unwrap();
        let took = wait_until_taken(
            &[Changed { page, change }],
            Instant::now() + Duration::from_secs(3600),
        );
        assert_eq!(took.unwrap(), [[]]);
    }

    proptest! {
        /// Whatever a word holds, a process that takes a change has taken it, unless a later one is known.
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
