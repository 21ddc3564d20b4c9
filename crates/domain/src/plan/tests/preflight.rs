//! May anything be written at all?

use rstest::rstest;
use semver::VersionReq;

use super::scene::Scene;
use crate::finding::Kind;
use crate::object::GroupKind;
use crate::observe::{ClusterId, MissingGrant};
use crate::plan::Direction;

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
#[case::rights(Scene::new().cluster(|observed| observed.access.missing.push(MissingGrant {
        verb: "patch".to_owned(), kind: GroupKind::new("", "ConfigMap"), resource: "configmaps".to_owned(), namespace: Some("web".to_owned()) })),
    Kind::Cluster, "missing-right", "may not patch configmaps in namespace web")]
#[case::kubernetes(Scene::new().policy(|policy| policy.kubernetes = Some(range(">=1.37"))), Kind::Policy, "kubernetes-version",
    "web v2.0.0 is for Kubernetes >=1.37, and the server is 1.36.0")]
#[case::path(Scene::new().version("v0.9.0").policy(|policy| policy.upgrades_from = Some(range(">=1.0, <2.0"))), Kind::Policy, "version-path",
    "v2.0.0 can be gone to from >=1.0, <2.0 only, and v0.9.0 is installed")]
#[case::path_of_the_half_done(Scene::new().version("v1.0.0").unfinished("v0.9.0").policy(|policy| policy.upgrades_from = Some(range(">=1.0, <2.0"))),
    Kind::Policy, "version-path", "v2.0.0 can be gone to from >=1.0, <2.0 only, and v0.9.0 was begun and not finished")]
#[case::path_from_a_name(Scene::new().version("spring").policy(|policy| { policy.upgrades_from = Some(range(">=1.0")); policy.direction = Some(Direction::Forward); }),
    Kind::Policy, "version-path", "v2.0.0 can be gone to from >=1.0 only, and spring is installed")]
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
    // It stops everything: findings about one object only stop that object.
    assert_eq!(errors[0].object, None);
}

#[rstest]
#[case::right_cluster(Scene::new().policy(|policy| policy.cluster = Some(ClusterId("cluster".to_owned()))))]
#[case::our_tooling(Scene::new().version("v2.0.0").cluster(|observed| observed.installed.as_mut().unwrap().tooling = "pleach/0.1.0".to_owned()))]
#[case::path(Scene::new().version("v1.5.0").policy(|policy| policy.upgrades_from = Some(range(">=1.0, <2.0"))))]
#[case::no_upgrade(Scene::new().version("v2.0.0").policy(|policy| policy.upgrades_from = Some(range(">=1.0, <2.0"))))]
#[case::distribution(Scene::new().cluster(|observed| observed.server_version = "v1.36.4-eks-1a2b3c".to_owned()).policy(|policy| policy.kubernetes = Some(range(">=1.36.4"))))]
#[case::revisions(Scene::new().version("0123abc").wants(|desired| desired.version = "abc".to_owned()))]
fn is_allowed(#[case] scene: Scene) {
    let plan = scene.git("ConfigMap/web/c: {}").plan();
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);
}

#[rstest]
#[case::first_use(Scene::new(), None, Direction::Forward)]
#[case::upgrade(Scene::new().version("v1.9.0"), Some("v1.9.0"), Direction::Forward)]
#[case::numbers_not_letters(Scene::new().version("v10.0.0"), Some("v10.0.0"), Direction::Reverse)]
#[case::back_from_half_done(Scene::new().version("v1.0.0").unfinished("v3.0.0"), Some("v1.0.0"), Direction::Reverse)]
#[case::said(Scene::new().version("spring").policy(|policy| policy.direction = Some(Direction::Reverse)), Some("spring"), Direction::Reverse)]
fn which_way_it_goes(
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

#[test]
fn everything_that_is_wrong_is_said_at_once() {
    let plan = Scene::new()
        .version("spring")
        .policy(|policy| {
            policy.cluster = Some(ClusterId("other".to_owned()));
            policy.kubernetes = Some(range(">=1.37"));
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
