//! Bundle of the controller that is released with the program.

/// Folder of the bundle.
pub(super) const FOLDER: &str = "manifests/pleach";

/// A file as path within the repository and content.
type File = (&'static str, &'static str);

/// Released bundle of one version.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bundle {
    /// Version, such as `v0.1.0`.
    pub(super) version: &'static str,
    /// Declaration of the bundle, with the defaults of all versions.
    pub(super) declaration: File,
    /// Macros that its templates import.
    pub(super) macros: File,
    /// Files of the version.
    pub(super) files: &'static [File],
}

/// Embeds files of the version folder that has the version of the program.
macro_rules! files {
    ($($name:literal),+) => {
        &[$((
            concat!("manifests/pleach/v", env!("CARGO_PKG_VERSION"), "/", $name),
            include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/manifests/pleach/v",
                env!("CARGO_PKG_VERSION"),
                "/",
                $name
            )),
        )),+]
    };
}

/// Bundle of this program.
pub(super) const EMBEDDED: Bundle = Bundle {
    version: concat!("v", env!("CARGO_PKG_VERSION")),
    declaration: (
        "manifests/pleach/bundle.yaml",
        include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/manifests/pleach/bundle.yaml"
        )),
    ),
    macros: (
        "templates/labels.j2",
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/templates/labels.j2")),
    ),
    files: files![
        "account.yaml.j2",
        "accounts.yaml.j2",
        "cluster.yaml.j2",
        "deploys.yaml.j2",
        "itself.yaml.j2",
        "kubeconfigs.yaml.j2",
        "loop.yaml.j2",
        "monitoring.yaml.j2",
        "namespaced.yaml.j2",
        "ui.yaml.j2"
    ],
};

/// Image of this release with its digest. `None`: this build belongs to no published image.
pub(super) const RELEASED_IMAGE: Option<&str> = option_env!("PLEACH_RELEASED_IMAGE");

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_file_of_the_version_is_embedded() {
        let folder = format!("{FOLDER}/{}", EMBEDDED.version);
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let there = pleach_files::files_below(&root.join(&folder)).unwrap();
        let there: Vec<String> = there
            .iter()
            .map(|name| format!("{folder}/{name}"))
            .collect();
        let embedded: Vec<&str> = EMBEDDED.files.iter().map(|(path, _)| *path).collect();
        assert_eq!(embedded, there);
    }
}
