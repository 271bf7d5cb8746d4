//! The exported functions, with entry code like the real library's, so that tools which patch entry points meet the
//! same code. The real functions save all registers and take a RIP-relative address at offset 17; `nvmlInit_v2` is the
//! exception, with 7 bytes (`31 ff e9 rel32`). On aarch64, where the real library was not examined, the code is the
//! equivalent.

use core::sync::atomic::AtomicU32;

use crate::{device, faults, processes, sensors, system, tables, utilization};

/// The address that the stubs load.
static LANDMARK: AtomicU32 = AtomicU32::new(0);

macro_rules! exports {
    ($($name:ident => $implementation:path;)*) => {
        $(
            #[cfg(target_arch = "x86_64")]
            #[allow(non_snake_case, reason = "the library's own names")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                core::arch::naked_asm!(
                    "push r15",
                    "push r14",
                    "push r13",
                    "push r12",
                    "push rbp",
                    "push rbx",
                    "sub rsp, 40",
                    "mov r12, rdi",
                    "lea rbx, [rip + {landmark}]",
                    "mov rdi, r12",
                    "add rsp, 40",
                    "pop rbx",
                    "pop rbp",
                    "pop r12",
                    "pop r13",
                    "pop r14",
                    "pop r15",
                    "jmp {implementation}",
                    landmark = sym LANDMARK,
                    implementation = sym $implementation,
                )
            }

            #[cfg(target_arch = "aarch64")]
            #[allow(non_snake_case, reason = "the library's own names")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                core::arch::naked_asm!(
                    "stp x29, x30, [sp, -48]!",
                    "stp x19, x20, [sp, 16]",
                    "mov x19, x0",
                    "adrp x20, {landmark}",
                    "add x20, x20, :lo12:{landmark}",
                    "mov x0, x19",
                    "ldp x19, x20, [sp, 16]",
                    "ldp x29, x30, [sp], 48",
                    "b {implementation}",
                    landmark = sym LANDMARK,
                    implementation = sym $implementation,
                )
            }
        )*
    };
}

#[cfg(target_arch = "x86_64")]
#[allow(non_snake_case, reason = "the library's own name")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn nvmlInit_v2() {
    core::arch::naked_asm!(
        "xor edi, edi",
        "jmp {implementation}",
        implementation = sym system::init_with_flags,
    )
}

#[cfg(target_arch = "aarch64")]
#[allow(non_snake_case, reason = "the library's own name")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn nvmlInit_v2() {
    core::arch::naked_asm!(
        "mov w0, wzr",
        "b {implementation}",
        implementation = sym system::init_with_flags,
    )
}

exports! {
    nvmlInit => system::init_v1;
    nvmlInitWithFlags => system::init_with_flags;
    nvmlShutdown => system::shutdown;
    nvmlErrorString => system::error_string;
    nvmlSystemGetDriverVersion => system::driver_version;
    nvmlSystemGetNVMLVersion => system::nvml_version;
    nvmlSystemGetCudaDriverVersion => system::cuda_version;
    nvmlSystemGetCudaDriverVersion_v2 => system::cuda_version;
    nvmlSystemGetProcessName => system::process_name;
    nvmlDeviceGetCount => device::count;
    nvmlDeviceGetCount_v2 => device::count;
    nvmlDeviceGetHandleByIndex => device::by_index;
    nvmlDeviceGetHandleByIndex_v2 => device::by_index;
    nvmlDeviceGetHandleByUUID => device::by_uuid;
    nvmlDeviceGetHandleByPciBusId => device::by_pci;
    nvmlDeviceGetHandleByPciBusId_v2 => device::by_pci;
    nvmlDeviceGetIndex => device::index;
    nvmlDeviceGetMinorNumber => device::index;
    nvmlDeviceGetUUID => device::uuid;
    nvmlDeviceGetName => device::name;
    nvmlDeviceGetBrand => device::brand;
    nvmlDeviceGetPciInfo => device::pci;
    nvmlDeviceGetPciInfo_v2 => device::pci;
    nvmlDeviceGetPciInfo_v3 => device::pci;
    nvmlDeviceGetCudaComputeCapability => device::compute_capability;
    nvmlDeviceGetMemoryAffinity => device::memory_affinity;
    nvmlDeviceGetMemoryInfo => device::memory;
    nvmlDeviceGetMemoryInfo_v2 => device::memory_v2;
    nvmlDeviceGetComputeMode => device::off;
    nvmlDeviceGetPersistenceMode => device::off;
    nvmlDeviceGetMigMode => device::not_supported;
    nvmlDeviceGetTemperature => sensors::temperature;
    nvmlDeviceGetTemperatureThreshold => sensors::temperature_threshold;
    nvmlDeviceGetPerformanceState => device::off;
    nvmlDeviceGetFanSpeed => device::not_supported;
    nvmlDeviceGetDisplayActive => device::off;
    nvmlDeviceGetDisplayMode => device::off;
    nvmlDeviceIsMigDeviceHandle => device::off;
    nvmlDeviceGetDriverModel => device::not_supported;
    nvmlDeviceGetDriverModel_v2 => device::not_supported;
    nvmlDeviceGetConfComputeMemSizeInfo => device::not_supported;
    nvmlDeviceGetPcieThroughput => device::not_supported;
    nvmlDeviceGetCurrPcieLinkGeneration => device::link_generation;
    nvmlDeviceGetMaxPcieLinkGeneration => device::link_generation;
    nvmlDeviceGetCurrPcieLinkWidth => device::link_width;
    nvmlDeviceGetMaxPcieLinkWidth => device::link_width;
    nvmlDeviceGetEncoderUtilization => utilization::no_engine;
    nvmlDeviceGetDecoderUtilization => utilization::no_engine;
    nvmlDeviceGetPowerUsage => sensors::power;
    nvmlDeviceGetEnforcedPowerLimit => sensors::power_limit;
    nvmlDeviceGetPowerManagementLimit => sensors::power_limit;
    nvmlDeviceGetPowerManagementDefaultLimit => sensors::power_limit;
    nvmlDeviceGetClockInfo => sensors::clock_info;
    nvmlDeviceGetMaxClockInfo => sensors::most_clock_info;
    nvmlDeviceGetCurrentClocksThrottleReasons => sensors::throttle_reasons;
    nvmlDeviceGetCurrentClocksEventReasons => sensors::throttle_reasons;
    nvmlDeviceGetEccMode => faults::ecc_mode;
    nvmlDeviceGetTotalEccErrors => faults::ecc_errors;
    nvmlDeviceGetSupportedEventTypes => faults::event_types;
    nvmlDeviceRegisterEvents => faults::register;
    nvmlEventSetCreate => faults::create_set;
    nvmlEventSetFree => faults::free_set;
    nvmlEventSetWait => faults::wait;
    nvmlEventSetWait_v2 => faults::wait;
    nvmlDeviceGetUtilizationRates => utilization::rates;
    nvmlDeviceGetProcessUtilization => utilization::processes;
    nvmlDeviceGetProcessesUtilizationInfo => utilization::processes_info;
    nvmlDeviceGetAccountingPids => device::not_supported;
    nvmlDeviceGetAccountingStats => device::not_supported;
    nvmlDeviceGetRunningProcessDetailList => processes::details;
    nvmlDeviceGetComputeRunningProcesses => processes::compute_v1;
    nvmlDeviceGetComputeRunningProcesses_v2 => processes::compute;
    nvmlDeviceGetComputeRunningProcesses_v3 => processes::compute;
    nvmlDeviceGetGraphicsRunningProcesses => processes::none;
    nvmlDeviceGetGraphicsRunningProcesses_v2 => processes::none;
    nvmlDeviceGetGraphicsRunningProcesses_v3 => processes::none;
    nvmlDeviceGetMPSComputeRunningProcesses => processes::none;
    nvmlDeviceGetMPSComputeRunningProcesses_v2 => processes::none;
    nvmlDeviceGetMPSComputeRunningProcesses_v3 => processes::none;
    nvmlInternalGetExportTable => tables::get;
}
