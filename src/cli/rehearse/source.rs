//! The copy to rehearse on: of a cluster, or from a dump.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use pleach_engine::load::Loaded;
use pleach_engine::rehearse;
use pleach_model::object::{ObjectId, ReleaseName};
use pleach_planner::observe::ClusterId;
use pleach_planner::plan::Action;
use pleach_rehearsal::certificates;
use pleach_rehearsal::compare::{Effect, effects, first_difference};
use pleach_rehearsal::dump::{Copy, MAX_FILE};
use pleach_state::inventory::Store;
use pleach_throwaway::{TrustedAuthority, kubernetes_minor};

use super::stored::distance;
use crate::cli::dump::{options, planned, redacted};
use crate::cli::error::{CliError, Kind};
use crate::cli::session::{Planned, Session};
use crate::cli::verdict::Verdict;
use crate::cli::{Context, Exit, Target, Ui};
use pleach_cluster::Cluster;

/// Age from which a dump is reported as old.
const OLD: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Copy to rehearse on.
pub(super) struct Source {
    pub(super) copy: Copy,
    pub(super) loaded: Loaded,
    /// Duration of the copy; `None` for a dump.
    pub(super) took: Option<Duration>,
    /// Effects of the plans for the cluster, by release; `None` for a dump.
    pub(super) expected: Option<Expected>,
    pub(super) cluster_id: Option<ClusterId>,
    /// Whether the API server calls admission webhooks.
    pub(super) calls_webhooks: bool,
    /// Places of the records; `None` for a dump.
    pub(super) records: Option<Records>,
}

/// Places of the records of releases.
pub(super) struct Records {
    /// The cluster that was copied.
    pub(super) cluster: Cluster,
    /// Releases with their stores.
    pub(super) releases: Vec<(ReleaseName, Store)>,
}

/// Effects of the plans for the cluster.
pub(super) struct Expected {
    pub(super) by_release: BTreeMap<String, Vec<Effect>>,
    pub(super) redacted: BTreeSet<ObjectId>,
    pub(super) digests: BTreeMap<String, String>,
}

impl Expected {
    /// Returns the first difference of the effects on the cluster and on the copy.
    pub(super) fn difference(&self, plans: &[Planned]) -> Option<String> {
        plans.iter().find_map(|one| {
            let found = effects(&one.plan, &self.redacted);
            let name = one.plan.release.to_string();
            let nothing = Vec::new();
            let before = self.by_release.get(&name).unwrap_or(&nothing);
            let difference = first_difference(before, &found)?;
            Some(format!("release {name}, {difference}"))
        })
    }
}

impl Source {
    /// Plans on the cluster and copies it. The inner error is the exit code of a plan that is refused.
    pub(super) async fn of_cluster(
        ui: &mut Ui,
        ctx: &Context,
        target: &Target,
    ) -> Result<Result<Self, Exit>, CliError> {
        let session = Session::open_to_apply(ui, ctx, target, options(), None).await?;
        let plans = match planned(ui, ctx, &session, target).await? {
            Ok(plans) => plans,
            Err(exit) => return Ok(Err(exit)),
        };
        let mut exit = Exit::DONE;
        for one in &plans {
            let verdict = Verdict(&one.plan);
            if let Err(error) = verdict.ensure_allowed() {
                ui.error(&error);
                exit = exit.and(error.exit());
            } else if one
                .plan
                .changes
                .iter()
                .any(|it| it.action == Action::Blocked)
            {
                ui.findings(&verdict.remarks());
                exit = exit.and(verdict.blocks());
            }
        }
        if exit != Exit::DONE {
            ui.notice("nothing was rehearsed: the plan itself is refused");
            return Ok(Err(exit));
        }
        let started = Instant::now();
        let redacted = redacted(&session, &plans).await?;
        let by_release = plans
            .iter()
            .map(|one| {
                let name = one.plan.release.to_string();
                (name, effects(&one.plan, &redacted.redacted))
            })
            .collect();
        let digests = plans.iter().map(|one| {
            let plan = &one.plan;
            (plan.release.to_string(), plan.effects().to_string())
        });
        let releases = plans.iter().map(|one| {
            let desired = &one.desired;
            (desired.name.clone(), desired.store.clone())
        });
        Ok(Ok(Self {
            records: Some(Records {
                cluster: session.cluster.clone(),
                releases: releases.collect(),
            }),
            took: Some(started.elapsed()),
            expected: Some(Expected {
                by_release,
                digests: digests.collect(),
                redacted: redacted.redacted,
            }),
            cluster_id: session.cluster_id().cloned(),
            copy: redacted.copy,
            loaded: redacted.loaded,
            calls_webhooks: true,
        }))
    }

    /// Reads a dump.
    pub(super) fn of_dump(
        ui: &mut Ui,
        ctx: &Context,
        target: &Target,
        path: &Path,
    ) -> Result<Self, CliError> {
        let loaded = ctx.load(target)?;
        ui.findings(&loaded.findings);
        ctx.ensure_accepted(target, &loaded)?;
        let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let file = pleach_files::read_start(path, MAX_FILE)?;
        let copy = Copy::read(file.as_slice())
            .map_err(|error| CliError::new(Kind::Failed, named(&error)))?;
        drop(file);
        copy.header
            .ensure_about(&target.environment, target.release.as_deref())
            .map_err(|error| CliError::usage(named(&error)))?;
        let age = copy.header.at.parse::<Timestamp>();
        if let Ok(at) = age
            && Timestamp::now().duration_since(at) > OLD
        {
            ui.notice(format_args!(
                "warning: the dump is of {at}, more than 7 days ago"
            ));
        }
        Ok(Self {
            loaded: rehearse::fitting(&loaded, &copy)?,
            cluster_id: loaded.environment.cluster.id.clone().map(ClusterId),
            copy,
            took: None,
            records: None,
            expected: None,
            calls_webhooks: true,
        })
    }
}

/// Returns the authority that the registrations of a copy trust.
pub(super) fn authority(copy: &Copy) -> Result<TrustedAuthority, CliError> {
    let authority = copy.header.authority.authority();
    let authority = authority.ok_or(rehearse::CopyError::Authority)?;
    Ok(TrustedAuthority {
        name: certificates::NAME.to_owned(),
        key: authority.key_pem(),
    })
}

/// Refuses programs whose minor version is more than one apart from that of the cluster, or from the
/// one that the places of objects in etcd are known for.
pub(super) fn ensure_version(cluster: &str, programs: &str) -> Result<(), CliError> {
    let known = kubernetes_minor();
    if distance(known, programs).is_none_or(|distance| distance > 1) {
        let message = format!(
            "the throwaway control plane has Kubernetes {programs}: rehearsals are known to work with {known} and its neighbors"
        );
        return Err(CliError::new(Kind::Cluster, message));
    }
    if distance(cluster, programs).is_none_or(|distance| distance < 2) {
        return Ok(());
    }
    let message = format!(
        "the cluster has Kubernetes {cluster}, and the throwaway control plane {programs}: they are more than one minor version apart"
    );
    Err(CliError::new(Kind::Cluster, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_may_be_one_minor_apart() {
        for (cluster, is_accepted) in [
            ("v1.36.0-eks-1", true),
            ("v1.35.9", true),
            ("v1.34.9", false),
            ("v1.38.0", false),
            ("unknown", true),
        ] {
            let result = ensure_version(cluster, "1.36.3");
            assert_eq!(result.is_ok(), is_accepted, "{cluster}");
        }
        for programs in ["1.30.2", "1.38.0", "unknown"] {
            assert!(ensure_version("unknown", programs).is_err(), "{programs}");
        }
    }
}
