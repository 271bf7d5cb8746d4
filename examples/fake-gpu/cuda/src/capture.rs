//! Stream capture and its rules ("cuStreamBeginCapture", "cuThreadExchangeStreamCaptureMode").

use core::ffi::{c_uint, c_void};

use driver::cuda::{
    self, CAPTURE_MODE_GLOBAL, CAPTURE_MODE_RELAXED, CAPTURE_MODE_THREAD_LOCAL, CuResult,
};
use fake_node::layout::Order;

use crate::ffi::{Api, Out, api, ensure, handle};
use crate::graph::{self, Graph, Work};
use crate::state::{Inner, driver, with};
use crate::stream::{self, Target};
use crate::thread;

/// `CU_STREAM_CAPTURE_STATUS_*`
const ACTIVE: c_uint = 1;
const INVALIDATED: c_uint = 2;

/// A capture in progress.
pub(crate) struct Capture {
    /// The stream on which the capture began.
    origin: u64,
    context: u64,
    mode: c_uint,
    thread: u64,
    pub(crate) graph: u64,
    invalid: bool,
    /// The last node of each branch that forked from the origin.
    tips: Vec<usize>,
}

/// A stream's (or captured event's) place in a capture.
#[derive(Clone)]
pub(crate) struct Branch {
    pub(crate) capture: u64,
    /// Nodes on which the next node depends.
    pub(crate) after: Vec<usize>,
}

/// Invalidates a capture, which still has to be ended.
pub(crate) fn invalidate(inner: &mut Inner, capture: u64) {
    if let Some(found) = inner.captures.get_mut(&capture) {
        found.invalid = true;
    }
}

/// For calls that are unsafe during a capture: if the thread's mode forbids the call, fails and invalidates the
/// affected captures.
pub(crate) fn unsafe_call(inner: &mut Inner) -> Api {
    if inner.captures.is_empty() {
        return Ok(());
    }
    let (own, mode) = (thread::id(), thread::mode());
    if mode == CAPTURE_MODE_RELAXED {
        return Ok(());
    }
    let mut forbidden = false;
    for capture in inner.captures.values_mut() {
        let mine = capture.thread == own && capture.mode != CAPTURE_MODE_RELAXED;
        let others = mode == CAPTURE_MODE_GLOBAL && capture.mode == CAPTURE_MODE_GLOBAL;
        if mine || others {
            capture.invalid = true;
            forbidden = true;
        }
    }
    ensure(!forbidden, CuResult::STREAM_CAPTURE_UNSUPPORTED)
}

/// For calls that conflict with a capture of this stream in any mode.
pub(crate) fn forbid_on(inner: &mut Inner, target: Target) -> Api {
    if inner.captures.is_empty() {
        return Ok(());
    }
    legacy_use(inner, target, true)?;
    let branch = inner.streams.get(&target.key).and_then(|s| s.capture.as_ref());
    match branch.map(|b| b.capture) {
        Some(capture) => {
            invalidate(inner, capture);
            Err(CuResult::STREAM_CAPTURE_UNSUPPORTED)
        }
        None => Ok(()),
    }
}

/// For calls that conflict with any capture in the context, in any mode.
pub(crate) fn forbid_in_context(inner: &mut Inner, context: u64) -> Api {
    let mut forbidden = false;
    for capture in inner.captures.values_mut().filter(|c| c.context == context) {
        capture.invalid = true;
        forbidden = true;
    }
    ensure(!forbidden, CuResult::STREAM_CAPTURE_UNSUPPORTED)
}

/// Fails for the legacy stream while a blocking stream of its context is being captured.
fn legacy_use(inner: &mut Inner, target: Target, breaks: bool) -> Api {
    if !inner.streams.get(&target.key).is_some_and(|s| s.order == Order::Legacy) {
        return Ok(());
    }
    let captures: Vec<u64> = inner
        .streams
        .values()
        .filter(|s| s.context == target.context && s.order == Order::Blocking)
        .filter_map(|s| s.capture.as_ref().map(|branch| branch.capture))
        .collect();
    if breaks {
        for &capture in &captures {
            invalidate(inner, capture);
        }
    }
    ensure(captures.is_empty(), CuResult::STREAM_CAPTURE_IMPLICIT)
}

/// For work submitted to a stream: the position in the stream's capture, or `None` if the work is to run.
pub(crate) fn enter(inner: &mut Inner, target: Target) -> Api<Option<Branch>> {
    if inner.captures.is_empty() {
        return Ok(None);
    }
    legacy_use(inner, target, true)?;
    let Some(branch) = inner.streams.get(&target.key).and_then(|s| s.capture.clone()) else {
        return Ok(None);
    };
    let broken = inner.captures.get(&branch.capture).is_none_or(|capture| capture.invalid);
    ensure(!broken, CuResult::STREAM_CAPTURE_INVALIDATED)?;
    Ok(Some(branch))
}

/// Adds a node to a stream's capture; `false` if the stream is not being captured.
pub(crate) fn add(
    inner: &mut Inner,
    target: Target,
    work: impl FnOnce(&mut Inner, u64) -> Api<Work>,
) -> Api<bool> {
    let Some(branch) = enter(inner, target)? else { return Ok(false) };
    let Some(capture) = inner.captures.get(&branch.capture) else { return Ok(false) };
    let graph = capture.graph;
    let work = work(inner, graph)?;
    let node = graph::add_node(inner, graph, work, &branch.after)?;
    advance(inner, target.key, &branch, vec![node]);
    Ok(true)
}

fn advance(inner: &mut Inner, key: u64, branch: &Branch, after: Vec<usize>) {
    if let Some(capture) = inner.captures.get_mut(&branch.capture)
        && capture.origin != key
    {
        capture.tips.retain(|tip| !branch.after.contains(tip));
        capture.tips.extend(&after);
    }
    if let Some(stream) = inner.streams.get_mut(&key) {
        stream.capture = Some(Branch { capture: branch.capture, after });
    }
}

/// The part of `cuStreamWaitEvent` that concerns captures; `false` if it is an ordinary wait.
pub(crate) fn wait_event(inner: &mut Inner, target: Target, event: u64) -> Api<bool> {
    let own = enter(inner, target)?;
    let theirs = inner.events.get(&event).and_then(|e| e.captured.clone());
    match (own, theirs) {
        (None, None) => Ok(false),
        (Some(own), None) => {
            invalidate(inner, own.capture);
            Err(CuResult::STREAM_CAPTURE_ISOLATION)
        }
        (own, Some(theirs)) => {
            let alive = inner.captures.get(&theirs.capture).is_some_and(|c| !c.invalid);
            ensure(alive, CuResult::STREAM_CAPTURE_INVALIDATED)?;
            let mut branch = own.unwrap_or(Branch { capture: theirs.capture, after: Vec::new() });
            if branch.capture != theirs.capture {
                invalidate(inner, branch.capture);
                invalidate(inner, theirs.capture);
                return Err(CuResult::STREAM_CAPTURE_MERGE);
            }
            let legacy = inner.streams.get(&target.key).is_some_and(|s| s.order == Order::Legacy);
            ensure(!legacy, CuResult::STREAM_CAPTURE_IMPLICIT)?;
            let mut after = branch.after.clone();
            for node in theirs.after {
                if !after.contains(&node) {
                    after.push(node);
                }
            }
            branch.after.clear();
            advance(inner, target.key, &branch, after);
            Ok(true)
        }
    }
}

/// Ends the captures in a context that ends.
pub(crate) fn drop_context(inner: &mut Inner, context: u64) {
    let gone: Vec<u64> =
        inner.captures.iter().filter(|(_, c)| c.context == context).map(|(&k, _)| k).collect();
    for capture in gone {
        if let Some(found) = inner.captures.remove(&capture) {
            graph::remove(inner, found.graph);
        }
        leave(inner, capture);
    }
}

/// Removes every stream and event from a capture.
fn leave(inner: &mut Inner, capture: u64) {
    for stream in inner.streams.values_mut() {
        if stream.capture.as_ref().is_some_and(|b| b.capture == capture) {
            stream.capture = None;
        }
    }
}

/// The form of CUDA 10.0 has no mode argument and means global.
pub(crate) extern "C" fn begin_v1<const P: bool>(stream: cuda::Stream) -> CuResult {
    begin::<P>(stream, CAPTURE_MODE_GLOBAL)
}

pub(crate) extern "C" fn begin<const P: bool>(stream: cuda::Stream, mode: c_uint) -> CuResult {
    api(|| {
        with(|driver, inner| {
            let target = stream::target::<P>(driver, inner, stream)?;
            ensure(mode <= CAPTURE_MODE_RELAXED, CuResult::INVALID_VALUE)?;
            let found = inner.streams.get(&target.key).ok_or(CuResult::INVALID_HANDLE)?;
            let legacy = found.order == Order::Legacy;
            ensure(!legacy, CuResult::STREAM_CAPTURE_UNSUPPORTED)?;
            ensure(found.capture.is_none(), CuResult::ILLEGAL_STATE)?;
            let graph = inner.new_handle();
            inner.graphs.insert(graph, Graph::default());
            let capture = inner.new_handle();
            inner.captures.insert(
                capture,
                Capture {
                    origin: target.key,
                    context: target.context,
                    mode,
                    thread: thread::id(),
                    graph,
                    invalid: false,
                    tips: Vec::new(),
                },
            );
            if let Some(found) = inner.streams.get_mut(&target.key) {
                found.capture = Some(Branch { capture, after: Vec::new() });
            }
            Ok(())
        })
    })
}

pub(crate) extern "C" fn end<const P: bool>(
    stream: cuda::Stream,
    graph: Out<cuda::Graph>,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            let target = stream::target::<P>(driver, inner, stream)?;
            graph.required()?.set(core::ptr::null_mut());
            let branch = inner.streams.get(&target.key).and_then(|s| s.capture.clone());
            let branch = branch.ok_or(CuResult::ILLEGAL_STATE)?;
            let capture = inner.captures.get(&branch.capture).ok_or(CuResult::ILLEGAL_STATE)?;
            ensure(capture.origin == target.key, CuResult::STREAM_CAPTURE_UNMATCHED)?;
            let same_thread =
                capture.mode == CAPTURE_MODE_RELAXED || capture.thread == thread::id();
            ensure(same_thread, CuResult::STREAM_CAPTURE_WRONG_THREAD)?;
            let Some(capture) = inner.captures.remove(&branch.capture) else {
                return Err(CuResult::ILLEGAL_STATE);
            };
            leave(inner, branch.capture);
            let joined = graph::reaches_all(inner, capture.graph, &branch.after, &capture.tips);
            if capture.invalid || !joined {
                graph::remove(inner, capture.graph);
                return Err(if capture.invalid {
                    CuResult::STREAM_CAPTURE_INVALIDATED
                } else {
                    CuResult::STREAM_CAPTURE_UNJOINED
                });
            }
            graph.set(handle(capture.graph));
            Ok(())
        })
    })
}

fn status_of(inner: &mut Inner, target: Target) -> Api<(c_uint, Option<(Branch, u64)>)> {
    legacy_use(inner, target, false)?;
    let branch = inner.streams.get(&target.key).and_then(|s| s.capture.clone());
    Ok(match branch {
        None => (cuda::CAPTURE_STATUS_NONE, None),
        Some(branch) => match inner.captures.get(&branch.capture) {
            Some(capture) if !capture.invalid => {
                let graph = capture.graph;
                (ACTIVE, Some((branch, graph)))
            }
            _ => (INVALIDATED, None),
        },
    })
}

pub(crate) extern "C" fn is_capturing<const P: bool>(
    stream: cuda::Stream,
    status: Out<c_uint>,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            status.required()?;
            let target = stream::target::<P>(driver, inner, stream)?;
            status.set(status_of(inner, target)?.0);
            Ok(())
        })
    })
}

pub(crate) extern "C" fn info_v1<const P: bool>(
    stream: cuda::Stream,
    status: Out<c_uint>,
    id: Out<u64>,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            status.required()?;
            let target = stream::target::<P>(driver, inner, stream)?;
            let (now, details) = status_of(inner, target)?;
            status.set(now);
            if let Some((branch, _)) = details {
                id.set(branch.capture);
            }
            Ok(())
        })
    })
}

/// The list of dependencies is not stored in a form to which a pointer could be returned, so a query for it is refused.
/// A query for the graph is not.
pub(crate) extern "C" fn info_v2<const P: bool>(
    stream: cuda::Stream,
    status: Out<c_uint>,
    id: Out<u64>,
    graph: Out<cuda::Graph>,
    dependencies: Out<*const c_void>,
    count: Out<usize>,
) -> CuResult {
    info_v3::<P>(stream, status, id, graph, dependencies, Out::null(), count)
}

pub(crate) extern "C" fn info_v3<const P: bool>(
    stream: cuda::Stream,
    status: Out<c_uint>,
    id: Out<u64>,
    graph: Out<cuda::Graph>,
    dependencies: Out<*const c_void>,
    edges: Out<*const c_void>,
    count: Out<usize>,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            status.required()?;
            let target = stream::target::<P>(driver, inner, stream)?;
            let (now, details) = status_of(inner, target)?;
            if let Some((branch, in_graph)) = details {
                ensure(dependencies.is_null(), CuResult::NOT_SUPPORTED)?;
                id.set(branch.capture);
                graph.set(handle(in_graph));
                count.set(branch.after.len());
                edges.set(core::ptr::null());
            }
            status.set(now);
            Ok(())
        })
    })
}

pub(crate) extern "C" fn exchange_mode(mode: Out<c_uint>) -> CuResult {
    api(|| {
        driver()?;
        let wanted = mode.get()?;
        let known = [CAPTURE_MODE_GLOBAL, CAPTURE_MODE_THREAD_LOCAL, CAPTURE_MODE_RELAXED];
        ensure(known.contains(&wanted), CuResult::INVALID_VALUE)?;
        mode.set(thread::exchange_mode(wanted));
        Ok(())
    })
}
