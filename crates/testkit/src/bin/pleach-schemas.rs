//! Writes the kind tables into the domain crate: `make schemas`.
//!
//! The minor of the control plane from its API server, the minors before from
//! the documents of their source, which `go mod download` fetches.

use std::path::PathBuf;

use anyhow::Context as _;
use pleach_testkit::schemas::{FORMER, published_kinds, served_kinds};

#[tokio::main]
#[expect(
    clippy::disallowed_methods,
    reason = "a program of the developer, without the settings of pleach"
)]
async fn main() -> anyhow::Result<()> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../domain/src/kinds/tables");
    let mut tables = vec![served_kinds().await?];
    for (version, checksum) in FORMER {
        tables.push(published_kinds(version, checksum)?);
    }
    for table in tables {
        for (part, bytes) in [
            ("kinds", table.to_gz()?),
            ("schemas", table.schemas_to_gz()?),
        ] {
            let file = folder.join(format!("{}.{part}.json.gz", table.minor()));
            std::fs::write(&file, bytes)
                .with_context(|| format!("failed to write {}", file.display()))?;
        }
    }
    Ok(())
}
