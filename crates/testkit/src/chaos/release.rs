//! Release of a seed: a generated bundle in its own repository, and the check that the cluster
//! matches one of its versions.

use std::time::{Duration, Instant};

use anyhow::bail;
use kube::Client;

use super::place;
use crate::generated::{Generated, Side};
use crate::program::Run;
use crate::repository::TestRepo;

/// How long controllers and the garbage collector can need, even on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// Readiness time-out of the release, even on a busy machine. A CRD that was accepted right before
/// a crash of the API server remains `Installing` until the server resyncs all CRDs after five
/// minutes.
const TIMEOUT: &str = "7m";

/// Maximum number of differences in a message.
const SHOWN: usize = 20;

/// Creates a repository with the old version of a bundle as release `app`. The environment has the
/// name of the bundle.
pub(super) fn repository(
    bundle: &Generated,
    cluster: &str,
    namespace: &str,
) -> anyhow::Result<TestRepo> {
    let name = bundle.name();
    let files = bundle.files().into_iter();
    let repo = TestRepo::new(files.map(|(path, text)| (format!("manifests/app/{path}"), text)))?;
    repo.write(
        "pleach.yaml",
        format!("apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: {name}\n"),
    )?;
    repo.write(
        environment_file(name),
        format!(
            "apiVersion: pleach.dev/v1alpha1\nkind: Environment\ncluster: {{id: {cluster}}}\nreleases:\n  \
             - {{name: app, bundle: app, version: {}, namespace: {namespace}, timeout: {TIMEOUT}}}\n\
             prune: {{max: 100000}}\nconsent:\n{}",
            Side::Old.version(),
            bundle.consents("app")
        ),
    )?;
    repo.commit("Install")?;
    Ok(repo)
}

/// Returns the path of an environment file.
pub(super) fn environment_file(name: &str) -> String {
    format!("environments/{name}.yaml")
}

/// Verifies the result of a finished run: the cluster matches a version, except for pending work of
/// controllers, and no temporary object remains. Without a version, nothing is desired. `excused`
/// ignores a difference.
pub(super) async fn is_reached(
    bundle: &Generated,
    side: Option<Side>,
    client: &Client,
    run: &Run,
    excused: impl Fn(&str) -> bool,
) -> anyhow::Result<()> {
    let release = format!("{}.app", bundle.name());
    let started = Instant::now();
    loop {
        let all = place::read(client).await?.into_iter();
        let live = all.map(|(id, found)| (id, found.object)).collect();
        let mut wrong = bundle.wrong(side, &live);
        wrong.retain(|one| !excused(one));
        let left = live.keys().filter(|id| place::is_temporary(id, &release));
        wrong.extend(left.map(|id| format!("{id} is left")));
        if wrong.is_empty() {
            return Ok(());
        }
        if started.elapsed() > PATIENCE {
            wrong.truncate(SHOWN);
            let wrong = wrong.join("\n  ");
            bail!("it was reported as done, but\n  {wrong}\n{run}");
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}
