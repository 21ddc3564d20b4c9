//! `pleach status`.

use clap::ValueEnum;
use futures::StreamExt as _;
use jiff::Timestamp;
use pleach_config::ResolvedEnvironment;
use pleach_model::finding::{Finding, Kind as FindingKind};
use pleach_state::inventory::{ReleaseSummary, STATE_NAMESPACE, Store};

mod audit;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use super::error::{CliError, Kind};
use super::format::status::{DeclaredVersions, Live};
use super::session::connect;
use super::{Context, Exit, Target, Ui, format};
use pleach_cluster::{Class, Cluster, ClusterError};
use pleach_engine::{
    sync::{
        is_cluster, live,
        state::{self, Search},
    },
    words,
};
use pleach_git::Source;

/// Show installed releases and their readiness
///
/// Reads the records of pleach in the cluster: the releases with their
/// versions, their readiness, and the reason if they are not ready. With an
/// environment, it also reads the live objects of its releases, and shows those
/// that are missing, not ready, or changed by another actor since the last run.
/// In a repository, it also shows the releases that are not installed, those
/// that git no longer has, and those with another version than in git.
///
/// Needs no repository, and writes nothing. Without an environment, or with
/// --recorded, it only needs permission to read the records. Live objects need
/// `get` and `list` on their kinds; unreadable kinds are reported.
///
/// Records are read from the location in the environment file. Without an
/// environment, the whole cluster is searched, as far as permissions allow.
///
/// With --audit, the last plan of each release is compared with the audit log
/// of the API server instead: planned changes that were not written, and writes
/// under the name of the release that were not planned. The exit code is 1 if
/// they differ.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach status                     every release in the cluster, as recorded
  pleach status production          one environment: live objects, compared with git
  pleach status production --recorded
                                    as recorded at the end of the last runs
  pleach status production --watch  again on every change
  pleach status --state-namespace team-a
                                    the records in that namespace
  pleach status production --audit /var/log/kubernetes/audit.log
                                    planned changes compared with writes
  pleach status -o json             for programs")]
pub(crate) struct StatusArgs {
    /// Environment, or one release of it [default: everything in the cluster]
    #[arg(value_name = "ENV[/RELEASE]")]
    target: Option<Target>,

    /// Show only the records of the last runs, without live objects
    #[arg(long, conflicts_with = "all")]
    recorded: bool,

    /// List every object, not only those that are not ready or have drifted
    #[arg(long, requires = "target")]
    all: bool,

    /// Show the status again on every change, until interrupted
    #[arg(short, long)]
    watch: bool,

    /// Compare the last plan of each release with this audit log, JSON lines
    #[arg(long, value_name = "FILE", conflicts_with_all = ["watch", "all"])]
    audit: Option<PathBuf>,

    #[command(flatten)]
    place: StateStore,

    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: StatusOutput,
}

/// Location of the records.
#[derive(Debug, clap::Args)]
pub(crate) struct StateStore {
    /// Namespace of the state: that of its ConfigMap, or pleach-system
    ///
    /// The default is the location in the environment file. Without one, the whole
    /// cluster is searched, as far as permissions allow.
    #[arg(long, value_name = "NAMESPACE")]
    state_namespace: Option<String>,
}

impl StateStore {
    /// Returns where to search for records, from options and the environment file.
    pub(super) fn search(&self, environment: Option<&ResolvedEnvironment>) -> Search {
        match (&self.state_namespace, environment) {
            (Some(namespace), _) if namespace == STATE_NAMESPACE => Search::In(Store::Release),
            (Some(namespace), _) => Search::In(Store::ConfigMap {
                namespace: namespace.clone(),
            }),
            (None, Some(environment)) => Search::In(environment.store.clone()),
            (None, None) => Search::Everywhere,
        }
    }
}

/// Converts the error of a search. Without the permission to search everywhere, suggests
/// `--state-namespace`.
pub(super) fn nowhere(error: ClusterError, search: &Search) -> CliError {
    let is_closed = error.class() == Some(&Class::Forbidden) && *search == Search::Everywhere;
    let failed = CliError::from(error);
    if is_closed {
        failed.hint("or name the namespace of the state with --state-namespace")
    } else {
        failed
    }
}

/// Formats of the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatusOutput {
    /// For people, with colors on a terminal.
    Text,
    /// For programs; with --watch one line per change.
    Json,
}

pub(crate) async fn run(ui: &mut Ui, ctx: &Context, args: StatusArgs) -> Result<Exit, CliError> {
    let environment = match &args.target {
        Some(target) => environment(ui, ctx, target)?,
        None => None,
    };
    let cluster = cluster_of(ctx, environment.as_ref()).await?;
    if let Some(environment) = &environment {
        check_cluster(ui, &cluster, environment).await;
    }
    let search = args.place.search(environment.as_ref());
    let in_git: BTreeSet<String> = environment
        .iter()
        .flat_map(|environment| &environment.releases)
        .map(|release| release.name.release.clone())
        .collect();
    let view = View {
        search,
        declared: environment.map(|environment| declared(&environment, args.target.as_ref())),
        args,
        folder: ctx.folder().ok(),
    };
    let found = state::releases(&cluster, &view.search)
        .await
        .map_err(|error| nowhere(error, &view.search))?;
    // Most users that can see releases cannot list all ConfigMaps, and miss nothing.
    if let Some(unseen) = &found.unseen
        && found.releases.is_empty()
    {
        ui.findings(&[hidden(unseen)]);
    }
    if let Some(target) = &view.args.target
        && view.select(found.releases.clone()).is_empty()
    {
        let environments = ctx.environments().unwrap_or_default();
        // The target can be in a record that this user is not allowed to read.
        if found.unseen.is_none() || !environments.is_empty() {
            ensure_known(target, environments, in_git, &found.releases)?;
        }
    }
    if let Some(path) = &view.args.audit {
        let releases = view.select(found.releases);
        return audit::run(ui, &cluster, releases, path, view.args.output).await;
    }
    let seen = view.read(&cluster, found.releases).await;
    ui.findings(seen.unread.as_slice());
    if !view.args.watch {
        ui.print(view.show(&seen));
        return Ok(Exit::DONE);
    }
    view.watch(ui, ctx, &cluster, seen).await
}

/// Interval at which live objects are read again in watch mode.
const READ_INTERVAL: Duration = Duration::from_secs(10);

/// State of the releases as read.
struct Seen {
    releases: Vec<ReleaseSummary>,
    /// Live state. `None` if it was not requested or not readable.
    live: Option<Live>,
    /// Reason why it is not readable.
    unread: Option<Finding>,
}

impl Seen {
    /// Returns whether another read gave the same state.
    fn is_same(&self, other: &Self) -> bool {
        let live = |seen: &Self| seen.live.as_ref().map(|live| live.releases.clone());
        self.releases == other.releases && live(self) == live(other)
    }
}

/// Refuses a target that is neither in git nor in the cluster.
fn ensure_known(
    target: &Target,
    mut environments: BTreeSet<String>,
    mut releases: BTreeSet<String>,
    recorded: &[ReleaseSummary],
) -> Result<(), CliError> {
    for ReleaseSummary { name, .. } in recorded {
        environments.insert(name.environment.clone());
        if name.environment == target.environment {
            releases.insert(name.release.clone());
        }
    }
    if !environments.contains(&target.environment) {
        return Err(unknown(
            format!("there is no environment {}", target.environment),
            environments,
        ));
    }
    match &target.release {
        Some(release) if !releases.contains(release) => Err(unknown(
            format!(
                "there is no release {release} in environment {}",
                target.environment
            ),
            releases,
        )),
        _ => Ok(()),
    }
}

fn unknown(message: String, names: BTreeSet<String>) -> CliError {
    let error = CliError::new(Kind::Repository, message);
    if names.is_empty() {
        return error.hint("nothing is recorded in this cluster; --repo names a repository");
    }
    let names: Vec<String> = names.into_iter().collect();
    error.hint(format!("known names: {}", names.join(", ")))
}

/// Selection of releases to show.
struct View {
    declared: Option<DeclaredVersions>,
    search: Search,
    args: StatusArgs,
    /// Folder of the local repository, if there is one.
    folder: Option<PathBuf>,
}

impl View {
    fn select(&self, mut releases: Vec<ReleaseSummary>) -> Vec<ReleaseSummary> {
        releases.retain(|release| {
            self.args.target.as_ref().is_none_or(|target| {
                release.name.environment == target.environment
                    && target
                        .release
                        .as_ref()
                        .is_none_or(|requested| *requested == release.name.release)
            })
        });
        releases
    }

    /// Reads the selected releases with the remaining steps of their last runs and their live
    /// objects.
    async fn read(&self, cluster: &Cluster, releases: Vec<ReleaseSummary>) -> Seen {
        let mut releases = self.select(releases);
        state::read_journals(cluster, &mut releases).await;
        let mut seen = Seen {
            releases,
            live: None,
            unread: None,
        };
        if self.args.recorded || self.args.target.is_none() || seen.releases.is_empty() {
            return seen;
        }
        match live(cluster, &seen.releases).await {
            Ok(statuses) => {
                let releases = seen.releases.iter().zip(statuses).map(|(release, status)| {
                    let key = (release.name.clone(), release.store.clone());
                    (key, status)
                });
                seen.live = Some(Live {
                    at: Timestamp::now(),
                    releases: releases.collect(),
                    lists_all: self.args.all,
                    cluster: cluster
                        .context()
                        .unwrap_or_else(|| cluster.server())
                        .to_owned(),
                    subjects: self.subjects(&seen.releases),
                });
            }
            Err(error) => seen.unread = Some(unread(&error)),
        }
        seen
    }

    /// Returns the subjects of the recorded commits that the local repository has.
    fn subjects(&self, releases: &[ReleaseSummary]) -> BTreeMap<String, String> {
        let folder = self.folder.as_deref();
        let Some(source) = folder.and_then(|folder| Source::open(folder).ok()) else {
            return BTreeMap::new();
        };
        let records = releases.iter().filter_map(|one| one.record.as_ref().ok());
        let attempts = records.flat_map(|record| record.installed.iter().chain(&record.applying));
        let commits = attempts.map(|attempt| attempt.revision.trim_end_matches("-dirty"));
        let subjects =
            commits.filter_map(|commit| Some((commit.to_owned(), source.subject(commit)?)));
        subjects.collect()
    }

    fn show(&self, seen: &Seen) -> String {
        let (declared, live, now) = (self.declared.as_ref(), seen.live.as_ref(), Timestamp::now());
        let releases = &seen.releases;
        let json = || format::status::json(releases, declared, live, now);
        match self.args.output {
            StatusOutput::Text => {
                format::status::text(releases, self.args.target.as_ref(), declared, live, now)
            }
            StatusOutput::Json if self.args.watch => json().to_string(),
            StatusOutput::Json => format::json(&json()),
        }
    }

    /// Prints the releases again whenever they change.
    async fn watch(
        &self,
        ui: &mut Ui,
        ctx: &Context,
        cluster: &Cluster,
        mut shown: Seen,
    ) -> Result<Exit, CliError> {
        ui.redraw(self.show(&shown));
        let changes = state::follow_releases(cluster, &self.search);
        tokio::pin!(changes);
        let is_live = shown.live.is_some() || shown.unread.is_some();
        loop {
            let change = tokio::select! {
                biased;
                () = ctx.cancel.cancelled() => return Ok(Exit::INTERRUPTED),
                change = changes.next() => change,
                // Objects can change without their record.
                () = tokio::time::sleep(READ_INTERVAL), if is_live => Some(Ok(shown.releases.clone())),
            };
            match change {
                Some(Ok(releases)) => {
                    let seen = self.read(cluster, releases).await;
                    if seen.unread != shown.unread {
                        ui.findings(seen.unread.as_slice());
                    }
                    if !seen.is_same(&shown) {
                        ui.redraw(self.show(&seen));
                    }
                    shown = seen;
                }
                // No release was ever installed. This can change.
                Some(Err(error)) if error.class() == Some(&Class::KindNotServed) => {}
                // The other location is readable. The first read reported this.
                Some(Err(error))
                    if self.search == Search::Everywhere
                        && error.class() == Some(&Class::Forbidden) => {}
                Some(Err(error)) if is_final(&error) => return Err(error.into()),
                Some(Err(error)) => ui.status(format_args!("{error}; trying again")),
                None => return Ok(Exit::DONE),
            }
        }
    }
}

/// Returns the warning that only the record is shown, without live objects.
fn unread(error: &ClusterError) -> Finding {
    let mut finding = Finding::warning(
        FindingKind::Cluster,
        "live-unread",
        format!(
            "cannot read the live objects, READY is as recorded: {}",
            words(error)
        ),
    );
    finding.hint = error.hint();
    finding
}

/// Returns the note that a location without read permission can have more releases.
fn hidden(error: &ClusterError) -> Finding {
    let mut finding = Finding::note(
        FindingKind::Cluster,
        "records-not-seen",
        format!("there may be more releases than these: {}", words(error)),
    );
    finding.hint = error.hint();
    finding
}

/// Returns whether retrying does not help.
pub(super) fn is_final(error: &ClusterError) -> bool {
    matches!(
        error.class(),
        Some(Class::Forbidden | Class::Unauthorized | Class::Credentials)
    )
}

/// Reads the environment in git. If the user did not name the repository, a failure is only a
/// warning.
pub(super) fn environment(
    ui: &mut Ui,
    ctx: &Context,
    target: &Target,
) -> Result<Option<ResolvedEnvironment>, CliError> {
    match ctx.environment(&target.environment) {
        Ok(environment) => Ok(environment),
        Err(error) if ctx.names_repository() => Err(error),
        Err(error) => {
            ui.findings(&[Finding::warning(
                FindingKind::Repository,
                "repository-unusable",
                format!("the repository is ignored: {error}"),
            )
            .hint(format!("`pleach render {target}` shows its errors"))]);
            Ok(None)
        }
    }
}

/// Connects to the cluster of an environment, or to the current context.
pub(super) async fn cluster_of(
    ctx: &Context,
    environment: Option<&ResolvedEnvironment>,
) -> Result<Cluster, CliError> {
    let context = ctx
        .settings
        .context
        .clone()
        .or_else(|| environment?.cluster.context.clone());
    connect(ctx.settings.kubeconfig.clone(), context).await
}

/// Warns if the cluster is not the one that the environment names, as far as its id is readable.
async fn check_cluster(ui: &mut Ui, cluster: &Cluster, environment: &ResolvedEnvironment) {
    let Some(named) = &environment.cluster.id else {
        return;
    };
    if is_cluster(cluster, &environment.store, named).await == Some(false) {
        let message = format!(
            "{} is not cluster {named}, which the environment names",
            cluster.server()
        );
        ui.findings(&[Finding::warning(
            FindingKind::Policy,
            "wrong-cluster",
            message,
        )]);
    }
}

fn declared(environment: &ResolvedEnvironment, target: Option<&Target>) -> DeclaredVersions {
    DeclaredVersions {
        environment: environment.name.clone(),
        repository: environment.repository.clone(),
        releases: environment
            .releases
            .iter()
            .map(|release| (release.name.release.clone(), release.version.clone()))
            .collect(),
        only: target.and_then(|target| target.release.clone()),
    }
}
