//! The free address ranges between a pool's allocations, as far as this process knows them. [`pools`](super::pools)
//! uses them to tell whether an allocation makes the pool grow.
//!
//! A pool grows even with enough unused bytes if they are not contiguous. The bytes of one former allocation are
//! contiguous, and so are neighbouring ranges within one chunk of the pool. The driver does not say where chunks begin;
//! they are assumed to begin at multiples of their size.

use std::collections::BTreeMap;

/// The step, in bytes, by which pools grow on current drivers. Growth beyond the estimate is noticed afterwards.
pub(super) const CHUNK: u64 = 32 << 20;

/// Allocations of at least this many bytes begin at multiples of [`PAGE`].
const LARGE: u64 = 1 << 20;
const PAGE: u64 = 2 << 20;

/// Free ranges: bytes by start address.
#[derive(Default, Debug)]
pub(super) struct Holes(BTreeMap<u64, u64>);

impl Holes {
    /// Adds the range of a freed allocation, and joins it with its neighbours within a chunk.
    pub(super) fn add(&mut self, start: u64, bytes: u64) {
        let (mut low, mut high) = (start, start.saturating_add(bytes));
        let joined = |low: u64, at: u64, high: u64| {
            !at.is_multiple_of(CHUNK) && high.saturating_sub(low) <= CHUNK
        };
        let before = self.0.range(..start).next_back().map(|(&start, &bytes)| (start, bytes));
        if let Some((before, bytes)) = before
            && before.saturating_add(bytes) == start
            && joined(before, start, high)
        {
            self.0.remove(&before);
            low = before;
        }
        if let Some(&after) = self.0.get(&high)
            && joined(low, high, high.saturating_add(after))
        {
            self.0.remove(&high);
            high = high.saturating_add(after);
        }
        self.0.insert(low, high - low);
    }

    /// Removes a range that has been allocated.
    pub(super) fn cut(&mut self, start: u64, bytes: u64) {
        let end = start.saturating_add(bytes);
        let over =
            |(&at, &bytes): (&u64, &u64)| (at.saturating_add(bytes) > start).then_some((at, bytes));
        let met: Vec<(u64, u64)> = self.0.range(..end).rev().map_while(over).collect();
        for (at, bytes) in met {
            self.0.remove(&at);
            let stop = at.saturating_add(bytes);
            if at < start {
                self.0.insert(at, start - at);
            }
            if stop > end {
                self.0.insert(end, stop - end);
            }
        }
    }

    /// Removes and returns the smallest range (start, bytes) that fits an allocation of `bytes`.
    pub(super) fn take(&mut self, bytes: u64) -> Option<(u64, u64)> {
        let grain = if bytes < LARGE { 1 } else { PAGE };
        let fits = |&(start, has): &(u64, u64)| {
            let aligned = start.checked_next_multiple_of(grain);
            aligned.is_some_and(|aligned| has.saturating_sub(aligned - start) >= bytes)
        };
        let all = self.0.iter().map(|(&start, &bytes)| (start, bytes));
        let found = all.filter(fits).min_by_key(|&(_, bytes)| bytes)?;
        self.0.remove(&found.0);
        Some(found)
    }

    /// The sum of all ranges in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.0.values().fold(0, |sum, &bytes| sum.saturating_add(bytes))
    }

    /// Drops the ranges of chunks without an allocation in `live`: the pool has given those chunks back.
    pub(super) fn trim(&mut self, live: &BTreeMap<u64, u64>) {
        let chunk = |at: u64| at - at % CHUNK;
        let mut kept = Self::default();
        let mut last = None;
        for (&start, &bytes) in live {
            // The allocation may end earlier, because its size was rounded up.
            let rounding = if bytes < LARGE { 0 } else { PAGE - 1 };
            let end = start.saturating_add(bytes.saturating_sub(rounding).max(1));
            // Free bytes can adjoin an allocation only in its first and last chunk.
            for low in [chunk(start), chunk(end - 1)] {
                if last.is_none_or(|last| low > last) {
                    last = Some(low);
                    self.each_within(low, low.saturating_add(CHUNK), |start, bytes| {
                        kept.0.insert(start, bytes);
                    });
                }
            }
        }
        *self = kept;
    }

    fn each_within(&self, low: u64, high: u64, mut each: impl FnMut(u64, u64)) {
        for (&start, &bytes) in self.0.range(..high).rev() {
            let end = start.saturating_add(bytes).min(high);
            if end <= low {
                break;
            }
            each(start.max(low), end - start.max(low));
        }
    }

    /// Forgets all ranges.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const BASE: u64 = 64 * CHUNK;

    fn holes(ranges: &[(u64, u64)]) -> Holes {
        let mut holes = Holes::default();
        for &(start, mib) in ranges {
            holes.add(BASE + start * MIB, mib * MIB);
        }
        holes
    }

    fn list(holes: &Holes) -> Vec<(u64, u64)> {
        holes.0.iter().map(|(start, bytes)| ((start - BASE) / MIB, bytes / MIB)).collect()
    }

    #[test]
    fn neighbours_are_joined_within_a_chunk_only() {
        assert_eq!(list(&holes(&[(0, 4), (8, 4), (4, 4)])), [(0, 12)]);
        assert_eq!(list(&holes(&[(28, 4), (32, 4)])), [(28, 4), (32, 4)]);
        assert_eq!(list(&holes(&[(0, 64), (64, 8)])), [(0, 64), (64, 8)]);
        // Bytes allocated at once are contiguous.
        assert_eq!(holes(&[(0, 320)]).take(320 * MIB), Some((BASE, 320 * MIB)));
    }

    #[test]
    fn what_is_allocated_is_cut_out() {
        let mut holes = holes(&[(0, 20), (40, 8)]);
        holes.cut(BASE + 4 * MIB, 4 * MIB);
        assert_eq!(list(&holes), [(0, 4), (8, 12), (40, 8)]);
        holes.cut(BASE + 2 * MIB, 100 * MIB);
        assert_eq!(list(&holes), [(0, 2)]);
        holes.cut(0, u64::MAX);
        assert_eq!(holes.bytes(), 0);
    }

    #[test]
    fn the_smallest_that_fits_is_taken_with_what_aligning_costs() {
        let mut found = holes(&[(0, 8), (40, 4)]);
        assert_eq!(found.take(4 * MIB), Some((BASE + 40 * MIB, 4 * MIB)));
        assert_eq!(found.take(12 * MIB), None);
        assert_eq!(found.take(8 * MIB), Some((BASE, 8 * MIB)));
        let mut odd = holes(&[(1, 4)]);
        assert_eq!(odd.take(4 * MIB), None);
        assert_eq!(odd.take(512), Some((BASE + MIB, 4 * MIB)));
    }

    #[test]
    fn trimming_leaves_what_lies_beside_something() {
        let mut holes = holes(&[(0, 4), (8, 10), (64, 32), (100, 4), (200, 2)]);
        let live = [(4, 4), (96, 4), (104, 92)].map(|(at, mib)| (BASE + at * MIB, mib * MIB));
        holes.trim(&live.into());
        assert_eq!(list(&holes), [(0, 4), (8, 10), (100, 4), (200, 2)]);
        holes.trim(&BTreeMap::new());
        assert_eq!(holes.bytes(), 0);
    }

    #[test]
    fn what_ends_in_a_chunk_by_rounding_alone_keeps_nothing_there() {
        // 23.5 MiB, which count as 24, up to the end of their chunk.
        let mut found = holes(&[(0, 8), (33, 31)]);
        found.trim(&[(BASE + 8 * MIB + MIB / 2, 24 * MIB)].into());
        assert_eq!(list(&found), [(0, 8)]);
        let mut found = holes(&[(0, 8), (34, 30)]);
        found.trim(&[(BASE + 8 * MIB, 26 * MIB)].into());
        assert_eq!(list(&found), [(0, 8), (34, 30)]);
    }
}
