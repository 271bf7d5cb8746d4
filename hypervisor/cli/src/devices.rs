//! The GPUs of the machine, as NVML lists them.

use std::fs;
use std::path::Path;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use limits::GpuId;
use limits::gpu::GpuChoice;

use super::Error;

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VisibleGpu {
    /// Index in `nvidia-smi`.
    pub index: u32,
    /// Its UUID, which is the same everywhere.
    pub uuid: GpuId,
    /// Product name.
    pub name: String,
    /// Memory in bytes; 0 if it is not known.
    pub memory: u64,
}

impl VisibleGpu {
    /// Its memory in bytes.
    #[must_use]
    pub fn known_memory(&self) -> Option<u64> {
        Some(self.memory).filter(|&bytes| bytes > 0)
    }

    /// Its name in messages.
    #[must_use]
    pub fn title(&self) -> String {
        format!("device {} ({})", self.index, self.name)
    }
}

/// The option that names one device.
pub const OPTION: &str = "--device";

/// Where NVIDIA's kernel module tells of its GPUs.
const KERNEL_MODULE: &str = "/proc/driver/nvidia/gpus";

/// Lists the GPUs, with the NVML at `library` or with the driver's own. Where that library is not there, as in a container
/// that may only compute, the kernel module tells them, without their memory.
///
/// # Errors
/// [`Error::NoDriver`] if neither can be asked, [`Error::NoDevice`] if NVML lists none.
pub fn list(library: Option<&Path>) -> Result<Vec<VisibleGpu>, Error> {
    let nvml = match open(library) {
        Ok(nvml) => nvml,
        Err(error) => {
            let told = if library.is_none() { told_by(KERNEL_MODULE.as_ref()) } else { Vec::new() };
            return if told.is_empty() { Err(no_driver(&error)) } else { Ok(told) };
        }
    };
    let devices = read(&nvml)?;
    if devices.is_empty() { Err(Error::NoDevice) } else { Ok(devices) }
}

/// Loads the NVML at `library`, or the driver's own.
///
/// # Errors
/// [`NvmlError`]: it is not there, or refuses to work.
pub fn open(library: Option<&Path>) -> Result<Nvml, NvmlError> {
    // A machine without the development package only has the name with a version.
    let path = library.map_or("libnvidia-ml.so.1".as_ref(), Path::as_os_str);
    Nvml::builder().lib_path(path).init()
}

fn read(nvml: &Nvml) -> Result<Vec<VisibleGpu>, Error> {
    let count = nvml.device_count().map_err(|error| no_driver(&error))?;
    (0..count)
        .map(|index| {
            let (uuid, name, memory) = facts(nvml, index).map_err(|error| no_driver(&error))?;
            let uuid = uuid.parse().map_err(|error| {
                Error::NoDriver(format!("device {index} has an invalid UUID: {error}"))
            })?;
            Ok(VisibleGpu { index, uuid, name, memory })
        })
        .collect()
}

/// The GPUs in a folder of NVIDIA's kernel module, in the order of their places on the bus, as NVML counts them.
fn told_by(folder: &Path) -> Vec<VisibleGpu> {
    let mut places: Vec<_> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    places.sort();
    let gpus = places.iter().filter_map(|place| {
        let told = fs::read_to_string(place.join("information")).ok()?;
        let value = |name: &str| {
            let of =
                |line: &str| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned());
            told.lines().find_map(of)
        };
        Some((value("GPU UUID")?.parse().ok()?, value("Model").unwrap_or_default()))
    });
    let gpu = |(index, (uuid, name))| VisibleGpu { index, uuid, name, memory: 0 };
    (0..).zip(gpus).map(gpu).collect()
}

fn facts(nvml: &Nvml, index: u32) -> Result<(String, String, u64), NvmlError> {
    let device = nvml.device_by_index(index)?;
    let memory = match device.memory_info() {
        Ok(memory) => memory.total,
        // Drivers before 510 have another form of the question, which nvml-wrapper does not ask. GPUs that share the
        // machine's memory do not answer.
        Err(NvmlError::FailedToLoadSymbol(_) | NvmlError::NotSupported) => 0,
        Err(error) => return Err(error),
    };
    Ok((device.uuid()?, device.name()?, memory))
}

/// The loader's message names the file, and NVML's the reason; both are shown.
fn no_driver(error: &NvmlError) -> Error {
    Error::NoDriver(
        error.to_string().trim_start_matches("a libloading error occurred: ").to_owned(),
    )
}

/// The devices that an option names, in their order; all devices without. Messages call the option `option`.
///
/// # Errors
/// [`Error::Usage`] for an unknown or ambiguous device, with the names of those that exist.
pub fn select(
    devices: &[VisibleGpu],
    wanted: &[String],
    option: &str,
) -> Result<Vec<VisibleGpu>, Error> {
    if wanted.is_empty() {
        return Ok(devices.to_vec());
    }
    let mut selected: Vec<VisibleGpu> = Vec::new();
    for text in wanted {
        let device = find(devices, text, option)?;
        if !selected.contains(device) {
            selected.push(device.clone());
        }
    }
    Ok(selected)
}

fn find<'a>(devices: &'a [VisibleGpu], text: &str, option: &str) -> Result<&'a VisibleGpu, Error> {
    let choice = text.parse::<GpuChoice>().ok();
    let mut matching = devices.iter().filter(|device| {
        choice.as_ref().is_some_and(|choice| choice.fits(Some(device.index), &device.uuid))
    });
    match (matching.next(), matching.next()) {
        (Some(device), None) => Ok(device),
        (first, _) => {
            let problem =
                if first.is_some() { "matches several devices" } else { "is no such device" };
            let existing: Vec<_> =
                devices.iter().map(|d| format!("{} ({}, {})", d.index, d.uuid, d.name)).collect();
            let repeat = if text.contains(',') { "; repeat it for several devices" } else { "" };
            Err(Error::Usage(format!(
                "{option} '{text}' {problem}; available: {}{repeat}",
                existing.join(", ")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Vec<VisibleGpu> {
        (0..2)
            .map(|index| VisibleGpu {
                index,
                uuid: format!("GPU-5A1ce000-0000-4000-8000-00000000000{index}").parse().unwrap(),
                name: "Test".to_owned(),
                memory: 1 << 34,
            })
            .collect()
    }

    fn indices(wanted: &[&str]) -> Result<Vec<u32>, String> {
        let wanted: Vec<_> = wanted.iter().map(|&text| text.to_owned()).collect();
        select(&two(), &wanted, OPTION)
            .map(|devices| devices.iter().map(|d| d.index).collect())
            .map_err(|e| e.to_string())
    }

    #[test]
    fn by_index_and_by_uuid_in_any_case() {
        assert_eq!(indices(&[]), Ok(vec![0, 1]));
        assert_eq!(indices(&["1"]), Ok(vec![1]));
        assert_eq!(indices(&["gpu-5a1CE000-0000-4000-8000-000000000001", "0"]), Ok(vec![1, 0]));
        assert_eq!(indices(&["0", "0"]), Ok(vec![0]));
    }

    /// What a driver of version 580 writes there.
    #[test]
    fn the_kernel_module_tells_what_nvml_does_not() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(told_by(folder.path()), []);
        for (place, uuid) in [
            ("0000:c1:00.0", "GPU-5a1ce000-0000-4000-8000-000000000001"),
            ("0000:01:00.0", "GPU-5a1ce000-0000-4000-8000-000000000000"),
            ("0000:02:00.0", "GPU-????????-????-????-????-????????????"),
        ] {
            let place = folder.path().join(place);
            fs::create_dir(&place).unwrap();
            let text = format!("Model: \t\t NVIDIA H200\nIRQ:   \t\t 16\nGPU UUID: \t {uuid}\n");
            fs::write(place.join("information"), text).unwrap();
        }
        let told = told_by(folder.path());
        let two = two().into_iter().map(|gpu| VisibleGpu {
            name: "NVIDIA H200".into(),
            memory: 0,
            ..gpu
        });
        assert_eq!(told, two.collect::<Vec<_>>());
        assert_eq!(told[0].known_memory(), None);
    }

    #[test]
    fn unknown_devices_name_what_exists() {
        for wrong in ["2", "-1", "GPU-", "", "GPU-9", "tesla"] {
            let message = indices(&[wrong]).unwrap_err();
            assert!(
                message.contains(&format!("--device '{wrong}' is no such device")),
                "{message}"
            );
            assert!(message.contains("0 (GPU-5a1ce000"), "{message}");
            assert!(message.contains("1 (GPU-5a1ce000"), "{message}");
        }
        assert!(indices(&["GPU-5a1"]).unwrap_err().contains("matches several devices"));
    }
}
