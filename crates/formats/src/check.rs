//! Conditions on live objects that a bundle declares.
//!
//! A [`Check`] evaluates each object that its selector matches and returns the objections. `checks`
//! of a bundle run before a change, `blockUninstall` before a release is removed. Messages never
//! contain secret values.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    file::{self, BlockUninstall},
    policy::SecretRule,
};
use pleach_fields::diff::masking::Masker;
use pleach_model::cel::{CompileError, Expression, Subject, Template, Unevaluable};
use pleach_model::object::{DigestKey, GroupKind, NonSecret, ObjectId, Origin, Secrecy, Selector};

/// Names that the expressions of a check can use. `node` is the node of a change of nodes.
const NAMES: &[&str] = &["item", NODE];

/// Names that the expressions of a `blockUninstall` rule can use.
const NAMES_OF_END: &[&str] = &["item"];

const NODE: &str = "node";

/// Maximum number of objects that are listed individually.
const NAMED: usize = 20;

/// Maximum length of a message, in characters.
const LONGEST: usize = 400;

/// A condition that every selected object must meet.
#[derive(Debug, Clone, PartialEq, Hash)]
pub struct Check {
    /// Its name. Empty for a `blockUninstall` rule.
    pub name: String,
    /// Selector of the objects. Without a namespace, it selects from all namespaces.
    pub target: Selector,
    /// File and line of the declaration.
    pub origin: Origin,
    /// Filter on the selected objects, from `where`.
    condition: Option<Expression>,
    /// Condition that must hold. `None` if no such object is allowed to exist.
    require: Option<Expression>,
    message: Option<Template>,
    secret: Vec<SecretRule>,
    /// The node that the check is evaluated for.
    node: Option<NonSecret>,
}

/// A part of a check that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenCheck {
    /// The field that contains the expression.
    pub field: &'static str,
    /// The errors of the expression.
    pub error: CompileError,
}

/// Result of evaluating a check for all its objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CheckOutcome {
    /// All objects were evaluated.
    Seen {
        /// First objections, sorted by object id. Empty if the check holds.
        objections: Vec<Objection>,
        /// Number of further objections that are not listed.
        more: usize,
    },
    /// Not all objects could be read, so there is no result. Contains the reason.
    Unknown(String),
}

/// An object for which a check does not hold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Objection {
    /// The object.
    pub object: ObjectId,
    /// Reason, in one line.
    pub message: String,
}

impl Check {
    /// Parses a check of a bundle. Reports all its errors at once.
    pub fn read(
        check: &file::Check,
        secret: &[SecretRule],
        origin: Origin,
    ) -> Result<Self, Vec<BrokenCheck>> {
        let mut broken = Vec::new();
        let read = Self {
            name: check.name.clone(),
            target: check.for_each.clone(),
            origin,
            condition: expression("where", check.condition.as_deref(), NAMES, &mut broken),
            require: expression("require", Some(&check.require), NAMES, &mut broken),
            message: template(check.message.as_deref(), NAMES, &mut broken),
            secret: secret.to_vec(),
            node: None,
        };
        if broken.is_empty() {
            Ok(read)
        } else {
            Err(broken)
        }
    }

    /// Parses a `blockUninstall` rule. Reports all its errors at once.
    pub fn of_end(rule: &BlockUninstall, origin: Origin) -> Result<Self, Vec<BrokenCheck>> {
        let mut broken = Vec::new();
        let read = Self {
            name: String::new(),
            target: rule.for_each.clone(),
            origin,
            condition: expression(
                "where",
                rule.condition.as_deref(),
                NAMES_OF_END,
                &mut broken,
            ),
            require: None,
            message: template(Some(&rule.message), NAMES_OF_END, &mut broken),
            secret: Vec::new(),
            node: None,
        };
        if broken.is_empty() {
            Ok(read)
        } else {
            Err(broken)
        }
    }

    /// Returns whether an expression uses the variable `node`.
    pub fn needs_node(&self) -> bool {
        let conditions = [&self.condition, &self.require].into_iter().flatten();
        let mut conditions = conditions.map(|one| one.uses(NODE));
        conditions.any(|uses| uses) || self.message.as_ref().is_some_and(|one| one.uses(NODE))
    }

    /// Returns the check for one node, given as a live object.
    #[must_use]
    pub fn for_node(&self, node: &Value) -> Self {
        Self {
            node: Some(NonSecret(node.clone())),
            ..self.clone()
        }
    }

    /// Returns the kind of the selected objects.
    ///
    /// `None` does not occur for a parsed bundle, because unknown groups are refused there.
    pub fn kind(&self) -> Option<GroupKind> {
        self.target.group_kind()
    }

    /// Returns the objection to a selected object.
    ///
    /// Returns `None` if the check holds or does not apply to the object. `secrecy` adds secret
    /// fields to the ones that the kind and the bundle define.
    pub fn object_to(&self, id: &ObjectId, value: &Value, secrecy: &Secrecy) -> Option<String> {
        // Secret fields are masked for the conditions, too. Otherwise the result would reveal them.
        let subject = self.shown(id, value, secrecy);
        let unclear = match self.condition.as_ref().map(|one| one.test(&subject)) {
            None | Some(Ok(true)) => None,
            // A missing field means that the filter does not match.
            Some(Ok(false) | Err(Unevaluable::Missing(_))) => return None,
            Some(Err(why)) => Some(("where", why)),
        };
        let unclear = match self.require.as_ref().map(|one| one.test(&subject)) {
            Some(Ok(true)) if unclear.is_none() => return None,
            Some(Err(why)) => unclear.or(Some(("require", why))),
            _ => unclear,
        };
        let message = match (&self.message, &self.require) {
            (Some(message), _) => message.render(&subject),
            (None, Some(require)) => format!("`{}` does not hold", require.text()),
            (None, None) => "it exists".to_owned(),
        };
        Some(one_line(&match unclear {
            Some((field, why)) => format!("{message} (`{field}`: {why})"),
            None => message,
        }))
    }

    /// Returns whether the check reads the content of objects, not only their existence.
    pub fn sees_everything(&self) -> bool {
        let message_reads = self.message.as_ref().is_some_and(Template::has_expressions);
        self.condition.is_some() || self.require.is_some() || message_reads
    }

    /// Returns the labels of a live object.
    pub fn labels(value: &Value) -> BTreeMap<String, String> {
        let labels = value["metadata"]["labels"].as_object();
        labels
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect()
    }

    /// Returns the object with its secret fields masked.
    fn shown(&self, id: &ObjectId, value: &Value, secrecy: &Secrecy) -> Subject {
        let labels = Self::labels(value);
        let fields: Vec<_> = self
            .secret
            .iter()
            .filter(|rule| rule.target.matches(id, &labels))
            .flat_map(|rule| rule.fields.iter().cloned())
            .collect();
        let secrecy = Secrecy::of(id, &fields).and(secrecy);
        // An empty key is safe, because only the masker's numbers leave this function.
        let masked = Masker::new(DigestKey::new(Vec::new())).object(value.clone(), &secrecy);
        let subject = Subject::of(&masked);
        match &self.node {
            Some(node) => subject.with(NODE, &node.0),
            None => subject,
        }
    }
}

impl CheckOutcome {
    /// Builds the result for a complete evaluation. Sorts and truncates the objections.
    pub fn seen(mut objections: Vec<Objection>) -> Self {
        objections.sort();
        let more = objections.len().saturating_sub(NAMED);
        objections.truncate(NAMED);
        Self::Seen { objections, more }
    }

    /// Returns whether all objects were evaluated without an objection.
    pub fn holds(&self) -> bool {
        matches!(self, Self::Seen { objections, .. } if objections.is_empty())
    }

    /// Describes the first objection and the number of others in one line. `None` if it holds.
    pub fn explain(&self) -> Option<String> {
        match self {
            Self::Unknown(why) => Some(format!("cannot be evaluated: {why}")),
            Self::Seen { objections, more } => {
                let first = objections.first()?;
                let more = objections.len() - 1 + more;
                let Objection { object, message } = first;
                Some(match more {
                    0 => format!("{object}: {message}"),
                    more => format!("{object}: {message}; and {more} more"),
                })
            }
        }
    }
}

fn expression(
    field: &'static str,
    text: Option<&str>,
    names: &[&str],
    broken: &mut Vec<BrokenCheck>,
) -> Option<Expression> {
    Expression::compile(text?, names)
        .map_err(|error| broken.push(BrokenCheck { field, error }))
        .ok()
}

fn template(text: Option<&str>, names: &[&str], broken: &mut Vec<BrokenCheck>) -> Option<Template> {
    let field = "message";
    Template::compile(text?, names)
        .map_err(|error| broken.push(BrokenCheck { field, error }))
        .ok()
}

fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= LONGEST {
        return line;
    }
    let mut cut: String = line.chars().take(LONGEST - 1).collect();
    cut.push('…');
    cut
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn check(condition: Option<&str>, require: &str, message: Option<&str>) -> Check {
        let check = file::Check {
            name: "volumes-healthy".to_owned(),
            for_each: Selector {
                kind: "Volume".to_owned(),
                group: Some("example.org".to_owned()),
                ..Selector::default()
            },
            condition: condition.map(str::to_owned),
            require: require.to_owned(),
            message: message.map(str::to_owned),
        };
        let secret = SecretRule {
            target: check.for_each.clone(),
            fields: vec!["spec.key".parse().unwrap()],
            origin: Origin::new("bundle.yaml", 1),
        };
        Check::read(&check, &[secret], Origin::new("bundle.yaml", 3)).unwrap()
    }

    fn object_to(check: &Check, value: &Value) -> Option<String> {
        let id: ObjectId = "Volume.example.org/storage/a".parse().unwrap();
        check.object_to(&id, value, &Secrecy::default())
    }

    #[rstest]
    #[case::holds(json!({"spec": {"replicas": 1}, "status": {"robustness": "healthy"}}), None)]
    #[case::not_about_it(json!({"spec": {"replicas": 3}, "status": {"robustness": "degraded"}}), None)]
    #[case::without_the_fields(json!({"status": {"robustness": "degraded"}}), None)]
    #[case::broken(json!({"metadata": {"name": "a"}, "spec": {"replicas": 1}, "status": {"robustness": "degraded"}}),
        Some("volume a is degraded"))]
    #[case::not_known_yet(json!({"metadata": {"name": "a"}, "spec": {"replicas": 1}}),
        Some("volume a is (unknown) (`require`: there is no `status`)"))]
    #[case::of_another_type(json!({"metadata": {"name": "a"}, "spec": {"replicas": "1"}, "status": {"robustness": "healthy"}}),
        Some("volume a is healthy (`where`: type error: a value does not have the expected type)"))]
    fn objections_to_an_object_are_explained(#[case] value: Value, #[case] expected: Option<&str>) {
        let check = check(
            Some("item.spec.replicas < 2"),
            "item.status.robustness == 'healthy'",
            Some("volume {{ item.metadata.name }} is {{ item.status.robustness }}"),
        );
        assert_eq!(object_to(&check, &value).as_deref(), expected);
    }

    #[test]
    fn a_check_without_a_message_shows_its_requirement() {
        let check = check(None, "item.status.ok", None);
        assert_eq!(
            object_to(&check, &json!({"status": {"ok": false}})).as_deref(),
            Some("`item.status.ok` does not hold")
        );
    }

    #[test]
    fn messages_contain_no_secret_and_one_line() {
        let text = "key {{ item.spec.key }}\n{{ item.spec.keys }} {{ item.data }}";
        let check = check(None, "item.spec.key == 'x'", Some(text));
        let value = json!({"spec": {"key": "s3cr3t", "keys": 1}, "data": {"a": "shown"}});
        let message = object_to(&check, &value).unwrap();
        assert_eq!(message, "key <secret 1> 1 {a: shown}");
        let secret: ObjectId = "Secret/web/a".parse().unwrap();
        let message = check.object_to(&secret, &value, &Secrecy::default());
        assert_eq!(
            message.unwrap(),
            "key <secret 1> <secret 2> {a: <secret 3>}"
        );
        let id: ObjectId = "Volume.example.org/storage/a".parse().unwrap();
        let message = check.object_to(&id, &value, &Secrecy::everything());
        assert!(!message.unwrap().contains("shown"));
    }

    #[test]
    fn an_uninstall_block_applies_while_a_matching_object_exists() {
        let rule = |condition: Option<&str>| BlockUninstall {
            for_each: Selector::default(),
            condition: condition.map(str::to_owned),
            message: "machine {{ item.metadata.name }} runs".to_owned(),
        };
        let origin = Origin::new("bundle.yaml", 1);
        let any = Check::of_end(&rule(None), origin.clone()).unwrap();
        let value = json!({"metadata": {"name": "a"}, "status": {"phase": "Running"}});
        assert_eq!(object_to(&any, &value).as_deref(), Some("machine a runs"));
        let running = rule(Some("item.status.phase == 'Running'"));
        let running = Check::of_end(&running, origin.clone()).unwrap();
        assert!(object_to(&running, &value).is_some());
        let stopped = json!({"status": {"phase": "Stopped"}});
        assert_eq!(object_to(&running, &stopped), None);
        let broken = Check::of_end(&rule(Some("it.x")), origin).unwrap_err();
        assert_eq!(broken[0].field, "where");
    }

    #[test]
    fn an_outcome_names_the_first_objections_and_counts_the_rest() {
        let objection = |n: usize| Objection {
            object: format!("Volume.example.org/v{n:02}").parse().unwrap(),
            message: "is degraded".to_owned(),
        };
        let outcome = CheckOutcome::seen((0..30).rev().map(objection).collect());
        assert!(!outcome.holds());
        assert_eq!(
            outcome.explain().as_deref(),
            Some("Volume.example.org/v00: is degraded; and 29 more")
        );
        let CheckOutcome::Seen { objections, more } = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!((objections.len(), more), (NAMED, 10));
        assert!(CheckOutcome::seen(Vec::new()).holds());
        assert!(!CheckOutcome::Unknown("forbidden".to_owned()).holds());
    }
}
