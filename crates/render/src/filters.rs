//! Template filters in addition to MiniJinja's.
//!
//! Errors name the kind of a value, never the value: it can be secret.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use minijinja::filters as builtin;
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use regex::{Regex, RegexBuilder};
use semver::{Version, VersionReq};
use sha2::{Digest as _, Sha256};

use super::formatter::scalar;
use pleach_model::object::yaml;

/// Names of the filters that pleach adds, or that differ from MiniJinja's. For the documentation.
pub const FILTERS: [&str; 9] = [
    "b64decode",
    "b64encode",
    "quote",
    "regex_replace",
    "required",
    "semver_matches",
    "sha256",
    "tojson",
    "toyaml",
];

/// Maximum number of cached compiled patterns. When it is exceeded, the cache is cleared.
const MAX_PATTERNS: usize = 256;

/// Maximum memory of one compiled pattern, in bytes.
const PATTERN_SIZE_LIMIT: usize = 1 << 20;

/// Built-in filters that convert their operand to a string. MiniJinja formats booleans as `True`,
/// like Python, whereas `{{ … }}` writes `true`. These wrappers pass the text that `{{ … }}`
/// writes.
macro_rules! of_texts {
    ($($name:ident),*) => {
        $(
            fn $name(state: &mut State, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
                let mut args = args.into_values();
                if let Some(operand) = args.first_mut() {
                    *operand = text_of(operand)?;
                }
                Value::from_function(builtin::$name).call(state, &args)
            }
        )*

        fn install_of_texts(env: &mut Environment<'static>) {
            $(env.add_filter(stringify!($name), $name);)*
        }
    };
}

of_texts!(capitalize, escape, indent, lower, safe, title, trim, upper);

pub(super) fn install(env: &mut Environment<'static>) {
    install_of_texts(env);
    env.add_filter("e", escape);
    env.add_filter("join", join);
    env.add_filter("replace", replace);
    env.add_filter("string", string);
    env.add_filter("b64encode", b64encode);
    env.add_filter("b64decode", b64decode);
    env.add_filter("sha256", sha256);
    env.add_filter("quote", quote);
    env.add_filter("required", required);
    env.add_filter("toyaml", toyaml);
    env.add_filter("tojson", tojson);
    env.add_filter("semver_matches", semver_matches);
    let patterns = Patterns::default();
    env.add_filter(
        "regex_replace",
        move |value: Value, pattern: &str, with: &str| {
            let text = scalar(&value)?;
            let regex = patterns.get(pattern)?;
            Ok::<_, Error>(regex.replace_all(&text, with).into_owned())
        },
    );
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// Converts a value to the text that `{{ value }}` writes. A string is unchanged.
fn text_of(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.clone()),
        _ => Ok(Value::from(scalar(value)?.into_owned())),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
fn string(value: Value) -> Result<Value, Error> {
    text_of(&value)
}

fn replace(state: &mut State, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let texts: Vec<Value> = args.iter().map(text_of).collect::<Result<_, _>>()?;
    Value::from_function(builtin::replace).call(state, &texts)
}

/// Joins a list. Takes the arguments of the built-in filter.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
fn join(
    state: &mut State,
    value: Value,
    joiner: Option<Value>,
    attribute: Option<String>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let joiner = match joiner {
        Some(joiner) => Some(joiner),
        None => kwargs.get::<Option<Value>>("d")?,
    };
    let attribute = match attribute {
        Some(attribute) => Some(attribute),
        None => kwargs.get::<Option<String>>("attribute")?,
    };
    kwargs.assert_all_used()?;
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    let items = match attribute {
        Some(attribute) => {
            let named: Kwargs = [("attribute", Value::from(attribute))]
                .into_iter()
                .collect();
            state.apply_filter("map", &[value, Value::from(named)])?
        }
        None => value,
    };
    let kind = items.kind();
    let items = items
        .try_iter()
        .map_err(|_| invalid(format!("a {kind} has no items to join")))?;
    let joiner = joiner.as_ref().map(scalar).transpose()?;
    let mut joined = String::new();
    for (index, item) in items.enumerate() {
        if let Some(joiner) = joiner.as_deref().filter(|_| index > 0) {
            joined.push_str(joiner);
        }
        joined.push_str(&scalar(&item)?);
    }
    Ok(joined)
}

#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
fn b64encode(value: Value) -> Result<String, Error> {
    Ok(STANDARD.encode(scalar(&value)?.as_bytes()))
}

#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
fn b64decode(value: Value) -> Result<String, Error> {
    let text: String = scalar(&value)?.split_whitespace().collect();
    let bytes = STANDARD
        .decode(text)
        .map_err(|_| invalid("the input of b64decode is not base64"))?;
    String::from_utf8(bytes).map_err(|_| invalid("the output of b64decode is not UTF-8"))
}

#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
fn sha256(value: Value) -> Result<String, Error> {
    let digest = Sha256::digest(scalar(&value)?.as_bytes());
    let mut text = String::with_capacity(64);
    for byte in digest {
        write!(text, "{byte:02x}").map_err(Error::from)?;
    }
    Ok(text)
}

/// Formats a double-quoted YAML string: a JSON string that also escapes characters that YAML does
/// not allow.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
fn quote(value: Value) -> Result<String, Error> {
    let json = serde_json::Value::from(scalar(&value)?.as_ref()).to_string();
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' => {
                write!(text, "\\u{:04x}", u32::from(c)).map_err(Error::from)?;
            }
            c => text.push(c),
        }
    }
    Ok(text)
}

fn required(value: Value, message: &str) -> Result<Value, Error> {
    let missing = value.is_undefined() || value.is_none() || value.as_str() == Some("");
    if missing {
        Err(invalid(message))
    } else {
        Ok(value)
    }
}

fn json_value(value: &Value) -> Result<serde_json::Value, Error> {
    match value.kind() {
        ValueKind::Undefined => Err(Error::from(ErrorKind::UndefinedError)),
        // The error can quote the value, so it is dropped.
        kind => serde_json::to_value(value).map_err(|_| {
            invalid(format!(
                "a {kind} with this content cannot be written as JSON"
            ))
        }),
    }
}

/// Formats YAML without the last line break, so that `| indent(4)` can follow.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
fn toyaml(value: Value) -> Result<String, Error> {
    let text = yaml::emit(&json_value(&value)?);
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}

/// Formats plain JSON. The built-in filter escapes for HTML.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
fn tojson(value: Value) -> Result<String, Error> {
    Ok(json_value(&value)?.to_string())
}

/// Returns whether a version is in a range such as `>=1.30, <2`. Ignores a leading `v`. Missing
/// parts are zero.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
fn semver_matches(value: Value, range: &str) -> Result<bool, Error> {
    let version = parse_version(&scalar(&value)?)
        .ok_or_else(|| invalid("the input of semver_matches is not a version"))?;
    let range = VersionReq::parse(range)
        .map_err(|_| invalid("the range of semver_matches is not a range such as >=1.30, <2"))?;
    Ok(range.matches(&version))
}

fn parse_version(text: &str) -> Option<Version> {
    let text = text.trim();
    let text = text.strip_prefix('v').unwrap_or(text);
    let end = text.find(['-', '+']).unwrap_or(text.len());
    let (numbers, rest) = text.split_at(end);
    let padding = match numbers.split('.').count() {
        1 => ".0.0",
        2 => ".0",
        _ => "",
    };
    Version::parse(&format!("{numbers}{padding}{rest}")).ok()
}

/// Cache of compiled patterns. Most patterns are literals in loops.
#[derive(Default)]
struct Patterns(Mutex<BTreeMap<String, Regex>>);

impl Patterns {
    fn get(&self, pattern: &str) -> Result<Regex, Error> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(regex) = known.get(pattern) {
            return Ok(regex.clone());
        }
        let regex = RegexBuilder::new(pattern)
            .size_limit(PATTERN_SIZE_LIMIT)
            .build()
            .map_err(|_| invalid("the pattern of regex_replace is not a regular expression"))?;
        if known.len() >= MAX_PATTERNS {
            known.clear();
        }
        known.insert(pattern.to_owned(), regex.clone());
        Ok(regex)
    }
}

#[cfg(test)]
mod tests {
    use minijinja::context;
    use rstest::rstest;

    use super::*;

    fn eval(template: &str) -> Result<String, Error> {
        let mut env = Environment::new();
        env.set_debug(false);
        env.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
        env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        env.set_formatter(super::super::formatter::format);
        install(&mut env);
        env.render_str(
            template,
            context! { secret => "hunter2", list => vec![1, 2], flag => true, empty => "" },
        )
    }

    #[rstest]
    #[case("{{ 'a<b' | tojson }}", "\"a<b\"")]
    #[case("{{ list | tojson }}", "[1,2]")]
    #[case(
        "{{ {'b': 1, 'a': [none, true]} | tojson }}",
        r#"{"b":1,"a":[null,true]}"#
    )]
    #[case("{{ 'grün' | b64encode }}", "Z3LDvG4=")]
    #[case("{{ 'Z3LD\nvG4=' | b64decode }}", "grün")]
    #[case("{{ flag | b64encode }}", "dHJ1ZQ==")]
    #[case(
        "{{ 'abc' | sha256 }}",
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )]
    #[case("{{ 'a\"b\\n' | quote }}", r#""a\"b\n""#)]
    #[case("{{ flag | quote }}", "\"true\"")]
    #[case("{{ none | quote }}", "\"null\"")]
    #[case("{{ '\u{85}' | quote }}", "\"\\u0085\"")]
    #[case("{{ flag | string | quote }}", "\"true\"")]
    #[case("{{ 'debug=' ~ flag | string }}", "debug=true")]
    #[case("{{ [flag, none, 1, 'a'] | join(',') }}", "true,null,1,a")]
    #[case("{{ [flag, not flag] | map('string') | join(' ') }}", "true false")]
    #[case("{{ [{'a': flag}, {'a': 'b'}] | join('-', attribute='a') }}", "true-b")]
    #[case("{{ ['a', 'b'] | join }}", "ab")]
    #[case("{{ 'ab' | join(d='-') }}", "a-b")]
    #[case("{{ 'x=F' | replace('F', flag) }}", "x=true")]
    #[case("{{ flag | replace('t', 'T') }}", "True")]
    #[case("{{ flag | upper }}", "TRUE")]
    #[case("{{ none | lower }}", "null")]
    #[case("{{ flag | trim }}", "true")]
    #[case("{{ flag | e }}", "true")]
    #[case("{{ 'a\nb' | indent(2) }}", "a\n  b")]
    #[case("{{ 'a\nb' | indent(width=2, first=true) }}", "  a\n  b")]
    #[case("{{ 5 | required('x') }}", "5")]
    #[case("{{ false | required('x') }}", "false")]
    #[case("{{ '1.36' | semver_matches('>=1.30') }}", "true")]
    #[case("{{ 'v0.12.0' | semver_matches('<0.12') }}", "false")]
    #[case("{{ '2' | semver_matches('>=1.30, <2') }}", "false")]
    #[case("{{ 'a-1-b-22' | regex_replace('-([0-9]+)', '_$1') }}", "a_1-b_22")]
    fn filters_give(#[case] template: &str, #[case] expected: &str) {
        assert_eq!(eval(template).unwrap(), expected);
    }

    #[rstest]
    #[case(
        "{{ missing | required('image.tag is needed') }}",
        "image.tag is needed"
    )]
    #[case("{{ empty | required('say it') }}", "say it")]
    #[case("{{ none | required('say it') }}", "say it")]
    #[case("{{ missing | tojson }}", "undefined value")]
    #[case("{{ missing | quote }}", "undefined value")]
    #[case("{{ secret | b64decode }}", "not base64")]
    #[case("{{ secret | semver_matches('1') }}", "not a version")]
    #[case("{{ '1' | semver_matches(secret) }}", "not a range such as")]
    #[case(
        "{{ 'x' | regex_replace(secret ~ '(', '') }}",
        "not a regular expression"
    )]
    #[case("{{ list | sha256 }}", "a list cannot be written as text")]
    #[case("{{ list | string }}", "a list cannot be written as text")]
    #[case("{{ list | lower }}", "a list cannot be written as text")]
    #[case("{{ [list] | join(',') }}", "a list cannot be written as text")]
    #[case("{{ flag | join(',') }}", "a bool has no items to join")]
    #[case("{{ missing | join(',') }}", "undefined value")]
    #[case("{{ missing | upper }}", "undefined value")]
    fn filters_refuse(#[case] template: &str, #[case] expected: &str) {
        let error = eval(template).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }

    #[test]
    fn the_list_of_filters_is_complete() {
        for name in FILTERS {
            let error = eval(&format!("{{{{ 1 | {name}(1, 2, 3, 4) }}}}")).unwrap_err();
            assert_ne!(error.kind(), ErrorKind::UnknownFilter, "{name}");
        }
    }
}
