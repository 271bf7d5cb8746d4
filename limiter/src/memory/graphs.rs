//! Memory that the allocation nodes of graphs take.
//!
//! The driver gives such a node an address when it is added to a graph, and backs the addresses with
//! memory when the executable graph is instantiated, uploaded or launched. The memory is of a pool for
//! each device, which keeps what graphs have freed until it is trimmed; the pool is charged by what it
//! has reserved (`CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`). What a launch may add to that is reserved
//! before it; afterwards the charge is set to the driver's own figure.
//!
//! Executable graphs may share memory as long as they do not run at the same time. So a launch adds no
//! more than its own allocations, and no more than what all launched graphs would have if none were
//! shared.

use super::charge::{is_over, refused, release, reserve_plainly, reserve_seen};
use super::{changes, pools, size, waiting};
use crate::device::Device;
use crate::driver_calls;
use crate::driver_calls::undisturbing;
use crate::per_process::PerProcess;
use crate::process::{self, Verdict};
use core::ptr;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use driver::cuda::{
    self, CuResult, GRAPH_RESERVED_CURRENT, GRAPH_USED_CURRENT, Graph, GraphExec, GraphNode,
    LOCATION_DEVICE, MemAllocNodeParams, NODE_GRAPH, NODE_MEM_ALLOC,
};
use session::page::layout::Kind;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Physical memory comes in pages of this size.
const PAGE: u64 = 2 << 20;
/// How long a launch that finds no room waits for graphs that run to give theirs up.
const PATIENCE: Duration = Duration::from_millis(100);

/// What an executable graph allocates on a device.
#[derive(Clone, Copy)]
struct Need {
    ordinal: cuda::Device,
    device: &'static Device,
    bytes: u64,
}

struct Executable {
    /// The context that it ends with.
    context: usize,
    needs: Vec<Need>,
    /// Whether its allocations may have memory.
    launched: bool,
}

/// A device's pool for graphs.
struct Account {
    device: &'static Device,
    charged: u64,
    /// When the figure that `charged` comes from was asked for; an older one must not replace it.
    asked: u64,
    /// What executable graphs that are gone may have left allocated.
    left_behind: u64,
    /// Launches that are under way, and count on what the pool has.
    launches: u32,
}

#[derive(Default)]
struct Graphs {
    executables: HashMap<usize, Executable>,
    accounts: HashMap<cuda::Device, Account>,
}

static GRAPHS: PerProcess<Mutex<Graphs>> = PerProcess::new();
/// Executable graphs with allocation nodes on a device with a limit.
static EXECUTABLES: AtomicUsize = AtomicUsize::new(0);
/// Counts questions.
static QUESTIONS: AtomicU64 = AtomicU64::new(1);

/// In a forked child: the parent's graphs are not the child's.
pub(crate) fn after_fork() {
    GRAPHS.forget();
    EXECUTABLES.store(0, Ordering::Relaxed);
}

fn graphs() -> MutexGuard<'static, Graphs> {
    GRAPHS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

impl Graphs {
    fn insert(&mut self, exec: usize, executable: Executable) {
        self.executables.insert(exec, executable);
        self.count();
    }

    fn remove(&mut self, exec: usize) -> Option<Executable> {
        let removed = self.executables.remove(&exec);
        self.count();
        removed
    }

    fn count(&self) {
        EXECUTABLES.store(self.executables.len(), Ordering::Relaxed);
    }

    /// A launch begins: the most that the pool may grow by it, and whether it is the only launch.
    fn begin(&mut self, exec: usize, need: &Need) -> (u64, bool) {
        let growth = self.growth(exec, need);
        // From here on it counts for others.
        if let Some(executable) = self.executables.get_mut(&exec) {
            executable.launched = true;
        }
        let Some(account) = self.accounts.get_mut(&need.ordinal) else { return (growth, true) };
        account.launches += 1;
        (growth, account.launches == 1)
    }

    /// Such a launch is over, or was not made.
    fn end(&mut self, ordinal: cuda::Device) {
        if let Some(account) = self.accounts.get_mut(&ordinal) {
            account.launches = account.launches.saturating_sub(1);
        }
    }

    fn leave_behind(&mut self, executable: &Executable) {
        if !executable.launched {
            return;
        }
        for need in &executable.needs {
            if let Some(account) = self.accounts.get_mut(&need.ordinal) {
                account.left_behind = account.left_behind.saturating_add(grains(need.bytes));
            }
        }
    }

    /// The most that the pool may grow when an executable graph gets its memory.
    fn growth(&self, exec: usize, need: &Need) -> u64 {
        let others = self.executables.iter().filter(|&(&other, of)| of.launched && other != exec);
        let of_others = others
            .flat_map(|(_, executable)| &executable.needs)
            .filter(|other| other.ordinal == need.ordinal)
            .fold(0_u64, |sum, other| sum.saturating_add(grains(other.bytes)));
        let (charged, left_behind) = self
            .accounts
            .get(&need.ordinal)
            .map_or((0, 0), |account| (account.charged, account.left_behind));
        let most = of_others.saturating_add(left_behind).saturating_add(grains(need.bytes));
        grains(most.saturating_sub(charged)).min(grains(need.bytes))
    }
}

/// Rounds up to what the pools take at a time.
fn grains(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(pools::CHUNK).unwrap_or(u64::MAX)
}

/// A pool's figure in bytes.
fn attribute(ordinal: cuda::Device, attribute: u32) -> Option<u64> {
    let mut value = 0_u64;
    undisturbing(|| driver_calls::graph_mem_attribute(ordinal, attribute, (&raw mut value).cast()))
        .is_ok()
        .then_some(value)
}

/// What a pool has reserved, and what of that is in use.
fn figures(ordinal: cuda::Device) -> Option<(u64, u64)> {
    attribute(ordinal, GRAPH_RESERVED_CURRENT).zip(attribute(ordinal, GRAPH_USED_CURRENT))
}

/// Asks how much a device's pool has reserved, and sets its charge to that; gives the reservation of a
/// call just made back.
fn settle(ordinal: cuda::Device, in_flight: u64) {
    let asked = QUESTIONS.fetch_add(1, Ordering::Relaxed);
    let figures = figures(ordinal);
    let mut graphs = graphs();
    let Some(account) = graphs.accounts.get_mut(&ordinal) else { return };
    let seat = account.device.seat();
    let Some(mut book) = account.device.book() else {
        let device = account.device;
        drop(graphs);
        release(device, Kind::Graph, in_flight);
        return;
    };
    let mut released = book.release(seat.slot(), Kind::Graph, in_flight);
    if let Some((reserved, used)) = figures.filter(|_| asked > account.asked) {
        // What is in use has memory, or is about to get it.
        let holds = reserved.max(used);
        released = released.and(book.release(seat.slot(), Kind::Graph, account.charged));
        book.charge(seat.slot(), Kind::Graph, holds);
        account.charged = holds;
        account.asked = asked;
        account.left_behind = account.left_behind.min(used);
    }
    drop(book);
    drop(graphs);
    if let Err(damaged) = released {
        crate::report::once(format_args!("{damaged}"));
    }
}

/// Brings the charges of a device's pool up to date; `trim`: after it has given back what it does not
/// use.
pub(super) fn refresh(device: &Device, trim: bool) {
    // In most programs there is none.
    if !GRAPHS.is_made() {
        return;
    }
    let ordinals: Vec<cuda::Device> = {
        let graphs = graphs();
        let of_device = graphs.accounts.iter().filter(|(_, of)| ptr::eq(of.device, device));
        of_device.filter(|(_, of)| of.charged > 0).map(|(&ordinal, _)| ordinal).collect()
    };
    for ordinal in ordinals {
        if trim && graphs().accounts.get(&ordinal).is_some_and(|of| of.launches == 0) {
            let _ = undisturbing(|| driver_calls::graph_mem_trim(ordinal));
        }
        settle(ordinal, 0);
    }
}

/// Runs `cuDeviceGraphMemTrim`.
pub(crate) fn trim(ordinal: cuda::Device, call: impl FnOnce() -> CuResult) -> CuResult {
    let result = call();
    settle(ordinal, 0);
    result
}

/// What the allocation nodes of a graph need, child graphs included.
fn needs_of(graph: Graph) -> Vec<Need> {
    let mut ranges: HashMap<cuda::Device, Vec<(u64, u64)>> = HashMap::new();
    let mut graphs = vec![graph];
    while let Some(graph) = graphs.pop() {
        for node in nodes_of(graph) {
            let mut kind = 0;
            if !driver_calls::graph_node_type(node, &raw mut kind).is_ok() {
                continue;
            }
            if kind == NODE_GRAPH {
                let mut child = ptr::null_mut();
                if driver_calls::graph_child(node, &raw mut child).is_ok() {
                    graphs.push(child);
                }
            } else if kind == NODE_MEM_ALLOC {
                let mut params = MemAllocNodeParams::EMPTY;
                let location = driver_calls::graph_alloc_params(node, &raw mut params)
                    .is_ok()
                    .then_some(params.pool_props.location)
                    .filter(|location| location.kind == LOCATION_DEVICE);
                if let Some(location) = location {
                    let bytes = size::linear_bytes(params.bytesize as u64);
                    ranges.entry(location.id).or_default().push((params.dptr, bytes));
                }
            }
        }
    }
    let limited = |ordinal| match process::get().device(ordinal) {
        Verdict::Limited(device) => Some(device),
        Verdict::Free | Verdict::Denied => None,
    };
    let needs = ranges.into_iter().filter_map(|(ordinal, ranges)| {
        Some(Need { ordinal, device: limited(ordinal)?, bytes: footprint(ranges) })
    });
    needs.collect()
}

fn nodes_of(graph: Graph) -> Vec<GraphNode> {
    let mut count = 0;
    if !driver_calls::graph_nodes(graph, ptr::null_mut(), &raw mut count).is_ok() {
        return Vec::new();
    }
    let mut nodes = vec![ptr::null_mut(); count];
    if count > 0 && !driver_calls::graph_nodes(graph, nodes.as_mut_ptr(), &raw mut count).is_ok() {
        return Vec::new();
    }
    nodes.truncate(count);
    nodes
}

/// Bytes that ranges of addresses cover together. Allocations of a graph that are not there at the same
/// time may have the same addresses ("Address Reuse within a Graph", CUDA programming guide).
fn footprint(mut ranges: Vec<(u64, u64)>) -> u64 {
    ranges.sort_unstable();
    let (mut covered, mut end) = (0_u64, 0_u64);
    for (start, bytes) in ranges {
        let stop = start.saturating_add(bytes);
        covered = covered.saturating_add(stop.saturating_sub(start.max(end)));
        end = end.max(stop);
    }
    covered.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
}

/// Runs a call that makes an executable graph, which is read from `exec` after success.
pub(crate) fn instantiate(
    graph: Graph,
    exec: impl Fn() -> GraphExec,
    call: impl FnOnce() -> CuResult,
) -> CuResult {
    let needs = if graph.is_null() { Vec::new() } else { needs_of(graph) };
    if needs.is_empty() {
        let result = call();
        // A graph that ended with its context may have had the same handle.
        if result.is_ok() && EXECUTABLES.load(Ordering::Relaxed) > 0 {
            graphs().remove(exec() as usize);
        }
        return result;
    }
    // The driver may wait for the launch with all this: what does not fit now is no reason to refuse.
    let reserved: Vec<(Need, u64)> = needs
        .iter()
        .map(|&need| {
            let growth = open_account(0, &need);
            let fits = reserve_plainly(need.device, Kind::Graph, growth);
            (need, if fits { growth } else { 0 })
        })
        .collect();
    let charged = |need: &Need| graphs().accounts.get(&need.ordinal).map_or(0, |of| of.charged);
    let before: Vec<u64> = needs.iter().map(charged).collect();
    let result = call();
    for (need, bytes) in reserved {
        settle(need.ordinal, bytes);
    }
    if !result.is_ok() {
        return result;
    }
    let grew = |(need, &before): (&Need, &u64)| charged(need) > before;
    if let Some(need) = needs.iter().zip(&before).find(|of| grew(*of) && is_over(of.0.device)) {
        // It took memory at once, and more than there was.
        let _ = driver_calls::graph_exec_destroy(exec());
        refresh(need.0.device, true);
        return refused(need.0.device, need.0.bytes);
    }
    let launched = needs.iter().zip(&before).any(grew);
    let executable = Executable { context: driver_calls::current_context(), needs, launched };
    graphs().insert(exec() as usize, executable);
    result
}

/// Has an account for a device, and tells by how much the pool may grow.
fn open_account(exec: usize, need: &Need) -> u64 {
    let mut graphs = graphs();
    let fresh =
        || Account { device: need.device, charged: 0, asked: 0, left_behind: 0, launches: 0 };
    graphs.accounts.entry(need.ordinal).or_insert_with(fresh);
    graphs.growth(exec, need)
}

/// Runs a call that may give an executable graph its memory.
pub(crate) fn launch(exec: GraphExec, call: impl FnOnce() -> CuResult) -> CuResult {
    if EXECUTABLES.load(Ordering::Relaxed) == 0 {
        return call();
    }
    let exec = exec as usize;
    let Some(needs) = graphs().executables.get(&exec).map(|of| of.needs.clone()) else {
        return call();
    };
    let _changing = changes::begin();
    let mut reserved: Vec<(&Need, u64)> = Vec::with_capacity(needs.len());
    for need in &needs {
        let Some(bytes) = make_room(exec, need) else {
            for (need, bytes) in reserved {
                release(need.device, Kind::Graph, bytes);
                graphs().end(need.ordinal);
            }
            return refused(need.device, need.bytes);
        };
        reserved.push((need, bytes));
    }
    let result = call();
    for (need, bytes) in reserved {
        settle(need.ordinal, bytes);
        graphs().end(need.ordinal);
        if is_over(need.device) {
            refresh(need.device, true);
        }
    }
    result
}

/// Reserves what a launch may need and tells how much that is; `None`: there is no room.
fn make_room(exec: usize, need: &Need) -> Option<u64> {
    let try_once = || {
        let (growth, only) = graphs().begin(exec, need);
        if growth == 0 || reserve_seen(need.device, Kind::Graph, growth) {
            return Some(growth);
        }
        // What the pool has and does not use costs nothing, as far as that is whole grains.
        let idle =
            figures(need.ordinal).map_or(0, |(reserved, used)| reserved.saturating_sub(used));
        if only && idle >= grains(need.bytes) {
            return Some(0);
        }
        graphs().end(need.ordinal);
        None
    };
    if let Some(bytes) = try_once() {
        return Some(bytes);
    }
    let started = Instant::now();
    loop {
        pools::refresh(need.device, true);
        refresh(need.device, true);
        if let Some(bytes) = try_once() {
            return Some(bytes);
        }
        // Graphs that run give their memory up when they end; nothing else is waited for.
        if !fits_without_the_others(need) || started.elapsed() > PATIENCE {
            return None;
        }
        let _waits = waiting::begin(need.device, 0);
        crate::clock::sleep(5_000_000);
    }
}

/// Whether an executable graph would fit if no other had memory.
fn fits_without_the_others(need: &Need) -> bool {
    let charged = graphs().accounts.get(&need.ordinal).map_or(0, |of| of.charged);
    let Some(book) = need.device.book() else { return false };
    let rest = book.used().saturating_sub(charged);
    charged > 0 && rest.saturating_add(need.bytes) <= book.limit()
}

/// Runs `cuGraphExecDestroy`. What the graph has left allocated lives on.
pub(crate) fn destroy(exec: GraphExec, call: impl FnOnce() -> CuResult) -> CuResult {
    if EXECUTABLES.load(Ordering::Relaxed) == 0 {
        return call();
    }
    // Forgotten first: another thread may get the same handle.
    let exec = exec as usize;
    let taken = {
        let mut graphs = graphs();
        let taken = graphs.remove(exec);
        if let Some(executable) = &taken {
            graphs.leave_behind(executable);
        }
        taken
    };
    let result = call();
    let Some(executable) = taken else { return result };
    if !result.is_ok() {
        graphs().insert(exec, executable);
        return result;
    }
    for need in &executable.needs {
        settle(need.ordinal, 0);
    }
    result
}

/// A context is gone, and with it the executable graphs made in it.
pub(super) fn context_ended(device: &Device, context: usize) {
    {
        let mut graphs = graphs();
        let of_context = graphs.executables.iter().filter(|(_, of)| of.context == context);
        let handles: Vec<usize> = of_context.map(|(&exec, _)| exec).collect();
        for exec in handles {
            if let Some(executable) = graphs.remove(exec) {
                graphs.leave_behind(&executable);
            }
        }
    }
    refresh(device, true);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_used_twice_count_once() {
        const MIB: u64 = 1 << 20;
        assert_eq!(footprint(vec![]), 0);
        assert_eq!(footprint(vec![(0, 2 * MIB), (8 * MIB, 2 * MIB)]), 4 * MIB);
        assert_eq!(footprint(vec![(4 * MIB, 4 * MIB), (0, 6 * MIB)]), 8 * MIB);
        assert_eq!(footprint(vec![(0, 8 * MIB), (2 * MIB, 2 * MIB), (0, 8 * MIB)]), 8 * MIB);
        assert_eq!(footprint(vec![(0, 512), (4096, 512)]), 2 * MIB);
        assert_eq!(footprint(vec![(u64::MAX - 1, u64::MAX)]), 2 * MIB);
    }
}
