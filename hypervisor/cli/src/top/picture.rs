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
    // Fonts disagree about the width of block elements and of blanks, so neither is left to them.
    for (start, word) in words(run) {
        let x = x + start * WIDTH;
        if let Some(block) = word.first().and_then(block) {
            for at in 0..word.len() {
                block.draw(text, x + at * WIDTH, y, color);
            }
            continue;
        }
        let content: String = word.iter().map(Cell::symbol).collect();
        let content = content.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let weight = if bold { " font-weight=\"bold\"" } else { "" };
        let _ = writeln!(
            text,
            "<text x=\"{x}\" y=\"{}\" textLength=\"{}\" lengthAdjust=\"spacingAndGlyphs\" \
             fill=\"{color}\"{weight}>{content}</text>",
            y + BASE,
            word.len() * WIDTH
        );
    }
}

/// The parts between blanks, with their columns. A block element is never together with text or another one.
fn words(run: &[Cell]) -> impl Iterator<Item = (usize, &[Cell])> {
    let parts = run.chunk_by(|a, b| {
        let blank = |cell: &Cell| cell.symbol() == " ";
        blank(a) == blank(b) && block(a) == block(b)
    });
    let mut at = 0;
    let placed = parts.map(move |part| {
        at += part.len();
        (at - part.len(), part)
    });
    placed.filter(|(_, part)| part.first().is_some_and(|cell| cell.symbol() != " "))
}

/// The part of a cell that a block element fills, in eighths.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Block {
    wide: usize,
    high: usize,
}

impl Block {
    /// It stands on the cell's floor, at its left side.
    fn draw(self, text: &mut String, x: usize, y: usize, color: &str) {
        let (width, height) = (WIDTH * self.wide / 8, (HEIGHT * self.high / 8).max(1));
        let _ = writeln!(
            text,
            "<rect x=\"{x}\" y=\"{}\" width=\"{width}\" height=\"{height}\" fill=\"{color}\"/>",
            y + HEIGHT - height
        );
    }
}

fn block(cell: &Cell) -> Option<Block> {
    let eighths = |from: u32, code: u32| usize::try_from(code.abs_diff(from)).unwrap_or(8);
    match u32::from(cell.symbol().chars().next()?) {
        code @ 0x2581..=0x2588 => Some(Block { wide: 8, high: eighths(0x2580, code) }),
        code @ 0x2589..=0x258f => Some(Block { wide: eighths(0x2590, code), high: 8 }),
        _ => None,
    }
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

    #[test]
    fn blocks_are_drawn_and_words_stand_in_their_columns() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 8, 1));
        buffer.set_string(0, 0, "a  \u{2588}\u{258c} b", Style::new());
        let svg = svg(&buffer);
        assert!(!svg.contains(['\u{2588}', '\u{258c}']), "{svg}");
        for (at, width) in [(3, 8), (4, 4)] {
            let x = MARGIN + at * WIDTH;
            assert!(svg.contains(&format!("<rect x=\"{x}\" y=\"10\" width=\"{width}\"")), "{svg}");
        }
        assert!(svg.contains(&format!("<text x=\"{}\"", MARGIN + 6 * WIDTH)), "{svg}");
    }
}
