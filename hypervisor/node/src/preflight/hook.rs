//! Checks whether images' preload lists can be kept: the hook's program, and the runtime that has to start it.

use std::fs;
use std::path::{Path, PathBuf};

use protocol::findings::{Checked, Wrong};
use rustix::io::Errno;

use super::runtime::{CONTAINERD, below, files, plain, text};
use crate::host::Host;
use crate::image_preloads;
use crate::{ImagePreloads, Options};

const NOT_ASKED: &str =
    "not kept: an image's own /etc/ld.so.preload is hidden, without --keep-image-preloads";
/// Offsets in a 64-bit ELF header, and the size of a program header.
const HEADERS_AT: usize = 32;
const HEADERS_COUNT: usize = 56;
const HEADER_BYTES: usize = 56;
const INTERPRETER: u32 = 3;

/// Checks the hook's program: that the node has its loader.
pub(super) fn program(options: &Options, host: &Host) -> Checked {
    let Some(ImagePreloads { program, .. }) = &options.image_preloads else {
        return Ok(NOT_ASKED.to_owned());
    };
    let shown = program.display();
    let mend = format!(
        "hypervisor node --install DIR --hook {shown}, in a pod with the node's folder mounted at its own path"
    );
    let wrong = |found: String| Wrong::broken(found, mend.as_str());
    image_preloads::check(program, host).map_err(|error| wrong(error.to_string()))?;
    // A script names no loader.
    let loader = fs::read(program).ok().as_deref().and_then(loader_of);
    if let Some(loader) = loader.filter(|one| matches!(host.named(one), Err(Errno::NOENT))) {
        let found =
            format!("{shown}: the node has no {}, by which it is started", loader.display());
        return Err(Wrong::broken(
            found,
            "a node with glibc from 2.17 on; or no --keep-image-preloads",
        ));
    }
    if let Err(Errno::NOSYS) = host.named(Path::new("/")) {
        return Err(Wrong::broken(
            "openat2 is missing",
            "Linux 5.6 or newer; or no --keep-image-preloads",
        ));
    }
    Ok(format!("{shown}: can be started on the node"))
}

/// Checks the directory of CDI files, and whether a runtime reads them. Only a note: without CDI, lists are just
/// hidden.
pub(super) fn cdi(options: &Options, host: &Host) -> Checked {
    let Some(ImagePreloads { cdi, .. }) = &options.image_preloads else {
        return Ok(NOT_ASKED.to_owned());
    };
    let shown = cdi.display();
    let there = cdi.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
    let mend = format!("mkdir -p {shown}; in a pod: a hostPath volume at this path");
    let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    rustix::fs::access(there, access).map_err(|error| {
        Wrong::broken(format!("{}: not to be written to: {error}", there.display()), mend.as_str())
    })?;
    if !host.has_the_same(there) {
        let found =
            format!("{}: it is not the node's, from where the runtime reads", there.display());
        return Err(Wrong::broken(found, mend));
    }
    follows(&host.0).map(|runtime| format!("{shown}: {runtime}"))
}

/// containerd 1.7 reads CDI files if enabled; containerd 2.0 and CRI-O unless disabled.
fn follows(root: &Path) -> Checked {
    let containerd: Vec<PathBuf> =
        CONTAINERD.iter().flat_map(|place| files(&root.join(place))).collect();
    let has = |path: &PathBuf, words: &[&str]| {
        let text = plain(&text(path));
        words.iter().any(|word| text.contains(word))
    };
    let said = |words: &[&str]| containerd.iter().find(|path| has(path, words));
    let mend = "enable_cdi = true under [plugins.\"io.containerd.grpc.v1.cri\"] in /etc/containerd/config.toml of containerd \
                1.7, and systemctl restart containerd";
    if let Some(path) = said(&["enable_cdi=false"]) {
        let found =
            format!("{}: enable_cdi = false: what images preload stays hidden", below(root, path));
        return Err(Wrong::note(found, mend));
    }
    if let Some(path) = said(&["enable_cdi=true", "version=3"]) {
        return Ok(format!("containerd follows CDI: {}", below(root, path)));
    }
    if root.join("etc/crio").is_dir() {
        return Ok("CRI-O follows CDI".to_owned());
    }
    let found = "no containerd is told to follow CDI, and there is no CRI-O: what images preload may stay hidden";
    Err(Wrong::note(found, mend))
}

/// The loader that an ELF program names.
fn loader_of(program: &[u8]) -> Option<PathBuf> {
    let number = |at: usize, bytes: usize| -> Option<usize> {
        let field = program.get(at..at.checked_add(bytes)?)?;
        let number = field.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        usize::try_from(number).ok()
    };
    if !program.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (first, count) = (number(HEADERS_AT, 8)?, number(HEADERS_COUNT, 2)?);
    let mut headers =
        (0..count).filter_map(|one| first.checked_add(one.checked_mul(HEADER_BYTES)?));
    let header = headers
        .find(|at| number(*at, 4).and_then(|kind| u32::try_from(kind).ok()) == Some(INTERPRETER))?;
    let (at, length) = (number(header.checked_add(8)?, 8)?, number(header.checked_add(32)?, 8)?);
    let text = program.get(at..at.checked_add(length)?)?;
    let text = text.split(|byte| *byte == 0).next()?;
    std::str::from_utf8(text).ok().map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_programs_loader_is_read_from_it() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        let loader = loader_of(&own).unwrap();
        assert!(loader.is_absolute() && loader.exists(), "{}", loader.display());
        for other in [&b""[..], b"#!/bin/sh\n", b"\x7fELF\x02\x01", &own[..64]] {
            assert_eq!(loader_of(other), None);
        }
    }

    #[test]
    fn whether_a_runtime_follows_cdi_is_told_by_its_own_words() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert!(follows(root.path()).is_err());
        put("etc/containerd/config.toml", "version = 2\n# enable_cdi = true\n");
        assert!(follows(root.path()).is_err());
        for (text, is_on) in [
            ("version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  enable_cdi = true\n", true),
            ("version = 3\n", true),
            ("version = 3\n  enable_cdi = false\n", false),
        ] {
            put("etc/containerd/config.toml", text);
            let found = follows(root.path());
            assert_eq!(found.is_ok(), is_on, "{text}");
            let told = found.unwrap_or_else(|wrong| format!("{wrong:?}"));
            assert!(told.contains("/etc/containerd/config.toml"), "{told}");
        }
        fs::remove_dir_all(root.path().join("etc/containerd")).unwrap();
        put("etc/crio/crio.conf", "");
        assert_eq!(follows(root.path()).unwrap(), "CRI-O follows CDI");
    }
}
