//! Preloading of images on the nodes of a cluster, before anything is changed.
//!
//! The decisions are pure: the images, the pods that make a kubelet pull them, and the outcome of
//! such a pod. Its only container runs the image of pleach, so nothing of the images is executed.

mod images;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::bytes;
use crate::nodes::{NodeState, ready_since};
use crate::sequence::Count;
use pleach_model::object::{Digest, canonical_json};

pub use images::Images;

/// Label of the pods that preload.
pub const PRELOAD: &str = "pleach.dev/preload";

/// Number of images of a pod. The kubelet reports at most 50 images of a node, and one pod with
/// hundreds of volumes would be large.
pub const IMAGES_A_POD: usize = 20;

/// Minor version of Kubernetes in which image volumes are on by default.
pub const IMAGE_VOLUMES: u64 = 35;

/// Time for which a preloaded node is remembered. Later, a kubelet that is short of space may have
/// removed the images.
const REMEMBERED: SignedDuration = SignedDuration::from_hours(24);

/// Preloading that a stage declares.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PreloadRule {
    /// Labels of the nodes.
    pub select: BTreeMap<String, String>,
    /// Nodes at a time.
    pub parallel: Count,
    /// Source of the images.
    pub source: PreloadSource,
    /// Image of pleach, for the pods.
    pub runner: Option<String>,
    /// Bytes that must be free on each node.
    pub space: Option<u64>,
    /// Time limit for one node.
    pub timeout: SignedDuration,
}

/// Source of the images on a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PreloadSource {
    /// Pods with image volumes, for all images of the release.
    Release,
    /// File of a Job that runs on each node.
    Job(String),
}

/// Content of a stage that preloads, as far as a node's own pods and memory depend on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preloading {
    /// Environment and release.
    pub release: String,
    /// Digest of rule and images.
    pub content: Digest,
}

impl Preloading {
    /// Returns the annotation of a node that remembers the preloading of the release.
    pub fn annotation(&self) -> String {
        let release = Digest::of(self.release.as_bytes());
        format!("preload.pleach.dev/{}", release.short())
    }

    /// Returns the patch of a node that remembers it as preloaded.
    pub fn remember(&self, now: Timestamp) -> Value {
        let value = format!("{} {}", self.content.short(), now.as_second());
        json!({"metadata": {"annotations": {self.annotation(): value}}})
    }

    /// Returns whether a node was preloaded with the same content in the last day.
    fn is_remembered(&self, node: &Value, now: Timestamp) -> bool {
        let value = &node["metadata"]["annotations"][self.annotation()];
        let parts = value.as_str().and_then(|value| value.split_once(' '));
        parts.is_some_and(|(content, second)| {
            let at = second.parse().ok();
            let at = at.and_then(|second| Timestamp::from_second(second).ok());
            let age = at.map(|at| now.duration_since(at));
            content == self.content.short()
                && age.is_some_and(|age| (SignedDuration::ZERO..REMEMBERED).contains(&age))
        })
    }
}

impl PreloadRule {
    /// Reads the state of a live node; it is done if nothing is left to preload. `None` if the rule
    /// does not select it.
    pub fn state_of(
        &self,
        node: &Value,
        images: &Images,
        preloading: &Preloading,
        now: Timestamp,
    ) -> Option<NodeState> {
        let labels = crate::check::Check::labels(node);
        let mut wanted = self.select.iter();
        if !wanted.all(|(key, value)| labels.get(key) == Some(value)) {
            return None;
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let has_images = self.source == PreloadSource::Release && images.are_on(node);
        Some(NodeState {
            name: text(&node["metadata"]["name"]),
            uid: text(&node["metadata"]["uid"]),
            ready: ready_since(node).is_some(),
            cordoned: crate::nodes::is_cordoned(node),
            in_work: None,
            done: has_images || preloading.is_remembered(node, now),
            labels,
        })
    }

    /// Returns the file of its Job.
    pub fn job(&self) -> Option<&str> {
        match &self.source {
            PreloadSource::Release => None,
            PreloadSource::Job(file) => Some(file),
        }
    }

    /// Returns the digest of everything that decides about a node. `job` is the digest of the Job.
    pub fn content(&self, images: &Images, job: Option<&str>) -> Digest {
        let Self {
            select,
            parallel,
            source: _,
            runner,
            space,
            timeout,
        } = self;
        let images = self.job().is_none().then_some(images);
        let images = images.map(|images| (&images.references, &images.pull_secrets));
        let content = json!([select, parallel, images, job, runner, space, timeout]);
        Digest::of(&canonical_json(&content))
    }

    /// Describes the preloading of one node in one line.
    pub fn summary(&self, images: &Images) -> String {
        let space = self
            .space
            .map(|space| format!("{} free, ", bytes::text(space)));
        let space = space.unwrap_or_default();
        match &self.source {
            PreloadSource::Release if images.references.len() == 1 => format!("{space}1 image"),
            PreloadSource::Release => format!("{space}{} images", images.references.len()),
            PreloadSource::Job(file) => format!("{space}Job of {file}"),
        }
    }

    /// Returns the pod that measures the free space of a node. `None` if none is needed.
    pub fn measuring_pod(&self, target: &Target<'_>) -> Option<Value> {
        self.space?;
        let runner = self.runner.as_deref()?;
        let args = ["worker", "free-space"];
        Some(self.pod(target, "space", (runner, &args), (&[], &BTreeSet::new())))
    }

    /// Returns the pods that make the kubelet of a node pull the images, each with its images.
    pub fn pulling_pods<'a>(
        &self,
        target: &Target<'_>,
        images: &'a Images,
    ) -> Vec<(Value, Vec<&'a str>)> {
        let Some(runner) = self.runner.as_deref() else {
            return Vec::new();
        };
        let all: Vec<&str> = images.references.iter().map(String::as_str).collect();
        all.chunks(IMAGES_A_POD)
            .enumerate()
            .map(|(number, chunk)| {
                let number = number.to_string();
                let volumes = (chunk, &images.pull_secrets);
                let pod = self.pod(target, &number, (runner, &["version"]), volumes);
                (pod, chunk.to_vec())
            })
            .collect()
    }

    fn pod(
        &self,
        target: &Target<'_>,
        part: &str,
        (runner, args): (&str, &[&str]),
        (images, secrets): (&[&str], &BTreeSet<String>),
    ) -> Value {
        let Target {
            content,
            namespace,
            node,
            uid,
        } = target;
        let key = json!([content.to_string(), part, node, uid]);
        let name = Digest::of(&canonical_json(&key)).short();
        let volume = |(number, image): (usize, &&str)| json!({"name": format!("image-{number}"), "image": {"reference": image, "pullPolicy": "IfNotPresent"}});
        let volumes: Vec<Value> = images.iter().enumerate().map(volume).collect();
        // The kubelet ignores that an image cannot be pulled if no container mounts its volume.
        let mount = |number: usize| json!({"name": format!("image-{number}"), "mountPath": format!("/images/{number}"), "readOnly": true});
        let mounts: Vec<Value> = (0..images.len()).map(mount).collect();
        let secrets: Vec<Value> = secrets.iter().map(|name| json!({"name": name})).collect();
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": format!("preload-{name}"),
                "namespace": namespace,
                "labels": {PRELOAD: part},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}],
            },
            "spec": {
                "nodeName": node,
                "restartPolicy": "Never",
                "activeDeadlineSeconds": self.timeout.as_secs().max(1),
                "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "tolerations": [{"operator": "Exists"}],
                "imagePullSecrets": secrets,
                "securityContext": {
                    "runAsNonRoot": true,
                    "runAsUser": USER,
                    "runAsGroup": USER,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [{
                    "name": "preload",
                    "image": runner,
                    "imagePullPolicy": "IfNotPresent",
                    "args": args,
                    "volumeMounts": mounts,
                    "resources": {
                        "requests": {"cpu": "1m", "memory": "16Mi"},
                        "limits": {"memory": "128Mi"},
                    },
                    "securityContext": {
                        "allowPrivilegeEscalation": false,
                        "readOnlyRootFilesystem": true,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }],
                "volumes": volumes,
            },
        })
    }
}

/// User of the containers, as in the image of pleach.
const USER: u32 = 65532;

/// Node for which a pod is built.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// Digest of the preloading.
    pub content: &'a Digest,
    /// Namespace of the pod.
    pub namespace: &'a str,
    /// Name of the node.
    pub node: &'a str,
    /// Uid of the node.
    pub uid: &'a str,
}

/// State of a pod that preloads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodState {
    /// It has not ended. Contains a description.
    Open(String),
    /// Its container cannot start, for instance because an image cannot be pulled. The kubelet
    /// tries again.
    Stuck(String),
    /// It succeeded. Contains the termination message.
    Succeeded(String),
    /// It failed.
    Failed(String),
}

/// Returns whether a live pod of the same name was created as `pod`, by label, owner and node. The name
/// depends on the content. Images do not count, because admission can rewrite them.
pub fn is_same(live: &Value, pod: &Value) -> bool {
    let marks = |pod: &Value| {
        let metadata = &pod["metadata"];
        let part = metadata["labels"][PRELOAD].clone();
        let owner = metadata["ownerReferences"][0]["uid"].clone();
        [part, owner, pod["spec"]["nodeName"].clone()]
    };
    marks(live) == marks(pod)
}

/// Reasons for which a container waits that mean no failure.
const STARTING: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// Reads the state of a live pod.
pub fn pod_state(pod: &Value) -> PodState {
    if pod["metadata"]["deletionTimestamp"].is_string() {
        return PodState::Open("the previous pod ends".to_owned());
    }
    let status = &pod["status"];
    let state = &status["containerStatuses"][0]["state"];
    let text = |value: &Value| value.as_str().unwrap_or_default().trim().to_owned();
    let with_reason = |value: &Value, default: &str| {
        let parts = [text(&value["reason"]), text(&value["message"])];
        let parts: Vec<String> = parts.into_iter().filter(|one| !one.is_empty()).collect();
        match parts.as_slice() {
            [] => default.to_owned(),
            parts => parts.join(": "),
        }
    };
    let ended = &state["terminated"];
    match status["phase"].as_str() {
        Some("Succeeded") => PodState::Succeeded(text(&ended["message"])),
        Some("Failed") if ended.is_object() && status["reason"].is_null() => {
            let code = ended["exitCode"].as_i64().unwrap_or_default();
            let default = format!("exit code {code}");
            PodState::Failed(with_reason(ended, &default))
        }
        Some("Failed") => PodState::Failed(with_reason(status, "it failed")),
        _ => {
            let waiting = &state["waiting"];
            let reason = text(&waiting["reason"]);
            if reason.is_empty() || STARTING.contains(&reason.as_str()) {
                let state = if state["running"].is_object() {
                    "runs"
                } else {
                    "starts"
                };
                PodState::Open(format!("its pod {state}"))
            } else {
                PodState::Stuck(with_reason(waiting, &reason))
            }
        }
    }
}

/// Returns why a node has too little space, from the termination message of the measuring pod.
pub fn lacks_space(needed: u64, message: &str) -> Result<Option<String>, String> {
    let free: u64 = message
        .trim()
        .parse()
        .map_err(|_| "the pod reported no number of free bytes".to_owned())?;
    let is_short = free < needed;
    Ok(is_short.then(|| {
        let (free, needed) = (bytes::text(free), bytes::text(needed));
        format!("{free} are free for images, and `space` needs {needed}")
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> PreloadRule {
        PreloadRule {
            select: BTreeMap::new(),
            parallel: Count::Pods(1),
            source: PreloadSource::Release,
            runner: Some("pleach:1".to_owned()),
            space: Some(13 << 30),
            timeout: SignedDuration::from_secs(60),
        }
    }

    fn images(references: &[&str]) -> Images {
        Images {
            references: references.iter().map(|&one| one.to_owned()).collect(),
            pull_secrets: BTreeSet::new(),
        }
    }

    #[test]
    fn a_pod_is_ours_by_label_owner_and_node() {
        let content = Digest::of(b"");
        let target = Target {
            content: &content,
            namespace: "web",
            node: "a",
            uid: "u",
        };
        let pod = rule().measuring_pod(&target).unwrap();
        for (path, value, expected) in [
            ("/spec/containers/0/image", "mirror/pleach:1", true),
            ("/metadata/labels/pleach.dev~1preload", "0", false),
            ("/metadata/ownerReferences/0/uid", "another", false),
            ("/spec/nodeName", "b", false),
        ] {
            let mut live = pod.clone();
            *live.pointer_mut(path).unwrap() = json!(value);
            assert_eq!(is_same(&live, &pod), expected, "{path}");
        }
        let unmarked = json!({"metadata": {"name": "a"}, "spec": {"nodeName": "a"}});
        assert!(!is_same(&unmarked, &pod));
    }

    #[test]
    fn a_preloaded_node_is_remembered_for_a_day() {
        let preloading = |content: &str| Preloading {
            release: "e.r".to_owned(),
            content: Digest::of(content.as_bytes()),
        };
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut node = json!({"metadata": {"name": "a", "uid": "u", "labels": {"os": "linux"}}});
        json_patch::merge(&mut node, &preloading("a").remember(at(1_000)));
        let needed = images(&["web:1"]);
        let done = |content: &str, second| {
            let state = rule().state_of(&node, &needed, &preloading(content), at(second));
            state.unwrap().done
        };
        assert!(done("a", 1_000) && done("a", 87_000));
        assert!(!done("b", 1_000), "another content");
        assert!(!done("a", 999), "the future");
        assert!(!done("a", 87_400), "more than a day");
        let other = PreloadRule {
            select: [("os".to_owned(), "windows".to_owned())].into(),
            ..rule()
        };
        assert_eq!(
            other.state_of(&node, &needed, &preloading("a"), at(1)),
            None
        );
    }

    #[test]
    fn the_pods_have_twenty_images_each_and_names_of_their_own() {
        let names: Vec<String> = (0..41).map(|number| format!("i:{number:02}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let all = images(&names);
        let content = Digest::of(b"");
        let target = |node| Target {
            content: &content,
            namespace: "web",
            node,
            uid: "u",
        };
        let pods = rule().pulling_pods(&target("a"), &all);
        let sizes: Vec<usize> = pods.iter().map(|(_, images)| images.len()).collect();
        assert_eq!(sizes, [20, 20, 1]);
        let volumes = |pod: &Value| pod["spec"]["volumes"].as_array().unwrap().len();
        assert!(
            pods.iter()
                .all(|(pod, images)| volumes(pod) == images.len())
        );
        let (pod, _) = &pods[2];
        assert_eq!(
            pod["spec"]["volumes"],
            json!([{"name": "image-0", "image": {"reference": "i:40", "pullPolicy": "IfNotPresent"}}])
        );
        assert_eq!(
            pod["spec"]["containers"][0]["volumeMounts"],
            json!([{"name": "image-0", "mountPath": "/images/0", "readOnly": true}])
        );
        assert_eq!(pod["spec"]["nodeName"], "a");
        assert_eq!(pod["spec"]["containers"][0]["image"], "pleach:1");
        let others = rule().pulling_pods(&target("b"), &all);
        let measuring = rule().measuring_pod(&target("a"));
        let pods = pods.iter().chain(&others).map(|(pod, _)| pod);
        let names: BTreeSet<String> = pods
            .chain(&measuring)
            .map(|pod| pod["metadata"]["name"].to_string())
            .collect();
        assert_eq!(names.len(), 7);
        let without = PreloadRule {
            space: None,
            ..rule()
        };
        assert_eq!(without.measuring_pod(&target("a")), None);
    }

    #[test]
    fn the_content_depends_on_everything_that_decides() {
        let content = |rule: &PreloadRule, names: &[&str], job| rule.content(&images(names), job);
        let first = content(&rule(), &["a:1"], None);
        assert_eq!(first, content(&rule(), &["a:1"], None));
        assert_ne!(first, content(&rule(), &["a:2"], None));
        let other = PreloadRule {
            runner: None,
            ..rule()
        };
        assert_ne!(first, content(&other, &["a:1"], None));
        let of_job = PreloadRule {
            source: PreloadSource::Job("job.yaml".to_owned()),
            ..rule()
        };
        let job = content(&of_job, &["a:1"], Some("1"));
        assert_eq!(job, content(&of_job, &["a:2"], Some("1")));
        assert_ne!(job, content(&of_job, &["a:1"], Some("2")));
    }

    #[test]
    fn the_state_of_a_pod_is_read() {
        let waiting = |reason: &str, message: &str| {
            json!({"status": {"phase": "Pending", "containerStatuses": [
                {"state": {"waiting": {"reason": reason, "message": message}}}]}})
        };
        let open = |text: &str| PodState::Open(text.to_owned());
        for (pod, expected) in [
            (json!({}), open("its pod starts")),
            (waiting("ContainerCreating", ""), open("its pod starts")),
            (
                waiting("ErrImagePull", "no a:1"),
                PodState::Stuck("ErrImagePull: no a:1".to_owned()),
            ),
            (
                json!({"status": {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}}),
                open("its pod runs"),
            ),
            (
                json!({"status": {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {"message": "42\n"}}}]}}),
                PodState::Succeeded("42".to_owned()),
            ),
            (
                json!({"status": {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 3}}}]}}),
                PodState::Failed("exit code 3".to_owned()),
            ),
            (
                json!({"status": {"phase": "Failed", "reason": "DeadlineExceeded"}}),
                PodState::Failed("DeadlineExceeded".to_owned()),
            ),
            (
                json!({"metadata": {"deletionTimestamp": "t"}, "status": {"phase": "Succeeded"}}),
                open("the previous pod ends"),
            ),
        ] {
            assert_eq!(pod_state(&pod), expected, "{pod}");
        }
    }

    #[test]
    fn a_failure_names_the_images_that_it_is_about() {
        let all = ["a:1", "b:1"];
        assert_eq!(Images::named_in(&all, "cannot pull b:1"), ["b:1"]);
        assert_eq!(Images::named_in(&all, "no space left"), all);
    }

    #[test]
    fn too_little_space_is_named_with_both_figures() {
        let lacking = lacks_space(13 << 30, "1610612736").unwrap().unwrap();
        assert_eq!(lacking, "1.5Gi are free for images, and `space` needs 13Gi");
        assert_eq!(lacks_space(13 << 30, "13958643712"), Ok(None));
        assert!(lacks_space(1, "").is_err() && lacks_space(1, "-1").is_err());
    }
}
