//! Causes for an unready workload that its own status does not show: the state
//! of its pods, and events.

use std::cmp::Reverse;

use serde_json::Value;

use super::conditions::one_line;
use super::pods;
use pleach_model::object::ObjectId;

/// State of one pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodState {
    /// Creation time as written by the server.
    created: String,
    name: String,
    uid: String,
    /// Start failure, if the status shows one.
    trouble: Option<String>,
    /// Reason for which a container cannot start before git changes.
    stuck: Option<&'static str>,
    /// Reason for which it runs and is not ready.
    unready: Option<String>,
    /// True if the kubelet has restarted a container without a readiness probe.
    restarted: bool,
    /// True if the pod has not started yet.
    pending: bool,
    /// True if the pod is being deleted.
    leaving: bool,
}

impl PodState {
    /// Extracts the state of a pod.
    pub fn of(pod: &Value) -> Self {
        let metadata = &pod["metadata"];
        let text = |key: &str| metadata[key].as_str().unwrap_or_default().to_owned();
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        let trouble = match phase {
            "Failed" => Some(pods::pod(pod).message),
            _ => pods::failure_hint(pod),
        };
        Self {
            created: text("creationTimestamp"),
            name: text("name"),
            uid: text("uid"),
            trouble,
            stuck: pods::stuck(pod),
            unready: pods::unready(pod).map(|line| one_line(&line)),
            restarted: pods::is_restarted(pod),
            pending: phase.is_empty() || phase == "Pending",
            leaving: metadata["deletionTimestamp"].is_string(),
        }
    }

    /// Returns the UID of the pod.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Returns the key that sorts pods by age, the oldest first.
    fn age(&self) -> (&str, Reverse<&str>) {
        (&self.created, Reverse(&self.name))
    }
}

/// Returns the label selector of a workload's pods; `None` for objects without
/// pods.
pub fn pod_selector(id: &ObjectId, workload: &Value) -> Option<String> {
    let selector = &workload["spec"]["selector"];
    let labels = match (id.group.as_str(), id.kind.as_str()) {
        ("apps", "DaemonSet" | "Deployment" | "ReplicaSet" | "StatefulSet") | ("batch", "Job") => {
            selector["matchLabels"].as_object()?
        }
        ("", "ReplicationController") => selector.as_object()?,
        _ => return None,
    };
    let labels: Vec<String> = labels
        .iter()
        .filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)))
        .collect();
    (!labels.is_empty()).then(|| labels.join(","))
}

/// Returns the problem of a workload's pods as one line. It names the newest
/// affected pod, which belongs to the awaited version.
pub fn of_pods(pods: &[PodState]) -> Option<String> {
    let troubled = pods
        .iter()
        .filter(|pod| pod.trouble.is_some() && !pod.leaving);
    let newest = troubled.clone().max_by_key(|pod| pod.age())?;
    let trouble = newest.trouble.as_deref().unwrap_or_default();
    Some(one_of(newest, trouble, troubled.count()))
}

/// Describes a pod of several with the same kind of problem.
fn one_of(pod: &PodState, problem: &str, count: usize) -> String {
    let more = match count.saturating_sub(1) {
        0 => String::new(),
        1 => " (and 1 more pod)".to_owned(),
        more => format!(" (and {more} more pods)"),
    };
    format!("pod {}: {problem}{more}", pod.name)
}

/// Returns the reason for which a pod cannot start before git changes: an image
/// that cannot be pulled, or a missing reference.
pub fn stuck(pods: &[PodState]) -> Option<&'static str> {
    let mut pods = pods.iter().filter(|pod| !pod.leaving);
    pods.find_map(|pod| pod.stuck)
}

/// Returns whether the kubelet has restarted a container of these pods that has
/// no readiness probe.
pub fn restarted(pods: &[PodState]) -> bool {
    pods.iter().any(|pod| pod.restarted && !pod.leaving)
}

/// Returns the newest pod that has not started or is not ready. Its events show
/// the cause.
pub fn waiting(pods: &[PodState]) -> Option<&PodState> {
    let waiting = pods
        .iter()
        .filter(|pod| (pod.pending || pod.unready.is_some()) && !pod.leaving);
    waiting.max_by_key(|pod| pod.age())
}

/// Returns the problem of a [waiting](waiting) pod as one line, with its latest
/// warning. `None` without a warning for a pod that has not started, because it
/// may merely be starting.
pub fn of_waiting(pod: &PodState, pods: &[PodState], warnings: &[Value]) -> Option<String> {
    let Some(unready) = &pod.unready else {
        return newest(warnings);
    };
    // Other warnings are about earlier problems.
    let probes = warnings
        .iter()
        .filter(|event| event["reason"] == "Unhealthy");
    let failure = latest(probes).and_then(|event| event["message"].as_str());
    let problem = match failure {
        Some(failure) => one_line(&format!("{unready}: {failure}")),
        None => unready.clone(),
    };
    let count = pods
        .iter()
        .filter(|pod| pod.unready.is_some() && !pod.leaving);
    Some(one_of(pod, &problem, count.count()))
}

/// Adds symptoms to a message about an object.
pub fn beside(message: String, symptoms: Option<&str>) -> String {
    match symptoms {
        // Some objects report the same message themselves.
        Some(seen) if !message.contains(seen) => format!("{message}; {seen}"),
        _ => message,
    }
}

/// Returns the latest event as one line.
pub fn newest(events: &[Value]) -> Option<String> {
    let event = latest(events.iter())?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &event["involvedObject"];
    let (kind, name) = (text(&object["kind"]), text(&object["name"]));
    let (reason, message) = (text(&event["reason"]), text(&event["message"]));
    Some(one_line(&format!(
        "{} {name}: {reason}: {message}",
        kind.to_lowercase()
    )))
}

fn latest<'a>(events: impl Iterator<Item = &'a Value>) -> Option<&'a Value> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    events.max_by_key(|event| {
        let times = ["lastTimestamp", "eventTime", "firstTimestamp"];
        let series = text(&event["series"]["lastObservedTime"]);
        let reported = times.into_iter().map(|key| text(&event[key]));
        reported.chain([series]).max().unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn pod(name: &str, created: &str, status: &Value) -> PodState {
        PodState::of(&json!({
            "metadata": {"name": name, "uid": format!("uid of {name}"), "creationTimestamp": created},
            "status": status,
        }))
    }

    fn held(reason: &str, message: &str) -> Value {
        json!({"phase": "Pending", "containerStatuses": [
            {"name": "app", "state": {"waiting": {"reason": reason, "message": message}}}]})
    }

    #[rstest]
    #[case("Deployment.apps/a/b", json!({"spec": {"selector": {"matchLabels": {"app": "a", "b": "c"}}}}), Some("app=a,b=c"))]
    #[case("Job.batch/a/b", json!({"spec": {"selector": {"matchLabels": {"x": "y"}}}}), Some("x=y"))]
    #[case("ReplicationController/a/b", json!({"spec": {"selector": {"x": "y"}}}), Some("x=y"))]
    #[case("Deployment.apps/a/b", json!({"spec": {"selector": {"matchLabels": {}}}}), None)]
    #[case("Deployment.apps/a/b", json!({"spec": {}}), None)]
    #[case("Service/a/b", json!({"spec": {"selector": {"x": "y"}}}), None)]
    fn pods_are_assigned_to_their_workload(
        #[case] id: &str,
        #[case] workload: Value,
        #[case] expected: Option<&str>,
    ) {
        let id: ObjectId = id.parse().unwrap();
        assert_eq!(pod_selector(&id, &workload).as_deref(), expected);
    }

    #[test]
    fn the_youngest_failing_pod_is_shown() {
        let pods = [
            pod("old", "2026-01-01T00:00:00Z", &held("CrashLoopBackOff", "")),
            pod(
                "new",
                "2026-01-01T00:01:00Z",
                &held("ImagePullBackOff", "not found"),
            ),
            pod("fine", "2026-01-01T00:02:00Z", &json!({"phase": "Running"})),
        ];
        assert_eq!(
            of_pods(&pods).as_deref(),
            Some("pod new: container app: ImagePullBackOff: not found (and 1 more pod)")
        );
        assert_eq!(of_pods(&pods[2..]), None);
        assert_eq!(of_pods(&[]), None);
    }

    #[test]
    fn starting_and_terminating_pods_are_no_symptom() {
        let mut leaving = pod("a", "1", &held("ErrImagePull", "x"));
        leaving.leaving = true;
        let starting = pod("b", "1", &held("ContainerCreating", ""));
        let youngest = pod("c", "2", &json!({"phase": "Pending"}));
        let pods = [leaving, starting, youngest];
        assert_eq!(of_pods(&pods), None);
        assert_eq!(waiting(&pods).map(PodState::uid), Some("uid of c"));
        assert_eq!(waiting(&[]), None);
    }

    fn unready(name: &str) -> PodState {
        let status = json!({"phase": "Running",
            "conditions": [{"type": "Ready", "status": "False"}],
            "containerStatuses": [{"name": "web", "ready": false, "restartCount": 1, "state": {"running": {}}}]});
        PodState::of(&json!({
            "metadata": {"name": name, "creationTimestamp": "1"},
            "spec": {"containers": [{"name": "web"}]},
            "status": status,
        }))
    }

    #[test]
    fn an_unready_pod_is_named_with_the_failure_of_its_probe() {
        let event = |reason: &str, time: &str| {
            json!({"lastTimestamp": time, "reason": reason, "message": format!("{reason}\n of {time}"),
                "involvedObject": {"kind": "Pod", "name": "a"}})
        };
        let starting = pod("a", "1", &json!({"phase": "Pending"}));
        let unhealthy = [
            event("BackOff", "3"),
            event("Unhealthy", "1"),
            event("Unhealthy", "2"),
        ];
        for (pods, warnings, expected) in [
            (
                vec![unready("b")],
                &[][..],
                Some("pod b: container web: not ready"),
            ),
            (
                vec![unready("b")],
                &unhealthy[..1],
                Some("pod b: container web: not ready"),
            ),
            (
                vec![unready("b"), unready("c")],
                &unhealthy[..],
                Some("pod b: container web: not ready: Unhealthy of 2 (and 1 more pod)"),
            ),
            (
                vec![starting.clone()],
                &unhealthy[..1],
                Some("pod a: BackOff: BackOff of 3"),
            ),
            (vec![starting.clone()], &[][..], None),
            (vec![starting, unready("b")], &[][..], None),
        ] {
            let newest = waiting(&pods).unwrap();
            let found = of_waiting(newest, &pods, warnings);
            assert_eq!(found.as_deref(), expected, "{pods:?}");
        }
    }

    #[test]
    fn a_restart_is_remembered_while_the_pod_lives() {
        let mut pods = [unready("a"), pod("b", "2", &json!({"phase": "Running"}))];
        assert!(restarted(&pods));
        assert!(!restarted(&pods[1..]));
        pods[0].leaving = true;
        assert!(!restarted(&pods));
    }

    #[test]
    fn symptoms_are_added_once() {
        for (message, seen, expected) in [
            ("0 of 1", None, "0 of 1"),
            ("0 of 1", Some("pod a: no"), "0 of 1; pod a: no"),
            ("it says pod a: no", Some("pod a: no"), "it says pod a: no"),
        ] {
            assert_eq!(beside(message.to_owned(), seen), expected);
        }
    }

    #[rstest]
    #[case("ErrImagePull", true)]
    #[case("ImagePullBackOff", true)]
    #[case("InvalidImageName", true)]
    #[case("CreateContainerConfigError", true)]
    #[case("CrashLoopBackOff", false)]
    #[case("ContainerCreating", false)]
    fn only_a_change_in_git_cures(#[case] reason: &str, #[case] expected: bool) {
        let mut pods = vec![
            pod("fine", "1", &json!({"phase": "Running"})),
            pod("new", "2", &held(reason, "")),
        ];
        assert_eq!(stuck(&pods).is_some(), expected, "{reason}");
        pods[1].leaving = true;
        assert_eq!(stuck(&pods), None);
    }

    #[test]
    fn pods_of_failed_jobs_show_the_reason() {
        let failed = pod(
            "job-1",
            "1",
            &json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}),
        );
        assert_eq!(
            of_pods(&[failed]).as_deref(),
            Some("pod job-1: phase Failed (Evicted): low on memory")
        );
    }

    #[test]
    fn the_last_complaint_counts() {
        let event = |time: Value, reason: &str| {
            json!({"lastTimestamp": time, "reason": reason, "message": "a\n b",
                "involvedObject": {"kind": "StatefulSet", "name": "db"}})
        };
        let mut micro = event(json!(null), "FailedMount");
        micro["eventTime"] = json!("2026-01-01T00:00:02.000000Z");
        let events = [event(json!("2026-01-01T00:00:01Z"), "FailedCreate"), micro];
        assert_eq!(
            newest(&events).as_deref(),
            Some("statefulset db: FailedMount: a b")
        );
        assert_eq!(
            newest(&events[..1]).as_deref(),
            Some("statefulset db: FailedCreate: a b")
        );
        assert_eq!(newest(&[]), None);
    }
}
