//! Numbers of bytes with a unit, as in Kubernetes quantities.

/// Units with their factors, from the largest binary one.
const UNITS: [(&str, u64); 8] = [
    ("Ti", 1 << 40),
    ("Gi", 1 << 30),
    ("Mi", 1 << 20),
    ("Ki", 1 << 10),
    ("T", 1_000_000_000_000),
    ("G", 1_000_000_000),
    ("M", 1_000_000),
    ("k", 1_000),
];

/// Parses a number of bytes such as `13Gi`. `None` for other texts, and for zero.
pub fn parse(text: &str) -> Option<u64> {
    let unit = UNITS
        .iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
    let (number, factor) = unit.unwrap_or((text, 1));
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = is_number.then(|| number.parse().ok())??;
    number.checked_mul(factor).filter(|bytes| *bytes > 0)
}

/// Formats a number of bytes in the largest binary unit, with one digit.
pub fn text(bytes: u64) -> String {
    let unit = UNITS[..4].iter().find(|(_, factor)| bytes >= *factor);
    let Some((unit, factor)) = unit else {
        return format!("{bytes} bytes");
    };
    let tenths = u128::from(bytes) * 10 / u128::from(*factor);
    match tenths % 10 {
        0 => format!("{}{unit}", tenths / 10),
        tenth => format!("{}.{tenth}{unit}", tenths / 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_whole_numbers_with_a_unit() {
        for (text, expected) in [
            ("13Gi", Some(13 << 30)),
            ("5G", Some(5_000_000_000)),
            ("512", Some(512)),
            ("0", None),
            ("0Gi", None),
            ("", None),
            ("Gi", None),
            ("+1Gi", None),
            ("1.5Gi", None),
            ("1gi", None),
            ("99999999999999Ti", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }
}
