//! Holds a stream back for the moment in which a sample is put into it, so that the device meets event,
//! work and event one right behind the other, however long the host takes to hand them over.
//!
//! The stream waits until a word in host memory has reached a value (`cuStreamWaitValue32`), and
//! storing it lets the stream go on: no call of the driver's can be in the way of that. Should the thread
//! be kept from it, because the launch waits for what is held back, the governor stores it.

use super::{clock, own};
use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};
use std::sync::{Mutex, PoisonError};
use utils::driver::cuda::{DevicePtr, MEMHOSTREGISTER_DEVICEMAP, STREAM_WAIT_VALUE_GEQ, Stream};

use crate::per_process::PerProcess;

/// The longest that a stream is held back if its thread does not let go.
const LONGEST_NS: u64 = 2_000_000;
/// A lane whose launches were met waiting for themselves so often holds nothing back any more.
const STRIKES: u32 = 3;
/// Words of a context, each in a cache line of its own.
const WORDS: usize = 64;
const LINE: usize = 64;

/// A lane's way to hold its stream back.
#[derive(Default)]
pub(super) struct Hold {
    /// Null: none yet, or none to be had.
    word: AtomicPtr<AtomicU32>,
    at: AtomicU64,
    denied: AtomicBool,
    /// What the stream waits for, and since when; zero: it does not.
    value: AtomicU32,
    since: AtomicU64,
    strikes: AtomicU32,
}

/// A stream is held back until this is dropped.
pub(super) struct HeldBack<'lane> {
    hold: &'lane Hold,
    strikes: u32,
}

impl Hold {
    /// Holds the stream back; `None` where that cannot be done. To be called by the lane's thread, with
    /// the context of the stream current.
    pub(super) fn hold(&self, stream: Stream, context: usize) -> Option<HeldBack<'_>> {
        let strikes = self.strikes.load(Relaxed);
        if self.denied.load(Relaxed) || strikes >= STRIKES {
            return None;
        }
        if self.word.load(Relaxed).is_null() {
            let Some((word, at)) = take_word(context) else {
                self.denied.store(true, Relaxed);
                return None;
            };
            // Lanes before this one have left their last value in it.
            self.value.store(word.load(Relaxed), Relaxed);
            self.at.store(at, Relaxed);
            self.word.store(ptr::from_ref(word).cast_mut(), Release);
        }
        let value = self.value.load(Relaxed).wrapping_add(1);
        self.value.store(value, Relaxed);
        self.since.store(clock::now(), Release);
        let held = HeldBack { hold: self, strikes };
        let at = self.at.load(Relaxed);
        if own::stream_wait_value(stream, at, value, STREAM_WAIT_VALUE_GEQ).is_ok() {
            return Some(held);
        }
        self.denied.store(true, Relaxed);
        None
    }

    fn release(&self) {
        // SAFETY: null, or a word that stays mapped as long as the process lives.
        if let Some(word) = unsafe { self.word.load(Relaxed).as_ref() } {
            word.store(self.value.load(Relaxed), Release);
        }
        self.since.store(0, Release);
    }

    /// Lets a stream go that has been held back for too long. For the governor.
    pub(super) fn release_overdue(&self, now: u64) {
        let since = self.since.load(Relaxed);
        if since != 0 && now.saturating_sub(since) > LONGEST_NS {
            self.strikes.fetch_add(1, Relaxed);
            self.release();
        }
    }

    /// Gives the word back, for other lanes of the context. Nothing may be held back any more.
    pub(super) fn give_back(&self) {
        let word = self.word.swap(ptr::null_mut(), Relaxed);
        self.denied.store(true, Relaxed);
        give_word_back(word);
    }
}

impl HeldBack<'_> {
    /// Whether the stream is still held back.
    pub(super) fn is_intact(&self) -> bool {
        self.hold.strikes.load(Relaxed) == self.strikes
    }
}

impl Drop for HeldBack<'_> {
    fn drop(&mut self) {
        self.hold.release();
    }
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

fn take_word(context: usize) -> Option<(&'static AtomicU32, DevicePtr)> {
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

fn give_word_back(word: *const AtomicU32) {
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
        let mut device = 0;
        let visible = own::mem_host_register(host, BYTES, MEMHOSTREGISTER_DEVICEMAP).is_ok()
            && own::mem_host_device_pointer(&raw mut device, host, 0).is_ok();
        if !visible {
            // SAFETY: nobody has been told of the mapping.
            unsafe { libc::munmap(host, BYTES) };
            return None;
        }
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
