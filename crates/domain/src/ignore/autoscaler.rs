//! Replicas that an autoscaler sets.

use serde_json::Value;

use super::FieldPattern;
use crate::object::{ApiVersion, Manifest, ObjectId};

/// The field that an autoscaler writes.
pub const SCALED: &[&str] = &["spec", "replicas"];

/// What an autoscaler scales; none for any other object.
pub fn scale_target(id: &ObjectId, autoscaler: &Value) -> Option<ObjectId> {
    if !id.is("autoscaling", "HorizontalPodAutoscaler") {
        return None;
    }
    let target = &autoscaler["spec"]["scaleTargetRef"];
    let group = ApiVersion::parse(target["apiVersion"].as_str().unwrap_or_default()).group;
    Some(ObjectId::new(
        &group,
        target["kind"].as_str()?,
        Some(id.namespace.as_deref()?),
        target["name"].as_str()?,
    ))
}

/// Whether an object says how many replicas it wants: an autoscaler would have
/// to fight it.
pub fn wants_replicas(manifest: &Manifest) -> bool {
    // Most objects are not even parsed for it.
    let text = std::str::from_utf8(manifest.json()).unwrap_or_default();
    text.contains("\"replicas\":") && manifest.value()["spec"]["replicas"].is_number()
}

impl FieldPattern {
    /// The replicas of a workload.
    pub fn replicas() -> Self {
        Self::of_keys(SCALED)
    }
}
