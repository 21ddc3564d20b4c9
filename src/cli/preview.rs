//! `pleach preview`.

use std::collections::BTreeSet;

use clap::ValueEnum;
use pleach_domain::diff::fields::Scope;
use pleach_domain::diff::text::View;
use pleach_domain::finding::{Finding, Kind as FindingKind};
use pleach_domain::object::DigestKey;
use pleach_domain::plan::view::{Drawing, ReleaseDiff};
use pleach_domain::preview::{self, EnvironmentPreview, Preview, ReleasePreview};
use pleach_domain::repo;

use super::compare::{Comparison, End};
use super::error::{CliError, Kind};
use super::forge::TellingArgs;
use super::format::preview::{Comment, comment, page, text};
use super::load::pleach_version;
use super::verdict::Verdict as PlanVerdict;
use super::{Context, Exit, Target, Ui, compare, format, mask, runtime};
use crate::engine::preview_process::{FORMAT, Report, Verdict, marker};
use crate::io::bounds::bound;

/// Show what a change in git would do
///
/// Renders every environment that the change touches at both revisions and
/// plans the way from one to the other, as an upgrade would be planned: what is
/// risky, the stages, and the differences, the most dangerous first. No cluster
/// is asked, so it can run in any pipeline; what a server would add or refuse is
/// not known.
///
/// The base is the commit at which the head left it, as for a pull request;
/// --direct compares with the base as it is now. Values of Secrets are never
/// shown: equal ones have the same number.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach preview --base main                         the working tree against the branch main
  pleach preview --base main --head feature          two revisions; every environment that is touched
  pleach preview --base main -o markdown production  a comment for a pull request
  pleach preview --base main -o html > preview.html  a page of its own")]
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

    /// Compare with the base itself, not with the commit at which the head left it
    #[arg(long)]
    direct: bool,

    /// Exit with code 10 when something would change
    #[arg(long)]
    exit_code: bool,

    #[command(flatten)]
    telling: TellingArgs,

    /// Longest comment that the forge accepts, in bytes, for markdown
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
    /// For programs that comment on pull requests: what to say there.
    Comment,
}

pub(crate) fn run(ui: &mut Ui, ctx: &Context, args: &PreviewArgs) -> Result<Exit, CliError> {
    if args.telling.untrusted {
        bound().map_err(|error| CliError::new(Kind::Failed, error))?;
    }
    let change = Change::open(ctx, args)?;
    let key = mask::run_key()?;
    let targets = change.targets(args);
    let mut preview = Preview {
        format: 1,
        base: change.base.opened.revision.to_string(),
        head: change.head.opened.revision.to_string(),
        summary: String::new(),
        environments: Vec::new(),
        unchanged: Vec::new(),
    };
    let mut exit = Exit::DONE;
    for target in targets {
        let all = args.targets.is_empty() || args.telling.untrusted;
        if all && !change.may_touch(&target.environment) {
            preview.unchanged.push(target.environment);
            continue;
        }
        let (environment, code) = change.environment(&target, &key);
        exit = exit.and(code);
        if environment.releases.is_empty() && environment.findings.is_empty() {
            preview.unchanged.push(environment.environment);
        } else {
            preview.environments.push(environment);
        }
    }
    let diffs: Vec<&ReleaseDiff> = preview
        .environments
        .iter()
        .flat_map(|environment| &environment.releases)
        .map(|release| &release.diff)
        .collect();
    preview.summary = match diffs.as_slice() {
        [] => "no changes".to_owned(),
        diffs => format::diff::summary(diffs.iter().copied()),
    };
    if args.exit_code && !diffs.is_empty() {
        exit = exit.and(Exit::CHANGES);
    }
    print(ui, args, &change, &preview, exit)?;
    if args.telling.comment {
        ui.finish()?;
        let report = report(args, &change, &preview, exit);
        runtime::block_on(&ctx.cancel, args.telling.tell(ui, ctx, &report))?;
    }
    Ok(exit)
}

/// What is told to a forge.
fn report(args: &PreviewArgs, change: &Change, found: &Preview, exit: Exit) -> Report {
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
            limit: args.limit as usize,
        },
    );
    Report {
        format: FORMAT,
        base: found.base.clone(),
        head: found.head.clone(),
        summary: found.summary.clone(),
        verdict: match exit {
            Exit::REPOSITORY => Verdict::Invalid,
            Exit::DONE | Exit::CHANGES => Verdict::Fine,
            _ => Verdict::Refused,
        },
        marker,
        comment: text,
    }
}

/// A change in git: two revisions, and the files in which they differ.
struct Change {
    base: End,
    head: End,
    files: BTreeSet<String>,
}

impl Change {
    fn open(ctx: &Context, args: &PreviewArgs) -> Result<Self, CliError> {
        let head = args.head.as_deref().or(ctx.settings.revision.as_deref());
        let source = ctx.source()?;
        let base = if args.direct {
            args.base.clone()
        } else {
            source.merge_base(&args.base, head.unwrap_or("HEAD"))?
        };
        let files = source.changed(&base, head)?;
        Ok(Self {
            base: End {
                name: args.base.clone(),
                ..End::open(ctx, Some(&base))?
            },
            head: End::open(ctx, head)?,
            files,
        })
    }

    /// What is asked for, or every environment of either revision.
    fn targets(&self, args: &PreviewArgs) -> Vec<Target> {
        if !args.targets.is_empty() {
            return args.targets.clone();
        }
        let mut names = repo::environments(&*self.head.opened.tree);
        names.extend(repo::environments(&*self.base.opened.tree));
        let names: BTreeSet<String> = names.into_iter().collect();
        let target = |environment| Target {
            environment,
            release: None,
        };
        names.into_iter().map(target).collect()
    }

    /// Whether an environment has to be looked at. One that cannot be read has.
    fn may_touch(&self, environment: &str) -> bool {
        [&self.base, &self.head].iter().any(|end| {
            let resolved = repo::resolve(&*end.opened.tree, environment, &pleach_version());
            resolved.map_or(true, |one| preview::may_touch(&one, &self.files))
        })
    }

    /// What happens to an environment. That it cannot be rendered is part of the
    /// answer: others can.
    fn environment(&self, target: &Target, key: &DigestKey) -> (EnvironmentPreview, Exit) {
        let mut preview = EnvironmentPreview {
            environment: target.environment.clone(),
            releases: Vec::new(),
            unchanged: Vec::new(),
            findings: Vec::new(),
        };
        let has = |end: &End| repo::environments(&*end.opened.tree).contains(&target.environment);
        if has(&self.base) && !has(&self.head) {
            let message = "its file is removed: it is suspended, and nothing is deleted";
            let finding = Finding::warning(FindingKind::Repository, "environment-gone", message);
            preview.findings.push(finding);
            return (preview, Exit::DONE);
        }
        match compare::revisions(target, &self.base, &self.head, key) {
            Ok(comparison) => {
                let exit = add_releases(&mut preview, comparison);
                (preview, exit)
            }
            Err(error) => {
                let exit = error.exit();
                preview.findings = match error.findings() {
                    [] => vec![Finding::error(
                        FindingKind::Repository,
                        "not-comparable",
                        error.causes().join(": "),
                    )],
                    findings => findings.to_vec(),
                };
                (preview, exit)
            }
        }
    }
}

fn add_releases(preview: &mut EnvironmentPreview, comparison: Comparison) -> Exit {
    let Comparison {
        kinds,
        releases,
        mut masker,
        ..
    } = comparison;
    let mut exit = Exit::DONE;
    for one in &releases {
        let drawing = Drawing {
            desired: &one.desired,
            observed: &one.observed,
            policy: &one.policy,
            kinds: kinds.catalog(),
            view: View {
                scope: Scope::Owned,
                status: false,
                full_deletes: false,
            },
        };
        let diff = drawing.release(&one.plan, &mut masker);
        let verdict = PlanVerdict(&one.plan);
        exit = exit.and(verdict.blocks());
        if let Err(error) = verdict.ensure_allowed() {
            exit = exit.and(error.exit());
        }
        match ReleasePreview::of(&one.plan, diff) {
            Some(release) => preview.releases.push(release),
            None => preview.unchanged.push(one.desired.name.release.clone()),
        }
    }
    exit
}

fn print(
    ui: &mut Ui,
    args: &PreviewArgs,
    change: &Change,
    found: &Preview,
    exit: Exit,
) -> Result<(), CliError> {
    let (base, head) = (change.base.label(), change.head.label());
    match args.output {
        Output::Text => {
            ui.print(format_args!("{base} -> {head}, without a cluster"));
            ui.print(text(found).trim_end_matches('\n'));
            for environment in &found.environments {
                ui.findings(&environment.findings);
                for release in &environment.releases {
                    ui.findings(&release.diff.findings);
                }
            }
            ui.print(&found.summary);
        }
        Output::Json => {
            let document =
                serde_json::to_value(found).map_err(|error| CliError::new(Kind::Failed, error))?;
            ui.print(format::json(&document));
        }
        Output::Markdown => {
            let text = report(args, change, found, exit).comment;
            ui.print(text.trim_end_matches('\n'));
        }
        Output::Comment => {
            let report = report(args, change, found, exit);
            let document =
                serde_json::to_value(report).map_err(|error| CliError::new(Kind::Failed, error))?;
            ui.print(format::json(&document));
        }
        Output::Html => {
            let text =
                page(found, (&base, &head)).map_err(|error| CliError::new(Kind::Failed, error))?;
            ui.print(text.trim_end_matches('\n'));
        }
    }
    Ok(())
}

/// The command that shows all of it.
fn command(args: &PreviewArgs) -> String {
    let mut line = format!("pleach preview --base {}", args.base);
    if let Some(head) = &args.head {
        line.push_str(" --head ");
        line.push_str(head);
    }
    if args.direct {
        line.push_str(" --direct");
    }
    for target in &args.targets {
        line.push(' ');
        line.push_str(&target.to_string());
    }
    line
}
