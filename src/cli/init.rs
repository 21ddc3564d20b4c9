//! `pleach init`.

pub(super) mod wrap;

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use pleach_model::finding::Finding;
use pleach_model::object::yaml;
use pleach_model::tree::MemoryTree;
use serde_json::Value;

use super::error::{CliError, Kind};
use super::target::is_dns_label;
use super::{Context, Exit, Target, Ui, load};
use pleach_files::{FileContent, FileError, Files};
use pleach_git::Revision;

/// Name of the new environment.
const ENVIRONMENT: &str = "dev";

/// Create a repository
///
/// Writes a small commented repository with one environment and one bundle, or
/// wraps existing YAML. Overwrites no file, and writes nothing unless the
/// result renders.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach init                          in this folder
  pleach init fleet                    in a new folder
  pleach init fleet --from app.yaml    from a file
  pleach init fleet --from deploy      from the YAML files of a folder
  helm template shop ./chart | pleach init fleet --from - --name shop
  pleach init fleet --ci github        with a workflow that reviews pull requests")]
pub(crate) struct InitArgs {
    /// Folder to write to [default: the folder of --repo, else the current one]
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,

    /// YAML to wrap: a file, a folder with files, or `-` for the standard input
    ///
    /// The files are copied unchanged into a bundle that is named after the file or
    /// folder. Folders with version names, such as v1.0.0, become versions of the
    /// bundle.
    #[arg(long, value_name = "FILE-OR-DIR")]
    from: Option<PathBuf>,

    /// Name of the bundle [default: the name of the file or folder]
    #[arg(long, value_name = "NAME", requires = "from")]
    name: Option<String>,

    /// Version of the bundle to create from the YAML
    #[arg(long, value_name = "VERSION", requires = "from")]
    version: Option<String>,

    /// Also write a workflow that reviews pull requests
    #[arg(long, value_name = "FORGE")]
    ci: Option<Ci>,
}

/// Forges whose pipelines `init` writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Ci {
    /// A workflow of GitHub Actions.
    Github,
}

impl Ci {
    /// Returns the path of the pipeline and its text.
    fn file(self) -> (&'static str, &'static str) {
        match self {
            Self::Github => (
                ".github/workflows/pleach.yaml",
                include_str!("init/starter/github.yaml"),
            ),
        }
    }

    /// Returns what the pipeline still needs.
    fn next(self) -> &'static str {
        match self {
            Self::Github => "the workflow needs action.yml of a release in .github/actions/pleach/",
        }
    }
}

pub(crate) fn run(ui: &mut Ui, context: &Context, args: &InitArgs) -> Result<Exit, CliError> {
    let folder = args
        .folder
        .as_deref()
        .or(context.settings.repo.as_deref())
        .unwrap_or_else(|| Path::new("."));
    let id = repository_id(folder)?;
    let mut files = match &args.from {
        Some(from) => {
            let origin = wrap::Origin {
                from,
                name: args.name.as_deref(),
                version: args.version.as_deref(),
            };
            wrap::files(ui, &id, &origin)?
        }
        None => starter(&id),
    };
    ui.findings(&check(&files)?);
    if let Some(ci) = args.ci {
        let (path, text) = ci.file();
        files.insert(path.to_owned(), FileContent::new(text.to_owned()));
    }
    pleach_files::add_files(folder, &files).map_err(refused)?;
    for path in files.keys() {
        ui.print(folder.join(path).display());
    }
    let option = if folder == Path::new(".") {
        String::new()
    } else {
        format!(" --repo {}", quoted(&folder.display().to_string()))
    };
    ui.status(format_args!(
        "next: `pleach{option} render {ENVIRONMENT}` shows the rendered objects, `pleach{option} diff {ENVIRONMENT}` shows what apply would change"
    ));
    if let Some(ci) = args.ci {
        ui.status(ci.next());
    }
    Ok(Exit::DONE)
}

/// Returns the files of the example repository.
fn starter(id: &str) -> Files {
    let id = [("id", id)];
    [
        (
            "pleach.yaml",
            fill(include_str!("init/starter/pleach.yaml"), &id),
        ),
        (
            "environments/dev.yaml",
            include_str!("init/starter/dev.yaml").to_owned(),
        ),
        (
            "manifests/web/bundle.yaml",
            include_str!("init/starter/bundle.yaml").to_owned(),
        ),
        (
            "manifests/web/v1.0.0/content.yaml.j2",
            include_str!("init/starter/content.yaml.j2").to_owned(),
        ),
        (
            "manifests/web/v1.0.0/deployment.yaml.j2",
            include_str!("init/starter/deployment.yaml.j2").to_owned(),
        ),
        (
            "manifests/web/v1.0.0/service.yaml",
            include_str!("init/starter/service.yaml").to_owned(),
        ),
    ]
    .into_iter()
    .map(|(path, text)| (path.to_owned(), FileContent::new(text)))
    .collect()
}

/// Replaces `{{name}}` placeholders. Values are quoted if YAML would not read them as strings.
fn fill(text: &str, names: &[(&str, &str)]) -> String {
    names.iter().fold(text.to_owned(), |text, (name, value)| {
        let value = yaml::emit(&Value::from(*value));
        text.replace(&format!("{{{{{name}}}}}"), value.trim_end())
    })
}

/// Renders the new files and returns the findings.
fn check(files: &Files) -> Result<Vec<Finding>, CliError> {
    let tree = MemoryTree::new(
        files
            .iter()
            .map(|(path, content)| (path.clone(), content.bytes().clone())),
    );
    let target = Target {
        environment: ENVIRONMENT.to_owned(),
        release: None,
    };
    let loaded = load::sound(load::read(&tree, Revision::None, &target)?, &target)?;
    Ok(loaded.findings)
}

fn refused(error: FileError) -> CliError {
    match error {
        FileError::Exists { .. } => {
            CliError::new(Kind::Failed, error).hint("init overwrites no files; name another folder")
        }
        error => error.into(),
    }
}

/// Quotes a path for a shell.
pub(super) fn quoted(path: &str) -> String {
    let harmless = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '/' | '-');
    if path.chars().all(harmless) {
        path.to_owned()
    } else {
        format!("'{}'", path.replace('\'', "'\\''"))
    }
}

/// Returns an id for the repository: the name of its folder.
fn repository_id(folder: &Path) -> Result<String, CliError> {
    let absolute = if pleach_files::exists(folder)? {
        pleach_files::canonical(folder)?
    } else {
        folder.to_owned()
    };
    let name = absolute.file_name().unwrap_or_default().to_string_lossy();
    Ok(label(&name).unwrap_or_else(|| "pleach".to_owned()))
}

/// Converts a name to a DNS label.
pub(super) fn label(name: &str) -> Option<String> {
    let mut label = String::new();
    for character in name.chars() {
        let character = character.to_ascii_lowercase();
        if character.is_ascii_lowercase() || character.is_ascii_digit() {
            label.push(character);
        } else if !label.is_empty() && !label.ends_with('-') {
            label.push('-');
        }
    }
    label.truncate(63);
    let label = label.trim_end_matches('-');
    is_dns_label(label).then(|| label.to_owned())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("fleet", Some("fleet"))]
    #[case("My Fleet_2.0", Some("my-fleet-2-0"))]
    #[case("--x--", Some("x"))]
    #[case("…", None)]
    #[case("", None)]
    fn names_become_labels(#[case] name: &str, #[case] expected: Option<&str>) {
        assert_eq!(label(name).as_deref(), expected);
    }

    #[rstest]
    #[case("a/b-1.yaml", "a/b-1.yaml")]
    #[case("my fleet", "'my fleet'")]
    #[case("it's", "'it'\\''s'")]
    fn paths_are_quoted_for_a_shell(#[case] path: &str, #[case] expected: &str) {
        assert_eq!(quoted(path), expected);
    }

    #[rstest]
    #[case("fleet", "id: fleet\n")]
    #[case("on", "id: \"on\"\n")]
    #[case("1", "id: \"1\"\n")]
    #[case("null", "id: \"null\"\n")]
    #[case("2026-11-22", "id: \"2026-11-22\"\n")]
    fn names_stay_texts(#[case] name: &str, #[case] expected: &str) {
        assert_eq!(fill("id: {{id}}\n", &[("id", name)]), expected);
    }

    #[test]
    fn long_names_are_cut() {
        let name = format!("{}-b", "a".repeat(62));
        assert_eq!(label(&name).unwrap(), "a".repeat(62));
    }
}
