//! Rules for volumes and claims.

use serde_json::Value;

use super::Assessment;

/// Finds a requested resource that the volume cannot grow to.
fn infeasible(value: &Value) -> Option<String> {
    let statuses = value["status"]["allocatedResourceStatuses"].as_object()?;
    statuses.iter().find_map(|(resource, status)| {
        let status = status.as_str()?;
        status
            .ends_with("Infeasible")
            .then(|| format!("{resource}: {status}"))
    })
}

pub(super) fn claim(value: &Value) -> Assessment {
    match value["status"]["phase"].as_str() {
        Some("Bound") => infeasible(value).map_or_else(Assessment::current, Assessment::failed),
        Some("Lost") => Assessment::failed("phase Lost: its volume is gone"),
        // The claim does not show whether its class waits for a consumer.
        Some("Pending") => Assessment::in_progress(
            "phase Pending; if its storage class waits for a consumer, it is bound once a pod uses it",
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
        "phase Pending; if its storage class waits for a consumer, it is bound once a pod uses it"
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

    #[test]
    fn a_volume_that_cannot_grow() {
        for (status, expected, message) in [
            (
                "ControllerResizeInfeasible",
                Failed,
                "storage: ControllerResizeInfeasible",
            ),
            ("NodeResizePending", Current, ""),
        ] {
            let status =
                json!({"phase": "Bound", "allocatedResourceStatuses": {"storage": status}});
            assert_eq!(
                check("v1", "PersistentVolumeClaim", json!({"status": status})),
                (expected, message.to_owned())
            );
        }
    }
}
