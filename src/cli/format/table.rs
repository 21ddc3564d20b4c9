//! Tables.

use super::findings::plain;
use super::style::PLACE;

/// Aligns rows below their headings. The last column has no fixed width. Cells can contain
/// untrusted text, so each is reduced to one line without control characters.
pub(super) fn table<const COLUMNS: usize>(
    headings: [&str; COLUMNS],
    rows: &[[String; COLUMNS]],
) -> Vec<String> {
    let rows: Vec<[String; COLUMNS]> = rows
        .iter()
        .map(|row| std::array::from_fn(|column| one_line(&row[column])))
        .collect();
    let widths: [usize; COLUMNS] = std::array::from_fn(|column| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .chain([headings[column].len()])
            .max()
            .unwrap_or_default()
    });
    let line = |cells: &[&str]| {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(widths) {
            if !line.is_empty() {
                line.push_str("  ");
            }
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', width - cell.chars().count()));
        }
        line.trim_end().to_owned()
    };
    let mut lines = vec![format!("{PLACE}{}{PLACE:#}", line(&headings))];
    for row in &rows {
        let cells: Vec<&str> = row.iter().map(String::as_str).collect();
        lines.push(line(&cells));
    }
    lines
}

/// Returns the text on one line without control characters.
pub(crate) fn one_line(text: &str) -> String {
    plain(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_cells_have_one_line() {
        let rows = [
            ["prod/web".to_owned(), "ü\nx".to_owned()],
            ["a".to_owned(), String::new()],
        ];
        let lines = table(["RELEASE", "B"], &rows).join("\n");
        assert_eq!(
            anstream::adapter::strip_str(&lines).to_string(),
            "RELEASE   B\nprod/web  ü x\na"
        );
    }
}
