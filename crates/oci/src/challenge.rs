//! Challenges of registries: the header `WWW-Authenticate` of RFC 9110.

/// Authentication that a registry requires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// User name and password in each request.
    Basic,
    /// A token of a token service.
    Bearer {
        /// Address of the token service.
        realm: String,
        /// Name of the registry for the token service.
        service: Option<String>,
        /// Requested access.
        scope: Option<String>,
    },
}

impl Challenge {
    /// Parses a header. `None` for other kinds of authentication, and for invalid headers.
    pub(crate) fn parse(header: &str) -> Option<Self> {
        let header = header.trim();
        let (scheme, rest) = header.split_once(' ').unwrap_or((header, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service, mut scope) = (None, None, None);
        let mut rest = rest;
        while let Some((name, value, behind)) = parameter(rest) {
            match name.to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value),
                "service" => service = Some(value),
                "scope" => scope = Some(value),
                _ => {}
            }
            rest = behind;
        }
        Some(Self::Bearer {
            realm: realm?,
            service,
            scope,
        })
    }
}

/// Splits the first parameter off: its name, its value, and the text behind it.
fn parameter(text: &str) -> Option<(&str, String, &str)> {
    let text = text.trim_start_matches([' ', ',']);
    let (name, rest) = text.split_once('=')?;
    let rest = rest.trim_start();
    if let Some(quoted) = rest.strip_prefix('"') {
        let mut value = String::new();
        let mut chars = quoted.char_indices();
        while let Some((at, char)) = chars.next() {
            match char {
                '"' => return Some((name.trim(), value, &quoted[at + 1..])),
                '\\' => value.push(chars.next()?.1),
                char => value.push(char),
            }
        }
        return None;
    }
    let end = rest.find(',').unwrap_or(rest.len());
    Some((name.trim(), rest[..end].trim().to_owned(), &rest[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_parsed() {
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| {
            Some(Challenge::Bearer {
                realm: realm.to_owned(),
                service: service.map(str::to_owned),
                scope: scope.map(str::to_owned),
            })
        };
        for (header, expected) in [
            ("Basic realm=\"a\"", Some(Challenge::Basic)),
            ("basic", Some(Challenge::Basic)),
            (
                r#"Bearer realm="https://auth.example.org/token",service="r",scope="repository:a/b:pull,push""#,
                bearer(
                    "https://auth.example.org/token",
                    Some("r"),
                    Some("repository:a/b:pull,push"),
                ),
            ),
            (
                r#"bearer realm=https://auth.example.org, error="a\"b", service = "r""#,
                bearer("https://auth.example.org", Some("r"), None),
            ),
            ("Bearer service=\"r\"", None),
            ("Bearer realm=\"open", None),
            ("Negotiate", None),
            ("", None),
        ] {
            assert_eq!(Challenge::parse(header), expected, "{header}");
        }
    }
}
