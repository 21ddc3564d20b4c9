//! Inventory stored as gzip shards, each of which fits into a ConfigMap.

use std::io::{Read as _, Write as _};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::{Entry, Inventory};
use pleach_model::object::{Digest, ObjectId};

/// Maximum compressed size of a shard in bytes. An object in etcd can have 1.5 MiB.
pub const SHARD_LIMIT: usize = 512 * 1024;

/// Maximum unpacked size of a shard in bytes, against decompression bombs.
const UNPACKED_LIMIT: u64 = 64 * 1024 * 1024;

/// Version of the shard format.
const FORMAT: u32 = 2;

/// One shard of an inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Index of the shard, from 0.
    pub index: usize,
    /// Digest of the bytes, and part of the shard's name.
    pub digest: Digest,
    /// JSON compressed with gzip. Equal entries give equal bytes.
    pub bytes: Vec<u8>,
}

/// Error from reading a shard. The view of the inventory is then incomplete (I1).
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    /// The bytes do not match the digest in the record.
    #[error("inventory shard {index} does not have the recorded digest")]
    Digest {
        /// Index of the shard.
        index: usize,
    },
    /// The content cannot be unpacked.
    #[error("failed to unpack inventory shard {index}")]
    Unpack {
        /// Index of the shard.
        index: usize,
        /// I/O error.
        #[source]
        source: std::io::Error,
    },
    /// The content is not a shard.
    #[error("failed to parse inventory shard {index}")]
    Parse {
        /// Index of the shard.
        index: usize,
        /// JSON error.
        #[source]
        source: serde_json::Error,
    },
    /// A newer pleach wrote the shard.
    #[error("inventory shard {index} has format {format}; this version reads up to {FORMAT}")]
    Newer {
        /// Index of the shard.
        index: usize,
        /// Format of the shard.
        format: u32,
    },
}

#[derive(Serialize, Deserialize)]
struct Content {
    format: u32,
    entries: Vec<(ObjectId, Entry)>,
}

/// Splits an inventory into shards. An id belongs to shard `hash(id) mod n`, so a changed entry
/// changes one shard. `n` doubles until every shard fits.
pub fn write_shards(inventory: &Inventory) -> Vec<Shard> {
    let mut count = inventory.entries.len().div_ceil(4000).max(1);
    loop {
        let shards = split(inventory, count);
        if shards.iter().all(|shard| shard.bytes.len() <= SHARD_LIMIT) {
            return shards;
        }
        count *= 2;
    }
}

fn split(inventory: &Inventory, count: usize) -> Vec<Shard> {
    let mut parts: Vec<Vec<(ObjectId, Entry)>> = vec![Vec::new(); count];
    for (id, entry) in &inventory.entries {
        let hash = Digest::of(id.to_string().as_bytes());
        let place = hash.bytes()[..8]
            .iter()
            .fold(0u64, |number, byte| number << 8 | u64::from(*byte));
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the remainder is below count"
        )]
        let part = (place % count as u64) as usize;
        parts[part].push((id.clone(), entry.clone()));
    }
    parts
        .into_iter()
        .enumerate()
        .map(|(index, entries)| {
            let bytes = pack(&Content {
                format: FORMAT,
                entries,
            });
            Shard {
                index,
                digest: Digest::of(&bytes),
                bytes,
            }
        })
        .collect()
}

fn pack(content: &Content) -> Vec<u8> {
    // The encoder writes mtime 0, so equal content gives equal bytes. Writing to a Vec and
    // serializing our own types cannot fail.
    #[expect(clippy::expect_used, reason = "writing to memory")]
    {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        let json = serde_json::to_vec(content).expect("plain types");
        encoder.write_all(&json).expect("a Vec takes everything");
        encoder.finish().expect("a Vec takes everything")
    }
}

/// Reads shards, each with its digest in the record. Fails with the first unreadable shard.
pub fn read_shards(shards: &[(Digest, Vec<u8>)]) -> Result<Inventory, ShardError> {
    let parts: Vec<Result<Vec<(ObjectId, Entry)>, ShardError>> = shards
        .par_iter()
        .enumerate()
        .map(|(index, (expected, bytes))| read_shard(index, *expected, bytes))
        .collect();
    let mut entries = Vec::new();
    for part in parts {
        entries.extend(part?);
    }
    Ok(Inventory {
        entries: entries.into_iter().collect(),
    })
}

fn read_shard(
    index: usize,
    expected: Digest,
    bytes: &[u8],
) -> Result<Vec<(ObjectId, Entry)>, ShardError> {
    if Digest::of(bytes) != expected {
        return Err(ShardError::Digest { index });
    }
    let mut json = Vec::new();
    GzDecoder::new(bytes)
        .take(UNPACKED_LIMIT)
        .read_to_end(&mut json)
        .map_err(|source| ShardError::Unpack { index, source })?;
    let content: Content =
        serde_json::from_slice(&json).map_err(|source| ShardError::Parse { index, source })?;
    if content.format > FORMAT {
        return Err(ShardError::Newer {
            index,
            format: content.format,
        });
    }
    Ok(content.entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::EntryState;

    fn inventory(count: usize) -> Inventory {
        let entries = (0..count)
            .map(|number| {
                let id = ObjectId::new("", "ConfigMap", Some("web"), &format!("c{number}"));
                let uid = Digest::of(&number.to_le_bytes()).to_string();
                (
                    id,
                    Entry {
                        state: EntryState::Applied,
                        uid: Some(uid),
                        ..Entry::default()
                    },
                )
            })
            .collect();
        Inventory { entries }
    }

    fn committed(shards: &[Shard]) -> Vec<(Digest, Vec<u8>)> {
        shards
            .iter()
            .map(|shard| (shard.digest, shard.bytes.clone()))
            .collect()
    }

    #[test]
    fn shards_round_trip_and_are_deterministic() {
        for count in [0, 1, 5000, 20_000] {
            let inventory = inventory(count);
            let shards = write_shards(&inventory);
            assert_eq!(shards, write_shards(&inventory));
            assert!(shards.iter().all(|shard| shard.bytes.len() <= SHARD_LIMIT));
            assert_eq!(read_shards(&committed(&shards)).unwrap(), inventory);
        }
    }

    #[test]
    fn a_changed_entry_changes_one_shard() {
        let mut inventory = inventory(20_000);
        let before = write_shards(&inventory);
        let id = inventory.entries.keys().next().cloned().unwrap();
        inventory.entries.remove(&id);
        let after = write_shards(&inventory);
        let changed = before
            .iter()
            .zip(&after)
            .filter(|(a, b)| a.digest != b.digest)
            .count();
        assert_eq!((before.len(), changed), (5, 1));
    }

    #[test]
    fn a_tampered_shard_is_no_inventory() {
        let mut shards = committed(&write_shards(&inventory(3)));
        let last = shards[0].1.len() - 1;
        shards[0].1[last] ^= 1;
        assert!(matches!(
            read_shards(&shards),
            Err(ShardError::Digest { index: 0 })
        ));
    }

    /// A shard in format 2: format 1 plus digests of fields. If this test fails, raise `FORMAT`,
    /// leave this text as it is, and add one of the new format.
    const SECOND: &str = r#"{"format":2,"entries":[["ConfigMap/web/settings",{"state":"applied","apiVersion":"v1","uid":"u","resourceVersion":"7","generation":2,"desired":"sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881","fingerprint":"sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881","fields":"AAECAwQFBgc","stage":"config","protected":true,"adopted":true,"service":"web/api"}]]}"#;

    /// A shard in format 1.
    const FIRST: &str = r#"{"format":1,"entries":[["ConfigMap/web/settings",{"state":"applied","apiVersion":"v1","uid":"u","resourceVersion":"7","generation":2,"desired":"sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881","fingerprint":"sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881","stage":"config","protected":true,"adopted":true,"service":"web/api"}]]}"#;

    #[test]
    fn the_bytes_of_a_shard_change_with_their_format_only() {
        let content: Content = serde_json::from_str(SECOND).unwrap();
        assert_eq!(serde_json::to_string(&content).unwrap(), SECOND);
        assert_eq!(content.format, FORMAT);
        let bytes = pack(&content);
        let read = read_shards(&[(Digest::of(&bytes), bytes.clone())]).unwrap();
        let (id, entry) = read.entries.iter().next().unwrap();
        assert_eq!(id.to_string(), "ConfigMap/web/settings");
        assert_eq!(
            (entry.state, entry.uid.as_deref()),
            (EntryState::Applied, Some("u"))
        );
        assert_eq!(write_shards(&read)[0].bytes, bytes);
    }

    #[test]
    fn a_shard_of_format_1_is_read() {
        let content: Content = serde_json::from_str(FIRST).unwrap();
        assert_eq!(content.format, 1);
        let bytes = pack(&content);
        let read = read_shards(&[(Digest::of(&bytes), bytes)]).unwrap();
        let (id, entry) = read.entries.iter().next().unwrap();
        assert_eq!(id.to_string(), "ConfigMap/web/settings");
        assert_eq!(
            (entry.uid.as_deref(), entry.fields.is_empty()),
            (Some("u"), true)
        );
    }

    #[test]
    fn a_newer_format_is_refused() {
        let bytes = pack(&Content {
            format: FORMAT + 1,
            entries: Vec::new(),
        });
        let read = read_shards(&[(Digest::of(&bytes), bytes)]);
        assert!(matches!(read, Err(ShardError::Newer { format: 3, .. })));
    }
}
