//! Volumes and claims.

use serde_json::Value;

use super::Assessment;

pub(super) fn claim(value: &Value) -> Assessment {
    match value["status"]["phase"].as_str() {
        Some("Bound") => Assessment::current(),
        Some("Lost") => Assessment::failed("phase Lost: its volume is gone"),
        // Whether the class waits for a consumer is not in the claim.
        Some("Pending") => Assessment::in_progress(
            "phase Pending; where the class waits for a consumer it is bound once a pod uses it",
        ),
        Some(phase) => Assessment::in_progress(format!("phase {phase}")),
        None => Assessment::in_progress("no status yet"),
    }
}

pub(super) fn volume(value: &Value) -> Assessment {
    match value["status"]["phase"].as_str() {
        Some(phase @ "Failed") => Assessment::failed(format!(
            "phase {phase}: {}",
            value["status"]["message"].as_str().unwrap_or_default()
        )),
        Some("Available" | "Bound" | "Released") => Assessment::current(),
        Some(phase) => Assessment::in_progress(format!("phase {phase}")),
        None => Assessment::in_progress("no status yet"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::super::Readiness::{self, Current, Failed, InProgress};
    use super::super::tests::check;

    #[rstest]
    #[case("PersistentVolumeClaim", "Bound", Current, "")]
    #[case(
        "PersistentVolumeClaim",
        "Lost",
        Failed,
        "phase Lost: its volume is gone"
    )]
    #[case(
        "PersistentVolumeClaim",
        "Pending",
        InProgress,
        "phase Pending; where the class waits for a consumer it is bound once a pod uses it"
    )]
    #[case("PersistentVolume", "Available", Current, "")]
    #[case("PersistentVolume", "Pending", InProgress, "phase Pending")]
    fn by_phase(
        #[case] kind: &str,
        #[case] phase: &str,
        #[case] readiness: Readiness,
        #[case] message: &str,
    ) {
        assert_eq!(
            check("v1", kind, json!({"status": {"phase": phase}})),
            (readiness, message.to_owned())
        );
    }
}
