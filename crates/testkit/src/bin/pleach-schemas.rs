//! Writes generated files that are checked in: `make schemas`.
//!
//! - The kind tables of the domain crate. The minor version of the control plane comes from its API
//!   server. Earlier ones come from the documents in their source, fetched by `go mod download`.
//! - `docs/schemas/`: the JSON Schemas of pleach's own files. The argument `formats` writes only
//!   these.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use pleach_formats::file;
use pleach_testkit::schemas::{PREVIOUS, published_kinds, served_kinds};

#[tokio::main]
#[expect(
    clippy::disallowed_methods,
    reason = "a program of the developer, without the settings of pleach"
)]
async fn main() -> anyhow::Result<()> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = root.join("docs/schemas");
    std::fs::create_dir_all(&folder)?;
    for (kind, schema) in file::schemas() {
        let text = format!("{schema:#}\n");
        write(&folder.join(format!("{kind}.json")), text.as_bytes())?;
    }
    if std::env::args().nth(1).as_deref() == Some("formats") {
        return Ok(());
    }
    let folder = root.join("crates/model/src/kinds/tables");
    let mut tables = vec![served_kinds().await?];
    for (version, checksum) in PREVIOUS {
        tables.push(published_kinds(version, checksum)?);
    }
    for table in tables {
        for (part, bytes) in [
            ("kinds", table.to_gz()?),
            ("schemas", table.schemas_to_gz()?),
        ] {
            let name = format!("{}.{part}.json.gz", table.minor());
            write(&folder.join(name), &bytes)?;
        }
    }
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "a program of the developer, without the settings of pleach"
)]
fn write(file: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    std::fs::write(file, bytes).with_context(|| format!("failed to write {}", file.display()))
}
