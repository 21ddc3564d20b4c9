//! Which leaves SOPS encrypts, by the keys around them.

use regex::Regex;

/// Rule of a file. At most one is set, as SOPS demands.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    pub(crate) encrypted_suffix: Option<String>,
    pub(crate) unencrypted_suffix: Option<String>,
    pub(crate) encrypted_regex: Option<Regex>,
    pub(crate) unencrypted_regex: Option<Regex>,
    /// Whether comments decide, which are not read here.
    pub(crate) by_comment: bool,
}

impl Rules {
    /// Returns whether a leaf has to be encrypted. `None` if a comment decides.
    pub(crate) fn is_encrypted(&self, path: &[String]) -> Option<bool> {
        if self.by_comment {
            return None;
        }
        let any = |is_met: &dyn Fn(&str) -> bool| path.iter().any(|key| is_met(key));
        let mut encrypted = true;
        if let Some(suffix) = &self.unencrypted_suffix
            && any(&|key| key.ends_with(suffix.as_str()))
        {
            encrypted = false;
        }
        if let Some(suffix) = &self.encrypted_suffix {
            encrypted = any(&|key| key.ends_with(suffix.as_str()));
        }
        if let Some(regex) = &self.unencrypted_regex
            && any(&|key| regex.is_match(key))
        {
            encrypted = false;
        }
        if let Some(regex) = &self.encrypted_regex {
            encrypted = any(&|key| regex.is_match(key));
        }
        Some(encrypted)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn regex(text: &str) -> Regex {
        Regex::new(text).unwrap()
    }

    #[rstest]
    #[case::all(Rules::default(), &["data", "password"], Some(true))]
    #[case::suffix(Rules { unencrypted_suffix: Some("_plain".into()), ..Rules::default() }, &["a_plain", "b"], Some(false))]
    #[case::other_suffix(Rules { encrypted_suffix: Some("_secret".into()), ..Rules::default() }, &["a", "b"], Some(false))]
    #[case::regex(Rules { encrypted_regex: Some(regex("^(data|stringData)$")), ..Rules::default() }, &["stringData", "b"], Some(true))]
    #[case::no_match(Rules { encrypted_regex: Some(regex("^(data|stringData)$")), ..Rules::default() }, &["metadata", "name"], Some(false))]
    #[case::plain_regex(Rules { unencrypted_regex: Some(regex("^kind$")), ..Rules::default() }, &["kind"], Some(false))]
    #[case::comment(Rules { by_comment: true, ..Rules::default() }, &["kind"], None)]
    fn keys_decide(#[case] rules: Rules, #[case] path: &[&str], #[case] expected: Option<bool>) {
        let path: Vec<String> = path.iter().map(|key| (*key).to_owned()).collect();
        assert_eq!(rules.is_encrypted(&path), expected);
    }
}
