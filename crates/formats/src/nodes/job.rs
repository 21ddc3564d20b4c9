//! The Job of a node.

use serde_json::{Value, json};

use pleach_model::object::{Digest, canonical_json};

/// Label of the Jobs of nodes; its value is the name of the Job in git.
pub const NODE_UPGRADE: &str = "pleach.dev/node-upgrade";

/// Seconds after which a finished Job is deleted. A shorter time of its manifest is extended: a Job
/// that is gone counts as not run.
const LIFETIME: u64 = 24 * 60 * 60;

/// Longest part of the name in git that is part of the name of a Job, in bytes. Labels of pods
/// contain the name, and have 63 bytes.
const LONGEST: usize = 50;

/// Returns the Job of a node: the one in git with a name of its own, pinned to the node. The name
/// depends on its digest in git and on the node, so no Job is created twice for both. The digest of
/// a Job with secret values is keyed.
///
/// The node owns the Job, so that it is deleted with the node.
pub fn job_of(job: &Value, digest: &str, node: &str, uid: &str) -> Value {
    let mut job = job.clone();
    let content = Digest::of(&canonical_json(&json!([digest, node, uid])));
    let name = job["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let mut end = name.len().min(LONGEST);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    let start = name[..end].trim_end_matches(['-', '.']);
    let short = start.to_owned();
    job["metadata"]["name"] = json!(format!("{start}-{}", content.short()));
    job["metadata"]["labels"][NODE_UPGRADE] = json!(short);
    job["metadata"]["ownerReferences"] = json!([
        {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}]);
    let lifetime = job["spec"]["ttlSecondsAfterFinished"].as_u64();
    job["spec"]["ttlSecondsAfterFinished"] = json!(lifetime.unwrap_or(LIFETIME).max(LIFETIME));
    let spec = &mut job["spec"]["template"]["spec"];
    spec["nodeName"] = json!(node);
    let mut tolerations = spec["tolerations"].as_array().cloned().unwrap_or_default();
    tolerations.push(json!({"operator": "Exists"}));
    spec["tolerations"] = json!(tolerations);
    for key in ["initContainers", "containers"] {
        for container in spec[key].as_array_mut().into_iter().flatten() {
            let mut env = container["env"].as_array().cloned().unwrap_or_default();
            env.retain(|one| one["name"] != "NODE_NAME");
            env.push(json!({"name": "NODE_NAME", "value": node}));
            container["env"] = json!(env);
        }
    }
    job
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(image: &str) -> Value {
        json!({"apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": "upgrade-node", "namespace": "kube-system"},
            "spec": {"template": {"spec": {"restartPolicy": "Never",
                "containers": [{"name": "main", "image": image}]}}}})
    }

    #[test]
    fn a_job_is_pinned_to_its_node() {
        let made = job_of(&job("a"), "digest", "node-1", "u1");
        let spec = &made["spec"]["template"]["spec"];
        assert_eq!(spec["nodeName"], "node-1");
        assert_eq!(spec["tolerations"], json!([{"operator": "Exists"}]));
        assert_eq!(
            spec["containers"][0]["env"],
            json!([{"name": "NODE_NAME", "value": "node-1"}])
        );
        assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "u1");
        assert_eq!(made["metadata"]["labels"][NODE_UPGRADE], "upgrade-node");
    }

    #[test]
    fn the_name_depends_on_content_and_node() {
        let name =
            |image, node, uid| job_of(&job("x"), image, node, uid)["metadata"]["name"].clone();
        assert_eq!(name("a", "node-1", "u1"), name("a", "node-1", "u1"));
        let others = [
            name("b", "node-1", "u1"),
            name("a", "node-2", "u1"),
            name("a", "node-1", "u2"),
        ];
        assert!(
            others
                .iter()
                .all(|other| *other != name("a", "node-1", "u1"))
        );
    }

    #[test]
    fn a_long_name_is_cut() {
        let mut long = job("a");
        long["metadata"]["name"] = json!(format!("{}-{}", "a".repeat(49), "b".repeat(100)));
        let made = job_of(&long, "digest", "node-1", "u1");
        let name = made["metadata"]["name"].as_str().unwrap();
        assert_eq!(name.len(), 49 + 1 + 12, "{name}");
    }
}
