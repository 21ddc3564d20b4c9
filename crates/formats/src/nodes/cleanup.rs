//! Images that only the replaced version of a release used. Its cleanup removes them from the nodes.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::preload::Images;
use pleach_model::object::ObjectId;

/// Name of the `ConfigMap` with the images, in the namespace of the Job that removes them.
pub const FORMER_IMAGES: &str = "former-images";

/// Annotation of the `ConfigMap` with environment and release.
const OWNER: &str = "pleach.dev/former-images-of";

/// Key of the images, one a line.
const KEY: &str = "images";

/// Removal of images that a stage declares.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CleanupRule {
    /// File of the Job that runs on each node.
    pub job: String,
    /// Time limit for one node.
    pub timeout: SignedDuration,
}

/// Images that only the replaced version used, as its `ConfigMap` has them.
#[derive(Debug, Clone, Copy)]
pub struct FormerImages<'a> {
    /// Environment and release.
    pub release: &'a str,
    /// References as in the pod templates.
    pub images: &'a BTreeSet<String>,
}

impl FormerImages<'_> {
    /// Returns the id of the `ConfigMap` in the namespace of the Job.
    pub fn id(namespace: Option<&str>) -> ObjectId {
        ObjectId::new("", "ConfigMap", namespace, FORMER_IMAGES)
    }

    /// Returns the `ConfigMap`. It is also a merge patch of a live one.
    pub fn config_map(&self, namespace: Option<&str>) -> Value {
        let images: Vec<&str> = self.images.iter().map(String::as_str).collect();
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": FORMER_IMAGES,
                "namespace": namespace,
                "annotations": {OWNER: self.release},
            },
            "data": {KEY: images.join("\n")},
        })
    }

    /// Returns whether a live `ConfigMap` belongs to the release.
    pub fn is_of(release: &str, config_map: &Value) -> bool {
        config_map["metadata"]["annotations"][OWNER] == release
    }

    /// Returns the images to remove: those of live objects and those that an earlier run
    /// remembered, without the ones of the version in git.
    pub fn of(live: &Images, remembered: Option<&Value>, desired: &Images) -> BTreeSet<String> {
        let remembered = remembered.and_then(|one| one["data"][KEY].as_str());
        let remembered = remembered.unwrap_or_default().lines().map(str::to_owned);
        let all = live.references.iter().cloned().chain(remembered);
        all.filter(|image| !image.is_empty() && !desired.references.contains(image))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(references: &[&str]) -> Images {
        Images {
            references: references.iter().map(|&one| one.to_owned()).collect(),
            pull_secrets: BTreeSet::new(),
        }
    }

    #[test]
    fn images_of_the_version_in_git_are_never_removed() {
        let map = |images: &[&str]| {
            let images = images.iter().map(|&one| one.to_owned()).collect();
            let former = FormerImages {
                release: "production/web",
                images: &images,
            };
            former.config_map(Some("web"))
        };
        for (case, live, remembered, desired, expected) in [
            (
                "first run",
                &["a:1", "b:1"][..],
                None,
                &["a:2", "b:1"][..],
                &["a:1"][..],
            ),
            (
                "after a kill",
                &["a:2"],
                Some(map(&["a:1"])),
                &["a:2"],
                &["a:1"],
            ),
            (
                "next commit",
                &["a:2"],
                Some(map(&["a:1", "b:1"])),
                &["a:3"],
                &["a:1", "a:2", "b:1"],
            ),
            (
                "git goes back",
                &["a:2"],
                Some(map(&["a:1"])),
                &["a:1"],
                &["a:2"],
            ),
            ("nothing changes", &["a:1"], None, &["a:1"], &[]),
            ("empty list", &[], Some(map(&[])), &["a:1"], &[]),
        ] {
            let found = FormerImages::of(&images(live), remembered.as_ref(), &images(desired));
            let found: Vec<&str> = found.iter().map(String::as_str).collect();
            assert_eq!(found, expected, "{case}");
        }
    }

    #[test]
    fn a_config_map_belongs_to_one_release() {
        let images = BTreeSet::from(["a:1".to_owned()]);
        let former = FormerImages {
            release: "production/web",
            images: &images,
        };
        let map = former.config_map(Some("web"));
        assert!(FormerImages::is_of("production/web", &map));
        assert!(!FormerImages::is_of("production/other", &map));
        assert!(!FormerImages::is_of(
            "production/web",
            &json!({"metadata": {}})
        ));
    }
}
