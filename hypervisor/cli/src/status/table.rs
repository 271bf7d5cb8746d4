//! All sessions as a table, for people: a line for each device of each session.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use bytesize::ByteSize;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use limits::units::Size;
use limits::{GpuId, MemoryLimit, Policy, Shown};
use protocol::sessions::{
    ComputeReport, ContainerReport, DeviceReport, ElsewhereReport, SessionReport, StatusReport,
};

use super::fit;

/// The longest command and container name that is shown.
const LONGEST: usize = 24;
/// How much of an id is shown.
const ID_DIGITS: usize = 12;
const NOTHING: &str = "-";

/// A column; its number is its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Gpu,
    Uuid,
    User,
    Name,
    Container,
    Command,
    Memory,
    Of,
    Share,
    Last,
    SoFar,
    Waited,
    Note,
}

/// Columns, their titles, and whether their cells are numbers.
pub(super) const COLUMNS: [(Column, &str, bool); 13] = [
    (Column::Gpu, "GPU", true),
    (Column::Uuid, "UUID", false),
    (Column::User, "USER", false),
    (Column::Name, "NAME", false),
    (Column::Container, "CONTAINER", false),
    (Column::Command, "COMMAND", false),
    (Column::Memory, "MEMORY", true),
    (Column::Of, "OF", true),
    (Column::Share, "SHARE", true),
    (Column::Last, "LAST 10 s", true),
    (Column::SoFar, "SO FAR", true),
    (Column::Waited, "WAITED", true),
    (Column::Note, "NOTE", false),
];

impl Column {
    pub(super) fn title(self) -> &'static str {
        COLUMNS.get(self as usize).map_or("", |(_, title, _)| title)
    }
}

/// The table, with a line's end. Columns with nothing in them are left out. With a width, no line is longer.
pub(super) fn table(report: &StatusReport, width: Option<usize>) -> String {
    let uuids = ShortIds::of(report);
    let here = report.sessions.iter().flat_map(|session| rows_of(session, &uuids));
    let elsewhere = report.elsewhere.iter().flat_map(|session| rows_elsewhere(session, &uuids));
    let mut rows: Vec<Row> = here.chain(elsewhere).collect();
    if rows.is_empty() {
        return "no sessions\n".to_owned();
    }
    if let Some(width) = width {
        fit::fit(&mut rows, width);
    }
    let shown: Vec<_> =
        COLUMNS.iter().filter(|(column, ..)| rows.iter().any(|row| row.has(*column))).collect();
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    let cell = |is_number: bool, text: &str| {
        let side = if is_number { CellAlignment::Right } else { CellAlignment::Left };
        Cell::new(text).set_alignment(side)
    };
    table.set_header(shown.iter().map(|(_, title, is_number)| cell(*is_number, title)));
    for row in &rows {
        table.add_row(shown.iter().map(|(column, _, number)| cell(*number, row.text(*column))));
    }
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, fit::GAP));
    });
    let lines = table.lines().map(|line| {
        let line = line.trim_end();
        // A terminal may be narrower than all that is left.
        let line = width.map_or(line.to_owned(), |width| fit::beginning_of(line, width));
        format!("{line}\n")
    });
    lines.collect()
}

/// The cells of a line; `None`: nothing is to be said.
#[derive(Clone)]
pub(super) struct Row([Option<String>; COLUMNS.len()]);

impl Row {
    fn cell(&self, column: Column) -> Option<&str> {
        self.0.get(column as usize).and_then(Option::as_deref)
    }

    pub(super) fn has(&self, column: Column) -> bool {
        self.cell(column).is_some()
    }

    pub(super) fn text(&self, column: Column) -> &str {
        self.cell(column).unwrap_or(if column == Column::Note { "" } else { NOTHING })
    }

    pub(super) fn leave_out(&mut self, column: Column) {
        let cell = self.0.get_mut(column as usize).and_then(Option::take);
        // A device without an index has no other name.
        let unnamed = self.0.get_mut(Column::Gpu as usize).filter(|gpu| gpu.is_none());
        if let (Column::Uuid, Some(gpu)) = (column, unnamed) {
            *gpu = cell.map(|uuid| cut(&uuid, ID_DIGITS));
        }
    }

    /// Cuts the cell of the whole row.
    pub(super) fn cut_anew(&mut self, column: Column, whole: &Self, most: usize) {
        if let Some(cell) = self.0.get_mut(column as usize) {
            *cell = whole.cell(column).map(|text| fit::beginning_of(text, most));
        }
    }

    pub(super) fn cut(&mut self, column: Column, most: usize) {
        if let Some(Some(text)) = self.0.get_mut(column as usize) {
            *text = fit::beginning_of(text, most);
        }
    }
}

fn rows_of(session: &SessionReport, uuids: &ShortIds) -> Vec<Row> {
    let who = |gpu: [Option<String>; 2]| {
        let [index, uuid] = gpu;
        let user = session.user.clone().unwrap_or_else(|| session.uid.to_string());
        let name = session.name.as_ref().unwrap_or(&session.session);
        let container = session.container.as_ref().map(container);
        let command = session.command.as_deref().map(|command| cut(command, LONGEST));
        [index, uuid, Some(shown(&user)), Some(shown(name)), container, command]
    };
    let frozen = session.frozen.then(|| "frozen".to_owned());
    if session.devices.is_empty() {
        let notes = [frozen, Some("GPU not used yet, no limit".to_owned())];
        return vec![row(who([None, None]), Default::default(), note(notes))];
    }
    let of = |device: &DeviceReport| {
        let memory = &device.memory;
        let figures = [
            Some(Bytes(memory.used).to_string()),
            memory.limit.map(|limit| Bytes(limit).to_string()),
            limit(&device.compute),
            device.compute.recent_ppm.map(|ppm| Percent(ppm).to_string()),
            device.compute.mean_ppm.map(|ppm| Percent(ppm).to_string()),
            Some(Seconds(device.compute.waited_us).to_string()),
        ];
        let over = memory.growth_refused.then(|| format!("OVER by {}", Bytes(memory.over)));
        let unknown = device.unknown;
        let notes = [
            frozen.clone(),
            over,
            device.processes.is_empty().then(|| match device.age_us {
                Some(_) => "no process".to_owned(),
                None => "GPU not used yet".to_owned(),
            }),
            (unknown > 0)
                .then(|| format!("{unknown} of these may have ended (not visible from here)")),
        ];
        row(who([index(device.index), Some(uuids.short(device.uuid))]), figures, note(notes))
    };
    session.devices.iter().map(of).collect()
}

fn rows_elsewhere(session: &ElsewhereReport, uuids: &ShortIds) -> Vec<Row> {
    let who = |gpu: [Option<String>; 2]| {
        let [index, uuid] = gpu;
        let user = session.user.clone().unwrap_or_else(|| session.uid.to_string());
        let container = session.container.as_ref().map(container);
        [index, uuid, Some(shown(&user)), Some(shown(&session.session)), container, None]
    };
    let frozen = || session.frozen.then(|| "frozen".to_owned());
    let unseen = || "pages not seen here".to_owned();
    if session.devices.is_empty() {
        return vec![row(who([None, None]), Default::default(), note([frozen(), Some(unseen())]))];
    }
    let devices = session.devices.iter().map(|device| {
        let (compute, memory) = (&device.compute, device.memory.as_ref());
        let figures = [
            memory.map(|memory| Bytes(memory.used).to_string()),
            memory.and_then(|memory| memory.limit).map(|limit| Bytes(limit).to_string()),
            limit(compute),
            compute.recent_ppm.map(|ppm| Percent(ppm).to_string()),
            compute.mean_ppm.map(|ppm| Percent(ppm).to_string()),
            Some(Seconds(compute.waited_us).to_string()),
        ];
        let over = memory.filter(|memory| memory.growth_refused);
        let over = over.map(|memory| format!("OVER by {}", Bytes(memory.over)));
        let notes = [frozen(), over, memory.is_none().then(unseen)];
        row(who([index(device.index), Some(uuids.short(device.uuid))]), figures, note(notes))
    });
    devices.collect()
}

fn row(who: [Option<String>; 6], figures: [Option<String>; 6], note: Option<String>) -> Row {
    let mut cells = who.into_iter().chain(figures).chain([note]);
    Row(std::array::from_fn(|_| cells.next().flatten()))
}

fn note(notes: impl IntoIterator<Item = Option<String>>) -> Option<String> {
    let notes: Vec<String> = notes.into_iter().flatten().collect();
    (!notes.is_empty()).then(|| notes.join("; "))
}

fn index(index: Option<u32>) -> Option<String> {
    index.map(|index| index.to_string())
}

/// A limit of time, as it was asked for; `None`: no limit.
pub(crate) fn limit(compute: &ComputeReport) -> Option<String> {
    let share = Percent::short(compute.share_ppm);
    match (compute.policy, compute.soft_ppm) {
        (Policy::None, _) => None,
        (Policy::Fixed, _) => Some(share),
        (Policy::Balance, Some(soft)) => Some(format!("{share} to {}", Percent::short(soft))),
        (Policy::Balance, None) => Some(format!("{share} + idle")),
    }
}

fn container(container: &ContainerReport) -> String {
    match &container.name {
        Some(name) => cut(name, LONGEST),
        None => cut(&container.id, ID_DIGITS).replace('…', ""),
    }
}

fn shown(text: &str) -> String {
    Shown(text).to_string()
}

/// The beginning of a text that others have chosen.
fn cut(text: &str, most: usize) -> String {
    let text = shown(text);
    if text.chars().count() <= most {
        return text;
    }
    let mut short: String = text.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// UUIDs as they are shown: their beginnings, where those differ.
struct ShortIds {
    differ: bool,
}

/// The prefix, and the first group of digits.
const GROUPS: usize = 2;

impl ShortIds {
    fn of(report: &StatusReport) -> Self {
        let here = report.sessions.iter().flat_map(|session| &session.devices);
        let elsewhere = report.elsewhere.iter().flat_map(|session| &session.devices);
        let all: BTreeSet<String> = here
            .map(|device| device.uuid)
            .chain(elsewhere.map(|device| device.uuid))
            .map(|uuid| uuid.to_string())
            .collect();
        let short: BTreeSet<String> = all.iter().map(|uuid| beginning(uuid)).collect();
        Self { differ: all.len() == short.len() }
    }

    fn short(&self, uuid: GpuId) -> String {
        let uuid = uuid.to_string();
        if self.differ { beginning(&uuid) } else { uuid }
    }
}

fn beginning(uuid: &str) -> String {
    uuid.split('-').take(GROUPS).collect::<Vec<_>>().join("-")
}

/// Displays bytes, to a tenth of their unit.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&ByteSize(self.0).display().iec().to_string())
    }
}

/// Displays a memory limit for people: whole MiB as they are written, else rounded.
pub(crate) struct Limit(pub(crate) MemoryLimit);

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes: u64| match bytes.trailing_zeros() {
            20.. => Size(bytes).to_string(),
            _ => Bytes(bytes).to_string(),
        };
        f.write_str(&size(self.0.limit))?;
        match self.0.on_device() {
            all if all == self.0.limit => Ok(()),
            part => write!(f, " ({} on the device)", size(part)),
        }
    }
}

/// Displays millionths as percent, to a tenth.
#[derive(Clone, Copy)]
pub(crate) struct Percent(pub(crate) u32);

impl Percent {
    /// As it was asked for: no more digits than needed.
    fn short(ppm: u32) -> String {
        format!("{} %", f64::from(ppm) / 1e4)
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} %", f64::from(self.0) / 1e4)
    }
}

/// Displays microseconds: to a tenth of a second in the first minute, then to a second.
pub(crate) struct Seconds(pub(crate) u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MINUTE_US: u64 = 60_000_000;
        if self.0 < MINUTE_US {
            let tenths = self.0 / 100_000;
            return write!(f, "{}.{} s", tenths / 10, tenths % 10);
        }
        humantime::format_duration(Duration::from_secs(self.0 / 1_000_000)).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_rounded_for_people() {
        assert_eq!(Bytes(0).to_string(), "0 B");
        assert_eq!(Bytes(8 << 30).to_string(), "8.0 GiB");
        assert_eq!(Bytes((8 << 30) + (512 << 20) + 4096).to_string(), "8.5 GiB");
        assert_eq!(Percent(298_499).to_string(), "29.8 %");
        assert_eq!(
            (Percent::short(300_000), Percent::short(125_000)),
            ("30 %".into(), "12.5 %".into())
        );
        for (us, text) in [(0, "0.0 s"), (1_290_000, "1.2 s"), (3_661_900_000, "1h 1m 1s")] {
            assert_eq!(Seconds(us).to_string(), text);
        }
        assert_eq!(cut("python train.py --epochs 10 --lr 0.1", 16), "python train.py…");
        assert!(!cut("a\u{1b}[31m", 16).contains('\u{1b}'));
    }

    /// A table with the longest name, two usual sessions, and notes.
    fn four() -> StatusReport {
        use crate::series::tests::{compute, contained, memory, session};
        let mut long = session(&"n".repeat(64), compute(30, 0, 3_661_900_000), memory(6, 8));
        long.command = Some("tenant dense --kernel-us 2000 --seconds 90".to_owned());
        let mut over = session("serve", compute(100, 0, 6_600_000), memory(2, 2));
        over.devices[0].memory.over = 1 << 30;
        over.devices[0].memory.growth_refused = true;
        over.frozen = true;
        let mut unused = session("batch", compute(25, 0, 0), memory(1, 1));
        unused.devices.clear();
        StatusReport {
            sessions: vec![long, over, unused],
            damaged: Vec::new(),
            elsewhere: vec![contained("env-1")],
            gpus: Vec::new(),
            overcommitted: Vec::new(),
        }
    }

    /// The same without notes and containers.
    fn two() -> StatusReport {
        let mut two = four();
        two.sessions.truncate(2);
        two.sessions[1].frozen = false;
        two.sessions[1].devices[0].memory.growth_refused = false;
        two.elsewhere.clear();
        two
    }

    fn widest(table: &str) -> usize {
        table.lines().map(|line| line.chars().count()).max().unwrap()
    }

    #[test]
    fn a_table_is_no_wider_than_the_terminal() {
        for report in [two(), four()] {
            for width in 1..200 {
                let table = table(&report, Some(width));
                assert!(widest(&table) <= width, "{width}:\n{table}");
            }
            let whole = table(&report, None);
            assert_eq!(table(&report, Some(widest(&whole))), whole);
        }
    }

    #[test]
    fn what_is_least_missed_goes_first() {
        let mut found = String::new();
        for width in [80, 100, 120] {
            for report in [two(), four()] {
                found += &format!("{width} columns:\n{}\n", table(&report, Some(width)));
            }
        }
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/status.txt");
        assert_eq!(found, std::fs::read_to_string(golden).unwrap(), "{found}");
    }

    #[test]
    fn a_device_without_an_index_keeps_the_beginning_of_its_uuid() {
        let mut report = two();
        report.sessions[0].devices[0].index = None;
        let table = table(&report, Some(80));
        assert!(!table.contains("UUID") && table.contains("GPU-0101010"), "{table}");
        assert!(widest(&table) <= 80, "{table}");
    }
}
