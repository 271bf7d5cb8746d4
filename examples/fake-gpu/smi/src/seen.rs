//! Reads the figures from NVML.

use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

/// Longest name of a program, in bytes.
const LONGEST: usize = 256;

/// All figures.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) driver: String,
    pub(crate) cuda: String,
    pub(crate) gpus: Vec<Gpu>,
}

/// A GPU. A figure that is `None` is unknown to NVML.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) bus_id: String,
    pub(crate) total: u64,
    pub(crate) used: u64,
    pub(crate) free: u64,
    pub(crate) utilization: Option<u32>,
    pub(crate) memory_utilization: Option<u32>,
    pub(crate) temperature: Option<u32>,
    pub(crate) power_mw: Option<u32>,
    pub(crate) power_limit_mw: Option<u32>,
    pub(crate) sm_mhz: Option<u32>,
    pub(crate) memory_mhz: Option<u32>,
    pub(crate) ecc: Option<u64>,
    pub(crate) processes: Vec<Process>,
}

/// A process on a GPU.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) name: String,
    pub(crate) used: Option<u64>,
}

impl Seen {
    pub(crate) fn of(nvml: &Nvml) -> Result<Self, NvmlError> {
        let cuda = nvml.sys_cuda_driver_version()?;
        let gpus = (0..nvml.device_count()?).map(|index| gpu(nvml, index));
        Ok(Self {
            driver: nvml.sys_driver_version()?,
            cuda: format!("{}.{}", cuda / 1000, cuda % 1000 / 10),
            gpus: gpus.collect::<Result<_, _>>()?,
        })
    }
}

impl Gpu {
    /// Whether the GPU matches an argument of `-i`.
    pub(crate) fn is(&self, id: &str) -> bool {
        id.parse() == Ok(self.index)
            || self.uuid.eq_ignore_ascii_case(id)
            || self.bus_id.eq_ignore_ascii_case(id)
    }
}

fn gpu(nvml: &Nvml, index: u32) -> Result<Gpu, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let memory = device.memory_info()?;
    let rates = device.utilization_rates().ok();
    Ok(Gpu {
        index,
        name: device.name()?,
        uuid: device.uuid()?,
        bus_id: device.pci_info()?.bus_id,
        total: memory.total,
        used: memory.used,
        free: memory.free,
        utilization: rates.as_ref().map(|rates| rates.gpu),
        memory_utilization: rates.as_ref().map(|rates| rates.memory),
        temperature: device.temperature(TemperatureSensor::Gpu).ok(),
        power_mw: device.power_usage().ok(),
        power_limit_mw: device.enforced_power_limit().ok(),
        sm_mhz: device.clock_info(Clock::SM).ok(),
        memory_mhz: device.clock_info(Clock::Memory).ok(),
        ecc: device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile).ok(),
        processes: processes(nvml, &device)?,
    })
}

fn processes(nvml: &Nvml, device: &Device<'_>) -> Result<Vec<Process>, NvmlError> {
    let one = |found: nvml_wrapper::struct_wrappers::device::ProcessInfo| Process {
        pid: found.pid,
        name: nvml
            .sys_process_name(found.pid, LONGEST)
            .unwrap_or_else(|_| "[Not Found]".to_owned()),
        used: match found.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        },
    };
    Ok(device.running_compute_processes()?.into_iter().map(one).collect())
}
