//! The session's GPU time, for readers of the page.

use super::{Ledger, Put};
use crate::layout::PageLayout;
use core::sync::atomic::Ordering::Relaxed;
use limits::recent::{Recent, Second};

impl PageLayout {
    /// Use of the device in the last seconds.
    #[must_use]
    pub fn recent(&self) -> Recent {
        let mut recent = Recent::default();
        for (second, cell) in recent.0.iter_mut().zip(&self.recent) {
            let (number, used_ns) = (cell.number.load(Relaxed), cell.used_ns.load(Relaxed));
            *second = Second { number, used_ns };
        }
        recent
    }
}

impl Ledger<'_> {
    /// Records GPU time (ns) of a process of the session, whoever granted the leases.
    pub(super) fn note_delivered(&mut self, slot: usize, now_ns: u64, used_ns: u64) {
        if used_ns == 0 {
            return;
        }
        let of_process = self.slot(slot).map(|slot| &slot.charged_ns);
        for sum in of_process.into_iter().chain([&self.0.delivered_ns]) {
            sum.put(sum.load(Relaxed).saturating_add(used_ns));
        }
        let before = self.0.recent();
        let mut recent = before;
        recent.note(now_ns, used_ns);
        let changed = before.0.iter().zip(&recent.0).zip(&self.0.recent);
        for ((before, after), cell) in changed {
            if before != after {
                cell.number.put(after.number);
                cell.used_ns.put(after.used_ns);
            }
        }
    }
}
