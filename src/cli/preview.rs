//! `pleach preview`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use pleach_model::finding::{Finding, Kind as FindingKind};
use pleach_model::object::DigestKey;
use pleach_model::sanitize::plain;
use pleach_planner::allow::Allow;
use pleach_planner::observe::ClusterId;
use pleach_report::preview::{
    EnvironmentPreview, Preview, ReleasePreview,
    comment::{Comment, comment},
    rehearsal::{REPORT_BYTES, Rehearsal, RehearsalError},
    words::compared,
};
use tokio::time::{Instant, timeout_at};

use super::error::{CliError, Kind};
use super::forge::ReportArgs;
use super::format::preview::{page, text};
use super::load::Keys;
use super::runtime::block_on;
use super::session::{finish, keys};
use super::{Context, Exit, Target, Ui, format, mask};
use pleach_cluster::{Cluster, Connection};
use pleach_engine::engines::{EngineRunner, EngineSearch};
use pleach_engine::load::Loaded;
use pleach_engine::{
    load::beside,
    planning::{self, agent},
    preview::{
        Change, ComparisonAccess, End, IntendedCluster, OfflinePreview, Question, RenderedHead,
        Scope, add, add_cluster, unanswered, unreachable,
    },
    preview_process::{FORMAT, Report, Verdict, Way, marker},
};
use pleach_files::{
    bounds::{bound, defer},
    sandbox::{Work, confine},
};

/// CPU time for an unreviewed change.
const TIME: Duration = Duration::from_mins(2);
/// Time for cluster requests about an unreviewed change. Shorter than the time-out of the process.
const ASKING: Duration = Duration::from_secs(90);

/// Show the effects of a change in git
///
/// Renders every environment that the change touches at both revisions and
/// plans the upgrade from one to the other: risks, stages, and differences, the
/// most dangerous first. It sends no request to a cluster, so it can run in any
/// pipeline, and does not show defaults and refusals of the API server.
///
/// With --live, the head is also compared with the cluster, as by `pleach
/// plan`: the differences are shown beside it, with the digest for an approval.
/// Nothing is written; changed objects are sent as dry runs.
///
/// The comparison is with the merge base, as for a pull request; --direct
/// compares with the base itself. Values of Secrets are never shown: equal
/// values have the same number.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach preview --base main                         the working tree against the branch main
  pleach preview --base main --head feature          two revisions; every environment that changes
  pleach preview --base main -o markdown production  a comment for a pull request
  pleach preview --base main -o html > preview.html  a self-contained page
  pleach preview --base main --live production       also against the cluster")]
pub(crate) struct PreviewArgs {
    /// Environments, or one release of each [default: all that the change touches]
    #[arg(value_name = "ENV[/RELEASE]")]
    targets: Vec<Target>,

    /// Branch, tag or commit that the change is to be merged into
    #[arg(long, value_name = "REV")]
    base: String,

    /// Branch, tag or commit with the change [default: the working tree]
    #[arg(long, value_name = "REV")]
    head: Option<String>,

    /// Compare with the base itself, not with the merge base
    #[arg(long)]
    direct: bool,

    /// Also compare the head with the cluster
    ///
    /// The base names the cluster, whatever the change declares. Compares only the
    /// releases that the change touches, or all named releases.
    #[arg(long, conflicts_with = "untrusted")]
    live: bool,

    /// Connections to the clusters of environments, as JSON: the head is compared
    /// with them, as by the controller
    #[arg(long, value_name = "JSON", hide = true, requires = "untrusted", value_parser = ways)]
    clusters: Option<Ways>,

    /// Add the result of a rehearsal, from the output of `pleach rehearse -o json`
    ///
    /// The result is out of date if the effects on the cluster differ from
    /// those of the rehearsal. Without --live, or if the rehearsal used a dump,
    /// its revision must be the previewed one.
    #[arg(long, value_name = "FILE", conflicts_with = "untrusted")]
    rehearsal: Vec<PathBuf>,

    /// Exit with code 10 when something would change
    #[arg(long)]
    exit_code: bool,

    #[command(flatten)]
    reporting: ReportArgs,

    /// Maximum size of a comment on the forge, in bytes, for markdown
    #[arg(long, value_name = "BYTES", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(4_096..))]
    limit: u32,

    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people, with colors on a terminal.
    Text,
    /// For programs.
    Json,
    /// For comments on pull requests.
    Markdown,
    /// One file for a browser.
    Html,
    /// For programs that comment on pull requests: the comment.
    Comment,
}

/// Cluster connections by environment.
type Ways = BTreeMap<String, Way>;

fn ways(text: &str) -> Result<Ways, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

impl PreviewArgs {
    /// Returns whether the preview is for a pull request, where the public reads it.
    fn is_public(&self) -> bool {
        self.reporting.comment || matches!(self.output, Output::Markdown | Output::Comment)
    }
}

pub(crate) fn run(ui: &mut Ui, ctx: &Context, args: &PreviewArgs) -> Result<Exit, CliError> {
    let mut ctx = ctx.clone();
    if args.reporting.untrusted {
        bound(TIME).map_err(|error| CliError::new(Kind::Failed, error))?;
        defer();
        // The controller passes a bare repository.
        // A restricted process cannot start the program that renders charts.
        let engines = EngineRunner::relayed(EngineSearch::of_process());
        ctx.engines = Arc::new(engines.map_err(|error| CliError::new(Kind::Failed, error))?);
        let work = match (&args.clusters, &ctx.settings.repo) {
            (None, Some(folder)) => Work::Render { folder },
            _ => Work::Cluster,
        };
        confine(work).map_err(|error| CliError::new(Kind::Failed, error))?;
    }
    let ctx = &ctx;
    let rehearsals = rehearsals(args)?;
    let change = open(ctx, args)?;
    let key = mask::run_key()?;
    let mut found = change.preview();
    let mut previews = Vec::new();
    for target in targets(&change, args) {
        match inspect(&change, &target, args, &key) {
            Some(one) => previews.push(one),
            None => found.unchanged.push(target.environment),
        }
    }
    if args.live {
        let all = !args.targets.is_empty();
        let live = live(ctx, args, &change, &mut previews, all);
        block_on(&ctx.cancel, live)?;
    } else if let Some(ways) = &args.clusters {
        block_on(
            &ctx.cancel,
            as_controller(ctx, &change, &mut previews, ways),
        )?;
    }
    for one in previews {
        add(&mut found, one.preview);
    }
    let mut exit = exit_of(&found);
    if args.exit_code && changes(&found) {
        exit = exit.and(Exit::CHANGES);
    }
    print(ui, args, &change, &found, &rehearsals)?;
    if args.reporting.comment {
        ui.finish()?;
        let report = report(args, &change, &found, &rehearsals);
        block_on(&ctx.cancel, args.reporting.report(ui, ctx, &report))?;
    }
    Ok(exit)
}

/// Returns the report to publish on the forge.
fn report(
    args: &PreviewArgs,
    change: &Change,
    found: &Preview,
    rehearsals: &[Rehearsal],
) -> Report {
    let marker = marker(
        &args
            .targets
            .iter()
            .map(Target::to_string)
            .collect::<Vec<_>>(),
    );
    let (base, head) = (change.base.label(), change.head.label());
    let text = comment(
        found,
        &Comment {
            revisions: (&base, &head),
            marker: &marker,
            command: &command(args),
            rehearsals,
            limit: args.limit as usize,
        },
    );
    Report {
        format: FORMAT,
        base: found.base.clone(),
        head: found.head.clone(),
        summary: found.summary.clone(),
        verdict: verdict(found),
        unanswered: is_unanswered(found),
        marker,
        comment: text,
    }
}

/// Reads the reports of rehearsals.
fn rehearsals(args: &PreviewArgs) -> Result<Vec<Rehearsal>, CliError> {
    let read = |path: &PathBuf| -> Result<Rehearsal, CliError> {
        let bytes = pleach_files::read_start(path, REPORT_BYTES + 1)?;
        Rehearsal::parse(&bytes).map_err(|error| unreadable(path, &error))
    };
    args.rehearsal.iter().map(read).collect()
}

/// Returns an error without its cause, which could quote the file.
fn unreadable(path: &Path, error: &RehearsalError) -> CliError {
    CliError::new(Kind::Failed, format!("{}: {error}", path.display()))
}

/// Opens the change in git: two revisions and the differing files.
fn open(ctx: &Context, args: &PreviewArgs) -> Result<Change, CliError> {
    let head = args.head.as_deref().or(ctx.settings.revision.as_deref());
    let source = ctx.source()?;
    let keys = if args.reporting.untrusted {
        Keys::Unused
    } else {
        Keys::IfPossible
    };
    let base = if args.direct {
        args.base.clone()
    } else {
        source.merge_base(&args.base, head.unwrap_or("HEAD"))?
    };
    Ok(Change {
        files: source.changed(&base, head)?,
        base: End {
            name: args.base.clone(),
            ..ctx.end(Some(&base), keys)?
        },
        head: ctx.end(head, keys)?,
    })
}

/// Returns the requested targets, or all environments of both revisions.
fn targets(change: &Change, args: &PreviewArgs) -> Vec<Target> {
    if !args.targets.is_empty() {
        return args.targets.clone();
    }
    let target = |environment| Target {
        environment,
        release: None,
    };
    change.environments().into_iter().map(target).collect()
}

fn inspect(
    change: &Change,
    target: &Target,
    args: &PreviewArgs,
    key: &DigestKey,
) -> Option<OfflinePreview> {
    let scope = Scope {
        environment: &target.environment,
        release: target.release.as_deref(),
    };
    let question = Question {
        scope,
        is_requested: !args.targets.is_empty() && !args.reporting.untrusted,
        whole: args.live
            || args
                .clusters
                .as_ref()
                .is_some_and(|ways| ways.contains_key(&target.environment)),
    };
    change.inspect(question, key)
}

/// Adds the effect of the head on the clusters, one environment after the other.
async fn live(
    ctx: &Context,
    args: &PreviewArgs,
    change: &Change,
    previews: &mut [OfflinePreview],
    all: bool,
) -> Result<(), CliError> {
    for one in previews {
        let Some(head) = &mut one.rendered else {
            continue;
        };
        let intended = IntendedCluster::of(head);
        let mut connection = Connection::new(agent(None));
        connection.kubeconfig.clone_from(&ctx.settings.kubeconfig);
        connection.context = ctx.settings.context.clone().or(intended.context);
        connection.keys = keys(&connection, ctx.settings.key_namespace.clone());
        let id = intended.id.map(ClusterId);
        let to = ComparedCluster {
            connection: &connection,
            id,
            allow: None,
            quotes: !args.is_public(),
        };
        let asking = ask(&mut one.preview, head, change, to, all);
        finish(&ctx.cancel, Box::pin(asking)).await?;
        if let Some(cluster) = &mut one.preview.cluster {
            cluster.findings.extend(intended.findings);
        }
    }
    Ok(())
}

/// Adds the effect of the head on the clusters, with the connections and limits of the controller.
async fn as_controller(
    ctx: &Context,
    change: &Change,
    previews: &mut [OfflinePreview],
    ways: &Ways,
) -> Result<(), CliError> {
    let until = Instant::now() + ASKING;
    for one in previews {
        let way = ways.get(&one.preview.environment);
        let (Some(head), Some(way)) = (&mut one.rendered, way) else {
            continue;
        };
        if let Some(finding) = other_cluster(head, way) {
            one.preview.cluster = Some(unanswered(finding));
            continue;
        }
        let allow = way.allow.as_ref().map(Allow::new);
        let id = Some(ClusterId(way.cluster.clone()));
        let connection = way.connection();
        let to = ComparedCluster {
            connection: &connection,
            id,
            allow: allow.as_ref(),
            quotes: way.quotes,
        };
        let asking = ask(&mut one.preview, head, change, to, false);
        let asking = timeout_at(until, Box::pin(asking));
        if finish(&ctx.cancel, asking).await?.is_err() {
            let message = format!("the cluster did not answer all requests within {ASKING:?}");
            let finding = Finding::error(FindingKind::Cluster, "cluster-unknown", message);
            one.preview.cluster = Some(unanswered(finding));
        }
    }
    Ok(())
}

/// Returns a finding if the file names another cluster than the controller's configuration. The
/// controller would refuse to reconcile the environment.
fn other_cluster(head: &RenderedHead, way: &Way) -> Option<Finding> {
    let named = head.loaded.environment.cluster.id.as_ref()?;
    (*named != way.cluster).then(|| {
        Finding::error(
            FindingKind::Policy,
            "other-cluster",
            "the environment file names another cluster than the controller configuration, so the controller would stall the environment",
        )
    })
}

/// Cluster for the comparison.
struct ComparedCluster<'a> {
    connection: &'a Connection,
    /// Expected id, if known.
    id: Option<ClusterId>,
    /// Allowed requests. `None`: all.
    allow: Option<&'a Allow>,
    /// Whether findings quote errors of the cluster.
    quotes: bool,
}

/// Adds the effect of the head on one cluster.
async fn ask(
    preview: &mut EnvironmentPreview,
    head: &mut RenderedHead,
    change: &Change,
    to: ComparedCluster<'_>,
    all: bool,
) {
    match Cluster::connect(to.connection).await {
        Ok(cluster) => {
            let tree = &*change.head.tree;
            let leaving = |loaded: &Loaded, candidates| {
                planning::gone(loaded, tree, candidates, &beside(tree, loaded))
            };
            let access = ComparisonAccess {
                cluster: &cluster,
                id: to.id,
                allow: to.allow,
                quotes: to.quotes,
            };
            add_cluster(preview, head, &access, leaving, all).await;
        }
        Err(error) => preview.cluster = Some(unreachable(&error, to.quotes)),
    }
}

/// Returns all findings, including those of lint and objects that the API server would refuse.
fn problems(found: &Preview) -> impl Iterator<Item = &Finding> {
    let environments = found.environments.iter();
    let first = environments.flat_map(|one| one.refusals.iter().chain(&one.lint));
    findings(found).chain(first)
}

/// Returns all findings.
fn findings(found: &Preview) -> impl Iterator<Item = &Finding> {
    found.environments.iter().flat_map(|environment| {
        let cluster = environment.cluster.iter();
        let in_cluster = cluster.clone().flat_map(|cluster| &cluster.releases);
        let releases = environment.releases.iter().chain(in_cluster);
        environment
            .findings
            .iter()
            .chain(cluster.flat_map(|cluster| &cluster.findings))
            .chain(releases.flat_map(|release| &release.diff.findings))
    })
}

/// Returns the verdict about the change. An unreachable cluster does not affect it.
fn verdict(found: &Preview) -> Verdict {
    let errors = problems(found).filter(|finding| finding.is_error());
    let errors = errors.filter(|finding| finding.kind != FindingKind::Cluster);
    let exits = errors.map(|finding| Kind::from(finding.kind).exit());
    match exits.fold(Exit::DONE, Exit::and) {
        Exit::DONE => Verdict::Fine,
        Exit::REPOSITORY => Verdict::Invalid,
        _ => Verdict::Refused,
    }
}

/// Returns whether a cluster did not answer all requests. A later attempt can succeed.
fn is_unanswered(found: &Preview) -> bool {
    let clusters = found.environments.iter();
    let clusters = clusters.filter_map(|environment| environment.cluster.as_ref());
    let mut findings = clusters.flat_map(|cluster| &cluster.findings);
    findings.any(|finding| finding.is_error() && finding.kind == FindingKind::Cluster)
}

/// Returns the exit code for the errors.
fn exit_of(found: &Preview) -> Exit {
    problems(found)
        .filter(|finding| finding.is_error())
        .map(|finding| Kind::from(finding.kind).exit())
        .fold(Exit::DONE, Exit::and)
}

fn changes(found: &Preview) -> bool {
    found.environments.iter().any(|environment| {
        let live = environment.cluster.iter();
        let live = live.flat_map(|cluster| &cluster.releases);
        let mut releases = environment.releases.iter().chain(live);
        releases.any(ReleasePreview::does_something)
    })
}

fn print(
    ui: &mut Ui,
    args: &PreviewArgs,
    change: &Change,
    found: &Preview,
    rehearsals: &[Rehearsal],
) -> Result<(), CliError> {
    let (base, head) = (change.base.label(), change.head.label());
    match args.output {
        Output::Text => {
            ui.print(compared(found, &base, &head).replace('→', "->"));
            ui.print(text(found).trim_end_matches('\n'));
            let all: Vec<Finding> = findings(found).cloned().collect();
            ui.findings(&all);
            for line in rehearsals.iter().flat_map(|it| it.lines(found)) {
                ui.print(format!("rehearsed: {}", plain(&line)));
            }
            ui.print(&found.summary);
        }
        Output::Json => {
            let mut document =
                serde_json::to_value(found).map_err(|error| CliError::new(Kind::Failed, error))?;
            if !rehearsals.is_empty() {
                let results = rehearsals.iter().map(|it| it.lines(found));
                document["rehearsals"] = results.collect();
            }
            ui.print(format::json(&document));
        }
        Output::Markdown => {
            let text = report(args, change, found, rehearsals).comment;
            ui.print(text.trim_end_matches('\n'));
        }
        Output::Comment => {
            let report = report(args, change, found, rehearsals);
            let document =
                serde_json::to_value(report).map_err(|error| CliError::new(Kind::Failed, error))?;
            ui.print(format::json(&document));
        }
        Output::Html => {
            let text = page(found, (&base, &head), rehearsals)
                .map_err(|error| CliError::new(Kind::Failed, error))?;
            ui.print(text.trim_end_matches('\n'));
        }
    }
    Ok(())
}

/// Returns the command that shows the full preview.
fn command(args: &PreviewArgs) -> String {
    let mut line = format!("pleach preview --base {}", args.base);
    if let Some(head) = &args.head {
        line.push_str(" --head ");
        line.push_str(head);
    }
    if args.direct {
        line.push_str(" --direct");
    }
    if args.live || args.clusters.is_some() {
        line.push_str(" --live");
    }
    for target in &args.targets {
        line.push(' ');
        line.push_str(&target.to_string());
    }
    line
}
