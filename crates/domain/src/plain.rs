//! Text of others, as it can be shown.

/// Text of others without what would move the cursor, change colors, or be
/// shown in another order than it is written in.
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

/// Whether a terminal may do something else than show a character.
pub fn steers(character: char) -> bool {
    character.is_control() || turns(character)
}

/// Whether what follows may be shown in another order than it is written in
/// (CVE-2021-42574).
fn turns(character: char) -> bool {
    matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

/// As much of a text as is read, with how much was left out.
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
    fn what_moves_the_cursor_or_the_order_is_written_out() {
        assert_eq!(plain("a\tb\nc\u{1b}[2J \n"), "a\tb\nc\\u{1b}[2J");
        assert_eq!(
            plain("\u{202e}x\u{85}y\u{2066}"),
            "\\u{202e}x\\u{85}y\\u{2066}"
        );
    }

    #[test]
    fn a_long_text_is_cut_and_says_so() {
        assert_eq!(clipped("äöü", 3), "äöü");
        assert_eq!(clipped("äöüß", 3), "äöü… (1 more characters)");
    }
}
