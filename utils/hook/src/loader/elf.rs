//! A loaded library's symbol table, read from its dynamic section without the loader's help.

use core::ffi::{CStr, c_char, c_void};
use core::ptr;

/// `Elf64_Dyn`
#[repr(C)]
#[derive(Debug)]
pub(super) struct Dyn {
    tag: i64,
    value: usize,
}

/// `Elf64_Sym`
#[repr(C)]
struct Sym {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: usize,
}

const DT_NULL: i64 = 0;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_STRSZ: i64 = 10;
const DT_SONAME: i64 = 14;
const DT_GNU_HASH: i64 = 0x6fff_fef5;

const STT_FUNC: u8 = 2;
const SHN_UNDEF: u16 = 0;

/// A function that a library defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Its name, without version.
    pub name: &'a str,
    /// Its address in this process.
    pub address: *const c_void,
}

/// The parts of a dynamic section that name lookup needs.
pub(super) struct Tables {
    base: usize,
    symbols: *const Sym,
    strings: *const c_char,
    strings_size: usize,
    soname: Option<usize>,
    count: usize,
}

impl Tables {
    /// Reads the section of the library loaded at `base`; `None` where it has no symbols.
    ///
    /// # Safety
    /// `dynamic` must be the dynamic section of a library that stays loaded while the result is
    /// in use.
    pub(super) unsafe fn read(base: usize, dynamic: *const Dyn) -> Option<Self> {
        let (mut symbols, mut strings, mut size, mut soname) = (0, 0, 0, None);
        let (mut hash, mut gnu_hash) = (0, 0);
        if dynamic.is_null() {
            return None;
        }
        let mut entry = dynamic;
        loop {
            // SAFETY: the section ends with DT_NULL.
            let Dyn { tag, value } = unsafe { ptr::read(entry) };
            match tag {
                DT_NULL => break,
                DT_HASH => hash = value,
                DT_STRTAB => strings = value,
                DT_SYMTAB => symbols = value,
                DT_STRSZ => size = value,
                DT_SONAME => soname = Some(value),
                DT_GNU_HASH => gnu_hash = value,
                _ => {}
            }
            // SAFETY: not past DT_NULL.
            entry = unsafe { entry.add(1) };
        }
        // Some loaders make the addresses in this section absolute, some do not (for the vDSO and
        // read-only sections).
        let absolute = |value: usize| if value < base { base + value } else { value };
        if symbols == 0 || strings == 0 {
            return None;
        }
        // SAFETY: the hash tables of a loaded library are mapped.
        let count = unsafe {
            if hash != 0 {
                // nchain is the number of symbols.
                ptr::read((absolute(hash) as *const u32).add(1)) as usize
            } else if gnu_hash != 0 {
                count_by_gnu_hash(absolute(gnu_hash) as *const u32)
            } else {
                0
            }
        };
        Some(Self {
            base,
            symbols: absolute(symbols) as *const Sym,
            strings: absolute(strings) as *const c_char,
            strings_size: size,
            soname,
            count,
        })
    }

    fn string(&self, offset: usize) -> Option<&str> {
        if offset >= self.strings_size {
            return None;
        }
        // SAFETY: inside the string table, which ends with a zero byte.
        unsafe { CStr::from_ptr(self.strings.add(offset)) }.to_str().ok()
    }

    pub(super) fn soname<'a>(self) -> Option<&'a str> {
        let offset = self.soname.filter(|&offset| offset < self.strings_size)?;
        // SAFETY: as in `string`; the table lives as long as the library.
        unsafe { CStr::from_ptr(self.strings.add(offset)) }.to_str().ok()
    }

    pub(super) fn functions(&self, visit: &mut dyn FnMut(Symbol<'_>)) {
        for index in 0..self.count {
            // SAFETY: below the number of symbols.
            let symbol = unsafe { &*self.symbols.add(index) };
            if symbol.info & 0xf != STT_FUNC || symbol.section == SHN_UNDEF || symbol.value == 0 {
                continue;
            }
            if let Some(name) = self.string(symbol.name as usize) {
                visit(Symbol { name, address: (self.base + symbol.value) as *const c_void });
            }
        }
    }
}

/// One past the highest symbol index that a `DT_GNU_HASH` table reaches.
///
/// # Safety
/// `table` must be the hash table of a loaded library.
unsafe fn count_by_gnu_hash(table: *const u32) -> usize {
    // SAFETY: header of four words, bloom filter of 64-bit words, buckets, chains.
    unsafe {
        let buckets = ptr::read(table) as usize;
        let first = ptr::read(table.add(1)) as usize;
        let bloom = ptr::read(table.add(2)) as usize;
        let bucket = table.add(4 + bloom * 2);
        let chain = bucket.add(buckets);
        let mut last = 0;
        for index in 0..buckets {
            last = last.max(ptr::read(bucket.add(index)) as usize);
        }
        if last < first {
            return first;
        }
        // The end of a chain is marked by its lowest bit.
        while ptr::read(chain.add(last - first)) & 1 == 0 {
            last += 1;
        }
        last + 1
    }
}
