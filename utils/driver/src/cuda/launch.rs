//! Parameters of kernel launches.

use super::handle::{Function, Stream};
use core::ffi::{c_uint, c_void};

/// `CUlaunchConfig`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig {
    /// Grid size in blocks.
    pub grid: [c_uint; 3],
    /// Block size in threads.
    pub block: [c_uint; 3],
    /// Dynamic shared memory per block, in bytes.
    pub shared_mem_bytes: c_uint,
    /// The stream.
    pub stream: Stream,
    /// `CUlaunchAttribute` list.
    pub attrs: *mut c_void,
    /// Length of `attrs`.
    pub num_attrs: c_uint,
}

/// `CUDA_LAUNCH_PARAMS`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchParams {
    /// The kernel.
    pub function: Function,
    /// Grid size in blocks.
    pub grid: [c_uint; 3],
    /// Block size in threads.
    pub block: [c_uint; 3],
    /// Dynamic shared memory per block, in bytes.
    pub shared_mem_bytes: c_uint,
    /// The stream; its device runs this part.
    pub stream: Stream,
    /// Pointers to the arguments.
    pub kernel_params: *mut *mut c_void,
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::size_of;

    /// Sizes as a C compiler gives them for `cuda.h` on x86-64.
    #[test]
    fn layouts_match_the_header() {
        assert_eq!(size_of::<LaunchConfig>(), 56);
        assert_eq!(size_of::<LaunchParams>(), 56);
    }
}
