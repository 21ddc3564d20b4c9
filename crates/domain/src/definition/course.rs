//! What a definition looks like on the way to what git wants.

use serde_json::{Value, json};

use super::{all, converts, has_version, is_served, storage, stored, version};
use crate::diff::ownership::{FieldSet, held_by_others, holders};
use crate::object::{PathSegment, from_base64};
use crate::observe::Backend;
use crate::repo::MigrationRule;

/// The first line of every certificate in a bundle.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";

fn of<'r>(
    definition: &Value,
    rules: &'r [MigrationRule],
) -> impl Iterator<Item = &'r MigrationRule> {
    let name = definition["metadata"]["name"].as_str().unwrap_or_default();
    let name = name.to_owned();
    rules.iter().filter(move |rule| rule.crd == name)
}

/// The migrations for which a version that git dropped stays for now: objects
/// are read and written in it until they are rewritten.
pub fn kept<'r>(
    wanted: &Value,
    live: &Value,
    rules: &'r [MigrationRule],
) -> Vec<&'r MigrationRule> {
    of(wanted, rules)
        .filter(|rule| {
            has_version(live, &rule.from)
                && !has_version(wanted, &rule.from)
                && has_version(wanted, &rule.to)
        })
        .collect()
}

/// The migrations for which objects are rewritten: those of versions that stay
/// for now, and of versions in which objects may still be stored.
pub fn rewritten<'r>(
    wanted: &Value,
    live: &Value,
    rules: &'r [MigrationRule],
) -> Vec<&'r MigrationRule> {
    let kept = kept(wanted, live, rules);
    let stored = stored(live);
    of(wanted, rules)
        .filter(|rule| {
            let is_stored = stored.contains(&rule.from.as_str());
            (is_stored && has_version(wanted, &rule.to)) || kept.contains(rule)
        })
        .collect()
}

/// Whether a webhook converts objects now and git wants none any more. What git
/// says nothing of stays where others than `ours` wrote it.
pub fn ends_conversion(wanted: &Value, live: &Value, ours: &dyn Fn(&str) -> bool) -> bool {
    if !converts(live) || converts(wanted) {
        return false;
    }
    !wanted["spec"]["conversion"].is_null() || deciding(live).iter().all(|manager| ours(manager))
}

/// Who says that a webhook converts.
fn deciding(live: &Value) -> Vec<String> {
    let strategy = FieldSet::parse(&json!({"f:spec": {"f:conversion": {"f:strategy": {}}}}));
    holders(&live["metadata"], &strategy, "")
}

/// What others than `manager` hold of the conversion that git ends, such as the
/// certificates that somebody put in. It would stay without the rest, and the
/// server refuses a definition that has only that: it has to be ours first.
pub fn left_of_conversion(
    wanted: &Value,
    live: &Value,
    manager: &str,
    ours: &dyn Fn(&str) -> bool,
) -> FieldSet {
    let none = FieldSet::default();
    let deciding = deciding(live);
    let ends = converts(live) && !converts(wanted);
    // As long as others say so, it stays as a whole.
    if !ends || deciding.is_empty() || !deciding.iter().all(|who| ours(who)) {
        return none;
    }
    let [spec, conversion] = ["spec", "conversion"].map(|key| PathSegment::Key(key.to_owned()));
    let held = held_by_others(&live["metadata"], manager);
    let below = held.child(&spec).and_then(|spec| spec.child(&conversion));
    let below = below.cloned().unwrap_or_default();
    none.with(&spec, none.with(&conversion, below))
}

/// The versions in which objects may be stored and that nobody reads as what is
/// stored from now on, once no webhook converts any more.
pub fn unconverted<'l>(wanted: &Value, live: &'l Value) -> Vec<&'l str> {
    let mut stored = stored(live);
    stored.retain(|name| Some(*name) != storage(wanted));
    stored
}

/// The migrations that must be done while the webhook still converts, as git
/// wants it gone: without it, what is stored in those versions would be read as
/// if it were written in that of today. Only what the server stores already can
/// be written so early.
pub fn rewritten_before<'r>(
    wanted: &Value,
    live: &Value,
    rules: &'r [MigrationRule],
) -> Vec<&'r MigrationRule> {
    let unconverted = unconverted(wanted, live);
    of(wanted, rules)
        .filter(|rule| unconverted.contains(&rule.from.as_str()))
        .filter(|rule| storage(live) == Some(&rule.to) && storage(wanted) == Some(&rule.to))
        .collect()
}

/// What git wants, with versions that stay for now as they are in the cluster,
/// and with the webhook that converts them.
///
/// A definition that was never established, and cannot be because of its bundle, has no
/// objects: its webhook is not kept. Any other conversion that does not work is kept, as
/// stored objects would be read without it.
pub fn keeping(mut wanted: Value, live: &Value, kept: &[&MigrationRule]) -> Value {
    let never_worked = is_unestablished(live) && has_invalid_bundle(live);
    if !kept.is_empty() && !never_worked {
        wanted = converting(wanted, live);
    }
    let kept: Vec<Value> = kept
        .iter()
        .filter_map(|rule| version(live, &rule.from))
        .map(|version| {
            let mut version = version.clone();
            version["storage"] = json!(false);
            version
        })
        .collect();
    if let Some(versions) = list(&mut wanted) {
        versions.extend(kept);
    }
    wanted
}

/// What git wants, with the webhook that converts today where it wants none.
pub fn converting(mut wanted: Value, live: &Value) -> Value {
    if converts(live)
        && !converts(&wanted)
        && let Some(spec) = wanted.get_mut("spec").and_then(Value::as_object_mut)
    {
        spec.insert("conversion".to_owned(), live["spec"]["conversion"].clone());
    }
    wanted
}

/// Its versions; asking for them by index would add what is not there.
fn list(definition: &mut Value) -> Option<&mut Vec<Value>> {
    definition.pointer_mut("/spec/versions")?.as_array_mut()
}

/// The same without them, and without the webhook: what an answer of the server
/// looks like in the end, where `wanted` is what git has.
pub fn without(mut definition: Value, wanted: &Value, kept: &[&MigrationRule]) -> Value {
    if converts(&definition) && !converts(wanted) {
        definition["spec"]["conversion"] = match &wanted["spec"]["conversion"] {
            Value::Null => json!({"strategy": "None"}),
            conversion => conversion.clone(),
        };
    }
    if let Some(versions) = list(&mut definition) {
        versions.retain(|version| !kept.iter().any(|rule| version["name"] == *rule.from));
    }
    definition
}

/// A definition whose versions that stay for now are served no more: nobody
/// writes in them while objects are rewritten.
pub fn unserved(mut definition: Value, kept: &[&MigrationRule]) -> Value {
    for version in list(&mut definition).into_iter().flatten() {
        if kept.iter().any(|rule| version["name"] == *rule.from) {
            version["served"] = json!(false);
        }
    }
    definition
}

/// What of a definition can be had before the webhook that converts answers:
/// everything but another conversion, another version to store, and versions
/// that were not served. None where nothing of that changes.
pub fn before_backend(wanted: &Value, live: &Value) -> Option<Value> {
    if !converts(wanted) {
        return None;
    }
    let flips = storage(wanted) != storage(live);
    let opens = all(wanted).iter().any(|version| {
        let name = version["name"].as_str().unwrap_or_default();
        version["served"] == true && !is_served(live, name)
    });
    let same_conversion = covers(&live["spec"]["conversion"], &wanted["spec"]["conversion"]);
    if same_conversion && !flips && !opens {
        return None;
    }
    let mut first = wanted.clone();
    first["spec"]["conversion"] = match &live["spec"]["conversion"] {
        Value::Null => json!({"strategy": "None"}),
        conversion => conversion.clone(),
    };
    let stored = storage(live).filter(|name| has_version(wanted, name));
    for version in list(&mut first).into_iter().flatten() {
        let name = version["name"].as_str().unwrap_or_default().to_owned();
        if let Some(stored) = stored {
            version["storage"] = json!(name == stored);
        }
        if version["served"] == true && !is_served(live, &name) {
            version["served"] = json!(false);
        }
    }
    Some(first)
}

/// Whether the conversion of a live definition cannot work: the server has not
/// accepted it, its bundle has no certificate, or nothing answers for its Service.
/// `None` for a backend that was not read: it is taken to work.
pub fn is_conversion_broken(live: &Value, backend: Option<&Backend>) -> bool {
    if !converts(live) {
        return false;
    }
    is_unestablished(live)
        || has_invalid_bundle(live)
        || backend.is_some_and(|backend| backend.lack(false).is_some())
}

/// Whether the server has not established a definition. One that was established stays
/// so until it is deleted.
fn is_unestablished(live: &Value) -> bool {
    let mut conditions = live["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    conditions.any(|one| one["type"] == "Established" && one["status"] == "False")
}

/// Whether the bundle of a conversion has no certificate.
fn has_invalid_bundle(live: &Value) -> bool {
    let bundle = live["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"].as_str();
    bundle.is_some_and(|bundle| {
        let text = from_base64(bundle).and_then(|bytes| String::from_utf8(bytes).ok());
        text.is_none_or(|text| !text.contains(CERTIFICATE))
    })
}

/// Whether everything that is wanted is there; the server defaults the rest.
pub(crate) fn covers(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => wanted
            .iter()
            .all(|(key, wanted)| live.get(key).is_some_and(|live| covers(live, wanted))),
        (Value::Array(live), Value::Array(wanted)) => {
            let mut pairs = live.iter().zip(wanted);
            live.len() == wanted.len() && pairs.all(|(live, wanted)| covers(live, wanted))
        }
        _ => live == wanted,
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use rstest::rstest;

    use super::*;
    use crate::object::Origin;

    fn definition(versions: &[&str], storage: &str) -> Value {
        let versions: Vec<Value> = versions
            .iter()
            .map(|text| {
                let name = text.trim_end_matches('!');
                json!({"name": name, "served": name == *text, "storage": name == storage})
            })
            .collect();
        json!({"metadata": {"name": "things.example.org"}, "spec": {"versions": versions}})
    }

    fn rule(from: &str, to: &str) -> MigrationRule {
        MigrationRule {
            crd: "things.example.org".to_owned(),
            from: from.to_owned(),
            to: to.to_owned(),
            origin: Origin::new("bundle.yaml", 1),
        }
    }

    /// `v1` is stored, `v1!` is not served, `*v1` both.
    fn shown(definition: &Value) -> Vec<String> {
        all(definition)
            .iter()
            .map(|version| {
                let mark = |is: bool, text: &'static str| if is { text } else { "" };
                format!(
                    "{}{}{}",
                    mark(version["storage"] == true, "*"),
                    version["name"].as_str().unwrap(),
                    mark(version["served"] != true, "!")
                )
            })
            .collect()
    }

    #[test]
    fn another_object_stays_as_it_is() {
        let object = json!({"metadata": {"name": "a"}, "spec": {"replicas": 1}});
        assert_eq!(keeping(object.clone(), &object, &[]), object);
        assert_eq!(unserved(without(object.clone(), &object, &[]), &[]), object);
        assert_eq!(before_backend(&object, &object), None);
    }

    #[test]
    fn a_version_stays_until_its_objects_are_rewritten() {
        let (wanted, live) = (
            definition(&["v1"], "v1"),
            definition(&["v1beta1"], "v1beta1"),
        );
        let rules = [
            rule("v1beta1", "v1"),
            rule("v0", "v1"),
            rule("v1beta1", "v3"),
        ];
        let kept = kept(&wanted, &live, &rules);
        assert_eq!(kept, [&rules[0]]);
        let first = keeping(wanted.clone(), &live, &kept);
        assert_eq!(shown(&first), ["*v1", "v1beta1"]);
        assert_eq!(shown(&unserved(first.clone(), &kept)), ["*v1", "v1beta1!"]);
        assert_eq!(without(first, &wanted, &kept), wanted);
    }

    #[rstest]
    #[case::it_is_stored(&["v1", "v1beta1"], &["v1beta1", "v1"], 1)]
    #[case::it_is_not(&["v1", "v1beta1"], &["v1"], 0)]
    #[case::it_goes(&["v1"], &["v1"], 1)]
    fn objects_are_rewritten_while_a_version_may_be_stored_or_goes(
        #[case] wanted: &[&str],
        #[case] stored: &[&str],
        #[case] expected: usize,
    ) {
        let mut live = definition(&["v1beta1", "v1"], "v1");
        live["status"]["storedVersions"] = json!(stored);
        let rules = [rule("v1beta1", "v1")];
        assert_eq!(
            rewritten(&definition(wanted, "v1"), &live, &rules).len(),
            expected
        );
    }

    fn webhook(mut definition: Value, name: &str) -> Value {
        definition["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook":
            {"clientConfig": {"service": {"namespace": "web", "name": name}}}});
        definition
    }

    #[rstest]
    #[case::certificates("injector", json!({"f:webhook": {"f:clientConfig": {"f:caBundle": {}}}}), true)]
    #[case::who_converts("injector", json!({"f:strategy": {}}), false)]
    #[case::of_ours("ours", json!({"f:webhook": {"f:clientConfig": {"f:caBundle": {}}}}), false)]
    fn what_others_hold_of_a_conversion_that_goes(
        #[case] manager: &str,
        #[case] fields: Value,
        #[case] is_left: bool,
    ) {
        let mut live = webhook(definition(&["v1"], "v1"), "a");
        let entry = |manager: &str, fields: &Value| json!({"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": {"f:conversion": fields}}});
        live["metadata"]["managedFields"] = json!([
            entry("ours", &json!({"f:strategy": {}})),
            entry(manager, &fields)
        ]);
        let left = |wanted: &Value, live: &Value| {
            left_of_conversion(wanted, live, "ours", &|manager| manager == "ours").to_json()
        };
        let expected = if is_left {
            json!({"f:spec": {"f:conversion": fields}})
        } else {
            json!({})
        };
        assert_eq!(left(&definition(&["v1"], "v1"), &live), expected);
        // Nothing goes.
        assert_eq!(left(&live, &live), json!({}));
        assert_eq!(left(&live, &definition(&["v1"], "v1")), json!({}));
    }

    #[test]
    fn a_conversion_that_cannot_work_is_told_from_one_that_can() {
        let backend = |exists: bool, ready_endpoints: usize| Backend {
            exists,
            ready_endpoints,
            ..Backend::default()
        };
        let established = |status: &str| json!([{"type": "Established", "status": status}]);
        let pem = STANDARD.encode("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n");
        let (works, none) = (Some(backend(true, 1)), json!(null));
        let cases = [
            (
                "it works",
                works.clone(),
                established("True"),
                json!(pem),
                false,
            ),
            ("nothing is known", None, none.clone(), none.clone(), false),
            (
                "not established",
                works.clone(),
                established("False"),
                json!(pem),
                true,
            ),
            (
                "no certificate",
                works.clone(),
                established("True"),
                json!("Cg=="),
                true,
            ),
            (
                "no base64",
                works.clone(),
                established("True"),
                json!("!"),
                true,
            ),
            (
                "no bundle",
                works.clone(),
                established("True"),
                none.clone(),
                false,
            ),
            (
                "no Service",
                Some(backend(false, 0)),
                none.clone(),
                none.clone(),
                true,
            ),
            (
                "no endpoints",
                Some(backend(true, 0)),
                none.clone(),
                none,
                true,
            ),
        ];
        for (name, backend, conditions, bundle, expected) in cases {
            let mut live = webhook(definition(&["v1"], "v1"), "a");
            live["status"]["conditions"] = conditions;
            live["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"] = bundle;
            let is_broken = is_conversion_broken(&live, backend.as_ref());
            assert_eq!(is_broken, expected, "{name}");
            live["spec"]["conversion"] = json!({"strategy": "None"});
            assert!(!is_conversion_broken(&live, backend.as_ref()), "{name}");
        }
    }

    #[test]
    fn a_conversion_that_never_worked_is_not_kept_with_a_version() {
        let pem = STANDARD.encode("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n");
        let wanted = definition(&["v2"], "v2");
        let rules = [rule("v1", "v2")];
        for (name, established, bundle, is_kept) in [
            ("it works", "True", pem.as_str(), true),
            ("its bundle broke", "True", "Cg==", true),
            ("not established yet", "False", pem.as_str(), true),
            ("it never worked", "False", "Cg==", false),
        ] {
            let mut live = webhook(definition(&["v2", "v1"], "v2"), "a");
            live["status"]["conditions"] = json!([{"type": "Established", "status": established}]);
            live["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"] = json!(bundle);
            let kept = kept(&wanted, &live, &rules);
            let first = keeping(wanted.clone(), &live, &kept);
            assert_eq!(shown(&first), ["*v2", "v1"], "{name}");
            assert_eq!(converts(&first), is_kept, "{name}");
        }
    }

    #[rstest]
    #[case::no_webhook(definition(&["v1", "v2"], "v2"), definition(&["v1"], "v1"), None)]
    #[case::a_new_webhook(webhook(definition(&["v1"], "v1"), "a"), definition(&["v1"], "v1"), Some(&["*v1"][..]))]
    #[case::another_one(webhook(definition(&["v1"], "v1"), "a"), webhook(definition(&["v1"], "v1"), "b"), Some(&["*v1"][..]))]
    #[case::the_same_one(webhook(definition(&["v1"], "v1"), "a"), webhook(definition(&["v1"], "v1"), "a"), None)]
    #[case::a_new_version(webhook(definition(&["v1", "v2"], "v1"), "a"), webhook(definition(&["v1"], "v1"), "a"), Some(&["*v1", "v2!"][..]))]
    #[case::one_that_was_not_served(webhook(definition(&["v1", "v2"], "v1"), "a"), webhook(definition(&["v1", "v2!"], "v1"), "a"), Some(&["*v1", "v2!"][..]))]
    #[case::another_one_is_stored(webhook(definition(&["v1", "v2"], "v2"), "a"), webhook(definition(&["v1", "v2"], "v1"), "a"), Some(&["*v1", "v2"][..]))]
    #[case::a_version_that_is_not_served(webhook(definition(&["v1", "v2!"], "v1"), "a"), webhook(definition(&["v1"], "v1"), "a"), None)]
    fn what_needs_the_webhook_comes_later(
        #[case] wanted: Value,
        #[case] live: Value,
        #[case] expected: Option<&[&str]>,
    ) {
        let first = before_backend(&wanted, &live);
        assert_eq!(
            first.as_ref().map(shown).as_deref(),
            expected
                .map(|texts| texts
                    .iter()
                    .map(|text| (*text).to_owned())
                    .collect::<Vec<_>>())
                .as_deref()
        );
        if let Some(first) = first {
            let conversion = match &live["spec"]["conversion"] {
                Value::Null => json!({"strategy": "None"}),
                other => other.clone(),
            };
            assert_eq!(first["spec"]["conversion"], conversion);
        }
    }
}
