//! File format of a copy: gzip'd JSON lines. The first line is the [`Header`], each other line is an
//! object.

use std::io::{self, BufRead as _, BufReader, Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::certificates::Seed;

/// Version of the format.
pub const FORMAT: u32 = 1;

/// Maximum length in bytes of all objects of a copy, as JSON. In memory and in etcd they need several
/// times as much.
pub const MAX_BYTES: u64 = 512 << 20;

/// Maximum length of an unpacked dump, against decompression bombs: the objects, the header and line
/// breaks. A copy counts its objects only roughly.
const UNPACKED: u64 = MAX_BYTES + (64 << 20);

/// Maximum length of a dump file in bytes. Packed objects are not longer.
pub const MAX_FILE: u64 = UNPACKED;

/// Maximum size of a line in bytes. An object in etcd has at most 1.5 MiB.
const LINE: u64 = 16 << 20;

/// Facts about a copy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// Version of the format.
    pub format: u32,
    /// Id of the cluster.
    pub cluster: String,
    /// Version of its API server.
    pub kubernetes: String,
    /// Time of the copy, in RFC 3339.
    pub at: String,
    /// Environment of the target.
    pub environment: String,
    /// Release of the target; `None`: all releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// Revision of the repository.
    pub revision: String,
    /// Number of objects.
    pub objects: usize,
    /// User that read the objects. RBAC of the copy judges the same user.
    pub user: String,
    /// Groups of the user.
    pub groups: Vec<String>,
    /// Seed of the authority that the registrations of the copy trust.
    #[serde(default, skip_serializing_if = "Seed::is_empty")]
    pub authority: Seed,
    /// Kinds and objects that are not part of the copy.
    pub left_out: Vec<LeftOut>,
}

/// Part of the cluster that is not part of the copy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeftOut {
    /// Kind or object.
    pub what: String,
    /// Reason, in one line.
    pub why: String,
}

/// Redacted objects of a cluster, sorted by kind, namespace and name.
#[derive(Clone, PartialEq)]
pub struct Copy {
    /// Facts about the copy.
    pub header: Header,
    /// The objects, with apiVersion and kind.
    pub objects: Vec<Value>,
}

impl std::fmt::Debug for Copy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copy")
            .field("header", &self.header)
            .field("objects", &self.objects.len())
            .finish()
    }
}

/// Error of reading a dump.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The file cannot be unpacked or read.
    #[error("failed to unpack the dump")]
    Read(#[source] io::Error),
    /// A line is not valid JSON.
    #[error("line {line} of the dump is invalid")]
    Parse {
        /// Number of the line, from 1.
        line: usize,
        /// JSON error.
        #[source]
        source: serde_json::Error,
    },
    /// A line is longer than any object.
    #[error("line {line} of the dump has more than {LINE} bytes")]
    Long {
        /// Number of the line, from 1.
        line: usize,
    },
    /// The dump has more objects than a copy can have.
    #[error("the unpacked dump has more than {} MiB", UNPACKED >> 20)]
    Large,
    /// The dump is of another environment or release.
    #[error("it is a dump of {found}")]
    Other {
        /// Target of the dump.
        found: String,
    },
    /// A newer pleach wrote the dump.
    #[error(
        "the dump has format {format}, written by a newer pleach; this version reads format {FORMAT}"
    )]
    Newer {
        /// Format of the dump.
        format: u64,
    },
    /// The end of the file is missing.
    #[error("the dump has {found} objects, but its header says {expected}")]
    Incomplete {
        /// Number in the header.
        expected: usize,
        /// Number in the file.
        found: usize,
    },
}

/// Returns the position of an object in a dump: kind, namespace, name.
pub fn position(object: &Value) -> [String; 4] {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let version = text(&object["apiVersion"]);
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let metadata = &object["metadata"];
    [
        group.to_owned(),
        text(&object["kind"]),
        text(&metadata["namespace"]),
        text(&metadata["name"]),
    ]
}

impl Header {
    /// Verifies that the copy has the objects for a plan of an environment, or of one release of it.
    pub fn ensure_about(&self, environment: &str, release: Option<&str>) -> Result<(), DumpError> {
        if self.environment != environment {
            let found = format!("environment {}", self.environment);
            return Err(DumpError::Other { found });
        }
        match &self.release {
            Some(copied) if release != Some(copied) => Err(DumpError::Other {
                found: format!("release {copied} only"),
            }),
            _ => Ok(()),
        }
    }
}

impl Copy {
    /// Creates a copy, with its objects in order and counted.
    pub fn new(mut header: Header, mut objects: Vec<Value>) -> Self {
        objects.sort_by_cached_key(position);
        header.objects = objects.len();
        header.left_out.sort();
        Self { header, objects }
    }

    /// Writes the dump. Equal copies give equal bytes.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        let mut encoder = GzEncoder::new(out, Compression::default());
        serde_json::to_writer(&mut encoder, &self.header)?;
        for object in &self.objects {
            encoder.write_all(b"\n")?;
            serde_json::to_writer(&mut encoder, object)?;
        }
        encoder.write_all(b"\n")?;
        encoder.finish()?.flush()
    }

    /// Reads a dump.
    pub fn read(file: impl Read) -> Result<Self, DumpError> {
        Self::read_within(file, UNPACKED)
    }

    fn read_within(file: impl Read, limit: u64) -> Result<Self, DumpError> {
        let mut reader = BufReader::new(GzDecoder::new(file).take(limit));
        let mut number = 0;
        let mut total = 0;
        let mut buffer = Vec::new();
        let mut next = |buffer: &mut Vec<u8>| -> Result<Option<usize>, DumpError> {
            buffer.clear();
            number += 1;
            let mut line = (&mut reader).take(LINE);
            let length = line.read_until(b'\n', buffer).map_err(DumpError::Read)?;
            if length as u64 == LINE {
                return Err(DumpError::Long { line: number });
            }
            total += length as u64;
            if total >= limit {
                return Err(DumpError::Large);
            }
            Ok((length > 0).then_some(number))
        };
        if next(&mut buffer)?.is_none() {
            return Err(DumpError::Incomplete {
                expected: 1,
                found: 0,
            });
        }
        let parsed: Value = parse(&buffer, 1)?;
        let format = parsed["format"].as_u64().unwrap_or_default();
        if format > FORMAT.into() {
            return Err(DumpError::Newer { format });
        }
        let header: Header = serde_json::from_value(parsed)
            .map_err(|source| DumpError::Parse { line: 1, source })?;
        let mut objects = Vec::new();
        while let Some(line) = next(&mut buffer)? {
            objects.push(parse(&buffer, line)?);
        }
        if objects.len() != header.objects {
            return Err(DumpError::Incomplete {
                expected: header.objects,
                found: objects.len(),
            });
        }
        Ok(Self { header, objects })
    }
}

fn parse(line: &[u8], number: usize) -> Result<Value, DumpError> {
    serde_json::from_slice(line).map_err(|source| DumpError::Parse {
        line: number,
        source,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn copy() -> Copy {
        let object = |kind: &str, name: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
        let header = Header {
            format: FORMAT,
            cluster: "6f0c2d5e".to_owned(),
            ..Header::default()
        };
        Copy::new(
            header,
            vec![
                object("Secret", "a"),
                object("ConfigMap", "b"),
                object("ConfigMap", "a"),
            ],
        )
    }

    fn bytes(copy: &Copy) -> Vec<u8> {
        let mut bytes = Vec::new();
        copy.write(&mut bytes).unwrap();
        bytes
    }

    fn packed(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_dump_is_read_as_it_was_written() {
        let copy = copy();
        let names: Vec<[String; 4]> = copy.objects.iter().map(position).collect();
        assert!(names.is_sorted());
        let read = Copy::read(bytes(&copy).as_slice()).unwrap();
        assert_eq!(read, copy);
        assert_eq!(bytes(&read), bytes(&copy));
    }

    #[test]
    fn a_newer_format_is_refused_by_its_number() {
        let error = Copy::read(packed("{\"format\": 2, \"other\": 1}\n").as_slice()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the dump has format 2, written by a newer pleach; this version reads format 1"
        );
    }

    #[test]
    fn a_dump_is_bounded_in_bytes() {
        let bytes = bytes(&copy());
        let mut text = Vec::new();
        GzDecoder::new(bytes.as_slice())
            .read_to_end(&mut text)
            .unwrap();
        let length = text.len() as u64;
        Copy::read_within(bytes.as_slice(), length + 1).unwrap();
        for limit in [length, length - 1, 10] {
            let error = Copy::read_within(bytes.as_slice(), limit).unwrap_err();
            assert!(matches!(error, DumpError::Large), "{limit}: {error}");
        }
        // The error is clear in spite of the high limit.
        let error = DumpError::Large.to_string();
        assert_eq!(error, "the unpacked dump has more than 576 MiB");
    }

    #[test]
    fn a_dump_of_another_target_is_refused() {
        let header = |release: Option<&str>| Header {
            environment: "production".to_owned(),
            release: release.map(str::to_owned),
            ..Header::default()
        };
        for (copied, environment, release, expected) in [
            (None, "production", None, None),
            (None, "production", Some("web"), None),
            (Some("web"), "production", Some("web"), None),
            (
                None,
                "staging",
                None,
                Some("it is a dump of environment production"),
            ),
            (
                Some("web"),
                "staging",
                Some("web"),
                Some("it is a dump of environment production"),
            ),
            (
                Some("web"),
                "production",
                None,
                Some("it is a dump of release web only"),
            ),
            (
                Some("web"),
                "production",
                Some("db"),
                Some("it is a dump of release web only"),
            ),
        ] {
            let found = header(copied).ensure_about(environment, release);
            let found = found.err().map(|error| error.to_string());
            assert_eq!(
                found.as_deref(),
                expected,
                "{copied:?} {environment}/{release:?}"
            );
        }
    }

    #[test]
    fn broken_dumps_are_refused() {
        let mut missing = copy();
        missing.objects.pop();
        let whole = bytes(&copy());
        let cases: [(&str, Vec<u8>, &str); 6] = [
            ("empty", packed(""), "0 objects"),
            ("text", b"{\"format\": 1}".to_vec(), "failed to unpack"),
            (
                "cut",
                whole[..whole.len() - 12].to_vec(),
                "failed to unpack",
            ),
            ("header", packed("[]\n"), "line 1"),
            (
                "an object less",
                bytes(&missing),
                "2 objects, but its header says 3",
            ),
            (
                "long",
                packed(&"x".repeat(17 << 20)),
                "line 1 of the dump has more than",
            ),
        ];
        for (case, file, expected) in cases {
            let error = Copy::read(file.as_slice()).unwrap_err().to_string();
            assert!(error.contains(expected), "{case}: {error}");
        }
    }
}
