//! Secret parts of a structured value.
//!
//! A value of a Secret can be a whole file: JSON, YAML, INI, an environment file, a URL with a
//! password. Another object can contain one password of it alone.
//!
//! Not every part is secret. Without a selection, hosts, modes and names would be replaced in
//! objects that the API server then refuses. The key of a part decides, and where the key says
//! nothing, the text.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pleach_model::object::yaml;
use serde_json::Value;

use super::SHORTEST;

/// Maximum length in bytes of a value that is taken apart.
const LONGEST: usize = 1 << 20;

/// Maximum length in bytes of a URL that is taken apart.
const LONGEST_URL: usize = 8_192;

/// Maximum number of parts of a value, and of URLs in a line.
const MOST: usize = 2_000;

/// Maximum nesting: a URL in JSON in base64 in YAML.
const DEPTH: u8 = 4;

/// Maximum nesting of maps and lists within a document.
const LEVELS: u8 = 60;

/// Minimum length in bytes of a part that is secret by its text alone.
const RANDOM: usize = 16;

/// Parts of keys whose values are secret, in lower case.
const SECRET: [&str; 8] = [
    "pass",
    "pwd",
    "secret",
    "token",
    "credential",
    "dsn",
    "apikey",
    "api_key",
];

/// Parts of keys whose values are secret unless they are words: `sessionAffinity: ClientIP`.
const DOUBTFUL: [&str; 8] = [
    "key",
    "auth",
    "private",
    "salt",
    "cookie",
    "session",
    "signature",
    "hmac",
];

/// Starts of values that are public: certificates, in PEM and in base64.
const PUBLIC: [&str; 2] = ["-----BEGIN CERTIFICATE", "LS0tLS1CRUdJTiBDRVJUSUZJQ0FUR"];

/// Sensitivity of a value, by its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sensitivity {
    Unknown,
    Doubtful,
    Secret,
}

impl Sensitivity {
    fn of(key: &str) -> Self {
        let key = key.to_lowercase();
        let has = |parts: &[&str]| parts.iter().any(|part| key.contains(part));
        if has(&SECRET) {
            Self::Secret
        } else if has(&DOUBTFUL) {
            Self::Doubtful
        } else {
            Self::Unknown
        }
    }

    fn is_about(self, text: &str) -> bool {
        match self {
            Self::Secret => true,
            Self::Doubtful => !text.bytes().all(|byte| byte.is_ascii_alphabetic()),
            Self::Unknown => is_random(text),
        }
    }
}

/// Returns the secret parts of a value with its key, without the value itself. `key` is empty if it
/// is not known. Work and number of parts are bounded.
pub(super) fn parts(key: &str, value: &str) -> BTreeSet<String> {
    let mut parts = Parts(BTreeSet::new());
    if value.len() <= LONGEST {
        parts.scan(Sensitivity::of(key), value, DEPTH);
    }
    parts.0.remove(value.trim());
    parts.0
}

/// Returns whether a text looks like a key or a token: letters and digits without separators.
fn is_random(text: &str) -> bool {
    let has = |is: fn(&u8) -> bool| text.as_bytes().iter().any(is);
    text.len() >= RANDOM
        && has(u8::is_ascii_alphabetic)
        && has(u8::is_ascii_digit)
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_-+=".contains(&byte))
}

struct Parts(BTreeSet<String>);

impl Parts {
    fn add(&mut self, sensitivity: Sensitivity, text: &str) {
        let text = text.trim();
        let is_public = PUBLIC.iter().any(|start| text.starts_with(start));
        if text.len() >= SHORTEST && self.0.len() < MOST && !is_public && sensitivity.is_about(text)
        {
            self.0.insert(text.to_owned());
        }
    }

    /// Adds a value with its key, and the parts of it.
    fn leaf(&mut self, sensitivity: Sensitivity, text: &str, depth: u8) {
        self.add(sensitivity, text);
        self.scan(sensitivity, text, depth);
    }

    /// Adds the parts of a text.
    fn scan(&mut self, sensitivity: Sensitivity, text: &str, depth: u8) {
        let Some(depth) = depth.checked_sub(1) else {
            return;
        };
        let text = text.trim();
        if text.len() < SHORTEST || self.0.len() >= MOST {
            return;
        }
        if self.document(sensitivity, text, depth) {
            return;
        }
        if text.lines().nth(1).is_some() {
            for line in text.lines() {
                self.account(sensitivity, line.trim());
                // `secrets.ini` has public lines too.
                self.line(Sensitivity::Unknown, line.trim(), depth);
            }
            return;
        }
        self.account(sensitivity, text);
        self.line(sensitivity, text, depth);
        if sensitivity > Sensitivity::Unknown
            && let Ok(bytes) = STANDARD.decode(text)
            && let Ok(decoded) = String::from_utf8(bytes)
            && !decoded.contains(char::is_control)
        {
            self.leaf(sensitivity, &decoded, depth);
        }
    }

    /// Adds the parts of JSON or YAML. Returns whether the text is a map or a list. The key of a whole
    /// map says nothing about its parts: `secrets.yaml` has public ones too.
    fn document(&mut self, sensitivity: Sensitivity, text: &str, depth: u8) -> bool {
        if text.starts_with(['{', '['])
            && let Ok(value) = serde_json::from_str::<Value>(text)
        {
            let sensitivity = if value.is_object() {
                Sensitivity::Unknown
            } else {
                sensitivity
            };
            self.tree(sensitivity, &value, (depth, LEVELS));
            return true;
        }
        if !text.contains(": ") && !text.contains(":\n") && !text.starts_with("- ") {
            return false;
        }
        let Ok(documents) = yaml::parse_documents(text) else {
            return false;
        };
        let is_tree = |value: &Value| value.is_object() || value.is_array();
        if !documents.iter().any(|document| is_tree(&document.value)) {
            return false;
        }
        for document in &documents {
            let is_map = document.value.is_object();
            let sensitivity = if is_map {
                Sensitivity::Unknown
            } else {
                sensitivity
            };
            self.tree(sensitivity, &document.value, (depth, LEVELS));
        }
        true
    }

    fn tree(&mut self, sensitivity: Sensitivity, value: &Value, (depth, levels): (u8, u8)) {
        let Some(levels) = levels.checked_sub(1) else {
            return;
        };
        match value {
            Value::Object(map) => {
                for (key, child) in map {
                    self.tree(
                        sensitivity.max(Sensitivity::of(key)),
                        child,
                        (depth, levels),
                    );
                }
            }
            Value::Array(items) => {
                for item in items {
                    self.tree(sensitivity, item, (depth, levels));
                }
            }
            Value::String(text) => self.leaf(sensitivity, text, depth),
            Value::Number(number) => self.add(sensitivity, &number.to_string()),
            Value::Null | Value::Bool(_) => {}
        }
    }

    /// Adds the parts of a line: `KEY=value`, `a=b;c=d`, `a=b c=d`, URLs.
    fn line(&mut self, sensitivity: Sensitivity, line: &str, depth: u8) {
        if line.starts_with(['#', ';', '[']) || line.starts_with("-----") {
            return;
        }
        self.urls(line);
        let pairs: Vec<&str> = if line.contains(';') {
            line.split(';').collect()
        } else {
            line.split_whitespace().collect()
        };
        let are_pairs = pairs.iter().filter(|it| it.contains('=')).count() > 1;
        // Quotes can contain the separator: `PASSWORD="a=b;c=d"`.
        let is_quoted = line
            .split_once(['=', ':'])
            .is_some_and(|(_, value)| value.trim_start().starts_with(['"', '\'']));
        if are_pairs && !is_quoted {
            for pair in &pairs {
                self.pair(sensitivity, pair, depth);
            }
        } else {
            self.pair(sensitivity, line, depth);
        }
    }

    fn pair(&mut self, sensitivity: Sensitivity, text: &str, depth: u8) {
        let text = text.trim();
        let text = text.strip_prefix("export ").unwrap_or(text);
        let Some((key, value)) = text.split_once(['=', ':']) else {
            return;
        };
        let key = key.trim();
        let is_key = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if key.is_empty() || !key.bytes().all(is_key) || value.starts_with("//") {
            return;
        }
        let sensitivity = sensitivity.max(Sensitivity::of(key));
        let value = value.trim();
        let quoted = ['"', '\''].iter().find_map(|quote| {
            let rest = value.strip_prefix(*quote)?;
            Some(rest.split_once(*quote)?.0)
        });
        let value =
            quoted.unwrap_or_else(|| value.split_once(" #").map_or(value, |(value, _)| value));
        self.leaf(sensitivity, value, depth);
    }

    /// Adds the password of an account: `user:password`, or `user:password@host` without a scheme.
    fn account(&mut self, sensitivity: Sensitivity, line: &str) {
        if line.contains(char::is_whitespace) || line.contains("://") {
            return;
        }
        let Some((user, rest)) = line.split_once(':') else {
            return;
        };
        if user.is_empty() || user.contains(['=', '/', '@', '{', '"']) {
            return;
        }
        match rest.rsplit_once('@') {
            Some((password, _)) => self.add(Sensitivity::Secret, password),
            None if sensitivity > Sensitivity::Unknown => self.add(Sensitivity::Secret, rest),
            None => {}
        }
    }

    /// Adds the passwords and secret parameters of all URLs in a line.
    fn urls(&mut self, line: &str) {
        for (at, scheme) in line.match_indices("://").take(MOST) {
            let rest = &line[at + scheme.len()..];
            let rest = rest.get(..LONGEST_URL).unwrap_or(rest);
            let end = rest.find(|it: char| it.is_whitespace() || "\"'<>`".contains(it));
            let url = &rest[..end.unwrap_or(rest.len())];
            let authority = &url[..url.find(['/', '?', '#']).unwrap_or(url.len())];
            if let Some((user, _)) = authority.rsplit_once('@')
                && let Some((_, password)) = user.split_once(':')
            {
                self.encoded(Sensitivity::Secret, password);
            }
            let query = url.split_once('?').map_or("", |(_, query)| query);
            for (key, value) in query.split('&').filter_map(|it| it.split_once('=')) {
                self.encoded(Sensitivity::of(key), value);
            }
        }
    }

    /// Adds a text of a URL, as it is and decoded.
    fn encoded(&mut self, sensitivity: Sensitivity, text: &str) {
        self.add(sensitivity, text);
        if let Some(decoded) = percent_decoded(text) {
            self.add(sensitivity, &decoded);
        }
    }
}

/// Decodes `%40`; `None` if there is nothing to decode.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        bytes.extend(before.as_bytes());
        bytes.push(u8::from_str_radix(after.get(..2)?, 16).ok()?);
        rest = &after[2..];
    }
    bytes.extend(rest.as_bytes());
    String::from_utf8(bytes).ok().filter(|it| it != text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Credentials of a registry: `user:hunter2-hunter2` in base64.
    const REGISTRY: &str =
        r#"{"auths":{"registry.example.org":{"auth":"dXNlcjpodW50ZXIyLWh1bnRlcjI="}}}"#;

    /// Names, keys, values, and the secret parts of the values. Everything else is public.
    const CASES: &[(&str, &str, &str, &[&str])] = &[
        ("plain", "password", "hunter2-hunter2", &[]),
        ("empty", "", "", &[]),
        (
            "environment file",
            ".env",
            "# comment PASSWORD=not-a-value\nexport DB_PASSWORD='hunter2 hunter2'\nDB_HOST=db.example.org\nMODE=production\n",
            &["hunter2 hunter2"],
        ),
        (
            "quotes and comments",
            ".env",
            "A_TOKEN=\"one=two;three=four\"\nB_TOKEN=four-five # six\n",
            &["four-five", "one=two;three=four"],
        ),
        (
            "ini",
            "app.ini",
            "[database]\nhost = db.example.org\npassword = correct horse\n; token = no-comment-value\n",
            &["correct horse"],
        ),
        (
            "json",
            "config.json",
            r#"{"db": {"host": "db.example.org", "password": "hunter2-hunter2"}, "pin_code_token": 123456789}"#,
            &["123456789", "hunter2-hunter2"],
        ),
        (
            "yaml",
            "config.yaml",
            "db:\n  host: db.example.org\n  tokens: [first-token, second-token]\nmode: RollingUpdate\n",
            &["first-token", "second-token"],
        ),
        (
            "words of a doubtful key",
            "config.yaml",
            "sessionAffinity: ClientIP\nsigningKey: k3y-of-the-house\n",
            &["k3y-of-the-house"],
        ),
        (
            "text that looks random",
            "config.yaml",
            "a: 9f86d081884c7d659a2f\nb: my-service.example.org\nc: 2026-01-01\n",
            &["9f86d081884c7d659a2f"],
        ),
        (
            "URL",
            "url",
            "postgres://web-user:hunter2%40hunter2@db.example.org/web?sslmode=verify-full",
            &["hunter2%40hunter2", "hunter2@hunter2"],
        ),
        (
            "parameters of a URL",
            "hook",
            "https://hooks.example.org/x?token=hunter2-hunter2&channel=announcements",
            &["hunter2-hunter2"],
        ),
        (
            "account without a scheme",
            "source",
            "web:hunter2-hunter2@tcp(db.example.org:3306)/web",
            &["hunter2-hunter2"],
        ),
        (
            "address without an account",
            "source",
            "db.example.org:3306/web-application",
            &[],
        ),
        (
            "connection string",
            "connection",
            "Server=db.example.org;Password=hunter2-hunter2;Encrypt=Mandatory",
            &["hunter2-hunter2"],
        ),
        (
            "keywords of a connection",
            "connection",
            "host=db.example.org password=hunter2-hunter2 sslmode=verify-full",
            &["hunter2-hunter2"],
        ),
        (
            "registry",
            ".dockerconfigjson",
            REGISTRY,
            &[
                "dXNlcjpodW50ZXIyLWh1bnRlcjI=",
                "hunter2-hunter2",
                "user:hunter2-hunter2",
            ],
        ),
        (
            "accounts of a file with a password in each line",
            "htpasswd-auth",
            "one:$apr1$hunter2\ntwo:$apr1$hunter3\n",
            &["$apr1$hunter2", "$apr1$hunter3"],
        ),
        (
            "a file of secrets has public lines",
            "secrets.ini",
            "strategy = RollingUpdate\nhost = db.example.org\n",
            &[],
        ),
        (
            "a map of secrets has public values",
            "secrets.yaml",
            "strategy: RollingUpdate\ntokens: {ci: hunter2-hunter2}\n",
            &["hunter2-hunter2"],
        ),
        (
            "certificates are public",
            "config.yaml",
            "token-ca: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t\n",
            &[],
        ),
    ];

    #[test]
    fn parts_of_structured_values() {
        for (case, key, value, expected) in CASES {
            let found = parts(key, value);
            let expected: BTreeSet<String> = expected.iter().map(|it| (*it).to_owned()).collect();
            assert_eq!(found, expected, "{case}");
        }
    }

    #[test]
    fn work_is_bounded() {
        let many = (0..5_000).map(|it| format!("token_{it}=value-of-{it}"));
        let many = many.collect::<Vec<_>>().join("\n");
        assert_eq!(parts("", &many).len(), MOST);
        let long = format!("token=secret-value\n{}", "x".repeat(LONGEST));
        assert_eq!(parts("", &long), BTreeSet::new());
        let deep = format!("{}\"token\"{}", "[".repeat(100), "]".repeat(100));
        assert_eq!(parts("", &deep), BTreeSet::new());
        // Each layer of base64 costs a level.
        let layers = (0..6).fold("token-value-1".to_owned(), |text, _| STANDARD.encode(text));
        assert!(!parts("token", &layers).contains("token-value-1"));
        for unit in ["a=b;", "a=b ", "://", "%40:@"] {
            let found = parts("", &unit.repeat(LONGEST / unit.len()));
            assert!(found.len() < 10, "{unit}: {}", found.len());
        }
    }
}
