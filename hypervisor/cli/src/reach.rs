//! Programs that the loader preloads nothing into. No limit can hold for them.

use std::env::var_os;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::ReadCache;
use object::elf::{ELFCLASS64, FileHeader64, PT_INTERP};
use object::endian::LittleEndian;
use object::read::elf::{FileHeader, ProgramHeader};
use rustix::fs::{StatVfs, StatVfsMountFlags, getxattr, statvfs};
use rustix::process::{getegid, geteuid};
use rustix::thread::no_new_privs;

use super::environment::DEFAULT_PATH;

const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
/// Scripts name an interpreter, which may be a script: as many times as the kernel allows.
const SCRIPTS: usize = 5;
/// As much of the first line of a script as the kernel reads.
const FIRST_LINE: u64 = 256;

/// Why nothing is preloaded into a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreached {
    /// It has no loader.
    Static,
    /// Its loader takes libraries of 32 bits.
    Bits32,
    /// It gets more rights than its starter has: setuid, setgid, capabilities of its file.
    MoreRights,
}

impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Static => "is linked statically, so no library can be preloaded into it",
            Self::Bits32 => "is a 32-bit program, into which no 64-bit library can be preloaded",
            Self::MoreRights => {
                "gains privileges when it starts (setuid, setgid or file capabilities), so the loader preloads nothing"
            }
        })
    }
}

/// The program that `command` starts, if nothing is preloaded into it: the file, or the interpreter of a script. What cannot
/// be looked at is not said to be so.
pub(crate) fn of_command(command: &OsStr) -> Option<(PathBuf, Unreached)> {
    let mut path = in_path(command, var_os("PATH"))?;
    for _ in 0..SCRIPTS {
        // A pipe would have to be waited for.
        path.metadata().ok().filter(Metadata::is_file)?;
        let Some(interpreter) = interpreter(&path) else {
            let why =
                of_file(&path).or_else(|| gets_rights(&path).then_some(Unreached::MoreRights));
            return why.map(|why| (path, why));
        };
        path = interpreter;
    }
    None
}

/// The file that execvp(3) finds.
fn in_path(command: &OsStr, path: Option<OsString>) -> Option<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return Some(command.into());
    }
    let path = path.unwrap_or_else(|| DEFAULT_PATH.into());
    let is_program = |path: &PathBuf| {
        path.metadata().is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0)
    };
    std::env::split_paths(&path).map(|folder| folder.join(command)).find(is_program)
}

/// The program that a script names in its first line.
fn interpreter(path: &Path) -> Option<PathBuf> {
    let mut start = Vec::new();
    File::open(path).ok()?.take(FIRST_LINE).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?.trim_ascii_start();
    let name = line.split(u8::is_ascii_whitespace).next().filter(|name| !name.is_empty())?;
    Some(OsStr::from_bytes(name).into())
}

/// Why nothing is preloaded into a program, from its file alone.
pub(crate) fn of_file(path: &Path) -> Option<Unreached> {
    // The loader can be a program itself.
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if real.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-")) {
        return None;
    }
    let mut identity = [0; 5];
    File::open(path).ok()?.read_exact(&mut identity).ok()?;
    if identity[..4] != *b"\x7fELF" {
        return None;
    }
    if identity[4] != ELFCLASS64 {
        return Some(Unreached::Bits32);
    }
    let data = ReadCache::new(File::open(path).ok()?);
    let header = FileHeader64::<LittleEndian>::parse(&data).ok()?;
    let endian = header.endian().ok()?;
    let parts = header.program_headers(endian, &data).ok()?;
    let has_loader = parts.iter().any(|part| part.p_type(endian) == PT_INTERP);
    (!has_loader).then_some(Unreached::Static)
}

/// Whether the kernel would give a program more rights than this process has.
fn gets_rights(path: &Path) -> bool {
    let Ok(found) = path.metadata() else { return false };
    let is_ignored = |place: StatVfs| place.f_flag.contains(StatVfsMountFlags::NOSUID);
    if no_new_privs().unwrap_or(false) || statvfs(path).is_ok_and(is_ignored) {
        return false;
    }
    let (user, group) = (geteuid(), getegid());
    let another_user = found.mode() & SET_USER != 0 && found.uid() != user.as_raw();
    let another_group = found.mode() & SET_GROUP != 0 && found.gid() != group.as_raw();
    // Root has all capabilities already.
    let capabilities = || getxattr(path, "security.capability", &mut [0; 64][..]);
    another_user || another_group || (!user.is_root() && capabilities().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn script(folder: &Path, name: &str, text: &str) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    /// The first bytes of a program: its class, and one part of this kind.
    fn program(class: u8, kind: u32) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56];
        bytes[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1, 1]);
        bytes[16] = 2; // ET_EXEC
        bytes[18] = 62; // x86-64
        bytes[20] = 1;
        bytes[32] = 64; // the parts stand behind the header
        bytes[52] = 64;
        bytes[54] = 56;
        bytes[56] = 1;
        bytes[64..68].copy_from_slice(&kind.to_le_bytes());
        bytes
    }

    #[test]
    fn programs_are_told_apart_by_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            of_file(&path)
        };
        assert_eq!(of("static", &program(2, 1)), Some(Unreached::Static));
        assert_eq!(of("dynamic", &program(2, PT_INTERP)), None);
        assert_eq!(of("ld-linux-x86-64.so.2", &program(2, 1)), None);
        assert_eq!(of("small", &program(1, PT_INTERP)), Some(Unreached::Bits32));
        // What is no program, or cut short.
        assert_eq!(of("text", b"hello"), None);
        assert_eq!(of("nothing", b""), None);
        for length in 5..119 {
            assert_eq!(of("short", &program(2, 1)[..length]), None, "{length}");
        }
        assert_eq!(of_file(&std::env::current_exe().unwrap()), None);
        assert_eq!(of_file(folder.path()), None);
    }

    #[test]
    fn a_script_is_what_interprets_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        script(path, "static", "");
        fs::write(path.join("static"), program(2, 1)).unwrap();
        let named = path.join("static").display().to_string();
        let of = |path: &Path| of_command(path.as_os_str());
        let one = script(path, "one", &format!("#! {named} -x\nrest"));
        assert_eq!(of(&one), Some((path.join("static"), Unreached::Static)));
        let two = script(path, "two", &format!("#!{}\n", one.display()));
        assert_eq!(of(&two), Some((path.join("static"), Unreached::Static)));
        let around = path.join("around").display().to_string();
        assert_eq!(of(&script(path, "around", &format!("#!{around}\n"))), None);
        for harmless in ["#!/bin/sh\n", "#!\n", "#!", "", "echo"] {
            assert_eq!(of(&script(path, "harmless", harmless)), None, "{harmless}");
        }
        assert_eq!(of(&path.join("none")), None);
    }

    #[test]
    fn a_name_is_looked_for_in_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("first"), folder.path().join("second"));
        fs::create_dir_all(first.join("it")).unwrap();
        fs::create_dir(&second).unwrap();
        script(&second, "it", "");
        fs::write(first.join("no-program"), "").unwrap();
        let path = || std::env::join_paths([&first, &second]).ok();
        assert_eq!(in_path(OsStr::new("it"), path()), Some(second.join("it")));
        assert_eq!(in_path(OsStr::new("no-program"), path()), None);
        assert_eq!(in_path(OsStr::new("./it"), path()), Some("./it".into()));
        assert!(in_path(OsStr::new("sh"), None).is_some());
    }

    #[test]
    fn more_rights_are_those_of_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = script(folder.path(), "it", "");
        for own in [0o755, 0o4755, 0o2755] {
            fs::set_permissions(&path, PermissionsExt::from_mode(own)).unwrap();
            assert!(!gets_rights(&path), "{own:o}");
        }
        let place = statvfs(&path).unwrap();
        if !geteuid().is_root() || place.f_flag.contains(StatVfsMountFlags::NOSUID) {
            println!("SKIPPED: only root can give files away, and not on every file system");
            return;
        }
        std::os::unix::fs::chown(&path, Some(65534), Some(65534)).unwrap();
        for (mode, gets) in [(0o755, false), (0o4755, true), (0o2755, true)] {
            fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(gets_rights(&path), gets, "{mode:o}");
        }
    }
}
