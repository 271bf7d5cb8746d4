//! Mounts NVIDIA's user-space libraries from the node into containers, if no container runtime does.
//!
//! A container's loader searches the target directories without a cache or a variable. So each library is mounted under
//! each of its names on the node: the one that programs link with, and those by which the libraries load each other.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::injection::mount;
use crate::proto::Mount;

/// Where nodes have the libraries.
const FOLDERS: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/home/kubernetes/bin/nvidia/lib64",
];
/// The library that marks a directory as the right one: no program can use a GPU without it.
const CUDA: &str = "libcuda.so.1";
/// The libraries that compute programs need.
const LIBRARIES: [&str; 7] = [
    "libcuda.so",
    "libcudadebugger.so",
    "libnvidia-gpucomp.so",
    "libnvidia-ml.so",
    "libnvidia-nvvm.so",
    "libnvidia-opencl.so",
    "libnvidia-ptxjitcompiler.so",
];
/// Mount targets: the default directories of glibc's loader on Debian and its derivatives, and elsewhere.
const INSIDE: [&str; 2] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"];

/// Why the libraries cannot be mounted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DriverError {
    #[error("--driver {folder}: {source}; expected the node's folder with {CUDA}", folder = folder.display())]
    Folder { folder: PathBuf, source: io::Error },
    #[error("no {CUDA} in {0}; expected --driver DIR, the node's folder with it")]
    Nowhere(String),
}

/// Finds the directory with the libraries. `named`: the operator's choice.
pub(crate) fn find(named: Option<&Path>) -> Result<PathBuf, DriverError> {
    match named {
        Some(folder) => {
            let missing = |source| DriverError::Folder { folder: folder.to_owned(), source };
            fs::metadata(folder.join(CUDA)).map_err(missing)?;
            Ok(folder.to_owned())
        }
        None => {
            let mut folders = FOLDERS.iter().map(Path::new);
            let found = folders.find(|folder| folder.join(CUDA).exists());
            found.map(Path::to_owned).ok_or_else(|| DriverError::Nowhere(FOLDERS.join(", ")))
        }
    }
}

/// The mounts of all libraries, by name. Reads the directory each time, since the driver may have been replaced.
pub(crate) fn mounts(folder: &Path) -> Result<Vec<Mount>, DriverError> {
    let fault = |source| DriverError::Folder { folder: folder.to_owned(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(fault)? {
        let path = entry.map_err(fault)?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()).map(str::to_owned) else {
            continue;
        };
        // Dangling links are skipped.
        if is_one(&name)
            && let Ok(file) = path.canonicalize()
        {
            found.push((name, file));
        }
    }
    if !found.iter().any(|(name, _)| name == CUDA) {
        return Err(fault(io::Error::from(io::ErrorKind::NotFound)));
    }
    found.sort_unstable();
    let one = |inside: &'static str| {
        let each = found.iter();
        each.map(move |(name, file)| mount(file, &format!("{inside}/{name}"), true))
    };
    Ok(INSIDE.into_iter().flat_map(one).collect())
}

fn is_one(name: &str) -> bool {
    let of = |library: &str| {
        name.strip_prefix(library).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    LIBRARIES.iter().any(|library| of(library))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn each_library_is_mounted_by_each_of_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let said = find(Some(folder.path())).unwrap_err().to_string();
        assert!(
            said.contains("No such file") && said.contains("folder with libcuda.so.1"),
            "{said}"
        );
        fs::write(at("libcuda.so.580.95"), "").unwrap();
        symlink("libcuda.so.580.95", at("libcuda.so.1")).unwrap();
        symlink("libcuda.so.1", at("libcuda.so")).unwrap();
        fs::write(at("libnvidia-nvvm.so.4"), "").unwrap();
        symlink("gone", at("libnvidia-ml.so.1")).unwrap();
        for other in ["libcudart.so.12", "libcuda.sox", "libnvidia-glcore.so.580.95", "libc.so.6"] {
            fs::write(at(other), "").unwrap();
        }
        let folder = find(Some(folder.path())).unwrap();
        let found = mounts(&folder).unwrap();
        let file = |name: &str| folder.canonicalize().unwrap().join(name).display().to_string();
        let mut wanted = Vec::new();
        for inside in ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"] {
            for (name, of) in [
                ("libcuda.so", "libcuda.so.580.95"),
                ("libcuda.so.1", "libcuda.so.580.95"),
                ("libcuda.so.580.95", "libcuda.so.580.95"),
                ("libnvidia-nvvm.so.4", "libnvidia-nvvm.so.4"),
            ] {
                wanted.push((format!("{inside}/{name}"), file(of), true));
            }
        }
        let found = found.into_iter().map(|one| (one.container_path, one.host_path, one.read_only));
        assert_eq!(found.collect::<Vec<_>>(), wanted);
        fs::remove_file(folder.join("libcuda.so.1")).unwrap();
        assert!(mounts(&folder).is_err(), "no program could use a GPU");
    }
}
