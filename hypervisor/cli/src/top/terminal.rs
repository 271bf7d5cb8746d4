//! The terminal: draws the model, gives it keys, and carries out what it says.
//!
//! Samples, keys and signals come from threads that sleep until there is something. Nothing is drawn without one.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::spawn;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use super::draw::{self, Theme};
use super::model::{Action, Change, Input, Model};
use super::source::{self, Control, Source};
use crate::cli::TopArgs;
use crate::record::ends;
use crate::{Error, freeze, limit};

/// Shows the model until it is asked to end.
pub(super) fn run(arguments: &TopArgs, theme: Theme, source: Source) -> Result<u8, Error> {
    let (inputs, receiver) = channel();
    let (control, controls) = channel();
    let signals = ends()?;
    let mut terminal =
        ratatui::try_init().map_err(|error| Error::system("cannot use the terminal", error))?;
    let of_source = inputs.clone();
    spawn(move || source::give(source, &of_source, &controls));
    let of_keys = inputs.clone();
    spawn(move || keys(&of_keys));
    let of_signals = inputs.clone();
    spawn(move || while signals.recv().is_ok() && of_signals.send(Input::End).is_ok() {});
    let mut model = Model::new(arguments.daemon.clone());
    model.wanted.clone_from(&arguments.session);
    let ended = show(&mut terminal, &mut model, theme, &receiver, &inputs, &control);
    ratatui::restore();
    ended.map(|()| 0)
}

fn show(
    terminal: &mut DefaultTerminal,
    model: &mut Model,
    theme: Theme,
    receiver: &Receiver<Input>,
    inputs: &Sender<Input>,
    control: &Sender<Control>,
) -> Result<(), Error> {
    loop {
        terminal
            .draw(|frame| draw::frame(model, theme, frame))
            .map_err(|error| Error::system("cannot write to the terminal", error))?;
        let Ok(first) = receiver.recv() else { return Ok(()) };
        // What has come meanwhile is drawn at once.
        for input in std::iter::once(first).chain(receiver.try_iter()) {
            match model.apply(input) {
                None => {}
                Some(Action::Quit) => return Ok(()),
                Some(Action::Play(on)) => drop(control.send(Control::Play(on))),
                Some(Action::Seek(by)) => drop(control.send(Control::Seek(by))),
                Some(Action::Change(change)) => {
                    let inputs = inputs.clone();
                    spawn(move || inputs.send(Input::Outcome(carry_out(&change))));
                }
            }
        }
    }
}

/// Gives the model what the terminal says.
fn keys(inputs: &Sender<Input>) {
    loop {
        let input = match event::read() {
            Ok(Event::Key(key)) if key.kind == KeyEventKind::Press => Input::Key(key),
            Ok(Event::Resize(..)) => Input::Resized,
            Ok(_) => continue,
            Err(_) => Input::End,
        };
        let is_over = matches!(input, Input::End);
        if inputs.send(input).is_err() || is_over {
            return;
        }
    }
}

/// Does what the command of that name does, and tells what came of it in one line.
fn carry_out(change: &Change) -> String {
    let mut said: Vec<String> = Vec::new();
    let done = match change {
        Change::Limit(arguments) => {
            let mut notices = Vec::new();
            let tell = |text: &str| said.extend(text.lines().skip(1).map(str::to_owned));
            let done = limit::change(arguments, tell, |text| notices.push(text.to_owned()));
            said.extend(notices);
            done.map(|(_, took)| said.extend(limit::who_has_not(&took)))
        }
        Change::Freeze(arguments, frozen) => {
            let mut notices = Vec::new();
            let done = freeze::act(arguments, *frozen, |text| notices.push(text.to_owned()));
            done.map(|text| said.push(text.trim_end().to_owned()))
        }
    };
    match done {
        Ok(()) => said.join("; "),
        Err(error) => error.to_string(),
    }
}
