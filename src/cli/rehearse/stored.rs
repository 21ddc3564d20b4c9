//! Objects of a copy, as the throwaway control plane stores them, and what it cannot answer.

use std::collections::{BTreeMap, BTreeSet};

use pleach_engine::load::Loaded;
use pleach_model::object::ApiVersion;
use pleach_rehearsal::dump::{Copy, LeftOut};
use pleach_rehearsal::report::NotComparable;
use pleach_rehearsal::storage;
use pleach_throwaway::etcd::Entry;
use serde_json::Value;

use super::webhooks;

/// Returns the number of minor versions between a cluster and the programs. `None` if a version
/// cannot be read.
pub(super) fn distance(cluster: &str, programs: &str) -> Option<u32> {
    let minor = |version: &str| -> Option<u32> {
        let version = version.trim_start_matches('v');
        version.split('.').nth(1)?.parse().ok()
    };
    Some(minor(cluster)?.abs_diff(minor(programs)?))
}

/// Returns the address ranges of Services of the cluster.
pub(super) fn service_ranges(copy: &Copy) -> String {
    let ranges = copy
        .objects
        .iter()
        .find(|it| it["kind"] == "ServiceCIDR" && it["metadata"]["name"] == "kubernetes")
        .and_then(|it| it["spec"]["cidrs"].as_array());
    let ranges: Vec<&str> = ranges
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if ranges.is_empty() {
        "10.0.0.0/16".to_owned()
    } else {
        ranges.join(",")
    }
}

/// Returns the objects as etcd stores them, and those without a place.
pub(super) fn entries(copy: &Copy, loaded: &Loaded) -> (Vec<Entry>, Vec<LeftOut>) {
    let namespaces = namespaces_with_pods(copy);
    let crds = copy
        .objects
        .iter()
        .filter(|it| it["kind"] == "CustomResourceDefinition");
    let plurals: BTreeMap<(String, String), String> = crds
        .filter_map(|crd| {
            let (spec, text) = (&crd["spec"], |it: &Value| it.as_str().map(str::to_owned));
            let names = &spec["names"];
            let kind = (text(&spec["group"])?, text(&names["kind"])?);
            Some((kind, text(&names["plural"])?))
        })
        .collect();
    let (mut entries, mut left_out) = (Vec::new(), Vec::new());
    for object in &copy.objects {
        if is_foreign_api(object, &namespaces) {
            continue;
        }
        let plural =
            |group: &str, kind: &str| plurals.get(&(group.to_owned(), kind.to_owned())).cloned();
        let Some(key) = storage::key(object, plural) else {
            left_out.push(LeftOut {
                what: format!("{} {}", object["kind"], object["metadata"]["name"]),
                why: "its place in etcd is not known".to_owned(),
            });
            continue;
        };
        let mut object = object.clone();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
            metadata.remove("selfLink");
        }
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        if converts(&object) && !is_of_git(loaded, name) {
            object["spec"]["conversion"] = serde_json::json!({"strategy": "None"});
        }
        entries.push(Entry {
            key,
            value: object.to_string().into_bytes(),
        });
    }
    entries.extend(
        webhooks::endpoints(copy, &namespaces)
            .iter()
            .filter_map(|slice| {
                Some(Entry {
                    key: storage::key(slice, |_, _| None)?,
                    value: slice.to_string().into_bytes(),
                })
            }),
    );
    (entries, left_out)
}

/// Returns whether a webhook converts the objects of a CRD.
fn converts(object: &Value) -> bool {
    object["kind"] == "CustomResourceDefinition"
        && object["spec"]["conversion"]["strategy"] == "Webhook"
}

/// Returns whether a CRD is in git.
fn is_of_git(loaded: &Loaded, crd: &str) -> bool {
    let mut manifests = loaded.rendered.iter().flat_map(|(_, it)| &it.manifests);
    manifests.any(|it| it.id().kind == "CustomResourceDefinition" && it.id().name == crd)
}

/// Returns the namespaces whose pods are part of a copy.
pub(super) fn namespaces_with_pods(copy: &Copy) -> BTreeSet<&str> {
    let slices = copy
        .objects
        .iter()
        .filter(|it| it["kind"] == "EndpointSlice");
    slices
        .filter_map(|it| it["metadata"]["namespace"].as_str())
        .collect()
}

/// Returns whether an object registers an aggregated API whose pods are not part of the copy.
pub(super) fn is_foreign_api(object: &Value, namespaces: &BTreeSet<&str>) -> bool {
    let service = &object["spec"]["service"];
    let namespace = service["namespace"].as_str().unwrap_or_default();
    object["kind"] == "APIService" && service.is_object() && !namespaces.contains(namespace)
}

/// Returns the aggregated API that an object registers, if its server answered.
pub(super) fn answering_api(object: &Value) -> Option<ApiVersion> {
    let spec = &object["spec"];
    let conditions = object["status"]["conditions"].as_array()?;
    let is_available = conditions
        .iter()
        .any(|it| it["type"] == "Available" && it["status"] == "True");
    let group_version = format!("{}/{}", spec["group"].as_str()?, spec["version"].as_str()?);
    let is_aggregated = object["kind"] == "APIService" && spec["service"].is_object();
    (is_aggregated && is_available).then(|| ApiVersion::parse(&group_version))
}

/// Returns the facts of a copy that a rehearsal cannot answer. `programs` is the version of its API
/// server, and `are_called` whether that calls webhooks.
pub(super) fn not_comparable(
    copy: &Copy,
    loaded: &Loaded,
    programs: &str,
    are_called: bool,
    is_dump: bool,
) -> Vec<NotComparable> {
    let namespaces = namespaces_with_pods(copy);
    let mut facts = Vec::new();
    let mut add = |kind: &str, what: String| {
        facts.push(NotComparable {
            kind: kind.to_owned(),
            what,
        });
    };
    for object in &copy.objects {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let kind = object["kind"].as_str().unwrap_or_default();
        if answering_api(object).is_some() && !is_foreign_api(object, &namespaces) {
            add(
                "aggregated",
                format!("the server of APIService/{name} answers with no resources"),
            );
        }
        if !are_called
            && kind.ends_with("WebhookConfiguration")
            && object["webhooks"]
                .as_array()
                .is_some_and(|it| !it.is_empty())
        {
            add("webhook", format!("{kind}/{name} is not called"));
        }
        if converts(object) && !is_of_git(loaded, name) {
            add(
                "conversion",
                format!("objects of {name} are converted by their apiVersion only"),
            );
        }
        if is_foreign_api(object, &namespaces) {
            add(
                "aggregated",
                format!("APIService/{name} is left out: its server does not run"),
            );
        }
    }
    if distance(&copy.header.kubernetes, programs) == Some(1) {
        add(
            "version",
            format!(
                "rehearsed on Kubernetes {programs}, the cluster has {}",
                copy.header.kubernetes
            ),
        );
    }
    if is_dump {
        add(
            "secret",
            "values of Secrets are compared by their keys only".to_owned(),
        );
    }
    facts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn copy(objects: Vec<Value>) -> Copy {
        Copy::new(pleach_rehearsal::dump::Header::default(), objects)
    }

    #[test]
    fn service_ranges_are_those_of_the_cluster() {
        let range = |name: &str, cidrs: &[&str]| {
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
                "metadata": {"name": name}, "spec": {"cidrs": cidrs}})
        };
        let both = &["10.96.0.0/12", "fd00::/108"][..];
        let extra = range("extra", &["10.7.0.0/16"]);
        for (objects, expected) in [
            (
                vec![extra.clone(), range("kubernetes", both)],
                "10.96.0.0/12,fd00::/108",
            ),
            (vec![extra], "10.0.0.0/16"),
        ] {
            assert_eq!(service_ranges(&copy(objects)), expected);
        }
    }

    /// An aggregated API is part of the copy if its pods are.
    #[test]
    fn aggregated_apis_without_pods_are_left_out() {
        let api = |namespace: &str| {
            json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
                "metadata": {"name": "v1.example.org", "resourceVersion": "7"},
                "spec": {"group": "example.org", "version": "v1", "caBundle": "b2xk",
                    "service": {"namespace": namespace, "name": "a"}},
                "status": {"conditions": [{"type": "Available", "status": "True"}]}})
        };
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"namespace": "web", "name": "a"}});
        let loaded = |objects: Vec<Value>| {
            let copy = copy(objects);
            let namespaces = namespaces_with_pods(&copy);
            copy.objects
                .iter()
                .filter(|it| it["kind"] == "APIService")
                .map(|it| !is_foreign_api(it, &namespaces))
                .collect::<Vec<_>>()
        };
        assert_eq!(loaded(vec![api("web"), slice.clone()]), [true]);
        assert_eq!(loaded(vec![api("other"), slice]), [false]);
        assert_eq!(
            answering_api(&api("web")),
            Some(ApiVersion::parse("example.org/v1"))
        );
    }
}
