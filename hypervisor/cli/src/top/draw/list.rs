//! The devices, and the sessions under them.

use limits::{GpuId, Shown};
use protocol::record::{DeviceSample, FigureSource, Sample};
use ratatui::text::{Line, Span};

use super::super::model::Model;
use super::Theme;
use super::cells::{self, Part, bar, fit, history, right};
use crate::series::{DevicePoint, Key, Row};
use crate::status::Bytes;

/// What a calendar's day and an hour have, in seconds.
const DAY: u64 = 86_400;
const HOUR: u64 = 3_600;
const GIB: f64 = (1_u64 << 30) as f64;
/// The widest that history becomes beside a bar.
const MOST_HISTORY: usize = 30;

/// Widths of the columns.
#[derive(Clone, Copy)]
struct Columns {
    name: usize,
    who: usize,
    bar: usize,
    command: usize,
}

const SHARE: usize = 7;
const LIMIT: usize = 8;
const MEMORY: usize = 18;
const WAITED: usize = 7;
const AGE: usize = 7;
/// A command that is shorter than this says nothing.
const LEAST_COMMAND: usize = 12;

impl Columns {
    fn of(width: usize) -> Self {
        let fixed = 2 + SHARE + LIMIT + MEMORY + WAITED + AGE;
        // Name, user and bar, each with a blank behind it.
        let rest = width.saturating_sub(fixed);
        let name = (rest * 2 / 5).clamp(6, 16);
        let who = (rest / 4).clamp(4, 12);
        let bar = rest.saturating_sub(name + who + 2).min(20);
        let command = rest.saturating_sub(name + who + bar + 3);
        let command = if command >= LEAST_COMMAND { command } else { 0 };
        Self { name, who, bar, command }
    }
}

/// The first line: what is seen, and when.
pub(super) fn title(model: &Model, theme: Theme) -> Line<'static> {
    let Some(sample) = &model.sample else {
        return Line::from("sluice top: reading the node");
    };
    let sessions = sample.status.sessions.len() + sample.status.elsewhere.len();
    let count = |number: usize, what: &str| {
        format!("{number} {what}{}", if number == 1 { "" } else { "s" })
    };
    let mut words = vec![count(sample.devices.len(), "GPU"), count(sessions, "session")];
    if sample.others > 0 {
        words.push(format!("{} of others", sample.others));
    }
    words.push(if sample.daemon { "daemon" } else { "no daemon" }.to_owned());
    words.push(format!(
        "sorted by {}{}",
        model.sort.name(),
        if model.reverse { ", reversed" } else { "" }
    ));
    if let Some(place) = model.place {
        words.push(format!("replay {}/{}", place.at + 1, place.of));
    }
    if model.paused {
        words.push("paused".to_owned());
    }
    let spans = [
        Span::styled(format!("sluice {} ", time(sample)), theme.title()),
        Span::raw(format!(" {}", words.join(", "))),
    ];
    Line::from_iter(spans)
}

/// The time of day (UTC).
fn time(sample: &Sample) -> String {
    let of_day = sample.at_us / 1_000_000 % DAY;
    format!("{:02}:{:02}:{:02}Z", of_day / HOUR, of_day / 60 % 60, of_day % 60)
}

/// What could not be looked at.
pub(super) fn notices(model: &Model, theme: Theme) -> Vec<Line<'static>> {
    let Some(sample) = &model.sample else { return Vec::new() };
    let damaged = sample.status.damaged.iter();
    let damaged =
        damaged.map(|one| format!("DAMAGED {}: {}", Shown(&one.session), Shown(&one.problem)));
    let notices = sample.notices.iter().map(|text| Shown(text).to_string());
    notices.chain(damaged).map(|text| Line::styled(text, theme.trouble())).collect()
}

/// The columns' names.
pub(super) fn head(theme: Theme, width: usize) -> Line<'static> {
    let columns = Columns::of(width);
    let mut text = format!(
        "  {} {} {}{}{}{}{}{}",
        fit("NAME", columns.name),
        fit("USER", columns.who),
        fit("LAST 10 s", columns.bar + SHARE),
        right("LIMIT", LIMIT),
        right("MEMORY", MEMORY),
        right("WAITED", WAITED),
        right("AGE", AGE),
        if columns.command > 0 { "  COMMAND" } else { "" },
    );
    text.truncate(text.trim_end().len());
    Line::styled(text, theme.head())
}

/// Devices and sessions; a session's line names it.
pub(super) fn body(model: &Model, theme: Theme, width: usize) -> Vec<(Option<Key>, Line<'static>)> {
    let mut lines = Vec::new();
    let Some(sample) = &model.sample else { return lines };
    let rows = model.rows();
    for one in &sample.devices {
        lines.extend(device(model, one, theme, width).into_iter().map(|line| (None, line)));
        let own = rows.iter().filter(|row| row.key.uuid == Some(one.uuid));
        lines.extend(own.map(|row| (Some(row.key.clone()), session(row, theme, width))));
    }
    let mut rest = rows.iter().filter(|row| row.key.uuid.is_none()).peekable();
    if rest.peek().is_some() {
        lines.push((None, Line::styled("no GPU used yet", theme.title())));
    }
    lines.extend(rest.map(|row| (Some(row.key.clone()), session(row, theme, width))));
    if rows.is_empty() {
        let why =
            if model.filter.is_empty() { "no sessions" } else { "no session matches the filter" };
        lines.push((None, Line::from(format!("  {why}"))));
    }
    lines
}

fn session(row: &Row<'_>, theme: Theme, width: usize) -> Line<'static> {
    let columns = Columns::of(width);
    let share = row.compute.and_then(|compute| compute.recent_ppm);
    let part = |ppm: u32| Part { value: ppm.into(), of: 1_000_000 };
    let waiting = row.processes.iter().any(|process| process.waiting);
    let style = if row.frozen {
        theme.trouble()
    } else if waiting {
        theme.waiting()
    } else {
        theme.busy()
    };
    let memory = match row.memory {
        None => "-".to_owned(),
        Some(memory) => memory
            .limit
            .map_or_else(|| Bytes(memory.used).to_string(), |limit| both(memory.used, limit)),
    };
    let over = row.memory.is_some_and(|memory| memory.growth_refused);
    let name = if row.frozen { format!("*{}", row.name) } else { row.name.to_owned() };
    let mut spans = vec![Span::raw(format!(
        "  {} {} ",
        fit(&name, columns.name),
        fit(row.place.unwrap_or(&row.user), columns.who)
    ))];
    spans.extend(bar(
        share.map(part),
        row.limit_ppm().map(part),
        columns.bar,
        [style, theme.limit()],
    ));
    spans.push(Span::raw(right(&cells::percent(share), SHARE)));
    spans.push(Span::styled(right(&cells::limit(row.compute), LIMIT), theme.limit()));
    spans.push(Span::styled(
        right(&memory, MEMORY),
        if over { theme.trouble() } else { theme.memory() },
    ));
    let waited = row.compute.filter(|_| row.limit_ppm().is_some());
    let waited = cells::duration(waited.map(|compute| compute.waited_us));
    spans.push(Span::styled(right(&waited, WAITED), theme.waiting()));
    spans.push(Span::raw(right(&cells::duration(row.age_us), AGE)));
    if columns.command > 0 {
        let what = if row.frozen { Some("frozen") } else { None };
        let what = what.or(row.command).unwrap_or(if row.is_unseen() {
            "pages not seen here"
        } else {
            ""
        });
        spans.push(Span::raw(format!("  {}", fit(what, columns.command).trim_end())));
    }
    Line::from(spans)
}

/// Bytes of a limit, with one unit.
fn both(used: u64, limit: u64) -> String {
    let (used, limit) = (Bytes(used).to_string(), Bytes(limit).to_string());
    match (used.rsplit_once(' '), limit.rsplit_once(' ')) {
        (Some((number, unit)), Some((_, of))) if unit == of => format!("{number}/{limit}"),
        _ => format!("{used}/{limit}"),
    }
}

fn device(model: &Model, device: &DeviceSample, theme: Theme, width: usize) -> Vec<Line<'static>> {
    let index = device.index.map_or_else(|| "?".to_owned(), |index| index.to_string());
    let uuid = device.uuid.to_string();
    let name = device.name.as_deref().unwrap_or(&uuid);
    let mut lines =
        vec![first_line(model, device, theme, width, &format!("GPU {index}  {}", Shown(name)))];
    if device.sm_percent.is_some() || device.memory_used_bytes.is_some() {
        lines.push(second_line(model, device, theme, width));
    } else if matches!(device.source, FigureSource::Driver | FigureSource::Session) {
        lines.push(Line::styled("  no figures: start 'hypervisor daemon'", theme.head()));
    }
    if let Some(trouble) = &device.trouble {
        lines.push(Line::styled(format!("  {}", Shown(trouble)), theme.trouble()));
    }
    let sample = model.sample.iter().flat_map(|sample| &sample.status.overcommitted);
    let overcommitted = sample.filter(|gpu| gpu.uuid == device.uuid);
    lines.extend(
        overcommitted.map(|gpu| Line::styled(format!("  {}", Shown(&gpu.notice)), theme.waiting())),
    );
    if device.unknown_processes > 0 {
        let text = format!("  processes outside any session: {}", device.unknown_processes);
        lines.push(Line::styled(text, theme.trouble()));
    }
    lines
}

/// The points of a device.
fn points(
    model: &Model,
    uuid: GpuId,
    of: fn(&DevicePoint) -> Option<u64>,
) -> impl DoubleEndedIterator<Item = Option<u64>> {
    model.series.devices.get(&uuid).into_iter().flatten().map(of)
}

/// Its name; power and temperature.
fn first_line(
    model: &Model,
    device: &DeviceSample,
    theme: Theme,
    width: usize,
    name: &str,
) -> Line<'static> {
    const HISTORY: usize = 10;
    let watts = |mw: u32| mw / 1000;
    let mut right_side = Vec::new();
    let slow: Vec<&str> =
        device.throttled_by.iter().map(String::as_str).filter(|why| *why != "idle").collect();
    if !slow.is_empty() {
        right_side.push(Span::styled(
            format!("slowed by {}  ", Shown(&slow.join(", "))),
            theme.waiting(),
        ));
    }
    if let Some(power) = device.power_mw {
        let of =
            device.power_limit_mw.map(|limit| format!("/{}", watts(limit))).unwrap_or_default();
        right_side.push(Span::raw(format!("{}{of} W ", watts(power))));
        let most = u64::from(device.power_limit_mw.unwrap_or(power));
        let past = points(model, device.uuid, |point| point.power_mw.map(u64::from));
        right_side.push(Span::styled(history(past, most, HISTORY), theme.busy()));
    }
    if let Some(temperature) = device.temperature_c {
        right_side.push(Span::raw(format!("  {temperature} °C ")));
        let past = points(model, device.uuid, |point| point.temperature_c.map(u64::from));
        right_side.push(Span::styled(history(past, 100, HISTORY), theme.waiting()));
    }
    let taken: usize = right_side.iter().map(Span::width).sum();
    let mut spans = vec![Span::styled(fit(name, width.saturating_sub(taken + 1)), theme.title())];
    spans.push(Span::raw(" "));
    spans.extend(right_side);
    Line::from(spans)
}

/// Utilization and memory.
fn second_line(model: &Model, device: &DeviceSample, theme: Theme, width: usize) -> Line<'static> {
    const FIGURES: usize = 34;
    let free = width.saturating_sub(FIGURES) / 2;
    let past_width = (free / 2).min(MOST_HISTORY);
    let bar_width = (free - past_width).min(30);
    let utilization = device.sm_percent.map(|percent| Part { value: percent.into(), of: 100 });
    let mut spans = vec![Span::raw("  util ")];
    spans.extend(bar(utilization, None, bar_width, [theme.busy(), theme.limit()]));
    let figure = device.sm_percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent} %"));
    spans.push(Span::raw(format!("{} ", right(&figure, 6))));
    let past = points(model, device.uuid, |point| point.sm_percent.map(u64::from));
    spans.push(Span::styled(history(past, 100, past_width), theme.busy()));
    let total = device.memory_total_bytes;
    let memory = device.memory_used_bytes.zip(total).map(|(value, of)| Part { value, of });
    spans.push(Span::raw(" mem "));
    spans.extend(bar(memory, None, bar_width, [theme.memory(), theme.limit()]));
    let gib = |bytes: u64| format!("{:.1}", bytes as f64 / GIB);
    let figure = match (device.memory_used_bytes, total) {
        (Some(used), Some(total)) => format!("{}/{} GiB", gib(used), gib(total)),
        _ => "-".to_owned(),
    };
    spans.push(Span::raw(format!(" {figure} ")));
    let past = points(model, device.uuid, |point| point.memory_used_bytes);
    spans.push(Span::styled(history(past, total.unwrap_or(0), past_width), theme.memory()));
    Line::from(spans)
}
