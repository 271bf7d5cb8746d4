//! `sluice top`: the devices and their sessions, live or from a recording.
//!
//! * `model`: what is known and shown, and how keys change it; pure;
//! * `draw`: lines of text, and the whole terminal; pure;
//! * `source`: samples, of the node or of a recording;
//! * `terminal`: the terminal, and what carries changes out;
//! * `picture`: a terminal as SVG.

mod draw;
mod model;
#[cfg(test)]
mod model_tests;
mod picture;
mod source;
mod terminal;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::Path;

use ratatui::backend::TestBackend;
use ratatui::text::Line;
use ratatui::{Terminal, buffer::Buffer};

use super::cli::TopArgs;
use super::record::file::{self, Recorder};
use super::sample::Sampler;
use super::status::json;
use super::{Error, print};
use draw::Theme;
use model::{Model, Place};
use source::Source;

/// The width of output that is no terminal, unless `COLUMNS` says another.
const WIDTH: usize = 100;
/// The least and the most that `COLUMNS` and `LINES` may say.
const WIDTHS: std::ops::RangeInclusive<usize> = 40..=1000;
/// The height of a picture, unless `LINES` says another.
const HEIGHT: usize = 24;

/// Shows the node until a key ends it; once where there is no terminal.
///
/// # Errors
/// [`Error::Record`] for a recording; as for `sluice status` otherwise.
pub(crate) fn run(arguments: &TopArgs) -> Result<u8, Error> {
    let theme = Theme { color: has_color(std::env::var_os("NO_COLOR")) };
    let source = source(arguments)?;
    let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    let is_dumb = std::env::var_os("TERM").is_none_or(|name| name == "dumb" || name.is_empty());
    let wants_one = arguments.once || arguments.json || arguments.picture.is_some();
    if !wants_one && is_terminal && !is_dumb {
        return terminal::run(arguments, theme, source);
    }
    let model = once(arguments, source)?;
    if arguments.json {
        return print(&json(&model.sample)?).map(|_| 0);
    }
    if let Some(path) = &arguments.picture {
        let (width, height) = (width(), setting("LINES").unwrap_or(HEIGHT));
        let buffer = drawn(&model, Theme { color: true }, width, height);
        picture::write(path, &buffer)?;
        return Ok(0);
    }
    let lines = draw::page(&model, theme, width());
    print(&lines.iter().map(text).collect::<String>()).map(|_| 0)
}

/// What `sluice top --once` prints, beside a daemon.
///
/// # Errors
/// As for `sluice status`.
pub(crate) fn lines(daemon: Option<&Path>, width: usize) -> Result<Vec<String>, Error> {
    let mut model = Model::new(None);
    model.take(Sampler::new(daemon.map(Path::as_os_str)).take()?);
    let lines = draw::page(&model, Theme { color: false }, width);
    Ok(lines.iter().map(|line| text(line).trim_end().to_owned()).collect())
}

/// Where the samples come from.
fn source(arguments: &TopArgs) -> Result<Source, Error> {
    if let Some(path) = &arguments.replay {
        return Ok(Source::Recording(file::read(path)?));
    }
    let recorder = arguments.record.as_deref().map(Recorder::create).transpose()?;
    let sampler = Sampler::new(arguments.daemon.as_deref());
    Ok(Source::Live { sampler, recorder, interval: arguments.interval })
}

/// The model after the whole recording, or one look at the node.
fn once(arguments: &TopArgs, source: Source) -> Result<Model, Error> {
    let mut model = Model::new(arguments.daemon.clone());
    match source {
        Source::Recording(samples) => {
            let of = samples.len();
            model.place = Some(Place { at: of.saturating_sub(1), of });
            samples.into_iter().for_each(|sample| model.take(sample));
        }
        Source::Live { sampler, mut recorder, .. } => {
            let sample = sampler.take()?;
            if let Some(recorder) = &mut recorder {
                recorder.write(&sample)?;
            }
            model.take(sample);
        }
    }
    if let Some(session) = &arguments.session {
        model.open_session(session).map_err(Error::Usage)?;
    }
    Ok(model)
}

/// A terminal of this size, as it would show the model.
fn drawn(model: &Model, theme: Theme, width: usize, height: usize) -> Buffer {
    let size = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
    let mut terminal = match Terminal::new(TestBackend::new(size(width), size(height))) {
        Ok(terminal) => terminal,
        Err(never) => match never {},
    };
    match terminal.draw(|frame| draw::frame(model, theme, frame)) {
        Ok(done) => done.buffer.clone(),
        Err(never) => match never {},
    }
}

/// <https://no-color.org>: any value but an empty one means no colours.
fn has_color(no_color: Option<OsString>) -> bool {
    no_color.is_none_or(|value| value.is_empty())
}

fn width() -> usize {
    let of_terminal = || {
        let size = ratatui::crossterm::terminal::size().ok()?;
        io::stdout().is_terminal().then_some(usize::from(size.0))
    };
    setting("COLUMNS").or_else(of_terminal).unwrap_or(WIDTH)
}

/// A size from the environment.
fn setting(name: &str) -> Option<usize> {
    let number = std::env::var(name).ok()?.parse().ok()?;
    WIDTHS
        .contains(&number)
        .then_some(number)
        .or((name == "LINES" && number >= 10).then_some(number))
}

/// A line without its styles.
fn text(line: &Line<'_>) -> String {
    let text: String = line.spans.iter().map(|span| span.content.as_ref()).collect();
    text.trim_end().to_owned() + "\n"
}
