//! The embedded kernels, and three ways to launch them.

use core::ffi::{c_int, c_uint, c_void};

use driver::cuda::{Function, LaunchConfig, Module};

use super::{Context, DriverError, Stream};

/// PTX text, NUL-terminated as the driver requires.
const IMAGE: &str = concat!(include_str!("../kernels.ptx"), "\0");
/// Threads per block: the maximum on every device.
const BLOCK: c_uint = 1024;

/// The driver function that launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaunchCall {
    /// `cuLaunchKernel`
    Kernel,
    /// `cuLaunchKernelEx`
    Ex,
    /// `cuLaunchCooperativeKernel`
    Cooperative,
}

/// Length of the kernel `spin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spin {
    /// For the simulated GPU: nanoseconds.
    pub(crate) ns: u64,
    /// For a real GPU: iterations of arithmetic per thread.
    pub(crate) iterations: u64,
}

/// One member's part of a collective.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Device address of the members' slots.
    pub(crate) slots: u64,
    pub(crate) rank: u64,
    /// Number of the step, from 1.
    pub(crate) step: u64,
    /// For the simulated GPU: a number that the members share in this step.
    pub(crate) group: u64,
    pub(crate) members: u64,
}

/// The loaded module. The grid fills every multiprocessor exactly once.
pub(crate) struct Kernels<'c> {
    context: &'c Context,
    module: Module,
    spin: Function,
    empty: Function,
    collective: Function,
    blocks: c_uint,
}

// SAFETY: modules and functions belong to the context and may be used from any thread.
unsafe impl Sync for Kernels<'_> {}

impl<'c> Kernels<'c> {
    /// Loads the module into the context.
    ///
    /// # Errors
    /// [`DriverError::Call`]
    pub(crate) fn load(context: &'c Context) -> Result<Self, DriverError> {
        let null = core::ptr::null_mut();
        let (spin, empty, collective) = (null, null, null);
        let mut kernels = Self { context, module: null, spin, empty, collective, blocks: 0 };
        let mut per_multiprocessor = 0;
        // SAFETY: the image and the names are NUL-terminated; results go to live variables; the
        // functions are looked up in the module that was just loaded.
        unsafe {
            context.table.cuModuleLoadData(&mut kernels.module, IMAGE.as_ptr().cast())?;
            for (function, name) in [
                (&mut kernels.spin, c"spin"),
                (&mut kernels.empty, c"empty"),
                (&mut kernels.collective, c"ncclCollective"),
            ] {
                context.table.cuModuleGetFunction(function, kernels.module, name.as_ptr())?;
            }
            context.table.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut per_multiprocessor,
                kernels.spin,
                BLOCK as c_int,
                0,
            )?;
        }
        let per_multiprocessor = c_uint::try_from(per_multiprocessor).unwrap_or(1).max(1);
        kernels.blocks = context.multiprocessors()?.max(1) * per_multiprocessor;
        Ok(kernels)
    }

    /// Launches `spin` on the whole device.
    ///
    /// # Errors
    /// [`DriverError::Call`]
    pub(crate) fn launch_spin(
        &self,
        call: LaunchCall,
        spin: Spin,
        stream: &Stream<'_>,
    ) -> Result<(), DriverError> {
        self.launch(call, self.spin, self.blocks, [spin.ns, spin.iterations, 0], stream)
    }

    /// Launches `spin` with one block less than fills the device, so that a limiter that distinguishes kernels by
    /// function and grid takes this for other work than the measured kernel.
    ///
    /// # Errors
    /// [`DriverError::Call`]
    pub(crate) fn launch_warm_up(
        &self,
        spin: Spin,
        stream: &Stream<'_>,
    ) -> Result<(), DriverError> {
        let blocks = (self.blocks - 1).max(1);
        self.launch(LaunchCall::Kernel, self.spin, blocks, [spin.ns, spin.iterations, 0], stream)
    }

    /// Launches `empty` with a given number of blocks by `cuLaunchKernel`.
    ///
    /// # Errors
    /// [`DriverError::Call`]
    pub(crate) fn launch_empty(
        &self,
        blocks: c_uint,
        stream: &Stream<'_>,
    ) -> Result<(), DriverError> {
        self.launch(LaunchCall::Kernel, self.empty, blocks, [0; 3], stream)
    }

    /// Launches this member's part of a collective, in one block: communication libraries launch few blocks.
    ///
    /// # Errors
    /// [`DriverError::Call`]
    pub(crate) fn launch_collective(
        &self,
        spin: Spin,
        part: &Part,
        stream: &Stream<'_>,
    ) -> Result<(), DriverError> {
        let Part { slots, rank, step, group, members } = *part;
        let arguments = [spin.ns, spin.iterations, slots, rank, step, group, members];
        self.launch(LaunchCall::Kernel, self.collective, 1, arguments, stream)
    }

    fn launch<const N: usize>(
        &self,
        call: LaunchCall,
        function: Function,
        blocks: c_uint,
        mut arguments: [u64; N],
        stream: &Stream<'_>,
    ) -> Result<(), DriverError> {
        let mut params =
            arguments.each_mut().map(|argument| core::ptr::from_mut(argument).cast::<c_void>());
        let (params, table) = (params.as_mut_ptr(), &self.context.table);
        let extra = core::ptr::null_mut();
        // SAFETY: each kernel takes at most as many 64-bit arguments as its caller passes, which the
        // driver copies during the call; `spin` and `empty` write to no memory (`sink` is unused by
        // construction, see kernels.ptx), `collective` to its slot in a page that outlives the
        // stream's work; function and stream belong to the current context.
        unsafe {
            match call {
                LaunchCall::Kernel => table.cuLaunchKernel(
                    function, blocks, 1, 1, BLOCK, 1, 1, 0, stream.raw, params, extra,
                ),
                LaunchCall::Cooperative => table.cuLaunchCooperativeKernel(
                    function, blocks, 1, 1, BLOCK, 1, 1, 0, stream.raw, params,
                ),
                LaunchCall::Ex => {
                    let config = LaunchConfig {
                        grid: [blocks, 1, 1],
                        block: [BLOCK, 1, 1],
                        shared_mem_bytes: 0,
                        stream: stream.raw,
                        attrs: core::ptr::null_mut(),
                        num_attrs: 0,
                    };
                    table.cuLaunchKernelEx(&config, function, params, extra)
                }
            }
        }
    }
}

impl Drop for Kernels<'_> {
    fn drop(&mut self) {
        if !self.module.is_null() {
            // With several devices another context may be current.
            let _ = self.context.make_current();
            // SAFETY: loaded once, unloaded once; the launches were waited for or failed.
            let _ = unsafe { self.context.table.cuModuleUnload(self.module) };
        }
    }
}
