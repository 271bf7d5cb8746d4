//! Parts of lines: bars, history, and figures that fit.

use ratatui::style::Style;
use ratatui::text::Span;

use limits::Shown;
use protocol::sessions::ComputeReport;

use crate::status;

const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const LEFT_EIGHTHS: [char; 9] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];
/// What is not filled of a bar.
const EMPTY: char = '·';
const MARK: char = '│';
const MARK_PASSED: char = '┃';

/// A part of something: `of` is all of it.
#[derive(Clone, Copy, Debug)]
pub(in crate::top) struct Part {
    pub(in crate::top) value: u64,
    pub(in crate::top) of: u64,
}

impl Part {
    /// In steps of which there are `steps`; never more than all.
    fn steps(self, steps: usize) -> usize {
        let steps = steps as u128;
        let found = u128::from(self.value) * steps;
        let found = (found + u128::from(self.of) / 2).checked_div(u128::from(self.of)).unwrap_or(0);
        usize::try_from(found.min(steps)).unwrap_or(0)
    }
}

/// A bar, with a mark where a limit is.
pub(in crate::top) fn bar(
    value: Option<Part>,
    mark: Option<Part>,
    width: usize,
    styles: [Style; 2],
) -> Vec<Span<'static>> {
    let filled = value.map_or(0, |part| part.steps(width * 8));
    // A limit of all of it is the bar's end.
    let mark = mark.map(|part| part.steps(width)).filter(|at| *at < width);
    let cell = |at: usize| match filled.saturating_sub(at * 8).min(8) {
        _ if Some(at) == mark => {
            (if filled > at * 8 + 4 { MARK_PASSED } else { MARK }, styles.get(1).copied())
        }
        0 => (EMPTY, None),
        eighths => (*LEFT_EIGHTHS.get(eighths).unwrap_or(&EMPTY), styles.first().copied()),
    };
    let mut spans: Vec<(String, Style)> = Vec::new();
    for at in 0..width {
        let (c, style) = cell(at);
        let style = style.unwrap_or_default();
        match spans.last_mut() {
            Some((text, before)) if *before == style => text.push(c),
            _ => spans.push((c.to_string(), style)),
        }
    }
    spans.into_iter().map(|(text, style)| Span::styled(text, style)).collect()
}

/// The last values, one cell each; what is not known is blank. The newest is on the right.
pub(in crate::top) fn history(
    values: impl DoubleEndedIterator<Item = Option<u64>>,
    most: u64,
    width: usize,
) -> String {
    graph(values, most, (width, 1), None).pop().unwrap_or_default()
}

/// The same, several lines high, with a line where a limit is.
pub(in crate::top) fn graph(
    values: impl DoubleEndedIterator<Item = Option<u64>>,
    most: u64,
    (width, height): (usize, usize),
    limit: Option<u64>,
) -> Vec<String> {
    let mut last: Vec<Option<u64>> = values.rev().take(width).collect();
    last.resize(width, None);
    last.reverse();
    let limit = limit.map(|value| Part { value, of: most }.steps(height * 8));
    let row = |row: usize| {
        let below = (height - 1 - row) * 8;
        let is_limit = limit.is_some_and(|limit| limit > below && limit <= below + 8);
        let cell = |value: &Option<u64>| match value {
            None => ' ',
            Some(value) => {
                let steps = Part { value: *value, of: most }.steps(height * 8);
                let eighths = steps.saturating_sub(below).min(8);
                // Something is more than nothing.
                let eighths = if below == 0 && *value > 0 { eighths.max(1) } else { eighths };
                if eighths == 0 && is_limit { '╌' } else { *EIGHTHS.get(eighths).unwrap_or(&' ') }
            }
        };
        last.iter().map(cell).collect()
    };
    (0..height).map(row).collect()
}

/// A text of others, cut or filled up to a width.
pub(in crate::top) fn fit(text: &str, width: usize) -> String {
    let text = Shown(text).to_string();
    let length = text.chars().count();
    if length <= width {
        return format!("{text:<width$}");
    }
    let short: String = text.chars().take(width.saturating_sub(1)).collect();
    if width == 0 { short } else { short + "…" }
}

/// A figure on the right of its column. One that does not fit is not cut.
pub(in crate::top) fn right(text: &str, width: usize) -> String {
    format!("{text:>width$}")
}

/// Millionths as percent, to a tenth.
pub(in crate::top) fn percent(ppm: Option<u32>) -> String {
    ppm.map_or_else(|| "-".to_owned(), |ppm| status::Percent(ppm).to_string())
}

/// A limit of time in few characters.
pub(in crate::top) fn limit(compute: Option<&ComputeReport>) -> String {
    let text = compute.and_then(status::limit);
    text.map_or_else(
        || "-".to_owned(),
        |text| text.replace(" % to ", "-").replace(" % + idle", " %+"),
    )
}

/// A duration in five characters or so.
pub(in crate::top) fn duration(us: Option<u64>) -> String {
    let Some(us) = us else { return "-".to_owned() };
    let (seconds, tenths) = (us / 1_000_000, us / 100_000 % 10);
    match seconds {
        0..60 => format!("{seconds}.{tenths}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(value: u64, mark: Option<u64>, width: usize) -> String {
        let part = |value| Part { value, of: 100 };
        let spans = bar(Some(part(value)), mark.map(part), width, [Style::new(); 2]);
        spans.iter().map(|span| span.content.as_ref()).collect()
    }

    #[test]
    fn bars_have_a_mark_at_the_limit() {
        for (value, mark, text) in [
            (0, None, "········"),
            (100, None, "████████"),
            (999, Some(100), "████████"),
            (50, Some(50), "████│···"),
            (25, Some(50), "██··│···"),
            (90, Some(50), "████┃██▎"),
            (1, None, "▏·······"),
        ] {
            assert_eq!(drawn(value, mark, 8), text, "{value} {mark:?}");
        }
        assert_eq!(drawn(50, None, 0), "");
        let unknown = bar(None, None, 3, [Style::new(); 2]);
        assert_eq!(unknown[0].content, "···");
        // Nothing of nothing.
        assert_eq!(Part { value: 5, of: 0 }.steps(8), 0);
    }

    #[test]
    fn history_grows_from_the_right() {
        let line = |values: &[u64], width| history(values.iter().map(|v| Some(*v)), 100, width);
        assert_eq!(line(&[0, 50, 100], 5), "   ▄█");
        assert_eq!(line(&[1, 50, 100, 200], 2), "██");
        assert_eq!(history([None, Some(1)].into_iter(), 100, 3), "  ▁");
        let high = graph([Some(25), Some(75), None].into_iter(), 100, (3, 2), Some(50));
        assert_eq!(high, [" ▄ ", "▄█ "]);
        let limited = graph([Some(10), Some(0)].into_iter(), 100, (2, 4), Some(75));
        assert_eq!(limited, ["  ", "╌╌", "  ", "▃ "]);
    }

    #[test]
    fn texts_and_figures_fit() {
        assert_eq!((fit("abc", 5).as_str(), fit("abcdef", 4).as_str()), ("abc  ", "abc…"));
        assert_eq!((fit("a", 0).as_str(), fit("\u{1b}[m", 9).contains('\u{1b}')), ("", false));
        for (us, text) in [
            (0, "0.0s"),
            (59_990_000, "59.9s"),
            (61_000_000, "1m01s"),
            (3_660_000_000, "1h01m"),
            (90_000_000_000, "1d01h"),
        ] {
            assert_eq!(duration(Some(us)), text);
        }
        assert_eq!((duration(None).as_str(), percent(None).as_str()), ("-", "-"));
        assert_eq!(percent(Some(498_000)), "49.8 %");
    }
}
