//! Checks of a bundle on live objects.

use pleach_formats::check::{Check, CheckOutcome, Objection};
use pleach_model::object::{Manifest, ObjectId, Secrecy};
use pleach_planner::plan::Desired;
use serde_json::{Map, Value, json};

use super::absent::confirmed_absent;
use super::answers::Source;
use pleach_cluster::{Class, Cluster, Depth, ResourcePath, Selector};

impl Source<'_> {
    /// Evaluates a check of the bundle, by its name.
    pub(crate) async fn check(&self, name: &str) -> CheckOutcome {
        let mut checks = self.desired.sequence.checks.iter();
        let Some(check) = checks.find(|check| check.name == name) else {
            return CheckOutcome::Unknown("the bundle does not have it".to_owned());
        };
        let discovery = &self.observed.discovery;
        let kind = check.kind();
        let path = kind
            .as_ref()
            .and_then(|kind| ResourcePath::preferred(discovery, kind));
        if path.is_none() && kind.is_some_and(|kind| discovery.is_stale(&kind.group)) {
            return CheckOutcome::Unknown("the server behind its group does not answer".to_owned());
        }
        let at_base = &self.desired.terms.base_secrets;
        let of = |id: &ObjectId| Some(secrecy_of(self.desired, id).and(&at_base.of_object(id)));
        inspect(self.cluster, path.as_ref(), check, &of).await
    }
}

/// Returns the secret fields of an object that git declares, beside those of its kind.
pub(super) fn secrecy_of(desired: &Desired, id: &ObjectId) -> Secrecy {
    let mut manifests = desired.manifests.iter();
    let manifest = manifests.find(|manifest| manifest.id() == id);
    manifest.map_or_else(Secrecy::default, Manifest::secrecy)
}

/// Evaluates every object of a check. `of` returns the secret fields, or `None` for an object to
/// skip. A kind that is not served has no objects. An incomplete list, or a server that is still
/// starting, gives an unknown result.
pub(super) async fn inspect(
    cluster: &Cluster,
    path: Option<&ResourcePath>,
    check: &Check,
    of: &(dyn Fn(&ObjectId) -> Option<Secrecy> + Sync),
) -> CheckOutcome {
    let Some(path) = path else {
        return CheckOutcome::seen(Vec::new());
    };
    let matcher = check.target.matcher();
    let is_one = |text: &&String| !text.contains(['*', '?']);
    let namespace = check.target.namespace.as_ref().filter(is_one);
    let labels: Vec<String> = check
        .target
        .labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let labels = labels.join(",");
    let selector = Selector {
        namespace: namespace.filter(|_| path.namespaced).map(String::as_str),
        labels: (!labels.is_empty()).then_some(labels.as_str()),
        ..Selector::default()
    };
    let depth = if check.sees_everything() {
        Depth::Full
    } else {
        Depth::Metadata
    };
    let found = cluster
        .pick(path, &selector, depth, |mut item: Map<String, Value>| {
            item.insert("apiVersion".to_owned(), json!(path.api_version.to_string()));
            item.insert("kind".to_owned(), json!(path.kind));
            let value = Value::Object(item);
            let metadata = &value["metadata"];
            let object = path.id(
                metadata["namespace"].as_str(),
                metadata["name"].as_str().unwrap_or_default(),
            );
            if !matcher.matches(&object, &Check::labels(&value)) {
                return None;
            }
            let message = check.object_to(&object, &value, &of(&object)?)?;
            Some(Objection { object, message })
        })
        .await;
    match found {
        Ok(objections) => CheckOutcome::seen(objections),
        Err(error) => {
            let is_missing = matches!(error.class(), Some(Class::KindNotServed | Class::NotFound));
            // The CRD can be about to appear, or be gone.
            if is_missing && is_absent(cluster, path).await {
                CheckOutcome::seen(Vec::new())
            } else {
                CheckOutcome::Unknown(super::op::failure(&error).message)
            }
        }
    }
}

/// Returns whether nothing defines a kind that is not served. False if that is unknown.
async fn is_absent(cluster: &Cluster, path: &ResourcePath) -> bool {
    let absent = confirmed_absent(cluster, [path.group_kind()].into()).await;
    absent.is_ok_and(|absent| !absent.is_empty())
}
