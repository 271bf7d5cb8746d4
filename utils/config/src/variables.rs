//! The table of all environment variables, from which they are read and documented.
//!
//! The file is long because it is one table.

use super::value::Format;
use limits::env;

/// Whose variable it is. In order of priority: where two systems set a limit, the earlier holds.
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
    /// Its name for people.
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

/// What the index of a variable (`NAME_<i>`, or a number as key) counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexSpace {
    /// The variable takes no index.
    None,
    /// Devices as `nvidia-smi -L` lists them.
    Host,
    /// Devices as the program counts them.
    Visible,
}

/// What a variable sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    MemoryLimit,
    /// How much of the limit may be on the device.
    MemoryReal,
    /// The limit in relation to what of it may be on the device.
    MemoryRatio,
    /// Whether the limit may be larger than the device.
    MemoryOversold,
    ComputeLimit,
    ComputePolicy,
    /// The share that is never exceeded.
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
    /// Checked, and rightly of no consequence.
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
    /// For people: what it is for; for one without effect, why.
    #[cfg_attr(not(test), allow(dead_code, reason = "read by the test that writes the document"))]
    pub(super) purpose: &'static str,
}

impl Variable {
    /// Whether `NAME_<i>` is read besides `NAME`.
    pub(super) fn takes_suffix(&self) -> bool {
        let map = matches!(self.format, Format::SizesByDevice | Format::PercentsByDevice);
        self.index != IndexSpace::None && !map
    }

    /// Whether `NAME_<i>` is refused: it looks like a limit, and nobody reads it.
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
    system: System,
    meaning: Meaning,
    format: Format,
    index: IndexSpace,
    purpose: &'static str,
) -> Variable {
    Variable { name, system, meaning, format, index, purpose }
}

/// All variables. The rows of one meaning stand together in order of priority.
pub(super) static VARIABLES: &[Variable] = {
    use Format as F;
    use IndexSpace as I;
    use Meaning as M;
    use System as S;
    &[
        row(
            env::MEMORY_LIMIT,
            S::VgpuRs,
            M::MemoryLimit,
            F::SizesByDevice,
            I::Host,
            "memory limit of each device",
        ),
        row(
            "CUDA_MEM_LIMIT",
            S::VgpuController,
            M::MemoryLimit,
            F::Size,
            I::Host,
            "memory limit of one device, or without index of every device",
        ),
        row(
            "CUDA_DEVICE_MEMORY_LIMIT",
            S::Libvgpu,
            M::MemoryLimit,
            F::SizeOrNoLimit,
            I::Visible,
            "memory limit of one device, or without index of every device; 0 for one device leaves the limit of all",
        ),
        row(
            "VCUDA_MEMORY_LIMIT",
            S::VcudaHook,
            M::MemoryLimit,
            F::Size,
            I::None,
            "memory limit of every device",
        ),
        row(
            "TF_GPU_MEMORY_LIMIT",
            S::TensorFusion,
            M::MemoryLimit,
            F::MebibytesOrNoLimit,
            I::None,
            "memory limit of every device",
        ),
        row(
            "TF_CUDA_MEMORY_LIMIT",
            S::TensorFusion,
            M::MemoryLimit,
            F::MebibytesOrNoLimit,
            I::None,
            "memory limit of every device",
        ),
        row(
            "GPU_MEMORY_LIMIT",
            S::Kai,
            M::MemoryLimit,
            F::Size,
            I::None,
            "memory limit of every device",
        ),
        row(
            env::MEMORY_REAL,
            S::Sluice,
            M::MemoryReal,
            F::SizesByDevice,
            I::Host,
            "how much of the memory limit may be on the device; what is allocated beyond it is placed on the host",
        ),
        row(
            "CUDA_MEM_RATIO",
            S::VgpuController,
            M::MemoryRatio,
            F::Ratio,
            I::Host,
            "above 1: the memory limit divided by it is what may be on the device; the rest of the limit is placed on the host",
        ),
        row(
            "CUDA_MEM_OVERSOLD",
            S::VgpuController,
            M::MemoryOversold,
            F::Flag,
            I::Host,
            "`true`: the memory limit may be larger than the device; what is allocated beyond the device's size is placed on the host",
        ),
        row(
            "CUDA_OVERSUBSCRIBE",
            S::Libvgpu,
            M::MemoryOversold,
            F::Flag,
            I::None,
            "as CUDA_MEM_OVERSOLD, for every device",
        ),
        row(
            env::COMPUTE_LIMIT,
            S::VgpuRs,
            M::ComputeLimit,
            F::PercentsByDevice,
            I::Host,
            "share of each device's time",
        ),
        row(
            "CUDA_CORE_LIMIT",
            S::VgpuController,
            M::ComputeLimit,
            F::Percent,
            I::Host,
            "share of one device's time, or without index of every device's",
        ),
        row(
            "CUDA_DEVICE_SM_LIMIT",
            S::Libvgpu,
            M::ComputeLimit,
            F::PercentOrNoLimit,
            I::Visible,
            "share of one device's time, or without index of every device's; 100 for one device lifts the limit of all, 0 leaves it",
        ),
        row(
            "TF_CUDA_SM_PERCENT_LIMIT",
            S::TensorFusion,
            M::ComputeLimit,
            F::PercentOrNoLimit,
            I::None,
            "share of every device's time",
        ),
        row(
            env::POLICY,
            S::Sluice,
            M::ComputePolicy,
            F::Policy,
            I::None,
            "how the share is meant: `fixed` (default), never above it; `balance`, guaranteed, and idle time on top; `none`, no compute limit",
        ),
        row(
            "GPU_CORE_UTILIZATION_POLICY",
            S::Libvgpu,
            M::ComputePolicy,
            F::UtilizationPolicy,
            I::None,
            "for CUDA_DEVICE_SM_LIMIT: `force` is policy `fixed`; `default` is `balance`, because only `force` promises there that a program that is alone is held to its share; `disable` lifts the share",
        ),
        row(
            env::SOFT_LIMIT,
            S::Sluice,
            M::SoftLimit,
            F::PercentsByDevice,
            I::Host,
            "policy `balance`: the part of each device's time that is never exceeded, at least the share; implies the policy",
        ),
        row(
            "CUDA_CORE_SOFT_LIMIT",
            S::VgpuController,
            M::SoftLimit,
            F::Percent,
            I::Host,
            "the same for one device, or without index for every device: CUDA_CORE_LIMIT is guaranteed then, and idle time may be used up to the soft limit, because that system scales a program between the two by what is left on the device",
        ),
        row(
            env::WEIGHT,
            S::Sluice,
            M::Weight,
            F::Weight,
            I::None,
            "policy `balance`: the part of idle time in relation to other sessions' (default: the share in percent, rounded up)",
        ),
        row(
            env::PRIORITY,
            S::Sluice,
            M::Priority,
            F::PriorityName,
            I::None,
            "`low`: runs in what sessions of `high` priority (default) leave, apart from a small part that keeps it from starving",
        ),
        row(
            "CUDA_TASK_PRIORITY",
            S::Libvgpu,
            M::Priority,
            F::PriorityNumber,
            I::None,
            "the same as a number",
        ),
        row(
            env::ON_FAILURE,
            S::Sluice,
            M::OnFailure,
            F::OnFailure,
            I::None,
            "what happens to CUDA calls when the limiter itself fails: `closed` (default), they fail; `open`, they pass; what cannot be read is refused either way",
        ),
        row(
            env::GATES,
            S::Sluice,
            M::Gates,
            F::Gates,
            I::None,
            "where work waits while another session has the device: `stream` (default, and `auto` is the same), in its stream, so that the program goes on launching; `thread`, in the thread that launches it",
        ),
        row(
            env::SESSION_DIR,
            S::Sluice,
            M::SessionDir,
            F::AbsolutePath,
            I::None,
            "directory of the session whose limits a process shares, made by `sluice run`; a limiter that is loaded by a session's own link belongs to that session, whatever stands here",
        ),
        row(
            env::DAEMON_SOCKET,
            S::Sluice,
            M::DaemonSocket,
            F::Socket,
            I::None,
            "socket of the daemon; unset: with the library only preloaded the node's, where it is to be seen; `none`: each session keeps its own account",
        ),
        row(
            "HYPERVISOR_IP",
            S::VgpuRs,
            M::DaemonHost,
            F::Host,
            I::None,
            "where the daemon can be read over TCP, with HYPERVISOR_PORT: for `sluice`; a limited program uses the daemon's socket",
        ),
        row(
            "HYPERVISOR_PORT",
            S::VgpuRs,
            M::DaemonPort,
            F::Port,
            I::None,
            "where the daemon can be read over TCP, with HYPERVISOR_IP",
        ),
        row(
            "VGPU_POD_UID",
            S::VgpuController,
            M::PodUid,
            F::Text,
            I::None,
            "identity hint, never trusted by itself",
        ),
        row(
            "POD_NAMESPACE",
            S::VgpuRs,
            M::PodNamespace,
            F::Text,
            I::None,
            "identity hint, never trusted by itself",
        ),
        row(
            "VGPU_POD_NAMESPACE",
            S::VgpuController,
            M::PodNamespace,
            F::Text,
            I::None,
            "identity hint, never trusted by itself",
        ),
        row(
            "POD_NAME",
            S::VgpuRs,
            M::PodName,
            F::Text,
            I::None,
            "identity hint, never trusted by itself",
        ),
        row(
            "VGPU_POD_NAME",
            S::VgpuController,
            M::PodName,
            F::Text,
            I::None,
            "identity hint, never trusted by itself",
        ),
        row(
            "CONTAINER_NAME",
            S::VgpuRs,
            M::ContainerName,
            F::Text,
            I::None,
            "identity hint, never trusted by itself",
        ),
        row(
            "VGPU_CONTAINER_NAME",
            S::VgpuController,
            M::ContainerName,
            F::Text,
            I::None,
            "identity hint, never trusted by itself",
        ),
        row(
            "ENABLE_CUDA_HOOKS",
            S::VgpuRs,
            M::CudaHooks,
            F::Flag,
            I::None,
            "`false` leaves CUDA alone; honoured only without a session and without a daemon",
        ),
        row(
            "ENABLE_NVML_HOOKS",
            S::VgpuRs,
            M::NvmlHooks,
            F::Flag,
            I::None,
            "`false` leaves NVML alone; honoured only without a session and without a daemon",
        ),
        row(
            "CUDA_DISABLE_CONTROL",
            S::Libvgpu,
            M::ControlDisabled,
            F::Flag,
            I::None,
            "`true` lifts all limits; honoured only without a session and without a daemon",
        ),
        row(
            env::LOG,
            S::Sluice,
            M::Log,
            F::LogName,
            I::None,
            "how much the limiter logs (default `off`: only what goes wrong)",
        ),
        row(
            "VCUDA_LOG_LEVEL",
            S::VcudaHook,
            M::Log,
            F::LogName,
            I::None,
            "how much the limiter logs",
        ),
        row(
            "LIBCUDA_LOG_LEVEL",
            S::Libvgpu,
            M::Log,
            F::LogLibvgpu,
            I::None,
            "how much the limiter logs: 0 errors, 1 and 2 warnings, 3 infos, 4 and above debugging",
        ),
        row(
            "LOGGER_LEVEL",
            S::VgpuController,
            M::Log,
            F::LogVgpuController,
            I::None,
            "how much the limiter logs: 0 and 1 errors, 2 warnings, 3 infos, 4 debugging, 5 each call, as its later releases number them",
        ),
        row(
            env::LOG_FILE,
            S::Sluice,
            M::LogFile,
            F::AbsolutePath,
            I::None,
            "the file to which the limiter adds its lines instead of standard error; where it cannot, standard error",
        ),
        row(
            "GPU_DEVICES_UUID",
            S::VgpuController,
            M::Ignored,
            F::Uuids,
            I::None,
            "the devices of the container; the driver tells them itself",
        ),
        row(
            "MANAGER_VISIBLE_DEVICES",
            S::VgpuController,
            M::Ignored,
            F::Uuids,
            I::None,
            "the devices of the container; the driver tells them itself",
        ),
        row(
            "ENV_COMPATIBILITY_MODE",
            S::VgpuController,
            M::Ignored,
            F::CompatibilityMode,
            I::None,
            "how processes of a container are found; not needed here",
        ),
        row(
            "MANAGER_COMPATIBILITY_MODE",
            S::VgpuController,
            M::Ignored,
            F::CompatibilityMode,
            I::None,
            "how processes of a container are found; not needed here",
        ),
        row(
            "CUDA_DEVICE_MEMORY_SHARED_CACHE",
            S::Libvgpu,
            M::Ignored,
            F::AbsolutePath,
            I::None,
            "file that processes share; the session's pages take its place",
        ),
        row(
            "TF_PATH",
            S::VgpuRs,
            M::AddPath,
            F::Text,
            I::None,
            "read by libadd_path.so: appended to PATH",
        ),
        row(
            "TF_LD_PRELOAD",
            S::VgpuRs,
            M::AddPath,
            F::Text,
            I::None,
            "read by libadd_path.so: appended to LD_PRELOAD",
        ),
        row(
            "TF_LD_LIBRARY_PATH",
            S::VgpuRs,
            M::AddPath,
            F::Text,
            I::None,
            "read by libadd_path.so: appended to LD_LIBRARY_PATH",
        ),
        row(
            "TF_PREPEND_PATH",
            S::VgpuRs,
            M::AddPath,
            F::Text,
            I::None,
            "read by libadd_path.so: put before PATH",
        ),
        row(
            "TF_PREPEND_LD_PRELOAD",
            S::VgpuRs,
            M::AddPath,
            F::Text,
            I::None,
            "read by libadd_path.so: put before LD_PRELOAD",
        ),
        row(
            "TF_PREPEND_LD_LIBRARY_PATH",
            S::VgpuRs,
            M::AddPath,
            F::Text,
            I::None,
            "read by libadd_path.so: put before LD_LIBRARY_PATH",
        ),
    ]
};
