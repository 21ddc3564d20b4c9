//! `pleach logs`.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::time::Duration;

use clap::ValueEnum;
use futures::stream::{self, SelectAll};
use futures::{Stream, StreamExt as _};
use jiff::{SignedDuration, Timestamp};

use super::error::{CliError, Kind};
use super::format::{self, logs::LogLine};
use super::status::{cluster_of, environment, is_final};
use super::{Context, Exit, Target, Ui};
use pleach_cluster::{Class, Cluster, ClusterError, ContainerRef, LogPart, ResourcePath, Selector};

/// Name of the container in the pods of the controller.
const CONTAINER: &str = "pleach";
/// Maximum time without a line of a log that is read to its end.
const PATIENCE: Duration = Duration::from_mins(1);
/// Time after which a silent log is opened again, because its connection can be dead.
const SILENCE: Duration = Duration::from_mins(5);
/// Interval at which new pods are searched.
const SEARCH: Duration = Duration::from_secs(5);

/// Show the logs of the controller
///
/// Reads the logs of all pods of the controller, and shows the lines about an
/// environment or a release, by time. Needs no repository, and the permission to
/// list pods and to get `pods/log`. The controller must write JSON lines, as it
/// does in pods.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach logs                                all lines
  pleach logs production/web --since 1h      one release, the last hour
  pleach logs production -f                  one environment, until interrupted
  pleach logs -n pleach --context hub        the controller in that namespace and cluster")]
pub(crate) struct LogsArgs {
    /// Environment, or one release of it [default: all lines]
    #[arg(value_name = "ENV[/RELEASE]")]
    target: Option<Target>,

    /// Wait for further lines, until interrupted
    #[arg(short, long)]
    follow: bool,

    /// Age of the oldest lines, such as 10m or 2h [default: all lines]
    #[arg(long, value_name = "TIME")]
    since: Option<SignedDuration>,

    /// Number of last lines of each pod to search [default: all lines]
    #[arg(long, value_name = "LINES")]
    tail: Option<usize>,

    /// Namespace of the controller [default: all namespaces]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,

    /// Labels of the pods of the controller
    #[arg(
        short = 'l',
        long,
        value_name = "SELECTOR",
        default_value = "app.kubernetes.io/name=pleach"
    )]
    selector: String,

    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: LogsOutput,
}

/// Formats of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogsOutput {
    /// For people, with colors on a terminal.
    Text,
    /// The lines as the controller wrote them.
    Json,
}

/// A pod of the controller.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Pod {
    namespace: String,
    name: String,
}

/// Lines of a pod, or the error that ended them.
type Lines = Pin<Box<dyn Stream<Item = Result<String, ClusterError>> + Send>>;

pub(crate) async fn run(ui: &mut Ui, ctx: &Context, args: LogsArgs) -> Result<Exit, CliError> {
    let environment = match &args.target {
        Some(target) => environment(ui, ctx, target)?,
        None => None,
    };
    let cluster = cluster_of(ctx, environment.as_ref()).await?;
    let pods = pods(&cluster, &args).await?;
    if pods.is_empty() {
        return Err(none(&cluster, &args));
    }
    let namespaces: BTreeSet<&str> = pods.iter().map(|pod| pod.namespace.as_str()).collect();
    if namespaces.len() > 1 {
        let names: Vec<&str> = namespaces.into_iter().collect();
        ui.notice(format_args!(
            "warning: these lines come from pods in several namespaces: {}; --namespace selects one",
            names.join(", ")
        ));
    }
    let reading = async {
        if args.follow {
            follow(ui, &cluster, &args, pods).await
        } else {
            read(ui, &cluster, &args, pods).await
        }
    };
    let read = ctx.cancel.run_until_cancelled(reading).await;
    read.unwrap_or(Ok(Exit::INTERRUPTED))
}

/// Lists the pods of the controller.
async fn pods(cluster: &Cluster, args: &LogsArgs) -> Result<Vec<Pod>, CliError> {
    let path = ResourcePath::namespaced("v1", "Pod", "pods");
    let selector = Selector {
        namespace: args.namespace.as_deref(),
        labels: Some(&args.selector),
        ..Selector::default()
    };
    let read = |pod: serde_json::Value| {
        // A container that has not started has no log.
        if !args.follow && pod["status"]["phase"] == "Pending" {
            return None;
        }
        let text = |name: &str| pod["metadata"][name].as_str().map(str::to_owned);
        Some(Pod {
            namespace: text("namespace")?,
            name: text("name")?,
        })
    };
    let listed = cluster.list_of(&path, &selector, read).await;
    listed.map_err(|error| {
        let is_closed = error.class() == Some(&Class::Forbidden) && args.namespace.is_none();
        let failed = CliError::from(error);
        if is_closed {
            failed.hint("or name the namespace of the controller with --namespace")
        } else {
            failed
        }
    })
}

fn none(cluster: &Cluster, args: &LogsArgs) -> CliError {
    let place = args.namespace.as_ref();
    let place = place.map_or_else(String::new, |namespace| {
        format!("namespace {namespace} of ")
    });
    let message = format!(
        "no started pods with label {} in {place}{}",
        args.selector,
        cluster.server()
    );
    CliError::new(Kind::Failed, message)
        .hint("--context names the cluster of the controller, --namespace its namespace, --selector other labels")
}

/// Opens the log of a pod.
async fn open(cluster: &Cluster, pod: &Pod, part: &LogPart) -> Result<Lines, ClusterError> {
    let of = ContainerRef {
        namespace: &pod.namespace,
        pod: &pod.name,
        container: CONTAINER,
    };
    let silence = if part.follow { SILENCE } else { PATIENCE };
    Ok(Box::pin(cluster.log_lines(of, part, silence).await?))
}

/// Shows the lines that the pods have written so far, by time.
async fn read(
    ui: &mut Ui,
    cluster: &Cluster,
    args: &LogsArgs,
    pods: Vec<Pod>,
) -> Result<Exit, CliError> {
    let part = first_part(args, Timestamp::now());
    let mut exit = Exit::DONE;
    let mut logs = Vec::new();
    for pod in pods {
        match open(cluster, &pod, &part).await {
            Ok(lines) => logs.push(Merged::new(lines)),
            Err(error) => exit = exit.and(unread(ui, error)),
        }
    }
    loop {
        for log in &mut logs {
            if let Err(error) = log.fill().await {
                exit = exit.and(unread(ui, error));
            }
        }
        let waiting = logs.iter_mut().filter(|log| log.head.is_some());
        let Some(first) = waiting.min_by(|a, b| a.time.cmp(&b.time)) else {
            return Ok(exit);
        };
        if let Some(line) = first.head.take() {
            show(ui, args, &line);
        }
    }
}

/// Shows the error of one pod. The others are still read.
fn unread(ui: &mut Ui, error: ClusterError) -> Exit {
    let error = CliError::from(error);
    ui.error(&error);
    error.exit()
}

/// Log whose next line is known, to merge it with others.
struct Merged {
    lines: Lines,
    head: Option<String>,
    /// Time of the next line, or of the last one with a time.
    time: String,
    is_over: bool,
}

impl Merged {
    fn new(lines: Lines) -> Self {
        Self {
            lines,
            head: None,
            time: String::new(),
            is_over: false,
        }
    }

    /// Reads the next line, unless it is known or the log is over.
    async fn fill(&mut self) -> Result<(), ClusterError> {
        if self.head.is_some() || self.is_over {
            return Ok(());
        }
        match self.lines.next().await {
            Some(Ok(line)) => {
                if let Some(time) = time_of(&line) {
                    self.time = time;
                }
                self.head = Some(line);
                Ok(())
            }
            Some(Err(error)) => {
                self.is_over = true;
                Err(error)
            }
            None => {
                self.is_over = true;
                Ok(())
            }
        }
    }
}

/// A log that is followed.
#[derive(Debug, Default)]
struct Followed {
    is_open: bool,
    /// Time of the last line.
    last: Option<String>,
    /// Time at which the log ended. It starts a log again whose lines have no time.
    ended: Option<String>,
    /// Whether the log was opened again, and starts with lines that are known.
    repeats: bool,
}

/// Shows lines as they arrive, also of pods that start later.
async fn follow(
    ui: &mut Ui,
    cluster: &Cluster,
    args: &LogsArgs,
    mut pods: Vec<Pod>,
) -> Result<Exit, CliError> {
    let first = first_part(args, Timestamp::now());
    let mut known: BTreeMap<Pod, Followed> = BTreeMap::new();
    let mut logs = SelectAll::new();
    let mut search = tokio::time::interval(SEARCH);
    search.reset();
    loop {
        for pod in pods.drain(..) {
            let followed = known.entry(pod.clone()).or_default();
            if followed.is_open {
                continue;
            }
            let part = match &followed.last {
                Some(last) => LogPart {
                    since: Some(last.clone()),
                    follow: true,
                    ..LogPart::default()
                },
                None => match &followed.ended {
                    Some(ended) => LogPart {
                        since: Some(ended.clone()),
                        follow: true,
                        ..LogPart::default()
                    },
                    None => first.clone(),
                },
            };
            // A pod that has not started is tried again.
            match open(cluster, &pod, &part).await {
                Ok(lines) => {
                    followed.is_open = true;
                    followed.repeats = followed.last.is_some();
                    let of = pod.clone();
                    let lines = lines.map(Some).chain(stream::iter([None]));
                    logs.push(lines.map(move |line| (of.clone(), line)).boxed());
                }
                Err(error) if is_final(&error) => return Err(error.into()),
                Err(error) => ui.detail(format_args!("{error}; trying again")),
            }
        }
        tokio::select! {
            Some((pod, line)) = logs.next() => {
                let followed = known.entry(pod).or_default();
                match line {
                    Some(Ok(line)) => {
                        let time = time_of(&line);
                        followed.repeats &= time.is_none() || time <= followed.last;
                        if followed.repeats {
                            continue;
                        }
                        show(ui, args, &line);
                        if !ui.flush() {
                            return Ok(Exit::DONE);
                        }
                        followed.last = time.or_else(|| followed.last.take());
                    }
                    Some(Err(error)) => ui.status(format_args!("{error}; trying again")),
                    None => {
                        followed.is_open = false;
                        followed.ended = Some(format!("{:.0}", Timestamp::now()));
                    }
                }
            }
            _ = search.tick() => match self::pods(cluster, args).await {
                Ok(found) => pods = found,
                Err(error) => ui.status(format_args!("{error}; trying again")),
            },
        }
    }
}

/// Returns the part of each log that is shown first.
fn first_part(args: &LogsArgs, now: Timestamp) -> LogPart {
    let since = args.since.and_then(|age| now.checked_sub(age.abs()).ok());
    LogPart {
        tail: args.tail,
        since: since.map(|time| format!("{time:.0}")),
        follow: args.follow,
    }
}

fn time_of(line: &str) -> Option<String> {
    LogLine::read(line)?.time().map(str::to_owned)
}

/// Shows a line, if it is about the target.
fn show(ui: &mut Ui, args: &LogsArgs, line: &str) {
    if let Some(target) = &args.target
        && LogLine::read(line).is_none_or(|line| !line.is_about(target))
    {
        return;
    }
    match args.output {
        LogsOutput::Text => ui.print(format::logs::text(line)),
        LogsOutput::Json => ui.print(format::escaped(line.to_owned())),
    }
}
