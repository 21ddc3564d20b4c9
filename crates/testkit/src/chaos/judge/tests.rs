//! Tests of the checks, with synthetic histories that each have one violation.

use super::*;

/// History of a move, as the watches would report it.
#[derive(Clone)]
pub(in crate::chaos) struct History {
    moving: Moving,
    pub(in crate::chaos) changes: Vec<Change>,
}

impl History {
    /// Creates a history with only the running previous version.
    fn begun(moving: Moving) -> Self {
        let mut history = Self {
            moving,
            changes: Vec::new(),
        };
        history.access(0, &[Side::Old]);
        let from = history.moving.from.clone();
        history.controllers(0, &from, 1);
        for component in history.components() {
            history.pod(0, &from, &component, true);
        }
        history
    }

    /// Creates a history without violations.
    pub(in crate::chaos) fn sound(moving: Moving) -> Self {
        let mut history = Self::begun(moving);
        let (from, to) = (history.moving.from.clone(), history.moving.to.clone());
        let [api, controller, agent] = history.components();
        history.access(1, &[Side::Old, Side::New]);
        history.pod(2, &from, &agent, false);
        history.pod(3, &to, &agent, true);
        history.controllers(4, &from, 0);
        history.pod(5, &from, &controller, false);
        history.controllers(6, &to, 1);
        history.pod(7, &to, &controller, true);
        history.pod(8, &to, &api, true);
        history.pod(9, &from, &api, false);
        history.access(10, &[Side::New]);
        history
    }

    fn components(&self) -> [String; 3] {
        let product = &self.moving.product;
        [
            product.api.clone(),
            product.controller.clone(),
            "agent".to_owned(),
        ]
    }

    fn add(&mut self, version: u64, kind: &'static str, is_gone: bool, object: Value) {
        let at = self.changes.partition_point(|one| one.version <= version);
        let change = Change {
            version,
            kind,
            is_gone,
            object,
        };
        self.changes.insert(at, change);
    }

    /// Adds a running or deleted pod.
    fn pod(&mut self, version: u64, namespace: &str, component: &str, runs: bool) {
        let mut pod = json!({"metadata": {"namespace": namespace, "name": format!("{component}-x"),
            "labels": {&self.moving.product.component_label: component, "app": component}},
            "spec": {"serviceAccountName": component, "nodeName": "n"},
            "status": {"phase": "Running"}});
        if component == "agent" {
            pod["metadata"]["ownerReferences"] = json!([{"kind": "DaemonSet"}]);
        }
        self.add(version, "Pod", !runs, pod);
    }

    fn controllers(&mut self, version: u64, namespace: &str, replicas: usize) {
        let name = &self.moving.product.controller;
        let deployment = json!({"metadata": {"namespace": namespace, "name": name}, "spec": {"replicas": replicas}});
        self.add(version, "Deployment", false, deployment);
    }

    /// Replaces the roles and bindings by the union of these versions and deletes the others.
    fn access(&mut self, version: u64, sides: &[Side]) {
        let mut all: BTreeMap<(&'static str, String, String), (bool, Value)> = BTreeMap::new();
        for side in [Side::Old, Side::New] {
            let is_there = sides.contains(&side);
            for object in self.moving.bundle.objects(side) {
                let kinds = KINDS.iter().map(|(_, _, kind, _)| *kind);
                let mut kinds = kinds.filter(|kind| kind.contains("Role"));
                let Some(kind) = kinds.find(|kind| object["kind"] == *kind) else {
                    continue;
                };
                let (namespace, name) = place(object);
                let known = all.entry((kind, namespace, name));
                let (was_there, known) = known.or_insert((false, Value::Null));
                if is_there && *was_there {
                    for list in ["rules", "subjects"] {
                        if known[list].is_array() {
                            let both = [array(&known[list]), array(&object[list])].concat();
                            known[list] = json!(both);
                        }
                    }
                } else if is_there || known.is_null() {
                    *known = object.clone();
                }
                *was_there |= is_there;
            }
        }
        for ((kind, ..), (is_there, object)) in all {
            self.add(version, kind, !is_there, object);
        }
    }

    /// Edits the change of an object at a version.
    fn edit(&mut self, version: u64, kind: &str, name: &str, edit: impl Fn(&mut Change)) {
        let is_it = |one: &&mut Change| {
            one.version == version && one.kind == kind && place(&one.object).1 == name
        };
        let mut found = 0;
        for change in self.changes.iter_mut().filter(is_it) {
            edit(change);
            found += 1;
        }
        assert!(
            found > 0,
            "nothing is reported of {kind} {name} at {version}"
        );
    }

    fn judged(&self) -> Vec<String> {
        judge(&self.moving, &self.changes)
    }

    /// Verifies that the checks report exactly these violations. The text after each prefix is
    /// ignored.
    #[track_caller]
    fn is_wrong(&self, expected: &[&str]) {
        let judged = self.judged();
        let matches = judged.len() == expected.len()
            && judged
                .iter()
                .zip(expected)
                .all(|(is, words)| is.starts_with(words));
        assert!(matches, "{judged:#?}\n{expected:#?}");
    }
}

fn sound() -> History {
    History::sound(Moving::new("m", 1))
}

#[test]
fn a_valid_run_has_no_findings() {
    for seed in 0..20 {
        let history = History::sound(Moving::new("m", seed));
        assert_eq!(history.judged(), [""; 0], "seed {seed}");
    }
}

#[test]
fn a_role_reduced_while_previous_pods_run_is_found() {
    let mut history = sound();
    let api = history.moving.product.api.clone();
    let from = history.moving.from.clone();
    // Simulate a missing union: one rule is missing.
    history.edit(1, "ClusterRole", &api, |change| {
        let rules = change.object["rules"].as_array_mut().unwrap();
        rules.retain(|rule| rule["resources"] != json!(["apiservices"]));
    });
    let wrong = history.judged();
    let words = format!(
        "at 1: pod {from}/{api}-x runs, and its account {api} may not create apiservices.apiregistration.k8s.io in *"
    );
    assert!(wrong.contains(&words), "{wrong:#?}");
}

#[test]
fn a_temporary_loss_of_a_permission_is_found() {
    let mut history = sound();
    let api = history.moving.product.api.clone();
    let role = |history: &History, version: u64| {
        let mut all = history.changes.iter();
        let it = all.find(|one| {
            one.version == version && one.kind == "ClusterRole" && place(&one.object).1 == api
        });
        it.unwrap().object.clone()
    };
    let whole = role(&history, 1);
    let mut narrow = whole.clone();
    narrow["rules"] = json!([]);
    history.add(2, "ClusterRole", false, narrow);
    history.add(2, "ClusterRole", false, whole);
    let from = history.moving.from.clone();
    let words = format!("at 2: pod {from}/{api}-x runs, and its account {api} may not ");
    history.is_wrong(&[&words]);
}

#[test]
fn a_reduced_or_deleted_binding_is_found() {
    let mut history = sound();
    let controller = history.moving.product.controller.clone();
    let (from, to) = (history.moving.from.clone(), history.moving.to.clone());
    history.edit(1, "ClusterRoleBinding", &controller, |change| {
        let subjects = change.object["subjects"].as_array_mut().unwrap();
        subjects.retain(|subject| subject["namespace"] != from.as_str());
    });
    let words = |namespace: &str, name: &str| {
        format!("pod {namespace}/{name}-x runs, and its account {name} may not ")
    };
    let wrong = history.judged();
    let lacks = words(&from, &controller);
    assert!(wrong.iter().all(|one| one.contains(&lacks)), "{wrong:#?}");
    assert!(!wrong.is_empty());
    // The role of the new version is deleted while its pod is running.
    let mut history = sound();
    let api = history.moving.product.api.clone();
    history.edit(10, "Role", &api, |change| change.is_gone = true);
    history.is_wrong(&[&format!("at 10: {}", words(&to, &api))]);
}

#[test]
fn unneeded_permissions_can_be_removed() {
    let mut history = sound();
    history.changes.retain(|change| change.kind != "Pod");
    history.changes.retain(|change| change.version != 1);
    assert_eq!(history.judged(), [""; 0]);
}

#[test]
fn controllers_of_both_versions_with_replicas_are_seen() {
    let mut history = sound();
    let controller = history.moving.product.controller.clone();
    history.edit(4, "Deployment", &controller, |change| {
        change.object["spec"]["replicas"] = json!(1);
    });
    let words = ["10", "6", "7", "8"]
        .map(|version| format!("at {version}: controllers of both versions have replicas"));
    assert_eq!(history.judged(), words);
}

#[test]
fn two_controllers_at_once_are_found() {
    let mut history = sound();
    let controller = history.moving.product.controller.clone();
    history
        .changes
        .retain(|change| !(change.version == 5 && change.kind == "Pod"));
    let from = history.moving.from.clone();
    history.pod(9, &from, &controller, false);
    history.is_wrong(&[
        "at 7: controllers of both versions run",
        "at 8: controllers of both versions run",
    ]);
}

#[test]
fn a_stopped_controller_and_other_workloads_are_permitted() {
    let mut history = sound();
    let controller = history.moving.product.controller.clone();
    history.edit(4, "Deployment", &controller, |change| {
        change.is_gone = true;
        change.object["spec"]["replicas"] = json!(1);
    });
    let from = history.moving.from.clone();
    let other = json!({"metadata": {"namespace": from, "name": format!("{controller}-2")},
        "spec": {"replicas": 1}});
    history.add(6, "Deployment", false, other);
    assert_eq!(history.judged(), [""; 0]);
}

#[test]
fn a_completed_pod_needs_no_permissions() {
    let mut history = sound();
    let [api, controller, agent] = history.components();
    for (version, component) in [(2, agent), (5, controller), (9, api)] {
        history.edit(version, "Pod", &format!("{component}-x"), |change| {
            change.is_gone = false;
            change.object["status"]["phase"] = json!("Failed");
        });
    }
    assert_eq!(history.judged(), [""; 0]);
}

#[test]
fn agents_of_both_versions_on_a_node_are_seen_and_on_two_nodes_they_may_be() {
    let mut history = sound();
    history
        .changes
        .retain(|change| !(change.version == 2 && change.kind == "Pod"));
    let wrong = history.judged();
    let words = "at 3: agents agent of both versions run on n".to_owned();
    assert!(wrong.contains(&words), "{wrong:#?}");
    history.edit(3, "Pod", "agent-x", |change| {
        change.object["spec"]["nodeName"] = json!("other");
    });
    assert_eq!(history.judged(), [""; 0]);
}

#[test]
fn a_cluster_wide_permission_covers_every_namespace() {
    let rule = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
    let make = |scope: &str| atoms(scope, &rule).remove(0);
    assert!(may(&BTreeSet::from([make("*")]), &make("a")));
    assert!(may(&BTreeSet::from([make("a")]), &make("a")));
    assert!(!may(&BTreeSet::from([make("a")]), &make("*")));
}
