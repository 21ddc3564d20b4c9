//! User objects that are copied from the previous namespace.

use super::{NEW, OLD, Scene, comes_before, find, step_of};
use crate::plan::{Desired, Op, is_copied};
use pleach_model::object::{labels, managers};
use pleach_state::{inventory::Store, live::LiveMeta};

#[test]
fn user_objects_are_copied_once_before_the_workloads() {
    let scene = || {
        Scene::new()
            .installed(OLD)
            .version("v1.0.0")
            .git(&NEW.replace("/web/", "/next/"))
            .git("Namespace/next: {}")
            .moves("old", "next", &["settings"])
    };
    let plan = scene().plan();
    let copy = find(&plan, "copy", |step| matches!(step.op, Op::Copy { .. }));
    assert_eq!(copy.object.to_string(), "ConfigMap/next/settings");
    assert!(comes_before(
        &plan,
        copy,
        step_of(&plan, "Deployment.apps/next/api")
    ));
    assert!(comes_before(&plan, step_of(&plan, "Namespace/next"), copy));
    // The copy also waits for a namespace that no manifest contains.
    let plan = Scene::new()
        .installed(OLD)
        .version("v1.0.0")
        .git(&NEW.replace("/web/", "/next/"))
        .moves("old", "next", &["settings"])
        .with_desired(|desired| desired.namespace = Some("next".to_owned()))
        .plan();
    let copy = find(&plan, "copy", |step| matches!(step.op, Op::Copy { .. }));
    assert!(comes_before(&plan, step_of(&plan, "Namespace/next"), copy));
    // No object is copied twice, over an object of the release, or without a
    // move.
    let copied = scene().installed("ConfigMap/next/settings: {}").entry(
        "ConfigMap/next/settings",
        |entry| {
            entry.state = pleach_state::inventory::EntryState::Kept;
        },
    );
    let own = scene().git("ConfigMap/next/settings: {}");
    let still = Scene::new().git(NEW).moves("old", "web", &["settings"]);
    for (scene, code) in [(copied, None), (own, Some("copy-of-own")), (still, None)] {
        let plan = scene.plan();
        assert!(
            !plan
                .steps
                .iter()
                .any(|step| matches!(step.op, Op::Copy { .. }))
        );
        let error = plan.findings.iter().find(|one| one.is_error());
        assert_eq!(error.map(|one| one.code.as_str()), code);
    }
}

#[test]
fn by_a_pattern_everything_of_users_is_copied() {
    let scene = |pattern: &str| {
        Scene::new()
            .installed(OLD)
            .version("v1.0.0")
            .git(&NEW.replace("/web/", "/next/"))
            .git("Namespace/next: {}\nConfigMap/next/user-own: {}")
            .moves("old", "next", &[pattern])
            .live(
                "ConfigMap/old/user-a: {}\nConfigMap/old/user-b: {metadata: {labels: {tier: gold}}}\n\
                 ConfigMap/old/user-own: {}\nConfigMap/old/other: {}\nConfigMap/old/kube-root-ca.crt: {}\n\
                 ConfigMap/old/user-made: {metadata: {ownerReferences: [{uid: u}]}}\n\
                 ConfigMap/old/user-applied: {metadata: {labels: {applyset.kubernetes.io/part-of: applyset-x}}}\n\
                 ConfigMap/elsewhere/user-c: {}\nSecret/old/user-d: {}",
            )
    };
    let copied = |scene: Scene| -> Vec<String> {
        let plan = scene.plan();
        assert!(
            plan.findings.iter().all(|one| !one.is_error()),
            "{:?}",
            plan.findings
        );
        let copies = plan.steps.iter().filter_map(|step| match &step.op {
            Op::Copy { from, to } => Some(format!("{from} {to}")),
            _ => None,
        });
        copies.collect()
    };
    let a = "ConfigMap/old/user-a ConfigMap/next/user-a";
    let b = "ConfigMap/old/user-b ConfigMap/next/user-b";
    let other = "ConfigMap/old/other ConfigMap/next/other";
    assert_eq!(copied(scene("user-*")), [a, b]);
    assert_eq!(copied(scene("user-?")), [a, b]);
    assert_eq!(copied(scene("*")), [other, a, b]);
    let labelled = scene("*").with_desired(|desired| {
        let labels = &mut desired.sequence.moves[0].copy[0].labels;
        labels.insert("tier".to_owned(), "gold".to_owned());
    });
    assert_eq!(copied(labelled), [b]);
    // A copied object is retained although git does not contain it.
    let retained = scene("user-*")
        .installed("ConfigMap/next/user-a: {}")
        .entry("ConfigMap/next/user-a", |entry| {
            entry.state = pleach_state::inventory::EntryState::Kept;
        });
    assert_eq!(copied(retained), [b]);
}

/// A copy of state would be a forged record, or disclose a key.
#[test]
fn state_is_not_copied() {
    let scene = |pattern: &str| {
        Scene::new()
            .installed(OLD)
            .version("v1.0.0")
            .git(&NEW.replace("/web/", "/next/"))
            .git("Namespace/next: {}")
            .moves("old", "next", &[pattern])
    };
    let store = |namespace: &'static str| {
        move |desired: &mut Desired| {
            desired.store = Store::ConfigMap {
                namespace: namespace.to_owned(),
            };
        }
    };
    // The name of the source or of the target is one of state.
    let named = scene("e.r").with_desired(store("next"));
    let from = scene("e.r").with_desired(store("old"));
    let elsewhere = scene("e.r").with_desired(store("elsewhere"));
    for (case, scene, code) in [
        ("target", named, Some("state-object")),
        ("source", from, Some("state-object")),
        ("neither", elsewhere, None),
    ] {
        let plan = scene.plan();
        let copies = plan.steps.iter();
        let copies = copies.filter(|step| matches!(step.op, Op::Copy { .. }));
        assert_eq!(copies.count(), usize::from(code.is_none()), "{case}");
        let error = plan.findings.iter().find(|one| one.is_error());
        assert_eq!(error.map(|one| one.code.as_str()), code, "{case}");
    }
    // A listed object holds state by its labels or its manager.
    let live = |label: Option<&str>, manager: &str| LiveMeta {
        labels: label
            .into_iter()
            .map(|label| (label.to_owned(), "x".to_owned()))
            .collect(),
        managers: vec![manager.to_owned()],
        ..LiveMeta::default()
    };
    let rules = scene("*").desired.sequence.moves;
    let rule = &rules[0].copy[0];
    let id = "ConfigMap/old/settings".parse().unwrap();
    for (live, expected) in [
        (live(None, "kubectl"), true),
        (live(Some(labels::RELEASE), "kubectl"), false),
        (live(Some(labels::JOURNAL), "kubectl"), false),
        (live(Some(labels::PLAN), "kubectl"), false),
        (live(None, managers::STATE), false),
    ] {
        assert_eq!(is_copied(rule, &id, &live), expected, "{live:?}");
    }
}
