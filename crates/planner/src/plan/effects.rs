//! Effects of a plan on the cluster, to which an approval is bound.
//!
//! They decide whether a repeated plan still matches the reviewed one. They
//! neither create nor change a plan.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::model::{Body, Op, Plan, Step};
use pleach_model::object::{DesiredDigest, Digest, ObjectId, canonical_json};

impl Plan {
    /// Computes the digest to which an approval is bound. It covers object,
    /// operation, body and stage of every changing step, without UID and
    /// resourceVersion.
    pub fn effects(&self) -> Digest {
        let unkeyed = self.unkeyed();
        let effects = self.acting().map(|step| effect(step, &unkeyed)).collect();
        Digest::of(&canonical_json(&Value::Array(effects)))
    }

    /// Returns the steps that change something, each with the digest of its part of [`effects`].
    ///
    /// [`effects`]: Self::effects
    pub fn effects_by_step(&self) -> Vec<(&Step, Digest)> {
        let unkeyed = self.unkeyed();
        let digest = |step| Digest::of(&canonical_json(&effect(step, &unkeyed)));
        self.acting().map(|step| (step, digest(step))).collect()
    }

    /// Returns whether this later plan does nothing that was not reviewed.
    ///
    /// It may do less, because another release may have applied a part of it.
    /// An object that is deleted or patched must get all of its reviewed
    /// effects, because half of them could lose data. The digest key may have
    /// been created in between, so bodies of objects that had no digest are not
    /// compared.
    pub fn has_effects_of(&self, reviewed: &Self) -> bool {
        let unkeyed = reviewed.unkeyed();
        let allowed = reviewed.effects_by_object(&unkeyed);
        let whole: BTreeSet<&ObjectId> = self
            .acting()
            .filter(|step| matches!(step.op, Op::Delete(_) | Op::Own(_) | Op::Patch { .. }))
            .map(|step| &step.object)
            .collect();
        self.effects_by_object(&unkeyed).iter().all(|(id, now)| {
            allowed.get(id).is_some_and(|allowed| {
                now == allowed || (!whole.contains(id) && now.is_subset(allowed))
            })
        })
    }

    /// Returns the steps that change something.
    fn acting(&self) -> impl Iterator<Item = &Step> {
        self.steps
            .iter()
            .filter(|step| !matches!(step.op, Op::Wait))
    }

    fn effects_by_object(
        &self,
        unkeyed: &BTreeSet<&ObjectId>,
    ) -> BTreeMap<&ObjectId, BTreeSet<Vec<u8>>> {
        let mut effects: BTreeMap<&ObjectId, BTreeSet<Vec<u8>>> = BTreeMap::new();
        for step in self.acting() {
            let effect = canonical_json(&effect(step, unkeyed));
            effects.entry(&step.object).or_default().insert(effect);
        }
        effects
    }

    /// Returns secret objects that were planned before the digest key existed.
    fn unkeyed(&self) -> BTreeSet<&ObjectId> {
        self.steps
            .iter()
            .filter(|step| {
                matches!(
                    &step.op,
                    Op::Apply {
                        body: Body::Rendered(DesiredDigest::Unkeyed),
                        ..
                    } | Op::Create {
                        body: Body::Rendered(DesiredDigest::Unkeyed),
                        ..
                    }
                )
            })
            .map(|step| &step.object)
            .collect()
    }
}

fn effect(step: &Step, unkeyed: &BTreeSet<&ObjectId>) -> Value {
    let effect = step.op.effect(!unkeyed.contains(&step.object));
    json!([step.object.to_string(), effect, step.stage.to_string()])
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use rstest::rstest;

    use super::*;
    use crate::plan::{Deletion, Propagation, StepId, deletion::Member};
    use pleach_model::object::{NonSecret, ReleaseName, labels};
    use pleach_model::order::StageName;
    use pleach_state::inventory::{Entry, EntryState};
    use pleach_state::live::LiveMeta;

    /// Builds a step on the object with this name.
    fn step(name: &str, stage: StageName, op: Op) -> Step {
        Step {
            id: StepId(0),
            stage,
            object: ObjectId::new("", "ConfigMap", Some("web"), name),
            op,
            needs: Vec::new(),
            require: Vec::new(),
            until: None,
            deadline: SignedDuration::from_secs(1),
            overlay: None,
            reason: String::new(),
        }
    }

    fn apply(name: &str, body: &str) -> Step {
        let digest = DesiredDigest::Known(Digest::of(body.as_bytes()));
        applied(name, digest)
    }

    fn unkeyed(name: &str) -> Step {
        applied(name, DesiredDigest::Unkeyed)
    }

    fn applied(name: &str, digest: DesiredDigest) -> Step {
        let op = Op::Apply {
            body: Body::Rendered(digest),
            take_over: Vec::new(),
            leave: Vec::new(),
        };
        step(name, StageName::Config, op)
    }

    fn patch(name: &str) -> Step {
        let op = Op::Patch {
            patch: NonSecret(json!([])),
            subresource: None,
        };
        step(name, StageName::Config, op)
    }

    fn delete(name: &str) -> Step {
        let entry = Entry {
            state: EntryState::Applied,
            uid: Some("uid".to_owned()),
            ..Entry::default()
        };
        let metadata = json!({ "uid": "uid", "labels": { labels::PART_OF: "set" } });
        let live = LiveMeta::read(&metadata, "pleach/test.web");
        let member = Member {
            entry: &entry,
            live: &live,
            apply_set: "set",
            manager: "pleach/test.web",
        };
        let deletion = Deletion::of_member(member, Propagation::Background).unwrap();
        step(name, StageName::Config, Op::Delete(deletion))
    }

    fn wait(name: &str) -> Step {
        step(name, StageName::Config, Op::Wait)
    }

    fn in_stage(stage: StageName, mut step: Step) -> Step {
        step.stage = stage;
        step
    }

    fn plan(steps: Vec<Step>) -> Plan {
        let release = ReleaseName {
            environment: "test".to_owned(),
            release: "web".to_owned(),
        };
        Plan {
            steps,
            ..Plan::new(release, "v1")
        }
    }

    #[rstest]
    #[case::the_same(vec![apply("a", "1"), delete("b")], vec![apply("a", "1"), delete("b")])]
    #[case::another_order(vec![apply("a", "1"), apply("b", "1")], vec![apply("b", "1"), apply("a", "1")])]
    #[case::an_apply_less(vec![apply("a", "1"), apply("b", "1")], vec![apply("b", "1")])]
    #[case::a_deletion_less(vec![apply("a", "1"), delete("b")], vec![apply("a", "1")])]
    #[case::nothing_left(vec![apply("a", "1"), delete("b"), patch("c")], vec![])]
    #[case::other_waits(vec![apply("a", "1")], vec![wait("c"), apply("a", "1")])]
    #[case::deleted_meanwhile(vec![delete("a"), apply("a", "1")], vec![apply("a", "1")])]
    #[case::adopted_meanwhile(vec![patch("a"), apply("a", "1")], vec![apply("a", "1")])]
    #[case::the_key_was_made(vec![unkeyed("a"), apply("b", "1")], vec![apply("a", "1"), apply("b", "1")])]
    #[case::still_without_a_key(vec![unkeyed("a")], vec![unkeyed("a")])]
    fn reviewed_effects_are_permitted(#[case] reviewed: Vec<Step>, #[case] now: Vec<Step>) {
        assert!(plan(now).has_effects_of(&plan(reviewed)));
    }

    #[rstest]
    #[case::an_object_more(vec![apply("a", "1")], vec![apply("a", "1"), apply("b", "1")])]
    #[case::another_body(vec![apply("a", "1")], vec![apply("a", "2")])]
    #[case::another_stage(vec![apply("a", "1")], vec![in_stage(StageName::Resources, apply("a", "1"))])]
    #[case::another_operation(vec![apply("a", "1")], vec![patch("a")])]
    #[case::an_unconfirmed_deletion(vec![apply("a", "1")], vec![delete("b")])]
    #[case::a_deletion_instead(vec![apply("a", "1")], vec![delete("a")])]
    #[case::a_deletion_before(vec![apply("a", "1")], vec![delete("a"), apply("a", "1")])]
    #[case::half_a_recreation(vec![delete("a"), apply("a", "1")], vec![delete("a")])]
    #[case::half_an_adoption(vec![patch("a"), apply("a", "1")], vec![patch("a")])]
    #[case::a_body_that_was_known(vec![apply("a", "1")], vec![unkeyed("a")])]
    #[case::something_where_nothing_was(vec![wait("a")], vec![apply("a", "1")])]
    fn unreviewed_effects_are_refused(#[case] reviewed: Vec<Step>, #[case] now: Vec<Step>) {
        assert!(!plan(now).has_effects_of(&plan(reviewed)));
    }

    #[test]
    fn an_approval_covers_effects_and_not_waits() {
        let effects = |steps| plan(steps).effects();
        let one = effects(vec![apply("a", "1")]);
        assert_eq!(one, effects(vec![wait("b"), apply("a", "1")]));
        assert_ne!(one, effects(vec![apply("a", "2")]));
        let later = in_stage(StageName::Resources, apply("a", "1"));
        assert_ne!(one, effects(vec![later]));
        assert_ne!(one, effects(vec![]));
    }
}
