//! What `sluice top` knows and shows, and how keys change it. Pure: no terminal, no clock, no files.

use std::ffi::OsString;

use clap::Parser;
use protocol::record::Sample;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use limits::units::{PPM_PER_PERCENT, parse_amount, parse_percent};
use limits::{MemoryLimit, Policy};

use crate::cli::{Cli, Command, FreezeArguments, LimitArguments};
use crate::series::{Key, Row, Series, rows};
use crate::status::Limit;

/// How many points are kept of each session and device.
const POINTS: usize = 600;
/// How many rows a page key goes.
const PAGE: usize = 10;

/// What happens.
#[derive(Debug)]
pub(super) enum Input {
    /// A key.
    Key(KeyEvent),
    /// The terminal has another size.
    Resized,
    /// The next sample; of a recording, with its place.
    Sample(Box<Sample>, Option<Place>),
    /// A sample could not be taken.
    NoSample(String),
    /// A change was carried out, or not: what is to be said of it.
    Outcome(String),
    /// A recording begins anew, from another place.
    Rewound,
    /// A signal asks for the end.
    End,
}

/// Where in a recording something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Which sample, from 0.
    pub(super) at: usize,
    /// How many there are.
    pub(super) of: usize,
}

/// What is to be done.
#[derive(Debug)]
pub(super) enum Action {
    /// To end.
    Quit,
    /// To change something on the node.
    Change(Change),
    /// To go on in a recording, or to stop there.
    Play(bool),
    /// To go so many samples on, or back.
    Seek(i64),
}

/// What people want to change. Each is a command of `sluice`.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// `sluice limit`
    Limit(Box<LimitArguments>),
    /// `sluice freeze`, or `sluice thaw`
    Freeze(FreezeArguments, bool),
}

/// By what the sessions of a device are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Share,
    Memory,
    Waited,
    Age,
    Name,
    User,
}

impl Sort {
    const ALL: [Self; 6] =
        [Self::Share, Self::Memory, Self::Waited, Self::Age, Self::Name, Self::User];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Share => "share",
            Self::Memory => "memory",
            Self::Waited => "waited",
            Self::Age => "age",
            Self::Name => "name",
            Self::User => "user",
        }
    }

    fn next(self) -> Self {
        let mut all = Self::ALL.into_iter().cycle();
        all.find(|sort| *sort == self);
        all.next().unwrap_or(self)
    }

    fn order(self, rows: &mut [Row<'_>]) {
        rows.sort_by(|a, b| a.key.cmp(&b.key));
        let memory = |row: &Row<'_>| row.memory.map_or(0, |memory| memory.used);
        let waited = |row: &Row<'_>| row.compute.map_or(0, |compute| compute.waited_us);
        let share = |row: &Row<'_>| row.compute.and_then(|compute| compute.recent_ppm);
        match self {
            Self::Share => rows.sort_by_key(|row| std::cmp::Reverse(share(row))),
            Self::Memory => rows.sort_by_key(|row| std::cmp::Reverse(memory(row))),
            Self::Waited => rows.sort_by_key(|row| std::cmp::Reverse(waited(row))),
            Self::Age => rows.sort_by_key(|row| std::cmp::Reverse(row.age_us)),
            Self::Name => rows.sort_by(|a, b| a.name.cmp(b.name)),
            Self::User => rows.sort_by(|a, b| a.user.cmp(&b.user)),
        }
    }
}

/// What keys go to.
#[derive(Debug)]
pub(super) enum Mode {
    /// The list, or one session.
    Browse,
    /// The filter is being typed.
    Filter,
    /// New limits are being typed.
    Limits {
        /// So far.
        text: String,
        /// What is wrong with it.
        error: Option<String>,
    },
    /// A change is to be confirmed.
    Confirm {
        /// Which.
        change: Change,
        /// As a command.
        line: String,
    },
    /// What the keys do.
    Help,
}

/// All of it.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) sample: Option<Sample>,
    pub(super) series: Series,
    pub(super) sort: Sort,
    pub(super) reverse: bool,
    pub(super) filter: String,
    pub(super) mode: Mode,
    pub(super) selected: Option<Key>,
    /// Whether the selected session is shown alone.
    pub(super) open: bool,
    /// No new sample is shown meanwhile.
    pub(super) paused: bool,
    /// Said on the last line, until the next key.
    pub(super) message: Option<String>,
    /// Where in a recording this is; `None`: it is live.
    pub(super) place: Option<Place>,
    /// A session to show alone as soon as it is there.
    pub(super) wanted: Option<String>,
    /// What `--daemon` named, for changes.
    daemon: Option<OsString>,
}

impl Model {
    pub(super) fn new(daemon: Option<OsString>) -> Self {
        Self {
            sample: None,
            series: Series::last(POINTS),
            sort: Sort::Share,
            reverse: false,
            filter: String::new(),
            mode: Mode::Browse,
            selected: None,
            open: false,
            paused: false,
            message: None,
            place: None,
            wanted: None,
            daemon,
        }
    }

    /// The sessions that are shown, device by device as they stand on the screen.
    pub(super) fn rows(&self) -> Vec<Row<'_>> {
        let Some(sample) = &self.sample else { return Vec::new() };
        let mut all = rows(sample);
        if !self.filter.is_empty() {
            all.retain(|row| row.has(&self.filter));
        }
        self.sort.order(&mut all);
        if self.reverse {
            all.reverse();
        }
        // Stable: within a device they stay as they are.
        let place = |row: &Row<'_>| {
            let at = sample.devices.iter().position(|device| Some(device.uuid) == row.key.uuid);
            at.unwrap_or(usize::MAX)
        };
        all.sort_by_key(place);
        all
    }

    /// The session that the keys are about.
    pub(super) fn selected(&self) -> Option<Row<'_>> {
        let rows = self.rows();
        rows.iter().find(|row| Some(&row.key) == self.selected.as_ref()).cloned()
    }

    /// Takes in what happened, and says what is to be done.
    pub(super) fn apply(&mut self, input: Input) -> Option<Action> {
        match input {
            Input::Sample(sample, place) => {
                if !(self.paused && place.is_none()) {
                    self.place = place;
                    self.take(*sample);
                }
                None
            }
            Input::NoSample(why) | Input::Outcome(why) => {
                self.message = Some(why);
                None
            }
            Input::Resized => None,
            Input::Rewound => {
                self.series = Series::last(POINTS);
                None
            }
            Input::End => Some(Action::Quit),
            Input::Key(key) => self.key(key),
        }
    }

    /// Takes in a sample, whatever is paused.
    pub(super) fn take(&mut self, sample: Sample) {
        self.series.add(&sample);
        self.sample = Some(sample);
        self.keep_a_selection();
        if let Some(wanted) = self.wanted.take()
            && self.open_session(&wanted).is_err()
        {
            self.wanted = Some(wanted);
        }
    }

    /// Shows one session alone.
    ///
    /// # Errors
    /// There is none of this name.
    pub(super) fn open_session(&mut self, wanted: &str) -> Result<(), String> {
        let rows = self.rows();
        let by = |fits: fn(&str, &str) -> bool| {
            let is_it = |row: &&Row<'_>| {
                let names = [
                    Some(row.name),
                    Some(&row.key.session),
                    row.place,
                    row.key.container.as_deref(),
                ];
                names.into_iter().flatten().any(|name| fits(name, wanted))
            };
            rows.iter().find(is_it).map(|row| row.key.clone())
        };
        let found = by(|name, wanted| name == wanted)
            .or_else(|| by(|name, wanted| name.starts_with(wanted)));
        let none = || format!("'{wanted}': no such session; 'sluice status' lists them");
        self.selected = Some(found.ok_or_else(none)?);
        self.open = true;
        Ok(())
    }

    /// What was selected may have ended.
    fn keep_a_selection(&mut self) {
        let rows = self.rows();
        let is_there = rows.iter().any(|row| Some(&row.key) == self.selected.as_ref());
        if !is_there {
            let first = rows.first().map(|row| row.key.clone());
            if self.open {
                self.open = false;
                self.message = Some("the session has ended".to_owned());
            }
            self.selected = first;
        }
    }

    fn key(&mut self, key: KeyEvent) -> Option<Action> {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Some(Action::Quit);
        }
        if let (KeyCode::Char(c), true) = (key.code, key.modifiers.contains(KeyModifiers::CONTROL))
        {
            self.control(c);
            return None;
        }
        self.message = None;
        match std::mem::replace(&mut self.mode, Mode::Browse) {
            Mode::Browse => return self.browse(key.code),
            Mode::Help => {}
            Mode::Filter => self.type_filter(key.code),
            Mode::Limits { text, .. } => self.type_limits(text, key.code),
            Mode::Confirm { change, line } => match key.code {
                KeyCode::Char('y' | 'Y') => return Some(Action::Change(change)),
                KeyCode::Char('n' | 'N' | 'q') | KeyCode::Esc => {
                    self.message = Some("nothing was changed".to_owned());
                }
                _ => self.mode = Mode::Confirm { change, line },
            },
        }
        None
    }

    fn browse(&mut self, code: KeyCode) -> Option<Action> {
        match code {
            KeyCode::Char('q') => return Some(Action::Quit),
            KeyCode::Esc if self.open => self.open = false,
            KeyCode::Esc => {
                self.filter.clear();
                self.keep_a_selection();
            }
            KeyCode::Up | KeyCode::Char('k') => self.go(|at, _| at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.go(|at, _| at + 1),
            KeyCode::PageUp => self.go(|at, _| at.saturating_sub(PAGE)),
            KeyCode::PageDown => self.go(|at, _| at + PAGE),
            KeyCode::Home => self.go(|_, _| 0),
            KeyCode::End => self.go(|_, last| last),
            KeyCode::Enter => self.open = self.selected.is_some() && !self.open,
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('r') => self.reverse = !self.reverse,
            KeyCode::Char('?' | 'h') => self.mode = Mode::Help,
            KeyCode::Char(' ' | 'p') => {
                self.paused = !self.paused;
                return self.place.map(|_| Action::Play(!self.paused));
            }
            KeyCode::Left => return self.place.map(|_| Action::Seek(-1)),
            KeyCode::Right => return self.place.map(|_| Action::Seek(1)),
            KeyCode::Char('l') => self.ask_for_limits(),
            KeyCode::Char('f') => self.ask_for_freeze(),
            _ => {}
        }
        None
    }

    fn go(&mut self, to: impl Fn(usize, usize) -> usize) {
        let keys: Vec<Key> = self.rows().into_iter().map(|row| row.key).collect();
        let Some(last) = keys.len().checked_sub(1) else { return };
        let at = keys.iter().position(|key| Some(key) == self.selected.as_ref()).unwrap_or(0);
        self.selected = keys.get(to(at, last).min(last)).cloned();
    }

    /// A letter with the control key is no letter. With `u` what was typed goes, as in a shell.
    fn control(&mut self, c: char) {
        match &mut self.mode {
            Mode::Filter if c == 'u' => {
                self.filter.clear();
                self.keep_a_selection();
            }
            Mode::Limits { text, error } if c == 'u' => {
                text.clear();
                *error = None;
            }
            _ => {}
        }
    }

    fn type_filter(&mut self, code: KeyCode) {
        self.mode = Mode::Filter;
        match code {
            KeyCode::Enter => self.mode = Mode::Browse,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = Mode::Browse;
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c) if !c.is_control() => self.filter.push(c),
            _ => {}
        }
        self.keep_a_selection();
    }

    /// Whether anything can be changed; if not, that is said.
    fn may_change(&mut self) -> bool {
        if self.place.is_some() {
            self.message = Some("a recording cannot be changed".to_owned());
            return false;
        }
        self.selected.is_some()
    }

    fn ask_for_limits(&mut self) {
        if self.may_change() {
            self.mode = Mode::Limits { text: String::new(), error: None };
        }
    }

    fn type_limits(&mut self, mut text: String, code: KeyCode) {
        match code {
            KeyCode::Esc => {
                self.message = Some("nothing was changed".to_owned());
                return;
            }
            KeyCode::Enter => {
                self.mode = match self.limit_command(&text) {
                    Ok((change, line)) => Mode::Confirm { change, line },
                    Err(error) => Mode::Limits { text, error: Some(error) },
                };
                return;
            }
            KeyCode::Backspace => {
                text.pop();
            }
            KeyCode::Char(c) if !c.is_control() => text.push(c),
            _ => {}
        }
        self.mode = Mode::Limits { text, error: None };
    }

    /// The words after `sluice` that change the selected session's limits as it was typed.
    fn limit_command(&self, text: &str) -> Result<(Change, String), String> {
        let row = self.selected().ok_or("the session has ended")?;
        let mut words = vec!["limit".to_owned(), row.key.session.clone()];
        words.extend(
            row.key.uuid.into_iter().flat_map(|uuid| ["--device".to_owned(), uuid.to_string()]),
        );
        // A share or a size may stand alone.
        let option = match text.trim() {
            alone if parse_percent(alone).is_ok() => Some("--compute"),
            alone if parse_amount(alone).is_ok() => Some("--mem"),
            _ => None,
        };
        words.extend(option.map(str::to_owned));
        words.extend(text.split_whitespace().map(str::to_owned));
        let line = words.join(" ");
        let parsed = Cli::try_parse_from([&["sluice".to_owned()], words.as_slice()].concat());
        let Ok(Cli { command: Command::Limit(mut arguments) }) = parsed else {
            let error = parsed.err().map(|error| error.to_string()).unwrap_or_default();
            let first = error.lines().next().unwrap_or_default();
            return Err(first.trim_start_matches("error: ").to_owned());
        };
        if arguments.request().is_empty() {
            return Err(
                "for example: 30, 4GiB, --mem 4GiB --compute 30, --no-mem --policy none".to_owned()
            );
        }
        arguments.daemon.clone_from(&self.daemon);
        Ok((Change::Limit(Box::new(arguments)), line))
    }

    /// The selected session's limits, as they would be typed.
    pub(super) fn present_limits(&self) -> String {
        let Some(row) = self.selected() else { return String::new() };
        let memory =
            row.memory.and_then(|memory| Some(MemoryLimit { limit: memory.limit?, real: None }));
        let compute = row.compute.filter(|compute| compute.policy != Policy::None);
        let percent = |ppm: u32| f64::from(ppm) / f64::from(PPM_PER_PERCENT);
        let words = [
            memory.map(|limit| format!("--mem {}", Limit(limit))),
            compute.map(|compute| format!("--compute {}", percent(compute.share_ppm))),
            compute.and_then(|compute| Some(format!("--burst {}", percent(compute.soft_ppm?)))),
        ];
        let present = words.into_iter().flatten().collect::<Vec<_>>().join(" ");
        if present.is_empty() { "no limit".to_owned() } else { present }
    }

    fn ask_for_freeze(&mut self) {
        if !self.may_change() {
            return;
        }
        let Some(row) = self.selected() else { return };
        let freeze = !row.frozen;
        // A container's id says more than a name that others may have as well.
        let session = row.key.container.clone().unwrap_or_else(|| row.key.session.clone());
        let line = format!("{} {session}", if freeze { "freeze" } else { "thaw" });
        let arguments = FreezeArguments { session, daemon: self.daemon.clone() };
        self.mode = Mode::Confirm { change: Change::Freeze(arguments, freeze), line };
    }
}
