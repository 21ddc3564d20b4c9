//! Decoding of base64 fields.

use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use base64::{Engine as _, alphabet};

/// Base64 engine that, like Go, accepts non-zero trailing bits.
const GO: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// Decodes the base64 text of a byte field as the API server does: line breaks are ignored. Returns
/// `None` for invalid base64.
pub fn from_base64(text: &str) -> Option<Vec<u8>> {
    if text.contains(['\n', '\r']) {
        GO.decode(text.replace(['\n', '\r'], "")).ok()
    } else {
        GO.decode(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("aHVudGVyMg==", Some("hunter2"))]
    #[case("aHVudGVyMg==\n", Some("hunter2"))]
    #[case("aHVu\r\ndGVy\nMg==", Some("hunter2"))]
    #[case("aGl=", Some("hi"))]
    #[case("", Some(""))]
    #[case("aHVudGVyMg", None)]
    #[case("aHVu dGVyMg==", None)]
    #[case("hunter2!", None)]
    fn bytes_are_read_as_the_server_reads_them(#[case] text: &str, #[case] expected: Option<&str>) {
        assert_eq!(from_base64(text).as_deref(), expected.map(str::as_bytes));
    }
}
