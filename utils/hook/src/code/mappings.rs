//! This process's mappings.
//!
//! Linux 6.11 and later answer queries for single mappings (`PROCMAP_QUERY`). Other kernels write the whole list each
//! time, in a third of a millisecond per thousand mappings. There, the loader's headers tell the code of libraries, and
//! the list is read only for other addresses, once for many queries.

use super::machine::PAGE;
use super::peek::error_of;
use super::segments;
use core::ffi::c_int;
use core::ops::Range;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;

const LIST: &str = "/proc/self/maps";

/// A range of memory with one protection.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) range: Range<usize>,
    pub(super) protection: c_int,
}

/// How unknown mappings are looked up.
#[derive(Debug, Default)]
enum Source {
    /// All mappings are known.
    #[default]
    List,
    /// By a query to the kernel.
    Kernel(File),
    /// For code, from the loader's headers; otherwise the kernel's list is read.
    Loader(File),
}

/// The mappings of this process: a snapshot of the list, or looked up on demand.
#[derive(Debug, Default)]
pub struct Mappings {
    /// All mappings by address, or those looked up so far.
    known: Vec<Mapping>,
    source: Source,
}

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    /// Page size, offset, inode, device.
    of_the_file: [u64; 4],
    /// Zero: the name and build id are not requested.
    sizes: u64,
    addresses: [u64; 2],
}

/// `PROCMAP_QUERY`
const QUERY: libc::Ioctl = libc::_IOWR::<Query>(b'f' as u32, 17);

/// Queries the kernel for the mapping of an address.
fn asked(kernel: &File, address: usize) -> Option<Mapping> {
    let size = size_of::<Query>() as u64;
    let mut query = Query { size, query_addr: address as u64, ..Query::default() };
    // SAFETY: the kernel writes no more than the size that it is told.
    let error = error_of(|| unsafe { libc::ioctl(kernel.as_raw_fd(), QUERY, &raw mut query) });
    // The lowest bits are those of `PROT_READ`, `PROT_WRITE` and `PROT_EXEC`.
    let protection = (query.vma_flags & 7) as c_int;
    let range = query.vma_start as usize..query.vma_end as usize;
    (error.is_none() && range.contains(&address)).then_some(Mapping { range, protection })
}

impl Mappings {
    /// The present mappings; `None` if the kernel's list cannot be opened.
    #[must_use]
    pub fn now() -> Option<Self> {
        let kernel = File::open(LIST).ok()?;
        Some(match asked(&kernel, asked as *const () as usize) {
            Some(own) => Self { known: vec![own], source: Source::Kernel(kernel) },
            None => Self { known: Vec::new(), source: Source::Loader(kernel) },
        })
    }

    /// Reads the whole list.
    fn list(&mut self) {
        match core::mem::take(&mut self.source) {
            Source::Kernel(kernel) | Source::Loader(kernel) => {
                *self = Self::read(kernel).unwrap_or_default();
            }
            Source::List => {}
        }
    }

    /// Reads all mappings from the kernel's list.
    fn read(mut kernel: File) -> Option<Self> {
        let mut list = Vec::with_capacity(64 * 1024);
        kernel.read_to_end(&mut list).ok()?;
        Self::parse(&list)
    }

    pub(crate) fn parse(list: &[u8]) -> Option<Self> {
        let mut mappings: Vec<Mapping> = Vec::new();
        // A path may hold any byte but a line break, which is escaped.
        for line in list.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let mut next = mapping(line)?;
            // The kernel writes the list in pieces; a mapping that grows meanwhile appears in two of them.
            let known = mappings.last().map_or(0, |last| last.range.end);
            next.range.start = next.range.start.max(known);
            if !next.range.is_empty() {
                mappings.push(next);
            }
        }
        Some(Self { known: mappings, source: Source::List })
    }

    /// Checks that the mappings are in order, and that free addresses are not mapped.
    #[cfg(any(test, feature = "checks"))]
    pub(crate) fn check(&mut self) {
        let ranges: Vec<_> = self.known.iter().map(|mapping| mapping.range.clone()).collect();
        assert!(ranges.iter().all(|range| range.start < range.end));
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "{ranges:x?}");
        for range in &ranges {
            assert_eq!(self.at(range.start).map(|(_, left)| left), Some(range.len()));
            for place in self.free(range.start, &(0..usize::MAX), 0x4000) {
                assert!(self.at(place).is_none(), "{place:x}");
            }
        }
    }

    /// Adds a mapping that existed before, which then needs no query.
    pub(crate) fn note(&mut self, range: Range<usize>, protection: c_int) {
        if !matches!(self.source, Source::List) {
            self.known.push(Mapping { range, protection });
        }
    }

    /// Adds a mapping that was created in the free `range`.
    pub(crate) fn add(&mut self, range: Range<usize>, protection: c_int) {
        let next = self.known.partition_point(|mapping| mapping.range.end <= range.start);
        self.known.insert(next, Mapping { range, protection });
    }

    /// The protection of the mapping that contains `address`, and the bytes left up to its end.
    pub(crate) fn at(&mut self, address: usize) -> Option<(c_int, usize)> {
        let holds = |mapping: &Mapping| mapping.range.contains(&address);
        if !matches!(self.source, Source::List) && !self.known.iter().any(holds) {
            let told = match &self.source {
                Source::Kernel(kernel) => Some(asked(kernel, address)?),
                Source::Loader(_) => segments::code_at(address),
                Source::List => None,
            };
            match told {
                Some(mapping) => self.known.push(mapping),
                None => self.list(),
            }
        }
        let index = match self.source {
            Source::List => self.known.partition_point(|mapping| mapping.range.end <= address),
            _ => self.known.iter().position(holds)?,
        };
        let mapping = self.known.get(index).filter(|mapping| holds(mapping))?;
        Some((mapping.protection, mapping.range.end - address))
    }

    /// Page-aligned addresses in `within` with `size` free bytes: one per gap, nearest to `origin` first. Reads the
    /// whole list.
    pub(crate) fn free(&mut self, origin: usize, within: &Range<usize>, size: usize) -> Vec<usize> {
        self.list();
        let ends = self.known.iter().map(|mapping| mapping.range.end);
        let starts = self.known.iter().map(|mapping| mapping.range.start);
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

/// Parses a line such as `7f00-7f10 r-xp ...`.
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
    const LINES: &[u8] = b"04000000-04090000 r-xs 00000000 08:00 16088 /usr/bin/a name \xff\n\
        04090000-040a0000 rw-p 00090000 08:00 16088\n\
        05000000-05010000 ---p 00000000 00:00 0 [heap]\n\
        ffffffffff600000-ffffffffff610000 --xp 00000000 00:00 0 [vsyscall]\n";

    #[test]
    fn protections_are_found() {
        let mut mappings = Mappings::parse(LINES).unwrap();
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
        let mut mappings = Mappings::parse(LINES).unwrap();
        let all = 0x10_0000..usize::MAX;
        let places = mappings.free(0x400_0010, &all, 0x4_0000);
        assert_eq!(places, [0x3fc_0000, 0x40a_0000, 0x501_0000, 0xffff_ffff_ff61_0000]);
        // Gaps that are partly out of reach are not offered.
        assert_eq!(mappings.free(0x400_0010, &(0x3fe_0000..0x40e_0001), 0x4_0000), [0x40a_0000]);
        assert!(mappings.free(0x400_0010, &(0x3fe_0000..0x40d_0000), 0x4_0000).is_empty());
        // A place that was mapped meanwhile is not offered again.
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
        let ranges: Vec<_> = mappings.known.iter().map(|mapping| mapping.range.clone()).collect();
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
        let mut mappings = Mappings::now().unwrap();
        let own = this_process_has_its_code_mapped as *const () as usize;
        let (protection, left) = mappings.at(own).unwrap();
        assert_eq!(protection, libc::PROT_READ | libc::PROT_EXEC);
        assert!(left > 0);
    }

    /// Whether the kernel claims to support queries for single mappings. Processor emulators do not, whatever they
    /// claim.
    fn can_be_asked() -> bool {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
        let version = (numbers.next().unwrap(), numbers.next().unwrap());
        // SAFETY: asks for a number.
        version >= (6, 11) && unsafe { libc::prctl(libc::PR_GET_SECCOMP) >= 0 }
    }

    #[test]
    fn the_list_is_read_for_what_the_loader_does_not_know() {
        static CONSTANT: u64 = 7;
        let file = File::open(LIST).unwrap();
        let mut mappings = Mappings { known: Vec::new(), source: Source::Loader(file) };
        mappings.note(0x1000..0x2000, libc::PROT_READ);
        let own = can_be_asked as *const () as usize;
        for function in [own, libc::getppid as *const () as usize, own] {
            let (protection, left) = mappings.at(function).unwrap();
            assert_eq!(protection, libc::PROT_READ | libc::PROT_EXEC);
            assert!(left > 0);
        }
        assert_eq!(mappings.at(0x1800), Some((libc::PROT_READ, 0x800)));
        assert!(matches!(mappings.source, Source::Loader(_)) && mappings.known.len() == 3);
        let (protection, _) = mappings.at(&raw const CONSTANT as usize).unwrap();
        assert_eq!(protection, libc::PROT_READ);
        assert!(matches!(mappings.source, Source::List) && mappings.known.len() > 3);
        assert!(mappings.at(own).is_some() && mappings.at(0x1800).is_none());
        // An earlier mapping is in the list already.
        let before = mappings.known.len();
        mappings.note(0x1000..0x2000, libc::PROT_READ);
        assert_eq!(mappings.known.len(), before);
    }

    #[test]
    fn the_kernel_says_of_single_mappings_what_its_list_says() {
        let mut single = Mappings::now().unwrap();
        if !can_be_asked() {
            assert!(matches!(single.source, Source::Loader(_)));
            println!("SKIPPED: the kernel cannot be asked for single mappings");
            return;
        }
        assert!(matches!(single.source, Source::Kernel(_)));
        let mut list = Mappings::read(File::open(LIST).unwrap()).unwrap();
        assert!(list.known.len() > 10 && matches!(list.source, Source::List));
        let starts: Vec<_> = list.known.iter().map(|mapping| mapping.range.start).collect();
        let ends = list.known.iter().map(|mapping| mapping.range.end);
        let mut compared = 0;
        for at in starts.into_iter().chain(ends.collect::<Vec<_>>()) {
            // The kernel's own page is in the list only. The heap grows meanwhile.
            let known = list.at(at).filter(|_| at < 1 << 63);
            let told = single.at(at);
            if told != known {
                let now = Mappings::read(File::open(LIST).unwrap()).unwrap().at(at);
                assert_eq!(told, now.filter(|_| at < 1 << 63), "{at:x}");
            }
            compared += usize::from(told.is_some());
        }
        assert!(compared > 10, "{compared}");
        // SAFETY: this thread's own.
        unsafe { *libc::__errno_location() = 77 };
        assert_eq!([single.at(0), single.at(usize::MAX)], [None, None]);
        // SAFETY: as above.
        assert_eq!(unsafe { *libc::__errno_location() }, 77);
        // Free places are looked up in the list.
        let own = can_be_asked as *const () as usize;
        for place in single.free(own, &(0..1 << 47), 0x4000).into_iter().take(9) {
            assert_eq!(list.at(place), None, "{place:x}");
        }
        assert!(matches!(single.source, Source::List) && single.at(own).is_some());
    }
}
