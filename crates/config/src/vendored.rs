//! Charts of a bundle, for `pleach vendor`.

use crate::bundle;
use crate::edit::{self, EditError, Step, Written};
use crate::values::ValuesFiles;
use pleach_formats::file::{Chart, UnpackedArtifact};
use pleach_model::finding::Finding;
use pleach_model::object::{Located, Origin};
use pleach_model::tree::FileTree;
use serde_json::json;

/// Charts of a bundle, or of one of its versions.
#[derive(Debug, Clone)]
pub struct BundleCharts {
    /// Folder that their paths are relative to.
    pub folder: String,
    /// The charts, in the order of the file.
    pub charts: Vec<Located<Chart>>,
    /// Artifact that the files of the folder come from.
    pub artifact: Option<Located<UnpackedArtifact>>,
}

/// Reads the charts of a bundle: those of a version, or of the newest one.
///
/// Fails with every error found.
pub fn charts_of(
    tree: &dyn FileTree,
    name: &str,
    version: Option<&str>,
) -> Result<BundleCharts, Vec<Finding>> {
    let mut findings = Vec::new();
    let place = Origin::new(format!("manifests/{name}"), 0);
    let found = bundle::find(tree, name, &place, &mut findings);
    let source = found.and_then(|found| {
        let newest = found.versions.last().cloned();
        let version = version.map(str::to_owned).or(newest);
        let mut files = ValuesFiles::new(tree);
        found.version(tree, version.as_deref(), &place, &mut files, &mut findings)
    });
    let errors: Vec<Finding> = findings.into_iter().filter(Finding::is_error).collect();
    let source = source.ok_or(errors)?;
    Ok(BundleCharts {
        folder: source.folder,
        charts: source.body.charts.unwrap_or_default(),
        artifact: source.body.artifact,
    })
}

/// Sets the artifact that the files of a version come from, in the text of its `version.yaml`.
pub fn with_artifact(
    file: &str,
    text: &str,
    artifact: &UnpackedArtifact,
) -> Result<String, EditError> {
    let UnpackedArtifact {
        from,
        digest,
        files,
    } = artifact;
    let written = Written {
        value: json!({ "from": from, "digest": digest, "files": files }),
        text: Some(format!(
            "{{from: \"{from}\", digest: \"{digest}\", files: \"{files}\"}}"
        )),
    };
    edit::set(file, text, &[Step::from("artifact")], &written)
}

/// Sets the digest of a chart in the text of its file.
pub fn with_digest(
    file: &str,
    text: &str,
    index: usize,
    digest: &str,
) -> Result<String, EditError> {
    let path = [Step::from("charts"), index.into(), "digest".into()];
    edit::set(file, text, &path, &Written::in_one_line(digest.into()))
}

#[cfg(test)]
mod tests {
    use pleach_model::tree::MemoryTree;

    use super::*;

    #[test]
    fn the_charts_of_the_newest_version_are_read_without_their_files() {
        let header = "apiVersion: pleach.dev/v1alpha1\nkind";
        let version =
            |from: &str| format!("{header}: BundleVersion\ncharts: [{{path: {from}.tgz}}]\n");
        let tree = MemoryTree::new([
            ("manifests/web/bundle.yaml", format!("{header}: Bundle\n")),
            ("manifests/web/v1.9.0/version.yaml", version("old")),
            ("manifests/web/v1.10.0/version.yaml", version("new")),
        ]);
        for (version, expected) in [(None, "new.tgz"), (Some("v1.9.0"), "old.tgz")] {
            let found = charts_of(&tree, "web", version).unwrap();
            assert_eq!(found.charts[0].path, expected);
        }
        assert!(charts_of(&tree, "web", Some("v2.0.0")).is_err());
        assert!(charts_of(&tree, "none", None).is_err());
    }

    #[test]
    fn the_artifact_of_a_version_is_recorded() {
        let mut artifact = UnpackedArtifact {
            from: "oci://registry.example.org/web".to_owned(),
            digest: "sha256:1".to_owned(),
            files: "sha256:2".to_owned(),
        };
        let header = "apiVersion: pleach.dev/v1alpha1\nkind: BundleVersion\n";
        let text = format!("{header}description: a # ours\n");
        let once = with_artifact("v.yaml", &text, &artifact).unwrap();
        let expected = format!(
            "{text}artifact: {{from: \"oci://registry.example.org/web\", digest: \"sha256:1\", files: \"sha256:2\"}}\n"
        );
        assert_eq!(once, expected);
        artifact.digest = "sha256:3".to_owned();
        assert_eq!(
            with_artifact("v.yaml", &once, &artifact).unwrap(),
            expected.replace("sha256:1", "sha256:3")
        );
        let tree = MemoryTree::new([
            (
                "manifests/web/bundle.yaml",
                header.replace("BundleVersion", "Bundle"),
            ),
            ("manifests/web/v1.0.0/version.yaml", once),
            ("manifests/web/v1.0.0/a.yaml", String::new()),
        ]);
        let found = charts_of(&tree, "web", None).unwrap();
        assert_eq!(found.artifact.unwrap().files, "sha256:2");
        let before = charts_of(
            &MemoryTree::new([(
                "manifests/web/bundle.yaml",
                header.replace("BundleVersion", "Bundle"),
            )]),
            "web",
            None,
        );
        assert!(before.unwrap().artifact.is_none());
    }

    #[test]
    fn a_digest_is_set_without_other_changes() {
        let text = "charts:\n  - name: a   # first\n    path: a.tgz\n  - path: b.tgz\n    digest: sha256:1 # old\n";
        let once = with_digest("v.yaml", text, 0, "sha256:2").unwrap();
        assert_eq!(
            with_digest("v.yaml", &once, 1, "sha256:3").unwrap(),
            "charts:\n  - name: a   # first\n    path: a.tgz\n    digest: sha256:2\n  - path: b.tgz\n    digest: sha256:3 # old\n"
        );
    }
}
