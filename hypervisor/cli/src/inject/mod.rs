//! `sluice inject`: prepares a folder that is the root of other processes, as of a container or by chroot(2), so that
//! each of its programs loads the limiter, whatever its environment.

mod libc;
mod preload;
mod root;

use std::env::var_os;
use std::fs;
use std::path::PathBuf;

use super::cli::InjectArgs;
use super::parts::{self, Parts};
use super::{Error, print};
use libc::CLibrary;
use root::Root;

/// Where the libraries are in the root.
const FOLDER: &str = "/usr/lib/sluice";
/// The file from which glibc's loader takes what it preloads into each program.
const PRELOAD: &str = "/etc/ld.so.preload";
const LIBRARIES: [&str; 2] = [parts::LIMITER, parts::ADD_PATH];

/// Why a root cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    /// It has static programs at most.
    #[error("neither {glibc} nor {musl} exists: no program of this root can load a library")]
    NoLoader {
        /// Where glibc's loader would be.
        glibc: String,
        /// Where musl's loader would be.
        musl: String,
    },
    /// Its glibc cannot be told.
    #[error("{glibc}: cannot determine the version of this glibc")]
    NoVersion {
        /// The file.
        glibc: String,
    },
    /// A part of Sluice is no library.
    #[error("{name} is not a readable shared library")]
    NoLibrary {
        /// Its file name.
        name: &'static str,
    },
    /// No program of the root would start.
    #[error(
        "{name} needs glibc {needed}, and the root has {found}: no program would start; install what \
         cargo xtask build-release builds, which needs 2.17"
    )]
    TooOld {
        /// The library.
        name: &'static str,
        /// What it needs.
        needed: String,
        /// What is there.
        found: String,
    },
    /// No program of the root would start.
    #[error(
        "the root has musl, and {name} needs {library}: no program would start; install what \
         cargo xtask build-release builds, which musl can load"
    )]
    NotForMusl {
        /// The library.
        name: &'static str,
        /// What it needs.
        library: String,
    },
}

/// Prepares a root, looks whether it is prepared, or undoes it.
///
/// # Errors
/// [`Error::Inject`] for a root that cannot be prepared, [`Error::PartMissing`] and [`Error::System`].
pub(crate) fn run(arguments: &InjectArgs) -> Result<u8, Error> {
    let root = Root::open(&arguments.root)?;
    if arguments.remove {
        return remove(&root);
    }
    let c_library = CLibrary::of(&root)?;
    let mut wanted = Vec::new();
    for (name, path) in LIBRARIES.into_iter().zip(installed()?) {
        let bytes = fs::read(&path)
            .map_err(|e| Error::system(format!("cannot read {}", path.display()), e))?;
        c_library.starts_with(name, &bytes)?;
        wanted.push((inside(name), bytes));
    }
    if arguments.check {
        check(&root, &c_library, &wanted)
    } else {
        put(&root, &c_library, &wanted)
    }
}

/// The libraries of this installation, in the order of [`LIBRARIES`].
fn installed() -> Result<[PathBuf; 2], Error> {
    let parts = Parts::locate(var_os(parts::LIBRARY).map(PathBuf::from))?;
    Ok([parts.limiter()?, parts.find(parts::ADD_PATH)?])
}

/// The path of a library for the root's processes.
fn inside(name: &str) -> String {
    format!("{FOLDER}/{name}")
}

/// `ld.so.preload` as it is.
fn preloaded(root: &Root) -> Result<Vec<u8>, Error> {
    Ok(root.read(PRELOAD)?.unwrap_or_default())
}

fn put(root: &Root, c_library: &CLibrary, wanted: &[(String, Vec<u8>)]) -> Result<u8, Error> {
    let mut changed = false;
    root.make_folder(FOLDER)?;
    for (path, bytes) in wanted {
        if root.read(path)?.as_ref() != Some(bytes) {
            root.put(path, bytes, 0o755)?;
            changed = true;
        }
    }
    // The libraries first: each program that starts from now on looks for what this file names.
    if *c_library != CLibrary::Musl {
        let before = preloaded(root)?;
        let entries: Vec<&[u8]> = wanted.iter().map(|(path, _)| path.as_bytes()).collect();
        let after = preload::with(&before, &entries);
        if after != before {
            root.make_folder("/etc")?;
            root.put(PRELOAD, &after, 0o644)?;
            changed = true;
        }
    }
    let done = if changed { "prepared" } else { "already prepared" };
    print(&format!("{}: {done} ({})\n{}", root.told(""), c_library.told(), for_musl(c_library)))
        .map(|_| 0)
}

/// What the root's musl cannot do.
fn for_musl(c_library: &CLibrary) -> String {
    match c_library {
        CLibrary::Glibc(_) => String::new(),
        CLibrary::Musl => format!(
            "musl does not read {PRELOAD}; programs start with LD_PRELOAD={}, but are not limited: NVIDIA's driver \
             needs glibc\n",
            inside(parts::LIMITER)
        ),
    }
}

fn check(root: &Root, c_library: &CLibrary, wanted: &[(String, Vec<u8>)]) -> Result<u8, Error> {
    let mut lacking = Vec::new();
    let before = preloaded(root)?;
    for (path, bytes) in wanted {
        match root.read(path)? {
            None => lacking.push(format!("{} is missing", root.told(path))),
            Some(found) if found != *bytes => {
                lacking.push(format!("{} is from another build", root.told(path)));
            }
            Some(_) => {}
        }
        if *c_library != CLibrary::Musl && !preload::has(&before, path.as_bytes()) {
            lacking.push(format!("{} does not name {path}", root.told(PRELOAD)));
        }
    }
    if lacking.is_empty() {
        let text = format!("{}: prepared ({})\n", root.told(""), c_library.told());
        return print(&(text + &for_musl(c_library))).map(|_| 0);
    }
    let lines: String = lacking.iter().map(|line| format!("{line}\n")).collect();
    print(&lines).map(|_| 1)
}

fn remove(root: &Root) -> Result<u8, Error> {
    let before = root.read(PRELOAD)?;
    let paths = LIBRARIES.map(inside);
    let entries = paths.each_ref().map(|path| path.as_bytes());
    let mut changed = false;
    // The names first: no program may look for a library that is gone.
    if let Some(before) = before.filter(|text| entries.iter().any(|own| preload::has(text, own))) {
        match preload::without(&before, &entries) {
            Some(left) => root.put(PRELOAD, &left, 0o644)?,
            None => {
                root.remove(PRELOAD)?;
            }
        }
        changed = true;
    }
    // A package has its libraries at the same place: they are not ours to remove.
    let own = installed().unwrap_or_default();
    for (path, own) in paths.iter().zip(own) {
        if !root.is(path, &own) {
            changed |= root.remove(path)?;
        }
    }
    root.remove_if_empty(FOLDER);
    let done = if changed { "removed" } else { "nothing to remove" };
    print(&format!("{}: {done}\n", root.told(""))).map(|_| 0)
}
