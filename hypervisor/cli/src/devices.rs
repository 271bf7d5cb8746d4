//! Which GPUs there are, as NVML lists them.

use std::path::Path;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::Error;

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Index in `nvidia-smi`.
    pub index: u32,
    /// UUID as NVML prints it: `GPU-…`.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// Memory in bytes.
    pub memory: u64,
}

impl Device {
    /// How messages name it.
    #[must_use]
    pub fn title(&self) -> String {
        format!("device {} ({})", self.index, self.name)
    }
}

/// Lists the GPUs, from the NVML at `library` or from the driver's own.
///
/// # Errors
/// [`Error::NoDriver`] when NVML cannot be used, [`Error::NoDevice`] when it lists none.
pub fn list(library: Option<&Path>) -> Result<Vec<Device>, Error> {
    let mut builder = Nvml::builder();
    if let Some(path) = library {
        builder.lib_path(path.as_os_str());
    } else {
        // The name with a version is what a machine without the development package has.
        builder.lib_path("libnvidia-ml.so.1".as_ref());
    }
    let devices = builder.init().and_then(|nvml| read(&nvml)).map_err(|e| no_driver(&e))?;
    if devices.is_empty() { Err(Error::NoDevice) } else { Ok(devices) }
}

fn read(nvml: &Nvml) -> Result<Vec<Device>, NvmlError> {
    (0..nvml.device_count()?)
        .map(|index| {
            let device = nvml.device_by_index(index)?;
            Ok(Device {
                index,
                uuid: device.uuid()?,
                name: device.name()?,
                memory: device.memory_info()?.total,
            })
        })
        .collect()
}

/// The loader's message names the file, NVML's the reason; both are worth a line.
fn no_driver(error: &NvmlError) -> Error {
    Error::NoDriver(
        error.to_string().trim_start_matches("a libloading error occurred: ").to_owned(),
    )
}

/// The devices that the `--device` options name, in their order; all of them without options.
///
/// # Errors
/// [`Error::Usage`] for an unknown or ambiguous device, naming those that exist.
pub fn select(devices: &[Device], wanted: &[String]) -> Result<Vec<Device>, Error> {
    if wanted.is_empty() {
        return Ok(devices.to_vec());
    }
    let mut selected: Vec<Device> = Vec::new();
    for text in wanted {
        let device = find(devices, text)?;
        if !selected.contains(device) {
            selected.push(device.clone());
        }
    }
    Ok(selected)
}

fn find<'a>(devices: &'a [Device], text: &str) -> Result<&'a Device, Error> {
    let wanted = text.trim().to_ascii_lowercase();
    let by_index = wanted.parse::<u32>().ok();
    let mut matching = devices.iter().filter(|device| match by_index {
        Some(index) => device.index == index,
        // A shortened UUID is what CUDA_VISIBLE_DEVICES takes as well.
        None => wanted.len() > 4 && device.uuid.to_ascii_lowercase().starts_with(&wanted),
    });
    match (matching.next(), matching.next()) {
        (Some(device), None) => Ok(device),
        (first, _) => {
            let problem =
                if first.is_some() { "fits several devices" } else { "is no device here" };
            let existing: Vec<_> =
                devices.iter().map(|d| format!("{} ({}, {})", d.index, d.uuid, d.name)).collect();
            Err(Error::Usage(format!(
                "--device '{text}' {problem}: there is {}",
                existing.join(", ")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Vec<Device> {
        (0..2)
            .map(|index| Device {
                index,
                uuid: format!("GPU-5A1ce000-0000-4000-8000-00000000000{index}"),
                name: "Test".to_owned(),
                memory: 1 << 34,
            })
            .collect()
    }

    fn indices(wanted: &[&str]) -> Result<Vec<u32>, String> {
        let wanted: Vec<_> = wanted.iter().map(|&text| text.to_owned()).collect();
        select(&two(), &wanted)
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

    #[test]
    fn unknown_devices_name_what_exists() {
        for wrong in ["2", "-1", "GPU-", "", "GPU-9", "tesla"] {
            let message = indices(&[wrong]).unwrap_err();
            assert!(
                message.contains(&format!("--device '{wrong}' is no device here")),
                "{message}"
            );
            assert!(message.contains("0 (GPU-5A1ce000"), "{message}");
            assert!(message.contains("1 (GPU-5A1ce000"), "{message}");
        }
        assert!(indices(&["GPU-5a1"]).unwrap_err().contains("fits several devices"));
    }
}
