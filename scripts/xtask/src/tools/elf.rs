//! The dynamic symbols of programs and libraries.

use super::{Error, read};
use object::Endianness;
use object::elf::{DT_NEEDED, SHN_UNDEF, STB_GLOBAL};
use object::read::elf::{Dyn as _, ElfFile64, Sym as _};
use std::collections::BTreeSet;
use std::path::Path;

/// What a file has and needs.
#[derive(Default)]
pub(crate) struct Symbols {
    pub(crate) defined: BTreeSet<String>,
    /// Without the weak ones.
    pub(crate) undefined: BTreeSet<String>,
    pub(crate) libraries: BTreeSet<String>,
    /// Versions of glibc's symbols: `GLIBC_2.17`.
    pub(crate) versions: BTreeSet<String>,
}

/// Reads the symbols of a file.
///
/// # Errors
/// The file cannot be read, or is not ELF.
pub(crate) fn symbols(path: &Path) -> Result<Symbols, Error> {
    parse(&read(path)?).map_err(|error| Error::Usage(format!("{}: {error}", path.display())))
}

fn parse(data: &[u8]) -> object::Result<Symbols> {
    let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    let file = ElfFile64::<Endianness>::parse(data)?;
    let (endian, sections) = (file.endian(), file.elf_section_table());
    let mut found = Symbols::default();
    let symbols = file.elf_dynamic_symbol_table();
    for symbol in symbols.iter().filter(|symbol| symbol.st_name(endian) != 0) {
        let name = text(symbols.symbol_name(endian, symbol)?);
        if symbol.st_shndx(endian) != SHN_UNDEF {
            found.defined.insert(name);
        } else if symbol.st_bind() == STB_GLOBAL {
            found.undefined.insert(name);
        }
    }
    if let Some((entries, link)) = sections.dynamic(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        for entry in entries.iter().filter(|entry| entry.tag32(endian) == Some(DT_NEEDED)) {
            found.libraries.insert(text(entry.string(endian, strings)?));
        }
    }
    if let Some((mut libraries, link)) = sections.gnu_verneed(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        while let Some((_, mut versions)) = libraries.next()? {
            while let Some(version) = versions.next()? {
                found.versions.insert(text(version.name(endian, strings)?));
            }
        }
    }
    found.versions.retain(|version| version.starts_with("GLIBC_"));
    Ok(found)
}
