//! `pleach version`.

use clap::ValueEnum;
use serde_json::json;

use super::{Exit, Ui};

/// Version of pleach's file formats.
pub(crate) const FORMAT: &str = "pleach.dev/v1alpha1";

/// Show the version of pleach
///
/// JSON also names the version of the file formats that it reads.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach version
  pleach version -o json")]
pub(crate) struct VersionArgs {
    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Output {
    Text,
    Json,
}

pub(crate) fn run(ui: &mut Ui, args: &VersionArgs) -> Exit {
    let version = env!("CARGO_PKG_VERSION");
    match args.output {
        Output::Text => ui.print(format_args!("pleach {version}")),
        Output::Json => ui.print(json!({"version": version, "formats": [FORMAT]})),
    }
    Exit::DONE
}
