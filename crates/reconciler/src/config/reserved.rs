//! Objects that configure the controller, which only its own release is allowed to write.

use std::collections::BTreeSet;

use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{ObjectId, ReleaseName};
use pleach_planner::plan::{Action, Op, Plan};

/// Configuration objects of the controller in its own cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reserved {
    /// Namespace of the controller. Its ConfigMaps and Secrets are reserved.
    pub namespace: Option<String>,
    /// Secrets with kubeconfigs.
    pub secrets: BTreeSet<ObjectId>,
    /// The release of the controller itself.
    pub own: Option<ReleaseName>,
}

impl Reserved {
    fn has(&self, id: &ObjectId) -> bool {
        let is_configuration = id.is("", "ConfigMap") || id.is("", "Secret");
        let is_beside = self.namespace.is_some() && id.namespace == self.namespace;
        is_configuration && is_beside || self.secrets.contains(id)
    }

    /// Refuses a plan that writes or copies configuration of the controller.
    pub fn check(&self, plan: &Plan) -> Vec<Finding> {
        if self.own.as_ref() == Some(&plan.release) {
            return Vec::new();
        }
        let changes = plan.changes.iter();
        let changed = changes.filter(|change| change.action != Action::Skip);
        let mut found: BTreeSet<&ObjectId> = changed.map(|change| &change.object).collect();
        for step in &plan.steps {
            found.insert(&step.object);
            if let Op::Copy { from, to } = &step.op {
                found.extend([from, to]);
            }
        }
        let found = found.into_iter().filter(|id| self.has(id));
        found.map(|id| refusal().on(id.clone())).collect()
    }
}

fn refusal() -> Finding {
    Finding::error(
        Kind::Policy,
        "not-allowed",
        "it configures the controller, and only the controller's own release is allowed to write it",
    )
    .hint("`--own-release` names that release; move other objects to another namespace")
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::SignedDuration;
    use pleach_model::order::StageName;
    use pleach_planner::plan::{Change, Step, StepId};

    #[test]
    fn only_its_own_release_configures_the_controller() {
        let release = |name: &str| ReleaseName {
            environment: "pleach".to_owned(),
            release: name.to_owned(),
        };
        let reserved = Reserved {
            namespace: Some("pleach".to_owned()),
            secrets: BTreeSet::from(["Secret/clusters/target".parse().unwrap()]),
            own: Some(release("pleach")),
        };
        for (id, expected) in [
            ("ConfigMap/pleach/pleach", 1),
            ("Secret/pleach/git", 1),
            ("Secret/clusters/target", 1),
            ("Secret/clusters/other", 0),
            ("Service/pleach/pleach", 0),
            ("ConfigMap/web/pleach", 0),
        ] {
            let plan = |name: &str| {
                let mut plan = Plan::new(release(name), "v1");
                plan.changes
                    .push(Change::new(id.parse().unwrap(), Action::Update));
                plan
            };
            assert_eq!(reserved.check(&plan("web")).len(), expected, "{id}");
            assert_eq!(reserved.check(&plan("pleach")).len(), 0, "{id}");
        }
        // Steps change objects that are in no change: overlays and copies.
        let step = |object: &str, op: Op| Step {
            id: StepId(0),
            stage: StageName::Config,
            object: object.parse().unwrap(),
            op,
            needs: Vec::new(),
            require: Vec::new(),
            until: None,
            deadline: SignedDuration::ZERO,
            overlay: None,
            reason: String::new(),
        };
        let copy = |from: &str, to: &str| {
            let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
            step("ConfigMap/web/settings", Op::Copy { from, to })
        };
        let (own, other) = ("ConfigMap/pleach/pleach", "ConfigMap/web/settings");
        for (case, step, expected) in [
            ("overlay", step(own, Op::Lift), 1),
            ("overlay of another object", step(other, Op::Lift), 0),
            (
                "copy of a Secret",
                copy("Secret/pleach/git", "Secret/web/git"),
                1,
            ),
            ("copy to the configuration", copy(other, own), 1),
            (
                "copy within the configuration",
                copy(own, "Secret/clusters/target"),
                2,
            ),
            (
                "copy of another object",
                copy(other, "ConfigMap/next/settings"),
                0,
            ),
        ] {
            let mut plan = Plan::new(release("web"), "v1");
            plan.steps.push(step);
            assert_eq!(reserved.check(&plan).len(), expected, "{case}");
            plan.release = release("pleach");
            assert_eq!(reserved.check(&plan).len(), 0, "{case}");
        }
        let nothing = Reserved::default();
        assert!(!nothing.has(&ObjectId::new("", "Namespace", None, "x")));
    }
}
