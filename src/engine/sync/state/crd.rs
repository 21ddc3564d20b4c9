//! The definition of `releases.pleach.dev`.

use serde_json::{Value, json};

/// Name of the definition.
pub(super) const NAME: &str = "releases.pleach.dev";

/// Grows with every change of the definition; a newer one is never replaced.
pub(super) const REVISION: u64 = 1;

/// Where the definition carries its revision.
const REVISION_ANNOTATION: &str = "pleach.dev/definition-revision";

/// The revision of a live definition; 0 for one without.
pub(super) fn revision(live: &Value) -> u64 {
    live["metadata"]["annotations"][REVISION_ANNOTATION]
        .as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

/// The definition of Release.
pub(super) fn definition() -> Value {
    let column = |name: &str, path: &str, kind: &str| json!({ "name": name, "jsonPath": path, "type": kind });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": NAME,
            "labels": { "applyset.kubernetes.io/is-parent-type": "true" },
            "annotations": { REVISION_ANNOTATION: REVISION.to_string() },
        },
        "spec": {
            "group": "pleach.dev",
            "scope": "Cluster",
            "names": {
                "kind": "Release", "listKind": "ReleaseList",
                "plural": "releases", "singular": "release", "shortNames": ["plr"],
            },
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "subresources": { "status": {} },
                "additionalPrinterColumns": [
                    column("Version", ".status.version", "string"),
                    column("Revision", ".status.revision", "string"),
                    column("Ready", ".status.conditions[?(@.type==\"Ready\")].status", "string"),
                    column("Stage", ".status.stage", "string"),
                    column("Age", ".metadata.creationTimestamp", "date"),
                ],
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "description": "A bundle version that pleach keeps installed. Written by pleach; one object per release of an environment.",
                    "properties": {
                        "spec": {
                            "type": "object",
                            "properties": {
                                "environment": { "type": "string" },
                                "release": { "type": "string" },
                            },
                        },
                        "status": {
                            "type": "object",
                            "properties": {
                                "version": { "type": "string" },
                                "revision": { "type": "string" },
                                "stage": { "type": "string" },
                                "conditions": {
                                    "type": "array",
                                    "x-kubernetes-list-type": "map",
                                    "x-kubernetes-list-map-keys": ["type"],
                                    "items": {
                                        "type": "object",
                                        "required": ["type", "status"],
                                        "properties": {
                                            "type": { "type": "string" },
                                            "status": { "type": "string" },
                                            "reason": { "type": "string" },
                                            "message": { "type": "string" },
                                            "lastTransitionTime": { "type": "string", "format": "date-time" },
                                            "observedGeneration": { "type": "integer", "format": "int64" },
                                        },
                                    },
                                },
                                "record": {
                                    "type": "object",
                                    "description": "What pleach needs to know of its last runs. Its format is pleach's own.",
                                    "x-kubernetes-preserve-unknown-fields": true,
                                },
                            },
                        },
                    },
                }},
            }],
        },
    })
}
