//! Owners of conflicting fields, from the causes of a 409.

use pleach_planner::observe::FieldConflict;

use crate::status::Status;

/// Returns the conflicts in a Status. Empty if the Status is about something else.
pub(super) fn fields(status: &Status) -> Vec<FieldConflict> {
    status
        .details
        .causes
        .iter()
        .filter(|cause| cause.reason == "FieldManagerConflict")
        .map(|cause| {
            let (manager, api_version) = manager(&cause.message);
            FieldConflict {
                manager,
                api_version,
                field: cause.field.clone(),
            }
        })
        .collect()
}

/// Reads `conflict with "m"[ with subresource "s"][ using v][ at t]`.
fn manager(message: &str) -> (String, Option<String>) {
    let rest = message
        .split_once("conflict with ")
        .map_or(message, |(_, rest)| rest);
    let (name, rest) = quoted(rest);
    let api_version = rest
        .split_once(" using ")
        .and_then(|(_, rest)| rest.split_whitespace().next())
        .map(str::to_owned);
    (name, api_version)
}

/// Splits off the Go-quoted string at the start of the text. Returns its value and the remaining
/// text.
fn quoted(text: &str) -> (String, &str) {
    let Some(inner) = text.strip_prefix('"') else {
        return (text.to_owned(), "");
    };
    let mut escaped = false;
    for (index, char) in inner.char_indices() {
        match char {
            '\\' if !escaped => escaped = true,
            '"' if !escaped => {
                let (literal, rest) = text.split_at(index + 2);
                // For all characters in names, Go quotes strings like JSON.
                let name = serde_json::from_str(literal)
                    .unwrap_or_else(|_| inner.get(..index).unwrap_or_default().to_owned());
                return (name, rest);
            }
            _ => escaped = false,
        }
    }
    (inner.to_owned(), "")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(r#"conflict with "other""#, "other", None)]
    #[case(r#"conflict with "other" using apps/v1"#, "other", Some("apps/v1"))]
    #[case(
        r#"conflict with "hpa" with subresource "scale" using apps/v1 at 2026-01-02T03:04:05Z"#,
        "hpa",
        Some("apps/v1")
    )]
    #[case(r#"conflict with "a \"b\" using v9""#, "a \"b\" using v9", None)]
    #[case("conflict with other", "other", None)]
    fn managers_are_read(
        #[case] message: &str,
        #[case] name: &str,
        #[case] api_version: Option<&str>,
    ) {
        assert_eq!(
            manager(message),
            (name.to_owned(), api_version.map(str::to_owned))
        );
    }
}
