//! Bytes as objects hold them.

use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use base64::{Engine as _, alphabet};

/// What Go takes for base64: bits that stand for nothing may be anything.
const GO: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// The bytes that a text stands for where a field holds bytes. As the server
/// reads it: line breaks do not count, and manifests are full of them.
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
