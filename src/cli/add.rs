//! `pleach add`.

mod artifact;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use pleach_config::edit::{self, Written};
use pleach_config::{FileChanges, PatchedTree};
use pleach_formats::versions::semantic;
use pleach_model::finding::Finding;
use pleach_model::object::yaml;
use pleach_model::tree::{FileTree, TreeKind};
use serde_json::{Map, Value, json};

use self::artifact::ArtifactArgs;
use super::error::{CliError, Kind};
use super::init::quoted;
use super::init::wrap::{Origin, Wrapped, wrap};
use super::load::{self, Keys};
use super::{Context, Exit, Target, Ui};
use pleach_engine::load::pleach_version;
use pleach_files::{FileContent, FileError, WorkingTree};
use pleach_git::Revision;

/// Default namespace, same as kubectl.
const NAMESPACE: &str = "default";

/// Add a bundle and a release of it
///
/// Copies existing YAML into a new bundle, and adds a release of it to an
/// environment. With --version, the YAML can also become another version of an
/// existing bundle. The files of an artifact in a registry become a version,
/// which records its digest. Comments of the environment file are preserved.
/// Overwrites no file, and writes nothing unless the result renders.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach add blog --from blog.yaml --env dev                     a bundle without versions
  pleach add blog --from blog.yaml --env dev --version v1.0.0    its first version, or another one
  helm template blog ./chart | pleach add blog --from - --env dev
  pleach add blog --from oci://example.org/blog:v1.0.0 --env dev   version v1.0.0 from an artifact")]
pub(crate) struct AddArgs {
    /// Name of the bundle and of the release
    #[arg(value_name = "NAME")]
    name: String,

    /// YAML to copy: a file, a folder with files, `-` for the standard input, or an artifact:
    /// `oci://HOST/REPOSITORY:TAG`, or with `@DIGEST`
    #[arg(long, value_name = "FILE-OR-DIR")]
    from: PathBuf,

    /// Environment to add the release to
    #[arg(long, value_name = "ENV")]
    env: String,

    /// Version of the bundle to create from the YAML [default for an artifact: its tag]
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,

    #[command(flatten)]
    artifact: ArtifactArgs,
}

/// Change of an environment file.
enum Entry {
    /// The release already exists and is not changed.
    Present,
    /// New content of the file.
    Added(String),
}

pub(crate) async fn run(ui: &mut Ui, ctx: &Context, args: &AddArgs) -> Result<Exit, CliError> {
    if ctx.settings.revision.is_some() {
        return Err(CliError::usage(
            "add writes to the working tree: omit --revision",
        ));
    }
    let folder = ctx.folder()?;
    let tree = WorkingTree::new(&pleach_files::canonical(&folder)?);
    let version = args.version.as_deref();
    let wrapped = match artifact::address(&args.from, &args.artifact)? {
        Some(address) => {
            address
                .wrap(ui, &args.name, version, &tree, &args.artifact)
                .await?
        }
        None => wrap(
            ui,
            &Origin {
                from: &args.from,
                name: Some(&args.name),
                version,
            },
        )?,
    };
    let is_new = ensure_free(&tree, &wrapped)?;
    let entry = entry(&tree, args, &wrapped, is_new)?;
    let mut added = wrapped.files.clone();
    if is_new {
        added.insert(wrapped.bundle_file(), wrapped.bundle());
    }
    let environment = environment_file(&args.env);
    let mut changes: FileChanges = added
        .iter()
        .map(|(path, content)| (path.clone(), Some(content.bytes().clone())))
        .collect();
    if let Entry::Added(text) = &entry {
        changes.insert(environment.clone(), Some(Bytes::from(text.clone())));
    }
    ui.findings(&check(
        &ctx.keyed(PatchedTree::new(&tree, &changes), Keys::IfPossible),
        args,
    )?);
    pleach_files::add_files(&folder, &added).map_err(refused)?;
    if let Entry::Added(text) = &entry {
        pleach_files::write_atomic(&folder.join(&environment), &FileContent::new(text.clone()))?;
    }
    for path in added.keys() {
        ui.print(path);
    }
    let place = format!("{}/{}", args.env, args.name);
    let option = ctx
        .settings
        .repo
        .as_deref()
        .map_or_else(String::new, |repo: &Path| {
            format!(" --repo {}", quoted(&repo.display().to_string()))
        });
    match entry {
        Entry::Added(_) => ui.print(format_args!("{environment} (release {} added)", args.name)),
        Entry::Present => ui.status(format_args!(
            "release {place} is unchanged: its version is set in {environment}"
        )),
    }
    ui.status(format_args!(
        "next: `pleach{option} diff {place}`, then `pleach{option} apply {place}`"
    ));
    Ok(Exit::DONE)
}

fn environment_file(name: &str) -> String {
    format!("environments/{name}.yaml")
}

/// Returns whether the bundle is new. Refuses an existing bundle, unless it gets another version.
fn ensure_free(tree: &dyn FileTree, wrapped: &Wrapped) -> Result<bool, CliError> {
    let name = &wrapped.name;
    let Ok(entries) = tree.list(&format!("manifests/{name}")) else {
        return Ok(true);
    };
    if entries.is_empty() {
        return Ok(true);
    }
    let versions: Vec<_> = entries
        .iter()
        .filter(|entry| entry.kind == TreeKind::Folder)
        .filter_map(|entry| semantic(&entry.name))
        .collect();
    let Some(newest) = versions.into_iter().max() else {
        return Err(exists(name).hint("it has no versions; choose another name"));
    };
    if wrapped.version.is_none() {
        let next = format!("v{}.{}.0", newest.major, newest.minor + 1);
        return Err(exists(name).hint(format!("--version {next} adds a version folder to it")));
    }
    Ok(false)
}

fn exists(bundle: &str) -> CliError {
    CliError::new(Kind::Failed, format!("bundle {bundle} already exists"))
}

/// Returns the environment file with a release of the bundle added.
fn entry(
    tree: &dyn FileTree,
    args: &AddArgs,
    wrapped: &Wrapped,
    is_new: bool,
) -> Result<Entry, CliError> {
    let (name, environment) = (&wrapped.name, &args.env);
    let known = pleach_config::environments(tree);
    if !known.contains(environment) {
        let hint = match known.as_slice() {
            [] => "the repository has no environments".to_owned(),
            known => format!("known environments: {}", known.join(", ")),
        };
        let message = format!("the repository has no environment {environment}");
        return Err(CliError::new(Kind::Repository, message).hint(hint));
    }
    let outline = pleach_config::outline(tree, environment, &pleach_version())
        .map_err(|findings| load::refused(&target(args, None), findings))?;
    if outline.releases.contains_key(name) {
        if is_new {
            let message = format!("release {environment}/{name} already exists");
            return Err(CliError::new(Kind::Failed, message)
                .hint("choose another name, or remove the release first"));
        }
        return Ok(Entry::Present);
    }
    let file = environment_file(environment);
    let text = tree
        .read(&file)
        .map_err(|error| CliError::new(Kind::Failed, error))?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let nodes = yaml::parse_nodes(&file, &text).unwrap_or_default();
    let releases = nodes.first().and_then(|node| node.get("releases"));
    let release = release(wrapped);
    let edited = if let Some(releases) = releases {
        let path = ["releases".into(), releases.items().len().into()];
        edit::set(&file, &text, &path, &release)
    } else {
        let list = Written {
            value: json!([release.value]),
            text: None,
        };
        edit::set(&file, &text, &["releases".into()], &list)
    };
    edited.map(Entry::Added).map_err(|error| {
        let line = release.text.unwrap_or_default();
        CliError::new(Kind::Repository, error).hint(format!("add the release yourself: {line}"))
    })
}

/// Returns the entry of the release.
fn release(wrapped: &Wrapped) -> Written {
    let fields = [
        ("name", Some(wrapped.name.as_str())),
        ("bundle", Some(wrapped.name.as_str())),
        ("version", wrapped.version.as_deref()),
        ("namespace", Some(NAMESPACE)),
    ];
    let fields: Vec<(&str, &str)> = fields
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)))
        .collect();
    let texts: Vec<String> = fields
        .iter()
        .map(|(key, value)| format!("{key}: {}", yaml::emit(&Value::from(*value)).trim_end()))
        .collect();
    let value: Map<String, Value> = fields
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.into()))
        .collect();
    Written {
        value: value.into(),
        text: Some(format!("{{{}}}", texts.join(", "))),
    }
}

fn target(args: &AddArgs, release: Option<&str>) -> Target {
    Target {
        environment: args.env.clone(),
        release: release.map(str::to_owned),
    }
}

/// Renders the release from the new files and returns the findings.
fn check(tree: &dyn FileTree, args: &AddArgs) -> Result<Vec<Finding>, CliError> {
    let target = target(args, Some(&args.name));
    let loaded = load::sound(load::read(tree, Revision::None, &target)?, &target)?;
    Ok(loaded.findings)
}

fn refused(error: FileError) -> CliError {
    match error {
        FileError::Exists { .. } => CliError::new(Kind::Failed, error)
            .hint("add overwrites no files; choose another version"),
        error => error.into(),
    }
}
