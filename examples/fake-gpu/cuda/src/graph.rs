//! Graphs: nodes and their order. One file for one section of the driver API ("Graph Management").

use core::ffi::{c_int, c_uint};
use std::sync::Arc;

use driver::cuda::{
    self, AccessDesc, CHILD_CLONE, CHILD_MOVE, CuResult, GraphNodeParams, HostNodeParams,
    KernelNodeParams, MemAllocNodeParams, NODE_GRAPH, NODE_HOST, NODE_KERNEL, NODE_MEM_ALLOC,
    NODE_MEM_FREE,
};

use crate::copy::Transfer;
use crate::ffi::{Api, In, Out, api, ensure, handle};
use crate::graph_memory;
use crate::host_calls::Function;
use crate::launch;
use crate::state::{Inner, driver, with};

/// `CU_GRAPH_NODE_TYPE_EMPTY`
const NODE_EMPTY: c_uint = 5;

/// What a node does.
#[derive(Clone)]
pub(crate) enum Work {
    Empty,
    /// Occupies the device for this many nanoseconds.
    Kernel(u64),
    Transfer(Transfer),
    /// Makes the memory at this address usable, for these devices as well.
    Alloc(u64, Arc<[AccessDesc]>),
    /// Ends the use of the memory at this address.
    Free(u64),
    /// Calls a host function.
    Host(Function),
    /// Runs the graph with this handle, which the node owns.
    Child(u64),
}

impl Work {
    /// Whether the node allocates or frees; graphs with such nodes are restricted.
    pub(crate) fn is_memory(&self) -> bool {
        matches!(self, Self::Alloc(..) | Self::Free(_))
    }
}

pub(crate) struct Node {
    pub(crate) work: Work,
    pub(crate) after: Vec<usize>,
    pub(crate) handle: u64,
    /// The node of which this one is a clone; 0: none.
    original: u64,
}

/// A graph; its nodes are in an order that respects their dependencies.
#[derive(Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    /// Whether a child graph node owns it.
    embedded: bool,
    /// The graph of which this one is a clone; 0: none.
    original: u64,
}

/// Adds a node and returns its index.
pub(crate) fn add_node(inner: &mut Inner, graph: u64, work: Work, after: &[usize]) -> Api<usize> {
    let handle = inner.new_handle();
    let found = inner.graphs.get_mut(&graph).ok_or(CuResult::INVALID_VALUE)?;
    let index = found.nodes.len();
    found.nodes.push(Node { work, after: after.to_vec(), handle, original: 0 });
    inner.nodes.insert(handle, (graph, index));
    Ok(index)
}

/// Whether every node of `tips` precedes or equals a node of `from`.
pub(crate) fn reaches_all(inner: &Inner, graph: u64, from: &[usize], tips: &[usize]) -> bool {
    let Some(found) = inner.graphs.get(&graph) else { return false };
    let mut seen = vec![false; found.nodes.len()];
    let mut todo = from.to_vec();
    while let Some(index) = todo.pop() {
        if !core::mem::replace(&mut seen[index], true) {
            todo.extend(&found.nodes[index].after);
        }
    }
    tips.iter().all(|&tip| seen[tip])
}

/// Removes a graph, including its nodes' graphs and memory.
pub(crate) fn remove(inner: &mut Inner, graph: u64) {
    let Some(found) = inner.graphs.remove(&graph) else { return };
    for node in &found.nodes {
        inner.nodes.remove(&node.handle);
        graph_memory::disown(inner, &node.work);
        if let Work::Child(child) = node.work {
            remove(inner, child);
        }
    }
}

/// A graph's nodes in order, with child graphs expanded.
pub(crate) fn flat(inner: &Inner, graph: u64) -> Api<Vec<Work>> {
    let found = inner.graphs.get(&graph).ok_or(CuResult::INVALID_VALUE)?;
    let mut works = Vec::new();
    for node in &found.nodes {
        match node.work {
            Work::Child(child) => works.extend(flat(inner, child)?),
            _ => works.push(node.work.clone()),
        }
    }
    Ok(works)
}

/// Creates a graph for a child node, with these nodes in sequence.
pub(crate) fn embed(inner: &mut Inner, works: Vec<Work>) -> u64 {
    let key = inner.new_handle();
    inner.graphs.insert(key, Graph { embedded: true, ..Graph::default() });
    for (index, work) in works.into_iter().enumerate() {
        let before = index.checked_sub(1);
        let _ = add_node(inner, key, work, before.as_slice());
    }
    key
}

/// A deep copy. Graphs with memory nodes cannot be copied.
fn copy(inner: &mut Inner, graph: u64, embedded: bool) -> Api<u64> {
    ensure(!flat(inner, graph)?.iter().any(Work::is_memory), CuResult::NOT_SUPPORTED)?;
    let found = inner.graphs.get(&graph).ok_or(CuResult::INVALID_VALUE)?;
    let nodes: Vec<(Work, Vec<usize>, u64)> =
        found.nodes.iter().map(|n| (n.work.clone(), n.after.clone(), n.handle)).collect();
    let key = inner.new_handle();
    inner.graphs.insert(key, Graph { embedded, original: graph, ..Graph::default() });
    for (work, after, original) in nodes {
        let work = match work {
            Work::Child(child) => Work::Child(copy(inner, child, true)?),
            other => other,
        };
        let index = add_node(inner, key, work, &after)?;
        if let Some(found) = inner.graphs.get_mut(&key) {
            found.nodes[index].original = original;
        }
    }
    Ok(key)
}

/// Refuses a free node that could free twice: a second one in the same graph, or one in another graph than the
/// allocating one.
pub(crate) fn may_free(inner: &Inner, graph: u64, address: u64) -> Api {
    graph_memory::is_graph_memory(inner, address)?;
    let has = |of: &Graph, wanted: &dyn Fn(&Work) -> bool| of.nodes.iter().any(|n| wanted(&n.work));
    let frees = |work: &Work| matches!(work, Work::Free(freed) if *freed == address);
    let allocates = |work: &Work| matches!(work, Work::Alloc(made, _) if *made == address);
    let own = inner.graphs.get(&graph).is_some_and(|found| has(found, &allocates));
    let twice = inner
        .graphs
        .iter()
        .filter(|(_, found)| has(found, &frees))
        .any(|(&key, found)| key == graph || own || has(found, &allocates));
    ensure(!twice, CuResult::INVALID_VALUE)
}

/// The indices of the nodes in a caller's list.
fn dependencies(
    inner: &Inner,
    graph: u64,
    nodes: In<cuda::GraphNode>,
    count: usize,
) -> Api<Vec<usize>> {
    ensure(inner.graphs.contains_key(&graph), CuResult::INVALID_VALUE)?;
    ensure(count == 0 || !nodes.is_null(), CuResult::INVALID_VALUE)?;
    nodes
        .list(count)?
        .into_iter()
        .map(|node| match inner.nodes.get(&(node as u64)) {
            Some(&(of, index)) if of == graph => Ok(index),
            _ => Err(CuResult::INVALID_VALUE),
        })
        .collect()
}

fn add(
    inner: &mut Inner,
    node: Out<cuda::GraphNode>,
    graph: cuda::Graph,
    after: (In<cuda::GraphNode>, usize),
    work: impl FnOnce(&mut Inner) -> Api<Work>,
) -> Api {
    node.required()?;
    let graph = graph as u64;
    let after = dependencies(inner, graph, after.0, after.1)?;
    let work = work(inner)?;
    let index = add_node(inner, graph, work, &after)?;
    node.set(handle(inner.graphs[&graph].nodes[index].handle));
    Ok(())
}

pub(crate) extern "C" fn create(graph: Out<cuda::Graph>, flags: c_uint) -> CuResult {
    api(|| {
        with(|_, inner| {
            graph.required()?;
            ensure(flags == 0, CuResult::INVALID_VALUE)?;
            let key = inner.new_handle();
            inner.graphs.insert(key, Graph::default());
            graph.set(handle(key));
            Ok(())
        })
    })
}

pub(crate) extern "C" fn destroy(graph: cuda::Graph) -> CuResult {
    api(|| {
        with(|_, inner| {
            let own = inner.graphs.get(&(graph as u64)).is_some_and(|found| !found.embedded);
            let captured = inner.captures.values().any(|capture| capture.graph == graph as u64);
            ensure(own && !captured, CuResult::INVALID_VALUE)?;
            remove(inner, graph as u64);
            Ok(())
        })
    })
}

fn kernel_work(inner: &Inner, params: &KernelNodeParams) -> Api<Work> {
    let function = if params.function.is_null() { params.kernel } else { params.function };
    let shape =
        launch::Shape { grid: params.grid, block: params.block, shared: params.shared_mem_bytes };
    let arguments = launch::Arguments {
        params: In::from_address(params.kernel_params as u64),
        extra: In::from_address(params.extra as u64),
    };
    let found = inner.functions.get(&(function as u64)).ok_or(CuResult::INVALID_HANDLE)?;
    ensure(found.collective.is_none(), CuResult::NOT_SUPPORTED)?;
    launch::duration(inner, function as u64, &shape, &arguments).map(Work::Kernel)
}

/// `CUDA_KERNEL_NODE_PARAMS_v1`, without kernel and context.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelNodeParamsV1 {
    function: cuda::Function,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    params: *mut *mut core::ffi::c_void,
    extra: *mut *mut core::ffi::c_void,
}

pub(crate) extern "C" fn add_kernel_v1(
    node: Out<cuda::GraphNode>,
    graph: cuda::Graph,
    after: In<cuda::GraphNode>,
    count: usize,
    params: In<KernelNodeParamsV1>,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            let params = params.get()?;
            let full = KernelNodeParams {
                function: params.function,
                grid: params.grid,
                block: params.block,
                shared_mem_bytes: params.shared,
                kernel_params: params.params,
                extra: params.extra,
                kernel: core::ptr::null_mut(),
                context: core::ptr::null_mut(),
            };
            add(inner, node, graph, (after, count), |inner| kernel_work(inner, &full))
        })
    })
}

pub(crate) extern "C" fn add_kernel(
    node: Out<cuda::GraphNode>,
    graph: cuda::Graph,
    after: In<cuda::GraphNode>,
    count: usize,
    params: In<KernelNodeParams>,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            let params = params.get()?;
            add(inner, node, graph, (after, count), |inner| kernel_work(inner, &params))
        })
    })
}

pub(crate) extern "C" fn add_empty(
    node: Out<cuda::GraphNode>,
    graph: cuda::Graph,
    after: In<cuda::GraphNode>,
    count: usize,
) -> CuResult {
    api(|| with(|_, inner| add(inner, node, graph, (after, count), |_| Ok(Work::Empty))))
}

pub(crate) extern "C" fn add_host(
    node: Out<cuda::GraphNode>,
    graph: cuda::Graph,
    after: In<cuda::GraphNode>,
    count: usize,
    params: In<HostNodeParams>,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            let work = Work::Host(Function::of(params.get()?)?);
            add(inner, node, graph, (after, count), |_| Ok(work))
        })
    })
}

pub(crate) extern "C" fn add_child(
    node: Out<cuda::GraphNode>,
    graph: cuda::Graph,
    after: In<cuda::GraphNode>,
    count: usize,
    child: cuda::Graph,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            add(inner, node, graph, (after, count), |inner| {
                ensure(child != graph, CuResult::INVALID_VALUE)?;
                Ok(Work::Child(copy(inner, child as u64, true)?))
            })
        })
    })
}

fn add_alloc_with(
    node: Out<cuda::GraphNode>,
    graph: cuda::Graph,
    after: (In<cuda::GraphNode>, usize),
    params: &mut MemAllocNodeParams,
) -> Api {
    with(|driver, inner| {
        let mut address = 0;
        add(inner, node, graph, after, |inner| {
            let work = graph_memory::reserve(driver, inner, params)?;
            if let Work::Alloc(made, _) = work {
                address = made;
            }
            Ok(work)
        })?;
        params.dptr = address;
        Ok(())
    })
}

pub(crate) extern "C" fn add_alloc(
    node: Out<cuda::GraphNode>,
    graph: cuda::Graph,
    after: In<cuda::GraphNode>,
    count: usize,
    params: Out<MemAllocNodeParams>,
) -> CuResult {
    api(|| {
        driver()?;
        let mut wanted = params.get()?;
        add_alloc_with(node, graph, (after, count), &mut wanted)?;
        params.set(wanted);
        Ok(())
    })
}

pub(crate) extern "C" fn add_free(
    node: Out<cuda::GraphNode>,
    graph: cuda::Graph,
    after: In<cuda::GraphNode>,
    count: usize,
    address: cuda::DevicePtr,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            add(inner, node, graph, (after, count), |inner| {
                may_free(inner, graph as u64, address)?;
                Ok(Work::Free(address))
            })
        })
    })
}

/// Moves a graph into a child node. Its handle stays valid, but belongs to the node.
fn adopt(inner: &mut Inner, parent: u64, child: u64) -> Api<Work> {
    let executable = inner.execs.values().any(|exec| exec.graph == child);
    ensure(parent != child && !executable, CuResult::INVALID_VALUE)?;
    let found = inner.graphs.get_mut(&child).ok_or(CuResult::INVALID_VALUE)?;
    ensure(!found.embedded, CuResult::INVALID_VALUE)?;
    found.embedded = true;
    Ok(Work::Child(child))
}

fn add_any(
    node: Out<cuda::GraphNode>,
    graph: cuda::Graph,
    after: (In<cuda::GraphNode>, usize),
    params: Out<GraphNodeParams>,
) -> Api {
    driver()?;
    let mut wanted = params.get()?;
    match wanted.kind {
        NODE_KERNEL => {
            // SAFETY: `kind` says that the caller filled this member.
            let kernel = unsafe { wanted.body.kernel };
            with(|_, inner| add(inner, node, graph, after, |inner| kernel_work(inner, &kernel)))
        }
        NODE_HOST => {
            // SAFETY: `kind` says that the caller filled this member.
            let host = unsafe { wanted.body.host };
            let work = Work::Host(Function::of(host)?);
            with(|_, inner| add(inner, node, graph, after, |_| Ok(work)))
        }
        NODE_EMPTY => with(|_, inner| add(inner, node, graph, after, |_| Ok(Work::Empty))),
        NODE_GRAPH => {
            // SAFETY: `kind` says that the caller filled this member.
            let child = unsafe { wanted.body.child };
            with(|_, inner| {
                add(inner, node, graph, after, |inner| match child.ownership {
                    CHILD_CLONE => Ok(Work::Child(copy(inner, child.graph as u64, true)?)),
                    CHILD_MOVE => adopt(inner, graph as u64, child.graph as u64),
                    _ => Err(CuResult::INVALID_VALUE),
                })
            })
        }
        NODE_MEM_ALLOC => {
            // SAFETY: `kind` says that the caller filled this member.
            let mut alloc = unsafe { wanted.body.alloc };
            add_alloc_with(node, graph, after, &mut alloc)?;
            wanted.body.alloc = alloc;
            params.set(wanted);
            Ok(())
        }
        NODE_MEM_FREE => {
            // SAFETY: `kind` says that the caller filled this member.
            let address = unsafe { wanted.body.free };
            with(|_, inner| {
                add(inner, node, graph, after, |inner| {
                    may_free(inner, graph as u64, address)?;
                    Ok(Work::Free(address))
                })
            })
        }
        _ => Err(CuResult::NOT_SUPPORTED),
    }
}

pub(crate) extern "C" fn add_node_v1(
    node: Out<cuda::GraphNode>,
    graph: cuda::Graph,
    after: In<cuda::GraphNode>,
    count: usize,
    params: Out<GraphNodeParams>,
) -> CuResult {
    api(|| add_any(node, graph, (after, count), params))
}

pub(crate) extern "C" fn add_node_v2(
    node: Out<cuda::GraphNode>,
    graph: cuda::Graph,
    after: In<cuda::GraphNode>,
    _edges: In<u64>,
    count: usize,
    params: Out<GraphNodeParams>,
) -> CuResult {
    api(|| add_any(node, graph, (after, count), params))
}

pub(crate) extern "C" fn nodes(
    graph: cuda::Graph,
    nodes: Out<cuda::GraphNode>,
    count: Out<usize>,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            let found = inner.graphs.get(&(graph as u64)).ok_or(CuResult::INVALID_VALUE)?;
            if nodes.is_null() {
                count.required()?.set(found.nodes.len());
                return Ok(());
            }
            let room = count.get()?;
            for index in 0..room {
                let node = found.nodes.get(index).map_or(0, |node| node.handle);
                nodes.set_at(index, handle(node));
            }
            count.set(room.min(found.nodes.len()));
            Ok(())
        })
    })
}

pub(crate) extern "C" fn node_type(node: cuda::GraphNode, kind: Out<c_int>) -> CuResult {
    api(|| {
        with(|_, inner| {
            kind.required()?;
            let &(graph, index) = inner.nodes.get(&(node as u64)).ok_or(CuResult::INVALID_VALUE)?;
            kind.set(match &inner.graphs[&graph].nodes[index].work {
                Work::Kernel(_) => 0,
                Work::Transfer(Transfer::Copy { .. }) => 1,
                Work::Transfer(Transfer::Fill { .. }) => 2,
                Work::Host(_) => 3,
                Work::Child(_) => 4,
                Work::Empty => 5,
                Work::Alloc(..) => 10,
                Work::Free(_) => 11,
            });
            Ok(())
        })
    })
}

fn work_of(inner: &Inner, node: cuda::GraphNode) -> Api<&Work> {
    let &(graph, index) = inner.nodes.get(&(node as u64)).ok_or(CuResult::INVALID_VALUE)?;
    Ok(&inner.graphs[&graph].nodes[index].work)
}

pub(crate) extern "C" fn alloc_params(
    node: cuda::GraphNode,
    params: Out<MemAllocNodeParams>,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            params.required()?;
            let Work::Alloc(address, access) = work_of(inner, node)? else {
                return Err(CuResult::INVALID_VALUE);
            };
            params.set(graph_memory::params_of(driver, inner, *address, access)?);
            Ok(())
        })
    })
}

pub(crate) extern "C" fn free_params(
    node: cuda::GraphNode,
    address: Out<cuda::DevicePtr>,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            address.required()?;
            let Work::Free(freed) = work_of(inner, node)? else {
                return Err(CuResult::INVALID_VALUE);
            };
            address.set(*freed);
            Ok(())
        })
    })
}

/// `cuGraphChildGraphNodeGetGraph`: the graph still belongs to the node.
pub(crate) extern "C" fn child(node: cuda::GraphNode, graph: Out<cuda::Graph>) -> CuResult {
    api(|| {
        with(|_, inner| {
            graph.required()?;
            let Work::Child(child) = work_of(inner, node)? else {
                return Err(CuResult::INVALID_VALUE);
            };
            graph.set(handle(*child));
            Ok(())
        })
    })
}

pub(crate) extern "C" fn clone(to: Out<cuda::Graph>, graph: cuda::Graph) -> CuResult {
    api(|| {
        with(|_, inner| {
            to.required()?;
            to.set(handle(copy(inner, graph as u64, false)?));
            Ok(())
        })
    })
}

pub(crate) extern "C" fn find_in_clone(
    to: Out<cuda::GraphNode>,
    original: cuda::GraphNode,
    clone: cuda::Graph,
) -> CuResult {
    api(|| {
        with(|_, inner| {
            to.required()?;
            let &(of, _) = inner.nodes.get(&(original as u64)).ok_or(CuResult::INVALID_VALUE)?;
            let found = inner.graphs.get(&(clone as u64)).ok_or(CuResult::INVALID_VALUE)?;
            ensure(found.original == of, CuResult::INVALID_VALUE)?;
            let node = found.nodes.iter().find(|node| node.original == original as u64);
            to.set(handle(node.ok_or(CuResult::INVALID_VALUE)?.handle));
            Ok(())
        })
    })
}
