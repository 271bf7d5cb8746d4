//! A stream that is kept busy.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use super::plan::{GRAPH_KERNELS, Plan};
use super::timeline::Timeline;
use crate::cli::Pattern;
use crate::driver::{Context, DriverError, Event, Graph, Kernels, LaunchCall, Spin, Stream};

/// The content of one launch.
enum Unit<'c> {
    Kernel(LaunchCall),
    Graph(Graph<'c>),
}

/// A stream with a bounded number of launches in flight. An event is recorded after each group of launches; if too many
/// groups are outstanding, the oldest event is waited for.
pub(super) struct Lane<'c> {
    context: &'c Context,
    kernels_to_launch: &'c Kernels<'c>,
    spin: Spin,
    plan: Plan,
    unit: Unit<'c>,
    in_flight: VecDeque<Event<'c>>,
    spare: Vec<Event<'c>>,
    /// The latest event that was reached, where the next gap begins.
    last: Event<'c>,
    /// Completed kernels.
    pub(super) kernels: u64,
    /// Times of their completion.
    pub(super) timeline: Timeline,
    // The last field: dropped after graph and events.
    stream: Stream<'c>,
}

impl<'c> Lane<'c> {
    pub(super) fn new(
        context: &'c Context,
        kernels: &'c Kernels<'c>,
        pattern: Pattern,
        ptsz: bool,
        spin: Spin,
        plan: Plan,
        timeline: Timeline,
    ) -> Result<Self, DriverError> {
        let stream = match super::uses_default_stream(pattern, ptsz) {
            true => Stream::default_of(context),
            false => Stream::create(context)?,
        };
        let unit = match pattern {
            Pattern::Graph => Unit::Graph(Graph::capture(context, &stream, || {
                (0..GRAPH_KERNELS)
                    .try_for_each(|_| kernels.launch_spin(LaunchCall::Kernel, spin, &stream))
            })?),
            Pattern::Ex => Unit::Kernel(LaunchCall::Ex),
            Pattern::Coop => Unit::Kernel(LaunchCall::Cooperative),
            Pattern::Kernel | Pattern::Multistream | Pattern::Threads => {
                Unit::Kernel(LaunchCall::Kernel)
            }
        };
        Ok(Self {
            context,
            kernels_to_launch: kernels,
            spin,
            plan,
            unit,
            in_flight: VecDeque::new(),
            spare: Vec::new(),
            last: Event::create(context)?,
            kernels: 0,
            timeline,
            stream,
        })
    }

    /// Sets the start of the first gap, and waits until the device has reached it.
    pub(super) fn mark_start(&mut self) -> Result<(), DriverError> {
        self.last.record(&self.stream)?;
        self.last.synchronize()
    }

    /// Continues after an intended pause, which is no gap between kernels. Nothing is in flight.
    pub(super) fn resume(&mut self) -> Result<(), DriverError> {
        let event = Event::create(self.context)?;
        event.record(&self.stream)?;
        event.synchronize()?;
        self.timeline.skip(event.ms_since(&self.last)?);
        self.last = event;
        Ok(())
    }

    /// Launches one group, records completions, and waits if too much is outstanding.
    pub(super) fn step(&mut self, completed: &AtomicU64) -> Result<(), DriverError> {
        for _ in 0..self.plan.launches_per_group {
            match &self.unit {
                Unit::Kernel(call) => {
                    self.kernels_to_launch.launch_spin(*call, self.spin, &self.stream)?;
                }
                Unit::Graph(graph) => graph.launch(&self.stream)?,
            }
        }
        let event = match self.spare.pop() {
            Some(event) => event,
            None => Event::create(self.context)?,
        };
        event.record(&self.stream)?;
        self.in_flight.push_back(event);
        while let Some(oldest) = self.in_flight.front() {
            if self.in_flight.len() >= self.plan.groups_ahead {
                oldest.synchronize()?;
            } else if !oldest.is_done()? {
                break;
            }
            self.retire(completed)?;
        }
        Ok(())
    }

    /// Waits for all outstanding groups.
    pub(super) fn drain(&mut self, completed: &AtomicU64) -> Result<(), DriverError> {
        while let Some(oldest) = self.in_flight.front() {
            oldest.synchronize()?;
            self.retire(completed)?;
        }
        Ok(())
    }

    /// Counts the oldest group, which is complete.
    fn retire(&mut self, completed: &AtomicU64) -> Result<(), DriverError> {
        let Some(event) = self.in_flight.pop_front() else { return Ok(()) };
        let kernels = self.plan.kernels_per_group();
        self.timeline.completed(event.ms_since(&self.last)?, kernels);
        self.spare.push(std::mem::replace(&mut self.last, event));
        self.kernels += kernels;
        completed.fetch_add(kernels, Ordering::Relaxed);
        Ok(())
    }
}
