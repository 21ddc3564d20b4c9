//! Format of artifacts: a manifest with one layer, which is a compressed archive of files.

use std::collections::BTreeMap;
use std::io::{self, Write as _};

use bytes::Bytes;
use flate2::{Compression, GzBuilder};
use jiff::Timestamp;
use pleach_model::archive::{self, ArchiveError, Budget};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{OciError, digest_of};

/// Media type of a manifest.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of an index of manifests.
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// Media type of the configuration of a Flux artifact.
pub const CONFIG: &str = "application/vnd.cncf.flux.config.v1+json";
/// Media type of the files of a Flux artifact.
pub const CONTENT: &str = "application/vnd.cncf.flux.content.v1.tar+gzip";
/// Media type of the files of other artifacts.
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// Annotation with the URL of the git repository.
const SOURCE: &str = "org.opencontainers.image.source";
/// Annotation with the revision, such as a commit id.
const REVISION: &str = "org.opencontainers.image.revision";
/// Annotation with the time of the revision.
const CREATED: &str = "org.opencontainers.image.created";
/// Maximum length of an annotation that is shown, in characters.
const LONGEST_ANNOTATION: usize = 500;

/// Reference from a manifest to content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// Media type.
    pub media_type: String,
    /// Digest.
    pub digest: String,
    /// Size in bytes.
    pub size: u64,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// Manifest of an artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Version of the format: 2.
    pub schema_version: u32,
    /// Media type of the manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// Configuration.
    pub config: Descriptor,
    /// Layers.
    pub layers: Vec<Descriptor>,
    /// Manifest that this one refers to, for example of a signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Descriptor>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// Index of manifests.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Index {
    #[serde(default)]
    pub(crate) manifests: Vec<Descriptor>,
}

/// Origin of an artifact, from its annotations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// URL of the git repository.
    pub source: Option<String>,
    /// Revision, such as a commit id. Flux writes `main@sha1:3c1f0aa…`.
    pub revision: Option<String>,
    /// Time of the revision.
    pub created: Option<Timestamp>,
}

/// Artifact before it is uploaded.
#[derive(Debug, Clone)]
pub struct Package {
    /// Configuration.
    pub(crate) config: Bytes,
    /// Compressed archive of the files.
    pub(crate) layer: Bytes,
    /// Manifest.
    pub(crate) manifest: Bytes,
}

impl Package {
    /// Packs files. Equal files and origins give equal bytes.
    pub fn new(files: &BTreeMap<String, Bytes>, origin: &Origin) -> io::Result<Self> {
        let mut tar = Vec::new();
        archive::write(files, &mut tar)?;
        let mut gzip = GzBuilder::new().write(Vec::new(), Compression::best());
        gzip.write_all(&tar)?;
        let layer = Bytes::from(gzip.finish()?);
        let created = origin.created.map(|created| created.to_string());
        // Tools for images read the configuration, too.
        let config = json!({
            "architecture": "",
            "config": {},
            "created": created,
            "os": "",
            "rootfs": {"type": "layers", "diff_ids": [digest_of(&tar)]},
        });
        let config = Bytes::from(config.to_string());
        let annotations = [
            (SOURCE, origin.source.clone()),
            (REVISION, origin.revision.clone()),
            (CREATED, created),
        ];
        let annotations = annotations
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let manifest = Manifest {
            schema_version: 2,
            media_type: Some(MANIFEST.to_owned()),
            config: descriptor(CONFIG, &config),
            layers: vec![descriptor(CONTENT, &layer)],
            subject: None,
            annotations: annotations.collect(),
        };
        Ok(Self {
            config,
            layer,
            manifest: serde_json::to_vec(&manifest)?.into(),
        })
    }

    /// Returns the digest of the artifact.
    pub fn digest(&self) -> String {
        digest_of(&self.manifest)
    }

    /// Returns the size of the compressed files, in bytes.
    pub fn size(&self) -> usize {
        self.layer.len()
    }
}

fn descriptor(media_type: &str, content: &[u8]) -> Descriptor {
    Descriptor {
        media_type: media_type.to_owned(),
        digest: digest_of(content),
        size: content.len() as u64,
        annotations: BTreeMap::new(),
    }
}

impl Manifest {
    /// Parses a manifest. `what` names the artifact in errors.
    pub(crate) fn parse(content: &[u8], what: &str) -> Result<Self, OciError> {
        let invalid = |why: String| OciError::Format {
            what: what.to_owned(),
            why,
        };
        let manifest: Self = serde_json::from_slice(content).map_err(|error| {
            // An index has no configuration.
            match serde_json::from_slice(content) {
                Ok(Index { manifests }) if !manifests.is_empty() => {
                    invalid("is an index of several manifests, not an artifact".to_owned())
                }
                // The text of the error can quote foreign text of any length.
                _ => invalid(format!(
                    "has an invalid manifest: line {}, column {}",
                    error.line(),
                    error.column()
                )),
            }
        })?;
        Ok(manifest)
    }

    /// Returns the layer with the files.
    pub(crate) fn content(&self, what: &str) -> Result<&Descriptor, OciError> {
        self.layer([CONTENT, LAYER], what)
    }

    /// Returns the only layer of one of the types. `what` names the artifact in errors.
    pub(crate) fn layer(&self, types: [&str; 2], what: &str) -> Result<&Descriptor, OciError> {
        let is_content = |layer: &&Descriptor| types.contains(&&*layer.media_type);
        let mut layers = self.layers.iter().filter(is_content);
        match (layers.next(), layers.next()) {
            (Some(layer), None) => Ok(layer),
            (first, _) => Err(OciError::Format {
                what: what.to_owned(),
                why: match first {
                    None => format!(
                        "has no layer of files: expected one of the type {}",
                        types.join(" or ")
                    ),
                    Some(_) => "has several layers of files: expected one".to_owned(),
                },
            }),
        }
    }

    /// Returns the origin. The annotations are foreign text, so they are shortened to one line.
    pub(crate) fn origin(&self) -> Origin {
        let text = |name: &str| {
            let text = self.annotations.get(name)?;
            let text = text.chars().filter(|char| !char.is_control());
            Some(text.take(LONGEST_ANNOTATION).collect::<String>())
        };
        Origin {
            source: text(SOURCE),
            revision: text(REVISION),
            created: text(CREATED).and_then(|created| created.parse().ok()),
        }
    }
}

/// Unpacks the files of a layer.
pub(crate) fn unpack(layer: &[u8]) -> Result<BTreeMap<String, Bytes>, ArchiveError> {
    let files = Budget::default().unpack(layer, within)?;
    for path in files.keys() {
        let folders = path.match_indices('/').map(|(end, _)| &path[..end]);
        if let Some(folder) = folders
            .into_iter()
            .find(|folder| files.contains_key(*folder))
        {
            return Err(ArchiveError::entry(folder, "is a file and a folder"));
        }
    }
    Ok(files)
}

/// Returns a path within the artifact. Names of git's own files are refused, as git does.
fn within(name: &str) -> Result<String, &'static str> {
    let name = name.strip_prefix("./").unwrap_or(name);
    let is_outside = |part: &str| matches!(part, "" | "." | "..") || part.contains(['\\', ':']);
    if name.split('/').any(is_outside) {
        return Err("is not a path within the artifact");
    }
    if name
        .split('/')
        .any(|part| part.eq_ignore_ascii_case(".git"))
    {
        return Err("is a name that git uses itself");
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use tar::{Builder, EntryType, Header};

    use super::*;

    fn files(files: &[(&str, &str)]) -> BTreeMap<String, Bytes> {
        let files = files.iter();
        files
            .map(|(path, text)| ((*path).to_owned(), Bytes::from((*text).to_owned())))
            .collect()
    }

    fn origin() -> Origin {
        Origin {
            source: Some("https://git.example.org/fleet".to_owned()),
            revision: Some("main@sha1:3c1f0aa".to_owned()),
            created: Some("2026-01-02T03:04:05Z".parse().unwrap()),
        }
    }

    #[test]
    fn equal_files_give_an_equal_digest() {
        let files = files(&[("pleach.yaml", "a: b\n"), ("manifests/web/v1/a.yaml", "")]);
        let package = Package::new(&files, &origin()).unwrap();
        assert_eq!(
            package.digest(),
            Package::new(&files, &origin()).unwrap().digest()
        );
        let manifest = Manifest::parse(&package.manifest, "it").unwrap();
        assert_eq!(manifest.origin(), origin());
        assert_eq!(manifest.config.media_type, CONFIG);
        let layer = manifest.content("it").unwrap();
        assert_eq!(layer.digest, digest_of(&package.layer));
        assert_eq!(unpack(&package.layer).unwrap(), files);
        let later = Origin {
            created: Some("2026-01-02T03:04:06Z".parse().unwrap()),
            ..origin()
        };
        let later = Package::new(&files, &later).unwrap();
        assert_ne!(later.digest(), package.digest());
        assert_eq!(later.layer, package.layer);
    }

    #[test]
    fn manifests_that_are_no_artifact_are_refused() {
        let layer =
            |kind: &str| format!(r#"{{"mediaType":"{kind}","digest":"sha256:00","size":1}}"#);
        let manifest = |layers: &[String]| {
            format!(
                r#"{{"schemaVersion":2,"config":{},"layers":[{}]}}"#,
                layer(CONFIG),
                layers.join(",")
            )
        };
        for (text, expected) in [
            (manifest(&[layer(CONTENT)]), None),
            (
                manifest(&[layer("application/x-readme"), layer(LAYER)]),
                None,
            ),
            (manifest(&[]), Some("it has no layer of files")),
            (
                manifest(&[layer(CONTENT), layer(LAYER)]),
                Some("it has several layers of files"),
            ),
            (
                format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, layer(MANIFEST)),
                Some("it is an index of several manifests"),
            ),
            ("{}".to_owned(), Some("it has an invalid manifest")),
        ] {
            let found = Manifest::parse(text.as_bytes(), "it");
            let found = found.and_then(|manifest| Ok(manifest.content("it")?.clone()));
            let error = found.err().map(|error| error.to_string());
            match (&error, expected) {
                (None, None) => {}
                (Some(error), Some(expected)) if error.starts_with(expected) => {}
                _ => panic!("{text}: {error:?}"),
            }
        }
    }

    fn layer(entries: &[(&str, EntryType)]) -> Vec<u8> {
        let mut archive = Builder::new(Vec::new());
        for (name, kind) in entries {
            let mut header = Header::new_gnu();
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_size(0);
            header.set_cksum();
            archive.append(&header, io::empty()).unwrap();
        }
        let mut gzip = GzBuilder::new().write(Vec::new(), Compression::fast());
        gzip.write_all(&archive.into_inner().unwrap()).unwrap();
        gzip.finish().unwrap()
    }

    #[test]
    fn names_in_messages_are_short() {
        let name = format!("/{}", "\u{1b}a".repeat(40));
        let error = unpack(&layer(&[(&*name, EntryType::Regular)])).unwrap_err();
        let expected = format!("`/{}` is not a path within the artifact", "a".repeat(40));
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn paths_stay_within_the_artifact() {
        let file = EntryType::Regular;
        let sound = layer(&[("./", EntryType::Directory), ("./a", file), ("b/c", file)]);
        assert_eq!(unpack(&sound).unwrap(), files(&[("a", ""), ("b/c", "")]));
        for (name, entries, expected) in [
            (
                "outside",
                vec![("../a", file)],
                "`../a` is not a path within the artifact",
            ),
            (
                "within",
                vec![("a/../../b", file)],
                "`a/../../b` is not a path within the artifact",
            ),
            (
                "absolute",
                vec![("/etc/passwd", file)],
                "is not a path within the artifact",
            ),
            (
                "a drive",
                vec![("c:/a", file)],
                "is not a path within the artifact",
            ),
            (
                "of git",
                vec![(".GIT/config", file)],
                "is a name that git uses itself",
            ),
            (
                "a link",
                vec![("a", EntryType::Symlink)],
                "`a` is neither a file nor a folder",
            ),
            (
                "a hard link",
                vec![("a", EntryType::Link)],
                "`a` is neither a file nor a folder",
            ),
            (
                "a device",
                vec![("a", EntryType::Char)],
                "`a` is neither a file nor a folder",
            ),
            (
                "a pipe",
                vec![("a", EntryType::Fifo)],
                "`a` is neither a file nor a folder",
            ),
            (
                "twice",
                vec![("a", file), ("./a", file)],
                "`./a` is there twice",
            ),
            (
                "both",
                vec![("a/b", file), ("a", file)],
                "`a` is a file and a folder",
            ),
        ] {
            let error = unpack(&layer(&entries)).unwrap_err().to_string();
            assert!(error.contains(expected), "{name}: {error}");
        }
    }
}
