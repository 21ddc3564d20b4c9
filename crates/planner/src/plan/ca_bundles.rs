//! CA bundles of registrations and CRD conversions. While pods of two versions
//! answer, the certificates of both are trusted.
//!
//! The certificates in git and in the cluster are sent as one bundle, together
//! with the Service. Stage `shrink` reduces the bundle to the one in git, when
//! no pod of the previous version is left.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::access::{is_of_git, may_pods_be_exchanged};
use super::draft::{Ctx, Draft, Narrowing};
use super::model::{Body, Op};
use super::phases::Decided;
use pleach_model::object::{NonSecret, ObjectId, from_base64};
use pleach_model::order::StageName;

/// PEM markers around a certificate.
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// Reason text of a step that retains certificates.
pub(super) const TRUSTED: &str =
    "the serving certificates of the previous pods stay trusted until the end";

/// Retains trusted certificates in the steps that would remove them.
pub(super) fn widen(ctx: &Ctx<'_>, draft: &mut Decided) {
    if !may_pods_be_exchanged(ctx, draft) {
        return;
    }
    let registrations: Vec<ObjectId> = draft
        .changes
        .values()
        .filter(|change| is_of_git(change))
        .map(|change| change.object.clone())
        .filter(|id| ctx.stage_of_kind(id) == StageName::Registrations)
        .collect();
    for id in registrations {
        let (Some(manifest), Some(live), Some(step)) = (
            ctx.manifests.get(&id),
            ctx.observed.full.get(&id),
            draft.done_by.get(&id).copied(),
        ) else {
            continue;
        };
        let mut wider = ctx.desired.ignored.lean(manifest).value();
        if manifest.is_secret() || !add_live_certificates(&mut wider, live.value()) {
            continue;
        }
        let planned = draft.at(step);
        let op = planned.op.clone();
        let require = planned.require.clone();
        if let Op::Apply { body, .. } = &mut planned.op {
            *body = Body::Inline(NonSecret(wider));
        }
        planned.reason = format!("{}; {TRUSTED}", planned.reason);
        draft.narrowings.push(Narrowing {
            id,
            op,
            require,
            before: Some(step),
        });
    }
}

/// Returns a CRD that also trusts the certificates of the previous conversion
/// pods. `None` if git already contains them all.
pub(super) fn of_conversion(
    ctx: &Ctx<'_>,
    draft: &Draft,
    id: &ObjectId,
    (desired, live): (&Value, &Value),
) -> Option<Value> {
    let is_changed = draft.changes.get(id).is_some_and(is_of_git);
    if !is_changed || !may_pods_be_exchanged(ctx, draft) {
        return None;
    }
    let mut wider = desired.clone();
    let client = wider.pointer_mut("/spec/conversion/webhook/clientConfig")?;
    let previous = &live["spec"]["conversion"]["webhook"]["clientConfig"];
    add(client, previous).then_some(wider)
}

/// Adds the certificates of the live object to the desired one. Returns whether
/// any were added.
fn add_live_certificates(desired: &mut Value, live: &Value) -> bool {
    let spec = desired.get_mut("spec");
    let mut added = spec.is_some_and(|spec| add(spec, &live["spec"]));
    let hooks = desired.get_mut("webhooks").and_then(Value::as_array_mut);
    for hook in hooks.into_iter().flatten() {
        let mut previous = live["webhooks"].as_array().into_iter().flatten();
        if let Some(previous) = previous.find(|previous| previous["name"] == hook["name"]) {
            let client = hook.get_mut("clientConfig");
            added |= client.is_some_and(|client| add(client, &previous["clientConfig"]));
        }
    }
    added
}

/// Merges the bundles of one client configuration. A configuration without a
/// bundle is skipped, because another client injects it.
fn add(desired: &mut Value, live: &Value) -> bool {
    let (Some(ours), Some(theirs)) = (desired["caBundle"].as_str(), live["caBundle"].as_str())
    else {
        return false;
    };
    let Some(both) = union(ours, theirs) else {
        return false;
    };
    desired["caBundle"] = both.into();
    true
}

/// Merges two bundles; `None` if the second adds no certificate.
fn union(ours: &str, theirs: &str) -> Option<String> {
    let text = |bundle: &str| String::from_utf8(from_base64(bundle)?).ok();
    let (ours, theirs) = (text(ours)?, text(theirs)?);
    let known: BTreeSet<String> = certificates(&ours).into_iter().collect();
    let mut both = ours.trim_end().to_owned();
    let mut added = false;
    for certificate in certificates(&theirs) {
        if !known.contains(&certificate) {
            both.push('\n');
            both.push_str(&certificate);
            added = true;
        }
    }
    both.push('\n');
    added.then(|| STANDARD.encode(both))
}

fn certificates(bundle: &str) -> Vec<String> {
    let parts = bundle.split(BEGIN).skip(1);
    parts
        .filter_map(|part| Some(format!("{BEGIN}{}{END}", part.split_once(END)?.0)))
        .collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn bundle(names: &[&str]) -> String {
        let certificates = names.iter().map(|name| format!("{BEGIN}\n{name}\n{END}\n"));
        STANDARD.encode(certificates.collect::<String>())
    }

    #[rstest]
    #[case::another(&["new"], &["old"], &["new", "old"])]
    #[case::the_same(&["new"], &["new"], &[])]
    #[case::fewer(&["new", "old"], &["old"], &[])]
    #[case::partly(&["new"], &["old", "new", "older"], &["new", "old", "older"])]
    #[case::nothing_there(&["new"], &[], &[])]
    fn both_are_trusted(#[case] ours: &[&str], #[case] theirs: &[&str], #[case] expected: &[&str]) {
        let expected = (!expected.is_empty()).then(|| bundle(expected));
        assert_eq!(union(&bundle(ours), &bundle(theirs)), expected);
    }

    #[test]
    fn a_bundle_may_have_line_breaks() {
        let mut ours = bundle(&["new"]);
        ours.insert(20, '\n');
        ours.push('\n');
        assert_eq!(
            union(&ours, &bundle(&["old"])),
            Some(bundle(&["new", "old"]))
        );
    }

    #[test]
    fn values_that_are_no_ca_bundle_are_unchanged() {
        assert_eq!(union("no base64!", &bundle(&["old"])), None);
        assert_eq!(union(&bundle(&["new"]), "no base64!"), None);
        let mut injected = json!({"spec": {"service": {}}});
        assert!(!add_live_certificates(
            &mut injected,
            &json!({"spec": {"caBundle": bundle(&["old"])}})
        ));
    }

    #[test]
    fn webhooks_are_matched_by_name() {
        let hook =
            |name: &str, bundle: &str| json!({"name": name, "clientConfig": {"caBundle": bundle}});
        let (new, old) = (bundle(&["new"]), bundle(&["old"]));
        let mut desired = json!({"webhooks": [hook("a", &new), hook("b", &new)]});
        assert!(add_live_certificates(
            &mut desired,
            &json!({"webhooks": [hook("b", &old), hook("c", &old)]})
        ));
        let both = bundle(&["new", "old"]);
        assert_eq!(
            desired,
            json!({"webhooks": [hook("a", &new), hook("b", &both)]})
        );
    }
}
