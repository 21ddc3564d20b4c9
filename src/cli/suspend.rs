//! `pleach suspend`, `pleach resume` and `pleach sync`: user requests for releases.

mod wait;

use jiff::{SignedDuration, Timestamp};
use pleach_state::inventory::{ReleaseSummary, SyncRequest};

use super::error::{CliError, Kind};
use super::lease::person;
use super::session::failed;
use super::status::{StateStore, cluster_of, environment, nowhere};
use super::{Context, Exit, Target, Ui};
use pleach_cluster::Cluster;
use pleach_engine::requests::{UserRequest, suspension};
use pleach_engine::sync::{is_cluster, state};

/// Suspend the reconciliation of releases
///
/// Writes the user, the reason and the end of the suspension beside the record
/// in the cluster. Needs no repository and no commit. The controller does not
/// sync suspended releases and does not correct their drift until the time is
/// over or `pleach resume` ends the suspension; `pleach status` shows it. A
/// local `pleach apply` is still possible, with a warning.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach suspend production/web --for 2h --reason \"the database moves\"
  pleach suspend production                      every release, until it is resumed")]
pub(crate) struct SuspendArgs {
    /// Environment, or one release of it
    #[arg(value_name = "ENV[/RELEASE]")]
    target: Target,

    /// Duration, such as 30m or 2h [default: until it is resumed]
    #[arg(long = "for", value_name = "TIME")]
    duration: Option<SignedDuration>,

    /// Reason for the suspension
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    #[command(flatten)]
    place: StateStore,
}

/// Resume suspended releases
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach resume production/web
  pleach resume production")]
pub(crate) struct ResumeArgs {
    /// Environment, or one release of it
    #[arg(value_name = "ENV[/RELEASE]")]
    target: Target,

    #[command(flatten)]
    place: StateStore,
}

/// Request a sync from the controller
///
/// Writes a request beside the record in the cluster, with the user and the
/// time. The controller that follows the release syncs the commit that it
/// knows, fetches newer commits, which are followed like any other, and removes
/// the request. Without a controller, use `pleach apply`. With --nodes, it also
/// changes nodes that fell behind the version.
///
/// With --wait, the command ends when the controller has reconciled the commits
/// that git had at the time of the request. The exit code is that of an apply.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach sync production/web
  pleach sync production --wait --timeout 5m    push before, and see the result here
  pleach sync production --override-window
  pleach sync production/cluster --nodes        change nodes that joined or fell back
  pleach sync production --withdraw             withdraw a request that no controller has accepted")]
#[expect(clippy::struct_excessive_bools, reason = "independent flags")]
pub(crate) struct SyncArgs {
    /// Environment, or one release of it
    #[arg(value_name = "ENV[/RELEASE]")]
    target: Target,

    /// Sync even outside of the sync windows of the environment file; this is recorded
    #[arg(long)]
    override_window: bool,

    /// Change nodes too that fell behind the installed version
    #[arg(long)]
    nodes: bool,

    /// Withdraw a request that no controller has accepted
    #[arg(long, conflicts_with_all = ["override_window", "nodes"])]
    withdraw: bool,

    /// Wait for the result of the controller
    #[arg(long, conflicts_with = "withdraw")]
    wait: bool,

    /// Maximum wait, such as 90s or 10m
    #[arg(
        long,
        value_name = "TIME",
        default_value = "10m",
        requires = "wait",
        value_parser = positive
    )]
    timeout: SignedDuration,

    #[command(flatten)]
    place: StateStore,
}

/// Parses a positive duration.
fn positive(text: &str) -> Result<SignedDuration, String> {
    let duration: SignedDuration = text.parse().map_err(|error| format!("{error}"))?;
    if duration.is_positive() {
        Ok(duration)
    } else {
        Err("a positive duration is needed".to_owned())
    }
}

pub(crate) async fn suspend(
    ui: &mut Ui,
    ctx: &Context,
    args: SuspendArgs,
) -> Result<Exit, CliError> {
    let reason = args.reason.unwrap_or_default();
    let suspension = suspension(args.duration, reason, person(), Timestamp::now())
        .map_err(|error| CliError::usage(format!("--for {error}")))?;
    let words = suspension.words();
    let request = UserRequest::Suspend(suspension);
    let report = |ui: &mut Ui, release: &ReleaseSummary| {
        ui.print(format!("{}: {words}", release.target()));
    };
    each(ui, ctx, &args.target, &args.place, &request, report).await
}

pub(crate) async fn resume(ui: &mut Ui, ctx: &Context, args: ResumeArgs) -> Result<Exit, CliError> {
    let report = |ui: &mut Ui, release: &ReleaseSummary| {
        let was = release.user_requests.suspended(Timestamp::now());
        let was = was.map_or_else(
            || "was not suspended".to_owned(),
            |was| format!("resumed; it was {}", was.words()),
        );
        ui.print(format!("{}: {was}", release.target()));
    };
    let request = UserRequest::Resume;
    each(ui, ctx, &args.target, &args.place, &request, report).await
}

pub(crate) async fn sync(ui: &mut Ui, ctx: &Context, args: SyncArgs) -> Result<Exit, CliError> {
    if args.withdraw {
        return withdraw(ui, ctx, &args).await;
    }
    let request = SyncRequest {
        at: Timestamp::now(),
        by: person(),
        override_window: args.override_window,
        after_fetch: args.wait,
        nodes: args.nodes,
    };
    let at = request.at;
    let request = UserRequest::Sync(request);
    let report = |ui: &mut Ui, release: &ReleaseSummary| {
        let target = release.target();
        ui.print(format!("{target}: sync requested"));
        if let Some(suspension) = release.user_requests.suspended(Timestamp::now()) {
            ui.notice(format!(
                "warning: {target} is {}: the request waits for the end of the suspension",
                suspension.words()
            ));
        }
    };
    if args.wait {
        let selected = select(ui, ctx, &args.target, &args.place).await?;
        wait::ensure_executed(&selected.releases, at)?;
        let written = write_requests(ui, &args.target, &selected, &request, report).await;
        let waited = wait::run(ui, ctx, &selected, &written.releases, args.timeout).await?;
        return Ok(written.exit.and(waited));
    }
    let exit = each(ui, ctx, &args.target, &args.place, &request, report).await?;
    ui.notice(format!(
        "note: the controller that follows these releases executes the request; without a controller, use `pleach apply {}`",
        args.target
    ));
    Ok(exit)
}

/// Withdraws requests that no controller has accepted yet.
async fn withdraw(ui: &mut Ui, ctx: &Context, args: &SyncArgs) -> Result<Exit, CliError> {
    let report = |ui: &mut Ui, release: &ReleaseSummary| {
        let target = release.target();
        ui.print(match &release.user_requests.sync {
            Some(sync) => format!("{target}: the request of {} is withdrawn", sync.by),
            None => format!("{target}: no sync was requested"),
        });
    };
    let request = UserRequest::WithdrawSync;
    each(ui, ctx, &args.target, &args.place, &request, report).await
}

/// Releases of a target, and their cluster.
struct Selected {
    cluster: Cluster,
    releases: Vec<ReleaseSummary>,
}

/// Releases whose requests were written, and the exit code of the others.
struct WrittenRequests {
    releases: Vec<ReleaseSummary>,
    exit: Exit,
}

/// Changes the requests of each release of a target and prints the result.
async fn each(
    ui: &mut Ui,
    ctx: &Context,
    target: &Target,
    place: &StateStore,
    request: &UserRequest,
    report: impl Fn(&mut Ui, &ReleaseSummary),
) -> Result<Exit, CliError> {
    let selected = select(ui, ctx, target, place).await?;
    let written = write_requests(ui, target, &selected, request, report).await;
    Ok(written.exit)
}

/// Finds the releases of a target.
async fn select(
    ui: &mut Ui,
    ctx: &Context,
    target: &Target,
    place: &StateStore,
) -> Result<Selected, CliError> {
    let environment = environment(ui, ctx, target)?;
    // The repository id selects the releases, even if the environment file is invalid.
    let repository = match &environment {
        Some(environment) => Some(environment.repository.clone()),
        None => ctx.repository_id()?,
    };
    let cluster = cluster_of(ctx, environment.as_ref()).await?;
    if let Some(environment) = &environment
        && let Some(named) = &environment.cluster.id
        && is_cluster(&cluster, &environment.store, named).await == Some(false)
    {
        return Err(CliError::new(
            Kind::Policy,
            format!(
                "{} is not cluster {named}, which the environment names",
                cluster.server()
            ),
        )
        .hint("choose the right --context, or correct cluster.id in the environment file"));
    }
    let search = place.search(environment.as_ref());
    let found = state::releases(&cluster, &search)
        .await
        .map_err(|error| nowhere(error, &search))?;
    let mut releases = found.releases;
    let neighbor = neighbor(&releases, repository.as_deref(), Timestamp::now());
    releases.retain(|release| {
        let is_selected = |name: &String| *name == release.name.release;
        release.name.environment == target.environment
            && target.release.as_ref().is_none_or(is_selected)
    });
    if releases.is_empty() {
        let error = none(target, &cluster);
        return Err(match neighbor {
            Some(neighbor) => error.hint(format!(
                "a controller finds a new branch within a minute; `pleach sync {neighbor}` lets it fetch now"
            )),
            None => error,
        });
    }
    if let Some(repository) = &repository {
        releases = only_ours(ui, releases, repository)?;
    }
    Ok(Selected { cluster, releases })
}

/// Returns a release of the repository that a controller follows now. A sync request for it fetches
/// all branches of the repository.
fn neighbor(
    releases: &[ReleaseSummary],
    repository: Option<&str>,
    now: Timestamp,
) -> Option<String> {
    let mut followed = releases.iter().filter(|release| {
        let following = release.followed.as_ref();
        let record = release.record.as_ref();
        following.is_some_and(|following| !following.is_stale(now))
            && record.is_ok_and(|record| repository.is_none_or(|id| id == record.repository))
    });
    followed.next().map(ReleaseSummary::target)
}

/// Changes the requests of releases and prints the result. Reports a failure without affecting
/// other releases.
async fn write_requests(
    ui: &mut Ui,
    target: &Target,
    selected: &Selected,
    request: &UserRequest,
    report: impl Fn(&mut Ui, &ReleaseSummary),
) -> WrittenRequests {
    let mut requests = WrittenRequests {
        releases: Vec::new(),
        exit: Exit::DONE,
    };
    for release in &selected.releases {
        let cluster = &selected.cluster;
        let written = request.write(cluster, &release.name, &release.store).await;
        let error = match written {
            Ok(Some(_)) => {
                report(ui, release);
                requests.releases.push(release.clone());
                continue;
            }
            Ok(None) => none(target, cluster),
            Err(error) => failed("write the requests for", &release.name, error),
        };
        ui.error(&error);
        requests.exit = requests.exit.and(error.exit());
    }
    requests
}

/// Returns only the releases of this repository, because another one can have an environment of the
/// same name. Reports the skipped releases.
fn only_ours(
    ui: &mut Ui,
    releases: Vec<ReleaseSummary>,
    repository: &str,
) -> Result<Vec<ReleaseSummary>, CliError> {
    let is_other = |release: &ReleaseSummary| {
        let record = release.record.as_ref().ok()?;
        let is_other = !record.repository.is_empty() && record.repository != repository;
        is_other.then(|| {
            let target = release.target();
            format!(
                "{target} belongs to repository {}, not to {repository}",
                record.repository
            )
        })
    };
    let mut others = Vec::new();
    let mut ours = Vec::new();
    for release in releases {
        match is_other(&release) {
            Some(words) => others.push(words),
            None => ours.push(release),
        }
    }
    if ours.is_empty() {
        return Err(CliError::new(Kind::Policy, others.join("; "))
            .hint("run the command in that repository, or outside of any repository"));
    }
    for other in others {
        ui.notice(format!("note: {other}; it is skipped"));
    }
    Ok(ours)
}

fn none(target: &Target, cluster: &Cluster) -> CliError {
    CliError::new(
        Kind::Failed,
        format!("nothing of {target} is installed in {}", cluster.server()),
    )
    .hint("`pleach status` lists the installed releases")
}
