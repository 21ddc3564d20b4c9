//! Suggestions for misspelled names.

/// Returns the most similar candidate, if it is similar enough.
pub fn nearest<'a>(text: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (text.chars().count() / 3).max(2);
    candidates
        .into_iter()
        .map(|candidate| {
            (
                strsim::damerau_levenshtein(&text.to_lowercase(), &candidate.to_lowercase()),
                candidate,
            )
        })
        .filter(|(distance, candidate)| *distance <= limit && *distance < candidate.len())
        .min()
        .map(|(_, candidate)| candidate)
}

/// Returns a hint with the most similar candidate.
pub fn did_you_mean<S: AsRef<str>>(text: &str, candidates: &[S]) -> Option<String> {
    nearest(text, candidates.iter().map(AsRef::as_ref))
        .map(|candidate| format!("did you mean `{candidate}`?"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("relaeses", Some("releases"))]
    #[case("createnamespace", Some("createNamespace"))]
    #[case("prdouction", Some("production"))]
    #[case("v", None)]
    #[case("something", None)]
    fn only_similar_names_are_suggested(#[case] text: &str, #[case] expected: Option<&str>) {
        let candidates = ["releases", "createNamespace", "production", "id"];
        assert_eq!(nearest(text, candidates), expected);
    }
}
