//! This process's mappings, read once for many questions. The kernel writes the list anew each
//! time, which takes a millisecond if there are thousands of mappings.

use super::machine::PAGE;
use core::ffi::c_int;
use core::ops::Range;
use std::fs::File;
use std::io::Read;

/// A range of memory with one protection.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    range: Range<usize>,
    protection: c_int,
}

/// The mappings of this process, by address, as they were at one moment.
#[derive(Debug, Default)]
pub struct Mappings(Vec<Mapping>);

impl Mappings {
    /// The present mappings; `None` if the kernel does not tell them.
    #[must_use]
    pub fn now() -> Option<Self> {
        let mut list = Vec::with_capacity(64 * 1024);
        File::open("/proc/self/maps").ok()?.read_to_end(&mut list).ok()?;
        Self::parse(&list)
    }

    pub(crate) fn parse(list: &[u8]) -> Option<Self> {
        let mut mappings: Vec<Mapping> = Vec::new();
        // A path may hold any byte but a line break, which is escaped.
        for line in list.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let mut next = mapping(line)?;
            // The kernel writes the list in pieces. A mapping that grows between two pieces is in
            // both.
            let known = mappings.last().map_or(0, |last| last.range.end);
            next.range.start = next.range.start.max(known);
            if !next.range.is_empty() {
                mappings.push(next);
            }
        }
        Some(Self(mappings))
    }

    /// The mappings are in order, and what is free is not mapped.
    #[cfg(any(test, feature = "checks"))]
    pub(crate) fn check(&self) {
        let ranges: Vec<_> = self.0.iter().map(|mapping| mapping.range.clone()).collect();
        assert!(ranges.iter().all(|range| range.start < range.end));
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "{ranges:x?}");
        for range in &ranges {
            assert_eq!(self.at(range.start).map(|(_, left)| left), Some(range.len()));
            for place in self.free(range.start, &(0..usize::MAX), 0x4000) {
                assert!(self.at(place).is_none(), "{place:x}");
            }
        }
    }

    /// Records that `range`, which was free, has been mapped.
    pub(crate) fn add(&mut self, range: Range<usize>, protection: c_int) {
        let next = self.0.partition_point(|mapping| mapping.range.end <= range.start);
        self.0.insert(next, Mapping { range, protection });
    }

    /// The protection of the mapping that contains `address`, and how many bytes are left up to its
    /// end.
    pub(crate) fn at(&self, address: usize) -> Option<(c_int, usize)> {
        let next = self.0.partition_point(|mapping| mapping.range.end <= address);
        let mapping = self.0.get(next).filter(|mapping| mapping.range.contains(&address))?;
        Some((mapping.protection, mapping.range.end - address))
    }

    /// Page starts in `within` from which `size` bytes are free: one for each gap, nearest to
    /// `origin` first.
    pub(crate) fn free(&self, origin: usize, within: &Range<usize>, size: usize) -> Vec<usize> {
        let ends = self.0.iter().map(|mapping| mapping.range.end);
        let starts = self.0.iter().map(|mapping| mapping.range.start);
        let gaps = core::iter::once(0).chain(ends).zip(starts.chain([usize::MAX]));
        let mut places: Vec<usize> = gaps
            .filter_map(|(from, to)| {
                let first = from.max(within.start).checked_next_multiple_of(PAGE)?;
                let last = to.min(within.end).checked_sub(size)? / PAGE * PAGE;
                (first <= last).then(|| (origin / PAGE * PAGE).clamp(first, last))
            })
            .collect();
        places.sort_unstable_by_key(|&place| place.abs_diff(origin));
        places
    }
}

/// `7f00-7f10 r-xp ...`
fn mapping(line: &[u8]) -> Option<Mapping> {
    let mut fields = line.split(|&byte| byte == b' ');
    let mut ends = fields.next()?.split(|&byte| byte == b'-').map(address);
    let range = ends.next()??..ends.next()??;
    let rights = fields.next()?.get(..3)?;
    let bits = [libc::PROT_READ, libc::PROT_WRITE, libc::PROT_EXEC];
    let given = rights.iter().zip(bits).filter(|&(&right, _)| right != b'-');
    let protection = given.fold(libc::PROT_NONE, |all, (_, bit)| all | bit);
    (range.start < range.end).then_some(Mapping { range, protection })
}

fn address(text: &[u8]) -> Option<usize> {
    usize::from_str_radix(core::str::from_utf8(text).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Pages of any size begin at these addresses.
    const LIST: &[u8] = b"04000000-04090000 r-xs 00000000 08:00 16088 /usr/bin/a name \xff\n\
        04090000-040a0000 rw-p 00090000 08:00 16088\n\
        05000000-05010000 ---p 00000000 00:00 0 [heap]\n\
        ffffffffff600000-ffffffffff610000 --xp 00000000 00:00 0 [vsyscall]\n";

    #[test]
    fn protections_are_found() {
        let mappings = Mappings::parse(LIST).unwrap();
        let code = libc::PROT_READ | libc::PROT_EXEC;
        assert_eq!(mappings.at(0x400_0000), Some((code, 0x9_0000)));
        assert_eq!(mappings.at(0x408_ffff), Some((code, 1)));
        assert_eq!(mappings.at(0x409_0000), Some((libc::PROT_READ | libc::PROT_WRITE, 0x1_0000)));
        assert_eq!(mappings.at(0x500_0010), Some((libc::PROT_NONE, 0xfff0)));
        for nowhere in [0, 0x3ff_ffff, 0x40a_0000, 0x4ff_ffff, 0x501_0000, usize::MAX] {
            assert_eq!(mappings.at(nowhere), None, "{nowhere:#x}");
        }
    }

    #[test]
    fn free_memory_is_found_nearest_first() {
        let mappings = Mappings::parse(LIST).unwrap();
        let all = 0x10_0000..usize::MAX;
        let places = mappings.free(0x400_0010, &all, 0x4_0000);
        assert_eq!(places, [0x3fc_0000, 0x40a_0000, 0x501_0000, 0xffff_ffff_ff61_0000]);
        // Gaps that are wholly or partly out of reach are not offered.
        assert_eq!(mappings.free(0x400_0010, &(0x3fe_0000..0x40e_0001), 0x4_0000), [0x40a_0000]);
        assert!(mappings.free(0x400_0010, &(0x3fe_0000..0x40d_0000), 0x4_0000).is_empty());
        // A place that was mapped meanwhile is not offered again.
        let mut mappings = mappings;
        mappings.add(0x3fc_0000..0x400_0000, libc::PROT_NONE);
        assert_eq!(mappings.free(0x400_0010, &all, 0x4_0000)[..2], [0x3f8_0000, 0x40a_0000]);
        assert_eq!(mappings.at(0x3ff_0000), Some((libc::PROT_NONE, 0x1_0000)));
        // In an empty process, all memory is free.
        assert_eq!(Mappings::default().free(0x1234_0008, &all, 0x4_0000), [0x1234_0000]);
    }

    #[test]
    fn a_mapping_that_grew_while_the_list_was_read_counts_once() {
        let list = b"1000-3000 r--p 0\n2000-4000 r-xp 0\n3000-4000 r-xp 0\n4000-5000 rw-p 0\n";
        let mappings = Mappings::parse(list).unwrap();
        let ranges: Vec<_> = mappings.0.iter().map(|mapping| mapping.range.clone()).collect();
        assert_eq!(ranges, [0x1000..0x3000, 0x3000..0x4000, 0x4000..0x5000]);
    }

    #[test]
    fn what_is_no_list_of_mappings_is_not_believed() {
        for list in [
            &b"text"[..],
            b"1000-2000",
            b"1000-2000 r",
            b"2000-1000 r-xp",
            b"1000 r-xp",
            b"1000-2000 r-xp 0\ng000-h000 r-xp 0",
        ] {
            assert!(Mappings::parse(list).is_none(), "{}", String::from_utf8_lossy(list));
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_a_list_in_order_or_none(list: Vec<u8>) {
            crate::checks::mappings(&list);
        }

        #[test]
        fn any_lines_are_a_list_in_order_or_none(
            list in "([0-9a-f]{1,17}-[0-9a-f]{1,17} [-rwxp]{2,5} ([0-9a-f]{1,17} 0:0 1)? ?/?\\PC{0,9}\n){0,9}",
        ) {
            crate::checks::mappings(list.as_bytes());
        }
    }

    #[test]
    fn this_process_has_its_code_mapped() {
        let mappings = Mappings::now().unwrap();
        let own = this_process_has_its_code_mapped as *const () as usize;
        let (protection, left) = mappings.at(own).unwrap();
        assert_eq!(protection, libc::PROT_READ | libc::PROT_EXEC);
        assert!(left > 0);
    }
}
