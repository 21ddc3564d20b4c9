//! Status of custom resources, as the rules of bundles declare it: in a rehearsal their operators
//! do not run.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::time::{Duration, Instant};

use pleach_cluster::{Cluster, ClusterError, Patch, PatchOptions, ResourcePath, Selector};
use pleach_formats::becomes::BecomesRule;
use pleach_model::object::{GroupKind, ObjectId};
use pleach_model::sanitize::{clipped, one_line};
use pleach_rehearsal::report::NotComparable;
use serde_json::Value;

/// Time between two reads of the custom resources.
const PAUSE: Duration = Duration::from_millis(200);

/// Field manager of the patches.
const MANAGER: &str = "pleach-rehearsal";

/// Maximum number of characters of a message.
const MESSAGE: usize = 300;

/// HTTP status of a missing subresource.
const NOT_FOUND: u16 = 404;

/// Custom resources whose status follows rules.
#[derive(Debug)]
pub(super) struct World {
    rules: Vec<BecomesRule>,
    /// Time since which an object lacks a status.
    since: BTreeMap<(ObjectId, String), Instant>,
    used: BTreeSet<ObjectId>,
    failed: BTreeMap<ObjectId, String>,
}

impl World {
    /// Creates a world with the rules of all bundles. The first rule that selects an object counts.
    pub(super) fn new(rules: Vec<BecomesRule>) -> Self {
        Self {
            rules,
            since: BTreeMap::new(),
            used: BTreeSet::new(),
            failed: BTreeMap::new(),
        }
    }

    /// Returns whether a rule decides about the status of an object.
    pub(super) fn decides(&self, id: &ObjectId) -> bool {
        self.rules.iter().any(|rule| rule.selects(id))
    }

    /// Patches objects until the future is dropped.
    pub(super) async fn run(&mut self, cluster: &Cluster) -> Infallible {
        if self.rules.is_empty() {
            return std::future::pending().await;
        }
        let mut paths = BTreeMap::new();
        loop {
            // An error passes, or the steps that wait report it.
            if let Err(error) = self.round(cluster, &mut paths).await {
                tracing::debug!(%error, "cannot read the custom resources of the copy");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn round(
        &mut self,
        cluster: &Cluster,
        paths: &mut BTreeMap<GroupKind, ResourcePath>,
    ) -> Result<(), ClusterError> {
        let kinds: BTreeSet<GroupKind> = self.rules.iter().map(|rule| rule.kind.clone()).collect();
        if kinds.iter().any(|kind| !paths.contains_key(kind)) {
            // The plan can create the CRD.
            let discovery = cluster.clone().alone().discover().await?;
            for kind in &kinds {
                if let Some(path) = ResourcePath::preferred(&discovery, kind) {
                    paths.insert(kind.clone(), path);
                }
            }
        }
        for path in paths.values() {
            let list = cluster
                .clone()
                .alone()
                .list(path, &Selector::default())
                .await?;
            for (id, patch) in self.due(path, &list.items, Instant::now()) {
                self.patch(cluster, path, id, patch).await;
            }
        }
        Ok(())
    }

    /// Returns the patches that are due.
    fn due(
        &mut self,
        path: &ResourcePath,
        objects: &[Value],
        now: Instant,
    ) -> Vec<(ObjectId, Value)> {
        let mut due = Vec::new();
        for object in objects {
            let metadata = &object["metadata"];
            let name = metadata["name"].as_str().unwrap_or_default();
            let id = path.id(metadata["namespace"].as_str(), name);
            let Some(rule) = self.rules.iter().find(|rule| rule.selects(&id)) else {
                continue;
            };
            let patch = match rule.patch(object) {
                Ok(patch) => patch,
                Err(why) => {
                    self.failed.insert(id, why.to_string());
                    continue;
                }
            };
            let version = format!("{} {patch}", metadata["generation"]);
            let key = (id.clone(), version);
            if has(object, &patch) {
                self.since.remove(&key);
                continue;
            }
            let since = *self.since.entry(key).or_insert(now);
            let after = Duration::try_from(rule.after).unwrap_or_default();
            if now.saturating_duration_since(since) >= after {
                due.push((id, patch));
            }
        }
        due
    }

    async fn patch(&mut self, cluster: &Cluster, path: &ResourcePath, id: ObjectId, patch: Value) {
        let patch = Patch::Merge(patch);
        let mut options = PatchOptions::new(MANAGER);
        options.subresource = Some("status");
        let mut result = cluster.patch(path, &id, &patch, &options).await;
        let is_missing = |error: &ClusterError| {
            error
                .api()
                .is_some_and(|error| error.status == Some(NOT_FOUND))
        };
        if result.as_ref().is_err_and(is_missing) {
            // The CRD has no status subresource.
            options.subresource = None;
            result = cluster.patch(path, &id, &patch, &options).await;
        }
        match result {
            Ok(_) => {
                self.failed.remove(&id);
                self.used.insert(id);
            }
            Err(error) => {
                let message = error
                    .api()
                    .map_or_else(|| error.to_string(), |it| it.message.clone());
                self.failed
                    .insert(id, clipped(&one_line(&message), MESSAGE));
            }
        }
    }

    /// Returns the facts about the rules.
    pub(super) fn facts(&self) -> Vec<NotComparable> {
        let fact = |what: String| NotComparable {
            kind: "operator".to_owned(),
            what,
        };
        let used = self.used.iter().filter(|id| !self.failed.contains_key(id));
        let used = used.map(|id| fact(format!("{id}: `becomes` of the bundle was used")));
        let failed = self.failed.iter();
        let failed =
            failed.map(|(id, why)| fact(format!("{id}: `becomes` of the bundle failed: {why}")));
        used.chain(failed).collect()
    }
}

/// Returns whether a merge patch would change nothing.
fn has(value: &Value, patch: &Value) -> bool {
    let Value::Object(patch) = patch else {
        return value == patch;
    };
    value.is_object()
        && patch.iter().all(|(key, patch)| match value.get(key) {
            Some(value) => !patch.is_null() && has(value, patch),
            None => patch.is_null(),
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn patches_that_change_nothing() {
        let value = json!({"a": {"b": 1, "c": [1]}, "d": null});
        for (patch, expected) in [
            (json!({}), true),
            (json!({"a": {"b": 1}}), true),
            (json!({"a": {"b": 2}}), false),
            (json!({"a": {"c": [1, 2]}}), false),
            (json!({"x": null}), true),
            (json!({"a": null}), false),
            (json!({"x": 1}), false),
            (json!({"a": {"b": {"e": 1}}}), false),
        ] {
            assert_eq!(has(&value, &patch), expected, "{patch}");
        }
    }

    #[test]
    fn a_status_follows_its_rule_after_its_time() {
        let rule = json!({"kind": "Gear", "group": "a.org", "name": "gear", "after": "5s",
            "becomes": {"status": {"phase": "Deployed", "size": "{{ item.spec.size }}"}}});
        let rule = BecomesRule::read(&serde_json::from_value(rule).unwrap()).unwrap();
        let path = ResourcePath::namespaced("a.org/v1", "Gear", "gears");
        let mut world = World::new(vec![rule]);
        let start = Instant::now();
        let gear = |name: &str, spec: Value, status: Value| {
            json!({"metadata": {"namespace": "web", "name": name, "generation": spec["size"]},
                "spec": spec, "status": status})
        };
        let mut due = |seconds: u64, object: Value| {
            let due = world.due(&path, &[object], start + Duration::from_secs(seconds));
            due.into_iter().map(|(_, patch)| patch).collect::<Vec<_>>()
        };
        let patch = |size: u64| json!({"status": {"phase": "Deployed", "size": size}});
        let spec = |size: u64| json!({"size": size});
        for (seconds, object, expected) in [
            (0, gear("gear", spec(1), json!({})), vec![]),
            (0, gear("other", spec(1), json!({})), vec![]),
            (4, gear("gear", spec(1), json!({})), vec![]),
            (5, gear("gear", spec(1), json!({})), vec![patch(1)]),
            (
                6,
                gear(
                    "gear",
                    spec(1),
                    json!({"phase": "Deployed", "size": 1, "x": 1}),
                ),
                vec![],
            ),
            // Another generation.
            (
                7,
                gear("gear", spec(2), json!({"phase": "Deployed", "size": 1})),
                vec![],
            ),
            (
                12,
                gear("gear", spec(2), json!({"phase": "Deployed", "size": 1})),
                vec![patch(2)],
            ),
            (13, gear("gear", json!({}), json!({})), vec![]),
        ] {
            assert_eq!(due(seconds, object.clone()), expected, "{seconds} {object}");
        }
        let facts: Vec<String> = world.facts().into_iter().map(|it| it.what).collect();
        assert_eq!(facts.len(), 1, "{facts:?}");
        assert!(
            facts[0]
                .starts_with("Gear.a.org/web/gear: `becomes` of the bundle failed: there is no"),
            "{facts:?}"
        );
    }
}
