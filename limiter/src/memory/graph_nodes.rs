//! How much memory the allocation nodes of a graph need.

use super::device::DeviceMemory;
use super::size;
use crate::driver_calls;
use core::ptr;
use driver::cuda::{
    self, Graph, GraphNode, LOCATION_DEVICE, MemAllocNodeParams, NODE_GRAPH, NODE_MEM_ALLOC,
};
use std::collections::HashMap;

/// Granularity of physical memory, in bytes.
const PAGE: u64 = 2 << 20;

/// Bytes that an executable graph allocates on a device.
#[derive(Clone, Copy)]
pub(super) struct Need {
    pub(super) ordinal: cuda::Device,
    pub(super) device: &'static DeviceMemory,
    pub(super) bytes: u64,
}

/// The needs of a graph's allocation nodes, child graphs included, by device. `limited` returns a device's memory if
/// the device has a ledger.
pub(super) fn needs_of(
    graph: Graph,
    limited: impl Fn(cuda::Device) -> Option<&'static DeviceMemory>,
) -> Vec<Need> {
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

/// Bytes that the address ranges cover together. Allocations of a graph with disjoint lifetimes may share addresses
/// ("Address Reuse within a Graph", CUDA programming guide).
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
