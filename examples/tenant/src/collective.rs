//! `tenant collective`: data-parallel training as the devices see it. In each step every member runs kernels of its
//! own, and then a kernel that waits on the device for all other members'.
//!
//! The members are several devices of this process, or several processes with one device each.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::calibrate::{self, Calibrated};
use crate::cli::Collective;
use crate::driver::{
    Context, DriverError, Event, Kernels, LaunchCall, Page, Part, SLOTS, Spin, Stream, Trace,
};
use crate::{Failure, report};

/// The result line.
#[derive(Serialize)]
struct Outcome {
    /// Members in all processes.
    members: u64,
    own: usize,
    steps: u64,
    /// From the first launch to the last completion, on the host's clock.
    seconds: f64,
    /// Steps per second.
    rate: f64,
    /// Checksum of the bytes that this process's members wrote to their devices, step by step: equal for all runs with
    /// equal steps.
    checksum: String,
    driver: i32,
}

/// A member in this process.
struct Member<'c> {
    context: &'c Context,
    kernels: Kernels<'c>,
    spin: Spin,
    /// The collective's own work.
    reduce: Spin,
    trace: Trace<'c>,
    part: Part,
}

impl<'c> Member<'c> {
    fn new(
        options: &Collective,
        context: &'c Context,
        page: &Page,
        rank: u64,
        members: u64,
    ) -> Result<Self, DriverError> {
        context.make_current()?;
        let kernels = Kernels::load(context)?;
        let Calibrated { spin, .. } =
            calibrate::prepare(context, &kernels, options.kernel_us, options.iterations)?;
        let part = options.collective_us / options.kernel_us;
        let scaled = |whole: u64| ((whole as f64 * part).round() as u64).max(1);
        let reduce = Spin { ns: scaled(spin.ns), iterations: scaled(spin.iterations) };
        let slots = page.on_device(context)?;
        let part = Part { slots, rank, step: 0, group: 0, members };
        Ok(Self { context, kernels, spin, reduce, trace: Trace::new(context)?, part })
    }

    /// Launches the collective with this number.
    fn collective(
        &self,
        options: &Collective,
        number: u64,
        part: &mut Part,
        stream: &Stream<'_>,
    ) -> Result<(), DriverError> {
        part.step = number;
        part.group = options.group.wrapping_shl(32).wrapping_add(number);
        self.kernels.launch_collective(self.reduce, part, stream)
    }

    /// Runs the steps; returns the start, the end, and the bytes written.
    fn run(
        &self,
        options: &Collective,
        barrier: &Barrier,
    ) -> Result<(Instant, Instant, Vec<u8>), DriverError> {
        let made = self.context.make_current().and_then(|()| Stream::create(self.context));
        // Every member reaches the barrier, so that none waits for one that failed.
        barrier.wait();
        let (stream, start) = (made?, Instant::now());
        let beside = if options.buckets > 0 { Some(Beside::new(self.context)?) } else { None };
        let mut part = self.part;
        for step in 1..=options.steps {
            if let Some(beside) = &beside {
                beside.step(self, options, step, &mut part, &stream)?;
            } else {
                for _ in 0..options.kernels {
                    self.kernels.launch_spin(LaunchCall::Kernel, self.spin, &stream)?;
                }
                self.collective(options, step, &mut part, &stream)?;
            }
            let alone = if part.rank == 0 { options.alone_on_first } else { 0 };
            for number in 1..=alone {
                // A group that no other member uses.
                let group = part.group | number << 24;
                let own = Part { group, members: 1, ..part };
                self.kernels.launch_collective(self.reduce, &own, &stream)?;
            }
            let value = step.wrapping_mul(31).wrapping_add(part.rank);
            self.trace.write(step, value as u8, &stream)?;
            if step % options.wait_every == 0 {
                stream.synchronize()?;
                std::thread::sleep(Duration::from_micros(options.rest_us));
            }
        }
        stream.synchronize()?;
        Ok((start, Instant::now(), self.trace.read()?))
    }
}

/// A stream for collectives, besides the one for kernels.
struct Beside<'c> {
    stream: Stream<'c>,
    /// Recorded after the kernels whose results the next collective needs. `done` is recorded after the last collective
    /// of a step.
    ready: Event<'c>,
    done: Event<'c>,
}

impl<'c> Beside<'c> {
    fn new(context: &'c Context) -> Result<Self, DriverError> {
        let stream = Stream::create(context)?;
        Ok(Self { stream, ready: Event::create(context)?, done: Event::create(context)? })
    }

    /// Each collective waits for its part of the kernels, and the next step waits for all collectives.
    fn step(
        &self,
        member: &Member<'_>,
        options: &Collective,
        step: u64,
        part: &mut Part,
        kernels: &Stream<'_>,
    ) -> Result<(), DriverError> {
        let up_to = |bucket: u64| options.kernels * bucket / options.buckets;
        for bucket in 0..options.buckets {
            for _ in up_to(bucket)..up_to(bucket + 1) {
                member.kernels.launch_spin(LaunchCall::Kernel, member.spin, kernels)?;
            }
            self.ready.record(kernels)?;
            self.ready.hold_up(&self.stream)?;
            let number = (step - 1) * options.buckets + bucket + 1;
            member.collective(options, number, part, &self.stream)?;
        }
        self.done.record(&self.stream)?;
        self.done.hold_up(kernels)
    }
}

pub(crate) fn run(options: &Collective) -> Result<(), Failure> {
    let first = options.rank.unwrap_or(0);
    let own = if options.rank.is_some() { 1 } else { options.devices };
    let members = options.ranks.unwrap_or(u64::from(own));
    if first + u64::from(own) > members || members > SLOTS {
        return Err(Failure::Ranks { rank: first, ranks: members, most: SLOTS });
    }
    let device = options.target.device;
    let contexts = (device..device.saturating_add(own))
        .map(|index| Context::open(index, options.target.ptsz))
        .collect::<Result<Vec<_>, _>>()?;
    let Some(one) = contexts.first() else { return Ok(()) };
    one.make_current()?;
    let page = Page::new(one, options.page.as_deref())?;
    let all = (contexts.iter().zip(first..))
        .map(|(context, rank)| Member::new(options, context, &page, rank, members))
        .collect::<Result<Vec<_>, _>>()?;
    let barrier = Barrier::new(all.len());
    let results = std::thread::scope(|scope| {
        let barrier = &barrier;
        let threads: Vec<_> =
            all.iter().map(|member| scope.spawn(move || member.run(options, barrier))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect::<Result<Vec<_>, DriverError>>()
    })?;
    let start = results.iter().map(|result| result.0).min();
    let end = results.iter().map(|result| result.1).max();
    let seconds = end.zip(start).map_or(0.0, |(end, start)| (end - start).as_secs_f64());
    let bytes = results.iter().flat_map(|result| &result.2);
    report::line(&Outcome {
        members,
        own: results.len(),
        steps: options.steps,
        seconds,
        rate: options.steps as f64 / seconds.max(f64::MIN_POSITIVE),
        checksum: format!("{:016x}", checksum(bytes)),
        driver: one.driver_version()?,
    })
}

/// FNV-1a hash.
fn checksum<'b>(bytes: impl Iterator<Item = &'b u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}
