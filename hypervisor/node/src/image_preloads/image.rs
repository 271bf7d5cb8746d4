//! Reads the image's own `/etc/ld.so.preload`. Images are untrusted: nothing but that file may be read.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2};
use rustix::io::Errno;

use crate::injection::PRELOAD;

/// The longest list accepted, in bytes.
pub(super) const MOST_BYTES: u64 = 16 << 10;
/// How often to retry opening a path that is being changed concurrently.
const TRIES: usize = 32;

/// Why an image's list is not read.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The container's root is missing.
    #[error("the container's root {0}: {1}")]
    Root(String, io::Error),
    /// The path is a broken link or a loop.
    #[error("the image's {PRELOAD}: {0}")]
    Unreadable(io::Error),
    /// It is no plain file.
    #[error("the image's {PRELOAD} is {0}; expected a plain file")]
    NoFile(&'static str),
    /// The file is too long.
    #[error("the image's {PRELOAD} has {0} bytes; expected at most {MOST_BYTES}")]
    TooLong(u64),
}

/// The content of the image's list; empty if there is none. Links are resolved as in the container, so none leads out
/// of its root.
pub(super) fn preloads(root: &Path) -> Result<Vec<u8>, ImageError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = open(root, flags, Mode::empty())
        .map_err(|error| ImageError::Root(root.display().to_string(), error.into()))?;
    let unreadable = |error: Errno| ImageError::Unreadable(error.into());
    // `O_PATH` first: opening a device may have effects, and opening a pipe blocks.
    let found = match named(&root) {
        Ok(found) => found,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(error)),
    };
    let seen = fstat(&found).map_err(unreadable)?;
    let kind = FileType::from_raw_mode(seen.st_mode);
    if kind != FileType::RegularFile {
        return Err(ImageError::NoFile(told(kind)));
    }
    let too_long = |bytes: u64| (bytes > MOST_BYTES).then_some(ImageError::TooLong(bytes));
    if let Some(error) = too_long(seen.st_size.try_into().unwrap_or(u64::MAX)) {
        return Err(error);
    }
    // Opens the file that was checked, whatever has its name by now.
    let again = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(open(again, flags, Mode::empty()).map_err(unreadable)?);
    let mut text = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut text).map_err(ImageError::Unreadable)?;
    too_long(text.len().try_into().unwrap_or(u64::MAX)).map_or(Ok(text), Err)
}

fn named(root: &OwnedFd) -> Result<OwnedFd, Errno> {
    let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let mut last = Errno::AGAIN;
    for _ in 0..TRIES {
        match openat2(root, PRELOAD, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), inside) {
            Err(error @ (Errno::AGAIN | Errno::INTR)) => last = error,
            other => return other,
        }
    }
    Err(last)
}

fn told(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a folder",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        _ => "no file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    fn image() -> tempfile::TempDir {
        let image = tempfile::tempdir().unwrap();
        fs::create_dir(image.path().join("etc")).unwrap();
        image
    }

    fn refused(image: &Path) -> String {
        preloads(image).unwrap_err().to_string()
    }

    #[test]
    fn there_may_be_none() {
        let image = image();
        assert_eq!(preloads(image.path()).unwrap(), b"");
        fs::remove_dir(image.path().join("etc")).unwrap();
        assert_eq!(preloads(image.path()).unwrap(), b"");
        fs::write(image.path().join("etc"), "a file").unwrap();
        assert_eq!(preloads(image.path()).unwrap(), b"");
        let none = image.path().join("none");
        assert!(refused(&none).contains("the container's root"));
    }

    #[test]
    fn links_lead_where_the_container_would_find_them() {
        let (image, outside) = (image(), tempfile::tempdir().unwrap());
        let list = image.path().join("etc/ld.so.preload");
        fs::write(outside.path().join("list"), "/outside.so").unwrap();
        fs::create_dir(image.path().join("opt")).unwrap();
        fs::write(image.path().join("opt/list"), "/inside.so").unwrap();
        // The targets exist outside of the image as well.
        let secret = outside.path().join("list").display().to_string();
        for (to, text) in [
            ("/opt/list", Some("/inside.so")),
            ("../../../../../../opt/list", Some("/inside.so")),
            (&secret, Some("")),
            (&format!("../../../../../../../..{secret}"), Some("")),
            ("/proc/self/environ", Some("")),
            ("ld.so.preload", None),
        ] {
            symlink(to, &list).unwrap();
            let found = preloads(image.path()).ok().map(|text| String::from_utf8(text).unwrap());
            assert_eq!(found.as_deref(), text, "{to}");
            fs::remove_file(&list).unwrap();
        }
        fs::remove_dir(image.path().join("etc")).unwrap();
        symlink(outside.path(), image.path().join("etc")).unwrap();
        fs::write(outside.path().join("ld.so.preload"), "/outside.so").unwrap();
        assert_eq!(preloads(image.path()).unwrap(), b"");
    }

    #[test]
    fn what_is_no_plain_file_is_refused_and_not_opened() {
        let image = image();
        let list = image.path().join("etc/ld.so.preload");
        fs::create_dir(&list).unwrap();
        assert!(refused(image.path()).ends_with("is a folder; expected a plain file"));
        fs::remove_dir(&list).unwrap();
        // Opening it would block until a writer comes.
        assert!(Command::new("mkfifo").arg(&list).status().unwrap().success());
        assert!(refused(image.path()).contains("is a pipe"));
        fs::remove_file(&list).unwrap();
        let socket = UnixListener::bind(&list).unwrap();
        assert!(refused(image.path()).contains("is a socket"));
        drop(socket);
        fs::remove_file(&list).unwrap();
        if Command::new("mknod").arg(&list).args(["c", "1", "5"]).status().unwrap().success() {
            assert!(refused(image.path()).contains("is a device"));
        }
    }

    #[test]
    fn lists_have_a_bound() {
        let image = image();
        let list = image.path().join("etc/ld.so.preload");
        let most = usize::try_from(MOST_BYTES).unwrap();
        fs::write(&list, vec![b'a'; most]).unwrap();
        assert_eq!(preloads(image.path()).unwrap().len(), most);
        fs::write(&list, vec![b'a'; most + 1]).unwrap();
        assert!(refused(image.path()).ends_with("has 16385 bytes; expected at most 16384"));
        // A sparse file takes no room.
        File::create(&list).unwrap().set_len(1 << 40).unwrap();
        assert!(refused(image.path()).contains("1099511627776 bytes"));
    }
}
