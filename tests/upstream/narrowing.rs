//! Roles that upstream narrowed: permissions of running pods are retained until the end. Offline:
//! the plan is compared with the rendered previous version.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use pleach_fields::ignore::Ignored;
use pleach_formats::{policy::PrunePolicy, sequence::Sequence, versions::VersionPolicy};
use pleach_model::kinds::KindTable;
use pleach_model::object::DigestKey;
use pleach_model::order::StageName;
use pleach_planner::observe::{Base, Observed};
use pleach_planner::plan::{Body, Desired, Digests, Op, Plan, Policy, Terms, plan_offline};
use pleach_render::render;
use semver::VersionReq;
use serde_json::Value;

use crate::{load, read, repository};

/// Removes CRDs. These versions use a removed API, which render refuses, and are not compared here.
fn without_definitions(text: &str) -> String {
    let documents = text.split("\n---\n");
    let kept = documents.filter(|text| !text.contains("kind: CustomResourceDefinition"));
    kept.collect::<Vec<_>>().join("\n---\n")
}

fn desired(version: &str) -> Desired {
    let text = without_definitions(&read(&format!("kubevirt/{version}/kubevirt.yaml")));
    let (tree, environment, kinds) = load(repository(&[("app.yaml", text)], "{}"));
    let rendered = render(&tree, &environment, &environment.releases[0], &kinds);
    assert!(!rendered.failed(), "{:#?}", rendered.findings);
    let mut desired = Desired {
        name: environment.releases[0].name.clone(),
        store: environment.releases[0].store.clone(),
        repository: "upstream".to_owned(),
        bundle: "kubevirt".to_owned(),
        version: version.to_owned(),
        revision: "none".to_owned(),
        namespace: Some("kubevirt".to_owned()),
        create_namespace: true,
        manifests: rendered.manifests,
        runtime_objects: Vec::new(),
        digests: Digests::default(),
        ignored: Ignored::default(),
        findings: Vec::new(),
        terms: Terms::default(),
        sequence: Sequence::default(),
        node_jobs: BTreeMap::new(),
    };
    desired.digest_with(Some(&DigestKey::new(b"of this run".to_vec())));
    desired
}

fn upgrade() -> (Desired, Plan) {
    let (before, after) = (desired("v0.17.0"), desired("v0.26.0"));
    let (kinds, _) = KindTable::nearest(None);
    let base = Base {
        release: Some(&before),
        others: &[],
        namespaces: &BTreeMap::new(),
        kinds: &kinds,
    };
    let policy = Policy {
        cluster: None,
        adopt: Vec::new(),
        prune: PrunePolicy::default(),
        protect: Vec::new(),
        consent: Vec::new(),
        timeout: SignedDuration::from_mins(10),
        wait: true,
        verify: false,
        nodes_behind: false,
        versions: VersionPolicy {
            upgrades_from: Some(VersionReq::STAR),
            ..VersionPolicy::default()
        },
        asks: BTreeSet::new(),
    };
    let plan = plan_offline(&after, &Observed::from_rendered(base, &after), &policy);
    (after, plan)
}

/// Returns whether a role has a rule with this group, resource and verb.
fn allows(role: &Value, (group, resource, verb): (&str, &str, &str)) -> bool {
    let has = |rule: &Value, field: &str, text: &str| {
        let items = rule[field].as_array().into_iter().flatten();
        items.into_iter().any(|item| item == text)
    };
    let mut rules = role["rules"].as_array().into_iter().flatten();
    rules.any(|rule| {
        has(rule, "apiGroups", group)
            && has(rule, "resources", resource)
            && has(rule, "verbs", verb)
    })
}

#[test]
fn what_running_pods_may_need_goes_last() {
    let (desired, plan) = upgrade();
    let errors: Vec<_> = plan.findings.iter().filter(|one| one.is_error()).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    for (role, lost) in [
        ("kubevirt-apiserver", ("", "pods/exec", "create")),
        ("kubevirt-handler", ("", "secrets", "get")),
    ] {
        let steps: Vec<_> = plan
            .steps
            .iter()
            .filter(|step| step.object.kind == "ClusterRole" && step.object.name == role)
            .collect();
        let stages: Vec<&StageName> = steps.iter().map(|step| &step.stage).collect();
        // Either the role also gains rules, or it only loses some.
        let (first, last) = match steps.as_slice() {
            [first, last] => (Some(first), last),
            [last] => (None, last),
            _ => panic!("{role}: {stages:?}"),
        };
        if let Some(first) = first {
            assert_eq!(first.stage, StageName::Access, "{role}");
            let Op::Apply {
                body: Body::Inline(body),
                ..
            } = &first.op
            else {
                panic!("{role}: {:?}", first.op);
            };
            assert!(allows(&body.0, lost), "{role}: {}", body.0);
        }
        assert_eq!(last.stage, StageName::Shrink, "{role}");
        let is_of_git = matches!(
            &last.op,
            Op::Apply {
                body: Body::Rendered(_),
                ..
            }
        );
        assert!(is_of_git, "{role}: {:?}", last.op);
        let mut manifests = desired.manifests.iter();
        let manifest = manifests.find(|one| one.id() == &last.object).unwrap();
        assert!(!allows(&manifest.value(), lost), "{role}");
    }
    // Workloads are applied in between.
    let position = |stage: &StageName| plan.steps.iter().position(|step| step.stage == *stage);
    assert!(position(&StageName::Workloads) < position(&StageName::Shrink));
    assert!(position(&StageName::Workloads).is_some());
}
