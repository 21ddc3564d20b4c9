//! Scalar types with a text form.

use std::collections::BTreeMap;
use std::fmt;

use jiff::SignedDuration;
use schemars::JsonSchema;
use semver::VersionReq;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

/// A range of versions, such as `>=0.11.0, <0.12.0`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub struct Range(pub VersionReq);

impl TryFrom<String> for Range {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
            .map(Self)
            .map_err(|_| format!("`{text}` is not a range of versions such as `>=0.11.0, <0.12.0`"))
    }
}

impl Serialize for Range {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// Required versions of programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Requires {
    /// Versions of pleach.
    Pleach(Range),
    /// Versions of each program.
    Each(Programs),
}

/// Versions of each program.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Programs {
    /// Versions of pleach.
    pub pleach: Option<Range>,
    /// Versions of `pleach-engines`, which renders charts and overlays.
    pub engines: Option<Range>,
}

impl Requires {
    /// Returns the required versions of pleach.
    pub fn pleach(&self) -> Option<&VersionReq> {
        match self {
            Self::Pleach(range) => Some(&range.0),
            Self::Each(programs) => programs.pleach.as_ref().map(|range| &range.0),
        }
    }

    /// Returns the required versions of `pleach-engines`.
    pub fn engines(&self) -> Option<&VersionReq> {
        match self {
            Self::Pleach(_) => None,
            Self::Each(programs) => programs.engines.as_ref().map(|range| &range.0),
        }
    }
}

impl<'de> Deserialize<'de> for Requires {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrMap {
            expected: "a range of versions such as `>=0.11.0, <0.12.0`, or a map with pleach and engines",
            text: |text| Range::try_from(text.to_owned()).ok().map(Self::Pleach),
            map: Self::Each,
        })
    }
}

/// Longest allowed duration in seconds: a leap year. Adding it to a timestamp cannot overflow.
const LONGEST_SECONDS: i64 = 366 * 24 * 60 * 60;

/// Converts a recorded number of seconds, clamped to the range that a file can contain.
pub fn remembered(seconds: i64) -> SignedDuration {
    SignedDuration::from_secs(seconds.clamp(1, LONGEST_SECONDS))
}

/// A positive duration, such as `10m`, `90s` or `1h30m`; a year at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub struct Timeout(pub SignedDuration);

impl TryFrom<String> for Timeout {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let parsed = text.parse().ok().filter(SignedDuration::is_positive);
        let duration = parsed
            .ok_or_else(|| format!("`{text}` is not a duration such as `10m`, `90s` or `1h30m`"))?;
        if duration > SignedDuration::from_secs(LONGEST_SECONDS) {
            return Err(format!("`{text}` is longer than 366 days"));
        }
        Ok(Self(duration))
    }
}

impl Serialize for Timeout {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// How long a pod may report that it cannot start before its wait fails: a positive
/// duration, or `never`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub struct FailFast(pub Option<SignedDuration>);

impl TryFrom<String> for FailFast {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text == "never" {
            return Ok(Self(None));
        }
        let Timeout(duration) = Timeout::try_from(text)
            .map_err(|error| error.replace("is not a duration", "is not `never` or a duration"))?;
        Ok(Self(Some(duration)))
    }
}

impl Serialize for FailFast {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(duration) => duration.serialize(serializer),
            None => serializer.serialize_str("never"),
        }
    }
}

/// A version of Kubernetes, such as `1.36` or `1.36.2`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct KubernetesVersion(String);

impl TryFrom<String> for KubernetesVersion {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let number = text.strip_prefix('v').unwrap_or(&text);
        let parts: Vec<&str> = number.split('.').collect();
        let whole = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if (2..=3).contains(&parts.len()) && parts.iter().all(whole) {
            Ok(Self(number.to_owned()))
        } else {
            Err(format!(
                "`{text}` is not a version of Kubernetes such as `1.36`"
            ))
        }
    }
}

impl From<KubernetesVersion> for String {
    fn from(version: KubernetesVersion) -> Self {
        version.0
    }
}

/// A map with any content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(with = "BTreeMap<String, Value>")]
pub struct AnyMap;

impl<'de> Deserialize<'de> for AnyMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BTreeMap::<String, IgnoredAny>::deserialize(deserializer).map(|_| Self)
    }
}

/// Visitor of a text or a map. Errors name the wrong field, which those of `untagged` do not.
pub(super) struct TextOrMap<T, M> {
    /// Description of both for errors.
    pub(super) expected: &'static str,
    /// Converts a text. `None` if it is invalid.
    pub(super) text: fn(&str) -> Option<T>,
    /// Converts the struct of a map.
    pub(super) map: fn(M) -> T,
}

impl<'de, T, M: Deserialize<'de>> Visitor<'de> for TextOrMap<T, M> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.text)(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        M::deserialize(MapAccessDeserializer::new(map)).map(self.map)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("10m", Some(600))]
    #[case("90s", Some(90))]
    #[case("1h30m", Some(5400))]
    #[case("1h 30m", Some(5400))]
    #[case("0s", None)]
    #[case("-5m", None)]
    #[case("10", None)]
    #[case("soon", None)]
    fn durations(#[case] text: &str, #[case] seconds: Option<i64>) {
        let timeout = Timeout::try_from(text.to_owned());
        assert_eq!(timeout.ok().map(|t| t.0.as_secs()), seconds);
    }

    #[rstest]
    #[case("never", Ok(None))]
    #[case("90s", Ok(Some(90)))]
    #[case(
        "soon",
        Err("`soon` is not `never` or a duration such as `10m`, `90s` or `1h30m`")
    )]
    fn a_limit_may_be_never(#[case] text: &str, #[case] expected: Result<Option<i64>, &str>) {
        let read = FailFast::try_from(text.to_owned());
        let seconds = read.map(|limit| limit.0.map(|limit| limit.as_secs()));
        assert_eq!(seconds, expected.map_err(str::to_owned));
    }

    #[rstest]
    #[case("1.36", true)]
    #[case("v1.36.2", true)]
    #[case("1", false)]
    #[case("1.x", false)]
    #[case("1.2.3.4", false)]
    fn versions_of_kubernetes(#[case] text: &str, #[case] valid: bool) {
        assert_eq!(KubernetesVersion::try_from(text.to_owned()).is_ok(), valid);
    }

    #[rstest]
    #[case(">=0.11.0, <0.12.0", true)]
    #[case(">=1.30", true)]
    #[case("*", true)]
    #[case(">=0.11.0 <0.12.0", false)]
    #[case("newest", false)]
    fn ranges(#[case] text: &str, #[case] valid: bool) {
        assert_eq!(Range::try_from(text.to_owned()).is_ok(), valid);
    }
}
