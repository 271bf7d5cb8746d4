//! The table of all environment variables: the source for reading and for `docs/environment.md`.
//!
//! The file is long because it is one table.

use super::value::Format;
use limits::env;

/// The system that defines a variable. In order of priority: if two systems set a limit, the earlier one's applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum System {
    Sluice,
    VgpuRs,
    VgpuController,
    Libvgpu,
    VcudaHook,
    TensorFusion,
    Kai,
}

impl System {
    /// The system's name for people.
    #[cfg(test)]
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Sluice => "Sluice (native)",
            Self::VgpuRs => "vgpu.rs (native)",
            Self::VgpuController => "VGPU-Controller",
            Self::Libvgpu => "libvgpu",
            Self::VcudaHook => "vcuda-hook",
            Self::TensorFusion => "tensor-fusion",
            Self::Kai => "KAI Scheduler",
        }
    }
}

/// How the index of a variable (`NAME_<i>`, or a number as key) counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexSpace {
    /// The variable takes no index.
    None,
    /// Like `nvidia-smi -L`.
    Host,
    /// Like CUDA in the program.
    Visible,
}

/// What a variable sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    MemoryLimit,
    /// The part of the memory limit that may be on the device.
    MemoryReal,
    /// Ratio of the memory limit to the part that may be on the device.
    MemoryRatio,
    /// Whether the memory limit may exceed the device.
    MemoryOversold,
    ComputeLimit,
    ComputePolicy,
    /// The burst limit.
    SoftLimit,
    Weight,
    Priority,
    OnFailure,
    Gates,
    SessionDir,
    DaemonSocket,
    DaemonHost,
    DaemonPort,
    PodUid,
    PodNamespace,
    PodName,
    ContainerName,
    CudaHooks,
    NvmlHooks,
    ControlDisabled,
    Log,
    LogFile,
    /// Validated, but deliberately without effect.
    Ignored,
    /// Read by `libadd_path.so`, not here.
    AddPath,
}

/// A row of the table.
#[derive(Debug)]
pub(super) struct Variable {
    pub(super) name: &'static str,
    pub(super) system: System,
    pub(super) meaning: Meaning,
    pub(super) format: Format,
    pub(super) index: IndexSpace,
    /// For people: the purpose, or why the variable has no effect.
    #[cfg_attr(not(test), allow(dead_code, reason = "read by the test that writes the document"))]
    pub(super) purpose: &'static str,
}

impl Variable {
    /// Whether `NAME_<i>` is read in addition to `NAME`.
    pub(super) fn takes_suffix(&self) -> bool {
        let map = matches!(self.format, Format::SizesByDevice | Format::PercentsByDevice);
        self.index != IndexSpace::None && !map
    }

    /// Whether `NAME_<i>` is refused: it looks like a limit, but is not read.
    pub(super) fn refuses_suffix(&self) -> bool {
        let limit = matches!(
            self.meaning,
            Meaning::MemoryLimit | Meaning::MemoryReal | Meaning::ComputeLimit | Meaning::SoftLimit
        );
        limit && !self.takes_suffix()
    }
}

const fn row(
    name: &'static str,
    (system, meaning, format, index): (System, Meaning, Format, IndexSpace),
    purpose: &'static str,
) -> Variable {
    Variable { name, system, meaning, format, index, purpose }
}

/// All variables. Rows with the same meaning are adjacent, in order of priority.
pub(super) static VARIABLES: &[Variable] = {
    use Format as F;
    use IndexSpace as I;
    use Meaning as M;
    use System as S;
    &[
        row(
            env::MEMORY_LIMIT,
            (S::VgpuRs, M::MemoryLimit, F::SizesByDevice, I::Host),
            "memory limit of each device",
        ),
        row(
            "CUDA_MEM_LIMIT",
            (S::VgpuController, M::MemoryLimit, F::Size, I::Host),
            "memory limit of one device, or without an index of every device",
        ),
        row(
            "CUDA_DEVICE_MEMORY_LIMIT",
            (S::Libvgpu, M::MemoryLimit, F::SizeOrNoLimit, I::Visible),
            "memory limit of one device, or without an index of every device; 0 for one device has no effect: the value without an index applies",
        ),
        row(
            "VCUDA_MEMORY_LIMIT",
            (S::VcudaHook, M::MemoryLimit, F::Size, I::None),
            "memory limit of every device",
        ),
        row(
            "TF_GPU_MEMORY_LIMIT",
            (S::TensorFusion, M::MemoryLimit, F::MebibytesOrNoLimit, I::None),
            "memory limit of every device",
        ),
        row(
            "TF_CUDA_MEMORY_LIMIT",
            (S::TensorFusion, M::MemoryLimit, F::MebibytesOrNoLimit, I::None),
            "memory limit of every device",
        ),
        row(
            "GPU_MEMORY_LIMIT",
            (S::Kai, M::MemoryLimit, F::Size, I::None),
            "memory limit of every device",
        ),
        row(
            env::MEMORY_REAL,
            (S::Sluice, M::MemoryReal, F::SizesByDevice, I::Host),
            "how much of the memory limit may be on the device; allocations beyond it are placed on the host",
        ),
        row(
            "CUDA_MEM_RATIO",
            (S::VgpuController, M::MemoryRatio, F::Ratio, I::Host),
            "if above 1: the memory limit divided by this ratio may be on the device; allocations beyond it are placed on the host",
        ),
        row(
            "CUDA_MEM_OVERSOLD",
            (S::VgpuController, M::MemoryOversold, F::Flag, I::Host),
            "`true`: the memory limit may exceed the device's size; allocations beyond the device's size are placed on the host",
        ),
        row(
            "CUDA_OVERSUBSCRIBE",
            (S::Libvgpu, M::MemoryOversold, F::Flag, I::None),
            "the same as CUDA_MEM_OVERSOLD, for every device",
        ),
        row(
            env::COMPUTE_LIMIT,
            (S::VgpuRs, M::ComputeLimit, F::PercentsByDevice, I::Host),
            "compute share on each device",
        ),
        row(
            "CUDA_CORE_LIMIT",
            (S::VgpuController, M::ComputeLimit, F::Percent, I::Host),
            "compute share on one device, or without an index on every device",
        ),
        row(
            "CUDA_DEVICE_SM_LIMIT",
            (S::Libvgpu, M::ComputeLimit, F::PercentOrNoLimit, I::Visible),
            "compute share on one device, or without an index on every device; for one device, 100 removes the compute limit, and 0 has no effect: the value without an index applies",
        ),
        row(
            "TF_CUDA_SM_PERCENT_LIMIT",
            (S::TensorFusion, M::ComputeLimit, F::PercentOrNoLimit, I::None),
            "compute share on every device",
        ),
        row(
            env::POLICY,
            (S::Sluice, M::ComputePolicy, F::Policy, I::None),
            "policy for the compute share: `fixed` (default), the session never gets more; `balance`, the share is guaranteed, and idle time is added; `none`, no compute limit",
        ),
        row(
            "GPU_CORE_UTILIZATION_POLICY",
            (S::Libvgpu, M::ComputePolicy, F::UtilizationPolicy, I::None),
            "policy for CUDA_DEVICE_SM_LIMIT: `force` means `fixed`; `default` means `balance`, because in libvgpu only `force` limits a program that has the device to itself; `disable` removes the compute limit",
        ),
        row(
            env::SOFT_LIMIT,
            (S::Sluice, M::SoftLimit, F::PercentsByDevice, I::Host),
            "burst limit on each device, at least the compute share; implies policy `balance`",
        ),
        row(
            "CUDA_CORE_SOFT_LIMIT",
            (S::VgpuController, M::SoftLimit, F::Percent, I::Host),
            "burst limit on one device, or without an index on every device: CUDA_CORE_LIMIT is then guaranteed, and idle time may be used up to the burst limit, as VGPU-Controller scales a program between the two values",
        ),
        row(
            env::WEIGHT,
            (S::Sluice, M::Weight, F::Weight, I::None),
            "policy `balance`: weight for dividing idle time among sessions (default: the compute share in percent, rounded up)",
        ),
        row(
            env::PRIORITY,
            (S::Sluice, M::Priority, F::PriorityName, I::None),
            "`low`: the session gets the GPU time that sessions of `high` priority (default) leave, and a small part that keeps it from starving",
        ),
        row(
            "CUDA_TASK_PRIORITY",
            (S::Libvgpu, M::Priority, F::PriorityNumber, I::None),
            "the same as SLUICE_PRIORITY, as a number",
        ),
        row(
            env::ON_FAILURE,
            (S::Sluice, M::OnFailure, F::OnFailure, I::None),
            "what happens to CUDA calls when the limiter itself fails: `closed` (default), they fail; `open`, they pass without limits; a value that cannot be parsed is refused in both cases",
        ),
        row(
            env::GATES,
            (S::Sluice, M::Gates, F::Gates, I::None),
            "where a launch waits while another session has the device: `stream` (default; `auto` is the same), in its stream, so that the program can launch more; `thread`, in the launching thread",
        ),
        row(
            env::SESSION_DIR,
            (S::Sluice, M::SessionDir, F::AbsolutePath, I::None),
            "directory of the session whose limits the process shares, created by `sluice run`; ignored if the limiter was loaded through a session's own link: the process then belongs to that session",
        ),
        row(
            env::DAEMON_SOCKET,
            (S::Sluice, M::DaemonSocket, F::Socket, I::None),
            "socket of the daemon; if unset, programs that only preload the library use a default socket that they can see; `none`: each session keeps its own account",
        ),
        row(
            "HYPERVISOR_IP",
            (S::VgpuRs, M::DaemonHost, F::Host, I::None),
            "host of a daemon that `sluice` reads over TCP, with HYPERVISOR_PORT; a limited program uses the daemon's socket instead",
        ),
        row(
            "HYPERVISOR_PORT",
            (S::VgpuRs, M::DaemonPort, F::Port, I::None),
            "port of a daemon that `sluice` reads over TCP, with HYPERVISOR_IP",
        ),
        row(
            "VGPU_POD_UID",
            (S::VgpuController, M::PodUid, F::Text, I::None),
            "helps to tell sessions apart; not trusted as an identity",
        ),
        row(
            "POD_NAMESPACE",
            (S::VgpuRs, M::PodNamespace, F::Text, I::None),
            "helps to tell sessions apart; not trusted as an identity",
        ),
        row(
            "VGPU_POD_NAMESPACE",
            (S::VgpuController, M::PodNamespace, F::Text, I::None),
            "helps to tell sessions apart; not trusted as an identity",
        ),
        row(
            "POD_NAME",
            (S::VgpuRs, M::PodName, F::Text, I::None),
            "helps to tell sessions apart; not trusted as an identity",
        ),
        row(
            "VGPU_POD_NAME",
            (S::VgpuController, M::PodName, F::Text, I::None),
            "helps to tell sessions apart; not trusted as an identity",
        ),
        row(
            "CONTAINER_NAME",
            (S::VgpuRs, M::ContainerName, F::Text, I::None),
            "helps to tell sessions apart; not trusted as an identity",
        ),
        row(
            "VGPU_CONTAINER_NAME",
            (S::VgpuController, M::ContainerName, F::Text, I::None),
            "helps to tell sessions apart; not trusted as an identity",
        ),
        row(
            "ENABLE_CUDA_HOOKS",
            (S::VgpuRs, M::CudaHooks, F::Flag, I::None),
            "`false`: CUDA calls are not handled; honoured only without a session and without a daemon",
        ),
        row(
            "ENABLE_NVML_HOOKS",
            (S::VgpuRs, M::NvmlHooks, F::Flag, I::None),
            "`false`: NVML calls are not handled; honoured only without a session and without a daemon",
        ),
        row(
            "CUDA_DISABLE_CONTROL",
            (S::Libvgpu, M::ControlDisabled, F::Flag, I::None),
            "`true`: removes all limits; honoured only without a session and without a daemon",
        ),
        row(
            env::LOG,
            (S::Sluice, M::Log, F::LogName, I::None),
            "log level of the limiter (default `off`: errors only)",
        ),
        row(
            "VCUDA_LOG_LEVEL",
            (S::VcudaHook, M::Log, F::LogName, I::None),
            "log level of the limiter",
        ),
        row(
            "LIBCUDA_LOG_LEVEL",
            (S::Libvgpu, M::Log, F::LogLibvgpu, I::None),
            "log level of the limiter: 0 error, 1 and 2 warn, 3 info, 4 and above debug",
        ),
        row(
            "LOGGER_LEVEL",
            (S::VgpuController, M::Log, F::LogVgpuController, I::None),
            "log level of the limiter, as later releases of VGPU-Controller number them: 0 and 1 error, 2 warn, 3 info, 4 debug, 5 every call",
        ),
        row(
            env::LOG_FILE,
            (S::Sluice, M::LogFile, F::AbsolutePath, I::None),
            "file to which the limiter appends its log; if it cannot be written, the log goes to standard error",
        ),
        row(
            "GPU_DEVICES_UUID",
            (S::VgpuController, M::Ignored, F::Uuids, I::None),
            "devices of the container; the limiter gets them from the driver",
        ),
        row(
            "MANAGER_VISIBLE_DEVICES",
            (S::VgpuController, M::Ignored, F::Uuids, I::None),
            "devices of the container; the limiter gets them from the driver",
        ),
        row(
            "ENV_COMPATIBILITY_MODE",
            (S::VgpuController, M::Ignored, F::CompatibilityMode, I::None),
            "how VGPU-Controller finds a container's processes; not needed here",
        ),
        row(
            "MANAGER_COMPATIBILITY_MODE",
            (S::VgpuController, M::Ignored, F::CompatibilityMode, I::None),
            "how VGPU-Controller finds a container's processes; not needed here",
        ),
        row(
            "CUDA_DEVICE_MEMORY_SHARED_CACHE",
            (S::Libvgpu, M::Ignored, F::AbsolutePath, I::None),
            "file that processes share; the session pages replace it",
        ),
        row(
            "TF_PATH",
            (S::VgpuRs, M::AddPath, F::Text, I::None),
            "read by libadd_path.so, which appends it to PATH",
        ),
        row(
            "TF_LD_PRELOAD",
            (S::VgpuRs, M::AddPath, F::Text, I::None),
            "read by libadd_path.so, which appends it to LD_PRELOAD",
        ),
        row(
            "TF_LD_LIBRARY_PATH",
            (S::VgpuRs, M::AddPath, F::Text, I::None),
            "read by libadd_path.so, which appends it to LD_LIBRARY_PATH",
        ),
        row(
            "TF_PREPEND_PATH",
            (S::VgpuRs, M::AddPath, F::Text, I::None),
            "read by libadd_path.so, which puts it before PATH",
        ),
        row(
            "TF_PREPEND_LD_PRELOAD",
            (S::VgpuRs, M::AddPath, F::Text, I::None),
            "read by libadd_path.so, which puts it before LD_PRELOAD",
        ),
        row(
            "TF_PREPEND_LD_LIBRARY_PATH",
            (S::VgpuRs, M::AddPath, F::Text, I::None),
            "read by libadd_path.so, which puts it before LD_LIBRARY_PATH",
        ),
    ]
};
