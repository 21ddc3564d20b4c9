//! Manual changes: `diff` shows exactly the drift and its author, `apply` repairs it, and
//! afterwards every field has one owner.
//!
//! Each case has its own object. All cases are changed, compared and repaired together.

mod cases;
mod hand;
mod objects;

use std::collections::BTreeMap;

use pleach_fields::diff::{
    normalize::normalized,
    ownership::{FieldSet, entries, fingerprint},
};
use pleach_testkit::audit::Events;
use serde_json::Value;

use crate::fleet::{Fleet, object_writes};
use cases::{CASES, Case, Expected};
use hand::Hand;

const NAMESPACE: &str = "byhand";
const MANAGER: &str = "pleach/byhand.all";

/// Returns one release with an object for each case.
fn fleet() -> Fleet {
    let release = format!("  - {{name: all, bundle: all, namespace: {NAMESPACE}}}\n");
    let mut files = vec![(
        "manifests/all/bundle.yaml".to_owned(),
        crate::samples::BUNDLE.to_owned(),
    )];
    files.push((
        "manifests/all/definition.yaml".to_owned(),
        objects::GEARS.to_owned(),
    ));
    for case in CASES {
        let path = format!("manifests/all/{}.yaml", case.name);
        files.push((path, case.object.manifest(case.name)));
    }
    let files: Vec<(&str, &str)> = files
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_str()))
        .collect();
    Fleet::new(NAMESPACE, &release, &files)
}

/// Returns the live object of a case with its managedFields.
fn live(fleet: &Fleet, case: &Case) -> Option<Value> {
    fleet.get(&["-n", NAMESPACE, case.object.resource(), case.name])
}

fn all_live(fleet: &Fleet) -> BTreeMap<&'static str, Value> {
    CASES
        .iter()
        .map(|case| (case.name, live(fleet, case).unwrap()))
        .collect()
}

/// Returns the diff of an object: action, author and fields. Objects in sync are not listed.
fn told(diff: &Value, case: &Case) -> String {
    let id = case.object.id(NAMESPACE, case.name);
    let all = diff["releases"][0]["objects"].as_array().unwrap();
    let mut found = all.iter().filter(|one| one["object"] == id.as_str());
    let Some(object) = found.next() else {
        return Expected::Nothing.to_string();
    };
    assert_eq!(found.next(), None, "{id}");
    let texts = |list: &Value, key: Option<&str>| -> Vec<String> {
        let all = list.as_array().into_iter().flatten();
        all.map(|one| key.map_or(one, |key| &one[key]))
            .map(|text| text.as_str().unwrap().to_owned())
            .collect()
    };
    let fields = texts(&object["fields"], Some("path"));
    let whose = &object["cause"];
    match (
        object["action"].as_str().unwrap(),
        whose["kind"].as_str().unwrap_or_default(),
    ) {
        ("create", _) => Expected::Gone.to_string(),
        ("update", "ownership") if fields.is_empty() => Expected::Ownership.to_string(),
        ("update", "drift") => {
            format!(
                "drift of {fields:?} by {:?}",
                texts(&whose["managers"], None)
            )
        }
        _ => object.to_string(),
    }
}

/// Returns the leaf fields that more than one managedFields entry contains.
fn shared_fields(object: &Value) -> Vec<String> {
    let sets: Vec<FieldSet> = entries(&object["metadata"])
        .iter()
        .filter(|entry| entry["subresource"] != "status")
        .map(|entry| FieldSet::parse(&entry["fieldsV1"]))
        .collect();
    let mut shared = Vec::new();
    for (position, set) in sets.iter().enumerate() {
        for other in &sets[position + 1..] {
            let both = set.intersection(other).leaves();
            shared.extend(both.iter().map(ToString::to_string));
        }
    }
    shared
}

/// Returns the managers of all entries except those of the status.
fn managers(object: &Value) -> Vec<String> {
    let mut managers: Vec<String> = entries(&object["metadata"])
        .iter()
        .filter(|entry| entry["subresource"] != "status")
        .map(|entry| entry["manager"].as_str().unwrap().to_owned())
        .filter(|manager| manager != "kube-controller-manager")
        .collect();
    managers.sort();
    managers
}

/// Returns the content that must be restored: all except additions of other clients and of
/// controllers.
fn content(object: &Value, kept: &[&str]) -> Value {
    let mut value = normalized(object, false);
    let revision = "/metadata/annotations/deployment.kubernetes.io~1revision";
    for pointer in kept.iter().chain(&[revision]) {
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        match value.pointer_mut(parent) {
            Some(Value::Array(items)) => drop(items.remove(name.parse().unwrap())),
            Some(Value::Object(map)) => {
                map.shift_remove(&name.replace("~1", "/"));
                if map.is_empty() {
                    let (above, name) = parent.rsplit_once('/').unwrap();
                    let above = value.pointer_mut(above).unwrap().as_object_mut();
                    above.unwrap().shift_remove(name);
                }
            }
            _ => {}
        }
    }
    value
}

/// Returns the names of the objects that a run wrote.
fn written(events: &Events) -> Vec<String> {
    let mut names: Vec<String> = object_writes(events)
        .iter()
        .filter_map(|line| line.split_whitespace().find(|word| word.contains('/')))
        .map(|word| word.rsplit('/').next().unwrap().to_owned())
        .collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn drift_of_another_field_does_not_block_a_change() {
    let web = crate::samples::deployment("web");
    let fleet = Fleet::web("drifted-aside", &web);
    fleet.create_namespace("drifted-aside");
    fleet.applied();
    let scale = |replicas: &str| {
        let replicas = format!("--replicas={replicas}");
        fleet.kubectl(&["-n", "drifted-aside", "scale", "deployment/web", &replicas]);
    };
    scale("1");
    fleet.edit("manifests/web/web.yaml", "web:1", "web:2");
    fleet.commit();
    fleet
        .diff()
        .ended_with(10)
        .says("git changed and the cluster drifted: kubectl wrote to fields of the release");
    fleet.applied();
    let fields = "{.spec.replicas} {.spec.template.spec.containers[0].image}";
    let live = || fleet.field(&["-n", "drifted-aside", "deployment/web"], fields);
    assert_eq!(live(), "0 web:2");
    fleet.writes_nothing(Fleet::applied);

    // A conflict remains if git changed that field too.
    scale("1");
    fleet.edit("manifests/web/web.yaml", "replicas: 0", "replicas: 2");
    fleet.commit();
    fleet
        .writes_nothing(|fleet| fleet.apply().ended_with(5))
        .says("kubectl owns .spec.replicas");
    assert_eq!(live(), "1 web:2");
}

#[test]
fn what_people_do_by_hand_is_named_and_repaired() {
    let fleet = fleet();
    let hand = Hand::new(&fleet, NAMESPACE);
    hand.prepare();
    fleet.applied();
    let before = all_live(&fleet);
    for (name, object) in &before {
        assert_eq!(shared_fields(object), [""; 0], "{name}");
    }
    for case in CASES {
        (case.act)(&hand, case.name);
    }

    // `diff` shows only the drift and its authors.
    let run = fleet.writes_nothing(|fleet| {
        fleet.run(&["diff", fleet.environment, "-o", "json", "--exit-code"])
    });
    let diff = run.ended_with(10).json();
    let mut wrong = Vec::new();
    for case in CASES {
        let (told, expected) = (told(&diff, case), case.expected.to_string());
        if told != expected {
            wrong.push(format!("{}: {told}, not {expected}", case.name));
        }
    }

    // `apply` writes only the drifted objects.
    let (_, events) = fleet.watched(Fleet::applied);
    let mut drifted: Vec<&str> = CASES
        .iter()
        .filter(|case| case.expected != Expected::Nothing)
        .map(|case| case.name)
        .collect();
    drifted.sort_unstable();
    if written(&events) != drifted {
        wrong.push(format!("written: {:?}, not {drifted:?}", written(&events)));
    }

    // Everything is restored, and our fields have no other owner.
    let after = all_live(&fleet);
    for case in CASES {
        let (before, after) = (&before[case.name], &after[case.name]);
        for pointer in case.kept {
            let kept = after.pointer(pointer);
            if kept.is_none_or(Value::is_null) {
                wrong.push(format!("{}: {pointer} is gone", case.name));
            }
        }
        let (was, is) = (content(before, &[]), content(after, case.kept));
        if was != is {
            wrong.push(format!("{}: content\n{was}\n{is}", case.name));
        }
        let print = |object: &Value| fingerprint(&object["metadata"], MANAGER);
        if print(before) != print(after) {
            wrong.push(format!("{}: our entry is another\n{after}", case.name));
        }
        let mut expected: Vec<&str> = case.others.to_vec();
        expected.push(MANAGER);
        expected.sort_unstable();
        if managers(after) != expected {
            wrong.push(format!("{}: {:?}", case.name, managers(after)));
        }
        if shared_fields(after) != case.shared {
            wrong.push(format!("{}: shared {:?}", case.name, shared_fields(after)));
        }
    }

    // A further apply has nothing to do.
    let (_, events) = fleet.watched(Fleet::applied);
    let summary = events.summary();
    if (summary.writes, summary.dry_runs) != (0, 0) {
        wrong.push(format!("again: {}{}", events.writes(), events.dry_runs()));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    fleet.diff().ended_with(0);
}
