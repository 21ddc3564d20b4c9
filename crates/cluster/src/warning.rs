//! Parser for `Warning` headers (RFC 7234, section 5.5). The API server sends them for deprecated
//! APIs, unknown fields and pod security.

/// Returns the texts of one header with code 299. Other codes come from proxies.
pub(super) fn read(header: &str) -> Vec<String> {
    let mut texts = Vec::new();
    let mut rest = header.trim_start();
    while let Some((code, after)) = rest.split_once(' ') {
        let Some((_agent, after)) = after.split_once(' ') else {
            break;
        };
        let Some((text, after)) = quoted(after) else {
            break;
        };
        if code == "299" {
            texts.push(text);
        }
        // A quoted date can follow.
        let after = quoted(after.trim_start()).map_or(after, |(_, after)| after);
        rest = after.trim_start().trim_start_matches(',').trim_start();
    }
    texts
}

fn quoted(text: &str) -> Option<(String, &str)> {
    let inner = text.strip_prefix('"')?;
    let mut value = String::new();
    let mut escaped = false;
    for (index, char) in inner.char_indices() {
        match char {
            '\\' if !escaped => escaped = true,
            '"' if !escaped => return Some((value, inner.split_at(index + 1).1)),
            _ => {
                escaped = false;
                value.push(char);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(r#"299 - "unknown field \"spec.foo\"""#, &["unknown field \"spec.foo\""])]
    #[case(r#"299 - "a, b", 299 kube-apiserver "c" "Wed, 21 Oct 2026 07:28:00 GMT""#, &["a, b", "c"])]
    #[case(r#"110 proxy "stale", 299 - "b""#, &["b"])]
    #[case(r#"299 - "open"#, &[])]
    #[case("", &[])]
    fn texts_are_read(#[case] header: &str, #[case] expected: &[&str]) {
        assert_eq!(read(header), expected);
    }
}
