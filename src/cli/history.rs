//! `pleach history`.

use clap::ValueEnum;
use pleach_model::object::ReleaseName;

use super::error::{CliError, Kind};
use super::status::{StateStore, cluster_of, environment, nowhere};
use super::{Context, Exit, Target, Ui, format};
use pleach_engine::sync::state;

/// Show the recorded results of a release
///
/// Shows the last ten results that pleach recorded in the cluster, newest
/// first. Needs no repository. Without one, --state-namespace names the
/// namespace of a state ConfigMap, for users who are not allowed to list
/// ConfigMaps in all namespaces.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach history production/web
  pleach history production/web -o json
  pleach history production/web --state-namespace team-a")]
pub(crate) struct HistoryArgs {
    /// Release of an environment
    #[arg(value_name = "ENV/RELEASE")]
    target: Target,

    #[command(flatten)]
    place: StateStore,

    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: HistoryOutput,
}

/// Formats of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HistoryOutput {
    /// For people.
    Text,
    /// For programs.
    Json,
}

pub(crate) async fn run(ui: &mut Ui, ctx: &Context, args: HistoryArgs) -> Result<Exit, CliError> {
    let target = args.target;
    let Some(release) = target.release.clone() else {
        return Err(CliError::usage(format!(
            "history needs one release: write {target}/RELEASE"
        )));
    };
    let environment = environment(ui, ctx, &target)?;
    let cluster = cluster_of(ctx, environment.as_ref()).await?;
    let name = ReleaseName {
        environment: target.environment.clone(),
        release,
    };
    let search = args.place.search(environment.as_ref());
    let mut found = state::release(&cluster, &name, &search)
        .await
        .map_err(|error| nowhere(error, &search))?;
    if found.len() > 1 {
        let namespaces: Vec<&str> = found
            .iter()
            .map(|release| release.store.namespace())
            .collect();
        return Err(CliError::usage(format!(
            "release {target} has records in several namespaces: {}",
            namespaces.join(", ")
        ))
        .hint("choose one with --state-namespace"));
    }
    let Some(summary) = found.pop() else {
        return Err(CliError::new(
            Kind::Failed,
            format!("release {target} is not installed in {}", cluster.server()),
        )
        .hint("`pleach status` lists the installed releases"));
    };
    let installed = summary
        .record
        .clone()
        .map_err(|why| CliError::new(Kind::Cluster, why))?;
    ui.print(match args.output {
        HistoryOutput::Text => format::history::text(&installed),
        HistoryOutput::Json => format::json(&format::history::json(&summary, &installed)),
    });
    Ok(Exit::DONE)
}
