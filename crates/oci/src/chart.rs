//! Packages of Helm charts in registries.

use crate::OciError;
use crate::artifact::Manifest;
use crate::registry::Registry;

/// Media types of a package: the present one, and that of early versions.
const PACKAGE: [&str; 2] = [
    "application/vnd.cncf.helm.chart.content.v1.tar+gzip",
    "application/tar+gzip",
];

/// Returns the package of the chart whose manifest has this digest, of at most `most` bytes. Its
/// bytes have the digest that the manifest names.
pub async fn package(registry: &Registry, digest: &str, most: u64) -> Result<Vec<u8>, OciError> {
    let what = format!("{}@{digest}", registry.repository());
    let manifest = Manifest::parse(&registry.manifest(digest).await?, &what)?;
    registry.blob(manifest.layer(PACKAGE, &what)?, most).await
}
