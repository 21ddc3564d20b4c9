//! The form in which the MAC covers a plain leaf.
//!
//! SOPS reads YAML 1.2 with the rules of `go.yaml.in/yaml/v3` and writes numbers, booleans and times
//! in a form of its own: `0x10` counts as `16`, and `true` as `True`.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use pleach_model::object::yaml::Scalar;

/// Returns the covered bytes of a leaf. `None` for null, which is not covered.
pub(crate) fn covered(scalar: &Scalar) -> Option<String> {
    if scalar.is_plain {
        plain(&scalar.text)
    } else {
        Some(scalar.text.clone())
    }
}

fn plain(text: &str) -> Option<String> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return None,
        "true" | "True" | "TRUE" => return Some("True".to_owned()),
        "false" | "False" | "FALSE" => return Some("False".to_owned()),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Some("+Inf".to_owned()),
        "-.inf" | "-.Inf" | "-.INF" => return Some("-Inf".to_owned()),
        ".nan" | ".NaN" | ".NAN" => return Some("NaN".to_owned()),
        _ => {}
    }
    let is_number_like =
        text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first));
    if !is_number_like {
        return Some(text.to_owned());
    }
    let form = time(text)
        .or_else(|| whole(&text.replace('_', "")))
        .or_else(|| float(&text.replace('_', "")));
    Some(form.unwrap_or_else(|| text.to_owned()))
}

/// Returns a whole number in decimal form.
fn whole(text: &str) -> Option<String> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => (-1, &text[1..]),
        b'+' => (1, &text[1..]),
        _ => (1, text),
    };
    if digits.starts_with(['-', '+']) {
        return None;
    }
    let (radix, digits) = match digits.get(..2) {
        Some("0x" | "0X") => (16, &digits[2..]),
        Some("0b" | "0B") => (2, &digits[2..]),
        Some("0o" | "0O") => (8, &digits[2..]),
        Some(start) if start.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    let number = i128::from_str_radix(digits, radix).ok()? * sign;
    i64::try_from(number).ok().map(|number| number.to_string())
}

/// Returns a float in the shortest decimal form without an exponent.
fn float(text: &str) -> Option<String> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_float = digits.starts_with(|first: char| first.is_ascii_digit() || first == '.')
        && digits.contains(|one: char| one.is_ascii_digit())
        && digits
            .bytes()
            .all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
    let number: f64 = is_float.then(|| text.parse().ok()).flatten()?;
    number.is_finite().then(|| number.to_string())
}

/// Returns a time in the form of RFC 3339.
fn time(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let is_date = bytes.len() >= 8 && bytes[..4].iter().all(u8::is_ascii_digit) && bytes[4] == b'-';
    if !is_date {
        return None;
    }
    if let Ok(date) = strtime::parse("%Y-%m-%d", text).and_then(|parsed| parsed.to_date()) {
        return Some(format!("{}T00:00:00Z", canonical(date)));
    }
    if let Ok(local) =
        strtime::parse("%Y-%m-%d %H:%M:%S%.f", text).and_then(|parsed| parsed.to_datetime())
    {
        return Some(format!("{}Z", moment(local)));
    }
    let text = text.replacen('t', "T", 1);
    let timestamp: Timestamp = text.parse().ok()?;
    if text.ends_with('Z') {
        return Some(format!(
            "{}Z",
            moment(timestamp.to_zoned(TimeZone::UTC).datetime())
        ));
    }
    let offset = &text[text.len().checked_sub(6)?..];
    let local = text[..text.len() - 6].parse::<DateTime>().ok()?;
    Some(format!("{}{offset}", moment(local)))
}

fn canonical(date: Date) -> String {
    format!("{:04}-{:02}-{:02}", date.year(), date.month(), date.day())
}

/// Formats a time without trailing zeros of its fraction.
fn moment(time: DateTime) -> String {
    let mut text = format!(
        "{}T{:02}:{:02}:{:02}",
        canonical(time.date()),
        time.hour(),
        time.minute(),
        time.second()
    );
    if time.subsec_nanosecond() != 0 {
        let fraction = format!("{:09}", time.subsec_nanosecond());
        text.push('.');
        text.push_str(fraction.trim_end_matches('0'));
    }
    text
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("text", Some("text"))]
    #[case("yes", Some("yes"))]
    #[case("~", None)]
    #[case("TRUE", Some("True"))]
    #[case("0x1F", Some("31"))]
    #[case("0o17", Some("15"))]
    #[case("017", Some("15"))]
    #[case("018", Some("18"))]
    #[case("0b101", Some("5"))]
    #[case("-1_000", Some("-1000"))]
    #[case("+7", Some("7"))]
    #[case("0", Some("0"))]
    #[case("1.50", Some("1.5"))]
    #[case("1.0", Some("1"))]
    #[case("1e3", Some("1000"))]
    #[case(".5", Some("0.5"))]
    #[case("1.2.3", Some("1.2.3"))]
    #[case("-", Some("-"))]
    #[case("--a", Some("--a"))]
    #[case("10.0.0.0/8", Some("10.0.0.0/8"))]
    #[case("2026-01-02", Some("2026-01-02T00:00:00Z"))]
    #[case("2026-01-02 03:04:05", Some("2026-01-02T03:04:05Z"))]
    #[case("2026-01-02T03:04:05.500Z", Some("2026-01-02T03:04:05.5Z"))]
    #[case("2026-01-02T03:04:05+02:00", Some("2026-01-02T03:04:05+02:00"))]
    #[case("2026-01-xx", Some("2026-01-xx"))]
    #[case(".inf", Some("+Inf"))]
    fn plain_leaves_are_covered_as_sops_reads_them(
        #[case] text: &str,
        #[case] expected: Option<&str>,
    ) {
        assert_eq!(plain(text).as_deref(), expected);
    }
}
