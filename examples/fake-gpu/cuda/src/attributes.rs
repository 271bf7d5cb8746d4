//! The simulated device's attributes, modelled on an H200.

use core::ffi::{c_int, c_uint};

use driver::cuda::DEVICE_MPS_ENABLED;
use fake_node::{Config, identity};

/// Streaming multiprocessors.
pub(crate) const MULTIPROCESSORS: c_int = 132;
/// Resident threads per multiprocessor.
pub(crate) const THREADS_PER_MULTIPROCESSOR: c_int = 2048;
/// Resident blocks per multiprocessor.
pub(crate) const BLOCKS_PER_MULTIPROCESSOR: c_int = 32;
/// Threads per block.
pub(crate) const THREADS_PER_BLOCK: c_int = 1024;
/// The most shared memory per block, in bytes.
pub(crate) const SHARED_OPTIN: c_int = 232_448;
/// Compute capability, major.
pub(crate) const COMPUTE_MAJOR: c_int = identity::CAPABILITY.0;
/// Compute capability, minor.
pub(crate) const COMPUTE_MINOR: c_int = identity::CAPABILITY.1;
/// The first attribute number that does not exist.
const END: c_uint = 149;

/// The value of a `CUdevice_attribute`; `None` for an unknown number.
pub(crate) fn device(attribute: c_uint, device: u32, config: &Config) -> Option<c_int> {
    Some(match attribute {
        0 => return None,
        1 => THREADS_PER_BLOCK,
        2 | 3 => 1024,
        4 => 64,
        5 => c_int::MAX,
        6 | 7 => 65_535,
        8 => 49_152,
        9 => 65_536,
        10 => 32,
        11 => c_int::MAX,
        12 => 65_536,
        13 => 1_980_000,
        14 => 512,
        16 => MULTIPROCESSORS,
        21..=26 => 16_384,
        27 | 28 => 32_768,
        29 => 2_048,
        30 => 512,
        33 => identity::pci_bus(device) as c_int,
        36 => 3_201_000,
        37 => 6_144,
        38 => 62_914_560,
        39 => THREADS_PER_MULTIPROCESSOR,
        40 => 3,
        51 => 32,
        69 => 268_435_456,
        75 => COMPUTE_MAJOR,
        76 => COMPUTE_MINOR,
        81 => 233_472,
        82 => 65_536,
        97 => SHARED_OPTIN,
        106 => BLOCKS_PER_MULTIPROCESSOR,
        108 => 39_321_600,
        109 => 134_213_632,
        111 => 1_024,
        126 => 4,
        134 | 131 => -1,
        // Stream memory operations of CUDA 8 and 11.7, 64-bit values, waits for NOR.
        92..=94 | 122 | 123 => config.memory_ops as c_int,
        DEVICE_MPS_ENABLED => {
            std::env::var("SLUICE_FAKE_MPS").is_ok_and(|value| value == "1").into()
        }
        // Capabilities: copies beside kernels, concurrent kernels, host mapping, unified addresses, priorities, managed
        // memory, cooperative launches, virtual memory and its descriptors, sparse arrays, pools and their descriptors,
        // clusters, multicast.
        15
        | 19
        | 31
        | 41
        | 78
        | 79
        | 80
        | 83
        | 89..=91
        | 95
        | 96
        | 99
        | 102
        | 103
        | 112
        | 115
        | 119
        | 120
        | 132 => 1,
        other if other < END => 0,
        _ => return None,
    })
}
