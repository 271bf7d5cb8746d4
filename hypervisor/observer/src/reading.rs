//! The figures that a [`Source`](crate::Source) reads from a device at one moment.

use std::collections::BTreeSet;
use std::time::Instant;

use limits::GpuId;

/// A figure, or why it could not be read.
pub type Reading<T> = Result<T, Unread>;

/// Why a figure could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    /// Not supported by the device or its driver.
    #[error("not supported")]
    NotSupported,
    /// The daemon lacks the permission.
    #[error("not permitted")]
    NotPermitted,
    /// The device no longer answers.
    #[error("the device is lost")]
    Lost,
    /// The device answers nothing until it is reset.
    #[error("the device needs a reset")]
    NeedsReset,
    /// Another error, in the driver's words.
    #[error("{0}")]
    Failed(String),
}

/// A reading of all devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllReadings {
    /// When the reading was taken.
    pub taken: Instant,
    /// The devices, in the driver's order.
    pub devices: Vec<DeviceReading>,
}

/// A reading of a device. Figures are NVML's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceReading {
    /// Index in the driver's order, as in `nvidia-smi`.
    pub index: u32,
    /// Its UUID.
    pub uuid: GpuId,
    /// The product's name.
    pub name: Reading<String>,
    /// Properties of the device and its place in the machine.
    pub hardware: Hardware,
    /// Its memory.
    pub memory: Reading<Memory>,
    /// Recent utilization.
    pub utilization: Reading<Utilization>,
    /// Power draw, in milliwatts.
    pub power_mw: Reading<u32>,
    /// Power limit in force, in milliwatts.
    pub power_limit_mw: Reading<u32>,
    /// Temperature of the chip, in degrees Celsius.
    pub temperature_c: Reading<u32>,
    /// Current clocks.
    pub clocks: Clocks,
    /// Reasons for reduced clocks.
    pub throttling: Reading<BTreeSet<ThrottleReason>>,
    /// ECC errors.
    pub ecc: Ecc,
    /// Processes with a compute context.
    pub processes: Reading<Vec<GpuProcess>>,
}

impl DeviceReading {
    /// A reading in which no figure could be read.
    #[must_use]
    pub fn unread(index: u32, uuid: GpuId, why: &Unread) -> Self {
        fn none<T>(why: &Unread) -> Reading<T> {
            Err(why.clone())
        }
        Self {
            index,
            uuid,
            name: none(why),
            hardware: Hardware {
                pci: none(why),
                numa: none(why),
                capability: none(why),
                mig: none(why),
                links: Vec::new(),
            },
            memory: none(why),
            utilization: none(why),
            power_mw: none(why),
            power_limit_mw: none(why),
            temperature_c: none(why),
            clocks: Clocks { sm_mhz: none(why), memory_mhz: none(why) },
            throttling: none(why),
            ecc: Ecc { corrected: none(why), uncorrected: none(why) },
            processes: none(why),
        }
    }

    /// The reason if the whole device does not answer.
    pub(crate) fn does_not_answer(&self) -> Option<&Unread> {
        let whys = [
            self.name.as_ref().err(),
            self.memory.as_ref().err(),
            self.utilization.as_ref().err(),
            self.power_mw.as_ref().err(),
            self.temperature_c.as_ref().err(),
            self.processes.as_ref().err(),
        ];
        let mut whys = whys.into_iter().flatten();
        whys.find(|why| matches!(why, Unread::Lost | Unread::NeedsReset))
    }
}

/// Properties that do not change while the machine runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// PCI address as NVML writes it: `00000000:01:00.0`.
    pub pci: Reading<String>,
    /// The lowest NUMA node with affinity to the device.
    pub numa: Reading<u32>,
    /// Compute capability: major, minor.
    pub capability: Reading<(u32, u32)>,
    /// Whether MIG mode is on: the device is split into instances, which CUDA treats as devices.
    pub mig: Reading<bool>,
    /// Links to the other devices. Empty: no other device, or unknown to the driver.
    pub links: Vec<(GpuId, Link)>,
}

/// The closest connection between two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Through several sockets.
    System,
    /// Within a NUMA node, through several host bridges.
    Node,
    /// Through one host bridge.
    HostBridge,
    /// Through several PCIe switches.
    Switches,
    /// Through one PCIe switch.
    Switch,
    /// On one board.
    Board,
    /// Number of NVLinks, direct or through switches.
    NvLinks(u32),
}

/// A device's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// Reserved by driver and firmware.
    pub reserved: u64,
    /// Used by processes, as in `nvidia-smi`: without `reserved`.
    pub used: u64,
    /// What is left.
    pub free: u64,
}

/// Recent utilization, in percent of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utilization {
    /// Time in which a kernel ran.
    pub sm: u32,
    /// Time in which device memory was read or written.
    pub memory: u32,
}

/// Clocks, in MHz.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// The multiprocessors.
    pub sm_mhz: Reading<u32>,
    /// The memory.
    pub memory_mhz: Reading<u32>,
}

/// ECC errors since the driver was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ecc {
    /// Corrected errors.
    pub corrected: Reading<u64>,
    /// Uncorrectable errors.
    pub uncorrected: Reading<u64>,
}

/// A reason for reduced clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ThrottleReason {
    /// The device is idle.
    Idle,
    /// The clocks were set by a user.
    Setting,
    /// The power limit is reached.
    PowerCap,
    /// Slowed down by the hardware because of heat or its power supply.
    HardwareSlowdown,
    /// Follows the clocks of its sync boost group.
    SyncBoost,
    /// Slowed down by the driver because of heat.
    SoftwareThermal,
    /// Slowed down by the hardware because of heat.
    HardwareThermal,
    /// Slowed down by a signal of the power supply.
    PowerBrake,
    /// Limited by the display's clock setting.
    DisplayClock,
}

impl ThrottleReason {
    /// All reasons.
    pub const ALL: [Self; 9] = [
        Self::Idle,
        Self::Setting,
        Self::PowerCap,
        Self::HardwareSlowdown,
        Self::SyncBoost,
        Self::SoftwareThermal,
        Self::HardwareThermal,
        Self::PowerBrake,
        Self::DisplayClock,
    ];

    /// Its name in the API and in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Setting => "setting",
            Self::PowerCap => "power_cap",
            Self::HardwareSlowdown => "hardware_slowdown",
            Self::SyncBoost => "sync_boost",
            Self::SoftwareThermal => "software_thermal",
            Self::HardwareThermal => "hardware_thermal",
            Self::PowerBrake => "power_brake",
            Self::DisplayClock => "display_clock",
        }
    }
}

/// A process with a compute context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuProcess {
    /// Process id in the pid namespace of the driver's host.
    pub pid: u32,
    /// Device memory in use, in bytes. `None`: unknown to the driver.
    pub bytes: Option<u64>,
}
