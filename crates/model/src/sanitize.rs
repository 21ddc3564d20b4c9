//! Makes foreign text safe for output.

/// Escapes characters that control a terminal, reorder text or are invisible. Trailing white space
/// is removed.
pub fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.trim_end().chars() {
        match character {
            '\n' | '\t' => plain.push(character),
            _ if steers(character) => plain.extend(character.escape_unicode()),
            _ => plain.push(character),
        }
    }
    plain
}

/// Escapes text like [`plain`] and joins its lines.
pub fn one_line(text: &str) -> String {
    plain(text).replace(['\n', '\t'], " ")
}

/// Returns whether a terminal possibly interprets a character instead of showing it.
pub fn steers(character: char) -> bool {
    character.is_control() || reorders(character) || hides(character)
}

/// Returns whether a character is invisible or an unusual line break.
///
/// Such a character makes different texts look equal, or one line look like two.
fn hides(character: char) -> bool {
    matches!(
        character,
        '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180e}' | '\u{200b}'..='\u{200d}' | '\u{2028}' | '\u{2029}'
            | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}' | '\u{e0100}'..='\u{e01ef}'
    )
}

/// Returns whether a character changes the order of the following text (CVE-2021-42574).
fn reorders(character: char) -> bool {
    matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

/// Truncates a text to a number of characters. Appends the number of omitted characters.
pub fn clipped(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        None => text.to_owned(),
        Some((end, _)) => {
            let more = text[end..].chars().count();
            format!("{}… ({more} more characters)", &text[..end])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(plain("a\tb\nc\u{1b}[2J \n"), "a\tb\nc\\u{1b}[2J");
        assert_eq!(
            plain("\u{202e}x\u{85}y\u{2066}"),
            "\\u{202e}x\\u{85}y\\u{2066}"
        );
    }

    #[test]
    fn invisible_characters_and_line_separators_are_escaped() {
        for (text, expected) in [
            ("a\u{200b}b", "a\\u{200b}b"),
            ("a\u{200d}b", "a\\u{200d}b"),
            ("\u{feff}a", "\\u{feff}a"),
            ("a\u{2060}", "a\\u{2060}"),
            ("a\u{ad}b", "a\\u{ad}b"),
            ("a\u{2028}b\u{2029}c", "a\\u{2028}b\\u{2029}c"),
            ("a\u{e0041}", "a\\u{e0041}"),
            ("a\u{fe0f}\u{fe00}", "a\\u{fe0f}\\u{fe00}"),
            ("a\u{e0100}\u{e01ef}", "a\\u{e0100}\\u{e01ef}"),
            ("\u{3164}", "\\u{3164}"),
            ("äöü ß — “quoted” 日本", "äöü ß — “quoted” 日本"),
        ] {
            assert_eq!(plain(text), expected);
        }
    }

    #[test]
    fn one_line_contains_no_line_break() {
        assert_eq!(one_line("a\tb\nc\u{200b}\u{1b}\n"), "a b c\\u{200b}\\u{1b}");
    }

    #[test]
    fn a_long_text_is_cut_with_a_note() {
        assert_eq!(clipped("äöü", 3), "äöü");
        assert_eq!(clipped("äöüß", 3), "äöü… (1 more characters)");
    }
}
