//! Taints, as `kubectl taint` writes them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Effects of a taint (`core/v1 TaintEffect`).
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// A taint of a node: `key=value:Effect` or `key:Effect`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Taint {
    /// Its key, such as `example.org/drain`.
    pub key: String,
    /// Its value; empty if there is none.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

impl Taint {
    /// Returns the taint as an item of `spec.taints`.
    pub fn to_value(&self) -> Value {
        let Self { key, value, effect } = self;
        if value.is_empty() {
            return json!({"key": key, "effect": effect});
        }
        json!({"key": key, "value": value, "effect": effect})
    }

    /// Returns whether an item of `spec.taints` has this key and effect. A node has at most one
    /// taint with both.
    pub fn is(&self, item: &Value) -> bool {
        item["key"] == self.key.as_str() && item["effect"] == self.effect.as_str()
    }

    /// Returns whether an item of `spec.taints` is this taint.
    pub fn equals(&self, item: &Value) -> bool {
        self.is(item) && item["value"].as_str().unwrap_or_default() == self.value
    }
}

impl FromStr for Taint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is not a taint such as `example.org/drain=true:NoSchedule`");
        let (rest, effect) = text.rsplit_once(':').ok_or_else(wrong)?;
        let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
        let is_label = |text: &str| {
            let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            text.len() <= 63
                && text.chars().all(valid)
                && !text.starts_with(['-', '_', '.'])
                && !text.ends_with(['-', '_', '.'])
        };
        let (prefix, name) = key.rsplit_once('/').unwrap_or(("", key));
        let is_domain = prefix.len() <= 253 && prefix.split('.').all(is_label);
        if name.is_empty() || !is_label(name) || !is_domain || !is_label(value) {
            return Err(wrong());
        }
        if !EFFECTS.contains(&effect) {
            let effects = EFFECTS.join(", ");
            return Err(format!("`{effect}` is not an effect of a taint: {effects}"));
        }
        Ok(Self {
            key: key.to_owned(),
            value: value.to_owned(),
            effect: effect.to_owned(),
        })
    }
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, effect } = self;
        if value.is_empty() {
            return write!(f, "{key}:{effect}");
        }
        write!(f, "{key}={value}:{effect}")
    }
}

impl Serialize for Taint {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Taint {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("example.org/drain=draining:NoSchedule", json!({"key": "example.org/drain", "value": "draining", "effect": "NoSchedule"}))]
    #[case("drain:NoExecute", json!({"key": "drain", "effect": "NoExecute"}))]
    fn taints(#[case] text: &str, #[case] item: Value) {
        let taint: Taint = text.parse().unwrap();
        assert_eq!(taint.to_value(), item);
        assert_eq!(taint.to_string(), text);
        assert!(taint.equals(&item));
    }

    #[rstest]
    #[case("drain")]
    #[case("drain:Never")]
    #[case(":NoSchedule")]
    #[case("a b:NoSchedule")]
    #[case("-a:NoSchedule")]
    #[case("example.org/:NoSchedule")]
    #[case("a=b c:NoSchedule")]
    fn what_is_no_taint(#[case] text: &str) {
        text.parse::<Taint>().unwrap_err();
    }
}
