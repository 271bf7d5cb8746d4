//! Words in host memory that a context can access, each in a cache line of its own. Streams wait for them and write
//! them; `hold` and the lanes take them from here.

use super::driver_calls;
use crate::per_process::PerProcess;
use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::AtomicU32;
use driver::cuda::{DevicePtr, MEMHOSTREGISTER_DEVICEMAP};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Words per page.
const WORDS: usize = 64;
const LINE: usize = 64;

/// Makes host memory visible to the current context; returns its device address.
pub(super) fn make_visible(host: *mut c_void, bytes: usize) -> Option<DevicePtr> {
    let mut device = 0;
    let visible = driver_calls::mem_host_register(host, bytes, MEMHOSTREGISTER_DEVICEMAP).is_ok()
        && driver_calls::mem_host_device_pointer(&raw mut device, host, 0).is_ok();
    visible.then_some(device)
}

/// A page of words, registered with a context.
struct Words {
    /// [`NOBODY`]: the context has ended, and with it the registration of the memory.
    context: usize,
    host: *const u8,
    device: DevicePtr,
    taken: u64,
}

const NOBODY: usize = 0;

// SAFETY: the pointer is only compared and offset; the words are atomics.
unsafe impl Send for Words {}

#[derive(Default)]
struct Pages(Mutex<Vec<Words>>);

static PAGES: PerProcess<Pages> = PerProcess::new();

/// Green contexts with their primary contexts: memory that is visible to the primary context is visible to them, for as
/// long.
static GREEN: PerProcess<Mutex<Vec<(usize, usize)>>> = PerProcess::new();

/// In a forked child no memory is visible to a device.
pub(super) fn after_fork() {
    PAGES.forget();
    GREEN.forget();
}

fn green() -> MutexGuard<'static, Vec<(usize, usize)>> {
    GREEN.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Called after a green context has been made.
pub(crate) fn green_context_is_made(context: usize, primary: usize) {
    if context != NOBODY && primary != NOBODY {
        green().push((context, primary));
    }
}

/// The context with which memory for `context` is registered.
pub(super) fn seen_by(context: usize) -> usize {
    let known = green().iter().find(|(green, _)| *green == context).map(|(_, primary)| *primary);
    known.unwrap_or(context)
}

/// Called after a context has been destroyed: its handle may be reused.
pub(super) fn context_ended(context: usize) {
    green().retain(|(green, _)| *green != context);
    PAGES.get().context_ended(context);
}

/// Takes an unused word that the current context can access; it holds any value.
pub(super) fn take(context: usize) -> Option<(&'static AtomicU32, DevicePtr)> {
    let (pages, context) = (PAGES.get(), seen_by(context));
    if let Some(free) = pages.take(context) {
        return Some(free);
    }
    // No lock is held across driver calls. Two threads at once make two pages, which does no harm.
    let host = pages.take_spare().or_else(new_page)?;
    let device = make_visible(host.cast(), WORDS * LINE);
    let mut words = Words { context, host, device: device.unwrap_or(0), taken: 0 };
    let taken = if device.is_some() { words.take() } else { None };
    if taken.is_none() {
        // Let another context use the page.
        words.context = NOBODY;
    }
    pages.pages().push(words);
    taken
}

/// Returns a word. No stream may wait for it, or be about to write it.
pub(super) fn give_back(word: *const AtomicU32) {
    PAGES.get().give_back(word);
}

impl Pages {
    fn pages(&self) -> MutexGuard<'_, Vec<Words>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, context: usize) -> Option<(&'static AtomicU32, DevicePtr)> {
        self.pages().iter_mut().filter(|words| words.context == context).find_map(Words::take)
    }

    /// The words stay taken until they are returned: a thread may be about to store into one.
    fn context_ended(&self, context: usize) {
        let mut pages = self.pages();
        let own = pages.iter_mut().filter(|words| words.context == context);
        own.for_each(|words| words.context = NOBODY);
    }

    /// A page without taken words that is visible to no context.
    fn take_spare(&self) -> Option<*mut u8> {
        let mut pages = self.pages();
        let spare = |words: &Words| words.context == NOBODY && words.taken == 0;
        let index = pages.iter().position(spare)?;
        Some(pages.swap_remove(index).host.cast_mut())
    }

    fn give_back(&self, word: *const AtomicU32) {
        for words in self.pages().iter_mut() {
            let offset = (word as usize).wrapping_sub(words.host as usize);
            if offset < WORDS * LINE {
                words.taken &= !(1 << (offset / LINE));
            }
        }
    }
}

/// A new page. Shared, so that copy-on-write after a fork does not separate the process from the memory that the device
/// sees.
fn new_page() -> Option<*mut u8> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let host = unsafe { libc::mmap(ptr::null_mut(), WORDS * LINE, access, kind, -1, 0) };
    (host != libc::MAP_FAILED).then_some(host.cast())
}

impl Words {
    fn take(&mut self) -> Option<(&'static AtomicU32, DevicePtr)> {
        let index = usize::try_from(self.taken.trailing_ones()).ok().filter(|&at| at < WORDS)?;
        self.taken |= 1 << index;
        let word = self.host.wrapping_add(index * LINE).cast::<c_void>().cast::<AtomicU32>();
        // SAFETY: within the page, aligned, and never unmapped.
        let word = unsafe { &*word };
        Some((word, self.device + (index * LINE) as DevicePtr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_a_context_that_has_ended_is_used_again_once_its_words_are_given_back() {
        let pages = Pages::default();
        let host = new_page().unwrap();
        pages.pages().push(Words { context: 1, host, device: 0, taken: 0 });
        let (word, _) = pages.take(1).unwrap();
        assert!(pages.take(2).is_none() && pages.take_spare().is_none());
        pages.context_ended(1);
        // The context's handle was reused.
        assert!(pages.take(1).is_none() && pages.take_spare().is_none());
        pages.give_back(word);
        assert_eq!(pages.take_spare(), Some(host));
        assert!(pages.pages().is_empty());
    }

    #[test]
    fn a_green_context_sees_what_the_primary_one_does() {
        green_context_is_made(21, 7);
        assert_eq!((seen_by(21), seen_by(7), seen_by(8)), (7, 7, 8));
        context_ended(21);
        assert_eq!(seen_by(21), 21);
    }
}
