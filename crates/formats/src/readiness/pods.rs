//! Rule for pods, and causes of start failures.

use std::fmt::Write as _;

use serde_json::Value;

use super::conditions::{condition, one_line};
use super::{Assessment, GiveUp};

/// Reasons of a waiting container that only a change in git resolves. Crash
/// loops do not count, because containers may crash until their dependencies
/// have started.
const STUCK: &[&str] = &[
    "CreateContainerConfigError",
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
];

/// Reasons of a waiting container that are normal during a start.
const STARTING: &[&str] = &["", "ContainerCreating", "PodInitializing"];

pub(super) fn pod(value: &Value) -> Assessment {
    let phase = value["status"]["phase"].as_str().unwrap_or_default();
    match phase {
        "Succeeded" => Assessment::current(),
        "Failed" => Assessment::failed(failed_phase(value)),
        "Running"
            if condition(value, "Ready").is_some_and(super::conditions::Condition::is_true) =>
        {
            Assessment::current()
        }
        _ => match failure_hint(value) {
            Some(hint) if is_failing(value) => Assessment::failed_until(hint, GiveUp::AtDeadline),
            Some(hint) => Assessment::in_progress(hint),
            None => Assessment::in_progress(waiting(value, phase)),
        },
    }
}

/// Returns whether the kubelet reports a failure of a container that it retries.
fn is_failing(pod: &Value) -> bool {
    waiting_reasons(pod).any(|reason| {
        STUCK.contains(&reason)
            || reason.starts_with("Err")
            || reason.ends_with("Error")
            || reason.ends_with("BackOff")
    })
}

/// Returns the reasons for which containers wait.
fn waiting_reasons(pod: &Value) -> impl Iterator<Item = &str> {
    containers(pod).filter_map(|one| one["state"]["waiting"]["reason"].as_str())
}

fn failed_phase(value: &Value) -> String {
    let status = &value["status"];
    let mut line = String::from("phase Failed");
    if let Some(reason) = status["reason"].as_str() {
        let _ = write!(line, " ({reason})");
    }
    if let Some(message) = status["message"].as_str() {
        let _ = write!(line, ": {message}");
    } else if let Some(ended) = containers(value).find_map(|container| {
        let ended = &container["state"]["terminated"];
        (ended["exitCode"].as_i64().unwrap_or(0) != 0).then(|| termination(value, container, ended))
    }) {
        let _ = write!(line, ": {ended}");
    }
    line
}

fn waiting(value: &Value, phase: &str) -> String {
    for name in ["PodScheduled", "Initialized", "Ready"] {
        if let Some(condition) = condition(value, name).filter(|condition| condition.is_false()) {
            return condition.line();
        }
    }
    if phase.is_empty() {
        "no status yet".to_owned()
    } else {
        format!("phase {phase}")
    }
}

/// Returns the statuses of all containers, in start order.
fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["initContainerStatuses", "containerStatuses"]
        .into_iter()
        .filter_map(|key| pod["status"][key].as_array())
        .flatten()
}

/// Returns the reason in [`STUCK`] for which a container cannot start before
/// git changes.
pub(super) fn stuck(pod: &Value) -> Option<&'static str> {
    let mut stuck =
        waiting_reasons(pod).filter_map(|reason| STUCK.iter().find(|known| **known == reason));
    stuck.next().copied()
}

/// Returns a cause of a start failure that time alone hardly resolves: a crash
/// loop, an image that cannot be pulled, a container that cannot be created, or
/// an unschedulable pod. `None` if the pod is merely starting.
pub fn failure_hint(pod: &Value) -> Option<String> {
    let hint = containers(pod).find_map(|container| {
        let waiting = &container["state"]["waiting"];
        let reason = waiting["reason"].as_str().unwrap_or_default();
        if reason == "CrashLoopBackOff" {
            return Some(crash_loop(pod, container));
        }
        if !STARTING.contains(&reason) {
            let mut line = format!("container {}: {reason}", name(container));
            if let Some(message) = waiting["message"].as_str() {
                let _ = write!(line, ": {message}");
            }
            return Some(line);
        }
        // Between two attempts of a crash loop, the container is not waiting.
        let ended = &container["state"]["terminated"];
        let restarts = container["restartCount"].as_i64().unwrap_or(0);
        (restarts > 0 && ended["exitCode"].as_i64().unwrap_or(0) != 0).then(|| {
            format!(
                "{}, {}",
                termination(pod, container, ended),
                times(restarts)
            )
        })
    });
    let hint = hint.or_else(|| {
        condition(pod, "PodScheduled")
            .filter(|condition| condition.is_false() && condition.reason() == "Unschedulable")
            .map(|condition| format!("unschedulable: {}", condition.message()))
    });
    hint.map(|line| one_line(&line))
}

/// Returns why a running pod is not ready: the first running container that is
/// not, for example because its probe fails, or else the condition of the pod.
pub(super) fn unready(pod: &Value) -> Option<String> {
    if pod["status"]["phase"] != "Running" {
        return None;
    }
    let ready = condition(pod, "Ready").filter(|condition| condition.is_false())?;
    let unready = containers(pod)
        .find(|container| container["state"]["running"].is_object() && container["ready"] != true);
    Some(unready.map_or_else(
        || ready.line(),
        |container| format!("container {}: not ready", name(container)),
    ))
}

/// Returns whether the kubelet has restarted a container that has no readiness
/// probe. Such a container counts as ready whenever it runs.
pub(super) fn is_restarted(pod: &Value) -> bool {
    let statuses = pod["status"]["containerStatuses"].as_array();
    let specs = pod["spec"]["containers"].as_array();
    statuses.into_iter().flatten().any(|container| {
        let mut specs = specs.into_iter().flatten();
        container["restartCount"].as_i64().unwrap_or(0) > 0
            && specs
                .any(|spec| spec["name"] == container["name"] && spec["readinessProbe"].is_null())
    })
}

fn times(restarts: i64) -> String {
    match restarts {
        1 => "1 restart".to_owned(),
        _ => format!("{restarts} restarts"),
    }
}

fn name(container: &Value) -> &str {
    container["name"].as_str().unwrap_or_default()
}

fn crash_loop(pod: &Value, container: &Value) -> String {
    let restarts = container["restartCount"].as_i64().unwrap_or(0);
    let ended = &container["lastState"]["terminated"];
    let mut line = format!(
        "container {}: CrashLoopBackOff, {}",
        name(container),
        times(restarts)
    );
    if ended.is_object() {
        let _ = write!(line, ", last {}", exit(pod, container, ended));
    }
    line
}

fn termination(pod: &Value, container: &Value, ended: &Value) -> String {
    format!(
        "container {}: {}",
        name(container),
        exit(pod, container, ended)
    )
}

/// Formats `exit code 137 (OOMKilled): message`. A message taken from the log
/// is omitted: it may contain secrets, and the result reaches users without
/// permission to read logs.
fn exit(pod: &Value, container: &Value, ended: &Value) -> String {
    let mut line = format!("exit code {}", ended["exitCode"].as_i64().unwrap_or(0));
    if let Some(reason) = ended["reason"].as_str().filter(|reason| *reason != "Error") {
        let _ = write!(line, " ({reason})");
    }
    if let Some(message) = ended["message"].as_str().filter(|text| !text.is_empty())
        && !ends_with_log(pod, name(container))
    {
        let _ = write!(line, ": {message}");
    }
    line
}

/// Returns whether a container without a message reports the end of its log
/// instead.
fn ends_with_log(pod: &Value, container: &str) -> bool {
    ["initContainers", "containers"]
        .into_iter()
        .filter_map(|key| pod["spec"][key].as_array())
        .flatten()
        .filter(|spec| spec["name"] == container)
        .any(|spec| spec["terminationMessagePolicy"] == "FallbackToLogsOnError")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::super::Readiness::{self, Current, Failed, InProgress};
    use super::super::tests::check;
    use super::*;

    #[rstest]
    #[case::new(json!({"status": {"phase": "Pending", "qosClass": "BestEffort"}}), InProgress, "phase Pending")]
    #[case::ready(json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}), Current, "")]
    #[case::succeeded(json!({"status": {"phase": "Succeeded", "conditions": [{"type": "Ready", "status": "False", "reason": "PodCompleted"}]}}),
        Current, "")]
    #[case::creating(json!({"status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "containers with unready status: [app]"}],
        "containerStatuses": [{"name": "app", "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}]}}),
        InProgress, "Ready=False (ContainersNotReady): containers with unready status: [app]")]
    #[case::unschedulable(json!({"status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available: 2 Insufficient cpu."}]}}),
        InProgress, "unschedulable: 0/2 nodes are available: 2 Insufficient cpu.")]
    #[case::image(json!({"status": {"phase": "Pending", "containerStatuses": [{"name": "app", "restartCount": 0,
            "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image \"example.org/web:9\""}}}]}}),
        Failed, "container app: ImagePullBackOff: Back-off pulling image \"example.org/web:9\"")]
    #[case::config(json!({"status": {"phase": "Pending", "containerStatuses": [{"name": "app", "restartCount": 0,
            "state": {"waiting": {"reason": "CreateContainerConfigError", "message": "secret \"db\" not found"}}}]}}),
        Failed, "container app: CreateContainerConfigError: secret \"db\" not found")]
    #[case::crash_loop(json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [{"name": "app", "restartCount": 4,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container=app"}},
            "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]}}),
        Failed, "container app: CrashLoopBackOff, 4 restarts, last exit code 137 (OOMKilled)")]
    #[case::crash_loop_of_an_init_container(json!({"status": {"phase": "Pending",
        "initContainerStatuses": [{"name": "migrate", "restartCount": 2,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 2, "reason": "Error", "message": "panic: no\n\ngoroutine 1"}}}],
        "containerStatuses": [{"name": "app", "restartCount": 0, "state": {"waiting": {"reason": "PodInitializing"}}}]}}),
        Failed, "container migrate: CrashLoopBackOff, 2 restarts, last exit code 2: panic: no goroutine 1")]
    #[case::crash_loop_with_the_end_of_its_log(json!({
        "spec": {"containers": [{"name": "app", "terminationMessagePolicy": "FallbackToLogsOnError"}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "app", "restartCount": 2,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "cannot log in with hunter2"}}}]}}),
        Failed, "container app: CrashLoopBackOff, 2 restarts, last exit code 1")]
    #[case::command(json!({"status": {"phase": "Running", "containerStatuses": [{"name": "app", "restartCount": 2,
            "state": {"waiting": {"reason": "RunContainerError", "message": "exec: \"serve\": not found"}}}]}}),
        Failed, "container app: RunContainerError: exec: \"serve\": not found")]
    #[case::crashed_again(json!({"status": {"phase": "Running", "containerStatuses": [{"name": "app", "restartCount": 1,
            "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]}}),
        InProgress, "container app: exit code 1, 1 restart")]
    #[case::evicted(json!({"status": {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}}),
        Failed, "phase Failed (Evicted): The node was low on resource: memory.")]
    #[case::failed(json!({"spec": {"restartPolicy": "Never"}, "status": {"phase": "Failed", "containerStatuses": [
            {"name": "app", "state": {"terminated": {"exitCode": 3, "reason": "Error"}}}]}}),
        Failed, "phase Failed: container app: exit code 3")]
    fn pods(#[case] rest: Value, #[case] readiness: Readiness, #[case] message: &str) {
        assert_eq!(check("v1", "Pod", rest), (readiness, message.to_owned()));
    }

    #[test]
    fn a_wait_continues_while_the_kubelet_retries() {
        let status = |reason: &str| {
            json!({"phase": "Pending", "containerStatuses": [
                {"name": "app", "state": {"waiting": {"reason": reason}}}]})
        };
        for reason in ["CrashLoopBackOff", "ErrImagePull", "InvalidImageName"] {
            let found = pod(&json!({"status": status(reason)}));
            assert_eq!(found.give_up, GiveUp::AtDeadline, "{reason}");
        }
    }

    #[rstest]
    #[case::probe(json!({"name": "web", "ready": false, "state": {"running": {}}}), "Running", "False", Some("container web: not ready"))]
    #[case::gate(json!({"name": "web", "ready": true, "state": {"running": {}}}), "Running", "False",
        Some("Ready=False (NotYet): wait"))]
    #[case::crashed(json!({"name": "web", "ready": false, "state": {"terminated": {"exitCode": 0}}}), "Running", "False",
        Some("Ready=False (NotYet): wait"))]
    #[case::ready(json!({"name": "web", "ready": true, "state": {"running": {}}}), "Running", "True", None)]
    #[case::starting(json!({"name": "web", "ready": false, "state": {"waiting": {}}}), "Pending", "False", None)]
    fn the_container_of_an_unready_pod_is_named(
        #[case] container: Value,
        #[case] phase: &str,
        #[case] ready: &str,
        #[case] expected: Option<&str>,
    ) {
        let pod = json!({"status": {"phase": phase,
            "initContainerStatuses": [{"name": "first", "ready": true, "state": {"terminated": {"exitCode": 0}}}],
            "containerStatuses": [container],
            "conditions": [{"type": "Ready", "status": ready, "reason": "NotYet", "message": "wait"}]}});
        assert_eq!(unready(&pod).as_deref(), expected);
    }

    #[test]
    fn a_restart_counts_without_a_readiness_probe() {
        let probe = json!({"name": "a", "readinessProbe": {"exec": {}}});
        for (spec, restarts, expected) in [
            (json!({"name": "a"}), 1, true),
            (json!({"name": "a"}), 0, false),
            (probe, 1, false),
            (json!({"name": "other"}), 1, false),
        ] {
            let pod = json!({"spec": {"containers": [spec]},
                "status": {"containerStatuses": [{"name": "a", "restartCount": restarts}]}});
            assert_eq!(is_restarted(&pod), expected, "{pod}");
        }
    }

    #[test]
    fn a_pod_that_merely_starts_has_no_hint() {
        let pod = json!({"status": {"phase": "Pending", "conditions": null, "containerStatuses": [
            {"name": "a", "state": {"waiting": {"reason": "ContainerCreating"}}},
            {"name": "b", "state": {"running": {"startedAt": "2026-07-01T10:00:00Z"}}, "restartCount": 3}]}});
        assert_eq!(failure_hint(&pod), None);
    }
}
