//! Draws the model of `sluice top` as lines of text. Pure.
//!
//! * `cells`: bars, lines of history, figures that fit a width;
//! * `list`: the devices, and the sessions under them;
//! * `detail`: one session, with its processes and its history;
//! * `frame`: all of it on a terminal, with what is asked.

pub(super) mod cells;
mod detail;
mod frame;
mod list;
#[cfg(test)]
mod tests;

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;

use super::model::Model;

pub(super) use frame::frame;

/// The least that is drawn for.
pub(super) const LEAST_WIDTH: usize = 64;

/// How things are told apart: by colour, or without.
#[derive(Clone, Copy, Debug)]
pub(super) struct Theme {
    pub(super) color: bool,
}

impl Theme {
    fn of(self, color: Color, plain: Style) -> Style {
        if self.color { Style::new().fg(color) } else { plain }
    }

    pub(super) fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn head(self) -> Style {
        self.of(Color::DarkGray, Style::new())
    }

    pub(super) fn busy(self) -> Style {
        self.of(Color::Green, Style::new())
    }

    pub(super) fn memory(self) -> Style {
        self.of(Color::Cyan, Style::new())
    }

    pub(super) fn waiting(self) -> Style {
        self.of(Color::Yellow, Style::new())
    }

    pub(super) fn limit(self) -> Style {
        self.of(Color::Magenta, Style::new().add_modifier(Modifier::BOLD))
    }

    pub(super) fn trouble(self) -> Style {
        self.of(Color::Red, Style::new().add_modifier(Modifier::BOLD))
    }

    pub(super) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}

/// Everything, as long as it is: for output that is no terminal.
pub(super) fn page(model: &Model, theme: Theme, width: usize) -> Vec<Line<'static>> {
    let width = width.max(LEAST_WIDTH);
    if let Some(row) = model.selected().filter(|_| model.open) {
        return detail::detail(model, &row, theme, width, usize::MAX);
    }
    let mut lines = vec![list::title(model, theme)];
    lines.extend(list::notices(model, theme));
    lines.push(list::head(theme, width));
    lines.extend(list::body(model, theme, width).into_iter().map(|(_, line)| line));
    lines
}
