//! What the server filled in beside a choice that git does not make any more.
//!
//! To a rolling update belongs its pace, to a probe over HTTP its scheme, to a
//! volume the mode of its files. Where git leaves that out, the server fills it
//! in, and nobody owns it. An apply that makes another choice therefore leaves
//! it, and the server refuses an object that is both. An apply that says `null`
//! there takes it away.

use serde_json::{Map, Value};

use super::{FieldSet, applied_by, held_by_others};
use crate::diff::locate;
use crate::object::{FieldPath, PathSegment};

/// Which fields are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// Those of which nobody else holds anything.
    ByNobody,
    /// Those too of which others hold something: to take them is a conflict.
    ByOthersToo,
}

/// The maps of a live object that an apply of `wanted` would leave behind: git
/// does not have them, and they are what is left of ours, or lie beside a value
/// that changes.
pub fn outgrown(live: &Value, wanted: &Value, ours: &str, held: Held) -> Vec<FieldPath> {
    let metadata = &live["metadata"];
    let mut found = Vec::new();
    let others = match held {
        Held::ByNobody => held_by_others(metadata, ours),
        Held::ByOthersToo => FieldSet::default(),
    };
    let fields = Fields {
        ours: &applied_by(metadata, ours),
        others: &others,
    };
    let content = wanted.as_object().into_iter().flatten();
    let content = content.filter(|(key, _)| *key != "metadata" && *key != "status");
    for (key, wanted) in content {
        let segment = PathSegment::Key(key.clone());
        if let Some(live) = live.get(key) {
            let path = FieldPath::default().key(key);
            fields.below(&segment, |fields| {
                look(&path, (live, wanted), fields, &mut found);
            });
        }
    }
    found
}

/// An object that says that it does not have these fields.
#[must_use]
pub fn denying(mut object: Value, fields: &[FieldPath]) -> Value {
    for field in fields {
        let Some((PathSegment::Key(last), parents)) = field.0.split_last() else {
            continue;
        };
        let parent = parents
            .iter()
            .try_fold(&mut object, |at, segment| locate::step_mut(at, segment));
        if let Some(map) = parent.and_then(Value::as_object_mut) {
            map.insert(last.clone(), Value::Null);
        }
    }
    object
}

/// Who holds what, at one place of an object.
#[derive(Clone, Copy)]
struct Fields<'a> {
    ours: &'a FieldSet,
    others: &'a FieldSet,
}

impl Fields<'_> {
    fn below(&self, segment: &PathSegment, look: impl FnOnce(Fields<'_>)) {
        let nothing = FieldSet::default();
        look(Fields {
            ours: self.ours.child(segment).unwrap_or(&nothing),
            others: self.others.child(segment).unwrap_or(&nothing),
        });
    }
}

fn look(
    path: &FieldPath,
    (live, wanted): (&Value, &Value),
    fields: Fields<'_>,
    found: &mut Vec<FieldPath>,
) {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => {
            let chooses = chooses(live, wanted);
            for (key, live) in live {
                let segment = PathSegment::Key(key.clone());
                let path = path.key(key);
                fields.below(&segment, |fields| match wanted.get(key) {
                    Some(wanted) => look(&path, (live, wanted), fields, found),
                    None => {
                        let is_left = chooses || !fields.ours.is_empty();
                        if live.is_object() && is_left && fields.others.is_empty() {
                            found.push(path);
                        }
                    }
                });
            }
        }
        (Value::Array(_), Value::Array(_)) => {
            for (segment, _) in fields.ours.items() {
                let items = (locate::step(live, &segment), locate::step(wanted, &segment));
                if let (Some(live), Some(wanted)) = items {
                    let path = path.join(segment.clone());
                    fields.below(&segment, |fields| {
                        look(&path, (live, wanted), fields, found)
                    });
                }
            }
        }
        _ => {}
    }
}

/// Whether a value right here becomes another one, such as a type.
fn chooses(live: &Map<String, Value>, wanted: &Map<String, Value>) -> bool {
    wanted.iter().any(|(key, wanted)| {
        let is_value = !wanted.is_object() && !wanted.is_array();
        is_value && live.get(key).is_some_and(|live| live != wanted)
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const OURS: &str = "pleach/production.web";

    fn live(spec: &Value, ours: &Value, others: &Value) -> Value {
        json!({
            "metadata": {"name": "web", "labels": {"a": "b"}, "managedFields": [
                {"manager": OURS, "operation": "Apply", "fieldsV1": {"f:spec": ours}},
                {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": others}},
            ]},
            "spec": spec,
        })
    }

    #[rstest]
    #[case::another_type(
        json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}}}),
        json!({"f:strategy": {"f:type": {}}}),
        json!({"strategy": {"type": "Recreate"}}),
        &[".spec.strategy.rollingUpdate"])]
    #[case::the_same_type(
        json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}}}),
        json!({"f:strategy": {"f:type": {}}}),
        json!({"strategy": {"type": "RollingUpdate"}}),
        &[])]
    #[case::what_is_left_of_ours(
        json!({"probe": {"httpGet": {"port": 80, "scheme": "HTTP"}, "periodSeconds": 10}}),
        json!({"f:probe": {"f:httpGet": {"f:port": {}}}}),
        json!({"probe": {"tcpSocket": {"port": 80}}}),
        &[".spec.probe.httpGet"])]
    #[case::of_an_item(
        json!({"volumes": [{"name": "v", "configMap": {"name": "c", "defaultMode": 420}}, {"name": "w", "emptyDir": {}}]}),
        json!({"f:volumes": {"k:{\"name\":\"v\"}": {"f:name": {}, "f:configMap": {"f:name": {}}}, "k:{\"name\":\"w\"}": {"f:name": {}, "f:emptyDir": {}}}}),
        json!({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}),
        &[".spec.volumes[name=\"v\"].configMap"])]
    fn what_belonged_to_another_choice_is_found(
        #[case] spec: Value,
        #[case] ours: Value,
        #[case] wanted: Value,
        #[case] expected: &[&str],
    ) {
        let wanted = json!({"metadata": {"name": "web"}, "spec": wanted});
        let found = outgrown(
            &live(&spec, &ours, &json!({})),
            &wanted,
            OURS,
            Held::ByNobody,
        );
        let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(texts, expected);
        let denied = denying(wanted, &found);
        for path in &found {
            assert_eq!(locate::find(&denied, path), Some(&Value::Null));
        }
    }

    #[test]
    fn what_others_hold_is_looked_for_on_request() {
        let spec = json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 3}}});
        let others = json!({"f:strategy": {"f:rollingUpdate": {"f:maxSurge": {}}}});
        let live = live(&spec, &json!({"f:strategy": {"f:type": {}}}), &others);
        let wanted = json!({"spec": {"strategy": {"type": "Recreate"}}});
        assert_eq!(outgrown(&live, &wanted, OURS, Held::ByNobody), []);
        assert_eq!(outgrown(&live, &wanted, OURS, Held::ByOthersToo).len(), 1);
    }
}
