//! Stages of kwok: behavior of simulated nodes and pods.
//!
//! A stage has a selector and a change of the status, see the documentation of kwok.

use std::time::Duration;

const NODES: &str = include_str!("../../../controlplane/stages/nodes.yaml");
const PODS: &str = include_str!("../../../controlplane/stages/pods.yaml");
/// Pods that fail on request.
const CRASHES: &str = include_str!("../../../controlplane/stages/pod-crash.yaml");

/// Start of the stage in which a pod becomes ready.
const READY: &str = "  name: pod-ready\nspec:\n";

/// Returns the stages. In a copy of a cluster, pods become ready after a delay, and no pod fails on
/// request.
pub(super) fn stages(delay_of_copy: Option<Duration>) -> String {
    let Some(delay) = delay_of_copy else {
        return [NODES, PODS, CRASHES].join("---\n");
    };
    let stages = [NODES, PODS].join("---\n");
    if delay.is_zero() {
        return stages;
    }
    let delay = format!(
        "{READY}  delay:\n    durationMilliseconds: {}\n",
        delay.as_millis()
    );
    stages.replacen(READY, &delay, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_of_a_copy_are_ready_after_a_delay_and_do_not_crash() {
        for (delay, delays, crashes) in [(None, 1, 3), (Some(0), 0, 0), (Some(1500), 1, 0)] {
            let text = stages(delay.map(Duration::from_millis));
            let names: Vec<&str> = text
                .lines()
                .filter_map(|line| line.strip_prefix("  name: "))
                .collect();
            assert_eq!(names.len(), 4 + crashes, "{names:?}");
            assert_eq!(text.matches("durationMilliseconds").count(), delays);
            assert_eq!(
                text.contains("durationMilliseconds: 1500\n"),
                delay == Some(1500)
            );
        }
    }
}
