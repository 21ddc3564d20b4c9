//! Next steps after a preview: commands that approve and apply the change.

use super::{EnvironmentPreview, Preview, ReleasePreview};
use pleach_model::finding::Finding;

/// A next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextStep {
    /// Goal of the command.
    pub goal: String,
    /// The command.
    pub command: String,
}

impl NextStep {
    fn new(goal: String, command: String) -> Self {
        Self { goal, command }
    }
}

/// Returns the next steps for all environments: approvals first. Releases with errors have none.
pub fn next_steps(preview: &Preview) -> Vec<NextStep> {
    let environments = || {
        let environments = preview.environments.iter();
        environments.filter(|one| is_sound(one))
    };
    let approve = environments().flat_map(approve);
    approve.chain(environments().filter_map(apply)).collect()
}

fn is_sound(environment: &EnvironmentPreview) -> bool {
    let EnvironmentPreview {
        findings,
        refusals,
        lint,
        ..
    } = environment;
    let mut findings = findings.iter().chain(refusals).chain(lint);
    !findings.any(Finding::is_error)
}

/// Returns the releases to apply: the comparison with the cluster if there is one.
fn changed(environment: &EnvironmentPreview) -> Vec<&ReleasePreview> {
    let releases = environment.releases.iter().map(|release| {
        let live = environment.in_cluster(&release.diff.release);
        live.unwrap_or(release)
    });
    let is_applicable = |release: &&ReleasePreview| {
        let mut findings = release.diff.findings.iter();
        release.does_something() && !findings.any(Finding::is_error)
    };
    let releases = releases.chain(environment.only_in_cluster());
    releases.filter(is_applicable).collect()
}

fn approve(environment: &EnvironmentPreview) -> Vec<NextStep> {
    let name = &environment.environment;
    let mut steps = Vec::new();
    let mut is_unknown = false;
    for release in changed(environment) {
        match (&release.approval, &release.effects) {
            (Some(place), Some(effects)) => steps.push(NextStep::new(
                format!("approve {}", release.diff.release),
                format!("kubectl annotate --overwrite {place}={effects}"),
            )),
            (Some(_), None) => is_unknown = true,
            (None, _) => {}
        }
    }
    if is_unknown {
        let goal = format!("show the digests to approve for {name}");
        steps.push(NextStep::new(goal, format!("pleach plan {name}")));
    }
    steps
}

fn apply(environment: &EnvironmentPreview) -> Option<NextStep> {
    let name = &environment.environment;
    let changed = changed(environment);
    let target = match changed.as_slice() {
        [] => return None,
        // A removed release cannot be named.
        [one] if !one.diff.to.is_empty() => one.diff.release.replacen('.', "/", 1),
        _ => name.clone(),
    };
    let goal = format!("apply {target} without a controller");
    Some(NextStep::new(goal, format!("pleach apply {target}")))
}

#[cfg(test)]
mod tests {
    use pleach_model::finding::Kind;
    use pleach_model::object::Digest;
    use pleach_planner::plan::Action;

    use super::super::ClusterPreview;
    use super::super::tests::release;
    use super::*;

    fn lines(environment: EnvironmentPreview) -> Vec<String> {
        let preview = Preview {
            format: 1,
            base: String::new(),
            head: String::new(),
            summary: String::new(),
            environments: vec![environment],
            unchanged: Vec::new(),
        };
        let steps = next_steps(&preview).into_iter();
        steps
            .map(|step| format!("{}: {}", step.goal, step.command))
            .collect()
    }

    /// Builds an environment with one changed release for each name.
    fn environment(names: &[&str], approval: Option<&str>) -> EnvironmentPreview {
        let mut environment = EnvironmentPreview::new("dev");
        for name in names {
            let mut release = release(&[(Action::Update, 1)], Vec::new());
            release.diff.release = (*name).to_owned();
            release.approval = approval.map(str::to_owned);
            environment.releases.push(release);
        }
        environment
    }

    #[test]
    fn the_commands_approve_and_apply_the_change() {
        let place = "releases.pleach.dev dev.web pleach.dev/approved";
        let digest = Digest::of(b"effects");
        let with = |edit: fn(&mut EnvironmentPreview)| {
            let mut environment = environment(&["dev.web"], None);
            edit(&mut environment);
            environment
        };
        let live = || {
            let mut one = environment(&["dev.web"], Some(place));
            let mut release = one.releases[0].clone();
            release.effects = Some(digest);
            one.cluster = Some(ClusterPreview {
                releases: vec![release],
                ..ClusterPreview::default()
            });
            one
        };
        let apply = "apply dev/web without a controller: pleach apply dev/web".to_owned();
        let all = "apply dev without a controller: pleach apply dev".to_owned();
        let show = "show the digests to approve for dev: pleach plan dev".to_owned();
        let approve = format!("approve dev.web: kubectl annotate --overwrite {place}={digest}");
        for (case, environment, expected) in [
            ("nothing", EnvironmentPreview::new("dev"), vec![]),
            (
                "one release",
                environment(&["dev.web"], None),
                vec![apply.clone()],
            ),
            (
                "two",
                environment(&["dev.web", "dev.db"], None),
                vec![all.clone()],
            ),
            (
                "removed",
                with(|one| one.releases[0].diff.to.clear()),
                vec![all],
            ),
            (
                "approval",
                environment(&["dev.web"], Some(place)),
                vec![show, apply.clone()],
            ),
            ("digest", live(), vec![approve, apply]),
            (
                "lint",
                with(|one| {
                    one.lint
                        .push(Finding::error(Kind::Repository, "x", "wrong"));
                }),
                vec![],
            ),
            (
                "refused",
                with(|one| {
                    let finding = Finding::error(Kind::Policy, "x", "wrong");
                    one.releases[0].diff.findings.push(finding);
                }),
                vec![],
            ),
        ] {
            assert_eq!(lines(environment), expected, "{case}");
        }
    }
}
