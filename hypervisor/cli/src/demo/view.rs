//! The demo's output: on a terminal, a table that is drawn over; elsewhere, a line a second; with
//! `--json`, only the result.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use super::verdict::DemoReport;
use crate::Error;

/// Width of a bar, in characters.
const BAR: usize = 40;
/// How often a line is printed if the table cannot be drawn over.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// The state while both run.
pub(super) struct Live {
    pub(super) elapsed: f64,
    pub(super) length: f64,
    pub(super) tenants: Vec<TenantRow>,
}

/// A tenant's part in it.
pub(super) struct TenantRow {
    pub(super) name: &'static str,
    pub(super) limit: f64,
    /// Share of the native rate over the last moments.
    pub(super) now: f64,
}

enum Style {
    /// A terminal, on which lines can be drawn over. This many have been drawn.
    Terminal {
        drawn: usize,
        bars: Bars,
    },
    /// Plain lines.
    Lines {
        last: Option<Instant>,
    },
    Json,
}

/// Characters of a bar: full, empty.
#[derive(Clone, Copy)]
struct Bars(char, char);

const BLOCKS: Bars = Bars('█', '░');
const ASCII: Bars = Bars('#', '.');

/// Shows the demo.
pub(super) struct DemoView {
    style: Style,
}

impl DemoView {
    pub(super) fn new(json: bool) -> Self {
        let style = if json {
            Style::Json
        } else if io::stdout().is_terminal() {
            Style::Terminal { drawn: 0, bars: if unicode() { BLOCKS } else { ASCII } }
        } else {
            Style::Lines { last: None }
        };
        Self { style }
    }

    /// Prints a line that stays.
    pub(super) fn line(&mut self, text: &str) {
        if !matches!(self.style, Style::Json) {
            print(&format!("{text}\n"));
        }
    }

    /// Shows what is being done, until [`Self::done`] replaces it.
    pub(super) fn working(&mut self, text: &str) {
        if let Style::Terminal { drawn, .. } = &mut self.style {
            print(&format!("{text} ...\n"));
            *drawn = 1;
        }
    }

    /// Replaces the line of [`Self::working`] by one that stays.
    pub(super) fn done(&mut self, text: &str) {
        self.wipe();
        self.line(text);
    }

    /// Shows the state while both run.
    pub(super) fn live(&mut self, live: &Live) {
        match &mut self.style {
            Style::Json => {}
            Style::Terminal { drawn, bars } => {
                let text = table(live, *bars);
                // In one write, so that nothing flickers.
                print(&(wiped(*drawn) + &text));
                *drawn = text.lines().count();
            }
            Style::Lines { last } => {
                if last.get_or_insert_with(Instant::now).elapsed() >= LINE_EVERY {
                    *last = Some(Instant::now());
                    print(&line(live));
                }
            }
        }
    }

    /// Prints the result.
    ///
    /// # Errors
    /// [`Error::System`] if stdout cannot be written to.
    pub(super) fn finish(&mut self, report: &DemoReport) -> Result<(), Error> {
        let text = match self.style {
            Style::Json => serde_json::to_string(report).map(|line| line + "\n"),
            Style::Lines { .. } => Ok(format!("\n{}", report.table(false))),
            Style::Terminal { .. } => {
                let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
                Ok(format!("\n{}", report.table(!plain)))
            }
        };
        text.map_err(io::Error::from)
            .and_then(|text| io::stdout().write_all(text.as_bytes()))
            .map_err(|e| Error::system("cannot write the result", e))
    }

    /// Removes the lines that may be drawn over.
    fn wipe(&mut self) {
        if let Style::Terminal { drawn, .. } = &mut self.style {
            print(&wiped(*drawn));
            *drawn = 0;
        }
    }
}

/// Cursor to the first of the last `lines` lines, then erase to the end of the screen (ECMA-48 CPL,
/// ED).
fn wiped(lines: usize) -> String {
    if lines == 0 { String::new() } else { format!("\x1b[{lines}F\x1b[J") }
}

/// Prints progress. A failure is not reported.
fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn table(live: &Live, bars: Bars) -> String {
    let mut text = String::from("3/3  sharing: both at once\n\n");
    for tenant in &live.tenants {
        let _ = writeln!(
            text,
            "  {:<9} {}  {:>5.1} %  of {:>3.0} %",
            tenant.name,
            bar(tenant.now, bars),
            tenant.now * 100.0,
            tenant.limit * 100.0
        );
    }
    let done = live.elapsed / live.length;
    let _ = writeln!(
        text,
        "\n  {:<9} {}  {:>5.1} s  of {:>3.0} s",
        "time",
        bar(done, bars),
        live.elapsed,
        live.length
    );
    text
}

fn line(live: &Live) -> String {
    let tenants: Vec<_> = live
        .tenants
        .iter()
        .map(|t| format!("{} {:.1} % (limit {:.0} %)", t.name, t.now * 100.0, t.limit * 100.0))
        .collect();
    format!("     {:>4.1} s   {}\n", live.elapsed, tenants.join("   "))
}

fn bar(part: f64, Bars(full, empty): Bars) -> String {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to BAR")]
    let filled = (part.clamp(0.0, 1.0) * 40.0).round() as usize;
    let mut text: String = std::iter::repeat_n(full, filled).collect();
    text.extend(std::iter::repeat_n(empty, BAR.saturating_sub(filled)));
    text
}

/// Whether the terminal's locale is one for UTF-8, as setlocale(3) decides.
fn unicode() -> bool {
    let set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    ["LC_ALL", "LC_CTYPE", "LANG"].iter().find(|name| set(name)).is_some_and(|name| {
        let value = std::env::var(name).unwrap_or_default().to_ascii_lowercase();
        value.contains("utf-8") || value.contains("utf8")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_stay_within_their_width() {
        for part in [0.0, 0.25, 1.0, 3.0, -1.0, f64::NAN] {
            assert_eq!(bar(part, ASCII).chars().count(), BAR, "{part}");
        }
        assert_eq!(bar(0.25, ASCII).matches('#').count(), 10);
    }

    #[test]
    fn the_table_fits_a_terminal_of_80_columns() {
        let tenants = vec![TenantRow { name: "tenant-b", limit: 0.75, now: 1.2345 }];
        let live = Live { elapsed: 12.3, length: 300.0, tenants };
        for text in [table(&live, BLOCKS), line(&live)] {
            assert!(text.ends_with('\n'));
            assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
        }
    }
}
