//! Makes a table as narrow as a terminal. What is least missed goes first.

use ratatui::text::Span;

use super::table::{COLUMNS, Column, Row};

/// Between two columns.
pub(super) const GAP: u16 = 2;

/// What is done, one after the other, until the table fits.
enum Step {
    /// Leave a column out.
    Drop(Column),
    /// Cut a column's cells, to no less than so many letters.
    Cut(Column, usize),
}

/// docs/operations.md says the same.
const STEPS: [Step; 13] = [
    Step::Drop(Column::Uuid),
    Step::Cut(Column::Command, 12),
    Step::Drop(Column::Command),
    Step::Cut(Column::Name, 16),
    Step::Cut(Column::Container, 12),
    Step::Cut(Column::User, 8),
    Step::Cut(Column::Name, 8),
    Step::Cut(Column::Note, 24),
    Step::Drop(Column::Waited),
    Step::Drop(Column::SoFar),
    Step::Drop(Column::User),
    Step::Drop(Column::Container),
    Step::Cut(Column::Note, 8),
];

/// Changes the rows so that their table is no wider than `width`, as far as these steps go.
pub(super) fn fit(rows: &mut [Row], width: usize) {
    let whole = rows.to_vec();
    for step in STEPS {
        let over = needed(rows).saturating_sub(width);
        if over == 0 {
            break;
        }
        match step {
            Step::Drop(column) => rows.iter_mut().for_each(|row| row.leave_out(column)),
            Step::Cut(column, least) => {
                let most = width_of(rows, column).saturating_sub(over).max(least);
                rows.iter_mut().for_each(|row| row.cut(column, most));
            }
        }
    }
    // A column that was left out may have made more room than was needed.
    for column in [Column::Note, Column::Name] {
        let most = width_of(rows, column) + width.saturating_sub(needed(rows));
        for (row, whole) in rows.iter_mut().zip(&whole) {
            row.cut_anew(column, whole, most);
        }
    }
}

/// The width of the whole table.
fn needed(rows: &[Row]) -> usize {
    let widths = COLUMNS.iter().map(|(column, ..)| width_of(rows, *column));
    let shown = widths.filter(|width| *width > 0);
    let gap = usize::from(GAP);
    shown.map(|width| width + gap).sum::<usize>().saturating_sub(gap)
}

/// 0: the column is not shown.
fn width_of(rows: &[Row], column: Column) -> usize {
    if !rows.iter().any(|row| row.has(column)) {
        return 0;
    }
    let cells = rows.iter().map(|row| columns_of(row.text(column)));
    cells.chain([columns_of(column.title())]).max().unwrap_or(0)
}

/// How many columns of a terminal a text takes.
fn columns_of(text: &str) -> usize {
    Span::raw(text).width()
}

/// The beginning of a text, in so many columns of a terminal.
pub(super) fn beginning_of(text: &str, most: usize) -> String {
    if columns_of(text) <= most {
        return text.to_owned();
    }
    let mut short = text.to_owned();
    while columns_of(&short) >= most.max(1) && short.pop().is_some() {}
    short.push('…');
    short
}
