//! Events.

use core::ffi::c_uint;

use driver::cuda::{self, CuResult, EVENT_DISABLE_TIMING};
use fake_node::layout::EventId;
use fake_node::queue::EventState;

use crate::capture::{self, Branch};
use crate::ffi::{Api, Out, api, ensure, handle};
use crate::state::{Inner, driver, queue_error, with, with_context};
use crate::stream;

/// `CU_EVENT_INTERPROCESS`
const INTERPROCESS: c_uint = 4;
/// `CU_EVENT_RECORD_EXTERNAL`
const RECORD_EXTERNAL: c_uint = 1;

/// An event.
pub(crate) struct Event {
    pub(crate) context: u64,
    pub(crate) id: EventId,
    pub(crate) timing: bool,
    /// The position of its last record, if that was captured.
    pub(crate) captured: Option<Branch>,
}

pub(crate) extern "C" fn create(event: Out<cuda::Event>, flags: c_uint) -> CuResult {
    api(|| {
        with_context(|driver, inner, context| {
            event.required()?;
            ensure(flags & !7 == 0, CuResult::INVALID_VALUE)?;
            let timing = flags & EVENT_DISABLE_TIMING == 0;
            ensure(flags & INTERPROCESS == 0 || !timing, CuResult::INVALID_VALUE)?;
            let id = driver.node.lock().create_event(driver.process).map_err(queue_error)?;
            let key = inner.new_handle();
            inner.events.insert(key, Event { context, id, timing, captured: None });
            event.set(handle(key));
            Ok(())
        })
    })
}

pub(crate) extern "C" fn destroy(event: cuda::Event) -> CuResult {
    api(|| {
        with(|driver, inner| {
            let found = inner.events.remove(&(event as u64)).ok_or(CuResult::INVALID_HANDLE)?;
            let _ = driver.node.lock().destroy_event(found.id);
            Ok(())
        })
    })
}

pub(crate) extern "C" fn record<const P: bool>(
    event: cuda::Event,
    stream: cuda::Stream,
) -> CuResult {
    record_with_flags::<P>(event, stream, 0)
}

pub(crate) extern "C" fn record_with_flags<const P: bool>(
    event: cuda::Event,
    stream: cuda::Stream,
    flags: c_uint,
) -> CuResult {
    api(|| {
        let (driver, stream, id) = {
            let driver = driver()?;
            let inner = &mut *driver.inner();
            let target = stream::target::<P>(driver, inner, stream)?;
            ensure(flags & !RECORD_EXTERNAL == 0, CuResult::INVALID_VALUE)?;
            let found = inner.events.get(&(event as u64)).ok_or(CuResult::INVALID_HANDLE)?;
            ensure(found.context == target.context, CuResult::INVALID_HANDLE)?;
            let id = found.id;
            let branch = capture::enter(inner, target)?;
            if branch.is_some() && flags == RECORD_EXTERNAL {
                // An event record node, which is not simulated.
                return Err(CuResult::NOT_SUPPORTED);
            }
            let captured = branch.is_some();
            if let Some(found) = inner.events.get_mut(&(event as u64)) {
                found.captured = branch;
            }
            if captured {
                return Ok(());
            }
            (driver, target.id, id)
        };
        driver.node.retry_while_full(stream, |state| state.record(stream, id)).map_err(queue_error)
    })
}

/// The event's id and whether it has timing, for a call that checks whether it has completed.
fn look(inner: &mut Inner, event: cuda::Event) -> Api<(EventId, bool)> {
    let key = event as u64;
    let found = inner.events.get(&key).ok_or(CuResult::INVALID_HANDLE)?;
    let (id, timing) = (found.id, found.timing);
    if let Some(branch) = &found.captured {
        let capture = branch.capture;
        capture::invalidate(inner, capture);
        return Err(CuResult::CAPTURED_EVENT);
    }
    capture::unsafe_call(inner)?;
    Ok((id, timing))
}

pub(crate) extern "C" fn query(event: cuda::Event) -> CuResult {
    api(|| {
        with(|driver, inner| {
            let (id, _) = look(inner, event)?;
            match driver.node.lock().event_state(id).map_err(queue_error)? {
                EventState::Pending => Err(CuResult::NOT_READY),
                EventState::Fresh | EventState::Reached(_) => Ok(()),
            }
        })
    })
}

pub(crate) extern "C" fn synchronize(event: cuda::Event) -> CuResult {
    api(|| {
        let target = with(|driver, inner| {
            let (id, _) = look(inner, event)?;
            let node = driver.node.lock();
            match node.event_state(id).map_err(queue_error)? {
                EventState::Pending => node.event_position(id).map(Some).map_err(queue_error),
                EventState::Fresh | EventState::Reached(_) => Ok(None),
            }
        })?;
        stream::wait_all(target.as_slice())
    })
}

pub(crate) extern "C" fn elapsed(
    milliseconds: Out<f32>,
    start: cuda::Event,
    end: cuda::Event,
) -> CuResult {
    api(|| {
        with(|driver, inner| {
            milliseconds.required()?;
            let (start, timed_start) = look(inner, start)?;
            let (end, timed_end) = look(inner, end)?;
            ensure(timed_start && timed_end, CuResult::INVALID_HANDLE)?;
            let node = driver.node.lock();
            let states = (
                node.event_state(start).map_err(queue_error)?,
                node.event_state(end).map_err(queue_error)?,
            );
            match states {
                (EventState::Fresh, _) | (_, EventState::Fresh) => Err(CuResult::INVALID_HANDLE),
                (EventState::Reached(from), EventState::Reached(to)) => {
                    let ns = to as f64 - from as f64;
                    milliseconds.set((ns / 1e6) as f32);
                    Ok(())
                }
                _ => Err(CuResult::NOT_READY),
            }
        })
    })
}
