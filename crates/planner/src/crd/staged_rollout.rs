//! Intermediate states of a CRD on the way to the desired one.

use serde_json::{Value, json};

use super::{all, converts, has_version, is_served, storage, stored, version};
use crate::observe::Backend;
use pleach_fields::diff::ownership::{FieldSet, holders, owned_by_others};
use pleach_formats::sequence::MigrationRule;
use pleach_model::object::{PathSegment, from_base64};

/// First line of every certificate in a PEM bundle.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";

fn of<'r>(crd: &Value, rules: &'r [MigrationRule]) -> impl Iterator<Item = &'r MigrationRule> {
    let name = crd["metadata"]["name"].as_str().unwrap_or_default();
    let name = name.to_owned();
    rules.iter().filter(move |rule| rule.crd == name)
}

/// Returns the migrations whose old version is retained although git dropped it. Objects are read
/// and written in it until they are rewritten.
pub fn retained<'r>(
    desired: &Value,
    live: &Value,
    rules: &'r [MigrationRule],
) -> Vec<&'r MigrationRule> {
    of(desired, rules)
        .filter(|rule| {
            has_version(live, &rule.from)
                && !has_version(desired, &rule.from)
                && has_version(desired, &rule.to)
        })
        .collect()
}

/// Returns the migrations that rewrite objects. Their old version is retained, or objects can be
/// stored in it.
pub fn rewritten<'r>(
    desired: &Value,
    live: &Value,
    rules: &'r [MigrationRule],
) -> Vec<&'r MigrationRule> {
    let retained = retained(desired, live, rules);
    let stored = stored(live);
    of(desired, rules)
        .filter(|rule| {
            let is_stored = stored.contains(&rule.from.as_str());
            (is_stored && has_version(desired, &rule.to)) || retained.contains(rule)
        })
        .collect()
}

/// Returns whether a live conversion webhook is no longer desired. If git does not set the
/// conversion, it ends only if all its owners are `ours`.
pub fn ends_conversion(desired: &Value, live: &Value, ours: &dyn Fn(&str) -> bool) -> bool {
    if !converts(live) || converts(desired) {
        return false;
    }
    !desired["spec"]["conversion"].is_null() || deciding(live).iter().all(|manager| ours(manager))
}

/// Returns the field managers that own the conversion strategy.
fn deciding(live: &Value) -> Vec<String> {
    let strategy = FieldSet::parse(&json!({"f:spec": {"f:conversion": {"f:strategy": {}}}}));
    holders(&live["metadata"], &strategy, "")
}

/// Returns the fields of an ending conversion that other managers than `manager` own, such as an
/// injected CA bundle. They would remain without the rest, and the server refuses such a CRD.
/// pleach has to take ownership of them first.
pub fn left_of_conversion(
    desired: &Value,
    live: &Value,
    manager: &str,
    ours: &dyn Fn(&str) -> bool,
) -> FieldSet {
    let none = FieldSet::default();
    let deciding = deciding(live);
    let ends = converts(live) && !converts(desired);
    // While other managers own the strategy, the whole conversion stays.
    if !ends || deciding.is_empty() || !deciding.iter().all(|who| ours(who)) {
        return none;
    }
    let [spec, conversion] = ["spec", "conversion"].map(|key| PathSegment::Key(key.to_owned()));
    let owned = owned_by_others(&live["metadata"], manager);
    let below = owned.child(&spec).and_then(|spec| spec.child(&conversion));
    let below = below.cloned().unwrap_or_default();
    none.with(&spec, none.with(&conversion, below))
}

/// Returns the stored versions other than the desired storage version. Without a conversion
/// webhook, their objects would be misread.
pub fn unconverted<'l>(desired: &Value, live: &'l Value) -> Vec<&'l str> {
    let mut stored = stored(live);
    stored.retain(|name| Some(*name) != storage(desired));
    stored
}

/// Returns the migrations that must run while the webhook still converts, because git removes it.
/// Without it, the server would read objects in these versions as if they were in the storage
/// version. Only migrations to a version that the server already stores can run this early.
pub fn rewritten_before<'r>(
    desired: &Value,
    live: &Value,
    rules: &'r [MigrationRule],
) -> Vec<&'r MigrationRule> {
    let unconverted = unconverted(desired, live);
    of(desired, rules)
        .filter(|rule| unconverted.contains(&rule.from.as_str()))
        .filter(|rule| storage(live) == Some(&rule.to) && storage(desired) == Some(&rule.to))
        .collect()
}

/// Returns the desired CRD plus the retained versions as they are in the cluster, and the webhook
/// that converts them.
///
/// If the CRD was never established and its CA bundle is invalid, no objects exist, and the webhook
/// is not retained. Any other broken conversion is retained, because stored objects would be
/// misread without it.
pub fn with_retained(mut desired: Value, live: &Value, retained: &[&MigrationRule]) -> Value {
    let never_worked = is_unestablished(live) && has_invalid_bundle(live);
    if !retained.is_empty() && !never_worked {
        desired = converting(desired, live);
    }
    let retained: Vec<Value> = retained
        .iter()
        .filter_map(|rule| version(live, &rule.from))
        .map(|version| {
            let mut version = version.clone();
            version["storage"] = json!(false);
            version
        })
        .collect();
    if let Some(versions) = list(&mut desired) {
        versions.extend(retained);
    }
    desired
}

/// Returns the desired CRD with the live conversion webhook, if git has none.
pub fn converting(mut desired: Value, live: &Value) -> Value {
    if converts(live)
        && !converts(&desired)
        && let Some(spec) = desired.get_mut("spec").and_then(Value::as_object_mut)
    {
        spec.insert("conversion".to_owned(), live["spec"]["conversion"].clone());
    }
    desired
}

/// Returns the list of versions. Indexing a mutable `Value` would insert missing keys.
fn list(crd: &mut Value) -> Option<&mut Vec<Value>> {
    crd.pointer_mut("/spec/versions")?.as_array_mut()
}

/// Removes the retained versions and the retained webhook from a dry-run answer. The result is the
/// final state. `desired` is the CRD in git.
pub fn without(mut crd: Value, desired: &Value, retained: &[&MigrationRule]) -> Value {
    if converts(&crd) && !converts(desired) {
        crd["spec"]["conversion"] = match &desired["spec"]["conversion"] {
            Value::Null => json!({"strategy": "None"}),
            conversion => conversion.clone(),
        };
    }
    if let Some(versions) = list(&mut crd) {
        versions.retain(|version| !retained.iter().any(|rule| version["name"] == *rule.from));
    }
    crd
}

/// Returns the CRD with the retained versions not served. No client can write in them while objects
/// are rewritten.
pub fn unserved(mut crd: Value, retained: &[&MigrationRule]) -> Value {
    for version in list(&mut crd).into_iter().flatten() {
        if retained.iter().any(|rule| version["name"] == *rule.from) {
            version["served"] = json!(false);
        }
    }
    crd
}

/// Returns the part of a CRD change that does not need the conversion webhook: all but a new
/// conversion, a new storage version, and newly served versions. `None` if the change includes none
/// of these, or git declares no webhook.
pub fn before_backend(desired: &Value, live: &Value) -> Option<Value> {
    if !converts(desired) {
        return None;
    }
    let flips = storage(desired) != storage(live);
    let opens = all(desired).iter().any(|version| {
        let name = version["name"].as_str().unwrap_or_default();
        version["served"] == true && !is_served(live, name)
    });
    let same_conversion = covers(&live["spec"]["conversion"], &desired["spec"]["conversion"]);
    if same_conversion && !flips && !opens {
        return None;
    }
    let mut first = desired.clone();
    first["spec"]["conversion"] = match &live["spec"]["conversion"] {
        Value::Null => json!({"strategy": "None"}),
        conversion => conversion.clone(),
    };
    let stored = storage(live).filter(|name| has_version(desired, name));
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

/// Returns whether the conversion of a live CRD cannot work: the CRD is not established, its CA
/// bundle contains no certificate, or its Service has no backend. A backend of `None` was not read
/// and counts as working.
pub fn is_conversion_broken(live: &Value, backend: Option<&Backend>) -> bool {
    if !converts(live) {
        return false;
    }
    is_unestablished(live)
        || has_invalid_bundle(live)
        || backend.is_some_and(|backend| backend.lack(false).is_some())
}

/// Returns whether the server reports that a CRD is not established. An established CRD stays so
/// until it is deleted.
fn is_unestablished(live: &Value) -> bool {
    let mut conditions = live["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    conditions.any(|one| one["type"] == "Established" && one["status"] == "False")
}

/// Returns whether the CA bundle of a conversion contains no certificate.
fn has_invalid_bundle(live: &Value) -> bool {
    let bundle = live["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"].as_str();
    bundle.is_some_and(|bundle| {
        let text = from_base64(bundle).and_then(|bytes| String::from_utf8(bytes).ok());
        text.is_none_or(|text| !text.contains(CERTIFICATE))
    })
}

/// Returns whether all desired fields have their values. The server sets defaults for other fields.
pub(crate) fn covers(live: &Value, desired: &Value) -> bool {
    match (live, desired) {
        (Value::Object(live), Value::Object(desired)) => desired
            .iter()
            .all(|(key, desired)| live.get(key).is_some_and(|live| covers(live, desired))),
        (Value::Array(live), Value::Array(desired)) => {
            let mut pairs = live.iter().zip(desired);
            live.len() == desired.len() && pairs.all(|(live, desired)| covers(live, desired))
        }
        _ => live == desired,
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use rstest::rstest;

    use super::*;
    use pleach_model::object::Origin;

    fn crd(versions: &[&str], storage: &str) -> Value {
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

    /// Formats the versions: `*v1` is stored, `v1!` is not served.
    fn shown(crd: &Value) -> Vec<String> {
        all(crd)
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
        assert_eq!(with_retained(object.clone(), &object, &[]), object);
        assert_eq!(unserved(without(object.clone(), &object, &[]), &[]), object);
        assert_eq!(before_backend(&object, &object), None);
    }

    #[test]
    fn a_version_stays_until_its_objects_are_rewritten() {
        let (desired, live) = (crd(&["v1"], "v1"), crd(&["v1beta1"], "v1beta1"));
        let rules = [
            rule("v1beta1", "v1"),
            rule("v0", "v1"),
            rule("v1beta1", "v3"),
        ];
        let retained = retained(&desired, &live, &rules);
        assert_eq!(retained, [&rules[0]]);
        let first = with_retained(desired.clone(), &live, &retained);
        assert_eq!(shown(&first), ["*v1", "v1beta1"]);
        assert_eq!(
            shown(&unserved(first.clone(), &retained)),
            ["*v1", "v1beta1!"]
        );
        assert_eq!(without(first, &desired, &retained), desired);
    }

    #[rstest]
    #[case::it_is_stored(&["v1", "v1beta1"], &["v1beta1", "v1"], 1)]
    #[case::it_is_not(&["v1", "v1beta1"], &["v1"], 0)]
    #[case::it_is_removed(&["v1"], &["v1"], 1)]
    fn objects_are_rewritten_while_a_version_may_be_stored(
        #[case] desired: &[&str],
        #[case] stored: &[&str],
        #[case] expected: usize,
    ) {
        let mut live = crd(&["v1beta1", "v1"], "v1");
        live["status"]["storedVersions"] = json!(stored);
        let rules = [rule("v1beta1", "v1")];
        assert_eq!(
            rewritten(&crd(desired, "v1"), &live, &rules).len(),
            expected
        );
    }

    fn webhook(mut crd: Value, name: &str) -> Value {
        crd["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook":
            {"clientConfig": {"service": {"namespace": "web", "name": name}}}});
        crd
    }

    #[rstest]
    #[case::certificates("injector", json!({"f:webhook": {"f:clientConfig": {"f:caBundle": {}}}}), true)]
    #[case::who_converts("injector", json!({"f:strategy": {}}), false)]
    #[case::of_ours("ours", json!({"f:webhook": {"f:clientConfig": {"f:caBundle": {}}}}), false)]
    fn fields_of_other_managers_in_a_removed_conversion_are_found(
        #[case] manager: &str,
        #[case] fields: Value,
        #[case] is_left: bool,
    ) {
        let mut live = webhook(crd(&["v1"], "v1"), "a");
        let entry = |manager: &str, fields: &Value| json!({"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": {"f:conversion": fields}}});
        live["metadata"]["managedFields"] = json!([
            entry("ours", &json!({"f:strategy": {}})),
            entry(manager, &fields)
        ]);
        let left = |desired: &Value, live: &Value| {
            left_of_conversion(desired, live, "ours", &|manager| manager == "ours").to_json()
        };
        let expected = if is_left {
            json!({"f:spec": {"f:conversion": fields}})
        } else {
            json!({})
        };
        assert_eq!(left(&crd(&["v1"], "v1"), &live), expected);
        // No conversion ends.
        assert_eq!(left(&live, &live), json!({}));
        assert_eq!(left(&live, &crd(&["v1"], "v1")), json!({}));
    }

    #[test]
    fn a_broken_conversion_is_detected() {
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
            let mut live = webhook(crd(&["v1"], "v1"), "a");
            live["status"]["conditions"] = conditions;
            live["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"] = bundle;
            let is_broken = is_conversion_broken(&live, backend.as_ref());
            assert_eq!(is_broken, expected, "{name}");
            live["spec"]["conversion"] = json!({"strategy": "None"});
            assert!(!is_conversion_broken(&live, backend.as_ref()), "{name}");
        }
    }

    #[test]
    fn a_conversion_that_never_worked_is_not_retained() {
        let pem = STANDARD.encode("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n");
        let desired = crd(&["v2"], "v2");
        let rules = [rule("v1", "v2")];
        for (name, established, bundle, is_kept) in [
            ("it works", "True", pem.as_str(), true),
            ("its bundle broke", "True", "Cg==", true),
            ("not established yet", "False", pem.as_str(), true),
            ("it never worked", "False", "Cg==", false),
        ] {
            let mut live = webhook(crd(&["v2", "v1"], "v2"), "a");
            live["status"]["conditions"] = json!([{"type": "Established", "status": established}]);
            live["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"] = json!(bundle);
            let retained = retained(&desired, &live, &rules);
            let first = with_retained(desired.clone(), &live, &retained);
            assert_eq!(shown(&first), ["*v2", "v1"], "{name}");
            assert_eq!(converts(&first), is_kept, "{name}");
        }
    }

    #[rstest]
    #[case::no_webhook(crd(&["v1", "v2"], "v2"), crd(&["v1"], "v1"), None)]
    #[case::a_new_webhook(webhook(crd(&["v1"], "v1"), "a"), crd(&["v1"], "v1"), Some(&["*v1"][..]))]
    #[case::another_one(webhook(crd(&["v1"], "v1"), "a"), webhook(crd(&["v1"], "v1"), "b"), Some(&["*v1"][..]))]
    #[case::the_same_one(webhook(crd(&["v1"], "v1"), "a"), webhook(crd(&["v1"], "v1"), "a"), None)]
    #[case::a_new_version(webhook(crd(&["v1", "v2"], "v1"), "a"), webhook(crd(&["v1"], "v1"), "a"), Some(&["*v1", "v2!"][..]))]
    #[case::one_that_was_not_served(webhook(crd(&["v1", "v2"], "v1"), "a"), webhook(crd(&["v1", "v2!"], "v1"), "a"), Some(&["*v1", "v2!"][..]))]
    #[case::another_one_is_stored(webhook(crd(&["v1", "v2"], "v2"), "a"), webhook(crd(&["v1", "v2"], "v1"), "a"), Some(&["*v1", "v2"][..]))]
    #[case::a_version_that_is_not_served(webhook(crd(&["v1", "v2!"], "v1"), "a"), webhook(crd(&["v1"], "v1"), "a"), None)]
    fn versions_that_need_the_webhook_are_applied_later(
        #[case] desired: Value,
        #[case] live: Value,
        #[case] expected: Option<&[&str]>,
    ) {
        let first = before_backend(&desired, &live);
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
