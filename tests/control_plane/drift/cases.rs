//! Cases of the drift tests.

use std::fmt;

use serde_json::json;

use super::hand::Hand;
use super::objects::Object::{self, ConfigMap, Deployment, Gear, Role, Secret, Service};

/// Manual change of one object, with the expected diff and repair.
#[derive(Clone, Copy)]
pub(super) struct Case {
    /// Name of the object.
    pub(super) name: &'static str,
    pub(super) object: Object,
    pub(super) act: fn(&Hand<'_>, &str),
    /// Expected diff.
    pub(super) expected: Expected,
    /// Additions of other clients that are retained, as JSON pointers.
    pub(super) kept: &'static [&'static str],
    /// Other managers with a managedFields entry after the repair.
    pub(super) others: &'static [&'static str],
    /// Fields with an additional owner after the repair.
    pub(super) shared: &'static [&'static str],
}

/// Expected diff of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    /// The object is in sync.
    Nothing,
    /// Only the managedFields differ.
    Ownership,
    /// Fields that differ, and managers that wrote them.
    Drift {
        fields: &'static [&'static str],
        by: &'static [&'static str],
    },
    /// The object does not exist.
    Gone,
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Ownership => f.write_str("ownership"),
            Self::Drift { fields, by } => write!(f, "drift of {fields:?} by {by:?}"),
            Self::Gone => f.write_str("gone"),
        }
    }
}

use Expected::{Gone, Nothing, Ownership};

const fn drift(fields: &'static [&'static str], by: &'static [&'static str]) -> Expected {
    Expected::Drift { fields, by }
}

/// JSON patch that removes all managedFields entries.
const WIPE: &str = r#"[{"op":"replace","path":"/metadata/managedFields","value":[{}]}]"#;

/// Returns a case without additions or further owners.
const fn case(
    name: &'static str,
    object: Object,
    expected: Expected,
    act: fn(&Hand<'_>, &str),
) -> Case {
    Case {
        name,
        object,
        act,
        expected,
        kept: &[],
        others: &[],
        shared: &[],
    }
}

pub(super) const CASES: &[Case] = &[
    case(
        "field-edited",
        ConfigMap,
        drift(&[".data.color"], &["someone"]),
        |hand, name| hand.patch(ConfigMap, name, "merge", r#"{"data":{"color":"blue"}}"#),
    ),
    case(
        "field-edited-in-an-editor",
        ConfigMap,
        drift(&[".data.tone"], &["kubectl-edit"]),
        |hand, name| hand.edit(name, "dark", "pale"),
    ),
    case(
        "field-removed",
        ConfigMap,
        drift(&[".data.color"], &[]),
        |hand, name| {
            hand.patch(
                ConfigMap,
                name,
                "json",
                r#"[{"op":"remove","path":"/data/color"}]"#,
            );
        },
    ),
    Case {
        kept: &["/data/more"],
        others: &["someone"],
        ..case("field-added", ConfigMap, Nothing, |hand, name| {
            hand.patch(ConfigMap, name, "merge", r#"{"data":{"more":"x"}}"#);
        })
    },
    case(
        "label-removed",
        ConfigMap,
        drift(&[".metadata.labels.tier"], &[]),
        |hand, name| hand.label(name, "tier-"),
    ),
    case(
        "label-changed",
        ConfigMap,
        drift(&[".metadata.labels.tier"], &["kubectl-label"]),
        |hand, name| hand.label(name, "tier=back"),
    ),
    // A manager that removed and restored a value owns it alone. pleach takes it back.
    case(
        "label-removed-and-added",
        ConfigMap,
        Ownership,
        |hand, name| {
            hand.label(name, "tier-");
            hand.label(name, "tier=front");
        },
    ),
    case(
        "set-label-removed",
        ConfigMap,
        drift(
            &[r#".metadata.labels["applyset.kubernetes.io/part-of"]"#],
            &[],
        ),
        |hand, name| hand.label(name, "applyset.kubernetes.io/part-of-"),
    ),
    case(
        "set-label-changed",
        ConfigMap,
        drift(
            &[r#".metadata.labels["applyset.kubernetes.io/part-of"]"#],
            &["kubectl-label"],
        ),
        |hand, name| hand.label(name, "applyset.kubernetes.io/part-of=y"),
    ),
    case(
        "annotation-removed",
        ConfigMap,
        drift(&[".metadata.annotations"], &[]),
        |hand, name| hand.annotate(name, "example.org/team-"),
    ),
    Case {
        kept: &["/metadata/annotations/example.org~1note"],
        others: &["kubectl-annotate"],
        ..case("annotation-added", ConfigMap, Nothing, |hand, name| {
            hand.annotate(name, "example.org/note=hi");
        })
    },
    case("digest-removed", ConfigMap, Ownership, |hand, name| {
        hand.annotate(name, "pleach.dev/desired-");
    }),
    case(
        "put",
        ConfigMap,
        drift(&[".data.color", ".data.tone"], &["kubectl-replace"]),
        |hand, name| {
            hand.put(ConfigMap, name, |object| {
                object["data"] = json!({"color": "blue"});
            });
        },
    ),
    case(
        "put-with-managers",
        ConfigMap,
        drift(&[".data.color"], &["kubectl-replace"]),
        |hand, name| {
            hand.put_with_managers(ConfigMap, name, |object| {
                object["data"]["color"] = json!("blue");
            });
        },
    ),
    Case {
        others: &["kubectl-client-side-apply"],
        ..case(
            "applied-by-kubectl",
            ConfigMap,
            drift(&[".data.tone"], &["kubectl-client-side-apply"]),
            |hand, name| {
                hand.with_file(
                    "apply",
                    name,
                    &ConfigMap.manifest(name).replace("dark", "pale"),
                );
            },
        )
    },
    case("wiped", ConfigMap, Ownership, |hand, name| {
        hand.patch(ConfigMap, name, "json", WIPE);
    }),
    case("wiped-to-nothing", ConfigMap, Ownership, |hand, name| {
        hand.patch(
            ConfigMap,
            name,
            "json",
            r#"[{"op":"replace","path":"/metadata/managedFields","value":[]}]"#,
        );
    }),
    case("wiped-deployment", Deployment, Ownership, |hand, name| {
        hand.patch(Deployment, name, "json", WIPE);
    }),
    case(
        "wiped-and-edited",
        ConfigMap,
        drift(&[".data.color"], &[]),
        |hand, name| {
            hand.patch(ConfigMap, name, "merge", r#"{"data":{"color":"blue"}}"#);
            hand.patch(ConfigMap, name, "json", WIPE);
        },
    ),
    case(
        "wiped-and-edited-later",
        ConfigMap,
        drift(&[".data.color"], &[]),
        |hand, name| {
            hand.patch(ConfigMap, name, "json", WIPE);
            hand.patch(ConfigMap, name, "merge", r#"{"data":{"color":"blue"}}"#);
        },
    ),
    Case {
        kept: &["/data/more"],
        others: &["someone"],
        ..case(
            "only-our-entry-removed",
            ConfigMap,
            Ownership,
            |hand, name| {
                hand.patch(ConfigMap, name, "merge", r#"{"data":{"more":"x"}}"#);
                hand.put_with_managers(ConfigMap, name, |object| {
                    let entries = object["metadata"]["managedFields"].as_array_mut().unwrap();
                    entries.retain(|entry| entry["manager"] == "someone");
                });
            },
        )
    },
    case(
        "applied-by-others",
        ConfigMap,
        drift(&[".data.color"], &["other-team"]),
        |hand, name| hand.apply_as("other-team", name, "{color: blue}"),
    ),
    case(
        "applied-by-others-and-back",
        ConfigMap,
        Ownership,
        |hand, name| {
            hand.apply_as("other-team", name, "{color: blue}");
            hand.apply_as("other-team", name, "{color: red}");
        },
    ),
    // A manager that applies the same value shares the field with us.
    Case {
        others: &["other-team"],
        shared: &[".data.color"],
        ..case(
            "applied-by-others-the-same",
            ConfigMap,
            Nothing,
            |hand, name| hand.apply_as("other-team", name, "{color: red}"),
        )
    },
    case("deleted", ConfigMap, Gone, |hand, name| {
        drop(hand.kubectl(&["delete", "configmap", name]));
    }),
    // The entry contains the maps around our fields, but no field.
    Case {
        others: &["kubectl-create"],
        ..case(
            "recreated",
            ConfigMap,
            drift(
                &[
                    ".data.tone",
                    r#".metadata.labels["app.kubernetes.io/managed-by"]"#,
                    r#".metadata.labels["applyset.kubernetes.io/part-of"]"#,
                ],
                &["kubectl-create"],
            ),
            |hand, name| {
                hand.kubectl(&["delete", "configmap", name]);
                hand.with_file(
                    "create",
                    name,
                    &ConfigMap.manifest(name).replace("dark", "pale"),
                );
            },
        )
    },
    case("scaled-and-back", Deployment, Ownership, |hand, name| {
        hand.kubectl(&["scale", "deployment", name, "--replicas=2"]);
        hand.kubectl(&["scale", "deployment", name, "--replicas=0"]);
    }),
    Case {
        kept: &["/metadata/annotations/example.org~1note"],
        others: &["kubectl-annotate"],
        ..case(
            "mutated",
            ConfigMap,
            drift(&[".data.color"], &[]),
            |hand, name| hand.annotate(name, "example.org/note=hi"),
        )
    },
    Case {
        kept: &["/metadata/ownerReferences", "/metadata/finalizers"],
        others: &["someone"],
        ..case("owned-and-held", ConfigMap, Nothing, |hand, name| {
            hand.hold(name);
        })
    },
    case(
        "secret-edited",
        Secret,
        drift(&[".data.session"], &["someone"]),
        |hand, name| hand.patch(Secret, name, "merge", r#"{"data":{"session":"aGVsbG8="}}"#),
    ),
    case(
        "secret-string-edited",
        Secret,
        drift(&[".data.session"], &["someone"]),
        |hand, name| {
            hand.patch(
                Secret,
                name,
                "merge",
                r#"{"stringData":{"session":"hello"}}"#,
            );
        },
    ),
    Case {
        kept: &["/data/more"],
        others: &["someone"],
        ..case("secret-string-added", Secret, Nothing, |hand, name| {
            hand.patch(Secret, name, "merge", r#"{"stringData":{"more":"hello"}}"#);
        })
    },
    case(
        "selector-removed",
        Service,
        drift(&[".spec.selector"], &[]),
        |hand, name| {
            hand.patch(
                Service,
                name,
                "json",
                r#"[{"op":"remove","path":"/spec/selector"}]"#,
            );
        },
    ),
    case(
        "port-renamed",
        Service,
        drift(
            &[r#".spec.ports[port=80,protocol="TCP"].name"#],
            &["someone"],
        ),
        |hand, name| {
            hand.patch(
                Service,
                name,
                "strategic",
                r#"{"spec":{"ports":[{"port":80,"name":"web"}]}}"#,
            );
        },
    ),
    case(
        "scaled",
        Deployment,
        drift(&[".spec.replicas"], &["kubectl"]),
        |hand, name| drop(hand.kubectl(&["scale", "deployment", name, "--replicas=2"])),
    ),
    case(
        "image-set",
        Deployment,
        drift(
            &[r#".spec.template.spec.containers[name="app"].image"#],
            &["kubectl-set"],
        ),
        |hand, name| drop(hand.kubectl(&["set", "image", "deployment", name, "app=app:2"])),
    ),
    case(
        "strategic",
        Deployment,
        drift(
            &[r#".spec.template.spec.containers[name="side"].image"#],
            &["someone"],
        ),
        |hand, name| {
            hand.patch(Deployment, name, "strategic", r#"{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"side:2"}]}}}}"#);
        },
    ),
    case(
        "atomic-list-patched",
        Deployment,
        drift(
            &[r#".spec.template.spec.containers[name="app"].args[1]"#],
            &["someone"],
        ),
        |hand, name| {
            hand.patch(Deployment, name, "json", r#"[{"op":"replace","path":"/spec/template/spec/containers/0/args/1","value":"--loud"}]"#);
        },
    ),
    case(
        "containers-reordered",
        Deployment,
        drift(&[".spec.template.spec.containers"], &[]),
        |hand, name| hand.reverse(name, "containers"),
    ),
    case(
        "init-containers-reordered",
        Deployment,
        drift(&[".spec.template.spec.initContainers"], &[]),
        |hand, name| hand.reverse(name, "initContainers"),
    ),
    case(
        "env-reordered",
        Deployment,
        drift(&[r#".spec.template.spec.containers[name="app"].env"#], &[]),
        |hand, name| {
            hand.patch(Deployment, name, "json", r#"[{"op":"move","from":"/spec/template/spec/containers/0/env/0","path":"/spec/template/spec/containers/0/env/1"}]"#);
        },
    ),
    case(
        "env-doubled",
        Deployment,
        drift(
            &[r#".spec.template.spec.containers[name="app"].env[2]"#],
            &["someone"],
        ),
        |hand, name| {
            hand.patch(Deployment, name, "json", r#"[{"op":"add","path":"/spec/template/spec/containers/0/env/-","value":{"name":"A","value":"3"}}]"#);
        },
    ),
    Case {
        kept: &["/spec/template/spec/containers/0"],
        others: &["someone"],
        ..case("container-added", Deployment, Nothing, |hand, name| {
            hand.patch(Deployment, name, "strategic", r#"{"spec":{"template":{"spec":{"containers":[{"name":"more","image":"more:1"}]}}}}"#);
        })
    },
    case("status-written", Deployment, Nothing, |hand, name| {
        hand.kubectl(&[
            "patch",
            "deployment",
            name,
            "--subresource=status",
            "--type=merge",
            "-p",
            r#"{"status":{"conditions":[{"type":"Seen","status":"True"}]}}"#,
        ]);
    }),
    case(
        "rules-reordered",
        Role,
        drift(&[".rules"], &["someone"]),
        |hand, name| {
            hand.patch(
                Role,
                name,
                "json",
                r#"[{"op":"move","from":"/rules/0","path":"/rules/1"}]"#,
            );
        },
    ),
    case(
        "custom-field-edited",
        Gear,
        drift(&[".spec.size"], &["someone"]),
        |hand, name| hand.patch(Gear, name, "merge", r#"{"spec":{"size":2}}"#),
    ),
];
