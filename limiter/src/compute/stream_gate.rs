//! A device's gate as its streams see it: a word in the process's gate page. Each batch of launches waits in its
//! stream until the word says that the gate is open. Opening and closing it are stores to memory.

use super::words::make_visible;
use super::{clock, hold};
use crate::per_process::PerProcess;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::SeqCst;
use core::time::Duration;
use driver::cuda::DevicePtr;
use limits::GpuId;
use protocol::GatesInStream;
use session::gate_page::{BlockNumber, GateBlock, GatePage, Mapping, Opened};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The gate is open.
const OPEN: u64 = 0;

/// What this process has of gates in streams.
#[derive(Default)]
struct Pages {
    /// `None`: the system has no such memory.
    page: OnceLock<Option<GatePage>>,
    /// The mapping that each context sees.
    seen: Mutex<Vec<(usize, Mapping, DevicePtr)>>,
}

static PAGES: PerProcess<Pages> = PerProcess::new();

/// In a forked child: its gates are its own.
pub(super) fn after_fork() {
    PAGES.forget();
}

/// The process's page, for the registration with the daemon.
pub(super) fn descriptor() -> Option<GatesInStream> {
    let page = PAGES.get().page.get()?.as_ref()?;
    Some(GatesInStream { descriptor: page.as_fd().as_raw_fd().into() })
}

/// The process registers anew: what the daemon ended before does not count.
pub(super) fn forget_stops(device: GpuId) {
    let page = PAGES.get().page.get().and_then(Option::as_ref);
    if let Some((page, number)) = page.and_then(|page| Some((page, page.block_of(device).ok()?))) {
        page.block(number).forget_stops();
    }
}

/// See the module.
pub(super) struct StreamGate {
    page: &'static GatePage,
    number: BlockNumber,
    /// Since when it is closed, or [`OPEN`].
    closed_at: AtomicU64,
}

impl StreamGate {
    /// The gate of a device; `None` where there cannot be one.
    pub(super) fn of(device: GpuId) -> Option<Self> {
        // A tool may have each launch wait for its work.
        if hold::is_useless() {
            return None;
        }
        let make = || GatePage::create().inspect_err(|why| tracing::info!("{why}")).ok();
        let page = PAGES.get().page.get_or_init(make).as_ref()?;
        let number = page.block_of(device).inspect_err(|why| tracing::info!("{why}")).ok()?;
        Some(Self { page, number, closed_at: AtomicU64::new(1) })
    }

    fn block(&self) -> &GateBlock {
        self.page.block(self.number)
    }

    /// Opens for a lease. `false`: the daemon has ended it already.
    pub(super) fn open(&self, lease: Option<u64>) -> bool {
        self.closed_at.store(OPEN, SeqCst);
        let opened = self.block().open(lease) == Opened::Open;
        if !opened {
            self.close();
        }
        opened
    }

    pub(super) fn close(&self) {
        self.block().close();
        // Afterwards: whoever puts a wait into a stream later than this is held.
        self.closed_at.store(clock::now().max(1), SeqCst);
    }

    /// Since when it is closed; `None`: it is open.
    pub(super) fn closed_at(&self) -> Option<u64> {
        Some(self.closed_at.load(SeqCst)).filter(|&at| at != OPEN)
    }

    /// Whether the daemon has ended a lease early.
    pub(super) fn is_stopped(&self, lease: u64) -> bool {
        self.block().is_stopped(lease)
    }

    /// How often the daemon has rung, for [`Self::sleep`].
    pub(super) fn rings(&self) -> u32 {
        self.block().rings()
    }

    /// Sleeps for some nanoseconds, or until the daemon rings once more than `rings` times.
    pub(super) fn sleep(&self, rings: u32, ns: u64) {
        self.block().wait(rings, Duration::from_nanos(ns));
    }

    /// Where a context sees the word. It has to be current. `None`: it cannot see it.
    pub(super) fn word_for(&self, context: usize) -> Option<DevicePtr> {
        let place = |at: DevicePtr| at + self.number.word_offset() as DevicePtr;
        let seen = || PAGES.get().seen.lock().unwrap_or_else(PoisonError::into_inner);
        let known = seen().iter().find(|(known, ..)| *known == context).map(|(_, _, at)| *at);
        if let Some(at) = known {
            return Some(place(at));
        }
        // No lock is held across the driver's calls. Two threads at once make two mappings, which does no harm.
        let mapping = self.page.map_again().ok()?;
        let Some(at) = make_visible(mapping.as_ptr().cast(), mapping.length()) else {
            // SAFETY: the driver has refused it.
            unsafe { mapping.unmap() };
            return None;
        };
        seen().push((context, mapping, at));
        Some(place(at))
    }
}

/// A context has ended: nothing of it looks at the page any more.
pub(super) fn context_ended(context: usize) {
    let mut seen = PAGES.get().seen.lock().unwrap_or_else(PoisonError::into_inner);
    while let Some(index) = seen.iter().position(|(known, ..)| *known == context) {
        let (_, mapping, _) = seen.swap_remove(index);
        // SAFETY: with the context, its streams and registrations are gone.
        unsafe { mapping.unmap() };
    }
}
