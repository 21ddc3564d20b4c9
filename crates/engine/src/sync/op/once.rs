//! Run-once jobs: journaling before and after, and logs of failed pods.

use pleach_formats::readiness::{Readiness, assess};
use pleach_model::object::{ObjectId, from_base64};
use pleach_planner::plan::{Body, Step};
use pleach_state::inventory::{Outcome, Run};
use serde_json::Value;
use tokio::time::Instant;

use super::overlay::unrecorded;
use super::{Operator, required_uid};
use crate::sync::report::{Failure, FailureKind};
use pleach_cluster::{ClusterError, ResourcePath, Selector};

/// Number of log lines to report.
const LINES: usize = 8;

/// Longest log text to report, in characters.
const LONGEST: usize = 1000;

/// Shortest value to mask, because masking shorter ones would garble ordinary words.
const SHORTEST: usize = 4;

impl Operator<'_> {
    /// Creates a run-once job after journaling its key. Leaves the Job of a previous run as it is.
    pub(super) async fn run_once(
        &self,
        step: &Step,
        body: &Body,
        started: Instant,
    ) -> Result<(), Failure> {
        self.outcome(step, Outcome::Begun).await?;
        if required_uid(step).is_some() {
            return Ok(());
        }
        self.apply(step, body, (&[], &[]), started).await
    }

    /// Journals the outcome, with the pod log on failure. A wait that ends before the Job is not an
    /// outcome.
    pub(super) async fn ran<T>(
        &self,
        step: &Step,
        waited: Result<T, Failure>,
    ) -> Result<T, Failure> {
        match waited {
            Ok(seen) => {
                self.outcome(step, Outcome::Succeeded).await?;
                Ok(seen)
            }
            Err(failure) if self.has_failed(&step.object).await => {
                self.outcome(step, Outcome::Failed).await?;
                let then = "the next apply runs it again";
                Err(self.with_log(&step.object, failure, then).await)
            }
            Err(failure) => {
                let then = "the next apply waits for the same Job";
                Err(self.with_log(&step.object, failure, then).await)
            }
        }
    }

    async fn outcome(&self, step: &Step, outcome: Outcome) -> Result<(), Failure> {
        let id = step.object.clone();
        let Some(key) = self.desired.run_key(&id) else {
            return Err(Failure::new(FailureKind::Other, "the Job has no run key"));
        };
        self.journal_writer
            .record(|journal| {
                journal.runs.insert(id, Run { key, outcome });
            })
            .await
            .map_err(|error| unrecorded(&error))
    }

    async fn has_failed(&self, id: &ObjectId) -> bool {
        let path = ResourcePath::namespaced("batch/v1", "Job", "jobs");
        let read = self.cluster.get_id(&path, id).await;
        read.is_ok_and(|value| {
            value.is_some_and(|value| assess(&value).readiness == Readiness::Failed)
        })
    }

    /// Adds the last log lines of the pod, and the next step, to the failure of a Job.
    pub(super) async fn with_log(&self, id: &ObjectId, failure: Failure, then: &str) -> Failure {
        let log = match self.tail(id).await {
            Ok(Some(end)) => format!("; {end}"),
            Ok(None) => "; none of its pods is left to read the log from".to_owned(),
            Err(error) => format!("; the log of its pod could not be read: {error}"),
        };
        let namespace = id.namespace.as_deref().unwrap_or_default();
        Failure {
            message: format!("{}{log}", self.without_secrets(failure.message)),
            hint: Some(format!(
                "`kubectl -n {namespace} logs job/{}` shows the whole log; {then}",
                id.name
            )),
            ..failure
        }
    }

    /// Names the last failed pod with the end of its log in one line, or the message of its
    /// container if the log cannot be read: the node may be down. Secret values of the release are
    /// masked.
    async fn tail(&self, job: &ObjectId) -> Result<Option<String>, ClusterError> {
        let path = ResourcePath::namespaced("v1", "Pod", "pods");
        let labels = format!("batch.kubernetes.io/job-name={}", job.name);
        let selector = Selector {
            namespace: job.namespace.as_deref(),
            labels: Some(&labels),
            ..Selector::default()
        };
        let pods = self.cluster.list(&path, &selector).await?.items;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let newest = pods.iter().max_by_key(|pod| {
            let is_failed = pod["status"]["phase"] == "Failed";
            (is_failed, text(&pod["metadata"]["creationTimestamp"]))
        });
        let Some(pod) = newest else { return Ok(None) };
        let name = text(&pod["metadata"]["name"]);
        let namespace = job.namespace.as_deref().unwrap_or_default();
        let container = failed_container(pod);
        let log = self
            .cluster
            .log(namespace, &name, container.as_deref(), LINES)
            .await;
        let (begin, text) = match (log, termination_message(pod)) {
            (Err(_), Some(message)) => (format!("its pod {name} ended with"), message),
            (log, _) => (format!("the log of its pod {name} ends with"), log?),
        };
        let line = text.lines().map(str::trim).collect::<Vec<_>>().join(" | ");
        let line = bounded(&self.without_secrets(line));
        Ok(Some(format!("{begin}: {line}")))
    }

    fn without_secrets(&self, text: String) -> String {
        let secrets = self
            .manifests
            .values()
            .copied()
            .chain(self.desired.node_jobs.values())
            .filter(|manifest| manifest.is_secret());
        let found = secrets.flat_map(|manifest| values(&manifest.value()));
        masked(text, found.collect())
    }
}

/// Masks values in a text. Longer values come first, because a value can contain another.
fn masked(text: String, mut values: Vec<String>) -> String {
    values.sort_by_key(|value| std::cmp::Reverse(value.len()));
    values
        .into_iter()
        .fold(text, |text, value| text.replace(&value, "<masked>"))
}

/// Returns the failed container of a pod, or else the first one.
fn failed_container(pod: &Value) -> Option<String> {
    let failed = failed_status(pod).map(|status| &status["name"]);
    let name = failed.unwrap_or_else(|| &pod["spec"]["containers"][0]["name"]);
    name.as_str().map(str::to_owned)
}

/// Returns the message that the failed container of a pod left. `None` if it left none.
fn termination_message(pod: &Value) -> Option<String> {
    let message = &failed_status(pod)?["state"]["terminated"]["message"];
    let message = message
        .as_str()
        .filter(|message| !message.trim().is_empty());
    message.map(str::to_owned)
}

/// Returns the status of the failed container of a pod.
fn failed_status(pod: &Value) -> Option<&Value> {
    ["initContainerStatuses", "containerStatuses"]
        .into_iter()
        .flat_map(|key| pod["status"][key].as_array().into_iter().flatten())
        .find(|status| {
            let code = &status["state"]["terminated"]["exitCode"];
            code.as_i64().is_some_and(|code| code != 0)
        })
}

/// Returns the texts of an object to mask; for Secrets, both plain and encoded.
fn values(object: &Value) -> Vec<String> {
    /// Iterates over the whole text and its trimmed lines, because logs are reported by line.
    fn lines(text: &str) -> impl Iterator<Item = String> {
        let lines = text.lines().map(|line| line.trim().to_owned());
        std::iter::once(text.trim().to_owned()).chain(lines)
    }
    fn collect(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::String(text) => {
                if let Some(Ok(plain)) = from_base64(text).map(String::from_utf8) {
                    found.extend(lines(&plain));
                }
                found.extend(lines(text));
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
            Value::Object(map) => map.values().for_each(|value| collect(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    for (key, value) in object.as_object().into_iter().flatten() {
        if !matches!(key.as_str(), "apiVersion" | "kind" | "metadata" | "type") {
            collect(value, &mut found);
        }
    }
    found.retain(|value| value.len() >= SHORTEST);
    found
}

/// Truncates a long text to its end.
fn bounded(text: &str) -> String {
    let count = text.chars().count();
    if count <= LONGEST {
        return text.to_owned();
    }
    let rest: String = text.chars().skip(count - LONGEST).collect();
    format!("…{rest}")
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde_json::json;

    use super::*;

    #[test]
    fn values_of_secrets_are_masked_as_they_are_and_as_they_are_written() {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"},
            "type": "Opaque", "data": {"k": STANDARD.encode("hunter2hunter2"), "s": "YQ=="}});
        let found = values(&secret);
        assert!(found.contains(&"hunter2hunter2".to_owned()));
        assert!(found.contains(&STANDARD.encode("hunter2hunter2")));
        assert!(
            !found
                .iter()
                .any(|value| value == "Opaque" || value == "keys" || value == "a")
        );
    }

    #[test]
    fn a_failed_container_is_named_with_its_message() {
        let pod = |code: i32, message: &str| {
            let ended = json!({"exitCode": code, "message": message});
            json!({"spec": {"containers": [{"name": "a"}]}, "status": {"containerStatuses": [
                {"name": "a", "state": {"running": {}}}, {"name": "b", "state": {"terminated": ended}}]}})
        };
        let failed = pod(1, "no space is left");
        assert_eq!(failed_container(&failed).as_deref(), Some("b"));
        assert_eq!(
            termination_message(&failed).as_deref(),
            Some("no space is left")
        );
        for other in [pod(0, "done"), pod(1, " \n"), json!({})] {
            assert_eq!(termination_message(&other), None, "{other}");
        }
        assert_eq!(failed_container(&pod(0, "")).as_deref(), Some("a"));
    }

    #[test]
    fn log_lines_with_secrets_are_masked() {
        let plain = "tls:\n    hunter2hunter2\r\n";
        let text = "key hunter2hunter2".to_owned();
        for secret in [
            json!({"kind": "Secret", "data": {"k": STANDARD.encode(plain)}}),
            json!({"kind": "Secret", "stringData": {"k": plain}}),
        ] {
            assert_eq!(masked(text.clone(), values(&secret)), "key <masked>");
        }
    }

    #[test]
    fn nothing_is_left_of_a_value_that_begins_like_one_of_another_secret() {
        let found = ["hunter", "hunter2hunter2"].map(|value| {
            let secret = json!({"kind": "Secret", "stringData": {"k": value}});
            values(&secret)
        });
        assert_eq!(
            masked("printed hunter2hunter2, hunter".to_owned(), found.concat()),
            "printed <masked>, <masked>"
        );
    }

    #[test]
    fn the_log_of_the_failed_container_is_read() {
        let pod = json!({
            "spec": {"containers": [{"name": "first"}, {"name": "second"}]},
            "status": {"containerStatuses": [
                {"name": "first", "state": {"terminated": {"exitCode": 0}}},
                {"name": "second", "state": {"terminated": {"exitCode": 3}}}]},
        });
        assert_eq!(failed_container(&pod).as_deref(), Some("second"));
        let starting = json!({"spec": {"containers": [{"name": "first"}]}});
        assert_eq!(failed_container(&starting).as_deref(), Some("first"));
    }

    #[test]
    fn a_long_log_is_cut_in_front() {
        let text = bounded(&"x".repeat(5000));
        assert_eq!(text.chars().count(), LONGEST + 1);
        assert!(text.starts_with('…'));
    }
}
