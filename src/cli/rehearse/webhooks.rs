//! Webhooks of a copy: the servers that answer in their place, and how often they were asked.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::Uri;
use pleach_engine::load::Loaded;
use pleach_rehearsal::dump::Copy;
use pleach_rehearsal::report::NotComparable;
use pleach_throwaway::Webhook;
use serde_json::{Value, json};

/// Address of an endpoint. The proxy to pods accepts any.
const ADDRESS: &str = "192.0.2.1";

/// Label of the endpoints of a Service.
const SERVICE: &str = "kubernetes.io/service-name";

/// Registration of webhooks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Registration {
    /// Kind and name of the object.
    name: String,
    /// Whether its webhook converts the objects of a CRD.
    converts: bool,
    /// Called webhooks.
    webhooks: BTreeSet<Webhook>,
    /// Hosts outside of the cluster.
    outside: BTreeSet<String>,
}

/// Returns whether webhooks can be called on a copy. Without its Services, each call would fail.
pub(super) fn can_be_called(copy: &Copy) -> bool {
    let mut left_out = copy.header.left_out.iter();
    !left_out.any(|it| it.what == "Service")
}

/// Returns endpoints for the Services of webhooks whose pods are not part of a copy. `namespaces`
/// are those with pods.
pub(super) fn endpoints(copy: &Copy, namespaces: &BTreeSet<&str>) -> Vec<Value> {
    let mut services = BTreeSet::new();
    for object in &copy.objects {
        for client in clients(object) {
            let service = &client["service"];
            if let (Some(namespace), Some(name)) =
                (service["namespace"].as_str(), service["name"].as_str())
                && !namespaces.contains(namespace)
            {
                services.insert((namespace, name));
            }
        }
    }
    let found = copy.objects.iter().filter(|object| {
        let metadata = &object["metadata"];
        let is_service = object["apiVersion"] == "v1" && object["kind"] == "Service";
        is_service
            && metadata["namespace"]
                .as_str()
                .zip(metadata["name"].as_str())
                .is_some_and(|it| services.contains(&it))
    });
    let slices = found.enumerate().map(|(index, service)| {
        let metadata = &service["metadata"];
        let name = metadata["name"].as_str().unwrap_or_default();
        let ports = service["spec"]["ports"].as_array().into_iter().flatten();
        let ports: Vec<Value> = ports
            .map(|port| {
                let name = port["name"].as_str().unwrap_or_default();
                json!({"name": name, "port": 443, "protocol": "TCP"})
            })
            .collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "namespace": metadata["namespace"], "name": format!("{name}-rehearsal"),
                "uid": format!("00000000-0000-4000-8000-{index:012}"),
                "labels": {SERVICE: name},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [ADDRESS], "conditions": {"ready": true}}],
            "ports": ports,
        })
    });
    slices.collect()
}

/// Returns the registrations of a copy and of git.
pub(super) fn registrations(copy: &Copy, loaded: &Loaded) -> Vec<Registration> {
    let releases = loaded.rendered.iter();
    let manifests = releases.flat_map(|(_, rendered)| &rendered.manifests);
    let manifests = manifests.filter(|it| is_registration(&it.id().group, &it.id().kind));
    let objects = manifests.map(pleach_model::object::Manifest::value);
    let mut found: BTreeMap<(bool, String), Registration> = BTreeMap::new();
    for object in objects.chain(copy.objects.iter().cloned()) {
        let [group, kind, _, name] = pleach_rehearsal::dump::position(&object);
        if !is_registration(&group, &kind) {
            continue;
        }
        let converts = kind == "CustomResourceDefinition";
        let name = if converts {
            name
        } else {
            format!("{kind}/{name}")
        };
        let registration = found.entry((converts, name.clone()));
        let registration = registration.or_insert_with(|| Registration {
            name,
            converts,
            webhooks: BTreeSet::new(),
            outside: BTreeSet::new(),
        });
        for client in clients(&object) {
            let Some(webhook) = called(client) else {
                continue;
            };
            if client["url"].is_string() {
                registration.outside.insert(webhook.host.clone());
            }
            registration.webhooks.insert(webhook);
        }
    }
    found.into_values().collect()
}

/// Returns the facts about webhooks that were asked.
pub(super) fn asked(
    registrations: &[Registration],
    counts: &BTreeMap<Webhook, u64>,
) -> Vec<NotComparable> {
    let mut facts = Vec::new();
    for registration in registrations {
        let Registration {
            name,
            converts,
            webhooks,
            outside,
        } = registration;
        let counts = webhooks.iter().filter_map(|it| counts.get(it));
        let number: u64 = counts.sum();
        if number == 0 {
            continue;
        }
        let (kind, what) = if *converts {
            let objects = if number == 1 { "object" } else { "objects" };
            (
                "conversion",
                format!("{number} {objects} of {name} converted by their apiVersion only"),
            )
        } else {
            let times = if number == 1 { "time" } else { "times" };
            let hosts: Vec<&str> = outside.iter().map(String::as_str).collect();
            let instead = match hosts.as_slice() {
                [] => String::new(),
                hosts => format!(" instead of {}", hosts.join(", ")),
            };
            (
                "webhook",
                format!("{name}: asked {number} {times}{instead}, answered \"allow\""),
            )
        };
        facts.push(NotComparable {
            kind: kind.to_owned(),
            what,
        });
    }
    facts
}

fn is_registration(group: &str, kind: &str) -> bool {
    matches!(
        (group, kind),
        (
            "admissionregistration.k8s.io",
            "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration"
        ) | ("apiextensions.k8s.io", "CustomResourceDefinition")
    )
}

/// Returns the client configurations of a registration; none for other objects.
fn clients(object: &Value) -> Vec<&Value> {
    let [group, kind, ..] = pleach_rehearsal::dump::position(object);
    if !is_registration(&group, &kind) {
        return Vec::new();
    }
    let conversion = object.pointer("/spec/conversion/webhook/clientConfig");
    let webhooks = object["webhooks"].as_array().into_iter().flatten();
    let webhooks = webhooks.map(|webhook| &webhook["clientConfig"]);
    webhooks.chain(conversion).collect()
}

/// Returns the webhook that the API server calls with a client configuration.
fn called(client: &Value) -> Option<Webhook> {
    let (host, path) = if let Some(url) = client["url"].as_str() {
        let url: Uri = url.parse().ok()?;
        let host = url.host()?.trim_matches(['[', ']']).to_owned();
        (host, url.path().to_owned())
    } else {
        let service = &client["service"];
        let (name, namespace) = (service["name"].as_str()?, service["namespace"].as_str()?);
        let path = service["path"].as_str().unwrap_or_default();
        (format!("{name}.{namespace}.svc"), path.to_owned())
    };
    // The client of the API server joins the parts of a path.
    let path = path.split('/').filter(|part| !part.is_empty());
    let path = path.fold(String::new(), |path, part| format!("{path}/{part}"));
    let path = if path.is_empty() {
        "/".to_owned()
    } else {
        path
    };
    Some(Webhook { host, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(name: &str, clients: &[Value]) -> Value {
        let webhooks: Vec<Value> = clients
            .iter()
            .map(|client| json!({"name": "a", "clientConfig": client}))
            .collect();
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": name}, "webhooks": webhooks})
    }

    fn service(namespace: &str, path: &str) -> Value {
        json!({"service": {"namespace": namespace, "name": "hook", "path": path}})
    }

    fn copy(objects: Vec<Value>) -> Copy {
        Copy::new(pleach_rehearsal::dump::Header::default(), objects)
    }

    #[test]
    fn webhooks_are_found_by_host_and_path() {
        for (client, expected) in [
            (service("web", "/a/b/"), Some(("hook.web.svc", "/a/b"))),
            (service("web", ""), Some(("hook.web.svc", "/"))),
            (
                json!({"url": "https://a.example.org:8443/v?x=y"}),
                Some(("a.example.org", "/v")),
            ),
            (json!({"url": "https://[fd00::7]"}), Some(("fd00::7", "/"))),
            (json!({"url": "::"}), None),
            (json!({}), None),
        ] {
            let found = called(&client);
            let found = found
                .as_ref()
                .map(|it| (it.host.as_str(), it.path.as_str()));
            assert_eq!(found, expected, "{client}");
        }
    }

    /// A Service without pods in the copy gets endpoints; one that does not exist gets none.
    #[test]
    fn services_of_foreign_webhooks_have_endpoints() {
        let object = |namespace: &str, name: &str| {
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": namespace, "name": name},
                "spec": {"ports": [{"name": "https", "port": 443}, {"port": 80}]}})
        };
        let copy = copy(vec![
            configuration(
                "a",
                &[
                    service("web", "/"),
                    service("policy", "/"),
                    service("gone", "/"),
                ],
            ),
            object("web", "hook"),
            object("policy", "hook"),
            object("policy", "other"),
        ]);
        let slices = endpoints(&copy, &BTreeSet::from(["web"]));
        let facts: Vec<_> = slices
            .iter()
            .map(|it| {
                let metadata = &it["metadata"];
                (
                    &metadata["namespace"],
                    &metadata["labels"][SERVICE],
                    &it["ports"][0]["name"],
                    &it["ports"][1]["name"],
                )
            })
            .collect();
        assert_eq!(
            facts,
            [(
                &json!("policy"),
                &json!("hook"),
                &json!("https"),
                &json!("")
            )]
        );
    }

    #[test]
    fn webhooks_that_were_asked_are_reported() {
        let registration =
            |name: &str, converts: bool, paths: &[&str], outside: &[&str]| Registration {
                name: name.to_owned(),
                converts,
                webhooks: paths
                    .iter()
                    .map(|path| Webhook {
                        host: "h".to_owned(),
                        path: (*path).to_owned(),
                    })
                    .collect(),
                outside: outside.iter().map(|it| (*it).to_owned()).collect(),
            };
        let registrations = [
            registration("A/a", false, &["/a", "/b"], &[]),
            registration("A/b", false, &["/c"], &["h"]),
            registration("A/c", false, &["/d"], &[]),
            registration("gears.example.org", true, &["/e"], &[]),
        ];
        let counts = [("/a", 2), ("/b", 3), ("/c", 1), ("/e", 4)].map(|(path, number)| {
            (
                Webhook {
                    host: "h".to_owned(),
                    path: path.to_owned(),
                },
                number,
            )
        });
        let facts = asked(&registrations, &BTreeMap::from(counts));
        let texts: Vec<_> = facts
            .iter()
            .map(|it| (it.kind.as_str(), it.what.as_str()))
            .collect();
        assert_eq!(
            texts,
            [
                ("webhook", "A/a: asked 5 times, answered \"allow\""),
                (
                    "webhook",
                    "A/b: asked 1 time instead of h, answered \"allow\""
                ),
                (
                    "conversion",
                    "4 objects of gears.example.org converted by their apiVersion only"
                ),
            ]
        );
    }
}
