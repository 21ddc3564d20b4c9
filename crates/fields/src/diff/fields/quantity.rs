//! Equality of values with several notations: quantities (`1000m` equals `1`), numbers as strings,
//! and times.

use serde_json::Value;

use pleach_model::kinds::{Schema, Type};
use pleach_model::object::{FieldPath, PathSegment};

/// Maps whose values are quantities, in all known kinds.
const MAPS: &[&str] = &[
    "limits",
    "requests",
    "capacity",
    "allocatable",
    "allocatedResources",
    "hard",
    "used",
    "defaultRequest",
    "podFixed",
];

/// Maps of quantities in the items of a `LimitRange`. Elsewhere these names are too common.
const MAPS_IN_LIMITS: &[&str] = &["default", "max", "min", "maxLimitRequestRatio"];

/// Fields that are quantities.
const FIELDS: &[&str] = &["sizeLimit"];

/// Returns whether the value at a path is a quantity.
pub(super) fn is_place(path: &FieldPath) -> bool {
    let key = |back: usize| {
        path.0
            .len()
            .checked_sub(back)
            .and_then(|index| match &path.0[index] {
                PathSegment::Key(key) => Some(key.as_str()),
                _ => None,
            })
    };
    let Some(field) = key(1) else { return false };
    if FIELDS.contains(&field) {
        return true;
    }
    let Some(map) = key(2) else { return false };
    MAPS.contains(&map) || (MAPS_IN_LIMITS.contains(&map) && key(4) == Some("limits"))
}

/// Returns whether two values are equal according to their schema.
pub(super) fn equal_by(schema: Schema<'_>, a: &Value, b: &Value) -> bool {
    match schema.kind() {
        Type::Quantity => equal(a, b),
        Type::IntOrString => whole(a).is_some_and(|a| whole(b) == Some(a)),
        Type::Time => time(a).is_some_and(|a| time(b) == Some(a)),
        _ => false,
    }
}

fn whole(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

fn time(value: &Value) -> Option<jiff::Timestamp> {
    value.as_str()?.parse().ok()
}

/// Returns whether two values are the same quantity. Unparsable values are never equal.
pub(super) fn equal(a: &Value, b: &Value) -> bool {
    match (billionths(a), billionths(b)) {
        (Some(a), Some(b)) => a == b,
        _ => false,
    }
}

/// Parses a quantity in billionths, the finest unit that the server stores. `None` for other values.
pub fn billionths(value: &Value) -> Option<i128> {
    match value {
        Value::String(text) => parse(text),
        Value::Number(number) => parse(&number.to_string()),
        _ => None,
    }
}

fn parse(text: &str) -> Option<i128> {
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-')))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (negative, digits) = match number.as_bytes().first()? {
        b'-' => (true, &number[1..]),
        b'+' => (false, &number[1..]),
        _ => (false, number),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
    let (factor, exponent) = suffix_of(suffix)?;
    let exponent = exponent + 9 - i32::try_from(fraction.len()).ok()?;
    let scaled = mantissa.checked_mul(factor)?;
    let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
    let value = if exponent >= 0 {
        scaled.checked_mul(power)?
    } else {
        (scaled % power == 0).then_some(scaled / power)?
    };
    Some(if negative { -value } else { value })
}

/// Returns the factor and the power of ten of a suffix.
fn suffix_of(suffix: &str) -> Option<(i128, i32)> {
    Some(match suffix {
        "" => (1, 0),
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            (1, exponent.parse::<i8>().ok()?.into())
        }
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(json!("1000m"), json!("1"), true)]
    #[case(json!("1024Mi"), json!("1Gi"), true)]
    #[case(json!("0.5"), json!("500m"), true)]
    #[case(json!(1), json!("1"), true)]
    #[case(json!(0.5), json!("500m"), true)]
    #[case(json!("1e3"), json!("1k"), true)]
    #[case(json!("1E"), json!("1e18"), true)]
    #[case(json!("12e-1"), json!("1200m"), true)]
    #[case(json!("-1"), json!("-1000m"), true)]
    #[case(json!("0"), json!("0Gi"), true)]
    #[case(json!("8Ei"), json!("8192Pi"), true)]
    #[case(json!("1G"), json!("1Gi"), false)]
    #[case(json!("1"), json!("2"), false)]
    #[case(json!("1x"), json!("1x"), false)]
    #[case(json!(""), json!(""), false)]
    #[case(json!("m"), json!("m"), false)]
    #[case(json!("1-1"), json!("1"), false)]
    #[case(json!("1e99"), json!("1e99"), false)]
    #[case(json!(null), json!(null), false)]
    fn quantities(#[case] a: Value, #[case] b: Value, #[case] expected: bool) {
        assert_eq!(equal(&a, &b), expected);
        assert_eq!(equal(&b, &a), expected);
    }

    #[rstest]
    #[case(&["resources", "limits", "cpu"], true)]
    #[case(&["spec", "hard", "requests.cpu"], true)]
    #[case(&["spec", "resources", "requests", "storage"], true)]
    #[case(&["emptyDir", "sizeLimit"], true)]
    #[case(&["limits"], false)]
    #[case(&["spec", "replicas"], false)]
    #[case(&["spec", "max", "cpu"], false)]
    fn quantity_fields(#[case] keys: &[&str], #[case] expected: bool) {
        let path = keys
            .iter()
            .fold(FieldPath::default(), |path, key| path.key(key));
        assert_eq!(is_place(&path), expected);
    }

    #[test]
    fn limits_of_a_limit_range_are_quantities() {
        let path = FieldPath::default()
            .key("spec")
            .key("limits")
            .join(PathSegment::Index(0))
            .key("max")
            .key("cpu");
        assert!(is_place(&path));
    }
}
