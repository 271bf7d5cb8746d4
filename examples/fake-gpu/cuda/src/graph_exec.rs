//! Executable graphs. A graph's nodes run in sequence, so a launch is one operation with the duration of all of them.

use core::ffi::{c_char, c_int, c_void};

use driver::cuda::{self, CuResult};
use fake_node::layout::{Kind as OpKind, Op};

use crate::ffi::{Api, Out, api, ensure, handle};
use crate::graph::{self, Work};
use crate::state::{Driver, Inner, driver, queue_error, with, with_context};
use crate::{capture, graph_memory, host_calls, stream};

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`
const AUTO_FREE: u64 = 1;
/// All instantiation flags.
const FLAGS: u64 = 15;

/// An executable graph.
pub(crate) struct Exec {
    context: u64,
    /// The graph from which it was instantiated.
    pub(crate) graph: u64,
    /// The nodes, with child graphs expanded.
    works: Vec<Work>,
    auto_free: bool,
}

/// Frees a context's executable graphs, and the memory that graphs left allocated in the context.
pub(crate) fn drop_context(driver: &Driver, inner: &mut Inner, context: u64) {
    let gone: Vec<u64> =
        inner.execs.iter().filter(|(_, e)| e.context == context).map(|(&k, _)| k).collect();
    for exec in gone {
        if let Some(found) = inner.execs.remove(&exec) {
            for work in &found.works {
                graph_memory::disown(inner, work);
            }
        }
    }
    graph_memory::drop_context(driver, inner, context);
}

fn instantiate_any(exec: Out<cuda::GraphExec>, graph: cuda::Graph, flags: u64) -> Api {
    with_context(|_, inner, context| {
        exec.required()?;
        ensure(flags & !FLAGS == 0, CuResult::INVALID_VALUE)?;
        let works = graph::flat(inner, graph as u64)?;
        if works.iter().any(Work::is_memory) {
            // A graph with memory nodes has at most one executable graph.
            let of = inner.execs.values().any(|exec| exec.graph == graph as u64);
            ensure(!of, CuResult::NOT_SUPPORTED)?;
        }
        for work in &works {
            graph_memory::own(inner, work);
        }
        let key = inner.new_handle();
        let auto_free = flags & AUTO_FREE != 0;
        inner.execs.insert(key, Exec { context, graph: graph as u64, works, auto_free });
        exec.set(handle(key));
        Ok(())
    })
}

/// The forms before CUDA 12, with a buffer for a message.
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
        with(|_, inner| {
            let found = inner.execs.remove(&(exec as u64)).ok_or(CuResult::INVALID_VALUE)?;
            for work in &found.works {
                graph_memory::disown(inner, work);
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
            let target = stream::target::<P>(driver, inner, stream)?;
            let found = inner.execs.get(&(exec as u64)).ok_or(CuResult::INVALID_VALUE)?;
            let works = found.works.clone();
            capture::forbid_on(inner, target)?;
            graph_memory::prepare(driver, inner, &works, target.id)
        })
    })
}

/// A graph's duration in ns, and whether it contains a kernel.
fn length(works: &[Work]) -> (u64, bool) {
    works.iter().fold((0, false), |(ns, kernel), work| match work {
        Work::Kernel(own) => (ns + own, true),
        Work::Transfer(transfer) => (ns + transfer.nanoseconds(), kernel),
        Work::Empty | Work::Host(_) | Work::Child(_) | Work::Alloc(..) | Work::Free(_) => {
            (ns, kernel)
        }
    })
}

fn apply(inner: &mut Inner, works: &[Work]) -> Api {
    for work in works {
        if let Work::Transfer(transfer) = work {
            transfer.apply(inner)?;
        }
    }
    Ok(())
}

/// Submits a graph's work; returns the stream's position after it. The nodes between two host functions are one
/// operation.
fn run(driver: &Driver, target: stream::Target, works: &[Work]) -> Api<u64> {
    let mut end = 0;
    for part in works.split_inclusive(|work| matches!(work, Work::Host(_))) {
        let (ns, kernel) = length(part);
        let kind = if kernel { OpKind::Kernel } else { OpKind::Copy };
        end = driver.node.submit(target.id, Op::work(kind, ns)).map_err(queue_error)?;
        if let Some(Work::Host(function)) = part.last() {
            end = host_calls::put(driver, target, *function)?;
        }
    }
    Ok(end)
}

pub(crate) extern "C" fn launch<const P: bool>(
    exec: cuda::GraphExec,
    stream: cuda::Stream,
) -> CuResult {
    api(|| {
        let driver = driver()?;
        let (target, works, launch) = {
            let inner = &mut *driver.inner();
            let target = stream::target::<P>(driver, inner, stream)?;
            let found = inner.execs.get(&(exec as u64)).ok_or(CuResult::INVALID_VALUE)?;
            let (works, auto_free) = (found.works.clone(), found.auto_free);
            let captured = capture::add(inner, target, |inner, _| {
                let memory = works.iter().any(Work::is_memory);
                ensure(!memory, CuResult::NOT_SUPPORTED)?;
                Ok(Work::Child(graph::embed(inner, works.clone())))
            })?;
            if captured {
                return Ok(());
            }
            let launch = graph_memory::start(driver, inner, &works, auto_free, target.id)?;
            apply(inner, &works)?;
            (target, works, launch)
        };
        let end = run(driver, target, &works);
        // A stream that no longer exists runs nothing.
        graph_memory::running(&mut driver.inner(), launch, end.as_ref().copied().unwrap_or(0));
        end.map(|_| ())
    })
}
