//! `pleach render`.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use pleach_fields::diff::{masking::Masker, normalize::in_reading_order};
use pleach_model::object::Manifest;
use rayon::prelude::*;
use serde_json::Value;

use super::error::{CliError, Kind};
use super::format::manifests::{document, file_name, list};
use super::format::values::{self, Secrets};
use super::{Context, Exit, Target, Ui, format, mask};
use pleach_engine::load::Loaded;
use pleach_files::{FileContent, FileError, Files};

/// File with the list of files from an earlier run in a folder.
const MARKER: &str = ".pleach-render";

/// Number of objects that are formatted at a time, on all cores.
const PART: usize = 256;

/// Write the objects of an environment as YAML
///
/// Renders every release of the environment, or one of them, and writes the
/// objects to stdout in the order in which they are applied. Needs no cluster;
/// the same files always give the same output.
///
/// Secret values are replaced by placeholders, which the API server refuses in
/// a Secret. With --show-secrets, the output can be applied.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach render production                        every release
  pleach render production/web -o json            one release, as a JSON list
  pleach render production --revision v1.4.0      at a tag
  pleach render production --out rendered         one file per object
  pleach render production --show-values          the values with their sources
  pleach render production --show-secrets | kubectl diff --server-side -f -")]
pub(crate) struct RenderArgs {
    /// Environment, or one release of it
    #[arg(value_name = "ENV[/RELEASE]")]
    target: Target,

    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "yaml")]
    output: Output,

    /// Write one file per object into this folder
    ///
    /// The folder must be absent, empty, or written by an earlier run. Files of the
    /// earlier run without an object are removed.
    #[arg(long, value_name = "DIR", conflicts_with = "show_values")]
    out: Option<PathBuf>,

    /// Show the merged values of each release with their sources
    ///
    /// Values that are used in a Secret are masked.
    #[arg(long)]
    show_values: bool,

    /// Show secret values
    #[arg(long, conflicts_with = "show_values")]
    show_secrets: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Yaml,
    Json,
}

impl Output {
    fn extension(self) -> &'static str {
        match self {
            Self::Yaml => "yaml",
            Self::Json => "json",
        }
    }
}

pub(crate) fn run(ui: &mut Ui, context: &Context, args: &RenderArgs) -> Result<Exit, CliError> {
    if args.show_values {
        let loaded = context.read(&args.target)?;
        show_values(ui, args, &loaded);
        let loaded = super::load::sound(loaded, &args.target)?;
        ui.findings(&loaded.findings);
        return Ok(Exit::DONE);
    }
    let loaded = super::load::sound(context.read(&args.target)?, &args.target)?;
    ui.findings(&loaded.findings);
    let mut show = Show {
        secrets: args.show_secrets,
        masker: mask::masker(&mask::run_key()?, loaded.all()),
        masked: 0,
    };
    match &args.out {
        Some(folder) => write_files(ui, args, &loaded, folder, &mut show)?,
        None => write_stream(ui, args, &loaded, &mut show),
    }
    if show.masked > 0 {
        let objects = if show.masked == 1 {
            "object"
        } else {
            "objects"
        };
        ui.status(format_args!(
            "secret values of {} {objects} are not shown; --show-secrets shows them",
            show.masked
        ));
    }
    Ok(Exit::DONE)
}

/// Masking of the shown objects.
struct Show {
    secrets: bool,
    masker: Masker,
    masked: usize,
}

impl Show {
    /// Returns whether an object needs no masking.
    fn is_open(&self, manifest: &Manifest) -> bool {
        self.secrets || !(manifest.is_secret() || self.masker.guards())
    }

    /// Returns an object masked for output. Must be called in order: equal secret values get the
    /// same number, in order of first use.
    fn object(&mut self, manifest: &Manifest, object: Value) -> Value {
        if self.secrets {
            return object;
        }
        self.masked += usize::from(manifest.is_secret());
        self.masker.object(object, &manifest.secrecy())
    }
}

fn manifests(loaded: &Loaded) -> impl Iterator<Item = &Manifest> {
    loaded
        .rendered
        .iter()
        .flat_map(|(_, rendered)| &rendered.manifests)
}

fn write_stream(ui: &mut Ui, args: &RenderArgs, loaded: &Loaded, show: &mut Show) {
    match args.output {
        Output::Yaml => {
            let all: Vec<&Manifest> = manifests(loaded).collect();
            for part in all.chunks(PART) {
                let open: Vec<Option<String>> = part
                    .par_iter()
                    .map(|one| show.is_open(one).then(|| document(one, one.value())))
                    .collect();
                let out = ui.out();
                for (manifest, text) in std::iter::zip(part, open) {
                    let text = text.unwrap_or_else(|| {
                        document(manifest, show.object(manifest, manifest.value()))
                    });
                    // Writing to the output never fails.
                    drop(out.write_all(text.as_bytes()));
                }
            }
        }
        Output::Json => {
            let objects = manifests(loaded).map(|one| show.object(one, one.value()));
            ui.print(format::json(&list(objects)));
        }
    }
}

fn write_files(
    ui: &mut Ui,
    args: &RenderArgs,
    loaded: &Loaded,
    folder: &Path,
    show: &mut Show,
) -> Result<(), CliError> {
    let mut files = Files::new();
    for (release, rendered) in &loaded.rendered {
        for manifest in &rendered.manifests {
            let object = show.object(manifest, manifest.value());
            let text = match args.output {
                Output::Yaml => document(manifest, object),
                Output::Json => format::json(&in_reading_order(object)) + "\n",
            };
            let content = if manifest.is_secret() {
                FileContent::private(text)
            } else {
                FileContent::new(text)
            };
            let extension = args.output.extension();
            let name = file_name(&release.name.release, manifest.id(), extension);
            files.insert(name, content);
        }
    }
    let count = files.len();
    let ours = files_of_earlier_run(folder)?;
    let mut marker = String::from("# Written by pleach render; it replaces these files.\n");
    for path in files.keys() {
        marker.push_str(path);
        marker.push('\n');
    }
    files.insert(MARKER.to_owned(), FileContent::new(marker));
    pleach_files::write_folder(folder, &files, &ours).map_err(|error| match error {
        FileError::Exists { .. } => CliError::new(Kind::Failed, error).hint(format!(
            "{} holds files that pleach render did not write; name another folder",
            folder.display()
        )),
        error => error.into(),
    })?;
    let plural = if count == 1 { "object" } else { "objects" };
    ui.status(format_args!(
        "{count} {plural} written to {}",
        folder.display()
    ));
    Ok(())
}

/// Returns the files of an earlier run. Only paths in the form of [`file_name`] count, so a foreign
/// marker file cannot point elsewhere.
fn files_of_earlier_run(folder: &Path) -> Result<Vec<String>, CliError> {
    let marker = folder.join(MARKER);
    if !pleach_files::exists(&marker)? {
        return Ok(Vec::new());
    }
    let text = String::from_utf8(pleach_files::read(&marker)?)
        .map_err(|error| CliError::new(Kind::Failed, error))?;
    let mut ours: Vec<String> = text
        .lines()
        .filter(|line| !line.starts_with('#') && pleach_files::is_inside(line))
        .map(str::to_owned)
        .collect();
    ours.push(MARKER.to_owned());
    Ok(ours)
}

fn show_values(ui: &mut Ui, args: &RenderArgs, loaded: &Loaded) {
    // A value of the environment can be a secret of another release.
    let all: Vec<_> = loaded.all().collect();
    let secrets = if all.iter().any(|rendered| rendered.failed()) {
        Secrets::Unknown
    } else {
        Secrets::of(&all)
    };
    let mut entries = Vec::new();
    for (release, _) in &loaded.rendered {
        let name = &release.name.release;
        let rows = release.values.show();
        match args.output {
            Output::Yaml => {
                let text = values::text(name, &rows, &secrets);
                ui.print(text.trim_end_matches('\n'));
            }
            Output::Json => entries.extend(values::json(name, &rows, &secrets)),
        }
    }
    if args.output == Output::Json {
        ui.print(format::json(&Value::Array(entries)));
    }
}
