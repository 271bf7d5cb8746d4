//! Device memory: reserve, call, commit; and what was taken, so that it can be given back.

pub(crate) mod changes;
mod charge;
pub(crate) mod contexts;
pub(crate) mod graphs;
pub(crate) mod headroom;
mod holes;
pub(crate) mod imports;
pub(crate) mod oversubscribe;
pub(crate) mod physical;
pub(crate) mod pools;
mod quick_look;
mod reconcile;
pub(crate) mod seen;
mod size;
pub(crate) mod tiles;
mod tracker;
mod waiting;

pub(crate) use charge::{Much, allocate, driver_may_have_taken, free};
pub(crate) use contexts::Contexts;
pub(crate) use reconcile::reconcile;
pub(crate) use size::{array_bytes, linear_bytes, mipmapped_bytes};
pub(crate) use tracker::{Handle, Tracker};

use crate::device::Device;
use core::sync::atomic::Ordering::Relaxed;
use session::layout::NO_LIMIT;

/// What a program is to see of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// The limit, or the device's size where that is smaller.
    pub(crate) total: u64,
    /// What the limit and the device both leave.
    pub(crate) free: u64,
    /// What the session uses.
    pub(crate) used: u64,
}

/// Fits the driver's figures into the session's limit; `None` where there is no memory limit.
pub(crate) fn view(device: &Device, real_free: u64, real_total: u64) -> Option<View> {
    // What the dead held, and what pools have given back, is free.
    let page = device.page_reaped()?;
    let limit = page.memory_limit.load(Relaxed);
    if limit == NO_LIMIT {
        return None;
    }
    pools::refresh(device, false);
    graphs::refresh(device, false);
    let used = page.used.load(Relaxed);
    if oversubscribe::is_allowed_by(page) {
        // What does not fit on the device is placed on the host.
        let free = limit.saturating_sub(used);
        return Some(View { total: limit, free, used: used.min(limit) });
    }
    let total = limit.min(real_total);
    Some(View { total, free: total.saturating_sub(used).min(real_free), used: used.min(total) })
}

/// Bytes of a device's memory that this process has imported, as far as that is known: their exporter is
/// charged for them.
pub(crate) fn imported_bytes(device: &Device) -> u64 {
    physical::imported_bytes(device).saturating_add(imports::bytes(device))
}

/// In a forked child: nothing of the parent's is the child's.
pub(crate) fn after_fork() {
    physical::after_fork();
    imports::after_fork();
    pools::after_fork();
    seen::after_fork();
    changes::after_fork();
    oversubscribe::after_fork();
    graphs::after_fork();
    headroom::after_fork();
    reconcile::after_fork();
    waiting::after_fork();
}
