//! The table of work kinds and their estimates, which each launch searches.
//!
//! Programs have a few hundred kinds, and consecutive launches are mostly of different kinds. So there is one table for
//! all threads, which grows and is read without a lock. It is at most half full; then a larger one replaces it, and the
//! smaller ones stay, because threads may be reading them. A thread that does not find a kind takes the lock and reads
//! the current table.

use super::driver_calls;
use super::estimate::{Estimate, Family};
use super::work::{Launched, Work};
use crate::per_process::PerProcess;
use core::cell::Cell;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Kinds that are distinguished; later ones share one estimate.
const MOST_KINDS: usize = 1 << 16;
/// Functions with a grid model; new kinds of other functions count in full until their estimates are known.
const MOST_FUNCTIONS: usize = 1 << 14;
/// Places of the first table. All tables have a power of two.
const FIRST_PLACES: usize = 256;

/// A place for a kind; two fit into a cache line.
#[derive(Default)]
#[repr(align(32))]
struct Place(OnceLock<(Work, &'static Estimate)>);

/// A table. Its entries are never removed.
type Places = &'static [Place];

/// The places where a kind may be, in search order. A table that is not full has a free one among them.
#[inline]
fn places_of(places: Places, work: Work) -> impl Iterator<Item = &'static Place> {
    let last = places.len().wrapping_sub(1);
    (0..places.len()).filter_map(move |step| places.get(work.spread().wrapping_add(step) & last))
}

#[inline]
fn find(places: Places, work: Work) -> Option<&'static Estimate> {
    for place in places_of(places, work) {
        let &(known, estimate) = place.0.get()?;
        if known == work {
            return Some(estimate);
        }
    }
    None
}

/// The table that a thread has last seen.
pub(super) struct Seen(Cell<Places>);

impl Seen {
    pub(super) const fn new() -> Self {
        Self(Cell::new(&[]))
    }

    /// The estimate, if the kind is in the table that the thread has last seen.
    #[inline]
    pub(super) fn find(&self, work: Work) -> Option<&'static Estimate> {
        find(self.0.get(), work)
    }

    /// The estimate, made if the kind is new. `None` for work that cannot be estimated.
    pub(super) fn meet(&self, launched: &Launched) -> Option<&'static Estimate> {
        let work = launched.work;
        if work == Work::UNKNOWN {
            return None;
        }
        if let Some(estimate) = self.find(work) {
            return Some(estimate);
        }
        let (estimate, places) = KINDS.get().meet(launched);
        self.0.set(places);
        Some(estimate)
    }
}

/// All kinds of the process.
#[derive(Default)]
struct Kinds {
    table: Mutex<Table>,
    functions: Mutex<HashMap<usize, &'static Family>>,
}

static KINDS: PerProcess<Kinds> = PerProcess::new();

/// In a forked child: a thread of the parent may have held the lock.
pub(super) fn after_fork() {
    KINDS.forget();
}

/// The current table, and the number of kinds in it.
#[derive(Default)]
struct Table {
    places: Places,
    known: usize,
}

impl Table {
    /// Adds a kind that is not in the table.
    fn add(&mut self, work: Work, estimate: &'static Estimate) {
        if self.known * 2 >= self.places.len() {
            self.grow();
        }
        put(self.places, work, estimate);
        self.known += 1;
    }

    fn grow(&mut self) {
        let count = (self.places.len() * 2).max(FIRST_PLACES);
        // Never freed: threads refer to it.
        let larger: Places =
            Box::leak(core::iter::repeat_with(Place::default).take(count).collect());
        for &(work, estimate) in self.places.iter().filter_map(|place| place.0.get()) {
            put(larger, work, estimate);
        }
        self.places = larger;
    }
}

/// Called by one thread at a time.
fn put(places: Places, work: Work, estimate: &'static Estimate) {
    let free = places_of(places, work).find(|place| place.0.get().is_none());
    let _ = free.map(|place| place.0.set((work, estimate)));
}

impl Kinds {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meet(&self, launched: &Launched) -> (&'static Estimate, Places) {
        let table = self.table();
        if let Some(known) = find(table.places, launched.work) {
            return (known, table.places);
        }
        let full = table.known >= MOST_KINDS;
        drop(table);
        let (work, function) =
            if full { (Work::OTHER, None) } else { (launched.work, launched.function()) };
        // Before any lock is taken, because it calls the driver.
        let collective = function.is_some_and(|(function, _)| is_collective(function));
        let function = function
            .and_then(|(function, threads)| self.family_of(function).map(|own| (own, threads)));
        let mut table = self.table();
        // Another thread may have added the kind meanwhile.
        let estimate = find(table.places, work).unwrap_or_else(|| {
            // Never freed: threads refer to it.
            let made = Box::leak(Box::new(Estimate::new(function, collective)));
            table.add(work, made);
            made
        });
        (estimate, table.places)
    }

    /// The state of a function; `None`: there are too many functions.
    fn family_of(&self, function: usize) -> Option<&'static Family> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        let full = functions.len() >= MOST_FUNCTIONS;
        let known = functions.get(&function).copied();
        // Never freed, like the kinds.
        known.or_else(|| {
            let made: Option<&'static Family> = (!full).then(|| &*Box::leak(Box::default()));
            functions.extend(made.map(|family| (function, family)));
            made
        })
    }
}

/// Whether a function's name is that of a kernel that waits for other devices. Only a hint: other kernels may have such
/// names, and such kernels other names.
fn is_collective(function: usize) -> bool {
    let function = core::ptr::with_exposed_provenance_mut(function);
    let mut name = core::ptr::null();
    let found = driver_calls::func_get_name(&raw mut name, function).is_ok()
        || driver_calls::kernel_get_name(&raw mut name, function).is_ok();
    if !found || name.is_null() {
        return false;
    }
    // SAFETY: the driver's own string, which lives as long as the function; the function is about to be launched.
    let name = unsafe { core::ffi::CStr::from_ptr(name) };
    is_name_of_collective(name.to_bytes())
}

/// Covers communication libraries, and the own kernels of inference servers.
fn is_name_of_collective(name: &[u8]) -> bool {
    const PARTS: [&[u8]; 11] = [
        b"nccl",
        b"nvshmem",
        b"mscclpp",
        b"allreduce",
        b"all_reduce",
        b"cross_device_reduce",
        b"allgather",
        b"all_gather",
        b"reducescatter",
        b"reduce_scatter",
        b"all_to_all",
    ];
    let has = |part: &[u8]| name.windows(part.len()).any(|found| found.eq_ignore_ascii_case(part));
    PARTS.into_iter().any(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_wait_for_other_devices_are_known_by_their_names() {
        for name in [
            "ncclDevKernel_AllReduce_Sum_f16",
            "_ZN4vllm26cross_device_reduce_1stage",
            "oneShotAllReduceKernel",
        ] {
            assert!(is_name_of_collective(name.as_bytes()), "{name}");
        }
        for name in ["", "ampere_sgemm_128x64_nn", "reduce_kernel", "nc"] {
            assert!(!is_name_of_collective(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn threads_share_what_is_known() {
        let work = Work::transfer(9, 12_345);
        let one = Seen::new().meet(&work.into()).unwrap();
        let seen = Seen::new();
        let two = seen.meet(&work.into()).unwrap();
        assert!(core::ptr::eq(one, two));
        assert!(core::ptr::eq(seen.find(work).unwrap(), two));
        assert!(seen.meet(&Work::UNKNOWN.into()).is_none());
    }

    fn kernel(function: usize, blocks: u32) -> Work {
        let function = core::ptr::without_provenance_mut(function);
        Work::kernel(function, [blocks, 1, 1], [256, 1, 1])
    }

    #[test]
    fn any_number_of_kinds_is_found_at_once() {
        let mut table = Table::default();
        let kinds = |n: u32| kernel(0x7f00_0000_0000 + 64 * (n as usize % 50), 1 + n / 50);
        for n in 0..3_000 {
            let estimate = Box::leak(Box::new(Estimate::default()));
            table.add(kinds(n), estimate);
            assert!(core::ptr::eq(find(table.places, kinds(n)).unwrap(), estimate));
        }
        assert_eq!((table.known, table.places.len()), (3_000, 8_192));
        let steps = |n| {
            let is_it = |place: &Place| place.0.get().is_some_and(|&(work, _)| work == kinds(n));
            places_of(table.places, kinds(n)).position(is_it).unwrap()
        };
        let sum: usize = (0..3_000).map(steps).sum();
        // 900 if they are spread evenly.
        assert!(sum < 1_500, "{sum}");
        assert!(find(table.places, kinds(3_001)).is_none());
    }

    #[test]
    fn what_a_thread_has_not_seen_is_found_in_the_present_table() {
        let (kinds, early) = (Kinds::default(), kernel(64, 1));
        let (first, places) = kinds.meet(&early.into());
        for n in 2..1_000 {
            kinds.meet(&kernel(64, n).into());
        }
        let (again, larger) = kinds.meet(&early.into());
        assert!(core::ptr::eq(first, again) && larger.len() > places.len());
        // Readers of the smaller table still find its entries.
        assert!(core::ptr::eq(find(places, early).unwrap(), first));
        assert!(find(places, kernel(64, 999)).is_none());
        assert!(find(larger, kernel(64, 999)).is_some());
    }
}
