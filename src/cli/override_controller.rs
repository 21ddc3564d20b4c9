//! Local runs for an environment that a controller follows.
//!
//! The controller would revert a local change within minutes. So it is refused, unless the user
//! requests it explicitly. Then the controller is suspended first, until a user resumes it.

use jiff::Timestamp;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::ReleaseName;
use pleach_state::inventory::{Following, ReleaseSummary, Store, Suspension};

use super::error::CliError;
use super::lease::{LockArgs, person};
use super::session::{Session, failed};
use pleach_cluster::{Class, Cluster};
use pleach_engine::planning::Planned;
use pleach_engine::sync::{Claim, state};

/// Options of commands that change releases that a controller can follow.
#[derive(Debug, clap::Args)]
pub(crate) struct LocalArgs {
    /// Override the controller that follows the release: suspend the release until `pleach resume`
    #[arg(long, requires = "reason")]
    local: bool,

    /// Reason for the suspension, recorded with the result
    #[arg(long, value_name = "TEXT", requires = "local", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    reason: Option<String>,
}

impl LocalArgs {
    /// Returns whether the user requested a local run.
    pub(super) fn is_intended(&self) -> bool {
        self.local
    }

    /// Returns the lease identity of this process, with the user and the reason.
    pub(super) fn claim(&self, lock: &LockArgs) -> Claim {
        let reason = self.reason.as_ref();
        Claim {
            local: reason.map(|reason| format!("{}: {reason}", person())),
            ..lock.claim()
        }
    }

    /// Adds to each plan the findings that forbid a local run. A suspended release is not
    /// reconciled by its controller and is allowed.
    pub(super) fn review<'a>(
        &self,
        follower: &Follower,
        planned: impl Iterator<Item = &'a mut Planned>,
    ) {
        if self.local {
            return;
        }
        let now = Timestamp::now();
        for one in planned {
            if let Some(following) = follower.of(one)
                && one.observation.user_requests().suspended(now).is_none()
            {
                let finding = judge(&one.plan.release, &following, now);
                one.plan.findings.push(finding);
            }
        }
    }

    /// Suspends the controller for a release. Does nothing if the release does not exist yet.
    pub(super) async fn suspend(
        &self,
        cluster: &Cluster,
        name: &ReleaseName,
        store: &Store,
    ) -> Result<(), CliError> {
        let suspension = Suspension {
            until: None,
            reason: self.reason.clone().unwrap_or_default(),
            by: person(),
            at: Some(Timestamp::now()),
        };
        let change = |requests: &mut pleach_state::inventory::UserRequests| {
            requests.suspend = Some(suspension.clone());
        };
        let written = state::order(cluster, name, store, change).await;
        written
            .map(drop)
            .map_err(|error| failed("suspend", name, error))
    }
}

/// Refuses changes that a controller would revert. Only warns if the controller seems to be gone.
fn judge(release: &ReleaseName, following: &Following, now: Timestamp) -> Finding {
    match following.renewed {
        Some(renewed) if following.is_stale(now) => silence(release, following, renewed),
        _ => refusal(release, &following.branch),
    }
}

fn silence(release: &ReleaseName, following: &Following, renewed: Timestamp) -> Finding {
    let ReleaseName {
        environment,
        release,
    } = release;
    let branch = &following.branch;
    Finding::warning(
        Kind::Policy,
        "follower-silent",
        format!(
            "the controller that reconciles {environment}/{release} with {branch} was last seen at {renewed:.0}, and is assumed to be gone"
        ),
    )
    .hint("if it returns, it reverts the release to the state of the branch")
}

fn refusal(release: &ReleaseName, branch: &str) -> Finding {
    let target = format!("{}/{}", release.environment, release.release);
    Finding::error(
        Kind::Policy,
        "followed-by-loop",
        format!("a controller reconciles {target} with {branch}, and would revert a local change"),
    )
    .hint("change the branch; or override the controller: --local --reason TEXT suspends the release first, until `pleach resume`")
}

/// Controller that follows the releases of a command.
#[derive(Debug)]
pub(super) struct Follower {
    environment: String,
    /// Controller of one of the releases.
    following: Option<Following>,
}

impl Follower {
    /// Returns the controller of a release. If a controller follows one release, it follows the
    /// whole environment. A release that moves from another environment counts on its own.
    pub(super) fn of(&self, planned: &Planned) -> Option<Following> {
        let own = || planned.observation.followed();
        self.among(&planned.plan.release, own)
    }

    fn among(
        &self,
        release: &ReleaseName,
        own: impl FnOnce() -> Option<Following>,
    ) -> Option<Following> {
        let is_of = release.environment == self.environment;
        let following = self.following.clone().filter(|_| is_of);
        following.or_else(own)
    }
}

/// Finds the controller that follows an environment, from one of its releases. If one of the
/// planned releases is new, reads the others from the cluster.
pub(super) async fn follower<'a>(
    session: &Session,
    environment: &str,
    planned: impl Iterator<Item = &'a Planned>,
) -> Result<Follower, CliError> {
    let own: Vec<&Planned> = planned
        .filter(|planned| planned.plan.release.environment == environment)
        .collect();
    let mut following = newest(
        own.iter()
            .filter_map(|planned| planned.observation.followed()),
    );
    if following.is_none() && own.iter().any(|planned| planned.is_new()) {
        following = recorded(session, environment).await?;
    }
    Ok(Follower {
        environment: environment.to_owned(),
        following,
    })
}

/// Returns the controller with the newest heartbeat. One without a time counts as active.
fn newest(controllers: impl Iterator<Item = Following>) -> Option<Following> {
    controllers.max_by_key(|following| (following.renewed.is_none(), following.renewed))
}

/// Returns the controller from the recorded releases of the environment in the same repository.
async fn recorded(session: &Session, environment: &str) -> Result<Option<Following>, CliError> {
    let repository = &session.loaded.environment.repository;
    let search = session.search();
    let listed = state::releases(&session.cluster, &search);
    match session.finish(listed).await? {
        Ok(records) => Ok(newest(
            records
                .releases
                .into_iter()
                .filter(|release| release.name.environment == environment)
                .filter(|release| is_of(release, repository))
                .filter_map(|release| release.followed),
        )),
        // A user without this permission cannot install a release that a controller follows.
        Err(error) if error.class() == Some(&Class::Forbidden) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether a release can belong to a repository. An unreadable record, or one without a
/// repository, can belong to any.
fn is_of(release: &ReleaseSummary, repository: &str) -> bool {
    let record = release.record.as_ref();
    record.map_or(true, |record| {
        record.repository.is_empty() || record.repository == repository
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn following(branch: &str, renewed: Option<i64>) -> Following {
        Following {
            branch: branch.to_owned(),
            renewed: renewed.map(|second| Timestamp::from_second(second).unwrap()),
        }
    }

    #[test]
    fn a_stale_or_foreign_controller_does_not_block() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let judged = |renewed| {
            let finding = judge(&release("prod"), &following("env/prod", renewed), now);
            (
                pleach_planner::plan::is_refusal(&finding),
                finding.to_string(),
            )
        };
        assert!(judged(None).0);
        assert!(judged(Some(999_000)).0);
        let (is_refused, text) = judged(Some(900_000));
        assert!(!is_refused);
        assert!(text.contains("was last seen at 1970-01-11T"), "{text}");
        // An active controller takes precedence over a missing one.
        let controllers = [Some(1), Some(2), None].map(|renewed| following("env/prod", renewed));
        assert_eq!(
            newest(controllers.clone().into_iter()),
            Some(controllers[2].clone())
        );
        assert_eq!(
            newest(controllers[..2].iter().cloned()),
            Some(controllers[1].clone())
        );
        let record = json!({"repository": "fleet", "format": 5, "history": [], "shards": [],
            "bundle": "web", "entries": 0, "ready": true, "stage": "verify"});
        let live = json!({"kind": "Release", "metadata": {"name": "prod.web"},
            "status": {"record": record}});
        let summary = ReleaseSummary::read(&live).unwrap();
        assert_eq!(summary.record.as_ref().err(), None);
        assert!(is_of(&summary, "fleet"));
        assert!(!is_of(&summary, "other"));
    }

    fn release(environment: &str) -> ReleaseName {
        ReleaseName {
            environment: environment.to_owned(),
            release: "web".to_owned(),
        }
    }

    #[test]
    fn a_controller_follows_only_its_environment() {
        let follower = |branch: Option<&str>| Follower {
            environment: "prod".to_owned(),
            following: branch.map(|branch| following(branch, None)),
        };
        let of = |branch, environment, own: Option<&str>| {
            let own = own.map(|own| following(own, None));
            let found = follower(branch).among(&release(environment), || own);
            found.map(|found| found.branch)
        };
        let (prod, previous) = (Some("env/prod"), Some("env/old"));
        assert_eq!(of(prod, "prod", None).as_deref(), prod);
        assert_eq!(of(prod, "old", None), None);
        assert_eq!(of(None, "old", previous).as_deref(), previous);
        assert_eq!(of(None, "prod", None), None);
    }

    #[test]
    fn the_refusal_names_the_branch_and_a_hint() {
        let finding = refusal(&release("prod"), "env/prod of fleet");
        assert!(pleach_planner::plan::is_refusal(&finding));
        let text = finding.to_string();
        assert!(
            text.contains("a controller reconciles prod/web with env/prod of fleet"),
            "{text}"
        );
    }
}
