//! Facts of plans for the web page.

use pleach_config::dependencies::Dependency;
use pleach_engine::mask;
use pleach_engine::planning::Planned;
use pleach_engine::preview::Kinds;
use pleach_fields::diff::fields::Scope;
use pleach_page::facts::{Input, MAX_COMPARED, ReleaseFacts};
use pleach_planner::plan::{Action, Policy};
use pleach_planner::text_diff::View;
use pleach_planner::view::{Drawing, ReleaseDiff};
use pleach_reconciler::outcome;
use pleach_report::attached;

use crate::run::Target;

/// Fields that count, as by default in `pleach diff`.
const VIEW: View = View {
    scope: Scope::Owned,
    status: false,
    full_deletes: false,
};

/// Returns the facts of a plan: its steps, its masked differences, and the record.
pub(super) fn facts(target: &Target, planned: &Planned) -> ReleaseFacts {
    let Planned {
        desired,
        observation,
        plan,
    } = planned;
    let (release, _) = target.release();
    let observed = &observation.observed;
    let planner = target.planner(false);
    let policy = outcome::policy(&target.loaded.environment.sync, observed.policies());
    let diff = differences(target, planned, &planner.policy(release));
    let depends_on = release.depends_on.iter().filter_map(Dependency::release);
    let rehearsal = observation.rehearsal().map(attached::read);
    ReleaseFacts::of(&Input {
        at: observed.at,
        branch: target.source.as_ref().map(|source| source.branch.as_str()),
        depends_on: depends_on.map(str::to_owned).collect(),
        policy: &policy,
        requests: &observation.user_requests(),
        degraded: observation.degraded().as_deref(),
        desired,
        observed,
        plan,
        diff: diff.as_ref(),
        rehearsal: rehearsal.as_ref(),
    })
}

/// Compares the objects of a plan. `None` if too many change: the controller has other work.
fn differences(target: &Target, planned: &Planned, policy: &Policy) -> Option<ReleaseDiff> {
    let changes = planned.plan.changes.iter();
    let changed = changes.filter(|change| change.action != Action::Unchanged);
    if changed.count() > MAX_COMPARED {
        return None;
    }
    let loaded = &target.loaded;
    let kinds = Kinds::of(&loaded.environment, loaded.all());
    let key = mask::run_key().ok()?;
    let mut masker = mask::masker(&key, loaded.all());
    let drawing = Drawing {
        desired: &planned.desired,
        observed: &planned.observation.observed,
        policy,
        kinds: kinds.catalog(),
        view: VIEW,
    };
    Some(drawing.release(&planned.plan, &mut masker))
}
