//! Room within the limit that allocations leave free, for code.
//!
//! The driver places code on the device when a kernel is first used, long after it has been given the
//! image, and no call says how much that takes. Where allocations have used everything up by then, the
//! session is above its limit. So images are counted as they come in, and so much is kept free as may
//! yet be placed. What the driver takes (kind `driver`, as NVML shows it) uses the room up.
//!
//! An image counts with all of its architectures, of which one will be placed at most: the rest stands
//! for the images to come, which programs like to load when their memory is full. The room is a small
//! part of the limit all the same, and the processes of a session share it.

use super::changes;
use super::charge::{left, trim};
use crate::device::Device;
use crate::driver_calls;
use crate::per_process::PerProcess;
use crate::process::{self, Verdict};
use core::sync::atomic::Ordering::Relaxed;
use driver::cuda::CuResult;
use session::ledger::Book;
use session::page::layout::{Kind, Layout, NO_LIMIT};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The driver takes memory for code in pages of this size. Programs with less code find room for it in
/// what a context takes anyway.
const PAGE: u64 = 2 << 20;
/// The part of a limit that is kept free at most, and how many bytes.
const PART: u64 = 32;
const MOST: u64 = 128 << 20;
/// The part of that which a program with code to speak of always has: what is in use for code and for
/// the driver's own tables changes with every allocation and launch.
const LEAST_PART: u64 = 4;

/// An image that the driver has been given.
struct Image {
    device: &'static Device,
    /// The context that it ends with; zero for libraries, which belong to none.
    context: usize,
    bytes: u64,
}

/// By module or library.
type Images = HashMap<usize, Image>;

static IMAGES: PerProcess<Mutex<Images>> = PerProcess::new();

/// In a forked child: the parent's code is not the child's.
pub(super) fn after_fork() {
    IMAGES.forget();
}

fn images() -> MutexGuard<'static, Images> {
    IMAGES.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// The driver has been given so many bytes more for a device.
fn given(device: &Device, bytes: u64) {
    let _ = device.images.fetch_update(Relaxed, Relaxed, |sum| Some(sum.saturating_add(bytes)));
}

/// The driver has dropped so many bytes.
fn dropped(device: &Device, bytes: u64) {
    let _ = device.images.fetch_update(Relaxed, Relaxed, |sum| Some(sum.saturating_sub(bytes)));
}

/// What of the images may yet be placed when the driver has taken so much.
pub(super) fn unplaced(device: &Device, driver: u64) -> u64 {
    device.images.load(Relaxed).saturating_sub(driver)
}

/// What an image is loaded as.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loaded {
    /// A module, which the current context has.
    Module,
    /// A library, for every context that uses it.
    Library,
}

/// Runs a call that gives the driver an image of so many bytes; `handle` is read after success.
pub(crate) fn load(
    bytes: u64,
    loaded_as: Loaded,
    call: impl FnOnce() -> CuResult,
    handle: impl FnOnce() -> usize,
) -> CuResult {
    let device = match process::get().current_device() {
        Verdict::Limited(device) if bytes > 0 => device,
        _ => return call(),
    };
    given(device, bytes);
    if !fill(device) {
        // What pools do not use serves better here.
        let _changing = changes::begin();
        trim(device);
        fill(device);
    }
    let result = call();
    let context = if loaded_as == Loaded::Library { 0 } else { driver_calls::current_context() };
    if result.is_ok() {
        // What had its handle before is gone, however that came about.
        let gone = images().insert(handle(), Image { device, context, bytes });
        if let Some(gone) = gone {
            dropped(gone.device, gone.bytes);
        }
    } else {
        dropped(device, bytes);
        fill(device);
    }
    result
}

/// Runs a call that unloads a module or a library.
pub(crate) fn unload(handle: usize, call: impl FnOnce() -> CuResult) -> CuResult {
    // Forgotten first: another thread may get the same handle.
    let image = images().remove(&handle);
    let result = call();
    match image {
        Some(image) if result.is_ok() => {
            dropped(image.device, image.bytes);
            fill(image.device);
        }
        Some(image) => match images().entry(handle) {
            Entry::Vacant(place) => {
                place.insert(image);
            }
            Entry::Occupied(_) => dropped(image.device, image.bytes),
        },
        None => {}
    }
    result
}

/// A context is gone, and its modules with it.
pub(super) fn context_ended(device: &Device, context: usize) {
    images().retain(|_, image| {
        let stays = image.context == 0 || image.context != context;
        if !stays {
            dropped(image.device, image.bytes);
        }
        stays
    });
    fill(device);
}

/// Keeps as much free as is wanted, or as there is; `false`: there is not enough.
fn fill(device: &Device) -> bool {
    let wanted = Wanted::by(device);
    let Some(mut book) = device.book() else { return true };
    let slot = device.seat().slot();
    let driver = book.has(slot, Kind::Driver);
    wanted.write(&mut book, slot, driver, 0);
    book.has(slot, Kind::Headroom) == wanted.bytes(book.real_limit(), driver)
}

/// Keeps free what can be, of what has just been given back.
pub(super) fn refill(device: &Device) {
    fill(device);
}

/// Headroom that has been lent to an allocation which needs it only if things turn out badly.
pub(super) struct Lent {
    device: &'static Device,
    /// What was kept free before.
    kept: u64,
}

/// Reserves bytes with the headroom's help; `None`: they do not fit even so, or without it.
pub(super) fn lend(device: &'static Device, kind: Kind, bytes: u64) -> Option<Lent> {
    let slot = device.seat().slot();
    let mut book = device.book()?;
    let kept = book.has(slot, Kind::Headroom);
    let rest = kept.checked_sub(bytes.saturating_sub(left(&book)))?;
    book.set(slot, Kind::Headroom, rest);
    book.charge(slot, kind, bytes);
    changes::reserved(device, &book);
    Some(Lent { device, kept })
}

impl Lent {
    /// Keeps free what can be; whether that is as much again as before.
    pub(super) fn give_back_all(&self) -> bool {
        self.give_back();
        let slot = self.device.seat().slot();
        self.device.book().is_some_and(|book| book.has(slot, Kind::Headroom) >= self.kept)
    }

    /// Keeps free what can be.
    pub(super) fn give_back(&self) {
        fill(self.device);
    }
}

/// What a process needs room for.
pub(super) struct Wanted {
    given: u64,
    processes: u64,
}

impl Wanted {
    pub(super) fn by(device: &Device) -> Self {
        let given = device.images.load(Relaxed);
        let processes = match device.page() {
            Some(page) if given >= PAGE => processes(page),
            _ => 1,
        };
        Self { given, processes }
    }

    /// Bytes to keep free under a limit when the driver has taken so many.
    fn bytes(&self, limit: u64, driver: u64) -> u64 {
        if self.given < PAGE || limit == NO_LIMIT {
            return 0;
        }
        let most = (limit / PART).min(MOST) / self.processes.max(1);
        let wanted = self.given.saturating_sub(driver).clamp(most / LEAST_PART, most);
        wanted - wanted % PAGE
    }

    /// Writes down what the driver has taken for a process, and how much is kept free then. `tried`: bytes
    /// of an allocation that has yet to be made. `true`: there is room for it as well.
    pub(super) fn write(&self, book: &mut Book<'_>, slot: usize, driver: u64, tried: u64) -> bool {
        let (had, kept) = (book.has(slot, Kind::Driver), book.has(slot, Kind::Headroom));
        let without = |sum: u64| sum.saturating_sub(had).saturating_sub(kept);
        let used = without(book.used()).saturating_add(driver);
        let on_device = without(book.on_device()).saturating_add(driver);
        let (limit, real) = (book.limit(), book.real_limit());
        let wanted = self.bytes(real, driver);
        let room = |tried: u64| {
            let left = limit.saturating_sub(used.saturating_sub(tried));
            left.min(real.saturating_sub(on_device.saturating_sub(tried)))
        };
        let keep = wanted.min(room(0));
        // What is given up goes first: nobody is to see more than the limit in use.
        if keep < kept {
            book.set(slot, Kind::Headroom, keep);
        }
        if driver != had {
            book.set(slot, Kind::Driver, driver);
        }
        if keep > kept {
            book.set(slot, Kind::Headroom, keep);
        }
        used <= limit && on_device <= real && keep == wanted.min(room(tried))
    }
}

/// How many processes a session has.
fn processes(page: &Layout) -> u64 {
    let seated = page.slots.iter().take(page.high_water.load(Relaxed) as usize);
    seated.filter(|slot| slot.pid.load(Relaxed) != 0).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn wanted(given: u64, processes: u64, limit: u64, driver: u64) -> u64 {
        Wanted { given: given * MIB, processes }.bytes(limit * MIB, driver * MIB) / MIB
    }

    #[test]
    fn small_programs_need_none() {
        assert_eq!(wanted(0, 1, 4096, 0), 0);
        assert_eq!(wanted(1, 1, 4096, 0), 0);
        assert_eq!(Wanted { given: u64::MAX, processes: 1 }.bytes(NO_LIMIT, 0), 0);
    }

    #[test]
    fn room_is_kept_for_what_is_not_placed() {
        assert_eq!(wanted(100, 1, 4096, 0), 100);
        assert_eq!(wanted(100, 1, 4096, 31), 68);
        // Always some.
        assert_eq!(wanted(100, 1, 4096, 652), 32);
        assert_eq!(wanted(3, 1, 4096, 0), 32);
    }

    #[test]
    fn it_is_a_small_part_of_the_limit_for_all_processes_together() {
        assert_eq!(wanted(1000, 1, 4096, 0), 128);
        assert_eq!(wanted(1000, 1, 65536, 0), 128);
        assert_eq!(wanted(1000, 1, 1024, 0), 32);
        assert_eq!(wanted(1000, 4, 1024, 0), 8);
        assert_eq!(wanted(1000, 64, 1024, 0), 0);
    }
}
