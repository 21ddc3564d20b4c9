//! Serialized render results, passed from the bounded render process to the controller.
//!
//! The sender reads untrusted files and could be compromised. The receiver therefore derives as
//! much as possible from each object and repeats the checks that it relies on. If one fails, it
//! refuses the whole answer.
//!
//! The format is JSON lines: a head, then each release, followed by its objects.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::scope::{Kinds, Known};
use super::{Rendered, refuse_shared, reserved};
use pleach_config::{Record, ResolvedEnvironment, ResolvedRelease};
use pleach_fields::ignore;
use pleach_model::finding::Finding;
use pleach_model::kinds::{KindTable, Scope};
use pleach_model::object::{
    ApiVersion, Manifest, ObjectId, Origin, ReleaseName, SecretField, labels,
};
use pleach_model::order;
use pleach_model::secret_values::SecretValues;
use pleach_state::state_objects::is_named_as_state;

/// Version of the format. Sender and receiver are the same binary.
const FORMAT: u32 = 1;

/// First line of an answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Head {
    format: u32,
    record: Record,
}

/// Line of one release.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Release {
    name: ReleaseName,
    findings: Vec<Finding>,
    inputs: Vec<String>,
    secret_values: SecretValues,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    stand_ins: Vec<String>,
    /// Objects in the order of the following lines.
    objects: Vec<Object>,
}

/// Facts about an object. Its content is a line of its own.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Object {
    origin: Origin,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    secret_fields: Vec<SecretField>,
}

/// Error from reading an answer. Contains no value of an object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// The answer ends before its last object.
    #[error("the answer is incomplete")]
    Incomplete,
    /// The answer continues after its last object.
    #[error("the answer continues after its last object")]
    TooLong,
    /// A line does not have the expected type.
    #[error("line {0} of the answer is invalid")]
    Line(usize),
    /// The answer has another format version.
    #[error("the answer has format {0}, expected {FORMAT}")]
    Format(u32),
    /// The answer contains another release than expected.
    #[error("the answer has release {found}, expected {expected}")]
    Release {
        /// The release of the environment.
        expected: ReleaseName,
        /// The release of the answer.
        found: ReleaseName,
    },
    /// An object violates a rule of rendering.
    #[error("object {object} of the answer {why}")]
    Object {
        /// The object.
        object: ObjectId,
        /// Violation, as a clause after the object's name.
        why: &'static str,
    },
}

/// Writes an answer in chunks of whole lines. `record` lists the files that it depends on.
/// `rendered` are all releases of an environment, in its order.
///
/// Fails for a value that JSON cannot represent.
pub fn write<'a>(
    record: Record,
    rendered: impl IntoIterator<Item = &'a Rendered>,
    print: &mut dyn FnMut(&str),
) -> Result<(), serde_json::Error> {
    let head = Head {
        format: FORMAT,
        record,
    };
    print(&serde_json::to_string(&head)?);
    for one in rendered {
        let Rendered {
            release,
            manifests,
            // The receiver derives these from the environment.
            ignored: _,
            findings,
            inputs,
            secret_values,
            stand_ins,
        } = one;
        let objects = manifests.iter().map(|manifest| Object {
            origin: manifest.origin().clone(),
            secret_fields: manifest.secret_fields().to_vec(),
        });
        let line = Release {
            name: release.clone(),
            findings: findings.clone(),
            inputs: inputs.clone(),
            secret_values: secret_values.clone(),
            stand_ins: stand_ins.clone(),
            objects: objects.collect(),
        };
        print(&serde_json::to_string(&line)?);
        for manifest in manifests {
            print(&String::from_utf8_lossy(manifest.json()));
        }
    }
    Ok(())
}

/// Reads and checks an answer about all releases of an environment, in its order.
pub fn read(
    answer: &[u8],
    environment: &ResolvedEnvironment,
    table: &KindTable,
) -> Result<(Record, Vec<Rendered>), AnswerError> {
    let mut lines = Lines::of(answer);
    let Head { format, record } = lines.next()?;
    if format != FORMAT {
        return Err(AnswerError::Format(format));
    }
    let mut kinds = Kinds::new(table);
    let mut all = Vec::with_capacity(environment.releases.len());
    for release in &environment.releases {
        all.push(read_release(&mut lines, release, &mut kinds)?);
    }
    if !lines.are_read() {
        return Err(AnswerError::TooLong);
    }
    for manifest in all.iter().flat_map(|rendered| &rendered.manifests) {
        let is_namespaced = manifest.id().namespace.is_some();
        if let Known::Served(scope) = kinds.known(&manifest.gvk())
            && is_namespaced != (scope == Scope::Namespaced)
        {
            return Err(refused(
                manifest.id(),
                "does not have the scope of its kind",
            ));
        }
    }
    refuse_shared(all.iter_mut());
    Ok((record, all))
}

fn read_release(
    lines: &mut Lines<'_>,
    release: &ResolvedRelease,
    kinds: &mut Kinds<'_>,
) -> Result<Rendered, AnswerError> {
    let Release {
        name,
        findings,
        inputs,
        secret_values,
        stand_ins,
        objects,
    } = lines.next()?;
    if name != release.name {
        return Err(AnswerError::Release {
            expected: release.name.clone(),
            found: name,
        });
    }
    let mut known = BTreeSet::new();
    let mut manifests = Vec::with_capacity(objects.len());
    for object in objects {
        let mut value: Value = lines.next()?;
        let at = lines.line;
        let id = identify(&value).ok_or(AnswerError::Line(at))?;
        check(&mut value, &id, release)?;
        kinds.define_one(&value);
        if !known.insert(id.clone()) {
            return Err(refused(&id, "occurs twice"));
        }
        let api_version = value["apiVersion"].as_str().unwrap_or_default();
        let api_version = ApiVersion::parse(api_version);
        let manifest = Manifest::new(id, api_version, object.origin, &value, false);
        manifests.push(manifest.with_secret_fields(object.secret_fields));
    }
    order::sort(&mut manifests);
    // The sender has already reported these findings.
    let mut reported = Vec::new();
    Ok(Rendered {
        ignored: ignore::resolve(&release.ignore, &manifests, &mut reported),
        release: name,
        manifests,
        findings,
        inputs,
        secret_values,
        stand_ins,
    })
}

/// Returns the id of an object from its content.
fn identify(value: &Value) -> Option<ObjectId> {
    let metadata = value.get("metadata")?;
    let namespace = match metadata.get("namespace") {
        None => None,
        Some(namespace) => Some(namespace.as_str()?),
    };
    let group = ApiVersion::parse(value.get("apiVersion")?.as_str()?).group;
    let (kind, name) = (
        value.get("kind")?.as_str()?,
        metadata.get("name")?.as_str()?,
    );
    Some(ObjectId::new(&group, kind, namespace, name))
}

/// Refuses forbidden content: objects of other releases, and fields that only pleach sets.
fn check(value: &mut Value, id: &ObjectId, release: &ResolvedRelease) -> Result<(), AnswerError> {
    let set = value.pointer_mut("/metadata/labels");
    let set = set.and_then(Value::as_object_mut);
    let part_of = set.and_then(|set| set.shift_remove(labels::PART_OF));
    let expected = release.store.apply_set(&release.name);
    if part_of.as_ref().and_then(Value::as_str) != Some(expected.as_str()) {
        return Err(refused(id, "does not have the label of its release"));
    }
    if !reserved::is_free(value, id, &release.sequence) {
        return Err(refused(
            id,
            "has a label or annotation that is reserved for pleach",
        ));
    }
    if is_named_as_state(id, &release.name.environment, &release.store) {
        return Err(refused(id, "has the name of a state object"));
    }
    value["metadata"]["labels"][labels::PART_OF] = Value::String(expected);
    Ok(())
}

fn refused(id: &ObjectId, why: &'static str) -> AnswerError {
    AnswerError::Object {
        object: id.clone(),
        why,
    }
}

/// Reader for the lines of an answer.
struct Lines<'a> {
    rest: &'a [u8],
    /// Number of the last line that was read, from 1.
    line: usize,
}

impl<'a> Lines<'a> {
    fn of(answer: &'a [u8]) -> Self {
        Self {
            rest: answer,
            line: 0,
        }
    }

    fn next<T: DeserializeOwned>(&mut self) -> Result<T, AnswerError> {
        let end = self.rest.iter().position(|byte| *byte == b'\n');
        let (line, rest) = self.rest.split_at(end.ok_or(AnswerError::Incomplete)?);
        self.rest = rest.get(1..).unwrap_or_default();
        self.line += 1;
        // Drop the JSON error: it can quote a value.
        serde_json::from_slice(line).map_err(|_| AnswerError::Line(self.line))
    }

    fn are_read(&self) -> bool {
        self.rest.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{render_environment, samples};
    use pleach_config::RecordingTree;
    use pleach_model::tree::MemoryTree;

    const CRD: &str = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: gears.example.org}\nspec:\n  group: example.org\n  names: {kind: Gear, plural: gears}\n  scope: Cluster\n  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]\n---\napiVersion: example.org/v1\nkind: Gear\nmetadata: {name: one}\nspec: {teeth: 9}\n";
    const OBJECTS: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web, annotations: {pleach.dev/prune: disabled}}\ndata: {k: \"a\\nb\"}\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: web}\nstringData: {password: hunter22}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: bad name}\n";

    fn table() -> KindTable {
        KindTable::for_minor("1.36").unwrap()
    }

    /// Returns two releases and their render results.
    fn rendered() -> (ResolvedEnvironment, Record, Vec<Rendered>) {
        let files = [("gears.yaml", CRD), ("web.yaml", OBJECTS)];
        let tree = MemoryTree::new(files.map(|(path, text)| (path, text.as_bytes())));
        let tree = RecordingTree::new(&tree);
        let environment = samples::environment(vec![
            samples::release("gears", &["gears.yaml"], json!({})),
            samples::release("web", &["web.yaml"], json!({})),
        ]);
        let mut rendered = render_environment(&tree, &environment, &table());
        rendered[1].secret_values = SecretValues::all_of(&json!({"password": "hunter22"}));
        let map = &mut rendered[1].manifests[0];
        *map = map
            .clone()
            .with_secret_fields(vec![SecretField::of_keys(&["data", "k"])]);
        (environment, tree.record(), rendered)
    }

    fn answer(record: Record, rendered: &[Rendered]) -> String {
        let mut answer = String::new();
        let mut print = |lines: &str| {
            answer.push_str(lines);
            answer.push('\n');
        };
        write(record, rendered, &mut print).unwrap();
        answer
    }

    #[test]
    fn an_answer_is_read_as_it_was_rendered() {
        let (environment, record, rendered) = rendered();
        let kinds = rendered.iter().flat_map(|one| &one.manifests);
        let kinds: Vec<&str> = kinds.map(|one| one.id().kind.as_str()).collect();
        assert_eq!(
            kinds,
            ["CustomResourceDefinition", "Gear", "ConfigMap", "Secret"]
        );
        assert!(rendered[1].failed());
        let answer = answer(record.clone(), &rendered);
        let read = read(answer.as_bytes(), &environment, &table()).unwrap();
        assert_eq!(read, (record, rendered));
    }

    #[test]
    fn an_answer_that_rendering_cannot_give_is_refused() {
        let (environment, record, rendered) = rendered();
        let good = answer(record, &rendered);
        let lines: Vec<&str> = good.lines().collect();
        let without_last = format!("{}\n", lines[..lines.len() - 1].join("\n"));
        let map = lines.iter().find(|line| line.contains(r#""ConfigMap""#));
        let map = format!("{}\n", map.unwrap());
        let replaced = |from: &str, to: &str| {
            let changed = good.replace(from, to);
            assert_ne!(changed, good, "{from}");
            changed
        };
        let in_map = |from: &str, to: &str| replaced(&map, &map.replace(from, to));
        let cases = [
            ("nothing", String::new(), "incomplete"),
            (
                "cut in a line",
                good[..good.len() - 1].to_owned(),
                "incomplete",
            ),
            ("cut between lines", without_last, "incomplete"),
            ("more", format!("{good}{map}"), "continues after"),
            (
                "format",
                replaced("\"format\":1", "\"format\":2"),
                "format 2, expected 1",
            ),
            ("no JSON", replaced("{\"format\"", "{format"), "line 1 of"),
            (
                "field",
                replaced("\"format\":1", "\"format\":1,\"x\":1"),
                "line 1 of",
            ),
            (
                "release",
                replaced("\"release\":\"web\"", "\"release\":\"api\""),
                "expected",
            ),
            ("no name", in_map("\"name\":", "\"named\":"), "is invalid"),
            (
                "twice",
                replaced(&map, &map.replace("\"ConfigMap\"", "\"Secret\"")),
                "occurs twice",
            ),
            (
                "another release's",
                in_map(
                    "\"applyset.kubernetes.io/part-of\":\"",
                    "\"applyset.kubernetes.io/part-of\":\"x",
                ),
                "does not have the label of its release",
            ),
            (
                "reserved",
                in_map("pleach.dev/prune", "pleach.dev/run-key"),
                "reserved for pleach",
            ),
            (
                "state",
                in_map("\"name\":\"web\"", "\"name\":\"pleach-digest-key\"")
                    .replace("\"ConfigMap\"", "\"Secret\""),
                "name of a state object",
            ),
            (
                "built-in scope",
                replaced(
                    "\"name\":\"gears.example.org\"",
                    "\"name\":\"gears.example.org\",\"namespace\":\"shop\"",
                ),
                "does not have the scope of its kind",
            ),
            (
                "custom scope",
                replaced(
                    "\"name\":\"one\"",
                    "\"name\":\"one\",\"namespace\":\"shop\"",
                ),
                "does not have the scope of its kind",
            ),
        ];
        for (name, answer, expected) in cases {
            let error = read(answer.as_bytes(), &environment, &table()).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(expected), "{name}: {error}");
        }
    }

    #[test]
    fn an_object_of_two_releases_is_an_error_of_the_later_one() {
        let (environment, record, mut rendered) = rendered();
        let web = &environment.releases[1];
        let gear = &rendered[0].manifests[1];
        let mut stolen = gear.value();
        stolen["metadata"]["labels"][labels::PART_OF] = web.store.apply_set(&web.name).into();
        let stolen = gear.with_content(&stolen);
        rendered[1].manifests = vec![stolen];
        rendered[1].findings.clear();
        let answer = answer(record, &rendered);
        let (_, read) = read(answer.as_bytes(), &environment, &table()).unwrap();
        assert!(read[1].failed() && read[1].manifests.is_empty());
    }
}
