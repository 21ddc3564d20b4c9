//! A repository around YAML that is there already.

use std::path::Path;

use pleach_domain::repo::{FileTree as _, TreeError, TreeKind, semantic};

use super::{Files, fill, label};
use crate::cli::error::{CliError, Kind};
use crate::cli::ui::Ui;
use crate::io::files::{self, FileContent, WorkingTree};

/// Files that other tools render, and how to have them rendered.
const FOREIGN: [(&str, &str); 4] = [
    ("kustomization.yaml", "kustomize build DIR > app.yaml"),
    ("kustomization.yml", "kustomize build DIR > app.yaml"),
    ("Kustomization", "kustomize build DIR > app.yaml"),
    ("Chart.yaml", "helm template NAME DIR > app.yaml"),
];

/// Collects the files of the repository around `from`.
pub(super) fn files(ui: &mut Ui, id: &str, from: &Path) -> Result<Files, CliError> {
    let from = files::canonical(from)?;
    let is_folder = files::is_folder(&from)?;
    let name = if is_folder {
        from.file_name()
    } else {
        from.file_stem()
    };
    let name = name.unwrap_or_default().to_string_lossy();
    let Some(name) = label(&name) else {
        return Err(CliError::usage(format!(
            "{} has no name that a bundle could have",
            from.display()
        ))
        .hint("rename it: letters, digits and `-`"));
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
            "{} holds no YAML files",
            from.display()
        )));
    }
    refuse_versions(&from, &paths)?;
    let mut wrapped = Files::new();
    let names = [("id", id), ("name", name.as_str())];
    for (path, text) in [
        (
            "pleach.yaml".to_owned(),
            include_str!("starter/pleach.yaml"),
        ),
        (
            "environments/dev.yaml".to_owned(),
            include_str!("starter/from-dev.yaml"),
        ),
        (
            format!("manifests/{name}/bundle.yaml"),
            include_str!("starter/from-bundle.yaml"),
        ),
    ] {
        wrapped.insert(path, FileContent::new(fill(text, &names)));
    }
    for path in paths {
        let content = tree.read(&path).map_err(unreadable)?;
        let target = format!("manifests/{name}/{path}");
        if wrapped.insert(target, FileContent::new(content)).is_some() {
            return Err(CliError::usage(format!(
                "a bundle has a {path} of its own; rename that of {}",
                from.display()
            )));
        }
    }
    Ok(wrapped)
}

/// Refuses folders that are called as a version: they would make versions of the
/// bundle, and what lies beside them would not be rendered.
fn refuse_versions(from: &Path, paths: &[String]) -> Result<(), CliError> {
    let mut folders = paths
        .iter()
        .filter_map(|path| Some(path.split_once('/')?.0));
    let Some(version) = folders.find(|name| semantic(name).is_some()) else {
        return Ok(());
    };
    Err(CliError::usage(format!(
        "{} has a folder {version}, which a bundle takes for one of its versions",
        from.display()
    ))
    .hint(format!(
        "rename it, or wrap only what is in it: --from {}",
        from.join(version).display()
    )))
}

/// Finds the YAML files of a folder, and says which other files stay behind.
fn collect(
    ui: &mut Ui,
    tree: &WorkingTree,
    folder: &str,
    paths: &mut Vec<String>,
) -> Result<(), CliError> {
    for entry in tree.list(folder).map_err(unreadable)? {
        let path = files::join(folder, &entry.name);
        let skip = entry.name.starts_with(['.', '_']);
        match entry.kind {
            _ if skip => ui.detail(format_args!("{path} is not copied: its name is hidden")),
            TreeKind::Folder => collect(ui, tree, &path, paths)?,
            TreeKind::File => {
                if let Some((name, command)) = FOREIGN.iter().find(|(name, _)| *name == entry.name)
                {
                    return Err(CliError::new(
                        Kind::Repository,
                        format!("{path}: pleach does not understand {name}"),
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
