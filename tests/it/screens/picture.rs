//! Pictures of screens as SVG.

use std::fmt::Write as _;

use vt100::{Cell, Color, Screen};

/// Size of a character, in pixels.
const WIDTH: usize = 9;
/// Height of a line, in pixels.
const HEIGHT: usize = 19;
/// Space around the text, in pixels.
const MARGIN: usize = 16;

/// Draws the lines with text of a screen, from the first line with a character on.
///
/// `steady` removes what differs between runs from a text.
pub(super) fn svg(
    screen: &Screen,
    title: &str,
    first: char,
    steady: impl Fn(&str) -> String,
) -> String {
    let (rows, columns) = screen.size();
    let text: Vec<String> = screen.rows(0, columns).collect();
    let first = text.iter().position(|line| line.contains(first));
    let first = u16::try_from(first.unwrap()).unwrap();
    let last = text.iter().rposition(|line| !line.trim().is_empty());
    let lines = u16::try_from(last.map_or(0, |last| last + 1))
        .unwrap()
        .min(rows);
    let width = usize::from(columns) * WIDTH + 2 * MARGIN;
    let height = usize::from(lines - first) * HEIGHT + 2 * MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n\
         <title>{}</title>\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"#1b1f24\"/>\n\
         <g font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"15\" fill=\"#d8dee4\">\n",
        escaped(title)
    );
    for row in first..lines {
        let y = MARGIN + usize::from(row - first) * HEIGHT + 14;
        for (column, text, style) in runs(screen, row) {
            for (start, part) in parts(&steady(&text)) {
                let length = part.chars().count() * WIDTH;
                let x = MARGIN + (column + start) * WIDTH;
                // The length keeps columns aligned in every font.
                let _ = writeln!(
                    svg,
                    "<text x=\"{x}\" y=\"{y}\" textLength=\"{length}\"{style}>{}</text>",
                    escaped(&part)
                );
            }
        }
    }
    svg.push_str("</g>\n</svg>\n");
    svg
}

/// Returns the parts of a text between several spaces, with their positions. Programs that draw
/// pictures do not keep repeated spaces.
fn parts(text: &str) -> Vec<(usize, String)> {
    let mut parts: Vec<(usize, String)> = Vec::new();
    let mut spaces = 2;
    for (position, character) in text.chars().enumerate() {
        match (character, parts.last_mut()) {
            (' ', _) => spaces += 1,
            (character, Some((_, part))) if spaces < 2 => {
                part.extend(std::iter::repeat_n(' ', spaces));
                part.push(character);
                spaces = 0;
            }
            (character, _) => {
                parts.push((position, character.to_string()));
                spaces = 0;
            }
        }
    }
    parts
}

/// Returns the runs of equally styled words of a line: column, text and style.
fn runs(screen: &Screen, row: u16) -> Vec<(usize, String, String)> {
    let mut runs: Vec<(usize, String, String)> = Vec::new();
    let (_, columns) = screen.size();
    for column in 0..columns {
        let Some(cell) = screen
            .cell(row, column)
            .filter(|cell| !cell.is_wide_continuation())
        else {
            continue;
        };
        let text = if cell.has_contents() {
            cell.contents()
        } else {
            " "
        };
        let style = style(cell);
        let column = usize::from(column);
        match runs.last_mut() {
            Some((_, run, of)) if *of == style => run.push_str(text),
            _ => runs.push((column, text.to_owned(), style)),
        }
    }
    runs.retain(|(_, text, _)| !text.trim().is_empty());
    runs
}

fn style(cell: &Cell) -> String {
    let mut style = String::new();
    let color = match cell.fgcolor() {
        Color::Idx(1 | 9) => Some("#ff7b72"),
        Color::Idx(2 | 10) => Some("#56d364"),
        Color::Idx(3 | 11) => Some("#e3b341"),
        Color::Idx(4 | 12) => Some("#79c0ff"),
        Color::Idx(5 | 13) => Some("#d2a8ff"),
        Color::Idx(6 | 14) => Some("#76e3ea"),
        Color::Idx(_) | Color::Default | Color::Rgb(..) => None,
    };
    if let Some(color) = color {
        let _ = write!(style, " fill=\"{color}\"");
    }
    if cell.bold() {
        style.push_str(" font-weight=\"bold\"");
    }
    style
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
