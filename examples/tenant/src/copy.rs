//! `tenant copy`: copies or fills back to back, for a given time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::Serialize;

use crate::cli::Copy;
use crate::driver::{Context, Copies, DriverError, Event, Stream};
use crate::{Failure, report};

/// Most bytes between two events, and groups in flight. Short copies are not slowed down by an event each, and little
/// is outstanding.
const GROUP_BYTES: u64 = 32 << 20;
const LARGEST_GROUP: u64 = 16;
const GROUPS_AHEAD: usize = 16;
/// Smallest 3-D copy of whole words, over all rows, in bytes.
const LEAST_BYTES: u64 = 64;

/// The result line.
#[derive(Serialize)]
struct Outcome {
    api: String,
    bytes: u64,
    /// Copies that the device completed.
    copies: u64,
    /// From the first call to the last completion, on the host's clock.
    seconds: f64,
    /// Completed copies per second.
    rate: f64,
    device: String,
    uuid: String,
    driver: i32,
}

pub(crate) fn run(options: &Copy) -> Result<(), Failure> {
    let api = options.api.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned());
    // Whole rows, layers and words.
    let bytes = options.bytes - options.bytes % LEAST_BYTES;
    if bytes == 0 {
        return Err(Failure::Bytes { bytes: options.bytes, least: LEAST_BYTES });
    }
    let context = Context::open(options.target.device, options.target.ptsz)?;
    let size = usize::try_from(bytes).unwrap_or(usize::MAX);
    let copies = Copies::new(&context, options.api, size)?;
    let stream = Stream::default_of(&context);
    copies.issue(&stream)?;
    stream.synchronize()?;

    let length = Duration::from_secs_f64(options.seconds);
    let start = Instant::now();
    let completed = copy_for(length, &context, &copies, &stream, group_of(bytes))?;
    let seconds = start.elapsed().as_secs_f64();
    report::line(&Outcome {
        api,
        bytes,
        copies: completed,
        seconds,
        rate: if seconds > 0.0 { completed as f64 / seconds } else { 0.0 },
        device: context.device_name()?,
        uuid: context.device_uuid()?,
        driver: context.driver_version()?,
    })
}

/// Number of copies between two events.
fn group_of(bytes: u64) -> u64 {
    (GROUP_BYTES / bytes).clamp(1, LARGEST_GROUP)
}

/// Issues copies in groups for `length`, then waits for the outstanding ones. Returns the number of copies.
fn copy_for(
    length: Duration,
    context: &Context,
    copies: &Copies<'_>,
    stream: &Stream<'_>,
    group: u64,
) -> Result<u64, DriverError> {
    let start = Instant::now();
    let (mut in_flight, mut issued) = (VecDeque::new(), 0);
    while start.elapsed() < length {
        let event = if in_flight.len() < GROUPS_AHEAD {
            Event::create(context)?
        } else {
            match in_flight.pop_front() {
                Some(oldest) => {
                    Event::synchronize(&oldest)?;
                    oldest
                }
                None => Event::create(context)?,
            }
        };
        for _ in 0..group {
            copies.issue(stream)?;
        }
        issued += group;
        event.record(stream)?;
        in_flight.push_back(event);
    }
    for event in in_flight {
        event.synchronize()?;
    }
    Ok(issued)
}

#[cfg(test)]
mod tests {
    use super::group_of;

    #[test]
    fn large_copies_have_an_event_each() {
        assert_eq!(group_of(64), 16);
        assert_eq!(group_of(4 << 20), 8);
        assert_eq!(group_of(32 << 20), 1);
        assert_eq!(group_of(1 << 30), 1);
    }
}
