//! `pleach diff`.

use clap::ValueEnum;

use pleach_fields::diff::{fields::Scope, masking::Masker};
use pleach_planner::plan::Plan;
use pleach_planner::text_diff::View;
use pleach_planner::view::{Drawing, ReleaseDiff};

use super::error::CliError;
use super::load::Keys;
use super::session::Session;
use super::verdict::Verdict;
use super::{Context, Exit, Target, Ui, format, mask};
use pleach_engine::planning::{Options, Predecessors};
use pleach_engine::preview::{self, Kinds, Known, Revisions, Scope as Compared};

/// Show what apply would change
///
/// Renders the environment, or one release of it, and compares it with the live
/// cluster. Objects that can have changed are sent to the server as a dry run,
/// so the result includes defaults and admission. Nothing is written. Values of
/// Secrets are never shown: equal values have the same number.
///
/// An object whose name or namespace changed is shown as one object. Fields of
/// other field managers are omitted unless --all is given.
///
/// With --base, the comparison is with another revision of the repository
/// instead. It sends no request to a cluster, so it does not show defaults and
/// refusals of the API server.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach diff production                       every release
  pleach diff production/web                   one release
  pleach diff production --exit-code -o json   for a pipeline: exit code 10 if there are changes
  pleach diff production -o markdown           for a comment on a pull request
  pleach diff production --base main           against another revision; needs no cluster")]
pub(crate) struct DiffArgs {
    /// Environment, or one release of it
    #[arg(value_name = "ENV[/RELEASE]")]
    pub(crate) target: Target,

    /// Compare with this branch, tag or commit instead of the cluster
    #[arg(long, value_name = "REV")]
    pub(crate) base: Option<String>,

    /// Also show fields of other field managers
    #[arg(long)]
    pub(crate) all: bool,

    /// Compare every object with a dry run, including objects with unchanged metadata
    #[arg(long, conflicts_with = "base")]
    pub(crate) verify: bool,

    /// Exit with code 10 when there are changes
    #[arg(long)]
    pub(crate) exit_code: bool,

    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: DiffOutput,
}

/// Formats of a diff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiffOutput {
    /// For people, with colors on a terminal.
    Text,
    /// For programs.
    Json,
    /// For comments on pull requests.
    Markdown,
}

pub(crate) async fn run(ui: &mut Ui, ctx: &Context, args: DiffArgs) -> Result<Exit, CliError> {
    let key = mask::run_key()?;
    let view = View {
        scope: if args.all { Scope::All } else { Scope::Owned },
        status: false,
        full_deletes: args.all,
    };
    if let Some(base) = &args.base {
        let base = ctx.end(Some(base), Keys::IfPossible)?;
        let head = ctx.end(ctx.settings.revision.as_deref(), Keys::IfPossible)?;
        let scope = Compared {
            environment: &args.target.environment,
            release: args.target.release.as_deref(),
        };
        let comparison = preview::revisions(scope, (&base, &head), Known::default(), &key)?;
        ui.findings(&comparison.head.findings);
        let mut report = Report::new(&args, comparison.masker, comparison.releases.len());
        report.revisions = Some(comparison.revisions);
        report.begin(ui);
        for one in &comparison.releases {
            let drawing = Drawing {
                desired: &one.desired,
                observed: &one.observed,
                policy: &one.policy,
                kinds: comparison.kinds.catalog(),
                view,
            };
            report.add(ui, &one.plan, drawing);
        }
        return Ok(report.finish(ui));
    }
    let options = Options {
        verify: args.verify,
        wait: true,
        review: false,
        nodes_behind: false,
        prune: true,
        predecessors: Predecessors::ComeFirst,
    };
    let session = Session::open(ui, ctx, &args.target, options, None).await?;
    let masker = mask::masker(&key, session.loaded.all());
    let kinds = Kinds::of(&session.loaded.environment, session.loaded.all());
    let subjects = session.subjects(ui, ctx, &args.target).await?;
    let mut report = Report::new(&args, masker, subjects.len());
    for subject in &subjects {
        match session.plan_for(ui, subject).await? {
            Ok(planned) => {
                let drawing = Drawing {
                    desired: &planned.desired,
                    observed: &planned.observation.observed,
                    policy: &session.policy_for(subject),
                    kinds: kinds.catalog(),
                    view,
                };
                report.add(ui, &planned.plan, drawing);
            }
            Err(error) => report.exit = report.exit.and(error.exit()),
        }
    }
    Ok(report.finish(ui))
}

/// Output of the releases.
struct Report<'a> {
    args: &'a DiffArgs,
    masker: Masker,
    /// Number of releases.
    expected: usize,
    revisions: Option<Revisions>,
    releases: Vec<ReleaseDiff>,
    exit: Exit,
}

impl<'a> Report<'a> {
    fn new(args: &'a DiffArgs, masker: Masker, expected: usize) -> Self {
        Self {
            args,
            masker,
            expected,
            revisions: None,
            releases: Vec::new(),
            exit: Exit::DONE,
        }
    }

    /// Prints the compared revisions, if the comparison is not with the cluster.
    fn begin(&self, ui: &mut Ui) {
        let Some(Revisions { base, head, .. }) = &self.revisions else {
            return;
        };
        match self.args.output {
            DiffOutput::Text => {
                ui.print(format_args!("{base} -> {head}, without a cluster"));
            }
            DiffOutput::Markdown => ui.print(format_args!(
                "{} → {}, without a cluster\n",
                format::diff::escaped(base),
                format::diff::escaped(head)
            )),
            DiffOutput::Json => {}
        }
    }

    fn add(&mut self, ui: &mut Ui, plan: &Plan, drawing: Drawing<'_>) {
        let diff = drawing.release(plan, &mut self.masker);
        match self.args.output {
            DiffOutput::Text => {
                let text = format::diff::text(&diff, self.expected > 1);
                ui.print(text.trim_end_matches('\n'));
            }
            DiffOutput::Markdown => ui.print(format::diff::markdown(&diff)),
            DiffOutput::Json => {}
        }
        self.releases.push(diff);
        let verdict = Verdict(plan);
        ui.findings(&verdict.remarks());
        self.exit = self.exit.and(verdict.blocks());
        if self.args.exit_code && verdict.has_changes() {
            self.exit = self.exit.and(Exit::CHANGES);
        }
        if let Err(error) = verdict.ensure_allowed() {
            ui.error(&error);
            self.exit = self.exit.and(error.exit());
        }
    }

    fn finish(self, ui: &mut Ui) -> Exit {
        match self.args.output {
            DiffOutput::Text | DiffOutput::Markdown => ui.print(format::diff::end(&self.releases)),
            DiffOutput::Json => {
                let mut document = serde_json::json!({
                    "format": 1,
                    "summary": format::diff::summary(&self.releases),
                    "releases": self.releases,
                });
                if let Some(revisions) = &self.revisions {
                    document["base"] = serde_json::json!(revisions.base_commit);
                    document["head"] = serde_json::json!(revisions.head_commit);
                }
                ui.print(format::json(&document));
            }
        }
        self.exit
    }
}
