//! Executable graphs, and the memory that graph nodes allocate.
//!
//! A graph's nodes run one after the other, so a launch is one piece of work as long as all of
//! them. Memory of allocation nodes has its address from the moment the node is added; the device
//! gives the bytes when the graph is launched, and keeps them for later launches until
//! `cuDeviceGraphMemTrim`.

use core::ffi::{c_char, c_int, c_uint, c_void};

use fake_node::layout::{Kind as OpKind, Op};
use utils::driver::cuda::{
    self, ALLOCATION_PINNED, CuResult, Device, LOCATION_DEVICE, MemAllocNodeParams,
};

use crate::ffi::{Api, In, Out, api, ensure, handle};
use crate::graph::{Graph, Work};
use crate::memory::{self, Allocation, GRANULE, Kind, round_up};
use crate::state::{Driver, Inner, current, driver, queue_error, with, with_context};
use crate::{capture, stream};

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`
const AUTO_FREE: u64 = 1;
/// All instantiation flags.
const FLAGS: u64 = 15;

/// An executable graph.
pub(crate) struct Exec {
    context: u64,
    works: Vec<Work>,
    auto_free: bool,
}

/// Device memory that graphs use.
#[derive(Default, Clone, Copy)]
pub(crate) struct GraphMemory {
    pub(crate) used: u64,
    pub(crate) used_high: u64,
    pub(crate) reserved: u64,
    pub(crate) reserved_high: u64,
}

/// An address for an allocation node.
pub(crate) fn reserve(driver: &Driver, inner: &mut Inner, params: &MemAllocNodeParams) -> Api<u64> {
    let context = current(inner)?;
    let props = &params.pool_props;
    ensure(params.bytesize > 0, CuResult::INVALID_VALUE)?;
    ensure(props.kind == ALLOCATION_PINNED, CuResult::INVALID_VALUE)?;
    ensure(props.location.kind == LOCATION_DEVICE, CuResult::INVALID_VALUE)?;
    ensure(props.handle_types == 0, CuResult::INVALID_VALUE)?;
    let device = driver.device(props.location.id)?;
    let size = params.bytesize as u64;
    let base = memory::map(size, false)?;
    let allocation = Allocation {
        size,
        taken: memory::rounded(size),
        device,
        context,
        kind: Kind::Graph { live: false, owners: 1 },
        ours: true,
    };
    inner.memory.insert(base, allocation);
    Ok(base)
}

/// Refuses an address that no allocation node made.
pub(crate) fn is_graph_memory(inner: &Inner, address: u64) -> Api {
    match inner.memory.get(&address) {
        Some(Allocation { kind: Kind::Graph { .. }, .. }) => Ok(()),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

fn own(inner: &mut Inner, work: &Work) {
    if let Work::Alloc(address) = work
        && let Some(Allocation { kind: Kind::Graph { owners, .. }, .. }) =
            inner.memory.get_mut(address)
    {
        *owners += 1;
    }
}

/// A graph or an executable one that held this node is gone.
pub(crate) fn disown(_driver: &Driver, inner: &mut Inner, work: &Work) {
    if let Work::Alloc(address) = work {
        if let Some(Allocation { kind: Kind::Graph { owners, .. }, .. }) =
            inner.memory.get_mut(address)
        {
            *owners = owners.saturating_sub(1);
        }
        drop_unused(inner, *address);
    }
}

fn drop_unused(inner: &mut Inner, address: u64) {
    if let Some(found) = inner.memory.get(&address)
        && let Kind::Graph { live: false, owners: 0 } = found.kind
    {
        memory::unmap(address, found.size);
        inner.memory.remove(&address);
    }
}

/// `cuMemFree` and `cuMemFreeAsync` of memory that a graph left allocated.
pub(crate) fn free(inner: &mut Inner, address: u64) -> Api {
    end_use(inner, address)?;
    drop_unused(inner, address);
    Ok(())
}

fn end_use(inner: &mut Inner, address: u64) -> Api {
    let found = inner.memory.get_mut(&address).ok_or(CuResult::INVALID_VALUE)?;
    let Kind::Graph { live, .. } = &mut found.kind else { return Err(CuResult::INVALID_VALUE) };
    ensure(*live, CuResult::INVALID_VALUE)?;
    *live = false;
    let (device, taken) = (found.device, found.taken);
    let memory = inner.graph_memory.entry(u64::from(device)).or_default();
    memory.used = memory.used.saturating_sub(taken);
    Ok(())
}

/// Gives back what graphs hold without using it.
pub(crate) fn trim(driver: &Driver, inner: &mut Inner, device: u32) {
    let memory = inner.graph_memory.entry(u64::from(device)).or_default();
    let keep = round_up(memory.used, GRANULE).min(memory.reserved);
    let surplus = memory.reserved - keep;
    memory.reserved = keep;
    if surplus > 0 {
        driver.node.give_back(driver.process, device, surplus);
    }
}

/// A context goes away with its executable graphs and the memory that graphs left allocated.
pub(crate) fn drop_context(driver: &Driver, inner: &mut Inner, context: u64) {
    let gone: Vec<u64> =
        inner.execs.iter().filter(|(_, e)| e.context == context).map(|(&k, _)| k).collect();
    for exec in gone {
        if let Some(found) = inner.execs.remove(&exec) {
            for work in &found.works {
                disown(driver, inner, work);
            }
        }
    }
    let mut devices = Vec::new();
    let live: Vec<u64> = inner
        .memory
        .iter()
        .filter(|(_, a)| a.context == context && matches!(a.kind, Kind::Graph { live: true, .. }))
        .map(|(&base, _)| base)
        .collect();
    for base in live {
        devices.extend(inner.memory.get(&base).map(|found| found.device));
        let _ = free(inner, base);
    }
    if let Some(found) = inner.contexts.get(&context) {
        devices.push(found.on_node);
    }
    for device in devices {
        trim(driver, inner, device);
    }
}

fn instantiate_any(exec: Out<cuda::GraphExec>, graph: cuda::Graph, flags: u64) -> Api {
    with_context(|_, inner, context| {
        exec.required()?;
        ensure(flags & !FLAGS == 0, CuResult::INVALID_VALUE)?;
        let found: &Graph = inner.graphs.get(&(graph as u64)).ok_or(CuResult::INVALID_VALUE)?;
        let works: Vec<Work> = found.nodes.iter().map(|node| node.work.clone()).collect();
        for work in &works {
            own(inner, work);
        }
        let key = inner.new_handle();
        inner.execs.insert(key, Exec { context, works, auto_free: flags & AUTO_FREE != 0 });
        exec.set(handle(key));
        Ok(())
    })
}

/// The forms before CUDA 12, with a place for a message.
pub(crate) extern "C" fn instantiate(
    exec: Out<cuda::GraphExec>,
    graph: cuda::Graph,
    _error_node: Out<cuda::GraphNode>,
    log: Out<c_char>,
    log_size: usize,
) -> CuResult {
    if log_size > 0 {
        log.set(0);
    }
    api(|| instantiate_any(exec, graph, 0))
}

pub(crate) extern "C" fn instantiate_with_flags(
    exec: Out<cuda::GraphExec>,
    graph: cuda::Graph,
    flags: u64,
) -> CuResult {
    api(|| instantiate_any(exec, graph, flags))
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct InstantiateParams {
    flags: u64,
    upload_stream: cuda::Stream,
    error_node: *mut c_void,
    result: c_int,
}

pub(crate) extern "C" fn instantiate_with_params<const P: bool>(
    exec: Out<cuda::GraphExec>,
    graph: cuda::Graph,
    params: Out<InstantiateParams>,
) -> CuResult {
    api(|| {
        driver()?;
        let mut wanted = params.get()?;
        let outcome = instantiate_any(exec, graph, wanted.flags);
        wanted.error_node = core::ptr::null_mut();
        wanted.result = c_int::from(outcome.is_err());
        params.set(wanted);
        outcome
    })
}

pub(crate) extern "C" fn destroy(exec: cuda::GraphExec) -> CuResult {
    api(|| {
        with(|driver, inner| {
            let found = inner.execs.remove(&(exec as u64)).ok_or(CuResult::INVALID_VALUE)?;
            for work in &found.works {
                disown(driver, inner, work);
            }
            Ok(())
        })
    })
}

pub(crate) extern "C" fn upload<const P: bool>(
    exec: cuda::GraphExec,
    stream: cuda::Stream,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            stream::target::<P>(driver, inner, stream)?;
            let known = inner.execs.contains_key(&(exec as u64));
            ensure(known, CuResult::INVALID_VALUE)
        })
    })
}

/// Length of what a graph runs, in nanoseconds; whether any of it is a kernel.
fn length(works: &[Work]) -> (u64, bool) {
    works.iter().fold((0, false), |(ns, kernel), work| match work {
        Work::Kernel(own) => (ns + own, true),
        Work::Transfer(transfer) => (ns + transfer.nanoseconds(), kernel),
        Work::Child(works) => {
            let (own, any) = length(works);
            (ns + own, kernel || any)
        }
        Work::Empty | Work::Alloc(_) | Work::Free(_) => (ns, kernel),
    })
}

fn apply(inner: &mut Inner, works: &[Work]) -> Api {
    for work in works {
        match work {
            Work::Transfer(transfer) => transfer.apply(inner)?,
            Work::Child(works) => apply(inner, works)?,
            _ => {}
        }
    }
    Ok(())
}

/// Takes the memory of the allocation nodes, and lets go of what the graph frees itself.
fn use_memory(driver: &Driver, inner: &mut Inner, works: &[Work], auto_free: bool) -> Api {
    let mut wanted: Vec<(u64, u32, u64)> = Vec::new();
    for work in works {
        if let Work::Alloc(address) = work {
            if auto_free {
                let _ = end_use(inner, *address);
            }
            let found = inner.memory.get(address).ok_or(CuResult::INVALID_VALUE)?;
            let idle = matches!(found.kind, Kind::Graph { live: false, .. });
            ensure(idle, CuResult::INVALID_VALUE)?;
            wanted.push((*address, found.device, found.taken));
        }
    }
    let mut devices: Vec<u32> = wanted.iter().map(|w| w.1).collect();
    devices.sort_unstable();
    devices.dedup();
    for device in devices {
        let need: u64 = wanted.iter().filter(|w| w.1 == device).map(|w| w.2).sum();
        let memory = inner.graph_memory.entry(u64::from(device)).or_default();
        let reserve = round_up(memory.used + need, GRANULE);
        let more = reserve.saturating_sub(memory.reserved);
        memory::take(driver, inner, device, more)?;
        let memory = inner.graph_memory.entry(u64::from(device)).or_default();
        memory.reserved += more;
        memory.used += need;
        memory.used_high = memory.used_high.max(memory.used);
        memory.reserved_high = memory.reserved_high.max(memory.reserved);
    }
    for (address, ..) in wanted {
        if let Some(Allocation { kind: Kind::Graph { live, .. }, .. }) =
            inner.memory.get_mut(&address)
        {
            *live = true;
        }
    }
    for work in works {
        if let Work::Free(address) = work {
            end_use(inner, *address)?;
        }
    }
    Ok(())
}

pub(crate) extern "C" fn launch<const P: bool>(
    exec: cuda::GraphExec,
    stream: cuda::Stream,
) -> CuResult {
    api(|| {
        let driver = driver()?;
        let (id, op) = {
            let inner = &mut *driver.inner();
            let target = stream::target::<P>(driver, inner, stream)?;
            let found = inner.execs.get(&(exec as u64)).ok_or(CuResult::INVALID_VALUE)?;
            let (works, auto_free) = (found.works.clone(), found.auto_free);
            if capture::add(inner, target, |_, _| Ok(Work::Child(works.clone())))? {
                return Ok(());
            }
            use_memory(driver, inner, &works, auto_free)?;
            apply(inner, &works)?;
            let (ns, kernel) = length(&works);
            let kind = if kernel { OpKind::Kernel } else { OpKind::Copy };
            (target.id, Op::work(kind, ns))
        };
        driver.node.submit(id, op).map(|_| ()).map_err(queue_error)
    })
}

pub(crate) extern "C" fn trim_device(device: Device) -> CuResult {
    api(|| {
        with(|driver, inner| {
            let device = driver.device(device)?;
            trim(driver, inner, device);
            Ok(())
        })
    })
}

pub(crate) extern "C" fn memory_attribute(
    device: Device,
    attribute: c_uint,
    value: Out<u64>,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            let device = driver.device(device)?;
            value.required()?;
            let memory = inner.graph_memory.entry(u64::from(device)).or_default();
            value.set(match attribute {
                0 => memory.used,
                1 => memory.used_high,
                2 => memory.reserved,
                3 => memory.reserved_high,
                _ => return Err(CuResult::INVALID_VALUE),
            });
            Ok(())
        })
    })
}

/// Only the high-water marks can be set, and only to 0.
pub(crate) extern "C" fn set_memory_attribute(
    device: Device,
    attribute: c_uint,
    value: In<u64>,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            let device = driver.device(device)?;
            ensure(value.get()? == 0, CuResult::INVALID_VALUE)?;
            let memory = inner.graph_memory.entry(u64::from(device)).or_default();
            match attribute {
                1 => memory.used_high = memory.used,
                3 => memory.reserved_high = memory.reserved,
                _ => return Err(CuResult::INVALID_VALUE),
            }
            Ok(())
        })
    })
}
