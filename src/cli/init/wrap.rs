//! Bundle from existing YAML.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use bytes::Bytes;
use pleach_formats::versions::semantic;
use pleach_model::tree::{FileTree, MemoryTree, TreeError, TreeKind};

use super::{fill, label};
use crate::cli::{
    error::{CliError, Kind},
    target::is_dns_label,
    ui::Ui,
};
use pleach_files::Files;
use pleach_files::{FileContent, WorkingTree};

/// Name of the standard input.
const STANDARD_INPUT: &str = "-";

/// Maximum size of the standard input, in bytes.
const LONGEST: u64 = 64 * 1024 * 1024;

/// Name of a bundle from the standard input.
const UNNAMED: &str = "app";

/// Files of other tools, with the command that renders them.
const FOREIGN: [(&str, &str); 4] = [
    ("kustomization.yaml", "kustomize build DIR > app.yaml"),
    ("kustomization.yml", "kustomize build DIR > app.yaml"),
    ("Kustomization", "kustomize build DIR > app.yaml"),
    ("Chart.yaml", "helm template NAME DIR > app.yaml"),
];

/// Source of a bundle.
pub(in crate::cli) struct Origin<'a> {
    /// File, folder, or `-` for the standard input.
    pub(in crate::cli) from: &'a Path,
    /// Name of the bundle. `None`: the name of the file or folder.
    pub(in crate::cli) name: Option<&'a str>,
    /// Version of the bundle. `None`: from the name of the folder.
    pub(in crate::cli) version: Option<&'a str>,
}

/// New bundle.
pub(in crate::cli) struct Wrapped {
    /// Name.
    pub(in crate::cli) name: String,
    /// Newest version. `None` for an unversioned bundle.
    pub(in crate::cli) version: Option<String>,
    /// Files except bundle.yaml, by path in the repository.
    pub(in crate::cli) files: Files,
}

impl Wrapped {
    /// Returns the path of bundle.yaml.
    pub(in crate::cli) fn bundle_file(&self) -> String {
        format!("manifests/{}/bundle.yaml", self.name)
    }

    /// Returns the content of bundle.yaml.
    pub(in crate::cli) fn bundle(&self) -> FileContent {
        let text = match self.version {
            Some(_) => include_str!("starter/from-versions.yaml"),
            None => include_str!("starter/from-bundle.yaml"),
        };
        FileContent::new(fill(text, &[("name", &self.name)]))
    }
}

/// Found files, by path in the bundle.
struct Found {
    name: String,
    version: Option<String>,
    files: Vec<(String, FileContent)>,
}

/// Returns the files of a new repository with the bundle.
pub(super) fn files(ui: &mut Ui, id: &str, origin: &Origin<'_>) -> Result<Files, CliError> {
    let wrapped = wrap(ui, origin)?;
    let mut environment = include_str!("starter/from-dev.yaml").to_owned();
    let mut names = vec![("id", id), ("name", wrapped.name.as_str())];
    if let Some(version) = &wrapped.version {
        let bundle = "    bundle: {{name}}\n";
        environment =
            environment.replace(bundle, &format!("{bundle}    version: {{{{version}}}}\n"));
        names.push(("version", version));
    }
    let project = fill(include_str!("starter/pleach.yaml"), &names);
    let mut files = Files::from([
        ("pleach.yaml".to_owned(), FileContent::new(project)),
        (
            "environments/dev.yaml".to_owned(),
            FileContent::new(fill(&environment, &names)),
        ),
        (wrapped.bundle_file(), wrapped.bundle()),
    ]);
    files.extend(wrapped.files);
    Ok(files)
}

/// Checks the name and the version of a bundle.
pub(in crate::cli) fn check_names(
    name: Option<&str>,
    version: Option<&str>,
) -> Result<(), CliError> {
    if let Some(name) = name.filter(|name| !is_dns_label(name)) {
        return Err(
            CliError::usage(format!("{name} is not a valid bundle name"))
                .hint("use lower-case letters, digits and `-`"),
        );
    }
    if let Some(version) = version.filter(|version| semantic(version).is_none()) {
        return Err(CliError::usage(format!("{version} is not a version"))
            .hint("use a version such as v1.0.0"));
    }
    Ok(())
}

/// Returns the paths of the YAML files among files in memory, as for a folder.
pub(in crate::cli) fn select(
    ui: &mut Ui,
    files: &BTreeMap<String, Bytes>,
) -> Result<Vec<String>, CliError> {
    let tree = MemoryTree::new(files.clone());
    let mut paths = Vec::new();
    collect(ui, &tree, "", &mut paths)?;
    Ok(paths)
}

/// Returns the files of the bundle.
pub(in crate::cli) fn wrap(ui: &mut Ui, origin: &Origin<'_>) -> Result<Wrapped, CliError> {
    check_names(origin.name, origin.version)?;
    let found = if origin.from == Path::new(STANDARD_INPUT) {
        standard_input(origin)?
    } else {
        from_files(ui, origin)?
    };
    let mut wrapped = Wrapped {
        name: found.name,
        version: found.version,
        files: Files::new(),
    };
    let reserved = wrapped.bundle_file();
    for (path, content) in found.files {
        let target = format!("manifests/{}/{path}", wrapped.name);
        if target == reserved {
            return Err(CliError::usage(format!(
                "a bundle has its own {path}; rename the one in {}",
                origin.from.display()
            )));
        }
        wrapped.files.insert(target, content);
    }
    Ok(wrapped)
}

fn standard_input(origin: &Origin<'_>) -> Result<Found, CliError> {
    let mut text = Vec::new();
    let read = std::io::stdin().take(LONGEST + 1).read_to_end(&mut text);
    let length = read.map_err(|error| CliError::new(Kind::Failed, error))?;
    if length as u64 > LONGEST {
        return Err(CliError::usage(format!(
            "the standard input has more than {LONGEST} bytes"
        )));
    }
    if text.trim_ascii().is_empty() {
        return Err(CliError::usage("the standard input is empty"));
    }
    let name = origin.name.unwrap_or(UNNAMED);
    let path = within(origin.version, &format!("{name}.yaml"));
    Ok(Found {
        name: name.to_owned(),
        version: origin.version.map(str::to_owned),
        files: vec![(path, FileContent::new(text))],
    })
}

fn from_files(ui: &mut Ui, origin: &Origin<'_>) -> Result<Found, CliError> {
    let from = pleach_files::canonical(origin.from)?;
    let is_folder = pleach_files::is_folder(&from)?;
    let last = |path: &Path| {
        path.file_name()
            .map(|name| name.to_string_lossy().into_owned())
    };
    let own = last(&from).unwrap_or_default();
    let is_version = is_folder && semantic(&own).is_some();
    let named = match (is_folder, is_version) {
        (true, true) => from.parent().and_then(last),
        (true, false) => Some(own.clone()),
        (false, _) => from
            .file_stem()
            .map(|name| name.to_string_lossy().into_owned()),
    };
    let name = match origin.name {
        Some(name) => Some(name.to_owned()),
        None => label(&named.unwrap_or_default()),
    };
    let Some(name) = name else {
        return Err(CliError::usage(format!(
            "cannot derive a bundle name from {}",
            from.display()
        ))
        .hint("name the bundle with --name"));
    };
    let (root, mut paths) = match (is_folder, from.parent(), from.file_name()) {
        (false, Some(parent), Some(file)) => (parent, vec![file.to_string_lossy().into_owned()]),
        _ => (from.as_path(), Vec::new()),
    };
    let tree = WorkingTree::new(root);
    if is_folder {
        collect(ui, &tree, "", &mut paths)?;
    }
    if paths.is_empty() {
        return Err(CliError::usage(format!(
            "{} has no YAML files",
            from.display()
        )));
    }
    let newest = newest_version(&from, &paths, origin.version)?;
    // Version folders in the source need no other version.
    let prefix = match (&newest, origin.version) {
        (Some(_), _) => None,
        (None, Some(version)) => Some(version.to_owned()),
        (None, None) => is_version.then_some(own),
    };
    let files = paths.into_iter().map(|path| {
        let content = tree.read(&path).map_err(unreadable)?;
        Ok((within(prefix.as_deref(), &path), FileContent::new(content)))
    });
    Ok(Found {
        name,
        files: files.collect::<Result<_, CliError>>()?,
        version: newest.or(prefix),
    })
}

fn within(version: Option<&str>, path: &str) -> String {
    version.map_or_else(|| path.to_owned(), |version| format!("{version}/{path}"))
}

/// Returns the newest of the folders that are named like versions. Refuses files beside them,
/// because they would not be rendered.
fn newest_version(
    from: &Path,
    paths: &[String],
    requested: Option<&str>,
) -> Result<Option<String>, CliError> {
    let folder = |path: &String| path.split_once('/').map(|(folder, _)| folder.to_owned());
    let versions = paths.iter().filter_map(folder);
    let versions = versions.filter_map(|name| Some((semantic(&name)?, name)));
    let Some((_, newest)) = versions.max() else {
        return Ok(None);
    };
    let is_outside = |path: &&String| folder(path).is_none_or(|name| semantic(&name).is_none());
    if let Some(outside) = paths.iter().find(is_outside) {
        return Err(CliError::usage(format!(
            "{} has version folders such as {newest}, but {outside} is in none of them",
            from.display()
        ))
        .hint(format!(
            "move it into a version folder, or wrap only one version: --from {}",
            from.join(&newest).display()
        )));
    }
    if let Some(version) = requested {
        return Err(CliError::usage(format!(
            "{} has its own version folders, such as {newest}, so it cannot become version {version}",
            from.display()
        ))
        .hint("omit --version"));
    }
    Ok(Some(newest))
}

/// Finds the YAML files of a folder and reports other files that are skipped.
fn collect(
    ui: &mut Ui,
    tree: &dyn FileTree,
    folder: &str,
    paths: &mut Vec<String>,
) -> Result<(), CliError> {
    for entry in tree.list(folder).map_err(unreadable)? {
        let path = pleach_files::join(folder, &entry.name);
        let skip = entry.name.starts_with(['.', '_']);
        match entry.kind {
            _ if skip => ui.detail(format_args!(
                "{path} is not copied: its name starts with `.` or `_`"
            )),
            TreeKind::Folder => collect(ui, tree, &path, paths)?,
            TreeKind::File => {
                if let Some((name, command)) = FOREIGN.iter().find(|(name, _)| *name == entry.name)
                {
                    return Err(CliError::new(
                        Kind::Repository,
                        format!("{path}: {name} is not supported"),
                    )
                    .hint(format!("render it first, and wrap the result: {command}")));
                }
                if is_yaml(&entry.name) {
                    paths.push(path);
                } else {
                    ui.status(format_args!("{path} is not copied: it is not YAML"));
                }
            }
            TreeKind::Link | TreeKind::Submodule => {
                ui.status(format_args!("{path} is not copied: it is a link"));
            }
        }
    }
    Ok(())
}

fn is_yaml(name: &str) -> bool {
    let extension = Path::new(name).extension();
    extension.is_some_and(|extension| {
        ["yaml", "yml", "json"]
            .map(AsRef::as_ref)
            .contains(&extension)
    })
}

fn unreadable(error: TreeError) -> CliError {
    CliError::new(Kind::Failed, error)
}
