//! A device's gate as its streams see it: a word in the process's gate page. Each batch of launches waits in its stream
//! until the word says that the gate is open. Opening and closing the gate are stores to memory.

use super::words::{make_visible, seen_by};
use super::{clock, driver_calls, hold};
use crate::per_process::PerProcess;
use core::fmt::Display;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::SeqCst;
use driver::cuda::{DEVICE_MPS_ENABLED, DevicePtr};
use limits::GpuId;
use protocol::GatesInStream;
use session::gate_page::{BlockNumber, GateBlock, GatePage, Mapping, Opened};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Value of `closed_at` while the gate is open.
const OPEN: u64 = 0;

/// This process's gate page and its mappings.
#[derive(Default)]
struct Pages {
    /// `None`: the system does not support such memory.
    page: OnceLock<Option<GatePage>>,
    /// The mapping that each context sees.
    seen: Mutex<Vec<(usize, Mapping, DevicePtr)>>,
}

static PAGES: PerProcess<Pages> = PerProcess::new();

/// In a forked child: it makes its own page.
pub(super) fn after_fork() {
    PAGES.forget();
}

/// Logs why gates are not in streams.
fn tell(why: &dyn Display) {
    tracing::info!("{why}");
}

/// The process's page, for the registration with the daemon.
pub(super) fn descriptor() -> Option<GatesInStream> {
    let page = PAGES.get().page.get()?.as_ref()?;
    page.check_descriptor().inspect_err(|why| tell(why)).ok()?;
    Some(GatesInStream { descriptor: page.as_fd().as_raw_fd().into() })
}

/// Clears the leases of the last registration, before the process registers again.
pub(super) fn forget_leases(device: GpuId) {
    let page = PAGES.get().page.get().and_then(Option::as_ref);
    if let Some((page, number)) = page.and_then(|page| Some((page, page.block_of(device).ok()?))) {
        page.block(number).forget_leases();
    }
}

/// The gate of one device.
pub(super) struct StreamGate {
    page: &'static GatePage,
    number: BlockNumber,
    /// Since when the gate is closed (ns, `clock::now`), or [`OPEN`].
    closed_at: AtomicU64,
}

impl StreamGate {
    /// The gate of the current context's device; `None` if it cannot be in streams.
    pub(super) fn of(device: GpuId) -> Option<Self> {
        // A tool may make each launch wait for its work.
        if hold::is_useless() || may_be_under_mps() {
            return None;
        }
        let make = || GatePage::create().inspect_err(|why| tell(why)).ok();
        let page = PAGES.get().page.get_or_init(make).as_ref()?;
        let number = page.block_of(device).inspect_err(|why| tell(why)).ok()?;
        Some(Self { page, number, closed_at: AtomicU64::new(1) })
    }

    /// The gate's block in the page: the word, and messages between the daemon and this process.
    pub(super) fn block(&self) -> &GateBlock {
        self.page.block(self.number)
    }

    /// Opens the gate for a lease. `false`: the daemon has already ended the lease.
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
        // After the word: waits that are put into a stream later than this are held.
        self.closed_at.store(clock::now().max(1), SeqCst);
    }

    /// Since when the gate is closed (ns, `clock::now`); `None`: it is open.
    pub(super) fn closed_at(&self) -> Option<u64> {
        Some(self.closed_at.load(SeqCst)).filter(|&at| at != OPEN)
    }

    /// Opens the gate for good: the daemon no longer closes it.
    pub(super) fn leave_open(&self) {
        self.block().leave();
        self.open(None);
    }

    /// The word's address in a context, which has to be current. `None`: the context cannot see it.
    pub(super) fn word_for(&self, context: usize) -> Option<DevicePtr> {
        let context = seen_by(context);
        let place = |at: DevicePtr| at + self.number.word_offset() as DevicePtr;
        let seen = || PAGES.get().seen.lock().unwrap_or_else(PoisonError::into_inner);
        let known = seen().iter().find(|(known, ..)| *known == context).map(|(_, _, at)| *at);
        if let Some(at) = known {
            return Some(place(at));
        }
        // No lock is held across driver calls. Two threads at once make two mappings, which does no harm.
        let mapping = self.page.map_again().ok()?;
        let Some(at) = make_visible(mapping.as_ptr().cast(), mapping.length()) else {
            // SAFETY: the driver has refused to register the mapping, so only this function knows it.
            unsafe { mapping.unmap() };
            return None;
        };
        seen().push((context, mapping, at));
        Some(place(at))
    }
}

/// Whether the current context may belong to an MPS server. There, killing a client with outstanding work may harm
/// other clients, and held work is outstanding. Drivers before 12.2 cannot tell.
fn may_be_under_mps() -> bool {
    let (mut device, mut shared) = (0, 0);
    let told = driver_calls::ctx_get_device(&raw mut device).is_ok()
        && driver_calls::device_get_attribute(&raw mut shared, DEVICE_MPS_ENABLED, device).is_ok();
    if !told || shared != 0 {
        tell(&"an MPS server may share contexts, so launches wait in their threads");
        return true;
    }
    false
}

/// Called after a context has been destroyed: nothing of it reads the page any more.
pub(super) fn context_ended(context: usize) {
    let mut seen = PAGES.get().seen.lock().unwrap_or_else(PoisonError::into_inner);
    while let Some(index) = seen.iter().position(|(known, ..)| *known == context) {
        let (_, mapping, _) = seen.swap_remove(index);
        // SAFETY: with the context, its streams and registrations are gone.
        unsafe { mapping.unmap() };
    }
}
