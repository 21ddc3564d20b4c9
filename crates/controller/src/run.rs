//! Desired state of a release, and a run that applies it.

mod digest;

use std::sync::Arc;
use std::time::Duration;

use pleach_config::ResolvedRelease;
use pleach_formats::window::Windows;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::ReleaseName;
use pleach_planner::observe::ClusterId;
use pleach_planner::plan::Plan;
use pleach_planner::text_diff;
use pleach_reconciler::outcome::policy;
use pleach_reconciler::stall::Stall;
use pleach_render::Rendered;
use pleach_state::inventory::{Condition, Inventory, RunOutcome, Source, Store, UserRequests};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use self::digest::TargetDigest;
pub(super) use self::digest::TermsDigest;
use super::drift::Members;
use super::{ACTIONS, ControllerEvent, ReconcileOutcome, Shared, SourcePolicy};
use pleach_cluster::{Cluster, Keys};
use pleach_engine::{
    load::Loaded,
    planning::{Options, Planned, Planner, Predecessors},
    stop::{Cause, Stop},
    sync::{
        self, Claim as LeaseIdentity, Run, SyncError,
        report::{FailureKind, SyncResult},
    },
    words,
};

/// Time limit for observing and planning a release.
pub(super) const LIMIT: Duration = Duration::from_mins(15);

/// Desired state of a release, with its cluster.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// The environment at a commit.
    pub(super) loaded: Arc<Loaded>,
    /// Index of the release in it.
    pub(super) index: usize,
    /// The cluster of the release.
    pub(super) cluster: Cluster,
    /// The expected cluster id.
    pub(super) cluster_id: Option<ClusterId>,
    /// The members of all releases on the cluster, if watched.
    pub(super) members: Option<Members>,
    /// The source policy.
    pub(super) source_policy: Arc<SourcePolicy>,
    /// The branch of the commit.
    pub(super) source: Option<Source>,
    /// Conditions of the environment.
    pub(super) conditions: Vec<Condition>,
    /// Reason why the release is stalled.
    pub(super) stall: Option<Stall>,
    /// Whether only this release is stalled. Nothing is pruned then.
    pub(super) is_stalled: bool,
    /// Whether the commit is only known from records. Drift is not corrected then.
    pub(super) is_from_records: bool,
    /// Whether this is the last applied state, while a newer one waits. Nothing is pruned then.
    pub(super) is_retained: bool,
}

impl Target {
    /// Returns the release at an earlier commit, or `None` if it did not exist there.
    pub(super) fn retained_at(&self, loaded: Arc<Loaded>) -> Option<Self> {
        let name = &self.release().0.name;
        let mut releases = loaded.rendered.iter();
        let index = releases.position(|(release, _)| release.name == *name)?;
        Some(Self {
            loaded,
            index,
            is_from_records: false,
            is_retained: true,
            // Restrictions and connection stay the present ones.
            ..self.clone()
        })
    }

    /// Returns the planner.
    pub(super) fn planner(&self, verify: bool) -> Planner<'_> {
        Planner {
            loaded: &self.loaded,
            cluster: &self.cluster,
            cluster_id: self.cluster_id.as_ref(),
            source: self.source.as_ref(),
            allow: self.source_policy.allow.as_ref(),
            base_secrets: None,
            options: Options {
                verify,
                wait: true,
                prune: !self.is_retained && !self.is_stalled,
                review: true,
                nodes_behind: false,
                predecessors: Predecessors::AtRevision,
            },
        }
    }

    /// Returns the release and its rendered objects.
    pub(super) fn release(&self) -> &(ResolvedRelease, Rendered) {
        &self.loaded.rendered[self.index]
    }

    /// Returns the commit.
    pub(super) fn revision(&self) -> String {
        self.loaded.revision.to_string()
    }

    /// Returns whether release and permissions are the same in both. A run need not be stopped for
    /// a commit that only changes other releases.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let Self {
            loaded,
            index,
            // A run continues with its connection.
            cluster: _,
            cluster_id,
            members: _,
            // Constant for the life of the controller.
            source_policy: _,
            source,
            // Reported separately from a run.
            conditions: _,
            stall: _,
            // Not part of the desired content; compared separately.
            is_stalled: _,
            is_from_records: _,
            is_retained: _,
        } = self;
        (cluster_id, source) == (&other.cluster_id, &other.source)
            && (Arc::ptr_eq(loaded, &other.loaded) && *index == other.index
                || TargetDigest::of(loaded, *index) == TargetDigest::of(&other.loaded, other.index))
    }

    /// Returns the reasons against executing a plan.
    pub(super) fn refusals(&self, planned: &Planned) -> Vec<Finding> {
        let mut refusals: Vec<Finding> = planned.plan.refusals().cloned().collect();
        let store = &planned.desired.store;
        refusals.extend(beyond_source_policy(
            &self.source_policy,
            &planned.plan,
            store,
        ));
        // A local run has the permissions of its user, who owns that state.
        if self.source_policy.cluster.is_some() {
            refusals.extend(refuse_key(store, self.cluster.keys()));
        }
        if self.cluster_id.is_none() && planned.is_new() {
            let id = &planned.observation.observed.cluster;
            refusals.push(
                Finding::error(
                    Kind::Policy,
                    "cluster-not-named",
                    "no cluster id is declared, and the release is not installed yet",
                )
                .hint(format!(
                    "declare the cluster id in the environment file, or with `--cluster-id {id}`"
                )),
            );
        }
        refusals
    }
}

/// Refuses objects and state that the source policy does not allow a release to write.
fn beyond_source_policy(source_policy: &SourcePolicy, plan: &Plan, store: &Store) -> Vec<Finding> {
    let mut refusals = source_policy.reserved.check(plan);
    if let Some(allow) = &source_policy.allow {
        refusals.extend(allow.check(plan));
        refusals.extend(allow.refuse_store(store));
    }
    refusals
}

/// Refuses to sync a release if tenants can read the key of its state, because they could forge the
/// state.
fn refuse_key(store: &Store, keys: &Keys) -> Option<Finding> {
    let namespace = match (store, keys) {
        (Store::ConfigMap { namespace }, Keys::Beside) => namespace,
        (Store::Release, _) | (Store::ConfigMap { .. }, Keys::In(_) | Keys::Unread) => return None,
    };
    let message = format!(
        "state is kept in namespace {namespace} (`state` in the environment file), and the controller has no namespace of its own for the key of that state"
    );
    let hint = "start the controller with `--key-namespace NAMESPACE`, which tenants have no access to; if the release was applied without it, run `pleach recover ENV --key-namespace NAMESPACE` once";
    Some(Finding::error(Kind::Policy, "key-beside-state", message).hint(hint))
}

/// Formats findings in one line, with the first available hint.
pub(super) fn line(findings: &[Finding]) -> String {
    let texts: Vec<String> = findings.iter().take(5).map(ToString::to_string).collect();
    let more = findings.len().saturating_sub(texts.len());
    let more = if more > 0 {
        format!("; and {more} more")
    } else {
        String::new()
    };
    let text = texts.join("; ") + &more;
    let hint = findings.iter().find_map(|finding| finding.hint.as_deref());
    let Some(hint) = hint else { return text };
    let hint: Vec<&str> = hint.split_whitespace().collect();
    format!("{text}; hint: {}", hint.join(" "))
}

/// Formats findings for the public: object and code of each.
pub(super) fn codes(findings: &[Finding]) -> String {
    let one = |finding: &Finding| match &finding.object {
        Some(object) => format!("{object}: {}", finding.code),
        None => finding.code.clone(),
    };
    let codes: Vec<String> = findings.iter().take(5).map(one).collect();
    codes.join("; ")
}

/// Returns the public code of an error.
pub(super) fn code(kind: Kind) -> &'static str {
    match kind {
        Kind::Repository => "repository",
        Kind::Cluster => "cluster",
        Kind::Conflict => "conflict",
        Kind::Policy => "policy",
    }
}

/// Returns the public code of a failed step.
fn code_of_step(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Cluster => "cluster",
        FailureKind::Conflict => "conflict",
        FailureKind::Policy => "policy",
        FailureKind::NotReady => "not-ready",
        FailureKind::Paused => "paused",
        FailureKind::Refused => "refused",
        FailureKind::Other => "failed",
    }
}

/// Plans a release within the time limit. Beyond it, only this release fails.
pub(super) async fn in_time<T>(
    release: &ReleaseName,
    planning: impl Future<Output = Result<T, SyncError>>,
) -> Result<T, SyncError> {
    let planned = timeout(LIMIT, planning).await;
    planned.unwrap_or_else(|_| {
        Err(SyncError::TooLong {
            release: release.to_string(),
            limit: LIMIT,
        })
    })
}

/// Executes a plan. `newer` stops it at its next safe point.
pub(super) async fn execute(
    shared: &Shared,
    cluster: &Cluster,
    planned: Planned,
    newer: CancellationToken,
) -> RunResult {
    let Planned {
        mut desired,
        observation,
        plan,
    } = planned;
    let events = shared.events.run_events(desired.name.clone());
    let stop = Stop::on(Cause::Interrupted, shared.stop.clone()).or_on(Cause::Superseded, newer);
    let claim = LeaseIdentity {
        approved_by: approver(observation.user_requests(), &plan),
        ..shared.lease_identity.clone()
    };
    let overrides = observation.user_requests().sync;
    let overrides = overrides.is_some_and(|sync| sync.override_window);
    let windows = if overrides {
        Windows::default()
    } else {
        policy(&desired.terms.sync, observation.observed.policies()).windows
    };
    let run = Run {
        cluster,
        claim: &claim,
        events: &events,
        stop: &stop,
        windows: &windows,
    };
    if plan.has_steps() {
        shared.events.report(ControllerEvent::Applying {
            release: plan.release.clone(),
            revision: desired.revision.clone(),
            changes: text_diff::summary(plan.changes.iter().map(|change| change.action)),
        });
    }
    let running = sync::execute(&run, &mut desired, observation, &plan);
    let started = Instant::now();
    let result = Box::pin(running).await;
    let took = started.elapsed();
    let members = result
        .as_ref()
        .ok()
        .and_then(|result| result.members.clone());
    let RunVerdict {
        outcome,
        message,
        public_message,
    } = evaluate(&plan, result);
    if plan.has_steps() {
        let is_done = matches!(
            outcome,
            ReconcileOutcome::Deployed | ReconcileOutcome::Removed
        );
        let objects = ACTIONS.map(|action| (action, plan.count(action)));
        shared.events.report(ControllerEvent::PlanExecuted {
            release: plan.release.clone(),
            objects: objects.into_iter().filter(|_| is_done).collect(),
            took,
        });
    }
    RunResult {
        outcome,
        message,
        public_message,
        members,
    }
}

/// Returns the user who approved the effects of a plan. `None` if the approval is for other effects,
/// or names no user.
fn approver(requests: UserRequests, plan: &Plan) -> Option<String> {
    let is_approved = requests.approved? == plan.effects().to_string();
    requests.approved_by.filter(|_| is_approved)
}

/// Outcome of a run.
pub(super) struct RunResult {
    pub(super) outcome: ReconcileOutcome,
    /// The reason in one line, if any.
    pub(super) message: String,
    /// Message for the public: codes and objects.
    pub(super) public_message: String,
    /// The members after the run.
    pub(super) members: Option<Arc<Inventory>>,
}

/// Outcome of a run with its messages.
struct RunVerdict {
    outcome: ReconcileOutcome,
    message: String,
    public_message: String,
}

impl RunVerdict {
    /// Creates a verdict with a message that is safe for the public.
    fn new(outcome: ReconcileOutcome, message: &str) -> Self {
        Self {
            outcome,
            message: message.to_owned(),
            public_message: message.to_owned(),
        }
    }

    fn failed(message: String, public_message: String) -> Self {
        Self {
            outcome: ReconcileOutcome::Failed,
            message,
            public_message,
        }
    }
}

fn evaluate(plan: &Plan, result: Result<SyncResult, SyncError>) -> RunVerdict {
    let result = match result {
        Ok(result) => result,
        Err(error) => return RunVerdict::failed(words(&error), code(error.kind()).to_owned()),
    };
    let failure = || {
        let first = result.failures(plan).next();
        // Omit hints: they address users of the CLI, and the controller retries anyway.
        let first = first.map(|(object, failure)| {
            let code = code_of_step(failure.kind);
            let message = format!("{object}: {}", failure.message);
            RunVerdict::failed(message, format!("{object}: {code}"))
        });
        let unrecorded = result.unrecorded.as_deref();
        let unrecorded = unrecorded.map(|error| {
            let public_message = code(error.kind()).to_owned();
            RunVerdict::failed(words(error), public_message)
        });
        let blocked = plan.findings.iter().find(|finding| finding.is_error());
        let blocked = blocked.map(|finding| {
            let finding = std::slice::from_ref(finding);
            RunVerdict::failed(line(finding), codes(finding))
        });
        first
            .or(unrecorded)
            .or(blocked)
            .unwrap_or_else(|| RunVerdict::new(ReconcileOutcome::Failed, ""))
    };
    let done = || text_diff::summary_of_done(plan.changes.iter().map(|change| change.action));
    match result.outcome {
        RunOutcome::Deployed => RunVerdict::new(ReconcileOutcome::Deployed, &done()),
        RunOutcome::Unchanged => RunVerdict::new(ReconcileOutcome::Unchanged, ""),
        RunOutcome::Uninstalled => RunVerdict::new(ReconcileOutcome::Removed, &done()),
        RunOutcome::Removed => RunVerdict::new(
            ReconcileOutcome::Waiting,
            "git no longer contains the release, and its uninstall waits for consent",
        ),
        RunOutcome::Superseded => RunVerdict::new(ReconcileOutcome::Superseded, ""),
        RunOutcome::Interrupted => RunVerdict::new(ReconcileOutcome::Interrupted, ""),
        RunOutcome::Failed | RunOutcome::Unverified | RunOutcome::Unknown(_) => failure(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pleach_engine::decryption::KeySources;
    use pleach_formats::{file::AllowList, sync::Minimum};
    use pleach_model::object::ObjectId;
    use pleach_planner::allow::Allow;
    use pleach_planner::plan::{Action, Change};
    use pleach_reconciler::config::{Branches, Reserved};
    use pleach_reconciler::outcome::plan_failed;

    use super::*;
    use crate::plan_facts::failure;
    use pleach_cluster::{Connection, KeyHome, OwnCluster};

    #[test]
    fn state_of_tenants_is_not_synced_with_a_key_beside_it() {
        let own = OwnCluster::new(Connection::new("test"));
        let home = Keys::In(KeyHome::new(own, "pleach".to_owned()));
        let tenant = Store::ConfigMap {
            namespace: "team-a".to_owned(),
        };
        for (store, keys, is_refused) in [
            (&tenant, &Keys::Beside, true),
            (&tenant, &home, false),
            (&Store::Release, &Keys::Beside, false),
        ] {
            let refused = refuse_key(store, keys);
            assert_eq!(refused.is_some(), is_refused, "{store:?} {keys:?}");
            let hint = refused.and_then(|finding| finding.hint);
            let names_flag = hint.is_some_and(|hint| hint.contains("--key-namespace"));
            assert_eq!(names_flag, is_refused, "{store:?} {keys:?}");
        }
    }

    #[test]
    fn a_plan_beyond_the_source_policy_is_refused() {
        let name = |release: &str| ReleaseName {
            environment: "prod".to_owned(),
            release: release.to_owned(),
        };
        let within = AllowList {
            namespaces: Some(vec!["web".to_owned()]),
            cluster_scoped: None,
        };
        let source_policy = SourcePolicy {
            url: String::new(),
            branches: Branches::One {
                environment: "prod".to_owned(),
                branch: "env/prod".to_owned(),
            },
            cluster: None,
            fallback: None,
            connection: Connection::new("test"),
            allow: None,
            minimum: Minimum::default(),
            keys: KeySources::default(),
            reserved: Reserved {
                namespace: Some("pleach".to_owned()),
                secrets: BTreeSet::new(),
                own: Some(name("pleach")),
            },
            forge: None,
        };
        let limited = SourcePolicy {
            allow: Some(Allow::new(&within)),
            reserved: Reserved::default(),
            connection: Connection::new("test"),
            url: String::new(),
            branches: source_policy.branches.clone(),
            cluster: None,
            fallback: None,
            minimum: Minimum::default(),
            keys: KeySources::default(),
            forge: None,
        };
        let tenant = Store::ConfigMap {
            namespace: "team-a".to_owned(),
        };
        let (map, own) = ("ConfigMap/web/settings", "ConfigMap/pleach/pleach");
        for (case, source_policy, release, object, store, expected) in [
            ("own object", &source_policy, "web", map, &Store::Release, 0),
            (
                "configuration",
                &source_policy,
                "web",
                own,
                &Store::Release,
                1,
            ),
            (
                "own release",
                &source_policy,
                "pleach",
                own,
                &Store::Release,
                0,
            ),
            ("allowed", &limited, "web", map, &Store::Release, 0),
            ("not allowed", &limited, "web", own, &Store::Release, 1),
            ("state elsewhere", &limited, "web", map, &tenant, 1),
        ] {
            let mut plan = Plan::new(name(release), "v1");
            plan.changes
                .push(Change::new(object.parse().unwrap(), Action::Update));
            let refusals = beyond_source_policy(source_policy, &plan, store);
            assert_eq!(refusals.len(), expected, "{case}: {refusals:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_plan_that_does_not_end_fails_its_release_at_the_limit() {
        let name = ReleaseName {
            environment: "prod".to_owned(),
            release: "web".to_owned(),
        };
        let started = Instant::now();
        let planning = std::future::pending::<Result<(), SyncError>>();
        let error = in_time(&name, planning).await.unwrap_err();
        assert_eq!(started.elapsed().as_secs(), LIMIT.as_secs());
        let SyncError::TooLong { release, limit } = &error else {
            panic!("{error:?}");
        };
        assert_eq!((release, *limit), (&name.to_string(), LIMIT));
        for failures in [0, 1] {
            let report = plan_failed(&failure(&error), failures);
            assert_eq!(report.outcome, ReconcileOutcome::Failed);
            // Reported from the second failure on.
            assert_eq!(report.condition.is_some(), failures > 0);
        }
        // A plan within the limit is unaffected.
        assert_eq!(in_time(&name, async { Ok(1) }).await.unwrap(), 1);
    }

    #[test]
    fn the_public_message_has_codes_and_objects() {
        let object = ObjectId::new("apps", "Deployment", Some("web"), "api");
        let refused = Finding::error(Kind::Cluster, "refused", "error of 10.0.0.7");
        let named = refused.clone().on(object);
        assert_eq!(
            codes(&[named, refused]),
            "Deployment.apps/web/api: refused; refused"
        );
    }

    #[test]
    fn refusals_are_formatted_with_a_hint() {
        let refused = |code: &str| Finding::error(Kind::Policy, code, format!("{code} is not"));
        assert_eq!(line(&[refused("a"), refused("b")]), "a is not; b is not");
        let hinted = [
            refused("a").hint("write:\n  rollback: yes"),
            refused("b").hint("or else"),
        ];
        assert_eq!(
            line(&hinted),
            "a is not; b is not; hint: write: rollback: yes"
        );
        let many: Vec<Finding> = (0..7).map(|_| refused("a").hint("stop")).collect();
        assert!(line(&many).ends_with("; and 2 more; hint: stop"));
    }
}
