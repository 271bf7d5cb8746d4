//! Which C library the programs of a root have, and which one a library of ours needs.

use object::elf::{DT_NEEDED, FileHeader64};
use object::endian::LittleEndian;
use object::read::elf::{Dyn, FileHeader};

use super::InjectError;
use super::root::Root;
use crate::Error;
use crate::processor::{GLIBC_LOADER, GLIBC_OF_DEBIAN, MUSL_LOADER};

/// Where systems have glibc.
const GLIBC: [&str; 6] = [
    GLIBC_OF_DEBIAN[0],
    GLIBC_OF_DEBIAN[1],
    "lib64/libc.so.6",
    "usr/lib64/libc.so.6",
    "lib/libc.so.6",
    "usr/lib/libc.so.6",
];
/// Libraries for which musl stands in itself.
const OF_MUSL: [&str; 6] = ["libc.", "libpthread.", "librt.", "libm.", "libdl.", "libutil."];
const VERSION: &str = "GLIBC_";
/// What stands before a glibc's own version in it. A release that brought no new symbol to it defines older ones only.
const RELEASE: &[u8] = b" release version ";

/// As in 2.36: its numbers.
pub(super) type Version = Vec<u32>;

/// The C library of a root's programs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CLibrary {
    /// With its version. There may be musl beside it.
    Glibc(Version),
    Musl,
}

impl CLibrary {
    /// # Errors
    /// [`InjectError`] if the root has neither, or its glibc tells no version.
    pub(super) fn of(root: &Root) -> Result<Self, Error> {
        if root.exists(GLIBC_LOADER) {
            for path in GLIBC {
                let Some(bytes) = root.read(path)? else { continue };
                let newest = Needs::read(&bytes).and_then(|file| file.defines);
                let newest =
                    newest.ok_or_else(|| InjectError::NoVersion { glibc: root.told(path) })?;
                return Ok(Self::Glibc(
                    release(&bytes).map_or(newest.clone(), |own| own.max(newest)),
                ));
            }
            return Err(InjectError::NoVersion { glibc: root.told(GLIBC_LOADER) }.into());
        }
        if root.exists(MUSL_LOADER) {
            return Ok(Self::Musl);
        }
        Err(InjectError::NoLoader { glibc: root.told(GLIBC_LOADER), musl: root.told(MUSL_LOADER) }
            .into())
    }

    /// Whether its programs start with this library preloaded.
    ///
    /// # Errors
    /// [`InjectError`] says why not.
    pub(super) fn starts_with(&self, name: &'static str, library: &[u8]) -> Result<(), Error> {
        let needs = Needs::read(library).ok_or(InjectError::NoLibrary { name })?;
        match self {
            Self::Glibc(has) if needs.glibc.as_ref().is_some_and(|needed| needed > has) => {
                Err(InjectError::TooOld {
                    name,
                    needed: text(&needs.glibc.unwrap_or_default()),
                    found: text(has),
                }
                .into())
            }
            Self::Glibc(_) => Ok(()),
            Self::Musl => {
                let is_foreign =
                    |library: &&String| !OF_MUSL.iter().any(|own| library.starts_with(own));
                match needs.libraries.iter().find(is_foreign) {
                    Some(library) => {
                        Err(InjectError::NotForMusl { name, library: library.clone() }.into())
                    }
                    None => Ok(()),
                }
            }
        }
    }

    pub(super) fn told(&self) -> String {
        match self {
            Self::Glibc(version) => format!("glibc {}", text(version)),
            Self::Musl => "musl".to_owned(),
        }
    }
}

fn text(version: &[u32]) -> String {
    version.iter().map(u32::to_string).collect::<Vec<_>>().join(".")
}

/// `GLIBC_2.36`; `None` for `GLIBC_PRIVATE` and others.
fn version(name: &[u8]) -> Option<Version> {
    let numbers = str::from_utf8(name).ok()?.strip_prefix(VERSION)?;
    numbers.split('.').map(|number| number.parse().ok()).collect()
}

/// As in `GNU C Library (...) stable release version 2.31.`, which each glibc has in it.
fn release(bytes: &[u8]) -> Option<Version> {
    let before = bytes.windows(RELEASE.len()).position(|text| text == RELEASE)?;
    let after = &bytes[before + RELEASE.len()..];
    let length = after.iter().take_while(|&&byte| byte.is_ascii_digit() || byte == b'.').count();
    let numbers = str::from_utf8(&after[..length]).ok()?.trim_end_matches('.');
    let numbers: Option<Version> = numbers.split('.').map(|number| number.parse().ok()).collect();
    numbers.filter(|numbers| numbers.len() >= 2)
}

/// What a shared library needs and has.
#[derive(Debug, Default, PartialEq, Eq)]
struct Needs {
    libraries: Vec<String>,
    /// The newest version of glibc's symbols that it needs.
    glibc: Option<Version>,
    /// The newest one that it defines.
    defines: Option<Version>,
}

impl Needs {
    /// `None`: no library that can be read.
    fn read(bytes: &[u8]) -> Option<Self> {
        let header = FileHeader64::<LittleEndian>::parse(bytes).ok()?;
        let endian = header.endian().ok()?;
        let sections = header.sections(endian, bytes).ok()?;
        let mut found = Self::default();
        if let Some((mut files, strings)) = sections.gnu_verneed(endian, bytes).ok()? {
            let strings = sections.strings(endian, bytes, strings).ok()?;
            while let Some((_, mut needed)) = files.next().ok()? {
                while let Some(one) = needed.next().ok()? {
                    found.glibc = found.glibc.max(version(one.name(endian, strings).ok()?));
                }
            }
        }
        if let Some((mut defined, strings)) = sections.gnu_verdef(endian, bytes).ok()? {
            let strings = sections.strings(endian, bytes, strings).ok()?;
            while let Some((_, mut names)) = defined.next().ok()? {
                // The first is its own, the others are those that it follows.
                if let Some(one) = names.next().ok()? {
                    found.defines = found.defines.max(version(one.name(endian, strings).ok()?));
                }
            }
        }
        let (entries, strings) = sections.dynamic(endian, bytes).ok()??;
        let strings = sections.strings(endian, bytes, strings).ok()?;
        for entry in entries.iter().filter(|entry| entry.d_tag(endian) == u64::from(DT_NEEDED)) {
            let name = entry.string(endian, strings).ok()?;
            found.libraries.push(String::from_utf8_lossy(name).into_owned());
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// This machine's own glibc, as the tests' program needs it.
    fn of_this_machine() -> (Version, Vec<u8>) {
        let root = Root::open(Path::new("/")).unwrap();
        let CLibrary::Glibc(version) = CLibrary::of(&root).unwrap() else {
            panic!("the tests run on glibc")
        };
        (version, std::fs::read(std::env::current_exe().unwrap()).unwrap())
    }

    #[test]
    fn versions_are_numbers() {
        assert_eq!(version(b"GLIBC_2.2.5"), Some(vec![2, 2, 5]));
        assert!(version(b"GLIBC_2.34") > version(b"GLIBC_2.4"));
        for other in [&b"GLIBC_PRIVATE"[..], b"GCC_3.0", b"GLIBC_", b"GLIBC_2.x", b"\xff"] {
            assert_eq!(version(other), None);
        }
    }

    #[test]
    fn a_release_is_told_by_its_own_words() {
        let of = |text: &str| release(format!("\0GNU C Library {text}\0").as_bytes());
        assert_eq!(
            of("(Debian GLIBC 2.31-13+deb11u11) stable release version 2.31.\n"),
            Some(vec![2, 31])
        );
        assert_eq!(
            of("(GNU libc) development release version 2.31.9000.\n"),
            Some(vec![2, 31, 9000])
        );
        assert_eq!(of("stable release version 2.17, by Roland McGrath"), Some(vec![2, 17]));
        for other in
            ["", "stable release version ", "stable release version x", "release version 2", "2.31"]
        {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn this_machine_runs_its_own_programs_and_an_older_one_does_not() {
        let (version, program) = of_this_machine();
        let said = std::process::Command::new("ldd").arg("--version").output().unwrap();
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let first = said.lines().next().unwrap();
        assert!(first.ends_with(&text(&version)), "{first}: {version:?}");
        assert!(CLibrary::Glibc(version).starts_with("it", &program).is_ok());
        let old = CLibrary::Glibc(vec![2, 4]).starts_with("it", &program).unwrap_err().to_string();
        assert!(old.contains("the root has 2.4"), "{old}");
        // A test's program unwinds by libgcc_s.
        let musl = CLibrary::Musl.starts_with("it", &program).unwrap_err().to_string();
        assert!(musl.contains("libgcc_s.so.1"), "{musl}");
    }

    #[test]
    fn what_is_cut_short_is_no_library() {
        let (version, program) = of_this_machine();
        let glibc = CLibrary::Glibc(version);
        for length in [0, 4, 63, 64, 1000, program.len() / 2] {
            let error = glibc.starts_with("it", &program[..length]).unwrap_err().to_string();
            assert!(error.contains("not a readable shared library"), "{length}: {error}");
        }
    }
}
