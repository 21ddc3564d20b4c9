//! Tests for the limits of an environment: plans and state storage.

use jiff::SignedDuration;
use rstest::rstest;

use super::*;
use crate::plan::{Change, Course, DriverObjects, Overlay, Step, StepId};
use pleach_formats::gate::{Closed, Operation};
use pleach_model::object::{Digest, NonSecret, ReleaseName};
use pleach_model::order::StageName;
use pleach_state::overlay::{OnFailure, OverlayContent, OverlayId};

fn hint(finding: &Finding) -> String {
    format!(" ({})", finding.hint.as_deref().unwrap_or_default())
}

/// Returns a plan of a release that defines `gears.example.org`, with a step on a policy.
fn gated(gate: &Gate, content: OverlayContent, op: Op) -> Plan {
    let mut plan = copying("a", "b");
    plan.changes.push(Change::new(
        ObjectId::new(
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            None,
            "gears.example.org",
        ),
        Action::Create,
    ));
    let id = OverlayId::of_gate(&gate.name, &gate.id());
    plan.overlays.push(Overlay {
        id: id.clone(),
        object: gate.id(),
        content,
        course: Course::Made,
        from: None,
        until: StageName::Ungate,
        undo: Vec::new(),
        on_failure: OnFailure::Undo,
    });
    plan.steps[0].object = gate.id();
    plan.steps[0].op = op;
    plan.steps[0].overlay = Some(id);
    plan
}

fn closing(groups: &[&str], resources: &[&str]) -> Gate {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    Gate {
        release: copying("a", "b").release,
        name: "new-apis".to_owned(),
        version: "v1.0.0".to_owned(),
        closed: vec![Closed {
            groups: owned(groups),
            resources: owned(resources),
        }],
        operations: vec![Operation::Create],
        exempt: Vec::new(),
        exempts_us: false,
        state: "pleach-system".to_owned(),
    }
}

#[test]
fn a_gate_is_closed_over_kinds_that_the_release_may_define() {
    let allow = Allow::new(&AllowList {
        cluster_scoped: Some(vec![ClusterScoped::Kind(
            "CustomResourceDefinition".to_owned(),
        )]),
        ..AllowList::default()
    });
    let own = closing(&["example.org"], &["gears"]);
    let of_another = Gate {
        release: ReleaseName {
            environment: "dev".to_owned(),
            release: "db".to_owned(),
        },
        ..own.clone()
    };
    let nothing = Gate {
        closed: Vec::new(),
        ..own.clone()
    };
    for (case, gate, is_allowed) in [
        ("a kind that it defines", own.clone(), true),
        (
            "a kind of others",
            closing(&["example.org"], &["wheels"]),
            false,
        ),
        ("all of a group", closing(&["example.org"], &["*"]), false),
        ("nothing", nothing, false),
        ("no groups", closing(&[], &["gears"]), false),
        ("no resources", closing(&["example.org"], &[]), false),
        ("a gate of another release", of_another, false),
    ] {
        let content = || OverlayContent::Gate(Some(gate.clone()));
        let closes = gated(&gate, content(), Op::Close { gate: gate.clone() });
        assert_eq!(allow.check(&closes).is_empty(), is_allowed, "close {case}");
        let lifts = gated(&gate, content(), Op::Lift);
        assert_eq!(allow.check(&lifts).is_empty(), is_allowed, "lift {case}");
        // The same text as a patch of the same policy.
        let text = NonSecret(serde_json::to_value(&gate).unwrap());
        let content = || OverlayContent::Patch {
            patch: text.clone(),
            original: NonSecret(serde_json::json!({"spec": {}})),
        };
        let patch = text.clone();
        for op in [Op::Set { patch }, Op::Lift] {
            let patched = gated(&gate, content(), op);
            assert_eq!(allow.check(&patched).len(), 1, "patch {case}");
        }
        let mut other = gated(&gate, content(), Op::Close { gate: gate.clone() });
        let policy = &mut other.steps[0].object;
        *policy = ObjectId::new(&policy.group, &policy.kind, None, "images");
        assert_eq!(allow.check(&other).len(), 1, "another policy, {case}");
        let mut renamed = gated(&gate, content(), Op::Close { gate: gate.clone() });
        renamed.steps[0].overlay = Some(OverlayId("new-apis".to_owned()));
        assert_eq!(allow.check(&renamed).len(), 1, "another id, {case}");
    }
}

#[test]
fn an_unapplied_crd_permits_no_gate() {
    let allow = Allow::new(&AllowList {
        cluster_scoped: Some(vec![ClusterScoped::Kind(
            "CustomResourceDefinition".to_owned(),
        )]),
        ..AllowList::default()
    });
    let gate = closing(&["example.org"], &["gears"]);
    for (action, refusals) in [
        (Action::Create, 0),
        (Action::Unchanged, 0),
        // Another release owns the CRD.
        (Action::Blocked, 1),
        (Action::Skip, 1),
    ] {
        for op in [Op::Close { gate: gate.clone() }, Op::Lift] {
            let mut plan = gated(&gate, OverlayContent::Gate(Some(gate.clone())), op);
            plan.changes[0].action = action;
            assert_eq!(allow.check(&plan).len(), refusals, "{action:?}");
        }
    }
}

#[test]
fn records_of_releases_are_waited_for_and_not_written() {
    let allow = Allow::new(&AllowList::default());
    let refused = |op: Op| {
        let mut plan = copying("a", "b");
        plan.steps[0].object = ObjectId::new("pleach.dev", "Release", None, "dev.other");
        plan.steps[0].op = op;
        allow.check(&plan).len()
    };
    assert_eq!(refused(Op::Wait), 0);
    let patch = NonSecret(serde_json::json!({"spec": {"suspend": {}}}));
    assert_eq!(refused(Op::Set { patch }), 1);
}

/// Returns a plan whose only step copies user settings between namespaces.
fn copying(from: &str, to: &str) -> Plan {
    let settings = |namespace| ObjectId::new("", "ConfigMap", Some(namespace), "settings");
    let step = Step {
        id: StepId(0),
        stage: StageName::Config,
        object: settings(to),
        op: Op::Copy {
            from: settings(from),
            to: settings(to),
        },
        needs: Vec::new(),
        require: Vec::new(),
        until: None,
        deadline: SignedDuration::from_secs(1),
        overlay: None,
        reason: "users keep it there".to_owned(),
    };
    let release = ReleaseName {
        environment: "dev".to_owned(),
        release: "web".to_owned(),
    };
    Plan {
        steps: vec![step],
        ..Plan::new(release, "v1.0.0")
    }
}

#[rstest]
#[case::both_are_allowed("team-a-old", "team-a-new", &[])]
#[case::the_source_is_not("team-b", "team-a-new",
    &["ConfigMap/team-b/settings: the controller is not allowed to copy from it for this environment"])]
#[case::the_copy_is_not("team-a-old", "team-b",
    &["ConfigMap/team-b/settings: the controller is not allowed to write to it for this environment"])]
fn copies_are_read_only_from_writable_namespaces(
    #[case] from: &str,
    #[case] to: &str,
    #[case] expected: &[&str],
) {
    let allow = Allow::new(&AllowList {
        namespaces: Some(vec!["team-a-*".to_owned()]),
        cluster_scoped: None,
    });
    let shown: Vec<String> = allow
        .check(&copying(from, to))
        .into_iter()
        .map(|finding| format!("{}: {}", finding.object.unwrap(), finding.message))
        .collect();
    assert_eq!(shown, expected);
}

#[rstest]
#[case::both(&["ops"], &["a", "b"], &[])]
#[case::another_node(&["ops"], &["b"], &["Node/a"])]
#[case::the_namespace_of_the_job(&["web"], &["a"], &["Job.batch/ops/upgrade"])]
fn nodes_and_the_namespace_of_their_job_are_allowed(
    #[case] namespaces: &[&str],
    #[case] nodes: &[&str],
    #[case] expected: &[&str],
) {
    let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
    let allow = Allow::new(&AllowList {
        namespaces: Some(texts(namespaces)),
        cluster_scoped: Some(vec![ClusterScoped::Named(NamedObjects {
            kind: "Node".to_owned(),
            group: Some(String::new()),
            names: texts(nodes),
        })]),
    });
    let mut plan = copying("a", "b");
    plan.steps[0].object = ObjectId::new("", "Node", None, "a");
    plan.steps[0].op = Op::UpgradeNode {
        content: Digest::of(b"x"),
        jobs: vec![ObjectId::new("batch", "Job", Some("ops"), "upgrade")],
        driver: None,
    };
    let refused = allow.check(&plan).into_iter();
    let refused: Vec<String> = refused
        .map(|finding| finding.object.unwrap().to_string())
        .collect();
    assert_eq!(refused, expected);
}

#[rstest]
#[case::both(&["web", "fleet"], &[])]
#[case::only_the_namespace_of_the_release(&["web"], &["Machine.example.org/fleet/*", "Secret/fleet/*"])]
fn hooks_of_a_driver_and_the_objects_of_its_nodes_are_allowed(
    #[case] namespaces: &[&str],
    #[case] expected: &[&str],
) {
    let namespaces = namespaces.iter().map(|&text| text.to_owned()).collect();
    let allow = Allow::new(&AllowList {
        namespaces: Some(namespaces),
        cluster_scoped: Some(vec![ClusterScoped::Kind("Node".to_owned())]),
    });
    let mut plan = copying("a", "b");
    plan.steps[0].object = ObjectId::new("", "Node", None, "a");
    plan.steps[0].op = Op::UpgradeNode {
        content: Digest::of(b"x"),
        jobs: Vec::new(),
        driver: Some(DriverObjects {
            hooks: ObjectId::new("", "Secret", Some("fleet"), "*"),
            nodes: ObjectId::new("example.org", "Machine", Some("fleet"), "*"),
        }),
    };
    let refused = allow.check(&plan).into_iter();
    let mut refused: Vec<String> = refused
        .map(|finding| finding.object.unwrap().to_string())
        .collect();
    refused.sort();
    assert_eq!(refused, expected);
}

#[test]
fn pods_that_preload_need_their_node_and_namespace() {
    let refused = |namespaces: &[&str], nodes: &[&str]| -> Vec<String> {
        let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        let allow = Allow::new(&AllowList {
            namespaces: Some(texts(namespaces)),
            cluster_scoped: Some(vec![ClusterScoped::Named(NamedObjects {
                kind: "Node".to_owned(),
                group: Some(String::new()),
                names: texts(nodes),
            })]),
        });
        let mut plan = copying("a", "b");
        plan.steps[0].object = ObjectId::new("", "Node", None, "a");
        plan.steps[0].op = Op::Preload {
            content: Digest::of(b"x"),
            namespace: Some("web".to_owned()),
            job: Some(ObjectId::new("batch", "Job", Some("ops"), "preload")),
        };
        let refused = allow.check(&plan).into_iter();
        refused
            .map(|finding| finding.object.unwrap().to_string())
            .collect()
    };
    assert!(refused(&["a", "b", "web", "ops"], &["a"]).is_empty());
    let mut all = refused(&["a", "b"], &["b"]);
    all.sort();
    assert_eq!(all, ["Job.batch/ops/preload", "Node/a", "Pod/web/preload"]);
}

#[test]
fn objects_without_a_namespace_are_allowed_by_kind_and_name() {
    let kind = |text: &str| ClusterScoped::Kind(text.to_owned());
    let named = |kind: &str, group: Option<&str>, names: &[&str]| {
        ClusterScoped::Named(NamedObjects {
            kind: kind.to_owned(),
            group: group.map(str::to_owned),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        })
    };
    let rbac = "rbac.authorization.k8s.io";
    for (declared, group, object, name, expected) in [
        (kind("ClusterRole"), rbac, "ClusterRole", "any", true),
        (
            kind("ClusterRole"),
            rbac,
            "ClusterRoleBinding",
            "any",
            false,
        ),
        (
            kind("Widget.example.org"),
            "example.org",
            "Widget",
            "x",
            true,
        ),
        (kind("Widget"), "example.org", "Widget", "x", false),
        (
            named("ClusterRole", None, &["a"]),
            rbac,
            "ClusterRole",
            "a",
            true,
        ),
        (
            named("ClusterRole", None, &["a"]),
            rbac,
            "ClusterRole",
            "ab",
            false,
        ),
        (
            named("ClusterRole", None, &["team-a-*"]),
            rbac,
            "ClusterRole",
            "team-a-x",
            true,
        ),
        (
            named("ClusterRole", None, &[]),
            rbac,
            "ClusterRole",
            "a",
            false,
        ),
        (
            named("Widget", Some("example.org"), &["x"]),
            "example.org",
            "Widget",
            "x",
            true,
        ),
        (
            named("Widget", Some("example.org"), &["x"]),
            "example.com",
            "Widget",
            "x",
            false,
        ),
        (
            named("Namespace", None, &["team-b"]),
            "",
            "Namespace",
            "team-b",
            false,
        ),
    ] {
        let allow = Allow::new(&AllowList {
            namespaces: Some(vec!["team-a".to_owned()]),
            cluster_scoped: Some(vec![declared.clone()]),
        });
        let id = ObjectId::new(group, object, None, name);
        assert_eq!(allow.permits(&id), expected, "{declared:?} {id}");
    }
}

#[test]
fn state_is_stored_only_in_a_permitted_namespace() {
    let allow = Allow::new(&AllowList {
        namespaces: Some(vec!["team-a-*".to_owned()]),
        cluster_scoped: None,
    });
    let refused = |namespace: &str| {
        let namespace = namespace.to_owned();
        let refused = allow.refuse_store(&Store::ConfigMap { namespace });
        refused.map(|finding| format!("{}{}", finding.message, hint(&finding)))
    };
    assert_eq!(refused("team-a-state"), None);
    assert_eq!(
        refused("team-b").as_deref(),
        Some(
            "state is kept in namespace team-b (`state` in the environment file), where the controller is not allowed to write for this environment (`allow` in the controller's configuration sets these limits; no branch can extend them)"
        )
    );
    // The controller stores its own state there, too.
    assert!(allow.refuse_store(&Store::Release).is_none());
}
