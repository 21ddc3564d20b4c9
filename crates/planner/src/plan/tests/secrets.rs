//! Secret values of a base or a cluster, which the author of a change must not
//! learn from a preview.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rstest::rstest;

use super::scene::Scene;
use crate::observe::{Base, Observed};
use crate::plan::{BaseSecrets, Desired, Plan, Policy, plan_offline};
use crate::text_diff::View;
use crate::view::{Drawing, ReleaseDiff};
use pleach_fields::diff::{fields::Scope, masking::Masker};
use pleach_model::kinds::{Catalog, Crds, KindTable};
use pleach_model::object::DigestKey;

const PLANTED: &str = "planted-value";

/// Builds a release at a revision of git. Its objects declare these fields.
fn revision(text: &str, secret_fields: &[&str]) -> Desired {
    release("r", text, secret_fields)
}

fn release(name: &str, text: &str, secret_fields: &[&str]) -> Desired {
    let mut scene = Scene::new();
    name.clone_into(&mut scene.desired.name.release);
    let mut desired = scene.git(text).desired;
    let fields = secret_fields.iter().map(|field| field.parse().unwrap());
    let fields: Vec<_> = fields.collect();
    for manifest in &mut desired.manifests {
        *manifest = manifest.clone().with_secret_fields(fields.clone());
    }
    desired.digest_with(Some(&key()));
    desired
}

fn key() -> DigestKey {
    DigestKey::new(b"of this run".to_vec())
}

/// Draws a change of git. The base is a release of the same name, or another
/// one.
fn drawn(base: &Desired, head: &Desired) -> ReleaseDiff {
    let (table, _) = KindTable::nearest(None);
    let is_same = base.name == head.name;
    let others = [base];
    let observed = Observed::from_rendered(
        Base {
            release: is_same.then_some(base),
            others: if is_same { &[] } else { &others },
            namespaces: &BTreeMap::new(),
            kinds: &table,
        },
        head,
    );
    let mut policy = Scene::new().policy;
    policy.adopt.push(base.name.field_manager());
    let plan = plan_offline(head, &observed, &policy);
    draw(&plan, head, &observed, &policy)
}

fn draw(plan: &Plan, desired: &Desired, observed: &Observed, policy: &Policy) -> ReleaseDiff {
    let (table, _) = KindTable::nearest(None);
    let drawing = Drawing {
        desired,
        observed,
        policy,
        kinds: Catalog {
            table: &table,
            crds: &Crds::default(),
        },
        view: View {
            scope: Scope::Owned,
            status: false,
            full_deletes: true,
        },
    };
    drawing.release(plan, &mut Masker::new(key()))
}

fn json(diff: &ReleaseDiff) -> String {
    serde_json::to_string(diff).unwrap()
}

/// The head declares nothing.
#[rstest]
#[case::dropped("ConfigMap/web/a-1a2b3: {data: {password: new, level: info}}")]
#[case::another_field("ConfigMap/web/a-1a2b3: {data: {open: new, level: info}}")]
#[case::another_name("ConfigMap/web/a-4c5d6: {data: {password: new, level: info}}")]
#[case::another_namespace("ConfigMap/other/a-1a2b3: {data: {password: new, level: info}}")]
#[case::another_kind("Secret/web/a-1a2b3: {data: {password: bmV3}}")]
#[case::removed("ConfigMap/web/z: {data: {k: v}}")]
fn a_declaration_that_only_the_base_has_counts(#[case] head: &str) {
    const BASE: &str = "ConfigMap/web/a-1a2b3: {data: {password: planted-value, level: info}}";
    let head = revision(head, &[]);
    let shown = json(&drawn(&revision(BASE, &["data.password"]), &head));
    assert!(!shown.contains(PLANTED), "{shown}");
    assert!(shown.contains("<secret"), "{shown}");
    let open = json(&drawn(&revision(BASE, &[]), &head));
    assert!(open.contains(PLANTED), "{open}");
}

#[test]
fn a_declaration_of_the_release_that_is_moved_from_counts() {
    let base = release(
        "old",
        "ConfigMap/web/a: {data: {password: planted-value}}",
        &["data.password"],
    );
    let mut head = revision("ConfigMap/web/a: {data: {password: new}}", &[]);
    head.terms.moved_from = Some(base.name.clone());
    head.terms.previous_set = Some(base.apply_set());
    let shown = json(&drawn(&base, &head));
    assert!(!shown.contains(PLANTED), "{shown}");
}

/// A live object that pleach manages, of which git changes a value. The head
/// declares nothing.
#[rstest]
#[case::declared(Some(("ConfigMap/web/a: {}", &["data.password"][..])), false)]
#[case::declared_as_a_whole(Some(("ConfigMap/web/a: {}", &["data"][..])), false)]
#[case::only_elsewhere(Some(("ConfigMap/web/a: {}", &["data.other"][..])), true)]
#[case::nothing_declared(Some(("ConfigMap/web/a: {}", &[][..])), true)]
#[case::the_base_lacks_the_object(Some(("ConfigMap/web/b: {}", &[][..])), false)]
#[case::the_base_lacks_the_environment(Some(("{}", &[][..])), false)]
#[case::no_preview(None, true)]
fn a_live_value_is_masked_as_the_base_declares(
    #[case] base: Option<(&str, &[&str])>,
    #[case] is_visible: bool,
) {
    let scene = Scene::new()
        .installed("ConfigMap/web/a: {data: {password: planted-value, level: info}}")
        .git("ConfigMap/web/a: {data: {password: new, level: info}}");
    let mut secrets = base.map_or_else(BaseSecrets::default, |(text, fields)| {
        BaseSecrets::of(&revision(text, fields).manifests, [])
    });
    let mut observed = scene.observed();
    secrets.learn(&observed);
    observed.hide(&secrets);
    let shown = json(&draw(
        &scene.plan(),
        &scene.desired,
        &observed,
        &scene.policy,
    ));
    assert_eq!(shown.contains(PLANTED), is_visible, "{shown}");
    assert_eq!(shown.contains("<secret"), !is_visible, "{shown}");
}

/// Returns the pairs of previous and new names. Both revisions have two objects
/// with one value each.
fn pairs(kind: &str, names: [&str; 4], values: &[String; 4], declares: [bool; 2]) -> Vec<String> {
    let objects: Vec<String> = names
        .iter()
        .zip(values)
        .map(|(name, value)| {
            format!("{kind}/web/{name}: {{data: {{password: '{value}', level: info, more: x}}}}\n")
        })
        .collect();
    let (base, head) = (objects[..2].concat(), objects[2..].concat());
    let fields = |declares: bool| {
        if declares {
            &["data.password"][..]
        } else {
            &[]
        }
    };
    let [at_base, at_head] = declares.map(fields);
    let diff = drawn(&revision(&base, at_base), &revision(&head, at_head));
    let objects = diff.objects.into_iter();
    objects
        .filter_map(|object| Some(format!("{} -> {}", object.previous?.object, object.object)))
        .collect()
}

#[test]
fn the_closest_guess_is_not_the_one_that_is_paired() {
    let names = ["a-11111", "a-22222", "a-33333", "a-44444"];
    let expected = [
        "ConfigMap/web/a-11111 -> ConfigMap/web/a-33333",
        "ConfigMap/web/a-22222 -> ConfigMap/web/a-44444",
    ];
    for guesses in [["one", "two"], ["two", "one"], ["no", "no"]] {
        let values = ["one", "two", guesses[0], guesses[1]].map(str::to_owned);
        let pairs = pairs("ConfigMap", names, &values, [true, false]);
        assert_eq!(pairs, expected, "{guesses:?}");
    }
}

proptest! {
    #[test]
    fn no_secret_value_affects_which_objects_are_paired(
        values in proptest::array::uniform4("[ab]{0,3}"),
        others in proptest::array::uniform4("[ab]{0,3}"),
        have_stem in any::<bool>(),
        declaration in 0..3_usize,
    ) {
        let names = if have_stem {
            ["a-11111", "a-22222", "a-33333", "a-44444"]
        } else {
            ["a", "b", "c", "d"]
        };
        let (kind, declares) = [
            ("Secret", [false, false]),
            ("ConfigMap", [true, false]),
            ("ConfigMap", [false, true]),
        ][declaration];
        prop_assert_eq!(
            pairs(kind, names, &values, declares),
            pairs(kind, names, &others, declares)
        );
    }
}
