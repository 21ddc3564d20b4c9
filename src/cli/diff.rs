//! `pleach diff`.

use clap::ValueEnum;

use pleach_domain::diff::fields::Scope;
use pleach_domain::diff::masking::Masker;
use pleach_domain::diff::text::View;
use pleach_domain::object::DigestKey;

use super::error::{CliError, Kind};
use super::session::{Options, Session};
use super::{Context, Exit, Target, Ui, format};

/// Show what apply would change
///
/// Renders the environment, or one release of it, and compares it with the
/// live cluster. Objects that may have changed are sent to the server as a dry
/// run, so defaults and admission are part of the answer. Nothing is written.
/// Values of Secrets are never shown: equal ones have the same number.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach diff production                       every release
  pleach diff production/web                   one release
  pleach diff production --exit-code -o json   for a pipeline: 10 when there are changes
  pleach diff production -o markdown           for a comment on a pull request")]
pub(crate) struct DiffArgs {
    /// Environment, or one release of it
    #[arg(value_name = "ENV[/RELEASE]")]
    pub(crate) target: Target,

    /// Also show fields that others own
    #[arg(long)]
    pub(crate) all: bool,

    /// Compare every object with a dry run, also those whose metadata says that they are unchanged
    #[arg(long)]
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
    let options = Options {
        verify: args.verify,
        wait: true,
        review: false,
    };
    let session = Session::open(ui, ctx, &args.target, options, None).await?;
    let view = View {
        scope: if args.all { Scope::All } else { Scope::Owned },
        status: false,
        full_deletes: args.all,
    };
    let mut masker = Masker::new(DigestKey::new(run_key()?));
    let mut exit = Exit::DONE;
    let mut documents = Vec::new();
    for (release, rendered) in session.releases() {
        let planned = match session.plan(ui, release, rendered).await? {
            Ok(planned) => planned,
            Err(error) => {
                exit = exit.and(error.exit());
                continue;
            }
        };
        let differences = planned.differences(&session.policy(release), view, &mut masker);
        match args.output {
            DiffOutput::Text => ui.print(format::diff::text(&planned.plan, &differences)),
            DiffOutput::Markdown => ui.print(format::diff::markdown(&planned.plan, &differences)),
            DiffOutput::Json => documents.push(format::diff::json(&planned.plan, &differences)),
        }
        ui.findings(&planned.remarks());
        exit = exit.and(planned.blocks());
        if args.exit_code && planned.has_changes() {
            exit = exit.and(Exit::CHANGES);
        }
        if let Err(error) = planned.ensure_allowed() {
            ui.error(&error);
            exit = exit.and(error.exit());
        }
    }
    if args.output == DiffOutput::Json {
        ui.print(format::json(
            &serde_json::json!({ "format": 1, "releases": documents }),
        ));
    }
    Ok(exit)
}

/// A key of this run only: indexes of secrets mean nothing outside its output.
fn run_key() -> Result<Vec<u8>, CliError> {
    let mut key = vec![0; 32];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut key)
        .map_err(|_| {
            CliError::new(
                Kind::Failed,
                "failed to get random bytes from the operating system",
            )
        })?;
    Ok(key)
}
