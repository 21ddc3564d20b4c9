//! The release that a seed plays: a generated bundle in a repository of its own,
//! and whether the cluster is as one of its versions wants it.

use std::time::{Duration, Instant};

use anyhow::bail;
use kube::Client;

use super::place;
use crate::generated::{Generated, Side};
use crate::program::Run;
use crate::repository::TestRepo;

/// How long controllers and the garbage collector may need to follow, also on a
/// machine that is busy with something else.
const PATIENCE: Duration = Duration::from_mins(1);

/// How long the release waits for readiness, on such a machine too. A definition
/// that an API server accepted right before it crashed is `Installing` until that
/// server looks at all definitions again: after five minutes.
const TIMEOUT: &str = "7m";

/// What is wrong is told up to this number.
const TOLD: usize = 20;

/// A repository with the old version of a bundle as release `app` of the
/// environment that is named like the bundle.
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

/// The file of an environment.
pub(super) fn environment_file(name: &str) -> String {
    format!("environments/{name}.yaml")
}

/// What a run that is over reached: the cluster is as a version wants it, at once
/// but for what controllers still do; and nothing is left that is there for a
/// while. Without a version nothing is wanted. What is wrong is told in words;
/// some of it may be `excused`.
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
        let all = place::look(client).await?.into_iter();
        let live = all.map(|(id, found)| (id, found.object)).collect();
        let mut wrong = bundle.wrong(side, &live);
        wrong.retain(|one| !excused(one));
        let left = live.keys().filter(|id| place::is_temporary(id, &release));
        wrong.extend(left.map(|id| format!("{id} is left")));
        if wrong.is_empty() {
            return Ok(());
        }
        if started.elapsed() > PATIENCE {
            wrong.truncate(TOLD);
            let wrong = wrong.join("\n  ");
            bail!("it is said to be done, but\n  {wrong}\n{run}");
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}
