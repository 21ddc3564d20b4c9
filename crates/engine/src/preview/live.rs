//! Comparison of the head with the live cluster.

use std::collections::BTreeSet;

use pleach_config::ClusterRef;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{Manifest, Origin, ReleaseName};
use pleach_planner::allow::Allow;
use pleach_planner::observe::ClusterId;
use pleach_planner::view::Drawing;
use pleach_report::preview::{ClusterPreview, EnvironmentPreview, ReleasePreview};

use super::{RenderedHead, VIEW};
use crate::{
    load::Loaded,
    planning::{self, Candidate, Gone, Options, Planner, Predecessors, Subject},
    sync::{
        SyncError,
        state::{self, Search},
    },
    words,
};
use pleach_cluster::{Class, Cluster, ClusterError};

/// Planning options as in `diff` and `plan`. Permissions are not checked here, because they depend
/// on the user who executes the plan.
const OPTIONS: Options = Options {
    verify: false,
    wait: true,
    review: false,
    nodes_behind: false,
    prune: true,
    predecessors: Predecessors::Ready,
};

/// The cluster to compare with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IntendedCluster {
    /// Context of the kubeconfig; `None` for the current one.
    pub context: Option<String>,
    /// Its cluster id, if declared.
    pub id: Option<String>,
    /// Warning if the change declares another cluster.
    pub findings: Vec<Finding>,
}

impl IntendedCluster {
    /// Selects the cluster of the base, because a change must not choose the cluster to query.
    /// Selects that of the head if the environment is new.
    pub fn of(head: &RenderedHead) -> Self {
        let after = &head.loaded.environment.cluster;
        let before = head.before.as_ref().unwrap_or(after);
        let named = |cluster: &ClusterRef| (cluster.context.clone(), cluster.id.clone());
        let moves = named(before) != named(after);
        let finding = || {
            Finding::warning(
                Kind::Policy,
                "other-cluster",
                "the change names another cluster; the head is compared with the cluster of the base",
            )
        };
        Self {
            context: before.context.clone(),
            id: before.id.clone(),
            findings: moves.then(finding).into_iter().collect(),
        }
    }
}

/// Access to the cluster to compare with.
pub struct ComparisonAccess<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// The expected cluster id, if declared.
    pub id: Option<ClusterId>,
    /// Restrictions of queries. `None`: unrestricted.
    pub allow: Option<&'a Allow>,
    /// Whether findings quote errors of the cluster. `false` for public previews.
    pub quotes: bool,
}

impl ComparisonAccess<'_> {
    /// Returns the reasons not to query the cluster about a release. Objects of other tenants must
    /// not be disclosed to readers of the preview.
    fn refusals(&self, subject: &Subject<'_>) -> Vec<Finding> {
        if let Subject::Desired(_, rendered) = subject
            && let Some(file) = rendered.stand_ins.first()
        {
            let message =
                "not compared with the cluster: the values of an encrypted file are not known here";
            return vec![
                Finding::error(Kind::Repository, "sops-key", message).at(Origin::new(&**file, 0)),
            ];
        }
        match (self.allow, subject) {
            (Some(allow), Subject::Desired(_, rendered)) => {
                allow.refuse(rendered.manifests.iter().map(Manifest::id))
            }
            // Removals send no content from git.
            (_, Subject::Gone(_)) | (None, _) => Vec::new(),
        }
    }
}

/// Creates the preview of a cluster that was not queried completely.
pub fn unanswered(why: Finding) -> ClusterPreview {
    ClusterPreview {
        findings: vec![why],
        ..ClusterPreview::default()
    }
}

/// Creates the preview of an unreachable cluster. Quotes the error if `quotes`.
pub fn unreachable(error: &ClusterError, quotes: bool) -> ClusterPreview {
    unanswered(unknown(error, error.hint(), quotes).of_kind(error.kind()))
}

/// Reports that a comparison with the cluster failed. Quotes errors of servers, which contain
/// addresses, only if `quotes`.
fn unknown(
    error: &(dyn std::error::Error + 'static),
    hint: Option<String>,
    quotes: bool,
) -> Finding {
    const CODE: &str = "cluster-unknown";
    if !quotes {
        let message = format!("failed to compare with the cluster ({CODE})");
        return Finding::error(Kind::Cluster, CODE, message)
            .hint("run `pleach preview --live` locally to see the error");
    }
    let mut finding = Finding::error(Kind::Cluster, CODE, words(error));
    finding.hint = hint;
    finding
}

/// Adds the changes that the head would cause in the cluster, for the releases that change in git,
/// or for `all`. Failures become findings and do not stop the rest. `leaving` decides about
/// releases that git no longer contains ([`planning::gone`], with the files of the head).
pub async fn add_cluster(
    preview: &mut EnvironmentPreview,
    head: &mut RenderedHead,
    access: &ComparisonAccess<'_>,
    leaving: impl FnOnce(&Loaded, Vec<Candidate>) -> Vec<Gone>,
    all: bool,
) {
    if !all && preview.releases.is_empty() {
        return;
    }
    let mut found = ClusterPreview::default();
    let touched: BTreeSet<String> = preview
        .releases
        .iter()
        .map(|release| release.diff.release.clone())
        .collect();
    let is_selected = |name: &ReleaseName| all || touched.contains(&name.to_string());
    let RenderedHead {
        loaded,
        kinds,
        masker,
        base_secrets,
        ..
    } = head;
    let loaded = &*loaded;
    let cluster = access.cluster;
    let plans = Planner {
        loaded,
        cluster,
        cluster_id: access.id.as_ref(),
        source: None,
        allow: access.allow,
        base_secrets: Some(&*base_secrets),
        options: OPTIONS,
    };
    let store = &loaded.environment.store;
    // Do not read records in stores of other tenants either.
    if let Some(why) = access.allow.and_then(|allow| allow.refuse_store(store)) {
        preview.cluster = Some(unanswered(why));
        return;
    }
    let search = Search::In(store.clone());
    let is_whole = loaded.others.is_empty();
    let gone = match state::releases(cluster, &search).await {
        Ok(records) => {
            let installed = planning::readable(records.releases);
            let candidates = planning::candidates(loaded, is_whole, installed);
            leaving(loaded, candidates)
        }
        // Without permission to list records, removed releases stay unknown.
        Err(error) if error.class() == Some(&Class::Forbidden) => Vec::new(),
        Err(error) => {
            preview.cluster = Some(unreachable(&error, access.quotes));
            return;
        }
    };
    let desired = loaded.rendered.iter();
    let desired = desired.map(|(release, rendered)| Subject::Desired(release, rendered));
    let gone = gone.into_iter().map(|gone| Subject::Gone(Box::new(gone)));
    for subject in desired.chain(gone).filter(|one| is_selected(one.name())) {
        let refusals = access.refusals(&subject);
        if !refusals.is_empty() {
            found.findings.extend(of_release(subject.name(), refusals));
            continue;
        }
        match Box::pin(plans.plan_for(&subject)).await {
            Ok(planned) => {
                let allow = access.allow;
                let refusals = allow.map(|allow| allow.check(&planned.plan));
                let refusals = refusals.filter(|refusals| !refusals.is_empty());
                if let Some(refusals) = refusals {
                    found.findings.extend(of_release(subject.name(), refusals));
                    continue;
                }
                let observed = &planned.observation.observed;
                found.id.get_or_insert_with(|| observed.cluster.clone());
                let drawing = Drawing {
                    desired: &planned.desired,
                    observed,
                    policy: &plans.policy_for(&subject),
                    kinds: kinds.catalog(),
                    view: VIEW,
                };
                found.releases.push(ReleasePreview {
                    effects: Some(planned.plan.effects()),
                    ..ReleasePreview::new(&planned.plan, drawing, masker)
                });
            }
            Err(error) => {
                let finding = unplanned(subject.name(), &error, access.quotes);
                found.findings.push(finding);
            }
        }
    }
    preview.cluster = Some(found);
}

fn unplanned(release: &ReleaseName, error: &SyncError, quotes: bool) -> Finding {
    let finding = unknown(error, error.hint(), quotes).of_kind(error.kind());
    about(release, finding)
}

/// Returns the first findings of a release, with its name.
fn of_release(release: &ReleaseName, findings: Vec<Finding>) -> impl Iterator<Item = Finding> {
    const SHOWN: usize = 10;
    let findings = findings.into_iter().take(SHOWN);
    findings.map(move |finding| about(release, finding))
}

fn about(release: &ReleaseName, mut finding: Finding) -> Finding {
    finding.message = format!("release {release}: {}", finding.message);
    finding
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_public_reads_no_text_of_a_cluster() {
        let error = || ClusterError::Prepare {
            server: "https://10.0.0.7".to_owned(),
            message: "no".to_owned(),
        };
        let release = ReleaseName {
            environment: "prod".to_owned(),
            release: "web".to_owned(),
        };
        for quotes in [false, true] {
            let of_cluster = unreachable(&error(), quotes).findings.remove(0);
            let of_release = unplanned(&release, &SyncError::Cluster(error()), quotes);
            for finding in [&of_cluster, &of_release] {
                assert_eq!(finding.code, "cluster-unknown");
                assert_eq!(finding.kind, Kind::Cluster);
                assert_eq!(
                    finding.message.contains("10.0.0.7"),
                    quotes,
                    "{}",
                    finding.message
                );
            }
            assert!(of_release.message.starts_with("release prod.web: "));
        }
    }
}
