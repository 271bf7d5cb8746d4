//! What the session has used of the device's time, for those who look at the page.

use super::{Ledger, Put};
use crate::layout::PageLayout;
use core::sync::atomic::Ordering::Relaxed;
use limits::recent::{Recent, Second};

impl PageLayout {
    /// What was used of the device's time in the last seconds.
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
    /// A process of the session used the device for this long until now, whoever allowed that.
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
