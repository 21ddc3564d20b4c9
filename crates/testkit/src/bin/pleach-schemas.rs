//! Writes the kind table of the control plane's Kubernetes into the domain
//! crate: `make schemas`.

use std::path::PathBuf;

use anyhow::Context as _;

#[tokio::main]
#[expect(
    clippy::disallowed_methods,
    reason = "a program of the developer, without the settings of pleach"
)]
async fn main() -> anyhow::Result<()> {
    let table = pleach_testkit::schemas::served_kinds().await?;
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../domain/src/render/kinds");
    let file = folder.join(format!("{}.json.gz", table.minor()));
    std::fs::write(&file, table.to_gz()?)
        .with_context(|| format!("failed to write {}", file.display()))?;
    Ok(())
}
