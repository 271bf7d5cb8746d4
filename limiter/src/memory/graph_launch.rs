//! Calls that may give an executable graph its memory: instantiation, upload and launch.

use super::device::DeviceMemory;
use super::graph_nodes::{Need, needs_of};
use super::graphs::{Executable, has_idle};
use super::refusal::{is_over, refused};
use super::reservation::Reservation;
use super::reserve::Reserve;
use crate::{clock, driver_calls};
use driver::cuda::{self, CuResult, Graph, GraphExec};
use session::layout::MemoryKind;
use std::time::{Duration, Instant};

/// How long a launch that does not fit waits for running graphs to release memory.
const PATIENCE: Duration = Duration::from_millis(100);

/// Runs a call that instantiates `graph`; `exec` returns the executable graph after success. `limited` returns a
/// device's memory if the device has a ledger.
pub(super) fn instantiate(
    reserve: &Reserve,
    graph: Graph,
    limited: impl Fn(cuda::Device) -> Option<&'static DeviceMemory>,
    exec: impl Fn() -> GraphExec,
    call: impl FnOnce() -> CuResult,
) -> CuResult {
    let graphs = &reserve.holdings.graphs;
    let needs = if graph.is_null() { Vec::new() } else { needs_of(graph, limited) };
    if needs.is_empty() {
        let result = call();
        // An executable graph that ended with its context may have had the same handle.
        if result.is_ok() && !graphs.is_empty() {
            graphs.remove(exec() as usize);
        }
        return result;
    }
    // The driver may need the memory only at launch, so an instantiation that does not fit now is not refused.
    let reserved: Vec<(Need, Option<Reservation>)> = needs
        .iter()
        .map(|&need| {
            let growth = graphs.open_pool(&need);
            let reserved = Reservation::new(need.device, MemoryKind::Graph, growth);
            (need, reserved.map(|(reserved, _)| reserved))
        })
        .collect();
    let before: Vec<u64> = needs.iter().map(|need| graphs.charged(need)).collect();
    let result = call();
    for (need, reserved) in reserved {
        graphs.settle(need.ordinal, reserved);
    }
    if !result.is_ok() {
        return result;
    }
    let grew = |(need, &before): (&Need, &u64)| graphs.charged(need) > before;
    let is_over = |need: &Need| is_over(need.device.ledger);
    if let Some(need) = needs.iter().zip(&before).find(|of| grew(*of) && is_over(of.0)) {
        // The instantiation took more memory at once than was free.
        let _ = driver_calls::graph_exec_destroy(exec());
        graphs.refresh(need.0.device, true);
        return refused(need.0.device.ledger, need.0.bytes);
    }
    let launched = needs.iter().zip(&before).any(grew);
    let context = driver_calls::current_context();
    graphs.insert(exec() as usize, Executable { context, needs, launched });
    result
}

/// Runs a call that may give an executable graph its memory (`cuGraphLaunch`, `cuGraphUpload`).
pub(super) fn launch(
    reserve: &Reserve,
    exec: GraphExec,
    call: impl FnOnce() -> CuResult,
) -> CuResult {
    let graphs = &reserve.holdings.graphs;
    if graphs.is_empty() {
        return call();
    }
    let exec = exec as usize;
    let Some(needs) = graphs.needs(exec) else {
        return call();
    };
    let _changing = needs.first().map(|need| need.device.shared.changes.begin());
    let mut reserved: Vec<(&Need, Option<Reservation>)> = Vec::with_capacity(needs.len());
    for need in &needs {
        let Some(bytes) = make_room(reserve, exec, need) else {
            for (need, bytes) in reserved {
                drop(bytes);
                graphs.end(need);
            }
            return refused(need.device.ledger, need.bytes);
        };
        reserved.push((need, bytes));
    }
    let result = call();
    for (need, bytes) in reserved {
        graphs.settle(need.ordinal, bytes);
        graphs.end(need);
        if is_over(need.device.ledger) {
            graphs.refresh(need.device, true);
        }
    }
    result
}

/// Reserves what a launch may add, which may be nothing (`Some(None)`); `None`: it does not fit.
fn make_room(reserve: &Reserve, exec: usize, need: &Need) -> Option<Option<Reservation>> {
    let graphs = &reserve.holdings.graphs;
    let try_once = || {
        let (growth, only) = graphs.begin(exec, need);
        if growth == 0 {
            return Some(None);
        }
        if let Some(reserved) = reserve.reserve_at_once(need.device, MemoryKind::Graph, growth) {
            return Some(Some(reserved));
        }
        // Unused memory of the pool costs nothing, if it suffices in whole chunks.
        if only && has_idle(need) {
            return Some(None);
        }
        graphs.end(need);
        None
    };
    if let Some(reserved) = try_once() {
        return Some(reserved);
    }
    let started = Instant::now();
    loop {
        reserve.holdings.refresh(need.device, true);
        if let Some(reserved) = try_once() {
            return Some(reserved);
        }
        // Running graphs release memory when they end; nothing else is worth waiting for.
        if !fits_without_the_others(reserve, need) || started.elapsed() > PATIENCE {
            return None;
        }
        let _waits = need.device.shared.changes.wait(need.device.ledger, 0);
        clock::sleep(5_000_000);
    }
}

/// Whether an executable graph would fit if no other one had memory.
fn fits_without_the_others(reserve: &Reserve, need: &Need) -> bool {
    let charged = reserve.holdings.graphs.charged(need);
    let Some(opened) = need.device.ledger.open() else { return false };
    let rest = opened.used().saturating_sub(charged);
    charged > 0 && rest.saturating_add(need.bytes) <= opened.limit()
}
