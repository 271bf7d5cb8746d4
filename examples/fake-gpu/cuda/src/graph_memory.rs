//! Memory of graphs. An allocation node has its address as soon as it is added; the device provides the bytes when an
//! executable graph is first launched or uploaded. They come in chunks that all graphs of the process share, and that
//! stay until `cuDeviceGraphMemTrim`. One file for one section of the driver API ("Graph Management", memory nodes).

use core::ffi::c_uint;
use std::sync::Arc;

use driver::cuda::{
    ALLOCATION_PINNED, AccessDesc, CuResult, Device, LOCATION_DEVICE, MemAllocNodeParams,
    MemLocation, PoolProps,
};
use fake_node::layout::StreamId;

use crate::ffi::{Api, In, Out, api, ensure};
use crate::graph::Work;
use crate::memory::{self, Allocation, GRANULE, Kind, round_up};
use crate::state::{Driver, Inner, current, with};

/// Bytes taken from the device at a time, as by pools.
const CHUNK: u64 = 32 << 20;

/// A launch that uses its own memory until its stream has reached a position.
#[derive(Clone, Copy)]
struct Running {
    launch: u64,
    stream: StreamId,
    until: u64,
    bytes: u64,
}

/// Device memory that graphs use.
#[derive(Default)]
pub(crate) struct GraphMemory {
    /// Bytes allocated by graphs and not freed.
    live: u64,
    running: Vec<Running>,
    used_high: u64,
    reserved: u64,
    reserved_high: u64,
}

impl GraphMemory {
    /// Bytes that launches on streams other than `except` need. Launches on one stream run in sequence and share
    /// memory.
    fn busy(&self, except: Option<StreamId>) -> u64 {
        let mut streams: Vec<(StreamId, u64)> = Vec::new();
        for run in self.running.iter().filter(|run| Some(run.stream) != except) {
            match streams.iter_mut().find(|(stream, _)| *stream == run.stream) {
                Some((_, most)) => *most = run.bytes.max(*most),
                None => streams.push((run.stream, run.bytes)),
            }
        }
        streams.iter().map(|(_, most)| most).sum()
    }

    fn used(&self) -> u64 {
        self.live + self.busy(None)
    }

    fn raise(&mut self) {
        self.used_high = self.used_high.max(self.used());
        self.reserved_high = self.reserved_high.max(self.reserved);
    }
}

/// A device's account, without completed launches.
fn account<'a>(driver: &Driver, inner: &'a mut Inner, device: u32) -> &'a mut GraphMemory {
    let memory = inner.graph_memory.entry(u64::from(device)).or_default();
    if !memory.running.is_empty() {
        let node = driver.node.lock();
        memory
            .running
            .retain(|run| !node.passed(run.stream.slot, run.stream.generation, run.until));
    }
    memory
}

/// Reserves an address for an allocation node.
pub(crate) fn reserve(
    driver: &Driver,
    inner: &mut Inner,
    params: &MemAllocNodeParams,
) -> Api<Work> {
    let context = current(inner)?;
    let props = &params.pool_props;
    ensure(params.bytesize > 0, CuResult::INVALID_VALUE)?;
    ensure(props.kind == ALLOCATION_PINNED, CuResult::INVALID_VALUE)?;
    ensure(props.location.kind == LOCATION_DEVICE, CuResult::INVALID_VALUE)?;
    ensure(props.handle_types == 0, CuResult::INVALID_VALUE)?;
    let device = driver.device(props.location.id)?;
    let access = In::<AccessDesc>::from_address(params.access_descs as u64)
        .list(params.access_desc_count)?;
    for access in &access {
        ensure(access.location.kind == LOCATION_DEVICE, CuResult::INVALID_VALUE)?;
        driver.device(access.location.id)?;
    }
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
    Ok(Work::Alloc(base, Arc::from(access)))
}

/// The result of `cuGraphMemAllocNodeGetParams` for a node.
pub(crate) fn params_of(
    driver: &Driver,
    inner: &Inner,
    address: u64,
    access: &[AccessDesc],
) -> Api<MemAllocNodeParams> {
    let found = inner.memory.get(&address).ok_or(CuResult::INVALID_VALUE)?;
    let ordinal = driver.visible.iter().position(|&device| device == found.device);
    let id = ordinal.ok_or(CuResult::INVALID_DEVICE)? as Device;
    Ok(MemAllocNodeParams {
        pool_props: PoolProps {
            kind: ALLOCATION_PINNED,
            handle_types: 0,
            location: MemLocation { kind: LOCATION_DEVICE, id },
            win32_security_attributes: core::ptr::null_mut(),
            max_size: 0,
            usage: 0,
            reserved: [0; 54],
        },
        access_descs: if access.is_empty() { core::ptr::null() } else { access.as_ptr() },
        access_desc_count: access.len(),
        bytesize: found.size as usize,
        dptr: address,
    })
}

/// Fails for an address that no allocation node has made.
pub(crate) fn is_graph_memory(inner: &Inner, address: u64) -> Api {
    match inner.memory.get(&address) {
        Some(Allocation { kind: Kind::Graph { .. }, .. }) => Ok(()),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

/// Adds an executable graph as an owner of this node's memory.
pub(crate) fn own(inner: &mut Inner, work: &Work) {
    if let Work::Alloc(address, _) = work
        && let Some(Allocation { kind: Kind::Graph { owners, .. }, .. }) =
            inner.memory.get_mut(address)
    {
        *owners += 1;
    }
}

/// Removes an owner of this node's memory, which has ended.
pub(crate) fn disown(inner: &mut Inner, work: &Work) {
    if let Work::Alloc(address, _) = work {
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

/// Frees memory that a graph left allocated (`cuMemFree`, `cuMemFreeAsync`).
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
    memory.live = memory.live.saturating_sub(taken);
    Ok(())
}

/// Gives back memory that graphs hold but do not use.
pub(crate) fn trim(driver: &Driver, inner: &mut Inner, device: u32) {
    let memory = account(driver, inner, device);
    let keep = round_up(memory.used(), GRANULE).min(memory.reserved);
    let surplus = memory.reserved - keep;
    memory.reserved = keep;
    if surplus > 0 {
        driver.node.give_back(driver.process, device, surplus);
    }
}

/// Makes graphs hold at least `needed` bytes of a device.
fn grow(driver: &Driver, inner: &mut Inner, device: u32, needed: u64) -> Api {
    let reserved = account(driver, inner, device).reserved;
    let mut more = round_up(needed.saturating_sub(reserved), CHUNK);
    if driver.node.take(driver.process, device, more).is_err() {
        // No room for a whole chunk. There may be room for the needed bytes once unused memory is given back, which
        // changes this reservation as well, so read it again.
        memory::reclaim(driver, inner, device);
        let reserved = account(driver, inner, device).reserved;
        more = round_up(needed.saturating_sub(reserved), GRANULE);
        driver.node.take(driver.process, device, more).map_err(|_| CuResult::OUT_OF_MEMORY)?;
    }
    let memory = account(driver, inner, device);
    memory.reserved += more;
    memory.raise();
    Ok(())
}

/// Bytes that one launch needs on one device.
struct Need {
    device: u32,
    /// The maximum during the launch.
    peak: u64,
    /// The bytes still allocated at its end.
    left: u64,
}

/// The needs of a launch, by device. A node reuses memory that earlier nodes have freed.
fn needs(inner: &Inner, works: &[Work]) -> Api<Vec<Need>> {
    let mut needs: Vec<Need> = Vec::new();
    let mut own: Vec<u64> = Vec::new();
    for work in works {
        let (Work::Alloc(address, _) | Work::Free(address)) = work else { continue };
        let found = inner.memory.get(address).ok_or(CuResult::INVALID_VALUE)?;
        let (device, taken) = (found.device, found.taken);
        let index = needs.iter().position(|need| need.device == device).unwrap_or_else(|| {
            needs.push(Need { device, peak: 0, left: 0 });
            needs.len() - 1
        });
        let need = &mut needs[index];
        if let Work::Alloc(..) = work {
            own.push(*address);
            need.left += taken;
            need.peak = need.peak.max(need.left);
        } else if own.contains(address) {
            need.left -= taken;
        }
    }
    Ok(needs)
}

/// Reserves the bytes of a launch into `stream`, without using them.
pub(crate) fn prepare(driver: &Driver, inner: &mut Inner, works: &[Work], stream: StreamId) -> Api {
    for need in needs(inner, works)? {
        let memory = account(driver, inner, need.device);
        let others = memory.live + memory.busy(Some(stream));
        let before = memory.running.iter().filter(|run| run.stream == stream);
        let shared = before.map(|run| run.bytes).max().unwrap_or(0).max(need.peak);
        grow(driver, inner, need.device, others + shared)?;
    }
    Ok(())
}

/// Starts the use of a launch's memory; returns a number for [`running`].
pub(crate) fn start(
    driver: &Driver,
    inner: &mut Inner,
    works: &[Work],
    auto_free: bool,
    stream: StreamId,
) -> Api<u64> {
    for work in works {
        if let Work::Alloc(address, _) = work {
            if auto_free {
                let _ = end_use(inner, *address);
            }
            let found = inner.memory.get(address).ok_or(CuResult::INVALID_VALUE)?;
            let idle = matches!(found.kind, Kind::Graph { live: false, .. });
            ensure(idle, CuResult::INVALID_VALUE)?;
        }
    }
    // Memory that the graph frees must be allocated, by the graph itself or earlier.
    let mut own = Vec::new();
    for work in works {
        match work {
            Work::Alloc(address, _) => own.push(*address),
            Work::Free(address) if !own.contains(address) => {
                let kind = inner.memory.get(address).map(|found| found.kind);
                let live = matches!(kind, Some(Kind::Graph { live: true, .. }));
                ensure(live, CuResult::INVALID_VALUE)?;
            }
            _ => {}
        }
    }
    prepare(driver, inner, works, stream)?;
    let launch = inner.new_handle();
    for need in needs(inner, works)? {
        let bytes = need.peak - need.left;
        let memory = account(driver, inner, need.device);
        memory.running.push(Running { launch, stream, until: u64::MAX, bytes });
    }
    for work in works {
        match work {
            Work::Alloc(address, _) => {
                let Some(found) = inner.memory.get_mut(address) else { continue };
                found.kind = match found.kind {
                    Kind::Graph { owners, .. } => Kind::Graph { live: true, owners },
                    other => other,
                };
                let (device, taken) = (found.device, found.taken);
                account(driver, inner, device).live += taken;
            }
            Work::Free(address) => end_use(inner, *address)?,
            _ => {}
        }
    }
    for memory in inner.graph_memory.values_mut() {
        memory.raise();
    }
    Ok(launch)
}

/// Sets the position of its stream at which a launch ends.
pub(crate) fn running(inner: &mut Inner, launch: u64, until: u64) {
    for memory in inner.graph_memory.values_mut() {
        for run in memory.running.iter_mut().filter(|run| run.launch == launch) {
            run.until = until;
        }
    }
}

/// Frees the memory that graphs left allocated in a context.
pub(crate) fn drop_context(driver: &Driver, inner: &mut Inner, context: u64) {
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

pub(crate) extern "C" fn trim_device(device: Device) -> CuResult {
    api(|| {
        with(|driver, inner| {
            let device = driver.device(device)?;
            trim(driver, inner, device);
            Ok(())
        })
    })
}

pub(crate) extern "C" fn attribute(device: Device, attribute: c_uint, value: Out<u64>) -> CuResult {
    api(|| {
        with(|driver, inner| {
            let device = driver.device(device)?;
            value.required()?;
            let memory = account(driver, inner, device);
            value.set(match attribute {
                0 => memory.used(),
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
pub(crate) extern "C" fn set_attribute(
    device: Device,
    attribute: c_uint,
    value: In<u64>,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            let device = driver.device(device)?;
            ensure(value.get()? == 0, CuResult::INVALID_VALUE)?;
            let memory = account(driver, inner, device);
            match attribute {
                1 => memory.used_high = memory.used(),
                3 => memory.reserved_high = memory.reserved,
                _ => return Err(CuResult::INVALID_VALUE),
            }
            Ok(())
        })
    })
}
