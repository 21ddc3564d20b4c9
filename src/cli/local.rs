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
    pub(super) fn review<'a>(&self, branch: &str, planned: impl Iterator<Item = &'a mut Planned>) {
        if self.local {
            return;
        }
        let now = Timestamp::now();
        for one in planned {
            if one.observation.orders().suspended(now).is_none() {
                let refusal = refusal(&one.plan.release, branch);
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

/// The branch that a loop keeps an environment equal to, in words: what one of
/// its releases says. Where one of them is new, the others are asked.
pub(super) async fn follower<'a>(
    session: &Session,
    environment: &str,
    planned: impl Iterator<Item = &'a Planned> + Clone,
) -> Result<Option<String>, CliError> {
    let known = planned
        .clone()
        .find_map(|planned| planned.observation.followed());
    let mut planned = planned;
    if known.is_some() || !planned.any(Planned::is_new) {
        return Ok(known);
    }
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

    #[test]
    fn the_refusal_names_the_branch_and_the_way_out() {
        let release = ReleaseName {
            environment: "prod".to_owned(),
            release: "web".to_owned(),
        };
        let finding = refusal(&release, "env/prod of fleet");
        assert!(pleach_domain::plan::is_refusal(&finding));
        let text = finding.to_string();
        assert!(
            text.contains("a loop keeps prod/web equal to env/prod of fleet"),
            "{text}"
        );
    }
}
