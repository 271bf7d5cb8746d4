//! One session: its limits, processes, and what happened to it.

use limits::Shown;
use protocol::sessions::{ByKind, ProcessReport};
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::super::model::Model;
use super::Theme;
use super::cells::{self, fit, graph, right};
use crate::series::{Point, Row};
use crate::status::{self, Bytes, Seconds, named};

/// Lines of the graphs of share, memory and waiting.
const SHARE_HEIGHT: usize = 4;
const OTHER_HEIGHT: usize = 2;
/// The width of a graph's name.
const LABEL: usize = 8;
/// What the lines of history take, with their head.
const HISTORY: usize = 2 + SHARE_HEIGHT + 2 * OTHER_HEIGHT;

/// The selected session in so many lines.
pub(super) fn detail(
    model: &Model,
    row: &Row<'_>,
    theme: Theme,
    width: usize,
    height: usize,
) -> Vec<Line<'static>> {
    let mut lines = who(row, theme);
    lines.extend(figures(row, theme, width));
    let head = format!(
        "  {:>8} {} {:>10} {:>8} {:>6}  BY KIND",
        "PID",
        fit("NAME", 16),
        "MEMORY",
        "GPU TIME",
        "BUSY"
    );
    lines.push(Line::styled(head, theme.head()));
    // What does not fit is counted: the history has to be seen as well.
    let room = height.saturating_sub(lines.len() + HISTORY + 1).max(1);
    lines.extend(row.processes.iter().take(room).map(|one| process(one, theme, width)));
    match row.processes.len().checked_sub(room) {
        _ if row.processes.is_empty() => {
            let used = row.age_us.is_some() || row.elsewhere;
            lines.push(Line::from(if used { "  no process" } else { "  GPU not used yet" }));
        }
        Some(more) if more > 0 => lines.push(Line::from(format!("  and {more} more processes"))),
        _ => {}
    }
    lines.extend(timeline(model, row, theme, width));
    lines
}

fn who(row: &Row<'_>, theme: Theme) -> Vec<Line<'static>> {
    let state = if row.frozen { "frozen" } else { "running" };
    let style = if row.frozen { theme.trouble() } else { theme.busy() };
    let place = row.place.map(|place| format!(", in {}", Shown(place))).unwrap_or_default();
    let text = format!("  session {} of {}{place}  ", Shown(&row.key.session), Shown(&row.user));
    let first = [
        Span::styled(Shown(row.name).to_string(), theme.title()),
        Span::raw(text),
        Span::styled(state, style),
    ];
    let command = row.command.unwrap_or(if row.is_unseen() {
        "its pages are not visible from here; the daemon reports its time"
    } else {
        "?"
    });
    vec![Line::from_iter(first), Line::from(format!("  {}", Shown(command)))]
}

fn figures(row: &Row<'_>, theme: Theme, width: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    if let Some(compute) = row.compute {
        let items = [
            format!("{} of {}", cells::percent(compute.recent_ppm), status::compute_limit(compute)),
            format!("{} since its start", cells::percent(compute.mean_ppm)),
            format!("{} in all", Seconds(compute.delivered_us)),
            format!("waited {}", Seconds(compute.waited_us)),
        ];
        lines.extend(items_of("time", items.into(), width, theme.busy()));
        if let Some(sharing) = &compute.sharing {
            let words = status::sharing_words(sharing);
            let items = words.split("; ").map(str::to_owned).collect();
            lines.extend(items_of("shares", items, width, Style::new()));
        }
    }
    if let Some(memory) = row.memory {
        let limit = memory.limit.map_or_else(String::new, |limit| format!(" of {}", Bytes(limit)));
        let mut items = vec![
            format!("{}{limit}", Bytes(memory.used)),
            format!("at most {}", Bytes(memory.peak)),
        ];
        if row.refusals > 0 {
            items.push(format!("{} refused", row.refusals));
        }
        items.extend(kinds(&memory.by_kind));
        let style = if memory.growth_refused { theme.trouble() } else { theme.memory() };
        lines.extend(items_of("memory", items, width, style));
    }
    lines
}

/// What there is of each kind.
fn kinds(kinds: &ByKind) -> impl Iterator<Item = String> {
    let some = named(kinds).into_iter().filter(|(_, bytes)| *bytes > 0);
    some.map(|(kind, bytes)| format!("{kind} {}", Bytes(bytes)))
}

/// As many items in a line as fit.
fn items_of(label: &str, items: Vec<String>, width: usize, style: Style) -> Vec<Line<'static>> {
    let room = width.saturating_sub(LABEL + 2);
    let mut texts: Vec<String> = Vec::new();
    for item in items {
        match texts.last_mut() {
            Some(text) if text.chars().count() + item.chars().count() + 3 <= room => {
                *text += &format!(", {item}");
            }
            _ => texts.push(item),
        }
    }
    let last = texts.len().saturating_sub(1);
    let line = |(number, text): (usize, String)| {
        let label = fit(if number == 0 { label } else { "" }, LABEL);
        let comma = if number < last { "," } else { "" };
        Line::from_iter([Span::raw(format!("  {label}")), Span::styled(text + comma, style)])
    };
    texts.into_iter().enumerate().map(line).collect()
}

fn process(process: &ProcessReport, theme: Theme, width: usize) -> Line<'static> {
    const BEFORE: usize = 56;
    let kinds: Vec<_> = kinds(&process.by_kind).collect();
    let mut rest = kinds.join(", ");
    if let Some(host) = process.host_pid.filter(|host| *host != process.pid) {
        rest = format!("pid {host} on the host; {rest}");
    }
    let state = match (process.holding, process.waiting) {
        (true, _) => "holding; ",
        (_, true) => "waiting; ",
        _ => "",
    };
    let text = format!(
        "  {:>8} {} {} {} {}  {}",
        process.pid,
        fit(process.name.as_deref().unwrap_or("not seen here"), 16),
        right(&Bytes(process.bytes).to_string(), 10),
        right(&cells::duration(Some(process.charged_us).filter(|us| *us > 0)), 8),
        right(
            &process
                .density_ppm
                .map_or_else(|| "-".to_owned(), |ppm| format!("{} %", ppm / 10_000)),
            6
        ),
        fit(&format!("{state}{rest}"), width.saturating_sub(BEFORE)).trim_end(),
    );
    Line::styled(text, if process.waiting { theme.waiting() } else { Style::new() })
}

/// What happened, sample by sample.
fn timeline(model: &Model, row: &Row<'_>, theme: Theme, width: usize) -> Vec<Line<'static>> {
    let Some(track) = model.series.sessions.get(&row.key) else { return Vec::new() };
    let points = &track.points;
    let graph_width = width.saturating_sub(LABEL + 3);
    let of = |value: fn(&Point) -> Option<u64>| points.iter().map(value);
    let most_ppm = of(|point| point.share_ppm.max(point.limit_ppm).map(u64::from)).flatten().max();
    let most_ppm = most_ppm.unwrap_or(0) * 5 / 4;
    let limit = row.limit_ppm().map(u64::from);
    let share = graph(
        of(|point| point.share_ppm.map(u64::from)),
        most_ppm,
        (graph_width, SHARE_HEIGHT),
        limit,
    );
    let waiting = of(|point| point.waited_ppm.map(u64::from));
    let most_waited = of(|point| point.waited_ppm.map(u64::from)).flatten().max().unwrap_or(0);
    let waiting = graph(waiting, most_waited.max(1_000_000), (graph_width, OTHER_HEIGHT), None);
    let memory_limit = row.memory.and_then(|memory| memory.limit);
    let most = memory_limit.or_else(|| of(|point| point.used_bytes).flatten().max());
    let memory =
        graph(of(|point| point.used_bytes), most.unwrap_or(0), (graph_width, OTHER_HEIGHT), None);
    let head = format!(
        "  the last {} samples: F frozen, ! memory refused, L limits changed",
        points.len()
    );
    let mut lines = vec![Line::styled(head, theme.head())];
    for (name, rows, style) in [
        ("share", share, theme.busy()),
        ("waiting", waiting, theme.waiting()),
        ("memory", memory, theme.memory()),
    ] {
        for (number, text) in rows.into_iter().enumerate() {
            let label = fit(if number == 0 { name } else { "" }, LABEL);
            lines.push(Line::from_iter([
                Span::raw(format!("  {label}")),
                Span::styled(text, style),
            ]));
        }
    }
    let marks: String = marks(points.iter(), graph_width);
    let label = Span::raw(format!("  {}", fit("", LABEL)));
    lines.push(Line::from_iter([label, Span::styled(marks, theme.trouble())]));
    lines
}

fn marks<'a>(points: impl DoubleEndedIterator<Item = &'a Point>, width: usize) -> String {
    let mark = |point: &Point| match point {
        Point { refused: true, .. } => '!',
        Point { frozen: true, .. } => 'F',
        Point { changed: true, .. } => 'L',
        _ => ' ',
    };
    let mut last: Vec<char> = points.rev().take(width).map(mark).collect();
    last.resize(width, ' ');
    last.iter().rev().collect::<String>().trim_end().to_owned()
}
