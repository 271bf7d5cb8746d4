//! Finds and locks a slot for a new member.

use crate::layout::MemberSlot;
use crate::page::slot_lock::{self, Search, SlotLock};
use crate::process::ProcessIdentity;
use crate::{Page, PageError};
use core::sync::atomic::Ordering::Relaxed;

/// Slots that a session's first process searches.
const FIRST_ROW: usize = 64;

/// Finds a slot without a living process, and locks it.
///
/// Processes that start together begin at different slots. A small session uses only low slots, because every recount
/// reads all slots ever used.
pub(super) fn find_slot(page: &Page, me: ProcessIdentity) -> Result<(usize, SlotLock), PageError> {
    let layout = page.look()?;
    let count = layout.slots.len();
    let io = |source| PageError::Io { path: page.path().to_owned(), source };
    let has_owner =
        |slot: usize| layout.slots.get(slot).is_some_and(|record| record.pid.load(Relaxed) != 0);
    let mut search = Search::new(page);
    let mut row = FIRST_ROW.min(count);
    loop {
        // First free slots, then those of dead processes.
        for take_over in [false, true] {
            for slot in (0..row).map(|offset| (me.pid as usize + offset) % row) {
                if has_owner(slot) != take_over || !search.lock(slot).map_err(io)? {
                    continue;
                }
                // The process may be alive, and have lost its lock.
                let lives = |record: &MemberSlot| {
                    let process = slot_lock::process_of(record);
                    let may_lack_lock = process.pid != 0 && !slot_lock::lock_is_kept(record);
                    may_lack_lock && process.pid != me.pid && process.is_running()
                };
                if !layout.slots.get(slot).is_some_and(lives)
                    && let Some(kept) = search.keep(slot).map_err(io)?
                {
                    return Ok((slot, kept));
                }
                search.unlock(slot);
            }
        }
        if row == count {
            return Err(PageError::Full { path: page.path().to_owned() });
        }
        row = (row * 2).min(count);
    }
}
