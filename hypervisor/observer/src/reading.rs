//! What a device shows at a moment.

use std::collections::BTreeSet;
use std::time::Instant;

use limits::GpuId;

/// A figure, or why there is none.
pub type Reading<T> = Result<T, Unread>;

/// Why a figure could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    /// The device or its driver does not have it.
    #[error("not supported")]
    NotSupported,
    /// The daemon may not ask for it.
    #[error("not permitted")]
    NotPermitted,
    /// The device does not answer any more.
    #[error("the device is lost")]
    Lost,
    /// The device answers nothing before it is reset.
    #[error("the device needs a reset")]
    NeedsReset,
    /// Something else, in the driver's words.
    #[error("{0}")]
    Failed(String),
}

/// All devices at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllReadings {
    /// When it was taken.
    pub taken: Instant,
    /// The devices, in the driver's order.
    pub devices: Vec<DeviceReading>,
}

/// What a device shows. Figures are as NVML has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceReading {
    /// Its place in the driver's order, as `nvidia-smi` counts.
    pub index: u32,
    /// Its UUID.
    pub uuid: GpuId,
    /// The product's name.
    pub name: Reading<String>,
    /// What it is, and where it is in the machine.
    pub hardware: Hardware,
    /// Its memory.
    pub memory: Reading<Memory>,
    /// How much it is used.
    pub utilization: Reading<Utilization>,
    /// What it draws, in milliwatts.
    pub power_mw: Reading<u32>,
    /// What it may draw, in milliwatts.
    pub power_limit_mw: Reading<u32>,
    /// The temperature of the chip, in degrees Celsius.
    pub temperature_c: Reading<u32>,
    /// How fast it runs.
    pub clocks: Clocks,
    /// What keeps it from running faster.
    pub throttling: Reading<BTreeSet<ThrottleReason>>,
    /// Errors in its memory.
    pub ecc: Ecc,
    /// The processes with a compute context on it.
    pub processes: Reading<Vec<GpuProcess>>,
}

impl DeviceReading {
    /// A device of which nothing can be read.
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

    /// Whether a figure could not be read because the whole device does not answer.
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

/// What does not change while the machine runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// Its address on the PCI bus, as NVML writes it: `00000000:01:00.0`.
    pub pci: Reading<String>,
    /// The first of the machine's memory nodes that are near to it.
    pub numa: Reading<u32>,
    /// Its compute capability: major and minor.
    pub capability: Reading<(u32, u32)>,
    /// Whether it is in MIG mode: cut into instances, which are devices of their own to CUDA.
    pub mig: Reading<bool>,
    /// What connects it to the other devices. Empty: there are none, or the driver does not tell.
    pub links: Vec<(GpuId, Link)>,
}

/// What connects two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Several sockets.
    System,
    /// One socket, and several host bridges.
    Node,
    /// One host bridge.
    HostBridge,
    /// Several PCIe switches.
    Switches,
    /// One PCIe switch.
    Switch,
    /// One board.
    Board,
    /// So many NVLinks, directly or through switches.
    NvLinks(u32),
}

/// A device's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// What driver and firmware keep for themselves.
    pub reserved: u64,
    /// What processes have, as `nvidia-smi` shows it: without `reserved`.
    pub used: u64,
    /// What is left.
    pub free: u64,
}

/// How much a device was used lately, in percent of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utilization {
    /// A kernel ran.
    pub sm: u32,
    /// Its memory was read or written.
    pub memory: u32,
}

/// How fast a device runs, in MHz.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// The multiprocessors.
    pub sm_mhz: Reading<u32>,
    /// The memory.
    pub memory_mhz: Reading<u32>,
}

/// Errors in a device's memory since the driver was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ecc {
    /// Those that were corrected.
    pub corrected: Reading<u64>,
    /// Those that could not be.
    pub uncorrected: Reading<u64>,
}

/// What keeps a device from running faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ThrottleReason {
    /// It has nothing to do.
    Idle,
    /// Somebody has set its clocks.
    Setting,
    /// It may not draw more power.
    PowerCap,
    /// The hardware slows it down: heat, or its power supply.
    HardwareSlowdown,
    /// It keeps pace with others of its group.
    SyncBoost,
    /// The driver slows it down: it is hot.
    SoftwareThermal,
    /// The hardware slows it down: it is hot.
    HardwareThermal,
    /// Its power supply asks for it.
    PowerBrake,
    /// The clocks of the display.
    DisplayClock,
}

impl ThrottleReason {
    /// All of them.
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

/// A process on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuProcess {
    /// Its id, as the driver's host sees it.
    pub pid: u32,
    /// Device memory that it has, in bytes. `None`: the driver does not tell.
    pub bytes: Option<u64>,
}
