//! Finds the other parts of Sluice: beside this executable, or in `../lib/sluice` next to it.

use std::path::{Path, PathBuf};

use super::{Error, library};

/// Path of the limiter, for installations that keep it elsewhere.
pub const LIBRARY: &str = "SLUICE_LIBRARY";

/// The library that is preloaded.
pub const LIMITER: &str = "libcuda_limiter.so";
/// The library that adds to search paths.
pub const ADD_PATH: &str = "libadd_path.so";
/// The daemon's executable.
pub const HYPERVISOR: &str = "hypervisor";
/// The workload of the demo.
pub const TENANT: &str = "tenant";
/// The simulated driver, and the name under which programs load it.
pub const FAKE_CUDA: (&str, &str) = ("libfake_cuda.so", "libcuda.so.1");
/// The simulated NVML, and the name under which programs load it.
pub const FAKE_NVML: (&str, &str) = ("libfake_nvml.so", "libnvidia-ml.so.1");

/// The simulated GPU's `nvidia-smi`.
pub const FAKE_SMI: (&str, &str) = ("fake-nvidia-smi", "nvidia-smi");

/// Finds the parts.
#[derive(Debug, Clone)]
pub struct Parts {
    folders: Vec<PathBuf>,
    limiter: Option<PathBuf>,
}

impl Parts {
    /// Searches around this executable; `library` is the value of [`LIBRARY`].
    ///
    /// # Errors
    /// If the system does not tell where this executable is.
    pub fn locate(library: Option<PathBuf>) -> Result<Self, Error> {
        let own = std::env::current_exe()
            .map_err(|e| Error::system("cannot find this executable's own path", e))?;
        let beside = own.parent().unwrap_or(Path::new("/"));
        Ok(Self::new(beside, library))
    }

    fn new(beside: &Path, library: Option<PathBuf>) -> Self {
        let mut folders = vec![beside.to_owned()];
        folders.extend(beside.parent().map(|above| above.join("lib/sluice")));
        Self { folders, limiter: library.filter(|path| !path.as_os_str().is_empty()) }
    }

    /// The file called `name`.
    ///
    /// # Errors
    /// [`Error::PartMissing`] with the places that were tried.
    pub fn find(&self, name: &'static str) -> Result<PathBuf, Error> {
        let looked_for: Vec<_> = self.folders.iter().map(|folder| folder.join(name)).collect();
        match looked_for.iter().find(|path| path.is_file()) {
            Some(path) => Ok(path.clone()),
            None => Err(Error::PartMissing { name, looked_for }),
        }
    }

    /// The limiter: at the path in [`LIBRARY`], or beside the executable.
    ///
    /// # Errors
    /// [`Error::PartMissing`]; a wrong [`LIBRARY`] is not silently replaced by another file.
    /// As for [`library::check`]: the loader would run the program without it.
    pub fn limiter(&self) -> Result<PathBuf, Error> {
        let path = match &self.limiter {
            None => self.find(LIMITER)?,
            Some(path) => match path.canonicalize() {
                Ok(absolute) if absolute.is_file() => absolute,
                _ => {
                    return Err(Error::PartMissing {
                        name: LIMITER,
                        looked_for: vec![path.clone()],
                    });
                }
            },
        };
        library::check(&path)?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::super::library::tests::library;
    use super::*;
    use std::fs;

    #[test]
    fn beside_comes_before_lib() {
        let root = tempfile::tempdir().unwrap();
        let (bin, lib) = (root.path().join("bin"), root.path().join("lib/sluice"));
        fs::create_dir(&bin).unwrap();
        fs::create_dir_all(&lib).unwrap();
        let parts = Parts::new(&bin, None);
        let missing = parts.limiter().unwrap_err().to_string();
        assert!(missing.contains("libcuda_limiter.so is missing"), "{missing}");
        assert!(missing.contains(&*lib.to_string_lossy()), "{missing}");
        fs::write(lib.join(LIMITER), library()).unwrap();
        assert_eq!(parts.limiter().unwrap(), lib.join(LIMITER));
        fs::write(bin.join(LIMITER), library()).unwrap();
        assert_eq!(parts.limiter().unwrap(), bin.join(LIMITER));
    }

    #[test]
    fn the_variable_decides_and_is_not_guessed_around() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join(LIMITER), "").unwrap();
        let elsewhere = root.path().join("other.so");
        let parts = Parts::new(root.path(), Some(elsewhere.clone()));
        assert!(parts.limiter().is_err());
        fs::write(&elsewhere, library()).unwrap();
        assert_eq!(parts.limiter().unwrap(), elsewhere.canonicalize().unwrap());
    }
}
