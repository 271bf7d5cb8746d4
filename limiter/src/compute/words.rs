//! Words in host memory that a context sees, each in a cache line of its own. Streams wait for them, and write them.

use super::driver_calls;
use crate::per_process::PerProcess;
use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::AtomicU32;
use driver::cuda::{DevicePtr, MEMHOSTREGISTER_DEVICEMAP};
use std::sync::{Mutex, PoisonError};

/// Words of a page.
const WORDS: usize = 64;
const LINE: usize = 64;

/// Whether the calling thread's current context can be made to see memory of the host; where the device does then.
pub(super) fn make_visible(host: *mut c_void, bytes: usize) -> Option<DevicePtr> {
    let mut device = 0;
    let visible = driver_calls::mem_host_register(host, bytes, MEMHOSTREGISTER_DEVICEMAP).is_ok()
        && driver_calls::mem_host_device_pointer(&raw mut device, host, 0).is_ok();
    visible.then_some(device)
}

/// A page of words that a context sees.
struct Words {
    context: usize,
    host: *const u8,
    device: DevicePtr,
    taken: u64,
}

// SAFETY: the pointer is only compared and offset; the words are atomics.
unsafe impl Send for Words {}

#[derive(Default)]
struct Pages(Mutex<Vec<Words>>);

static PAGES: PerProcess<Pages> = PerProcess::new();

/// In a forked child: nothing is visible to a device.
pub(super) fn after_fork() {
    PAGES.forget();
}

/// A context has ended: its handle may come again.
pub(super) fn context_ends(context: usize) {
    let mut pages = PAGES.get().0.lock().unwrap_or_else(PoisonError::into_inner);
    // The memory stays: a thread may be about to store into it.
    pages.retain(|words| words.context != context);
}

/// A word that nobody uses, where the context that is current sees it; it holds any value.
pub(super) fn take(context: usize) -> Option<(&'static AtomicU32, DevicePtr)> {
    let free = {
        let mut pages = PAGES.get().0.lock().unwrap_or_else(PoisonError::into_inner);
        pages.iter_mut().filter(|words| words.context == context).find_map(Words::take)
    };
    if free.is_some() {
        return free;
    }
    // No lock is held across the driver's calls. Two threads at once make two pages, which does no harm.
    let mut words = Words::visible_to(context)?;
    let taken = words.take();
    PAGES.get().0.lock().unwrap_or_else(PoisonError::into_inner).push(words);
    taken
}

/// Gives it back. No stream may wait for it, or be about to write it.
pub(super) fn give_back(word: *const AtomicU32) {
    let mut pages = PAGES.get().0.lock().unwrap_or_else(PoisonError::into_inner);
    for words in pages.iter_mut() {
        let offset = (word as usize).wrapping_sub(words.host as usize);
        if offset < WORDS * LINE {
            words.taken &= !(1 << (offset / LINE));
        }
    }
}

impl Words {
    /// A new page. Shared, so that a fork does not part the process from what the device sees.
    fn visible_to(context: usize) -> Option<Self> {
        const BYTES: usize = WORDS * LINE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let host = unsafe { libc::mmap(ptr::null_mut(), BYTES, access, kind, -1, 0) };
        if host == libc::MAP_FAILED {
            return None;
        }
        let Some(device) = make_visible(host, BYTES) else {
            // SAFETY: nobody has been told of the mapping.
            unsafe { libc::munmap(host, BYTES) };
            return None;
        };
        Some(Self { context, host: host.cast_const().cast::<u8>(), device, taken: 0 })
    }

    fn take(&mut self) -> Option<(&'static AtomicU32, DevicePtr)> {
        let index = usize::try_from(self.taken.trailing_ones()).ok().filter(|&at| at < WORDS)?;
        self.taken |= 1 << index;
        let word = self.host.wrapping_add(index * LINE).cast::<c_void>().cast::<AtomicU32>();
        // SAFETY: within the page, aligned, and never unmapped.
        let word = unsafe { &*word };
        Some((word, self.device + (index * LINE) as DevicePtr))
    }
}
