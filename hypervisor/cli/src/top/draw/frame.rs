//! The whole terminal.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

use super::super::model::{Mode, Model};
use super::{LEAST_WIDTH, Theme, detail, list};

const HELP: [&str; 12] = [
    "up, down      select a session (also k, j, page up, page down, home, end)",
    "enter         show its processes and history; esc goes back",
    "/             show only sessions whose name contains these letters; esc shows all",
    "s, r          sort by another column; reverse the order",
    "l             change its limits",
    "f             freeze it, or thaw it",
    "space         pause; in a replay, resume",
    "left, right   in a replay: one sample back or forward",
    "q             end",
    "",
    "Bars are the share of the last 10 s; the mark is the limit. * is frozen. Times are UTC.",
    "Press any key to close.",
];

/// The most lines that the foot has.
const LONGEST_FOOT: usize = 4;

/// Draws all of it.
pub(in crate::top) fn frame(model: &Model, theme: Theme, frame: &mut Frame<'_>) {
    let area = frame.area();
    let width = usize::from(area.width).max(LEAST_WIDTH);
    // What came of a change may be longer than a line. Lines end between words, so that not all of each is used.
    let last = last_line(model, theme);
    let room = usize::from(area.width).max(1);
    let lines = match last.width() {
        width if width <= room || model.message.is_none() => 1,
        width => width.div_ceil((room * 3 / 4).max(1)).clamp(1, LONGEST_FOOT),
    };
    let foot = Constraint::Length(u16::try_from(lines).unwrap_or(1));
    let [title, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), foot]).areas(area);
    frame.render_widget(list::title(model, theme), title);
    let lines = match model.selected().filter(|_| model.open) {
        Some(row) => detail::detail(model, &row, theme, width, body.height.into()),
        None => visible(model, theme, width, body.height.into()),
    };
    frame.render_widget(Paragraph::new(lines), body);
    frame.render_widget(Paragraph::new(last).wrap(Wrap { trim: true }), foot);
    dialog(model, theme, frame, area);
}

/// As much of the list as there is room for, with the selected session in it.
fn visible(model: &Model, theme: Theme, width: usize, height: usize) -> Vec<Line<'static>> {
    let mut lines = list::notices(model, theme);
    lines.push(list::head(theme, width));
    let room = height.saturating_sub(lines.len());
    let body = list::body(model, theme, width);
    let selected = model.selected.as_ref();
    let at = body.iter().position(|(key, _)| key.is_some() && key.as_ref() == selected);
    let first = at.map_or(0, |at| (at + 1).saturating_sub(room));
    lines.extend(body.into_iter().skip(first).take(room).map(|(key, line)| {
        let is_selected = key.is_some() && key.as_ref() == selected;
        if is_selected { line.patch_style(theme.selected()) } else { line }
    }));
    lines
}

fn last_line(model: &Model, theme: Theme) -> Line<'static> {
    match (&model.message, &model.mode) {
        (Some(message), _) => Line::styled(limits::Shown(message).to_string(), theme.title()),
        (None, Mode::Filter) => Line::from(format!("/{}_", limits::Shown(&model.filter))),
        _ if !model.filter.is_empty() => Line::styled(
            format!("filter: {} (esc shows all)", limits::Shown(&model.filter)),
            theme.title(),
        ),
        _ if model.open => {
            Line::styled("esc back  l limits  f freeze  ? help  q end", theme.head())
        }
        _ => Line::styled(
            "enter details  / filter  s sort  l limits  f freeze  space pause  ? help  q end",
            theme.head(),
        ),
    }
}

fn dialog(model: &Model, theme: Theme, frame: &mut Frame<'_>, area: Rect) {
    let (title, lines): (&str, Vec<Line<'static>>) = match &model.mode {
        Mode::Browse | Mode::Filter => return,
        Mode::Help => ("keys", HELP.map(Line::from).to_vec()),
        Mode::Limits { text, error } => {
            let name = model.selected().map(|row| row.name.to_owned()).unwrap_or_default();
            let mut lines = vec![
                Line::from(format!(
                    "New limits of {}, as for 'sluice limit':",
                    limits::Shown(&name)
                )),
                Line::from(format!("> {}_", limits::Shown(text))),
            ];
            lines.push(match error {
                Some(error) => Line::styled(limits::Shown(error).to_string(), theme.trouble()),
                None => Line::styled(
                    format!(
                        "now: {}; type a share such as 50, a size such as 4GiB, or options; enter continues, esc \
                         cancels",
                        model.present_limits()
                    ),
                    theme.head(),
                ),
            });
            ("limits", lines)
        }
        Mode::Confirm { line, .. } => (
            "sure?",
            vec![
                Line::from(limits::Shown(model.selected().map_or("", |row| row.name)).to_string()),
                Line::styled(format!("sluice {}", limits::Shown(line)), theme.title()),
                Line::from("y confirms, n cancels"),
            ],
        ),
    };
    let width = area.width.min(88);
    let inner = usize::from(width.saturating_sub(2)).max(1);
    let height: usize = lines.iter().map(|line| line.width().div_ceil(inner).max(1)).sum();
    let height = u16::try_from(height + 2).unwrap_or(u16::MAX).min(area.height);
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, place);
    let block = Block::bordered().title(format!(" {title} "));
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }).block(block), place);
}
