//! Whether the loader can load a library. Where it cannot, it says so and runs the program without it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{StatVfsMountFlags, fstatvfs};
use session::directory::told;

use super::Error;
use super::processor::{LIBRARY_WANTED, MACHINE};

/// The header of an ELF file of 64 bits.
type Header = [u8; 64];

/// Checks that the loader can load the library at `path` into a program of this user.
///
/// # Errors
/// [`Error::System`] for a file that cannot be read, [`Error::Unloadable`] for one that is no library, or that is on a
/// file system whose files may not be executed.
pub fn check(path: &Path) -> Result<(), Error> {
    let unread = |e: io::Error| Error::system(format!("cannot read {}", told(path).display()), e);
    let mut file = File::open(path).map_err(unread)?;
    let refused = |problem| Err(Error::Unloadable { path: told(path), problem });
    let length = file.metadata().map_err(unread)?.len();
    let mut header: Header = [0; 64];
    match file.read_exact(&mut header) {
        Ok(()) if is_library(&header) => {}
        Err(e) if e.kind() != io::ErrorKind::UnexpectedEof => return Err(unread(e)),
        _ => return refused(LIBRARY_WANTED),
    }
    if end(&header) > u128::from(length) {
        return refused("the file is truncated");
    }
    let mount = fstatvfs(&file).map_err(|e| unread(e.into()))?;
    if mount.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return refused("its file system is mounted noexec");
    }
    Ok(())
}

/// Little-endian, of 64 bits, a shared object, for this processor.
fn is_library(header: &Header) -> bool {
    let [low, high] = MACHINE.to_le_bytes();
    header.starts_with(b"\x7fELF\x02\x01") && header.get(16..20) == Some(&[3, 0, low, high])
}

/// Where the table of sections ends, which linkers write last.
fn end(header: &Header) -> u128 {
    let number = |at: usize, length: usize| {
        let bytes = header.get(at..at + length).unwrap_or_default();
        bytes.iter().rev().fold(0_u128, |number, byte| (number << 8) | u128::from(*byte))
    };
    number(40, 8) + number(58, 2) * number(60, 2)
}

/// Whether each user of the machine can load the library at `path`.
#[must_use]
pub fn is_for_all_users(path: &Path) -> bool {
    const READ: u32 = 0o004;
    const SEARCH: u32 = 0o001;
    let allows =
        |path: &Path, right| fs::metadata(path).is_ok_and(|found| found.mode() & right > 0);
    let searched = |path: &Path| path.ancestors().skip(1).all(|folder| allows(folder, SEARCH));
    // The path as it is used, and the one to which its links lead.
    allows(path, READ) && searched(path) && path.canonicalize().is_ok_and(|path| searched(&path))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// The shortest file that looks like a library.
    pub(crate) fn library() -> Header {
        let mut header = [0; 64];
        header[..6].copy_from_slice(b"\x7fELF\x02\x01");
        header[16] = 3;
        header[18..20].copy_from_slice(&MACHINE.to_le_bytes());
        header
    }

    #[test]
    fn only_whole_libraries_of_this_kind_are_loaded() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("l.so");
        let checked = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            check(&path).map_err(|error| error.to_string())
        };
        assert_eq!(checked(&library()), Ok(()));
        for (at, byte) in [(0, b'e'), (4, 1), (5, 2), (16, 2), (18, 3), (19, 1)] {
            let mut other = library();
            other[at] = byte;
            assert!(checked(&other).unwrap_err().contains("not a shared library"), "{at}");
        }
        for short in [&[][..], b"#!/bin/sh\n", &library()[..63]] {
            assert!(checked(short).unwrap_err().contains("not a shared library"), "{short:?}");
        }
        let mut cut = library();
        (cut[40], cut[58], cut[60]) = (64, 64, 1);
        assert!(checked(&cut).unwrap_err().contains("the file is truncated"));
        assert_eq!(checked(&[&cut[..], &[0; 64]].concat()), Ok(()));
    }

    #[test]
    fn each_folder_on_the_way_counts() {
        let root = tempfile::tempdir().unwrap();
        let allow = |path: &Path, mode| {
            fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        };
        let (open, closed) = (root.path().join("open"), root.path().join("closed"));
        for folder in [&open, &closed] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("l.so"), "").unwrap();
            allow(folder, 0o711);
            allow(&folder.join("l.so"), 0o644);
        }
        allow(root.path(), 0o700);
        assert!(!is_for_all_users(&open.join("l.so")));
        allow(root.path(), 0o711);
        assert!(is_for_all_users(&open.join("l.so")));
        allow(&closed, 0o710);
        assert!(!is_for_all_users(&closed.join("l.so")));
        std::os::unix::fs::symlink(closed.join("l.so"), open.join("link.so")).unwrap();
        assert!(!is_for_all_users(&open.join("link.so")));
        allow(&open.join("l.so"), 0o640);
        assert!(!is_for_all_users(&open.join("l.so")));
    }
}
