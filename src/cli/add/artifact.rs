//! Artifacts of registries as versions of a bundle.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use pleach_formats::file::UnpackedArtifact;
use pleach_formats::versions::semantic;
use pleach_model::object::yaml;
use pleach_model::oci::{OciRepository, OciVersion, SCHEME, parse_reference};
use pleach_model::tree::FileTree;
use pleach_oci::pull::pull;
use pleach_oci::registry::Registry;
use pleach_oci::verify::PublicKeys;
use pleach_render::package::folder_digest;

use super::super::error::{CliError, Kind};
use super::super::init::wrap::{Wrapped, check_names, select};
use super::super::registry::RegistryArgs;
use super::super::ui::Ui;
use super::super::vendor::VERSION_FILE;
use pleach_files::FileContent;

/// Time-out of all requests to a registry together.
const DOWNLOADING: Duration = Duration::from_mins(5);
/// Start of a `version.yaml` for an artifact that has none.
const NEW: &str = "apiVersion: pleach.dev/v1alpha1\nkind: BundleVersion\n";
/// File of a whole repository.
const REPOSITORY_FILE: &str = "pleach.yaml";

/// Access to artifacts.
#[derive(Debug, clap::Args)]
pub(super) struct ArtifactArgs {
    /// File with public keys of cosign; one of them must have signed the artifact
    #[arg(long, value_name = "FILE")]
    cosign_keys: Option<PathBuf>,

    #[command(flatten)]
    access: RegistryArgs,
}

/// Address of an artifact.
pub(super) struct Address {
    repository: OciRepository,
    version: OciVersion,
}

/// Returns the address of an artifact. `None` for a file or folder.
pub(super) fn address(from: &Path, args: &ArtifactArgs) -> Result<Option<Address>, CliError> {
    match from.to_str().filter(|from| from.starts_with(SCHEME)) {
        Some(from) => {
            let parsed = parse_reference(from);
            let (repository, version) =
                parsed.map_err(|error| CliError::usage(error.to_string()))?;
            Ok(Some(Address {
                repository,
                version,
            }))
        }
        None if args.cosign_keys.is_some() => {
            let message = "--cosign-keys is for an artifact: --from oci://HOST/REPOSITORY:TAG";
            Err(CliError::usage(message))
        }
        None => Ok(None),
    }
}

impl Address {
    /// Returns the version of the bundle: the requested one, or the tag.
    fn version<'a>(&'a self, requested: Option<&'a str>) -> Result<&'a str, CliError> {
        match (requested, &self.version) {
            (Some(version), _) => Ok(version),
            (None, OciVersion::Tag(tag)) if semantic(tag).is_some() => Ok(tag),
            (None, _) => {
                let message = "the files of an artifact become a version of the bundle";
                Err(CliError::usage(message).hint("name it, for example --version v1.0.0"))
            }
        }
    }

    /// Downloads the artifact, and returns its files as a version of a bundle. Writes nothing.
    pub(super) async fn wrap(
        &self,
        ui: &mut Ui,
        name: &str,
        requested: Option<&str>,
        tree: &dyn FileTree,
        args: &ArtifactArgs,
    ) -> Result<Wrapped, CliError> {
        let version = self.version(requested)?;
        check_names(Some(name), Some(version))?;
        let folder = format!("manifests/{name}/{version}");
        if tree.list(&folder).is_ok_and(|entries| !entries.is_empty()) {
            let message = format!("{folder} exists already");
            let hint = "an artifact becomes a new folder; choose another version";
            return Err(CliError::new(Kind::Failed, message).hint(hint));
        }
        let keys = args.cosign_keys.as_deref().map(read_keys).transpose()?;
        let access = args.access.access(&self.repository)?;
        let registry = Registry::connect(&self.repository, &access, DOWNLOADING)?;
        let digest = match &self.version {
            OciVersion::Digest(digest) => digest.clone(),
            OciVersion::Tag(tag) => registry.resolve(tag).await?,
        };
        let artifact = pull(&registry, &digest, keys.as_ref()).await?;
        let place = format!("{}@{digest}", self.repository);
        let signature = match &args.cosign_keys {
            Some(file) => format!("  signature ok (cosign, {})", file.display()),
            None => String::new(),
        };
        ui.status(format_args!("{place}{signature}"));
        let files = files(ui, artifact.files, &place)?;
        let own = files.get(VERSION_FILE).map_or(NEW.as_bytes(), |own| own);
        let recorded = UnpackedArtifact {
            from: self.repository.to_string(),
            digest,
            files: folder_digest(&without_own(&files)),
        };
        let own = with_origin(own, &recorded, &place)?;
        let at = |path: &str| format!("{folder}/{path}");
        let mut wrapped: pleach_files::Files = files
            .iter()
            .map(|(path, content)| (at(path), FileContent::new(content.clone())))
            .collect();
        wrapped.insert(at(VERSION_FILE), FileContent::new(own));
        Ok(Wrapped {
            name: name.to_owned(),
            version: Some(version.to_owned()),
            files: wrapped,
        })
    }
}

fn read_keys(file: &Path) -> Result<PublicKeys, CliError> {
    PublicKeys::read(&pleach_files::read(file)?)
        .map_err(|error| CliError::new(Kind::Failed, format!("{}: {error}", file.display())))
}

/// Returns the files of the artifact that a version has: all, if it is a version of a bundle
/// already, else those that a folder of YAML would have.
fn files(
    ui: &mut Ui,
    mut files: BTreeMap<String, Bytes>,
    place: &str,
) -> Result<BTreeMap<String, Bytes>, CliError> {
    if files.contains_key(REPOSITORY_FILE) {
        let message = format!("{place} is a whole repository, not a bundle");
        let hint = "a controller follows it: docs/guides/oci-artifacts.md";
        return Err(CliError::new(Kind::Failed, message).hint(hint));
    }
    if files.contains_key(VERSION_FILE) {
        files.retain(|path, _| !path.split('/').any(|part| part.starts_with('.')));
        return Ok(files);
    }
    let selected = select(ui, &files)?;
    files.retain(|path, _| selected.contains(path));
    if files.is_empty() {
        return Err(CliError::new(
            Kind::Failed,
            format!("{place} has no YAML files"),
        ));
    }
    Ok(files)
}

fn without_own(files: &BTreeMap<String, Bytes>) -> BTreeMap<String, Bytes> {
    let mut files = files.clone();
    files.remove(VERSION_FILE);
    files
}

/// Sets the origin in the text of a `version.yaml`.
fn with_origin(text: &[u8], recorded: &UnpackedArtifact, place: &str) -> Result<String, CliError> {
    let refuse = |why: &str| {
        let message = format!("{VERSION_FILE} of {place} {why}");
        CliError::new(Kind::Failed, message)
    };
    let text = str::from_utf8(text).map_err(|_| refuse("is not UTF-8"))?;
    let documents = yaml::parse_documents(text).map_err(|_| refuse("is not YAML"))?;
    let kind = documents.first().map(|document| &document.value["kind"]);
    if kind.and_then(|kind| kind.as_str()) != Some("BundleVersion") {
        return Err(refuse("is not of the kind BundleVersion"));
    }
    pleach_config::with_artifact(VERSION_FILE, text, recorded)
        .map_err(|error| CliError::new(Kind::Failed, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_artifact_needs_a_version() {
        let address = |version| Address {
            repository: OciRepository::parse("oci://a/b").unwrap(),
            version,
        };
        let tag = |tag: &str| address(OciVersion::Tag(tag.to_owned()));
        assert_eq!(tag("v1.2.0").version(None).unwrap(), "v1.2.0");
        assert_eq!(tag("v1.2.0").version(Some("v2.0.0")).unwrap(), "v2.0.0");
        assert!(tag("production").version(None).is_err());
        assert!(
            address(OciVersion::Digest("sha256:1".to_owned()))
                .version(None)
                .is_err()
        );
    }
}
