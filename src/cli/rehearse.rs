//! `pleach rehearse`: executes a plan on a copy of the cluster in a throwaway control plane.

mod attach;
mod observe;
mod page;
mod references;
mod source;
mod stored;
mod webhooks;
mod world;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::ValueEnum;
use jiff::SignedDuration;
use pleach_model::object::{ApiVersion, GroupKind};
use pleach_planner::plan::Plan;
use pleach_rehearsal::dump::Copy;
use pleach_rehearsal::report::{
    Agreement, Copied, FORMAT, NotComparable, Refusal, Release, Report, Stage,
    Verdict as Conclusion,
};
use pleach_rehearsal::storage;
use pleach_state::inventory::is_commit;
use pleach_throwaway::{ControlPlane, CopyOptions, Stored};

use self::source::{Source, authority, ensure_version};
use self::stored::{
    answering_api, entries, is_foreign_api, namespaces_with_pods, not_comparable, service_ranges,
};
use self::world::World;
use super::dump::options;
use super::error::{CliError, Kind};
use super::programs::{PROGRAMS, ProgramArgs};
use super::session::{Planned, Session, Subject, agent};
use super::{Context, Exit, Target, Ui, format};
use pleach_cluster::{Cluster, Connection};
use pleach_engine::rehearse;

/// Longest wait for the servers of aggregated APIs on the copy.
const ANSWERING: Duration = Duration::from_secs(15);

/// Execute a plan on a copy of the cluster
///
/// Copies the objects that the plan is about into a throwaway control plane,
/// executes the plan there, and reports what the API server refuses, and in
/// which stage. Without --attach, nothing is written to your cluster. Secret
/// values are replaced before they reach a disk. Pods are simulated, webhooks
/// allow everything, and operators do not run: the report lists such facts as
/// not comparable.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach rehearse production                          all releases
  pleach rehearse production/web --revision upgrade   one release, at a branch
  pleach rehearse production/web --attach             show the result on the web page
  pleach rehearse production --from-dump FILE         without a cluster, as in a pipeline
  pleach rehearse production --keep                   leave the copy running, to look around")]
pub(crate) struct RehearseArgs {
    /// Environment, or one release of it
    #[arg(value_name = "ENV[/RELEASE]")]
    target: Target,

    /// Use the copy in this file, written by `pleach dump`
    #[arg(long, value_name = "FILE")]
    from_dump: Option<PathBuf>,

    #[command(flatten)]
    programs: ProgramArgs,

    /// Do not call admission webhooks
    #[arg(long)]
    no_webhooks: bool,

    /// Time until a simulated pod is ready
    #[arg(long, value_name = "TIME", default_value = "2s")]
    pod_delay: SignedDuration,

    /// Maximum duration of the whole rehearsal
    #[arg(long, value_name = "TIME", default_value = "30m")]
    timeout: SignedDuration,

    /// Leave the control plane running until Ctrl-C, with redacted data
    #[arg(long)]
    keep: bool,

    /// Store the report in the cluster, for the web page of the controller
    ///
    /// It is stored beside the record of each rehearsed release, in place of the
    /// previous report. A release without a record is left out.
    #[arg(long, conflicts_with = "from_dump")]
    attach: bool,

    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: RehearseOutput,
}

/// Formats of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RehearseOutput {
    /// For people.
    Text,
    /// For the comment of a pull request.
    Markdown,
    /// For a browser: one file without scripts.
    Html,
    /// For programs.
    Json,
}

pub(crate) async fn run(ui: &mut Ui, ctx: &Context, args: RehearseArgs) -> Result<Exit, CliError> {
    // Before the cluster is read.
    let binaries = args.programs.binaries(ui, ctx).await?;
    for name in PROGRAMS {
        binaries.find(name)?;
    }
    let version = binaries.kubernetes().await?;
    let timeout = Duration::try_from(args.timeout).unwrap_or_default();
    let deadline = Instant::now() + timeout;
    let mut source = match &args.from_dump {
        Some(path) => Source::of_dump(ui, ctx, &args.target, path)?,
        None => match Source::of_cluster(ui, ctx, &args.target).await? {
            Ok(source) => source,
            Err(exit) => return Ok(exit),
        },
    };
    ensure_version(&source.copy.header.kubernetes, &version)?;
    source.calls_webhooks = !args.no_webhooks && webhooks::can_be_called(&source.copy);
    let registrations = webhooks::registrations(&source.copy, &source.loaded);
    let user = (
        source.copy.header.user.clone(),
        source.copy.header.groups.clone(),
    );
    let token = rehearse::random_key()?;
    let copy_options = CopyOptions {
        service_ranges: service_ranges(&source.copy),
        user,
        token: URL_SAFE_NO_PAD.encode(token),
        pod_delay: Duration::try_from(args.pod_delay).unwrap_or_default(),
        authority: authority(&source.copy)?,
        webhooks: source.calls_webhooks,
    };
    let mut not_stored = Vec::new();
    let starting = async {
        let stored = Stored::start_copy(binaries, copy_options).await?;
        let (entries, left_out) = entries(&source.copy, &source.loaded);
        not_stored = left_out;
        stored.etcd().put(&entries).await?;
        stored.serve().await
    };
    let plane = tokio::select! {
        plane = starting => plane?,
        () = ctx.cancel.cancelled() => return Err(CliError::interrupted()),
    };
    let records = source.records.take().filter(|_| args.attach);
    let rehearsing = rehearsed(ui, ctx, &args.target, source, &plane);
    let rehearsing = tokio::time::timeout(deadline - Instant::now(), Box::pin(rehearsing));
    let report = tokio::select! {
        report = rehearsing => report,
        () = ctx.cancel.cancelled() => return Err(CliError::interrupted()),
    };
    // Otherwise a crash of the copy would look like an error of the cluster.
    if let Some(ended) = plane.find_ended() {
        return Err(ended.into());
    }
    let mut report = report.map_err(|_| {
        let message = format!(
            "the rehearsal was not finished after {} s",
            timeout.as_secs()
        );
        CliError::new(Kind::Failed, message).hint("--timeout sets the maximum duration")
    })??;
    report.copied.left_out.extend(not_stored);
    let asked = webhooks::asked(&registrations, &plane.webhooks());
    report.not_comparable.extend(asked);
    report.not_comparable.sort();
    print(ui, args.output, &report)?;
    let mut attached = Ok(());
    if let Some(records) = &records {
        // The result comes first, whatever becomes of the write.
        ui.flush();
        let attaching = attach::attach(ui, records, &report);
        attached = tokio::select! {
            attached = attaching => attached,
            () = ctx.cancel.cancelled() => return Err(CliError::interrupted()),
        };
    }
    if args.keep {
        ui.flush();
        ui.notice(format_args!(
            "the copy, with redacted data, runs until Ctrl-C: export KUBECONFIG={}",
            plane.kubeconfig().display()
        ));
        ctx.cancel.cancelled().await;
    }
    attached?;
    Ok(match report.verdict {
        Conclusion::Passed => Exit::DONE,
        Conclusion::WouldFail | Conclusion::Differs => Exit::FAILED,
        Conclusion::Refused => Exit::POLICY,
    })
}

fn print(ui: &mut Ui, output: RehearseOutput, report: &Report) -> Result<(), CliError> {
    match output {
        RehearseOutput::Text => ui.print(report.text()),
        RehearseOutput::Markdown => ui.print(report.markdown().trim_end()),
        RehearseOutput::Html => {
            let page = page::page(report);
            let page = page.map_err(|error| CliError::new(Kind::Failed, error))?;
            ui.print(page.trim_end());
        }
        RehearseOutput::Json => ui.print(format::json(&serde_json::json!(report))),
    }
    Ok(())
}

/// Waits until the servers of the aggregated APIs of a copy answer, for a while.
async fn until_answering(cluster: &Cluster, copy: &Copy) -> Result<(), CliError> {
    let namespaces = namespaces_with_pods(copy);
    let copied = copy.objects.iter();
    let answering = copied.filter(|it| !is_foreign_api(it, &namespaces));
    let expected: Vec<ApiVersion> = answering.filter_map(answering_api).collect();
    let started = Instant::now();
    while !expected.is_empty() && started.elapsed() < ANSWERING {
        let discovery = cluster.clone().alone().discover().await?;
        if expected.iter().all(|it| discovery.answers(it)) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Connects to the copy as the user of the cluster. If the copy cannot judge the permissions of the
/// user, connects as an administrator and returns `true`.
async fn connected(plane: &ControlPlane, copy: &Copy) -> Result<(Cluster, bool), CliError> {
    let is_of_rbac = |what: &str| what.contains(".rbac.authorization.k8s.io");
    let mut left_out = copy.header.left_out.iter();
    if !left_out.any(|it| is_of_rbac(&it.what)) {
        let kubeconfig = plane.copy_kubeconfig();
        let kubeconfig = kubeconfig.unwrap_or_else(|| plane.kubeconfig());
        let cluster = connect(kubeconfig).await?;
        // Another authorizer than RBAC can have allowed this on the cluster.
        if cluster.cluster_id().await.is_ok() {
            return Ok((cluster, false));
        }
    }
    Ok((connect(plane.kubeconfig()).await?, true))
}

async fn connect(kubeconfig: &std::path::Path) -> Result<Cluster, CliError> {
    let mut connection = Connection::new(agent(None));
    connection.kubeconfig = Some(kubeconfig.to_path_buf());
    Ok(Cluster::connect(&connection).await?)
}

/// Returns the report without releases.
fn blank(source: &Source, kubernetes: &str) -> Report {
    let (copy, header) = (&source.copy, &source.copy.header);
    let kinds: BTreeSet<(&str, &str)> = copy
        .objects
        .iter()
        .filter_map(|it| Some((it["apiVersion"].as_str()?, it["kind"].as_str()?)))
        .collect();
    Report {
        format: FORMAT,
        environment: source.loaded.environment.name.clone(),
        revision: source.loaded.revision.to_string(),
        copied: Copied {
            objects: copy.objects.len(),
            kinds: kinds.len(),
            cluster: header.cluster.clone(),
            kubernetes: header.kubernetes.clone(),
            seconds: source.took.map(|took| took.as_secs_f64()),
            left_out: header.left_out.clone(),
        },
        kubernetes: kubernetes.to_owned(),
        plan: match &source.expected {
            Some(expected) => Agreement::Same {
                effects: expected.digests.values().cloned().collect(),
            },
            None => Agreement::FromDump {
                at: header.at.clone(),
            },
        },
        releases: Vec::new(),
        not_comparable: not_comparable(
            copy,
            &source.loaded,
            kubernetes,
            source.calls_webhooks,
            source.expected.is_none(),
        ),
        verdict: Conclusion::Passed,
    }
}

/// Plans and executes the releases on the copy.
async fn rehearsed(
    ui: &mut Ui,
    ctx: &Context,
    target: &Target,
    source: Source,
    plane: &ControlPlane,
) -> Result<Report, CliError> {
    let (cluster, is_administrator) = connected(plane, &source.copy).await?;
    let kubernetes = cluster.server_version().await?;
    let mut report = blank(&source, kubernetes.trim_start_matches('v'));
    let Source {
        copy,
        loaded,
        expected,
        cluster_id,
        took: _,
        records: _,
        calls_webhooks: _,
    } = source;
    if is_administrator {
        report.not_comparable.push(NotComparable {
            kind: "permission".to_owned(),
            what: format!(
                "the roles of {} are not part of the copy; rehearsed as an administrator",
                copy.header.user
            ),
        });
    }
    until_answering(&cluster, &copy).await?;
    drop(copy);
    let releases = loaded.rendered.iter();
    let rules = releases.flat_map(|(release, _)| release.rehearsal.clone());
    let rules = rules.collect();
    let session = Session::on(ctx, loaded, cluster, options(), cluster_id);
    let subjects = session.subjects(ui, ctx, target).await?;
    let mut plans = Vec::new();
    for subject in &subjects {
        plans.push(on_copy(subject, session.plan_for(ui, subject).await?)?);
    }
    if let Some(expected) = &expected
        && let Some(first) = expected.difference(&plans)
    {
        report.plan = Agreement::Differs { first };
        report.verdict = Conclusion::Differs;
        return Ok(report);
    }
    let mut world = World::new(rules);
    let administrator = connect(plane.kubeconfig()).await?;
    for (index, (subject, first)) in subjects.iter().zip(plans).enumerate() {
        let planned = if index == 0 {
            first
        } else {
            // An earlier release can have changed the plan.
            on_copy(subject, session.plan_for(ui, subject).await?)?
        };
        let mut release = described(&planned);
        let digests = expected.as_ref().map(|it| &it.digests);
        release.effects = digests.and_then(|it| it.get(&release.name).cloned());
        if report.verdict != Conclusion::Passed {
            release.not_started = Some("an earlier release would fail".to_owned());
        } else if let Some(refused) = refused(&planned.plan) {
            report.verdict = if index == 0 {
                Conclusion::Refused
            } else {
                Conclusion::WouldFail
            };
            release.stages = vec![refused];
        } else {
            let cluster = session.cluster_for(subject.name());
            let (planned, unanswered) = observe::answerable(planned, &world);
            let left_out = &report.copied.left_out;
            let executing = observe::execute(ctx, &cluster, planned, release, left_out);
            let (rehearsed, unclear) = tokio::select! {
                rehearsed = executing => rehearsed?,
                never = world.run(&administrator) => match never {},
            };
            release = rehearsed;
            report.not_comparable.extend(unclear);
            report.not_comparable.extend(unanswered);
            if release.has_failed() {
                report.verdict = Conclusion::WouldFail;
            }
        }
        report.releases.push(release);
    }
    report.not_comparable.extend(world.facts());
    report.not_comparable.sort();
    report.not_comparable.dedup();
    Ok(report)
}

/// Returns a plan for the copy. The error of a release that cannot be planned has been shown.
fn on_copy(subject: &Subject<'_>, planned: Result<Planned, CliError>) -> Result<Planned, CliError> {
    planned.map_err(|_| {
        let name = subject.name();
        CliError::new(
            Kind::Failed,
            format!("release {name} cannot be planned on the copy, so nothing was rehearsed"),
        )
    })
}

/// Returns the errors of a plan as those of a stage; `None` if it may be executed.
fn refused(plan: &Plan) -> Option<Stage> {
    let errors = plan.findings.iter().filter(|finding| finding.is_error());
    let refused: Vec<Refusal> = errors
        .map(|finding| Refusal {
            object: finding
                .object
                .as_ref()
                .map_or_else(|| plan.release.to_string(), ToString::to_string),
            message: observe::one_line(&finding.message),
            hint: finding.hint.clone(),
        })
        .collect();
    (!refused.is_empty()).then(|| Stage {
        stage: "plan".to_owned(),
        refused,
        ..Stage::default()
    })
}

/// Returns the release without its stages.
fn described(planned: &Planned) -> Release {
    let record = planned.observation.observed.installed.as_ref();
    let installed = record.and_then(|record| record.installed.as_ref());
    // Without versions, commits.
    let short = |version: &str| {
        let is_commit = is_commit(version);
        version
            .get(..7)
            .filter(|_| is_commit)
            .unwrap_or(version)
            .to_owned()
    };
    Release {
        name: planned.plan.release.to_string(),
        from: installed.map(|it| short(&it.version)).unwrap_or_default(),
        to: short(&planned.desired.version),
        effects: None,
        stages: Vec::new(),
        gates: Vec::new(),
        not_started: None,
        trouble: None,
    }
}

/// Returns whether an operator of the cluster decides about objects of a kind.
fn is_custom(kind: &GroupKind) -> bool {
    !storage::is_built_in(&kind.group, &kind.kind)
}
