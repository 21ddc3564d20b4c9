//! `pleach lint`.

use clap::ValueEnum;
use pleach_model::finding::{self, Finding, Severity};
use pleach_model::kinds::KindTable;
use pleach_model::tree::FileTree;
use pleach_render::lint::{self, Linted};
use serde_json::json;

use super::error::CliError;
use super::format::{self, findings, sarif};
use super::{Context, Exit, Target, Ui};
use pleach_engine::load::pleach_version;

/// Find mistakes in the files, without a cluster
///
/// Renders the environments and checks for fields that a kind does not have,
/// values of the wrong type, list items with the same keys, API versions that
/// Kubernetes no longer serves, and references to objects that no manifest has.
/// Reports all findings at once, with file and line.
///
/// The exit code is 3 if there are errors; warnings and notes do not change it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach lint                         all environments
  pleach lint production staging      two environments
  pleach lint --revision v1.4.0       at a tag
  pleach lint -o json                 for programs
  pleach lint -o sarif > pleach.sarif for code hosts, which show findings beside the line")]
pub(crate) struct LintArgs {
    /// Environments [default: all]
    #[arg(value_name = "ENV")]
    environments: Vec<Target>,

    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
    Sarif,
}

pub(crate) fn run(ui: &mut Ui, context: &Context, args: &LintArgs) -> Result<Exit, CliError> {
    if let Some(target) = args.environments.iter().find(|t| t.release.is_some()) {
        return Err(CliError::usage(format!(
            "{target} is a release; lint checks whole environments"
        )));
    }
    let opened = context.open()?;
    let tree = &*opened.tree;
    let mut names: Vec<String> = args
        .environments
        .iter()
        .map(|target| target.environment.clone())
        .collect();
    if names.is_empty() {
        names = pleach_config::environments(tree);
    }
    let found = findings_of(tree, &names);
    match args.output {
        Output::Text => {
            let text = findings::text(&found, Severity::Note);
            if !text.is_empty() {
                ui.print(text.trim_end_matches('\n'));
            }
            let summary = match findings::summary(&found) {
                summary if summary.is_empty() => "no errors, no warnings".to_owned(),
                summary => summary,
            };
            ui.status(format_args!("{summary} in {}", environments(&names)));
        }
        Output::Json => {
            let count = |severity| found.iter().filter(|f| f.severity == severity).count();
            let report = json!({
                "format": 1,
                "environments": names,
                "findings": found,
                "summary": {
                    "errors": count(Severity::Error),
                    "warnings": count(Severity::Warning),
                    "notes": count(Severity::Note),
                },
            });
            ui.print(format::json(&report));
        }
        Output::Sarif => ui.print(format::json(&json!(sarif::log(&found)))),
    }
    Ok(if found.iter().any(Finding::is_error) {
        Exit::REPOSITORY
    } else {
        Exit::DONE
    })
}

/// Returns the findings of all environments without duplicates, as environments share files.
fn findings_of(tree: &dyn FileTree, names: &[String]) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut linted: Vec<Linted> = Vec::new();
    if names.is_empty() {
        found.push(
            Finding::error(
                finding::Kind::Repository,
                "unknown-environment",
                "the repository has no environment",
            )
            .hint("write environments/NAME.yaml"),
        );
    }
    for name in names {
        match pleach_config::resolve(tree, name, &pleach_version()) {
            Err(findings) => found.extend(findings),
            Ok(environment) => {
                let kubernetes = environment.cluster.kubernetes.as_deref();
                let (table, note) = KindTable::nearest(kubernetes);
                found.extend(note.map(|note| note.at(environment.origin.clone())));
                linted.push(lint::environment(tree, &environment, &table));
            }
        }
    }
    found.extend(lint::across(&linted));
    found.extend(linted.into_iter().flat_map(|linted| linted.findings));
    finding::sort(&mut found);
    finding::excerpt::attach(tree, &mut found);
    found
}

fn environments(names: &[String]) -> String {
    match names {
        [one] => format!("environment {one}"),
        names => format!("{} environments", names.len()),
    }
}
