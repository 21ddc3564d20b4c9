//! Preconditions of all writes.

use rstest::rstest;
use semver::VersionReq;

use super::WIDGETS;
use super::removal::by_command;
use super::scene::Scene;
use crate::observe::{ClusterId, Escalation, MissingGrant, Observed};
use crate::plan::{Action, Consented, Plan, Removal};
use pleach_config::dependencies::{Hindrance, NOT_READY, STILL_NEEDED};
use pleach_formats::{file::Rollback, versions::KnownVersion};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{GroupKind, Origin, ReleaseName};
use pleach_model::order::Direction;
use pleach_state::inventory::{Installed, Store};

fn rollback(from: &str, to: &str) -> Rollback {
    Rollback {
        from: from.to_owned(),
        to: to.to_owned(),
    }
}

/// Builds a bundle with a CRD and without `upgradesFrom`.
fn by_default() -> Scene {
    Scene::new()
        .git(WIDGETS)
        .policy(|policy| policy.versions.upgrades_from = None)
}

fn range(text: &str) -> VersionReq {
    text.parse().unwrap()
}

#[rstest]
#[case::wrong_cluster(Scene::new().policy(|policy| policy.cluster = Some(ClusterId("other".to_owned()))), Kind::Policy, "wrong-cluster",
    "environment e is for the cluster with id other, but the server is cluster cluster")]
#[case::other_repository(Scene::new().version("v2.0.0").cluster(|observed| observed.installed.as_mut().unwrap().repository = "x".to_owned()),
    Kind::Policy, "other-repository", "release e.r in this cluster belongs to the repository `x`, not to `fleet`")]
#[case::tooling(Scene::new().version("v2.0.0").cluster(|observed| observed.installed.as_mut().unwrap().tooling = "kubectl/v1.36".to_owned()),
    Kind::Policy, "other-tooling", "the ApplySet of release e.r was handed over to kubectl/v1.36")]
#[case::permissions(Scene::new().cluster(|observed| observed.access.get_or_insert_default().missing.push(MissingGrant {
        verb: "patch".to_owned(), kind: GroupKind::new("", "ConfigMap"), resource: "configmaps".to_owned(), namespace: Some("web".to_owned()) })),
    Kind::Cluster, "missing-right", "pleach is not allowed to patch configmaps in namespace web")]
#[case::permissions_to_grant(Scene::new().cluster(|observed| observed.access.get_or_insert_default().escalations.push(Escalation {
        object: "Role.rbac.authorization.k8s.io/web/a".parse().unwrap(), rules: vec!["{verbs: [get]}".to_owned()] })),
    Kind::Cluster, "missing-right", "pleach is not allowed to write Role.rbac.authorization.k8s.io/web/a: it grants permissions that pleach does not have")]
#[case::kubernetes(Scene::new().policy(|policy| policy.versions.kubernetes = Some(range(">=1.37"))), Kind::Policy, "kubernetes-version",
    "web v2.0.0 supports Kubernetes >=1.37, but the server is 1.36.0")]
#[case::path(Scene::new().version("v0.9.0").policy(|policy| policy.versions.upgrades_from = Some(range(">=1.0, <2.0"))), Kind::Policy, "version-path",
    "an upgrade to v2.0.0 is only possible from >=1.0, <2.0, but v0.9.0 is installed")]
#[case::path_of_the_half_done(Scene::new().version("v1.0.0").unfinished("v0.9.0").policy(|policy| policy.versions.upgrades_from = Some(range(">=1.0, <2.0"))),
    Kind::Policy, "version-path", "an upgrade to v2.0.0 is only possible from >=1.0, <2.0, but v0.9.0 was started but not finished")]
#[case::path_from_a_name(Scene::new().version("spring").policy(|policy| { policy.versions.upgrades_from = Some(range(">=1.0")); policy.versions.direction = Some(Direction::Forward); }),
    Kind::Policy, "version-path", "an upgrade to v2.0.0 is only possible from >=1.0, but spring is installed")]
#[case::path_by_default(by_default().with_desired(|desired| desired.version = "v1.3.0".to_owned()).version("v1.0.0"),
    Kind::Policy, "version-path", "an upgrade to v1.3.0 is only possible from the minor versions 1.2 and 1.3, but v1.0.0 is installed")]
#[case::path_to_a_major(by_default().version("v1.9.0"),
    Kind::Policy, "version-path", "an upgrade to v2.0.0 is only possible from the minor version 2.0, but v1.9.0 is installed")]
#[case::path_of_what_failed(Scene::new().version("v1.9.0").failed("v1.1.0").policy(|policy| policy.versions.upgrades_from = Some(range(">=1.5"))),
    Kind::Policy, "version-path", "an upgrade to v2.0.0 is only possible from >=1.5, but v1.1.0 was started but not finished")]
#[case::older(Scene::new().version("v2.1.0"), Kind::Policy, "older-version", "v2.0.0 is older than v2.1.0, which is installed")]
#[case::older_than_the_half_done(Scene::new().version("v2.0.0").unfinished("v2.1.0"), Kind::Policy, "older-version",
    "v2.0.0 is older than v2.1.0, which was started but not finished")]
#[case::older_than_what_failed(Scene::new().version("v2.0.0").failed("v2.1.0"), Kind::Policy, "older-version",
    "v2.0.0 is older than v2.1.0, which was started but not finished")]
#[case::older_and_declared_for_another(Scene::new().version("v2.1.0").policy(|policy| policy.versions.rollback = Some(rollback("v2.2.0", "v2.0.0"))),
    Kind::Policy, "older-version", "v2.0.0 is older than v2.1.0, which is installed")]
#[case::older_by_name(Scene::new().version("spring").policy(|policy| policy.versions.direction = Some(Direction::Reverse)),
    Kind::Policy, "older-version", "v2.0.0 is older than spring, which is installed")]
#[case::direction(Scene::new().version("spring"), Kind::Policy, "direction-unknown", "the versions spring and v2.0.0 cannot be compared")]
fn is_refused(#[case] scene: Scene, #[case] kind: Kind, #[case] code: &str, #[case] message: &str) {
    let plan = scene.git("ConfigMap/web/c: {}").plan();
    let errors: Vec<_> = plan
        .findings
        .iter()
        .filter(|finding| finding.is_error())
        .collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(
        (
            errors[0].kind,
            errors[0].code.as_str(),
            errors[0].message.as_str()
        ),
        (kind, code, message)
    );
    // Stops the whole plan; a finding with an object would only block that
    // object.
    assert_eq!(errors[0].object, None);
}

#[rstest]
#[case::right_cluster(Scene::new().policy(|policy| policy.cluster = Some(ClusterId("cluster".to_owned()))))]
#[case::our_tooling(Scene::new().version("v2.0.0").cluster(|observed| observed.installed.as_mut().unwrap().tooling = "pleach/0.1.0".to_owned()))]
#[case::path(Scene::new().version("v1.5.0").policy(|policy| policy.versions.upgrades_from = Some(range(">=1.0, <2.0"))))]
#[case::no_upgrade(Scene::new().version("v2.0.0").policy(|policy| policy.versions.upgrades_from = Some(range(">=1.0, <2.0"))))]
#[case::distribution(Scene::new().cluster(|observed| observed.server_version = "v1.36.4-eks-1a2b3c".to_owned()).policy(|policy| policy.versions.kubernetes = Some(range(">=1.36.4"))))]
#[case::path_by_default(by_default().with_desired(|desired| desired.version = "v1.3.0".to_owned()).version("v1.2.7"))]
#[case::patch_by_default(by_default().version("v2.0.0-rc.1"))]
#[case::any_by_default(by_default().with_desired(|desired| desired.manifests.clear()).version("v0.3.0"))]
#[case::older_and_declared(Scene::new().version("v2.1.0").policy(|policy| policy.versions.rollback = Some(rollback("v2.1.0", "v2.0.0"))))]
#[case::older_half_done_and_declared(Scene::new().version("v1.0.0").unfinished("v2.1.0").policy(|policy| policy.versions.rollback = Some(rollback("v2.1.0", "v2.0.0"))))]
#[case::revisions(Scene::new().version("0123abc").with_desired(|desired| desired.version = "abc".to_owned()))]
fn is_allowed(#[case] scene: Scene) {
    let plan = scene.git("ConfigMap/web/c: {}").plan();
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);
}

#[test]
fn unknown_permissions_do_not_block() {
    let why = "failed calling webhook \"w.example.org\"";
    let scene = Scene::new()
        .cluster(|observed| observed.access.get_or_insert_default().unasked = Some(why.to_owned()));
    assert!(!scene.observed.access.as_ref().unwrap().is_enough());
    let plan = scene.git("ConfigMap/web/c: {}").plan();
    let finding = &plan.findings[0];
    assert_eq!(finding.code, "permissions-unknown");
    assert!(finding.message.ends_with(why), "{finding}");
    assert!(!finding.is_error());
    assert!(plan.has_steps());
}

#[rstest]
#[case::first_use(Scene::new(), None, Direction::Forward)]
#[case::upgrade(Scene::new().version("v1.9.0"), Some("v1.9.0"), Direction::Forward)]
#[case::numbers_not_letters(Scene::new().version("v10.0.0"), Some("v10.0.0"), Direction::Reverse)]
#[case::back_from_half_done(Scene::new().version("v1.0.0").unfinished("v3.0.0"), Some("v1.0.0"), Direction::Reverse)]
#[case::declared(Scene::new().version("spring").policy(|policy| policy.versions.direction = Some(Direction::Reverse)), Some("spring"), Direction::Reverse)]
fn the_direction_follows_from_the_versions(
    #[case] scene: Scene,
    #[case] from: Option<&str>,
    #[case] direction: Direction,
) {
    let plan = scene.plan();
    assert_eq!(
        (plan.from.as_deref(), plan.to.as_str(), plan.direction),
        (from, "v2.0.0", direction)
    );
}

/// An upgrade that is not supported in one step is suggested in several.
#[test]
fn intermediate_versions_are_named() {
    let known = |name: &str| KnownVersion {
        name: name.to_owned(),
        upgrades_from: None,
    };
    let scene = by_default()
        .version("v1.0.0")
        .with_desired(|desired| desired.version = "v1.3.0".to_owned());
    let hint = |versions: &[&str]| {
        let scene = scene.clone().policy(|policy| {
            policy.versions.known = versions.iter().map(|name| known(name)).collect();
        });
        scene.plan().findings[0].hint.clone().unwrap()
    };
    let through = hint(&["v1.1.0", "v1.2.0", "v1.2.1", "v1.3.0"]);
    assert!(
        through.starts_with(
            "go through v1.1.0, then v1.2.1 first; this is the default for a bundle with CRDs"
        ),
        "{through}"
    );
    let line = "add the line `upgradesFrom: \">=1.0\"` to manifests/web/bundle.yaml";
    assert!(through.ends_with(line), "{through}");
    let nowhere = hint(&["v1.2.0", "v1.3.0"]);
    assert!(nowhere.ends_with(line), "{nowhere}");
    assert!(
        nowhere.starts_with(
            "there is no upgrade path from v1.0.0 through the versions of manifests/web: v1.2.0, v1.3.0;"
        ),
        "{nowhere}"
    );
}

#[test]
fn the_suggested_rollback_entry_is_valid() {
    let plan = Scene::new().version("v2.1.0").plan();
    assert_eq!(
        plan.findings[0].hint.as_deref(),
        Some(
            "if the rollback is intended, add to release r in environments/e.yaml: `rollback: {from: v2.1.0, to: v2.0.0}`"
        )
    );
}

/// The installed version already runs on this Kubernetes version.
#[test]
fn a_version_that_is_installed_is_not_refused_for_its_kubernetes() {
    let scene = Scene::new()
        .version("v2.0.0")
        .policy(|policy| policy.versions.kubernetes = Some(range(">=1.37")));
    let plan = scene.plan();
    assert_eq!(plan.findings[0].code, "kubernetes-version");
    assert!(!plan.findings[0].is_error());
}

#[test]
fn a_completed_entry_is_reported() {
    let plan = Scene::new()
        .version("v2.0.0")
        .policy(|policy| policy.versions.rollback = Some(rollback("v2.1.0", "v2.0.0")))
        .plan();
    assert_eq!(plan.findings[0].code, "rollback-used");
    assert!(!plan.findings[0].is_error());
}

#[test]
fn all_errors_are_reported_at_once() {
    let plan = Scene::new()
        .version("spring")
        .policy(|policy| {
            policy.cluster = Some(ClusterId("other".to_owned()));
            policy.versions.kubernetes = Some(range(">=1.37"));
        })
        .plan();
    let codes: Vec<&str> = plan
        .findings
        .iter()
        .map(|finding| finding.code.as_str())
        .collect();
    assert_eq!(
        codes,
        ["direction-unknown", "kubernetes-version", "wrong-cluster"]
    );
}

fn hindrance(comes_first: bool) -> Hindrance {
    Hindrance {
        message: "it depends on release base, which is not ready".to_owned(),
        place: Some(Origin::new("environments/e.yaml", 5)),
        index: Some(0),
        comes_first,
    }
}

#[test]
fn dependencies_must_be_ready() {
    let hindered = |comes_first| {
        let scene = Scene::new().git("ConfigMap/web/c: {}");
        scene.cluster(|observed| observed.dependencies = [(0, Some(hindrance(comes_first)))].into())
    };
    let plan = hindered(false).plan();
    let refusals: Vec<String> = plan.refusals().map(ToString::to_string).collect();
    assert_eq!(
        refusals,
        ["environments/e.yaml:5: it depends on release base, which is not ready"]
    );
    assert!(plan.refusals().all(|finding| finding.code == NOT_READY));
    // Releases that the same command applies first only cause a note.
    let plan = hindered(true).plan();
    assert_eq!(plan.refusals().count(), 0);
    assert!(
        plan.findings
            .iter()
            .any(|finding| finding.code == NOT_READY)
    );
    // A release that others still need is not removed.
    let plan = hindered(false).end(&Removal {
        consented: Some(Consented::by_command()),
        ..Removal::default()
    });
    assert!(plan.refusals().any(|finding| finding.code == STILL_NEEDED));
}

#[test]
fn a_release_without_its_record_is_not_a_new_one() {
    let scene = |entries: fn(&mut Observed)| {
        Scene::new()
            .installed("ConfigMap/web/c: {}")
            .git("ConfigMap/web/c: {}")
            .cluster(entries)
    };
    let codes = |plan: &Plan| {
        let errors = plan.findings.iter().filter(|finding| finding.is_error());
        errors
            .map(|finding| finding.code.clone())
            .collect::<Vec<String>>()
    };
    let forgotten = scene(|observed| {
        observed.inventory.entries.clear();
        observed.installed = None;
    })
    .plan();
    assert_eq!(codes(&forgotten), ["record-lost"]);
    assert!(forgotten.findings.iter().any(crate::plan::is_refusal));
    assert_eq!(codes(&scene(|_| {}).plan()), [""; 0]);
}

/// Empties the record, and keeps its object.
fn emptied(observed: &mut Observed) {
    observed.inventory.entries.clear();
    observed.installed = Some(Installed {
        uid: "u".to_owned(),
        tooling: "pleach/0.1.0".to_owned(),
        ..Installed::default()
    });
}

#[rstest]
#[case::git_still_has_it("ConfigMap/web/c: {}")]
#[case::git_has_something_else("ConfigMap/web/other: {}")]
fn a_release_with_an_empty_record_is_not_new(#[case] git: &str) {
    let scene = Scene::new()
        .installed("ConfigMap/web/c: {}")
        .git(git)
        .cluster(emptied);
    for plan in [scene.plan(), scene.end(&by_command())] {
        let refusals: Vec<&Finding> = plan.refusals().collect();
        assert_eq!(refusals.len(), 1, "{refusals:?}");
        assert_eq!(refusals[0].code, "record-lost");
        assert_eq!(
            refusals[0].message,
            "the record of release e.r is empty, but one of its objects exists"
        );
        let hint = refusals[0].hint.as_deref().unwrap();
        assert!(hint.starts_with("`pleach recover e/r`"), "{hint}");
    }
}

/// The run was killed between the two writes that create a record, so nothing
/// was applied.
#[test]
fn a_first_run_killed_before_its_record_resumes() {
    let name = ReleaseName {
        environment: "e".to_owned(),
        release: "r".to_owned(),
    };
    // Controllers copy labels; the release did not apply the copies.
    let copied = format!(
        "ConfigMap/web/copied: {{metadata: {{labels: {{applyset.kubernetes.io/part-of: {}}}}}}}",
        Store::Release.apply_set(&name)
    );
    let plan = Scene::new()
        .git("ConfigMap/web/c: {}")
        .live(&copied)
        .cluster(emptied)
        .plan();
    assert_eq!(plan.refusals().count(), 0, "{:?}", plan.findings);
    assert_eq!(plan.count(Action::Create), 1);
}
