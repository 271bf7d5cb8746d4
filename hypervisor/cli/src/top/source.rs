//! Samples for `sluice top`, from a thread of their own: of the node, or of a recording.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread::sleep;
use std::time::{Duration, Instant};

use protocol::record::Sample;

use super::model::{Input, Place};
use crate::record::after;
use crate::record::file::Recorder;
use crate::sample::Sampler;

/// The longest pause of a recording that is played as it was.
const LONGEST: Duration = Duration::from_secs(5);
/// How many samples before a place are shown as its history.
const HISTORY: usize = 600;

/// Where samples come from.
pub(super) enum Source {
    /// The node.
    Live {
        /// Who looks at it.
        sampler: Sampler,
        /// Where samples are written to.
        recorder: Option<Recorder>,
        /// How often.
        interval: Duration,
    },
    /// A recording.
    Recording(Vec<Sample>),
}

/// What is asked of a recording.
#[derive(Clone, Copy, Debug)]
pub(super) enum Control {
    /// To go on, or to stop.
    Play(bool),
    /// To go so many samples on, or back.
    Seek(i64),
}

/// Gives samples until nobody takes them any more.
pub(super) fn give(source: Source, inputs: &Sender<Input>, controls: &Receiver<Control>) {
    match source {
        Source::Live { sampler, recorder, interval } => live(&sampler, recorder, interval, inputs),
        Source::Recording(samples) => play(&samples, inputs, controls),
    }
}

fn live(
    sampler: &Sampler,
    mut recorder: Option<Recorder>,
    interval: Duration,
    inputs: &Sender<Input>,
) {
    let mut next = Instant::now();
    loop {
        let sample = sampler.take();
        let recorded = match (&sample, &mut recorder) {
            (Ok(sample), Some(recorder)) => recorder.write(sample),
            _ => Ok(()),
        };
        let input = match sample {
            Ok(sample) => Input::Sample(Box::new(sample), None),
            Err(error) => Input::NoSample(error.to_string()),
        };
        if inputs.send(input).is_err() {
            return;
        }
        if let Err(error) = recorded {
            recorder = None;
            let _ = inputs.send(Input::NoSample(format!("{error}; recording has stopped")));
        }
        next = after(next, interval);
        sleep(next.saturating_duration_since(Instant::now()));
    }
}

fn play(samples: &[Sample], inputs: &Sender<Input>, controls: &Receiver<Control>) {
    let of = samples.len();
    let show = |at: usize| {
        let Some(sample) = samples.get(at) else { return true };
        inputs.send(Input::Sample(Box::new(sample.clone()), Some(Place { at, of }))).is_ok()
    };
    let (mut at, mut plays) = (0, true);
    if !show(at) {
        return;
    }
    loop {
        let control = match pause(samples, at).filter(|_| plays) {
            Some(pause) => controls.recv_timeout(pause),
            None => controls.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let taken = match control {
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                at += 1;
                show(at)
            }
            Ok(Control::Play(on)) => {
                plays = on;
                true
            }
            Ok(Control::Seek(by)) => {
                at = sought(at, by, of);
                let before = at.saturating_sub(HISTORY)..=at;
                inputs.send(Input::Rewound).is_ok() && before.into_iter().all(show)
            }
        };
        if !taken {
            return;
        }
    }
}

/// How long until the sample behind this one; `None`: there is none.
fn pause(samples: &[Sample], at: usize) -> Option<Duration> {
    let (this, next) = (samples.get(at)?, samples.get(at + 1)?);
    let between = Duration::from_micros(next.clock_us.saturating_sub(this.clock_us));
    Some(between.min(LONGEST))
}

fn sought(at: usize, by: i64, of: usize) -> usize {
    let by_size = usize::try_from(by.unsigned_abs()).unwrap_or(usize::MAX);
    let to = if by < 0 { at.saturating_sub(by_size) } else { at.saturating_add(by_size) };
    to.min(of.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::tests::sample;
    use std::sync::mpsc::channel;

    #[test]
    fn a_recording_is_played_stopped_and_sought_in() {
        let samples: Vec<Sample> = [1, 2, 3, 900].map(|second| sample(second, Vec::new())).into();
        assert_eq!(pause(&samples, 0), Some(Duration::from_secs(1)));
        assert_eq!(pause(&samples, 2), Some(LONGEST));
        assert_eq!(pause(&samples, 3), None);
        assert_eq!([sought(1, -5, 4), sought(1, 1, 4), sought(1, 9, 4)], [0, 2, 3]);
        let (to, inputs) = channel();
        let (control, controls) = channel();
        for one in [Control::Play(false), Control::Seek(2), Control::Seek(-1)] {
            control.send(one).unwrap();
        }
        drop(control);
        play(&samples, &to, &controls);
        drop(to);
        let seen: Vec<String> = inputs
            .iter()
            .map(|input| match input {
                Input::Sample(_, Some(place)) => place.at.to_string(),
                Input::Rewound => "again".to_owned(),
                other => format!("{other:?}"),
            })
            .collect();
        assert_eq!(seen, ["0", "again", "0", "1", "2", "again", "0", "1"]);
    }
}
