//! Reads the simulated node through NVML, as a monitoring program does.

#![allow(non_snake_case, reason = "the library's own names")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../../cuda/tests/suite/support/mod.rs"]
mod support;

use std::ffi::{CString, c_void};
use std::io::Write;
use std::time::Duration;

use driver::nvml::{MEMORY_V2_VERSION, MemoryV2, ProcessInfoV2};
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use support::*;

fn open() -> Nvml {
    Nvml::builder().lib_path(built("libfake_nvml.so").as_os_str()).init().unwrap()
}

#[test]
fn devices_have_names() {
    isolated(&[("SLUICE_FAKE_DEVICES", "5")], || {
        let nvml = open();
        assert_eq!(nvml.device_count().unwrap(), 5);
        assert!(nvml.sys_driver_version().unwrap().starts_with("580."));
        assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13000);
        for index in 0..5 {
            let device = nvml.device_by_index(index).unwrap();
            assert_eq!(device.index().unwrap(), index);
            assert_eq!(device.name().unwrap(), "NVIDIA Fake GPU (Sluice)");
            let uuid = device.uuid().unwrap();
            assert_eq!(uuid, format!("GPU-5a1ce000-0000-4000-8000-00000000000{index}"));
            assert_eq!(nvml.device_by_uuid(uuid).unwrap().index().unwrap(), index);
            let pci = device.pci_info().unwrap();
            let same = nvml.device_by_pci_bus_id(pci.bus_id).unwrap();
            assert_eq!(same.index().unwrap(), index);
            assert_eq!(device.memory_affinity(2, 0).unwrap(), [1 << (index / 4), 0]);
            let capability = device.cuda_compute_capability().unwrap();
            assert_eq!((capability.major, capability.minor), (9, 0));
            let memory = device.memory_info().unwrap();
            assert_eq!((memory.total, memory.used), (16 * GIB, 0));
            assert!(device.running_compute_processes().unwrap().is_empty());
            assert!(device.running_graphics_processes().unwrap().is_empty());
            assert!(matches!(device.mig_mode(), Err(NvmlError::NotSupported)));
        }
        assert!(nvml.device_by_index(5).is_err());
        assert!(nvml.device_by_uuid("GPU-unknown").is_err());
    });
}

#[test]
fn memory_and_processes_are_those_of_the_driver() {
    isolated(&[], || {
        let nvml = open();
        let _gpu = Gpu::open();
        let mut address = 0;
        ok(cuMemAlloc_v2(&mut address, 100 << 20));
        let device = nvml.device_by_index(0).unwrap();
        assert_eq!(device.memory_info().unwrap().used, 612 * MIB);
        let processes = device.running_compute_processes().unwrap();
        assert_eq!(processes.len(), 1);
        assert_eq!(processes[0].pid, std::process::id());
        assert_eq!(processes[0].used_gpu_memory, UsedGpuMemory::Used(612 * MIB));
        let other = nvml.device_by_index(1).unwrap();
        assert!(other.running_compute_processes().unwrap().is_empty());
        let name = nvml.sys_process_name(std::process::id(), 200).unwrap();
        assert!(name.contains("readings"), "{name}");
        ok(cuDevicePrimaryCtxRelease_v2(0));
        assert_eq!(device.memory_info().unwrap().used, 0);
        assert!(device.running_compute_processes().unwrap().is_empty());
    });
}

#[test]
fn utilisation_follows_the_kernels() {
    isolated(&[], || {
        let nvml = open();
        let device = nvml.device_by_index(0).unwrap();
        assert_eq!(device.utilization_rates().unwrap().gpu, 0);
        assert!(matches!(device.process_utilization_stats(None), Err(NvmlError::NotFound)));
        let gpu = Gpu::open();
        let on = stream();
        gpu.launch(on, 600_000);
        ok(cuStreamSynchronize(on));
        assert_eq!(device.utilization_rates().unwrap().gpu, 100);
        let samples = device.process_utilization_stats(None).unwrap();
        assert_eq!(samples.len(), 1);
        assert_eq!((samples[0].pid, samples[0].sm_util), (std::process::id(), 100));
        let newest = samples[0].timestamp;
        eventually(|| device.utilization_rates().unwrap().gpu == 0);
        // The end of the kernel may have added one more sample; later there is none.
        let last =
            device.process_utilization_stats(newest).map_or(newest, |samples| samples[0].timestamp);
        std::thread::sleep(Duration::from_millis(200));
        assert!(matches!(device.process_utilization_stats(last), Err(NvmlError::NotFound)));
    });
}

macro_rules! nvml {
    ($($name:ident($($arg:ident: $kind:ty),*);)*) => {$(
        fn $name($($arg: $kind),*) -> u32 {
            let address = raw_symbol(stringify!($name));
            type Function = extern "C" fn($($kind),*) -> u32;
            // SAFETY: the signature is the one in nvml.h.
            let function = unsafe { std::mem::transmute::<usize, Function>(address) };
            function($($arg),*)
        }
    )*};
}

nvml! {
    nvmlInit_v2();
    nvmlShutdown();
    nvmlDeviceGetCount_v2(count: &mut u32);
    nvmlDeviceGetHandleByIndex_v2(index: u32, device: &mut Ptr);
    nvmlDeviceGetMemoryInfo_v2(device: Ptr, memory: &mut MemoryV2);
    nvmlDeviceGetComputeRunningProcesses_v3(device: Ptr, count: &mut u32, to: *mut ProcessInfoV2);
}

fn raw_symbol(name: &str) -> usize {
    let path = CString::new(built("libfake_nvml.so").to_str().unwrap()).unwrap();
    let name = CString::new(name).unwrap();
    // SAFETY: valid names; the library has no constructor.
    let found = unsafe {
        let library: *mut c_void = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        libc::dlsym(library, name.as_ptr())
    };
    assert!(!found.is_null(), "{name:?}");
    found as usize
}

#[test]
fn wrong_calls_and_short_buffers() {
    isolated(&[], || {
        let (mut count, mut device) = (0, null());
        assert_eq!(nvmlDeviceGetCount_v2(&mut count), 1);
        assert_eq!(nvmlShutdown(), 1);
        assert_eq!(nvmlInit_v2(), 0);
        assert_eq!(nvmlInit_v2(), 0);
        assert_eq!(nvmlShutdown(), 0);
        assert_eq!(nvmlDeviceGetHandleByIndex_v2(0, &mut device), 0);
        assert_eq!(nvmlDeviceGetHandleByIndex_v2(9, &mut device), 2);
        let mut memory = MemoryV2::default();
        assert_eq!(nvmlDeviceGetMemoryInfo_v2(device, &mut memory), 25);
        memory.version = MEMORY_V2_VERSION;
        assert_eq!(nvmlDeviceGetMemoryInfo_v2(device, &mut memory), 0);
        assert_eq!(memory.total, 16 * GIB);
        assert_eq!(nvmlDeviceGetMemoryInfo_v2(5 as Ptr, &mut memory), 2);
        let _gpu = Gpu::open();
        count = 0;
        let none = std::ptr::null_mut();
        assert_eq!(nvmlDeviceGetComputeRunningProcesses_v3(device, &mut count, none), 7);
        assert_eq!(count, 1);
        let mut info = ProcessInfoV2::default();
        let to = &raw mut info;
        assert_eq!(nvmlDeviceGetComputeRunningProcesses_v3(device, &mut count, to), 0);
        assert_eq!((info.pid, info.gpu_instance_id), (std::process::id(), u32::MAX));
        assert_eq!(nvmlShutdown(), 0);
        assert_eq!(nvmlDeviceGetCount_v2(&mut count), 1);
    });
}

#[test]
fn the_first_bytes_are_those_of_the_real_library() {
    let bytes = |name| {
        // SAFETY: the first bytes of a function of a loaded library.
        unsafe { std::slice::from_raw_parts(raw_symbol(name) as *const u8, 24) }
    };
    assert_eq!(bytes("nvmlInit_v2")[..3], [0x31, 0xff, 0xe9]);
    for name in ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetCount_v2", "nvmlShutdown"] {
        assert_eq!(bytes(name)[17..20], [0x48, 0x8d, 0x1d], "{name}: lea rbx, [rip + ...]");
    }
}

/// Adds a fault to this test's node.
fn fault(line: &str) {
    let path = std::env::var("SLUICE_FAKE_NODE").unwrap() + ".faults";
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    writeln!(file, "{line}").unwrap();
}

#[test]
fn sensors_follow_the_work_and_faults_are_told() {
    isolated(&[], || {
        let nvml = open();
        let device = nvml.device_by_index(0).unwrap();
        let figures = || {
            let limit = device.enforced_power_limit().unwrap();
            let celsius = device.temperature(TemperatureSensor::Gpu).unwrap();
            let clock = device.clock_info(Clock::SM).unwrap();
            let idle = device.current_throttle_reasons().unwrap() == ThrottleReasons::GPU_IDLE;
            (device.power_usage().unwrap(), limit, celsius, clock, idle)
        };
        assert_eq!(figures(), (70_000, 700_000, 32, 345, true));
        let gpu = Gpu::open();
        let on = stream();
        gpu.launch(on, 3_000_000);
        eventually(|| figures() == (700_000, 700_000, 70, 1980, false));
        let errors = |kind| device.total_ecc_errors(kind, EccCounter::Volatile).unwrap();
        assert_eq!((errors(MemoryError::Corrected), errors(MemoryError::Uncorrected)), (0, 0));
        let wanted = EventTypes::CRITICAL_XID_ERROR;
        assert_eq!(device.supported_event_types().unwrap(), wanted);
        fault("xid 0 13");
        let set = device.register_events(wanted, nvml.create_event_set().unwrap()).unwrap();
        // Earlier faults are not reported, nor are those of other devices.
        fault("xid 1 79");
        assert!(matches!(set.wait(0), Err(NvmlError::Timeout)));
        fault("ecc 0 uncorrected 2");
        fault("xid 0 48");
        let event = set.wait(10_000).unwrap();
        assert_eq!(event.event_data, Some(XidError::Value(48)));
        assert_eq!(event.device.index().unwrap(), 0);
        assert_eq!((errors(MemoryError::Corrected), errors(MemoryError::Uncorrected)), (0, 2));
        fault("lost 0");
        assert!(matches!(device.memory_info(), Err(NvmlError::GpuLost)));
        assert!(nvml.device_by_index(1).unwrap().memory_info().is_ok());
    });
}
