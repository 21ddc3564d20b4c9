//! A desk that steps in where a loop is at work.
//!
//! Whoever changes a cluster beside the loop that keeps it equal to git is
//! undone within minutes. So that is refused, unless it is said to be meant:
//! then the loop is held first, until somebody resumes it.

use jiff::Timestamp;
use pleach_domain::finding::{Finding, Kind};
use pleach_domain::inventory::{ReleaseName, Store, Suspension};

use super::claim::{LockArgs, person};
use super::error::CliError;
use super::session::{Planned, Session, failed};
use crate::engine::sync::{Claim, state};
use crate::io::cluster::{Class, Cluster};

/// Options of commands that change what a loop may follow.
#[derive(Debug, clap::Args)]
pub(crate) struct LocalArgs {
    /// Go ahead although a loop follows the release, and suspend it until `pleach resume`
    #[arg(long, requires = "reason")]
    local: bool,

    /// Why, for those who find it suspended; recorded with the result
    #[arg(long, value_name = "TEXT", requires = "local", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    reason: Option<String>,
}

impl LocalArgs {
    /// Whether it is meant.
    pub(super) fn is_meant(&self) -> bool {
        self.local
    }

    /// The claim of this process, with who goes ahead and why.
    pub(super) fn claim(&self, lock: &LockArgs) -> Claim {
        let reason = self.reason.as_ref();
        Claim {
            local: reason.map(|reason| format!("{}: {reason}", person())),
            ..lock.claim()
        }
    }

    /// Adds to each plan what forbids to carry it out from here. A release that
    /// is suspended already is left alone by its loop.
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
            if let Some(branch) = follower.of(one)
                && one.observation.orders().suspended(now).is_none()
            {
                let refusal = refusal(&one.plan.release, &branch);
                one.plan.findings.push(refusal);
            }
        }
    }

    /// Holds the loop that follows a release. Says nothing where there is no
    /// such release yet.
    pub(super) async fn hold(
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
        let give = |orders: &mut pleach_domain::inventory::Orders| {
            orders.suspend = Some(suspension.clone());
        };
        let held = state::order(cluster, name, store, give).await;
        held.map(drop)
            .map_err(|error| failed("suspend", name, error))
    }
}

fn refusal(release: &ReleaseName, branch: &str) -> Finding {
    let target = format!("{}/{}", release.environment, release.release);
    Finding::error(
        Kind::Policy,
        "followed-by-loop",
        format!("a loop keeps {target} equal to {branch}, and would undo what is done from here"),
    )
    .hint("change it there; or say that it is meant: --local --reason TEXT suspends the release first, until `pleach resume`")
}

/// What a loop keeps the releases equal to that a command is about.
#[derive(Debug)]
pub(super) struct Follower {
    environment: String,
    /// The branch that one of its releases names, in words.
    branch: Option<String>,
}

impl Follower {
    /// The branch that a loop keeps a release equal to: all of the environment
    /// are, where one is. One that hands over from another environment speaks
    /// for itself.
    pub(super) fn of(&self, planned: &Planned) -> Option<String> {
        let own = || planned.observation.followed();
        self.among(&planned.plan.release, own)
    }

    fn among(&self, release: &ReleaseName, own: impl FnOnce() -> Option<String>) -> Option<String> {
        let is_of = release.environment == self.environment;
        let branch = self.branch.clone().filter(|_| is_of);
        branch.or_else(own)
    }
}

/// Finds out whether a loop follows an environment: what one of its releases
/// says. Where one of them is new, the others are asked.
pub(super) async fn follower<'a>(
    session: &Session,
    environment: &str,
    planned: impl Iterator<Item = &'a Planned>,
) -> Result<Follower, CliError> {
    let own: Vec<&Planned> = planned
        .filter(|planned| planned.plan.release.environment == environment)
        .collect();
    let mut branch = own
        .iter()
        .find_map(|planned| planned.observation.followed());
    if branch.is_none() && own.iter().any(|planned| planned.is_new()) {
        branch = recorded(session, environment).await?;
    }
    Ok(Follower {
        environment: environment.to_owned(),
        branch,
    })
}

/// The branch that one of the recorded releases of an environment names.
async fn recorded(session: &Session, environment: &str) -> Result<Option<String>, CliError> {
    let search = session.search();
    let listed = state::releases(&session.cluster, &search);
    match session.finish(listed).await? {
        Ok(records) => Ok(records
            .releases
            .into_iter()
            .filter(|release| release.name.environment == environment)
            .find_map(|release| release.followed)),
        // Who may not see them installs nothing that they follow.
        Err(error) if error.class() == Some(&Class::Forbidden) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(environment: &str) -> ReleaseName {
        ReleaseName {
            environment: environment.to_owned(),
            release: "web".to_owned(),
        }
    }

    #[test]
    fn a_loop_of_one_environment_follows_no_other() {
        let follower = |branch: Option<&str>| Follower {
            environment: "prod".to_owned(),
            branch: branch.map(str::to_owned),
        };
        let of = |branch, environment, own: Option<&str>| {
            let own = own.map(str::to_owned);
            follower(branch).among(&release(environment), || own)
        };
        let (prod, former) = (Some("env/prod"), Some("env/former"));
        assert_eq!(of(prod, "prod", None).as_deref(), prod);
        assert_eq!(of(prod, "former", None), None);
        assert_eq!(of(None, "former", former).as_deref(), former);
        assert_eq!(of(None, "prod", None), None);
    }

    #[test]
    fn the_refusal_names_the_branch_and_the_way_out() {
        let finding = refusal(&release("prod"), "env/prod of fleet");
        assert!(pleach_domain::plan::is_refusal(&finding));
        let text = finding.to_string();
        assert!(
            text.contains("a loop keeps prod/web equal to env/prod of fleet"),
            "{text}"
        );
    }
}
