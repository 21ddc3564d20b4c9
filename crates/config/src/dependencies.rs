//! Readiness conditions of a release (`dependsOn`), and the order in which releases are installed
//! and removed.
//!
//! This module reads nothing. The caller reads the cluster, asks for hindrances, and passes them to
//! the planner, which reports them in preflight.

mod toposort;

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use pleach_fields::diff::masking::Masker;
use pleach_formats::readiness::assess;
use pleach_model::cel::{Expression, Subject};
use pleach_model::object::{DigestKey, GroupKind, ObjectId, Origin, Secrecy};
use pleach_state::inventory::Installed;

pub use toposort::{Arranged, arrange};

/// Code of the finding for a dependency that is not ready yet.
pub const NOT_READY: &str = "dependency-not-ready";
/// Code of the finding for a release that is still needed although it is being removed.
pub const STILL_NEEDED: &str = "still-needed";

/// A condition that must be met before a release starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    /// The release or object that must be ready.
    pub needed: Needed,
    /// File and line of the declaration in the environment.
    pub origin: Origin,
}

/// A release or object that a release depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Needed {
    /// Name of another release in the environment.
    Release(String),
    /// An object, regardless of its owner.
    Object(NeededObject),
}

/// An object that must be ready.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NeededObject {
    /// Group and kind.
    pub kind: GroupKind,
    /// Its namespace. Defaults to the namespace of the release if the kind is namespaced.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Condition for readiness. `None` uses the readiness rules of the kind.
    pub ready: Option<Expression>,
}

/// State that a required release must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetRelease<'a> {
    /// The version in git. `None` if the bundle has no versions.
    pub version: Option<&'a str>,
    /// Commit at which the release must have been reconciled. `None` accepts any commit.
    pub revision: Option<&'a str>,
}

/// A reason why a release cannot start yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hindrance {
    /// One line: the dependency and its problem.
    pub message: String,
    /// File and line of the declaration in the environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Origin>,
    /// Index in the release's `dependsOn`. `None` if another release depends on this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    /// Whether a change that is executed before this release resolves the hindrance.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub comes_first: bool,
}

impl Dependency {
    /// Returns the name of the required release. `None` for an object.
    pub fn release(&self) -> Option<&str> {
        match &self.needed {
            Needed::Release(name) => Some(name),
            Needed::Object(_) => None,
        }
    }
}

impl TargetRelease<'_> {
    /// Describes, from its record, why a release is not ready. Returns `None` if it is ready.
    pub fn lacks(self, record: Option<&Installed>) -> Option<String> {
        let Some(record) = record else {
            return Some("is not installed".to_owned());
        };
        if let Some(applying) = &record.applying {
            return Some(format!("is not at {} yet", applying.version));
        }
        let Some(installed) = record.installed.as_ref().filter(|_| record.ready) else {
            return Some("is not ready".to_owned());
        };
        if let Some(version) = self.version
            && installed.version != version
        {
            let is = &installed.version;
            return Some(format!("is at {is}, expected {version}"));
        }
        let revision = self.revision?;
        (installed.revision != revision).then(|| {
            let short = revision.get(..7).unwrap_or(revision);
            format!("was not reconciled at commit {short} yet")
        })
    }
}

impl NeededObject {
    /// Describes why a live object is not ready. Returns `None` if it is ready.
    ///
    /// The text never contains a value of the object. Secret fields do not influence the result.
    pub fn lacks(&self, live: Option<&Value>) -> Option<String> {
        let Some(live) = live else {
            return Some("does not exist".to_owned());
        };
        if !live["metadata"]["deletionTimestamp"].is_null() {
            return Some("is being deleted".to_owned());
        }
        let Some(ready) = &self.ready else {
            let assessment = assess(live);
            return (!assessment.is_current()).then(|| match assessment.message.as_str() {
                "" => format!("is {}", assessment.readiness),
                message => format!("is not ready: {message}"),
            });
        };
        match ready.test(&Subject::of(&self.shown(live))) {
            Ok(true) => None,
            Ok(false) => Some(format!("is not ready: `{}` does not hold", ready.text())),
            Err(why) => Some(format!("is not ready: `{}`: {why}", ready.text())),
        }
    }

    /// Masks fields that are secret by kind. Otherwise the readiness of the release would reveal
    /// them.
    fn shown(&self, live: &Value) -> Value {
        let GroupKind { group, kind } = &self.kind;
        let id = ObjectId::new(group, kind, self.namespace.as_deref(), &self.name);
        // An empty key is safe, because only the masker's numbers leave this function.
        Masker::new(DigestKey::new(Vec::new())).object(live.clone(), &Secrecy::of(&id, &[]))
    }
}

impl fmt::Display for NeededObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.kind)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use pleach_model::object::Digest;
    use pleach_state::inventory::Attempt;

    fn attempt(version: &str, revision: &str) -> Attempt {
        Attempt {
            version: version.to_owned(),
            revision: revision.to_owned(),
            digest: Digest::of(b"x"),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    fn ready() -> Installed {
        Installed {
            installed: Some(attempt("v1", "abcdef012")),
            ready: true,
            ..Installed::default()
        }
    }

    const ANY: TargetRelease<'_> = TargetRelease {
        version: None,
        revision: None,
    };

    #[rstest]
    #[case::ready(ANY, |_: &mut Installed| {}, None)]
    #[case::this_version(TargetRelease { version: Some("v1"), ..ANY }, |_: &mut Installed| {}, None)]
    #[case::this_commit(TargetRelease { revision: Some("abcdef012"), ..ANY }, |_: &mut Installed| {}, None)]
    #[case::another_version(TargetRelease { version: Some("v2"), ..ANY }, |_: &mut Installed| {},
        Some("is at v1, expected v2"))]
    #[case::another_commit(TargetRelease { revision: Some("0123456789"), ..ANY }, |_: &mut Installed| {},
        Some("was not reconciled at commit 0123456 yet"))]
    #[case::not_ready(ANY, |record: &mut Installed| record.ready = false, Some("is not ready"))]
    #[case::never_converged(ANY, |record: &mut Installed| record.installed = None, Some("is not ready"))]
    #[case::on_its_way(ANY, |record: &mut Installed| record.applying = Some(attempt("v2", "b")),
        Some("is not at v2 yet"))]
    fn readiness_of_a_release_follows_its_record(
        #[case] target: TargetRelease<'_>,
        #[case] change: fn(&mut Installed),
        #[case] expected: Option<&str>,
    ) {
        let mut record = ready();
        change(&mut record);
        assert_eq!(target.lacks(Some(&record)).as_deref(), expected);
        assert_eq!(target.lacks(None).unwrap(), "is not installed");
    }

    fn needed(ready: Option<&str>) -> NeededObject {
        NeededObject {
            kind: GroupKind::new("apps", "Deployment"),
            namespace: Some("web".to_owned()),
            name: "api".to_owned(),
            ready: ready.map(|text| Expression::compile(text, &["item", "status"]).unwrap()),
        }
    }

    #[rstest]
    #[case::expression(Some("item.status.phase == 'Up'"), json!({"status": {"phase": "Up"}}), None)]
    #[case::expression_fails(Some("item.status.phase == 'Up'"), json!({"status": {"phase": "Down"}}),
        Some("is not ready: `item.status.phase == 'Up'` does not hold"))]
    #[case::no_status_yet(Some("item.status.phase == 'Up'"), json!({}),
        Some("is not ready: `item.status.phase == 'Up'`: there is no `status`"))]
    #[case::leaving(Some("true"), json!({"metadata": {"deletionTimestamp": "now"}}),
        Some("is being deleted"))]
    #[case::by_its_kind(None, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}), None)]
    fn readiness_of_an_object_follows_its_status(
        #[case] ready: Option<&str>,
        #[case] live: Value,
        #[case] expected: Option<&str>,
    ) {
        let needed = needed(ready);
        assert_eq!(needed.lacks(Some(&live)).as_deref(), expected);
        assert_eq!(needed.lacks(None).unwrap(), "does not exist");
        assert_eq!(needed.to_string(), "Deployment.apps/web/api");
    }

    #[rstest]
    #[case::it_has_a_key("has(data.pw)", true)]
    #[case::a_right_guess("data.pw.startsWith('aHV')", false)]
    #[case::the_whole_value("item.data['pw'] == 'aHVudGVyMg=='", false)]
    fn values_of_a_secret_do_not_affect_readiness(#[case] ready: &str, #[case] expected: bool) {
        let needed = NeededObject {
            kind: GroupKind::new("", "Secret"),
            ready: Some(Expression::compile(ready, &["item", "data"]).unwrap()),
            ..needed(None)
        };
        let live = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "api", "namespace": "web"},
            "data": {"pw": "aHVudGVyMg=="},
        });
        let lacks = needed.lacks(Some(&live));
        assert_eq!(lacks.is_none(), expected, "{lacks:?}");
    }

    #[test]
    fn a_workload_that_is_not_available_is_not_ready() {
        let live = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"generation": 2},
            "spec": {"replicas": 1}, "status": {"observedGeneration": 1},
        });
        let lacks = needed(None).lacks(Some(&live)).unwrap();
        assert!(lacks.starts_with("is not ready: "), "{lacks}");
    }
}
