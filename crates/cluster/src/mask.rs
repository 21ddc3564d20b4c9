//! Masks values in server messages about secret objects.
//!
//! The server quotes rejected values (`Invalid value: "hunter2"`). Names stay readable. They are
//! recognized by the words before them.

use std::borrow::Cow;

use pleach_model::object::from_base64;
use serde_json::Value;

/// Replacement of a value.
const MASK: &str = "<masked>";

/// Words before a quoted text that announce a name and not a value.
const NAMES: [&str; 12] = [
    "conflict with",
    "conflicts with",
    "subresource",
    "webhook",
    "namespace",
    "namespaces",
    "secrets",
    "Secret",
    "User",
    "user",
    "resource",
    "group",
];

/// Minimum length of a masked value. Shorter ones would match ordinary words; quoted ones are
/// masked anyway.
const SHORTEST: usize = 4;

/// Secret values of one object.
#[derive(Default)]
pub(super) struct Mask {
    /// Longest first, so that no part of a value remains.
    values: Vec<String>,
}

impl Mask {
    /// Collects the values of a request body and of the object itself. Webhooks can repeat them in
    /// any form.
    pub(super) fn of(body: &[u8], object: Option<&Value>) -> Self {
        let mut values = Vec::new();
        let sent = serde_json::from_slice::<Value>(body).ok();
        for value in sent.iter().chain(object) {
            collect(value, &mut values);
        }
        values.retain(|value| value.len() >= SHORTEST);
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        values.dedup();
        Self { values }
    }

    /// Returns the message with all values masked.
    pub(super) fn apply(&self, message: &str) -> String {
        let mut message = mask(message);
        for value in &self.values {
            message = message.replace(value, MASK);
        }
        message
    }
}

/// Collects the strings of an object, except fields that identify it.
fn collect(value: &Value, values: &mut Vec<String>) {
    match value {
        Value::String(text) => {
            let decoded = from_base64(text);
            values.extend(decoded.and_then(|bytes| String::from_utf8(bytes).ok()));
            values.push(text.clone());
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, values)),
        Value::Object(fields) => fields
            .iter()
            .filter(|(key, _)| !matches!(key.as_str(), "apiVersion" | "kind" | "metadata" | "type"))
            .for_each(|(_, field)| collect(field, values)),
        Value::Number(number) => values.push(number.to_string()),
        Value::Null | Value::Bool(_) => {}
    }
}

/// Masks quoted strings and unquoted values in the message.
fn mask(message: &str) -> String {
    let message = mask_unquoted(message);
    let mut masked = String::with_capacity(message.len());
    let mut rest: &str = &message;
    while let Some(start) = rest.find('"') {
        let (before, quoted) = rest.split_at(start);
        let (literal, after) = quoted.split_at(quoted_len(quoted));
        masked.push_str(before);
        if NAMES.iter().any(|word| before.trim_end().ends_with(word)) {
            masked.push_str(literal);
        } else {
            masked.push_str(MASK);
        }
        rest = after;
    }
    masked.push_str(rest);
    masked
}

/// Returns the length of the quoted string at the start of `text`, in bytes with its quotes.
/// Returns the length of the whole text if the quote is not closed.
fn quoted_len(text: &str) -> usize {
    let mut escaped = false;
    for (index, char) in text.char_indices().skip(1) {
        match char {
            '\\' if !escaped => escaped = true,
            '"' if !escaped => return index + 1,
            _ => escaped = false,
        }
    }
    text.len()
}

/// Masks unquoted numbers, maps and lists: `Invalid value: {…}: reason`,
/// `valueUnstructured{Value:17}`. Their end cannot be detected, so the mask extends to the last `:
/// ` of the line.
fn mask_unquoted(message: &str) -> Cow<'_, str> {
    const STARTS: [&str; 5] = [
        "nvalid value: ",
        "nsupported value: ",
        "uplicate value: ",
        "valueUnstructured{",
        "error found in ",
    ];
    if !STARTS.iter().any(|start| message.contains(start)) {
        return Cow::Borrowed(message);
    }
    let lines: Vec<String> = message
        .split('\n')
        .map(|line| {
            let start = STARTS
                .iter()
                .filter_map(|start| Some(line.find(start)? + start.len()))
                .min();
            let Some((head, tail)) = start.and_then(|at| line.split_at_checked(at)) else {
                return line.to_owned();
            };
            let reason = if tail.starts_with('"') {
                tail.split_at(quoted_len(tail)).1
            } else {
                tail.rfind(": ").map_or("", |at| tail.split_at(at).1)
            };
            format!("{head}{MASK}{}", mask_unquoted(reason))
        })
        .collect();
    Cow::Owned(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(
        r#"Secret "db" is invalid: data[k]: Invalid value: "hunter2": must be short"#,
        r#"Secret "db" is invalid: data[k]: Invalid value: <masked>: must be short"#
    )]
    #[case(
        r#"data: Invalid value: {"k":"hunter2: x"}: field is immutable when `immutable` is set"#,
        "data: Invalid value: <masked>: field is immutable when `immutable` is set"
    )]
    #[case(
        r#"[a: Invalid value: "hunter2": no, b: Invalid value: "hunter3": no]"#,
        "[a: Invalid value: <masked>: no, b: Invalid value: <masked>: no]"
    )]
    #[case(
        r#"Invalid value: "a \"hunter2\" b": no"#,
        "Invalid value: <masked>: no"
    )]
    #[case(
        ".data.k: expected string, got &value.valueUnstructured{Value:17}",
        ".data.k: expected string, got &value.valueUnstructured{<masked>"
    )]
    #[case(
        r#"admission webhook "w.x.io" denied the request: password "hunter2" is weak"#,
        r#"admission webhook "w.x.io" denied the request: password <masked> is weak"#
    )]
    #[case(
        r#"conflict with "other" using v1"#,
        r#"conflict with "other" using v1"#
    )]
    #[case(r#"namespaces "none" not found"#, r#"namespaces "none" not found"#)]
    #[case(r#"an open "quote"#, "an open <masked>")]
    #[case("no values here", "no values here")]
    fn values_are_masked_and_names_stay(#[case] message: &str, #[case] expected: &str) {
        assert_eq!(mask(message), expected);
    }

    #[rstest]
    #[case("password hunter2 is weak", "password <masked> is weak")]
    #[case("password aHVudGVyMg== is weak", "password <masked> is weak")]
    #[case("password secret44 is weak", "password <masked> is weak")]
    #[case("hunter2hunter3", "<masked>")]
    #[case("pin 123456 is weak", "pin <masked> is weak")]
    #[case("Secret web of type Opaque", "Secret web of type Opaque")]
    fn sent_values_are_masked(#[case] message: &str, #[case] expected: &str) {
        let body = serde_json::json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": "web"}, "pin": 123_456, "short": "of",
            "data": {"a": "aHVudGVyMg==", "b": ["hunter2hunter3"], "c": "c2VjcmV0\nNDQ=\n"}});
        let mask = Mask::of(body.to_string().as_bytes(), None);
        assert_eq!(mask.apply(message), expected);
    }
}
