//! `pleach plan`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::ValueEnum;
use pleach_model::object::ObjectId;
use pleach_page::standalone;
use pleach_planner::plan::Plan;

use super::differences::Differences;
use super::error::{CliError, Kind};
use super::session::Session;
use super::verdict::Verdict;
use super::{Context, Exit, Target, Ui, explain, format, plan_file};
use pleach_engine::planning::{Options, Planned, Predecessors, Subject};

/// Show the stages and steps that apply would execute
///
/// The plan names every object with its action, its stage, and what each step
/// waits for and why. Nothing is written.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach plan production
  pleach plan production/web --diff
  pleach plan production/web --explain deploy/web
  pleach plan production -o json --exit-code
  pleach plan production -o html > plan.html     a self-contained page
  pleach plan production --out plan.json         for `pleach apply production --plan plan.json`")]
pub(crate) struct PlanArgs {
    /// Environment, or one release of it
    #[arg(value_name = "ENV[/RELEASE]")]
    pub(crate) target: Target,

    /// Explain the position of this object: Kind[.group]/[namespace/]name, or as for kubectl
    #[arg(long, value_name = "ID")]
    pub(crate) explain: Option<ObjectId>,

    /// Also show the differences of all objects, as `pleach diff` does
    #[arg(long, conflicts_with = "explain")]
    pub(crate) diff: bool,

    /// Also write the plan to a file, for review and `apply --plan`
    ///
    /// The file names every object with its action, its preconditions, and the
    /// digest of its content. It contains no content of objects and no secrets.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,

    /// Compare every object with a dry run, including objects with unchanged metadata
    #[arg(long)]
    pub(crate) verify: bool,

    /// Exit with code 10 when there are changes
    #[arg(long)]
    pub(crate) exit_code: bool,

    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: PlanOutput,
}

/// Formats of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlanOutput {
    /// For people, with colors on a terminal.
    Text,
    /// For programs.
    Json,
    /// A self-contained page with the differences of all objects.
    Html,
}

pub(crate) async fn run(ui: &mut Ui, ctx: &Context, args: PlanArgs) -> Result<Exit, CliError> {
    if args.explain.is_some() && args.output == PlanOutput::Html {
        return Err(CliError::usage("--explain needs the output format text"));
    }
    if args.diff && args.output == PlanOutput::Json {
        return Err(CliError::usage("--diff needs the output format text")
            .hint("`pleach diff -o json` has the differences for programs"));
    }
    let options = Options {
        verify: args.verify,
        wait: true,
        review: true,
        nodes_behind: true,
        prune: true,
        predecessors: Predecessors::ComeFirst,
    };
    let session = Session::open_to_apply(ui, ctx, &args.target, options, None).await?;
    let mut exit = Exit::DONE;
    let mut plans = Vec::new();
    let subjects = session.subjects(ui, ctx, &args.target).await?;
    let mut differences = Differences::of(&session)?;
    let mut texts = Vec::new();
    let mut diffs = Vec::new();
    for subject in &subjects {
        match session.plan_for(ui, subject).await? {
            Ok(planned) => {
                if args.output == PlanOutput::Text && args.explain.is_none() {
                    texts.push(drawn(&mut differences, subject, &planned, args.diff));
                }
                if args.output == PlanOutput::Html {
                    diffs.push(differences.release(subject, &planned));
                }
                plans.push(planned);
            }
            Err(error) => exit = exit.and(error.exit()),
        }
    }
    match (&args.explain, args.output) {
        (Some(requested), _) => {
            let texts: Vec<String> = plans
                .iter()
                .flat_map(|planned| {
                    let found = explain::named(requested, objects(&planned.plan));
                    found
                        .into_iter()
                        .filter_map(|id| format::plan::explain(&planned.plan, id))
                })
                .collect();
            if texts.is_empty() && exit == Exit::DONE {
                let all = plans.iter().flat_map(|planned| objects(&planned.plan));
                return Err(unknown(
                    &args.target,
                    requested,
                    &explain::near(requested, all),
                ));
            }
            ui.print(texts.join("\n").trim_end());
        }
        (None, PlanOutput::Text) => {
            let needs_approval = session.loaded.environment.sync.needs_approval;
            for (index, (planned, text)) in plans.iter().zip(&texts).enumerate() {
                if index > 0 {
                    ui.print("");
                }
                ui.print(text);
                if needs_approval && planned.plan.has_steps() {
                    ui.print(format_args!("effects {}", planned.plan.effects()));
                }
            }
        }
        (None, PlanOutput::Json) => ui.print(json(&plans)),
        (None, PlanOutput::Html) => {
            let plans = plans.iter().map(|planned| &planned.plan).zip(&diffs);
            let page = standalone::plans(&format!("Plan of {}", args.target), plans);
            let page = page.map_err(|error| CliError::new(Kind::Failed, error))?;
            ui.print(page.trim_end());
        }
    }
    // A file with only some of the releases would look like a review of all.
    if let Some(path) = &args.out
        && exit == Exit::DONE
        && let Some(file) = plan_file::of(&session, options.verify, &plans)
    {
        plan_file::write(path, &file)?;
    }
    for planned in &plans {
        ui.findings(&Verdict(&planned.plan).remarks());
        exit = exit.and(Verdict(&planned.plan).blocks());
        if args.exit_code && Verdict(&planned.plan).has_changes() {
            exit = exit.and(Exit::CHANGES);
        }
        if let Err(error) = Verdict(&planned.plan).ensure_allowed() {
            ui.error(&error);
            exit = exit.and(error.exit());
        }
    }
    Ok(exit)
}

/// Formats plans for programs.
fn json(plans: &[Planned]) -> String {
    let plans: Vec<_> = plans
        .iter()
        .map(|planned| {
            let mut shown = serde_json::json!(planned.plan);
            shown["effects"] = serde_json::json!(planned.plan.effects());
            shown
        })
        .collect();
    format::json(&serde_json::json!({ "format": 1, "plans": plans }))
}

/// Draws a plan with the changed fields, and with all differences if requested.
fn drawn(
    differences: &mut Differences<'_>,
    subject: &Subject<'_>,
    planned: &Planned,
    with_diff: bool,
) -> String {
    let fields = differences.fields(subject, planned);
    let mut text = format::plan::text(&planned.plan, &fields);
    if with_diff && planned.plan.has_steps() {
        let diff = differences.release(subject, planned);
        text.push_str("\n\n");
        text.push_str(format::diff::text(&diff, false).trim_end_matches('\n'));
    }
    text
}

/// Returns all objects of a plan, including those that only occur in steps.
fn objects(plan: &Plan) -> BTreeSet<&ObjectId> {
    let changes = plan.changes.iter().map(|change| &change.object);
    let steps = plan.steps.iter().map(|step| &step.object);
    changes.chain(steps).collect()
}

fn unknown(target: &Target, requested: &ObjectId, near: &[&ObjectId]) -> CliError {
    let error = CliError::usage(format!("no plan of {target} has an object {requested}"));
    if near.is_empty() {
        return error.hint(format!("`pleach plan {target} -o json` lists all objects"));
    }
    let names: Vec<String> = near.iter().map(ToString::to_string).collect();
    error.hint(format!("similar objects: {}", names.join(", ")))
}
