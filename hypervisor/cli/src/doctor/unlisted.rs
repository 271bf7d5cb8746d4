//! Functions of the driver that Sluice does not know: newer than this release.

use std::collections::HashSet;
use std::env::{split_paths, var_os};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use object::elf::{FileHeader64, SHN_UNDEF, SHT_DYNSYM};
use object::endian::LittleEndian;
use object::read::elf::{FileHeader, Sym};

/// What this release patches, leaves alone for a reason, and need not look at.
const LISTS: [&str; 3] = [
    include_str!("../../../../docs/hooks.md"),
    include_str!("../../../../docs/unhandled.txt"),
    include_str!("../../../../docs/irrelevant.txt"),
];
const DRIVER: &str = "libcuda.so.1";

/// The functions of a driver that stand in no list, in their order. `None`: the file has no table of them.
pub(super) fn unlisted(driver: &[u8]) -> Option<Vec<String>> {
    let listed: HashSet<&str> =
        LISTS.iter().flat_map(|list| list.split(|letter: char| !is_of_name(letter))).collect();
    let header = FileHeader64::<LittleEndian>::parse(driver).ok()?;
    let sections = header.sections(LittleEndian, driver).ok()?;
    let symbols = sections.symbols(LittleEndian, driver, SHT_DYNSYM).ok()?;
    let names = symbols.iter().filter(|symbol| symbol.st_shndx(LittleEndian) != SHN_UNDEF);
    let names = names.filter_map(|symbol| symbols.strings().get(symbol.st_name(LittleEndian)).ok());
    let names = names.filter_map(|name| str::from_utf8(name).ok());
    let is_public = |name: &&str| {
        let rest = name.strip_prefix("cu").unwrap_or_default();
        rest.starts_with(|letter: char| letter.is_ascii_uppercase())
    };
    let mut new: Vec<String> =
        names.filter(is_public).filter(|name| !listed.contains(name)).map(str::to_owned).collect();
    new.sort();
    new.dedup();
    Some(new)
}

fn is_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

/// Where programs find the driver, as far as the environment and the loader's cache tell.
pub(super) fn driver() -> Option<PathBuf> {
    let folders = var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut paths = split_paths(&folders).map(|folder| folder.join(DRIVER));
    paths.find(|path| path.is_file()).or_else(|| {
        let mut cache = Command::new("/sbin/ldconfig");
        let output = cache.arg("-p").stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        let mut lines = text.lines().filter(|line| line.trim_start().starts_with(DRIVER));
        lines.find_map(|line| line.split_once("=> ").map(|(_, path)| PathBuf::from(path)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_of_a_newer_driver_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (source, library) = (folder.path().join("new.c"), folder.path().join("libnew.so"));
        let text = "int cuInit(unsigned f) { return f; } int cuNotKnownYet(void) { return 0; }
            int cuGraphGetId(void) { return 0; } int cudbgSomething(void) { return 0; }";
        std::fs::write(&source, text).unwrap();
        let mut compiler = Command::new("cc");
        let compiler = compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
        assert!(compiler.status().unwrap().success());
        let driver = std::fs::read(library).unwrap();
        assert_eq!(unlisted(&driver), Some(vec!["cuNotKnownYet".to_owned()]));
        assert_eq!(unlisted(b"no library"), None);
    }
}
