//! `xtask symbol-versions`: how old the C library may be.

use super::{Error, elf, path};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// How old a glibc.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Also print libraries and symbols that musl lacks: its library
    #[arg(long, value_parser = path)]
    musl: Option<PathBuf>,
    /// Newest version of glibc that may be needed, as in 2.17
    newest: Version,
    /// Programs and libraries
    #[arg(required = true, value_parser = path)]
    files: Vec<PathBuf>,
}

/// A version of numbers, which are compared one by one.
#[derive(Clone, PartialEq, PartialOrd)]
struct Version(Vec<u32>);

impl FromStr for Version {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let numbers: Result<Vec<u32>, _> = given.split('.').map(str::parse).collect();
        numbers.map(Self).map_err(|_| format!("'{given}' is not a version as in 2.17"))
    }
}

/// Prints each version of a symbol that is newer, or is not a number, as `GLIBC_PRIVATE`; and what musl lacks.
///
/// # Errors
/// There is something to print, or a file cannot be read.
pub(crate) fn check(arguments: &Arguments) -> Result<(), Error> {
    let mut faults = Vec::new();
    for file in &arguments.files {
        faults.extend(of_file(file, &arguments.newest, arguments.musl.as_deref())?);
    }
    faults.iter().for_each(|fault| println!("{fault}"));
    if faults.is_empty() { Ok(()) } else { Err(Error::Found) }
}

/// Checks one file for a version of glibc.
///
/// # Errors
/// It needs a newer one; the reasons are printed.
pub(crate) fn needs_at_most(newest: &str, file: &Path) -> Result<(), Error> {
    let newest = newest.parse().map_err(Error::Usage)?;
    check(&Arguments { musl: None, newest, files: vec![file.to_owned()] })
}

fn of_file(file: &Path, newest: &Version, musl: Option<&Path>) -> Result<Vec<String>, Error> {
    let symbols = elf::symbols(file)?;
    let is_old = |version: &&String| {
        version
            .trim_start_matches("GLIBC_")
            .parse::<Version>()
            .is_ok_and(|needed| needed <= *newest)
    };
    let mut faults: Vec<String> =
        symbols.versions.iter().filter(|version| !is_old(version)).cloned().collect();
    if let Some(musl) = musl {
        let musl = elf::symbols(musl)?.defined;
        // It stands in for glibc's own libraries.
        let own = |library: &&String| {
            let name = library.trim_start_matches("lib").split('.').next();
            ["c", "pthread", "rt", "m", "dl", "util"].map(Some).contains(&name)
        };
        // Newer versions of musl look up the name without "64" instead.
        let missing =
            symbols.undefined.iter().filter(|name| !musl.contains(*name) && !name.ends_with("64"));
        let lacking = symbols.libraries.iter().filter(|library| !own(library)).chain(missing);
        faults.extend(lacking.map(|name| format!("not in musl: {name}")));
    }
    Ok(faults.into_iter().map(|fault| format!("{}: {fault}", file.display())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{command, run};
    use std::fs;

    /// A library that needs symbols of made-up versions.
    #[test]
    fn versions_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("libc.c"), "void first(void) {} void second(void) {} void own(void) {}")
            .unwrap();
        let map = "GLIBC_2.9 { global: first; }; GLIBC_2.99 { global: second; }; GLIBC_PRIVATE { global: own; };";
        fs::write(at("libc.map"), map).unwrap();
        let build = |line: &str| run(command(line).current_dir(&folder)).unwrap();
        build(
            "cc -shared -fPIC -nostdlib -Wl,-soname,libc.so.6 -Wl,--version-script=libc.map -o libc.so libc.c",
        );
        for (name, called) in [("old", "first"), ("new", "second"), ("private", "own")] {
            fs::write(
                at(&format!("{name}.c")),
                format!("void {called}(void); void uses(void) {{ {called}(); }}"),
            )
            .unwrap();
            build(&format!("cc -shared -fPIC -nostdlib -o {name}.so {name}.c libc.so"));
        }
        let faults = |newest: &str, file: &str, musl: Option<&str>| {
            let found =
                of_file(&at(file), &newest.parse().unwrap(), musl.map(at).as_deref()).unwrap();
            let folder = format!("{}/", folder.path().display());
            found.iter().map(|fault| fault.replace(&folder, "")).collect::<Vec<_>>()
        };
        assert!(faults("2.17", "old.so", None).is_empty());
        assert!(faults("2.99", "new.so", None).is_empty());
        assert_eq!(faults("2.17", "new.so", None), ["new.so: GLIBC_2.99"]);
        assert_eq!(faults("2.8", "old.so", None), ["old.so: GLIBC_2.9"]);
        assert_eq!(faults("2.17", "private.so", None), ["private.so: GLIBC_PRIVATE"]);
        assert_eq!(faults("2.17", "old.so", Some("private.so")), ["old.so: not in musl: first"]);
        assert!(faults("2.17", "old.so", Some("libc.so")).is_empty());
        for unreadable in ["none.so", "old.c"] {
            assert!(of_file(&at(unreadable), &Version(vec![2, 17]), None).is_err());
        }
        assert!("old".parse::<Version>().is_err());
    }
}
