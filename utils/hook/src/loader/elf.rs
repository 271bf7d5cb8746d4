//! A loaded library's symbol table, read from its dynamic section without the loader's help.
//!
//! Nothing that a library's tables say is trusted: unmapped memory is not read, and numbers are bounded.

use crate::code::peek;
use core::ffi::c_void;

/// `Elf64_Dyn`
#[repr(C)]
#[derive(Debug)]
pub(super) struct Dyn {
    tag: i64,
    value: usize,
}

const DYN: usize = size_of::<Dyn>();
/// The size of `Elf64_Sym`: name, info, other, section, value, size.
const SYM: usize = 24;
/// The size of `Elf64_Rela`: place, kind and symbol, addend.
const RELA: usize = 24;

const DT_NULL: i64 = 0;
const DT_PLTRELSZ: i64 = 2;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_STRSZ: i64 = 10;
const DT_SONAME: i64 = 14;
const DT_JMPREL: i64 = 23;
const DT_GNU_HASH: i64 = 0x6fff_fef5;

/// The kinds of relocations that hold the address of an imported function: `GLOB_DAT` and `JUMP_SLOT`.
#[cfg(target_arch = "x86_64")]
const IMPORTS: [u32; 2] = [6, 7];
#[cfg(target_arch = "aarch64")]
const IMPORTS: [u32; 2] = [1025, 1026];

const STT_NOTYPE: u8 = 0;
const STT_FUNC: u8 = 2;
const SHN_UNDEF: u16 = 0;

/// Entries of a dynamic section that are read at once. Libraries have about 40.
const ENTRIES_AT_ONCE: usize = 64;
const MOST_ENTRIES: usize = 4096;
/// The driver has fewer than 1,000.
const MOST_SYMBOLS: usize = 1 << 18;
const MOST_STRINGS: usize = 16 << 20;
/// NVML has about 2,700.
const MOST_RELOCATIONS: usize = 1 << 18;
const LONGEST_SONAME: usize = 256;

/// A function that a library defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// The function's name, without version.
    pub name: &'a str,
    /// The function's address in this process.
    pub address: *const c_void,
}

/// Memory of which only parts may be readable.
pub(super) trait Memory {
    /// Reads from `address` on; returns how many bytes could be read.
    fn read(&self, address: usize, into: &mut [u8]) -> usize;
}

/// This process's memory.
pub(super) struct Own;

impl Memory for Own {
    fn read(&self, address: usize, into: &mut [u8]) -> usize {
        peek::read(address, into)
    }
}

/// Reads `length` bytes; `None` if not all are readable.
fn bytes(memory: &impl Memory, address: usize, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    (memory.read(address, &mut bytes) == length).then_some(bytes)
}

fn word(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?))
}

fn long(bytes: &[u8]) -> Option<usize> {
    Some(usize::from_le_bytes(bytes.get(..8)?.try_into().ok()?))
}

/// The parts of a dynamic section that name lookup needs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tables {
    base: usize,
    symbols: usize,
    strings: usize,
    strings_size: usize,
    soname: Option<usize>,
    hash: usize,
    gnu_hash: usize,
    /// Start and size (bytes) of the two lists of relocations.
    relocations: [(usize, usize); 2],
}

impl Tables {
    /// Reads the dynamic section of the library loaded at `base`; `None` if it has no symbols or no end.
    pub(super) fn read(memory: &impl Memory, base: usize, dynamic: usize) -> Option<Self> {
        let mut found = Self { base, ..Self::default() };
        let mut chunk = [0; ENTRIES_AT_ONCE * DYN];
        for first in (0..MOST_ENTRIES).step_by(ENTRIES_AT_ONCE) {
            let read = memory.read(dynamic.checked_add(first * DYN)?, &mut chunk);
            for entry in chunk.get(..read)?.chunks_exact(DYN) {
                let value = long(entry.get(8..)?)?;
                match i64::from_le_bytes(entry.get(..8)?.try_into().ok()?) {
                    DT_NULL => return found.usable(),
                    DT_HASH => found.hash = value,
                    DT_STRTAB => found.strings = value,
                    DT_SYMTAB => found.symbols = value,
                    DT_STRSZ => found.strings_size = value,
                    DT_SONAME => found.soname = Some(value),
                    DT_GNU_HASH => found.gnu_hash = value,
                    DT_JMPREL => found.relocations[0].0 = value,
                    DT_PLTRELSZ => found.relocations[0].1 = value,
                    DT_RELA => found.relocations[1].0 = value,
                    DT_RELASZ => found.relocations[1].1 = value,
                    _ => {}
                }
            }
            if read < chunk.len() {
                return None;
            }
        }
        None
    }

    fn usable(mut self) -> Option<Self> {
        if self.symbols == 0 || self.strings == 0 {
            return None;
        }
        // The loader makes some addresses in this section absolute, but not those of the vDSO or of read-only sections.
        let base = self.base;
        let [(calls, _), (others, _)] = &mut self.relocations;
        let tables = [&mut self.symbols, &mut self.strings, &mut self.hash, &mut self.gnu_hash];
        for address in tables.into_iter().chain([calls, others]) {
            if *address != 0 && *address < base {
                *address = address.wrapping_add(base);
            }
        }
        Some(self)
    }

    pub(super) fn soname(&self, memory: &impl Memory) -> Option<String> {
        let offset = self.soname.filter(|&offset| offset < self.strings_size)?;
        let mut text = [0; LONGEST_SONAME];
        let length = LONGEST_SONAME.min(self.strings_size - offset);
        let read = memory.read(self.strings.checked_add(offset)?, &mut text[..length]);
        string(text.get(..read)?).map(str::to_owned)
    }

    pub(super) fn functions(&self, memory: &impl Memory, visit: &mut dyn FnMut(Symbol<'_>)) {
        let tables = self.count(memory).and_then(|count| {
            let symbols = bytes(memory, self.symbols, count.min(MOST_SYMBOLS) * SYM)?;
            let strings = bytes(memory, self.strings, self.strings_size.min(MOST_STRINGS))?;
            Some((symbols, strings))
        });
        let Some((symbols, strings)) = tables else { return };
        for symbol in symbols.chunks_exact(SYM) {
            if let Some((name, value)) = function(symbol)
                && let Some(name) = strings.get(name..).and_then(string)
            {
                visit(Symbol { name, address: self.base.wrapping_add(value) as *const c_void });
            }
        }
    }

    /// The words in which the loader stores the address of the imported function `name`.
    pub(super) fn imports(&self, memory: &impl Memory, name: &str) -> Vec<usize> {
        let mut places = Vec::new();
        for (at, size) in self.relocations {
            let size = size.min(MOST_RELOCATIONS * RELA);
            let Some(list) = bytes(memory, at, size).filter(|_| at != 0) else { continue };
            let relocations = list.chunks_exact(RELA).filter_map(|entry| {
                let (place, kind) = (long(entry)?, word(entry.get(8..)?)?);
                let symbol = word(entry.get(12..)?)? as usize;
                let is_meant = IMPORTS.contains(&kind) && self.is_named(memory, symbol, name);
                is_meant.then(|| self.base.wrapping_add(place))
            });
            places.extend(relocations);
        }
        places
    }

    fn is_named(&self, memory: &impl Memory, symbol: usize, name: &str) -> bool {
        let mut text = [0; LONGEST_SONAME];
        let named = (|| {
            let symbol = bytes(memory, self.symbols.checked_add(symbol * SYM)?, 4)?;
            let at = self.strings.checked_add(word(&symbol)? as usize)?;
            let text = text.get_mut(..=name.len())?;
            (memory.read(at, text) == text.len()).then(|| string(text) == Some(name))
        })();
        named == Some(true)
    }

    /// Number of symbols.
    fn count(&self, memory: &impl Memory) -> Option<usize> {
        if self.hash != 0 {
            // nchain
            return word(&bytes(memory, self.hash.checked_add(4)?, 4)?).map(|count| count as usize);
        }
        if self.gnu_hash == 0 {
            return None;
        }
        self.count_by_gnu_hash(memory)
    }

    /// One past the highest symbol index that a `DT_GNU_HASH` table reaches: header of four words, bloom
    /// filter of 64-bit words, buckets, chains.
    fn count_by_gnu_hash(&self, memory: &impl Memory) -> Option<usize> {
        const WORDS_AT_ONCE: usize = 64;
        let head = bytes(memory, self.gnu_hash, 12)?;
        let number = |index: usize| word(head.get(4 * index..)?).map(|word| word as usize);
        let (buckets, first, bloom) = (number(0)?, number(1)?, number(2)?);
        if buckets > MOST_SYMBOLS || bloom > MOST_SYMBOLS {
            return None;
        }
        let bucket = self.gnu_hash.checked_add(16 + 8 * bloom)?;
        let starts = bytes(memory, bucket, 4 * buckets)?;
        let last = starts.chunks_exact(4).filter_map(word).max().unwrap_or(0) as usize;
        if last < first {
            return Some(first);
        }
        let chain = bucket.checked_add(4 * buckets)?;
        let mut words = [0; 4 * WORDS_AT_ONCE];
        let mut index = last - first;
        while index < MOST_SYMBOLS {
            let read = memory.read(chain.checked_add(4 * index)?, &mut words);
            // The end of a chain is marked by its lowest bit.
            let mut marks = words.get(..read)?.chunks_exact(4).map(|word| word[0] & 1 == 1);
            match marks.position(|is_last| is_last) {
                Some(more) => return Some(first + index + more + 1),
                None if read < words.len() => return None,
                None => index += WORDS_AT_ONCE,
            }
        }
        None
    }
}

/// The name's offset and the value of a symbol, if it is a defined function.
fn function(symbol: &[u8]) -> Option<(usize, usize)> {
    let (info, section) = (*symbol.get(4)?, u16::from_le_bytes([*symbol.get(6)?, *symbol.get(7)?]));
    let (name, value) = (word(symbol)? as usize, long(symbol.get(8..)?)?);
    // The loader lets a program call untyped symbols as well.
    let callable = matches!(info & 0xf, STT_FUNC | STT_NOTYPE);
    (callable && section != SHN_UNDEF && value != 0).then_some((name, value))
}

/// The text up to the first NUL.
fn string(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|&byte| byte == 0)?;
    str::from_utf8(bytes.get(..end)?).ok()
}

/// Checks that arbitrary bytes in place of a library do no harm.
#[cfg(any(test, feature = "checks"))]
pub mod checks {
    use super::{ENTRIES_AT_ONCE, MOST_ENTRIES, MOST_SYMBOLS, Memory, Tables};
    use core::cell::Cell;

    /// The library's address.
    pub(super) const BASE: usize = 0x7f00_0000_0000;

    /// A library that is the only mapped memory.
    pub(super) struct Image<'a>(pub(super) &'a [u8], pub(super) Cell<usize>);

    impl Memory for Image<'_> {
        fn read(&self, address: usize, into: &mut [u8]) -> usize {
            self.1.set(self.1.get() + 1);
            let rest = address.checked_sub(BASE).and_then(|at| self.0.get(at..)).unwrap_or(&[]);
            let length = rest.len().min(into.len());
            into[..length].copy_from_slice(&rest[..length]);
            length
        }
    }

    /// Reads `image` as a library whose dynamic section is at `dynamic`.
    ///
    /// # Panics
    /// If a rule is broken.
    pub fn library(image: &[u8], dynamic: usize) {
        let memory = Image(image, Cell::new(0));
        if let Some(tables) = Tables::read(&memory, BASE, BASE.wrapping_add(dynamic)) {
            let name = tables.soname(&memory);
            assert!(name.is_none_or(|name| name.len() < super::LONGEST_SONAME));
            let mut functions = 0;
            tables.functions(&memory, &mut |symbol| {
                assert!(symbol.name.len() < image.len());
                functions += 1;
            });
            assert!(functions <= image.len() / super::SYM);
            assert!(tables.imports(&memory, "first").len() <= 2 * image.len() / super::RELA);
        }
        let relocations = 2 * (2 * image.len() / super::RELA + 1);
        let reads = MOST_ENTRIES / ENTRIES_AT_ONCE + MOST_SYMBOLS / 64 + 10 + relocations;
        assert!(memory.1.get() < reads);
    }
}

#[cfg(test)]
mod tests {
    use super::checks::{BASE, Image, library};
    use super::*;
    use core::cell::Cell;
    use proptest::prelude::*;

    const STRINGS: &[u8] = b"\0libx.so.1\0first\0second\0data\0";
    const TAGS: [i64; 12] = [
        DT_HASH,
        DT_STRTAB,
        DT_SYMTAB,
        DT_STRSZ,
        DT_SONAME,
        DT_GNU_HASH,
        DT_NULL,
        99,
        DT_JMPREL,
        DT_PLTRELSZ,
        DT_RELA,
        DT_RELASZ,
    ];

    fn entries(entries: &[(i64, usize)]) -> Vec<u8> {
        let entry =
            |&(tag, value): &(i64, usize)| [tag.to_le_bytes(), value.to_le_bytes()].concat();
        entries.iter().flat_map(entry).collect()
    }

    fn symbol(name: u32, info: u8, section: u16, value: usize) -> Vec<u8> {
        let (name, section) = (name.to_le_bytes(), section.to_le_bytes());
        [&name[..], &[info, 0], &section, &value.to_le_bytes(), &[0; 8]].concat()
    }

    /// Dynamic section at 0, symbols at 128, strings at 256, a hash table at 320 or, of GNU's kind, at 336.
    fn sound(hash: (i64, usize)) -> Vec<u8> {
        let dynamic = entries(&[
            (DT_SONAME, 1),
            (DT_STRTAB, BASE + 256),
            // Relative, as if the loader had not relocated the section.
            (DT_SYMTAB, 128),
            (DT_STRSZ, STRINGS.len()),
            hash,
            (DT_NULL, 0),
        ]);
        let symbols = [
            symbol(0, 0, 0, 0),
            symbol(11, 0x12, 7, 0x1000),
            symbol(17, 0x10, 7, 0x2000),
            symbol(24, 0x11, 7, 0x3000),
            symbol(11, 0x12, 0, 0x4000),
        ];
        let mut image = vec![0; 512];
        let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &dynamic);
        put(128, &symbols.concat());
        put(256, STRINGS);
        let words =
            |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        put(320, &words(&[1, 5]));
        // Two buckets, symbols from 1, one word of bloom filter; chains end after 2 and 4.
        put(336, &words(&[2, 1, 1, 0, 0, 0, 1, 3, 2, 3, 4, 5]));
        image
    }

    #[test]
    fn the_functions_of_a_library_are_found_by_either_table() {
        for hash in [(DT_HASH, BASE + 320), (DT_GNU_HASH, 336)] {
            let image = sound(hash);
            let memory = Image(&image, Cell::new(0));
            let tables = Tables::read(&memory, BASE, BASE).unwrap();
            assert_eq!(tables.soname(&memory).as_deref(), Some("libx.so.1"));
            assert_eq!(tables.count(&memory), Some(5));
            let mut found = Vec::new();
            tables.functions(&memory, &mut |symbol| {
                found.push((symbol.name.to_owned(), symbol.address as usize - BASE));
            });
            assert_eq!(found, [("first".to_owned(), 0x1000), ("second".to_owned(), 0x2000)]);
        }
    }

    #[test]
    fn the_places_of_an_imported_function_are_found() {
        let relocation = |place: usize, kind: u32, symbol: u32| {
            [&place.to_le_bytes()[..], &kind.to_le_bytes(), &symbol.to_le_bytes(), &[0; 8]].concat()
        };
        let [data, call] = IMPORTS;
        let calls = [relocation(0x10, call, 2), relocation(0x18, call, 1)].concat();
        let others =
            [relocation(0x20, data, 1), relocation(0x28, 8, 1), relocation(0x30, data, 9999)]
                .concat();
        let mut image = sound((DT_HASH, 320));
        let size = image.len();
        // Replaces the entry that ends the section.
        let more = entries(&[
            (DT_JMPREL, BASE + size),
            (DT_PLTRELSZ, calls.len()),
            (DT_RELA, size + calls.len()),
            (DT_RELASZ, others.len()),
            (DT_NULL, 0),
        ]);
        let symbols = image[128..248].to_vec();
        image.extend([calls, others, symbols].concat());
        image[80..80 + more.len()].copy_from_slice(&more);
        // The symbols have moved.
        image[40..48].copy_from_slice(&(size + 120).to_le_bytes());
        let memory = Image(&image, Cell::new(0));
        let tables = Tables::read(&memory, BASE, BASE).unwrap();
        let found = |name| tables.imports(&memory, name);
        assert_eq!(found("first"), [BASE + 0x18, BASE + 0x20]);
        assert_eq!(found("second"), [BASE + 0x10]);
        assert_eq!((found("firs"), found("first_"), found("")), (vec![], vec![], vec![]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_as_a_library(image in prop::collection::vec(any::<u8>(), 0..2048), at: usize) {
            library(&image, at);
            library(&image, at % 64);
        }

        #[test]
        fn a_library_that_was_changed_is_read(
            gnu: bool,
            changes in prop::collection::vec((0..512_usize, any::<u8>()), 1..8),
        ) {
            let mut image = sound(if gnu { (DT_GNU_HASH, 336) } else { (DT_HASH, 320) });
            changes.iter().for_each(|&(at, byte)| image[at] = byte);
            library(&image, 0);
        }

        #[test]
        fn any_dynamic_section_is_read(
            section in prop::collection::vec(
                (0..TAGS.len(), prop_oneof![0..600_usize, BASE..BASE + 600, any::<usize>()]),
                0..80,
            ),
            end: bool,
        ) {
            let section: Vec<_> =
                section.into_iter().map(|(tag, value)| (TAGS[tag], value)).collect();
            let mut image = entries(&section);
            image.extend(if end { sound((DT_HASH, 320)) } else { Vec::new() });
            library(&image, 0);
        }
    }
}
