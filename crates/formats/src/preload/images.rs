//! Images of a release.

use std::collections::BTreeSet;

use serde_json::Value;

use pleach_model::object::{ObjectId, pod_template};

/// Images of a release, and the Secrets to pull them with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Images {
    /// References as in the pod templates, sorted.
    pub references: BTreeSet<String>,
    /// Names of Secrets in the namespace of the release, sorted.
    pub pull_secrets: BTreeSet<String>,
}

impl Images {
    /// Adds the images of an object's pod template. `namespace` is the one of the pods that
    /// preload: they can use pull Secrets of no other.
    pub fn add(&mut self, id: &ObjectId, object: &Value, namespace: Option<&str>) {
        let Some(template) = pod_template(id, object) else {
            return;
        };
        let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let spec = &template["spec"];
        let containers = items(&spec["containers"]).into_iter();
        let containers = containers.chain(items(&spec["initContainers"]));
        let named = containers.map(|container| container["image"].clone());
        let volumes = items(&spec["volumes"]).into_iter();
        let mounted = volumes.map(|volume| volume["image"]["reference"].clone());
        let texts = named.chain(mounted).filter_map(|image| {
            let image = image.as_str()?.trim().to_owned();
            (!image.is_empty()).then_some(image)
        });
        self.references.extend(texts);
        if namespace.is_some() && id.namespace.as_deref() == namespace {
            let secrets = items(&spec["imagePullSecrets"]).into_iter();
            let secrets = secrets.filter_map(|one| one["name"].as_str().map(str::to_owned));
            self.pull_secrets.extend(secrets);
        }
    }

    /// Returns whether a node reports all images. A kubelet reports at most 50 images, so an image
    /// that is not reported can exist.
    pub fn are_on(&self, node: &Value) -> bool {
        let images = node["status"]["images"].as_array();
        let names = images
            .into_iter()
            .flatten()
            .flat_map(|image| image["names"].as_array().into_iter().flatten());
        let names: BTreeSet<&str> = names.filter_map(Value::as_str).collect();
        let mut references = self.references.iter();
        references.all(|image| names.contains(full_name(image).as_str()))
    }

    /// Returns the images that a message names; all if it names none.
    pub fn named_in<'a>(images: &[&'a str], message: &str) -> Vec<&'a str> {
        let named: Vec<&str> = images
            .iter()
            .copied()
            .filter(|image| message.contains(image))
            .collect();
        if named.is_empty() {
            images.to_vec()
        } else {
            named
        }
    }
}

/// Returns the name of an image as a kubelet reports it: with registry, and with a tag or digest.
fn full_name(image: &str) -> String {
    let has_registry = image.split_once('/').is_some_and(|(first, _)| {
        first == "localhost" || first.contains('.') || first.contains(':')
    });
    let name = match (has_registry, image.contains('/')) {
        (true, _) => image.to_owned(),
        (false, true) => format!("docker.io/{image}"),
        (false, false) => format!("docker.io/library/{image}"),
    };
    let tag = |name: &str| {
        let start = name.rfind('/').map_or(0, |slash| slash + 1);
        name[start..].find(':').map(|colon| start + colon)
    };
    match name.split_once('@') {
        Some((before, digest)) => {
            let end = tag(before).unwrap_or(before.len());
            format!("{}@{digest}", &before[..end])
        }
        None if tag(&name).is_some() => name,
        None => format!("{name}:latest"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn images(references: &[&str]) -> Images {
        Images {
            references: references.iter().map(|&one| one.to_owned()).collect(),
            pull_secrets: BTreeSet::new(),
        }
    }

    #[test]
    fn images_of_all_templates_are_found_once() {
        let mut found = Images::default();
        let spec = json!({"initContainers": [{"image": "b:1"}],
            "containers": [{"image": "a:1"}, {"image": "b:1"}, {"image": " "}, {}],
            "volumes": [{"image": {"reference": "c:1"}}, {"emptyDir": {}}],
            "imagePullSecrets": [{"name": "key"}]});
        let workload = json!({"spec": {"template": {"spec": spec}}});
        let cron = json!({"spec": {"jobTemplate": {"spec": {"template": {"spec": {"containers": [{"image": "d:1"}], "imagePullSecrets": [{"name": "other"}]}}}}}});
        let web = Some("web");
        let add = |found: &mut Images, id: &str, object: &Value| {
            found.add(&id.parse().unwrap(), object, web);
        };
        add(&mut found, "Deployment.apps/web/a", &workload);
        add(&mut found, "DaemonSet.apps/web/a", &workload);
        add(&mut found, "CronJob.batch/other/a", &cron);
        add(&mut found, "ConfigMap/web/a", &workload);
        assert_eq!(
            found.references,
            images(&["a:1", "b:1", "c:1", "d:1"]).references
        );
        assert_eq!(found.pull_secrets, ["key".to_owned()].into());
    }

    #[test]
    fn a_node_reports_full_names() {
        let digest = "sha256:0000000000000000000000000000000000000000000000000000000000000000";
        for (image, expected) in [
            ("web", "docker.io/library/web:latest".to_owned()),
            ("web:1", "docker.io/library/web:1".to_owned()),
            ("team/web", "docker.io/team/web:latest".to_owned()),
            ("localhost/web:1", "localhost/web:1".to_owned()),
            ("registry:5000/web", "registry:5000/web:latest".to_owned()),
            (
                &format!("a.example.org/web:1@{digest}"),
                format!("a.example.org/web@{digest}"),
            ),
        ] {
            assert_eq!(full_name(image), expected, "{image}");
        }
        let node = json!({"status": {"images": [{"names": ["docker.io/library/web:1"]}, {}]}});
        assert!(images(&["web:1"]).are_on(&node));
        assert!(!images(&["web:1", "web:2"]).are_on(&node));
    }
}
