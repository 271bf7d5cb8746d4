//! A terminal as SVG, for documents.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

use crate::Error;

/// The size of a character.
const WIDTH: usize = 8;
const HEIGHT: usize = 17;
/// How far below its top a character stands.
const BASE: usize = 13;
const MARGIN: usize = 10;
const BACKGROUND: &str = "#11161d";
const FOREGROUND: &str = "#d5dae0";

/// Writes a picture.
pub(super) fn write(path: &Path, buffer: &Buffer) -> Result<(), Error> {
    fs::write(path, svg(buffer))
        .map_err(|error| Error::system(format!("cannot write {}", path.display()), error))
}

fn svg(buffer: &Buffer) -> String {
    let area = buffer.area;
    let (columns, rows) = (usize::from(area.width), usize::from(area.height));
    let (width, height) = (columns * WIDTH + 2 * MARGIN, rows * HEIGHT + 2 * MARGIN);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"{BACKGROUND}\"/>\n\
         <g font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"13\" xml:space=\"preserve\">\n"
    );
    for (row, line) in buffer.content.chunks(columns.max(1)).enumerate() {
        let mut at = 0;
        for run in line.chunk_by(|a, b| looks(a) == looks(b)) {
            draw(&mut text, run, MARGIN + at * WIDTH, MARGIN + row * HEIGHT);
            at += run.len();
        }
    }
    text + "</g>\n</svg>\n"
}

/// Colour, background, and whether it is bold.
fn looks(cell: &Cell) -> (&'static str, Option<&'static str>, bool) {
    let color = match cell.fg {
        Color::DarkGray => "#8a94a0",
        Color::Green => "#58c274",
        Color::Cyan => "#4fb8d8",
        Color::Yellow => "#e0b34c",
        Color::Magenta => "#d583d9",
        Color::Red => "#f0675e",
        _ => FOREGROUND,
    };
    let bold = cell.modifier.contains(Modifier::BOLD);
    if cell.modifier.contains(Modifier::REVERSED) {
        (color, Some("#2c3a4a"), bold)
    } else {
        (color, None, bold)
    }
}

fn draw(text: &mut String, run: &[Cell], x: usize, y: usize) {
    let Some(first) = run.first() else { return };
    let (color, background, bold) = looks(first);
    let width = run.len() * WIDTH;
    if let Some(background) = background {
        let _ = writeln!(
            text,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{HEIGHT}\" fill=\"{background}\"/>"
        );
    }
    let content: String = run.iter().map(Cell::symbol).collect();
    if content.trim().is_empty() {
        return;
    }
    let content = content.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let weight = if bold { " font-weight=\"bold\"" } else { "" };
    let _ = writeln!(
        text,
        "<text x=\"{x}\" y=\"{}\" textLength=\"{width}\" lengthAdjust=\"spacingAndGlyphs\" \
         fill=\"{color}\"{weight}>{content}</text>",
        y + BASE
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::layout::Rect;
    use ratatui::style::Style;

    #[test]
    fn runs_of_one_look_become_one_text() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 8, 2));
        buffer.set_string(0, 0, "a<b", Style::new());
        buffer.set_string(3, 0, "cd", Style::new().fg(Color::Red).add_modifier(Modifier::BOLD));
        buffer.set_string(0, 1, "x", Style::new().add_modifier(Modifier::REVERSED));
        let svg = svg(&buffer);
        assert!(svg.contains(">a&lt;b</text>"), "{svg}");
        assert!(svg.contains("font-weight=\"bold\">cd</text>"), "{svg}");
        assert_eq!(svg.matches("<text").count(), 3);
        assert_eq!(svg.matches("<rect").count(), 2);
    }
}
