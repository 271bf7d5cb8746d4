//! Kernel launches. A kernel occupies its device for the time in its first parameter, a 64-bit number of nanoseconds. A
//! collective kernel, which also has parameters `group` and `members`, occupies it longer: until all members' kernels
//! have begun.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use driver::cuda::{self, CuResult, LaunchConfig, LaunchParams};
use fake_node::layout::{Kind, Op};

use crate::attributes;
use crate::ffi::{Api, In, api, ensure};
use crate::graph::Work;
use crate::module::{blocks_per_multiprocessor, known};
use crate::state::{Inner, driver, queue_error, with};
use crate::{capture, stream};

/// The duration of an empty kernel, in ns.
const SHORTEST_NS: u64 = 1_000;
/// The longest host time of a launch that can be set, in ns.
const MOST_LAUNCH_NS: u64 = 1_000_000_000;
/// `CU_LAUNCH_PARAM_BUFFER_POINTER`
const BUFFER_POINTER: u64 = 1;
/// `CU_LAUNCH_PARAM_BUFFER_SIZE`
const BUFFER_SIZE: u64 = 2;

/// Grid, block and shared memory of a launch.
pub(crate) struct Shape {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared: c_uint,
}

impl Shape {
    fn threads(&self) -> u64 {
        self.block.iter().map(|&n| u64::from(n)).product()
    }

    fn check(&self) -> Api {
        let some = self.grid.iter().chain(&self.block).all(|&n| n > 0);
        let grid =
            self.grid[0] <= i32::MAX as u32 && self.grid[1] <= 65_535 && self.grid[2] <= 65_535;
        let block = self.block[0] <= 1024
            && self.block[1] <= 1024
            && self.block[2] <= 64
            && self.threads() <= 1024;
        ensure(some && grid && block, CuResult::INVALID_VALUE)
    }

    /// All blocks of a cooperative launch must be resident at once.
    fn fits_at_once(&self) -> Api {
        let per = blocks_per_multiprocessor(self.threads() as u32, u64::from(self.shared));
        let room = u64::from((per * attributes::MULTIPROCESSORS) as u32);
        let blocks: u64 = self.grid.iter().map(|&n| u64::from(n)).product();
        ensure(blocks <= room, CuResult::COOPERATIVE_LAUNCH_TOO_LARGE)
    }
}

/// A kernel's arguments, passed in one of two ways.
pub(crate) struct Arguments {
    pub(crate) params: In<In<u64>>,
    pub(crate) extra: In<u64>,
}

impl Arguments {
    /// Argument `index`, a 64-bit number at `offset`.
    fn number(&self, index: usize, offset: usize) -> Api<u64> {
        ensure(self.params.is_null() || self.extra.is_null(), CuResult::INVALID_VALUE)?;
        if self.extra.is_null() {
            return self.params.at(index)?.get();
        }
        let (mut buffer, mut size) = (0, 0);
        for index in (0..16).step_by(2) {
            match self.extra.at(index)? {
                BUFFER_POINTER => buffer = self.extra.at(index + 1)?,
                BUFFER_SIZE => size = In::<usize>::from_address(self.extra.at(index + 1)?).get()?,
                _ => break,
            }
        }
        ensure(size >= offset + 8, CuResult::INVALID_VALUE)?;
        In::<u64>::from_address(buffer + offset as u64).get()
    }
}

/// Checks a launch; returns its duration in ns.
pub(crate) fn duration(
    inner: &Inner,
    function: u64,
    shape: &Shape,
    arguments: &Arguments,
) -> Api<u64> {
    let found = inner.functions.get(&function).ok_or(CuResult::INVALID_HANDLE)?;
    shape.check()?;
    ensure(shape.shared <= found.max_dynamic_shared as u32, CuResult::INVALID_VALUE)?;
    if found.timed {
        Ok(arguments.number(0, 0)?.max(SHORTEST_NS))
    } else {
        let given = !arguments.params.is_null() || !arguments.extra.is_null();
        ensure(given || found.params.is_empty(), CuResult::INVALID_VALUE)?;
        Ok(SHORTEST_NS)
    }
}

/// The group of a collective kernel's launch, and its number of members.
fn group(inner: &Inner, function: u64, arguments: &Arguments) -> Api<Option<(u64, u32)>> {
    let found = inner.functions.get(&function).ok_or(CuResult::INVALID_HANDLE)?;
    let Some(at) = found.collective else { return Ok(None) };
    let number = |index: usize| arguments.number(index, found.params[index].0);
    let members = u32::try_from(number(at[1])?).map_err(|_| CuResult::INVALID_VALUE)?;
    ensure(members > 0, CuResult::INVALID_VALUE)?;
    Ok(Some((number(at[0])?, members)))
}

fn start<const P: bool>(
    function: cuda::Function,
    stream: cuda::Stream,
    cooperative: bool,
    shape: &Shape,
    arguments: &Arguments,
) -> Api {
    let driver = driver()?;
    let (id, ns, group) = {
        let inner = &mut *driver.inner();
        let target = stream::target::<P>(driver, inner, stream)?;
        let ns = duration(inner, function as u64, shape, arguments)?;
        let group = group(inner, function as u64, arguments)?;
        let found = inner.functions.get(&(function as u64));
        let (of, module) = found.map_or((0, 0), |found| (found.context, found.module));
        let whole = crate::context::whole(inner, target.context);
        ensure(of == 0 || of == target.context || of == whole, CuResult::INVALID_HANDLE)?;
        if cooperative {
            shape.fits_at_once()?;
        }
        crate::module::load_code(driver, inner, module, target.context)?;
        crate::loading::launched(driver, inner, function, target.context)?;
        // A graph is one operation of the node, which belongs to no group.
        let add = |_: &mut Inner, _| {
            ensure(group.is_none(), CuResult::NOT_SUPPORTED)?;
            Ok(Work::Kernel(ns))
        };
        if capture::add(inner, target, add)? {
            return Ok(());
        }
        (target.id, ns, group)
    };
    spend(*LAUNCH_TAKES);
    let position = driver.node.retry_while_full(id, |state| match group {
        Some((number, members)) => state.push_collective(id, ns, number, members),
        None => state.push(id, Op::work(Kind::Kernel, ns)),
    });
    let position = position.map_err(queue_error)?;
    if launches_wait() {
        driver.node.wait_for(id, position);
    }
    Ok(())
}

/// Additional host time of a launch (`SLUICE_FAKE_LAUNCH_NS`).
static LAUNCH_TAKES: LazyLock<Duration> = LazyLock::new(|| {
    let given = std::env::var("SLUICE_FAKE_LAUNCH_NS").ok();
    Duration::from_nanos(given.and_then(|ns| ns.parse().ok()).unwrap_or(0).min(MOST_LAUNCH_NS))
});

/// Keeps the calling thread busy.
fn spend(time: Duration) {
    if time > Duration::ZERO {
        let begun = Instant::now();
        while begun.elapsed() < time {
            core::hint::spin_loop();
        }
    }
}

/// Whether a launch returns only when its work is done, as programs and tools can demand.
fn launches_wait() -> bool {
    static WAIT: LazyLock<bool> = LazyLock::new(|| {
        ["CUDA_LAUNCH_BLOCKING", "SLUICE_FAKE_LAUNCHES_WAIT"]
            .iter()
            .any(|name| std::env::var_os(name).is_some_and(|value| value != "0"))
    });
    *WAIT
}

/// `cuLaunchKernel`
#[allow(clippy::too_many_arguments, reason = "the driver's own signature")]
pub(crate) extern "C" fn kernel<const P: bool>(
    function: cuda::Function,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: cuda::Stream,
    params: In<In<u64>>,
    extra: In<u64>,
) -> CuResult {
    let shape =
        Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
    api(|| start::<P>(function, stream, false, &shape, &Arguments { params, extra }))
}

/// `cuLaunchKernelEx`; launch attributes are accepted without effect.
pub(crate) extern "C" fn kernel_ex<const P: bool>(
    config: In<LaunchConfig>,
    function: cuda::Function,
    params: In<In<u64>>,
    extra: In<u64>,
) -> CuResult {
    api(|| {
        driver()?;
        let config = config.get()?;
        ensure(config.num_attrs == 0 || !config.attrs.is_null(), CuResult::INVALID_VALUE)?;
        let shape =
            Shape { grid: config.grid, block: config.block, shared: config.shared_mem_bytes };
        start::<P>(function, config.stream, false, &shape, &Arguments { params, extra })
    })
}

/// `cuLaunchCooperativeKernel`
#[allow(clippy::too_many_arguments, reason = "the driver's own signature")]
pub(crate) extern "C" fn cooperative<const P: bool>(
    function: cuda::Function,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: cuda::Stream,
    params: In<In<u64>>,
) -> CuResult {
    let shape =
        Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
    let arguments = Arguments { params, extra: In::from_address(0) };
    api(|| start::<P>(function, stream, true, &shape, &arguments))
}

/// `cuLaunchCooperativeKernelMultiDevice`: one launch on each of several devices.
pub(crate) extern "C" fn cooperative_multi_device(
    list: In<LaunchParams>,
    count: c_uint,
    flags: c_uint,
) -> CuResult {
    api(|| {
        let driver = driver()?;
        ensure(count > 0 && flags <= 3, CuResult::INVALID_VALUE)?;
        let list = list.list(count as usize)?;
        let mut work = Vec::new();
        {
            let inner = &mut *driver.inner();
            let mut devices = Vec::new();
            for one in &list {
                // The default streams are not allowed.
                ensure(one.stream as usize > 2, CuResult::INVALID_HANDLE)?;
                let target = stream::target::<false>(driver, inner, one.stream)?;
                let (device, _) = crate::context::device_of(inner, target.context)?;
                ensure(!devices.contains(&device), CuResult::INVALID_DEVICE)?;
                devices.push(device);
                ensure(one.grid == list[0].grid, CuResult::INVALID_VALUE)?;
                ensure(one.block == list[0].block, CuResult::INVALID_VALUE)?;
                let shape =
                    Shape { grid: one.grid, block: one.block, shared: one.shared_mem_bytes };
                let arguments = Arguments {
                    params: In::from_address(one.kernel_params as u64),
                    extra: In::from_address(0),
                };
                let ns = duration(inner, one.function as u64, &shape, &arguments)?;
                shape.fits_at_once()?;
                capture::forbid_on(inner, target)?;
                work.push((target.id, ns));
            }
        }
        for (id, ns) in work {
            driver.node.submit(id, Op::work(Kind::Kernel, ns)).map_err(queue_error)?;
        }
        Ok(())
    })
}

// The launches of CUDA 2: the function holds the arguments and the block's shape.

pub(crate) extern "C" fn set_block_shape(
    function: cuda::Function,
    x: c_int,
    y: c_int,
    z: c_int,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            let found = known(inner, function)?;
            ensure(x > 0 && y > 0 && z > 0, CuResult::INVALID_VALUE)?;
            found.block = [x as c_uint, y as c_uint, z as c_uint];
            Ok(())
        })
    })
}

pub(crate) extern "C" fn set_shared_size(function: cuda::Function, bytes: c_uint) -> CuResult {
    api(|| {
        with(|_, inner| {
            known(inner, function)?.shared = bytes;
            Ok(())
        })
    })
}

pub(crate) extern "C" fn param_set_size(function: cuda::Function, bytes: c_uint) -> CuResult {
    api(|| {
        with(|_, inner| {
            ensure(bytes <= 4096, CuResult::INVALID_VALUE)?;
            known(inner, function)?.buffer.resize(bytes as usize, 0);
            Ok(())
        })
    })
}

fn param_set(function: cuda::Function, offset: c_int, bytes: &[u8]) -> Api {
    with(|_, inner| {
        let found = known(inner, function)?;
        let start = usize::try_from(offset).map_err(|_| CuResult::INVALID_VALUE)?;
        let end = start + bytes.len();
        ensure(end <= 4096, CuResult::INVALID_VALUE)?;
        if found.buffer.len() < end {
            found.buffer.resize(end, 0);
        }
        found.buffer[start..end].copy_from_slice(bytes);
        Ok(())
    })
}

pub(crate) extern "C" fn param_set_int(
    function: cuda::Function,
    offset: c_int,
    value: c_uint,
) -> CuResult {
    api(|| param_set(function, offset, &value.to_ne_bytes()))
}

pub(crate) extern "C" fn param_set_float(
    function: cuda::Function,
    offset: c_int,
    value: f32,
) -> CuResult {
    api(|| param_set(function, offset, &value.to_ne_bytes()))
}

pub(crate) extern "C" fn param_set_bytes(
    function: cuda::Function,
    offset: c_int,
    value: In<u8>,
    count: c_uint,
) -> CuResult {
    api(|| param_set(function, offset, &value.list(count as usize)?))
}

fn old_launch<const P: bool>(
    function: cuda::Function,
    width: c_int,
    height: c_int,
    stream: cuda::Stream,
) -> Api {
    let (block, shared, buffer) = with(|_, inner| {
        let found = known(inner, function)?;
        Ok((found.block, found.shared, found.buffer.clone()))
    })?;
    ensure(width > 0 && height > 0, CuResult::INVALID_VALUE)?;
    let size = buffer.len();
    let extra = [
        BUFFER_POINTER,
        buffer.as_ptr() as u64,
        BUFFER_SIZE,
        core::ptr::from_ref(&size) as u64,
        0,
        0,
    ];
    let shape = Shape { grid: [width as c_uint, height as c_uint, 1], block, shared };
    let arguments =
        Arguments { params: In::from_address(0), extra: In::from_address(extra.as_ptr() as u64) };
    start::<P>(function, stream, false, &shape, &arguments)
}

pub(crate) extern "C" fn old(function: cuda::Function) -> CuResult {
    api(|| old_launch::<false>(function, 1, 1, core::ptr::null_mut::<c_void>()))
}

pub(crate) extern "C" fn old_grid(
    function: cuda::Function,
    width: c_int,
    height: c_int,
) -> CuResult {
    api(|| old_launch::<false>(function, width, height, core::ptr::null_mut::<c_void>()))
}

pub(crate) extern "C" fn old_grid_async(
    function: cuda::Function,
    width: c_int,
    height: c_int,
    stream: cuda::Stream,
) -> CuResult {
    api(|| old_launch::<false>(function, width, height, stream))
}
