//! Finds a GPU's device files in /dev, from what NVIDIA's kernel module shows in /proc.

use std::fs;
use std::io;
use std::path::PathBuf;

use limits::GpuId;

/// Where the kernel module lists its devices.
const KERNEL_MODULE: &str = "/proc/driver/nvidia";
/// Device files that every GPU needs.
const ALL_NEED: [&str; 2] = ["nvidiactl", "nvidia-uvm"];
/// Device files that some programs need; added if present.
const SOME_NEED: [&str; 2] = ["nvidia-uvm-tools", "nvidia-modeset"];

/// Finds the device files of GPUs.
#[derive(Clone, Debug)]
pub(crate) struct DeviceFiles {
    kernel_module: PathBuf,
    dev: PathBuf,
}

/// Why a GPU's device files are not found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilesError {
    #[error("{gpu}: the kernel module does not tell which device file it has (below {module})", module = module.display())]
    NoMinor { gpu: GpuId, module: PathBuf },
    #[error("{file}: {source}; `nvidia-smi` or `nvidia-modprobe -u -c=0` makes it", file = file.display())]
    Missing { file: PathBuf, source: io::Error },
}

impl Default for DeviceFiles {
    fn default() -> Self {
        Self { kernel_module: KERNEL_MODULE.into(), dev: "/dev".into() }
    }
}

impl DeviceFiles {
    /// The device files of these GPUs. Simulated GPUs have none.
    pub(crate) fn of(&self, gpus: &[GpuId]) -> Result<Vec<PathBuf>, FilesError> {
        let real: Vec<_> = gpus.iter().filter(|gpu| !gpu.is_simulated()).collect();
        if real.is_empty() {
            return Ok(Vec::new());
        }
        let minors = self.minors();
        let mut files = Vec::new();
        for gpu in real {
            let minor = minors.iter().find(|(id, _)| id == gpu).map(|(_, minor)| minor);
            let module = || self.kernel_module.clone();
            let minor = minor.ok_or_else(|| FilesError::NoMinor { gpu: *gpu, module: module() })?;
            files.push(self.dev.join(format!("nvidia{minor}")));
        }
        files.extend(ALL_NEED.map(|name| self.dev.join(name)));
        for file in &files {
            let missing = |source| FilesError::Missing { file: file.clone(), source };
            fs::metadata(file).map_err(missing)?;
        }
        let others = SOME_NEED.map(|name| self.dev.join(name));
        files.extend(others.into_iter().filter(|file| file.exists()));
        Ok(files)
    }

    /// The minor numbers of all GPUs that the kernel module lists.
    fn minors(&self) -> Vec<(GpuId, u32)> {
        let Ok(gpus) = fs::read_dir(self.kernel_module.join("gpus")) else { return Vec::new() };
        let one = |gpu: io::Result<fs::DirEntry>| {
            let text = fs::read_to_string(gpu.ok()?.path().join("information")).ok()?;
            read(&text)
        };
        gpus.filter_map(one).collect()
    }
}

fn read(information: &str) -> Option<(GpuId, u32)> {
    let value = |name| {
        let line = information.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.strip_prefix(':')).map(str::trim)
    };
    Some((value("GPU UUID")?.parse().ok()?, value("Device Minor")?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const GPU: GpuId = GpuId::from_bytes([0x34; 16]);
    const OTHER: GpuId = GpuId::from_bytes([0x35; 16]);

    fn node(folder: &Path, files: &[&str]) -> DeviceFiles {
        let (kernel_module, dev) = (folder.join("proc"), folder.join("dev"));
        let gpu = kernel_module.join("gpus/0000:17:00.0");
        fs::create_dir_all(&gpu).unwrap();
        fs::create_dir_all(&dev).unwrap();
        let text = format!("Model: \t\t NVIDIA H200\nGPU UUID: \t {GPU}\nDevice Minor: \t 3\n");
        fs::write(gpu.join("information"), text).unwrap();
        for file in files {
            fs::write(dev.join(file), "").unwrap();
        }
        DeviceFiles { kernel_module, dev }
    }

    #[test]
    fn a_gpu_has_its_own_file_and_the_common_ones() {
        let folder = tempfile::tempdir().unwrap();
        let files =
            node(folder.path(), &["nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]);
        let found = files.of(&[GPU]).unwrap();
        let names: Vec<_> =
            found.iter().map(|file| file.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]);
    }

    #[test]
    fn what_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let files = node(folder.path(), &["nvidia3", "nvidiactl"]);
        let said = files.of(&[GPU]).unwrap_err().to_string();
        assert!(said.contains("dev/nvidia-uvm: No such file"), "{said}");
        assert!(matches!(files.of(&[OTHER]), Err(FilesError::NoMinor { gpu, .. }) if gpu == OTHER));
    }

    #[test]
    fn simulated_gpus_have_none() {
        let simulated = "GPU-5a1ce000-0000-4000-8000-000000000001".parse().unwrap();
        assert!(DeviceFiles::default().of(&[simulated]).unwrap().is_empty());
    }
}
