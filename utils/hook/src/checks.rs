//! Checks that arbitrary bytes do no harm to the readers of this crate. Tests with random bytes and fuzz targets call
//! them.

use crate::code::machine::{LONGEST, Prologue};
use crate::code::{follow, mappings::Mappings};

pub use crate::loader::checks::library;

/// Decodes `code` as the beginning of a function at `entry`, and relocates it.
///
/// # Panics
/// If a rule is broken.
pub fn code(code: &[u8], entry: usize) {
    follow::check(code, entry);
    let code = code.get(..LONGEST).unwrap_or(code);
    let Ok(prologue) = Prologue::decode(code, entry) else { return };
    for place in [entry.wrapping_add(0x10_0000), entry.wrapping_sub(0x7000_0000), 0] {
        let moved = prologue.relocate(place);
        assert!(moved.is_none_or(|moved| moved.len() < 256));
    }
}

/// Reads `list` as the kernel's list of mappings.
///
/// # Panics
/// If a rule is broken.
pub fn mappings(list: &[u8]) {
    if let Some(mut mappings) = Mappings::parse(list) {
        mappings.check();
    }
    crate::detour_engine::in_file::check(list);
}
