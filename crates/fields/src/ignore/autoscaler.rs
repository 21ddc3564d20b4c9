//! Replicas that are set by an autoscaler.

use serde::Deserialize;
use serde_json::Value;

use super::FieldPattern;
use pleach_model::object::{ApiVersion, Manifest, ObjectId};

/// Path of the field that an autoscaler writes.
pub const SCALED: &[&str] = &["spec", "replicas"];

/// Returns the workload that an autoscaler scales. `None` for any other object.
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

/// The number of replicas of a manifest. The rest is skipped during parsing.
#[derive(Deserialize)]
struct Scaled {
    spec: Replicas,
}

#[derive(Deserialize)]
struct Replicas {
    replicas: Value,
}

/// Returns whether a manifest sets the number of replicas, which conflicts with an autoscaler.
pub fn sets_replicas(manifest: &Manifest) -> bool {
    // The text search avoids parsing most manifests.
    manifest.has_text("\"replicas\":")
        && serde_json::from_slice(manifest.json())
            .is_ok_and(|Scaled { spec }| spec.replicas.is_number())
}

impl FieldPattern {
    /// Returns the pattern for the replicas of a workload.
    pub fn replicas() -> Self {
        Self::of_keys(SCALED)
    }
}
