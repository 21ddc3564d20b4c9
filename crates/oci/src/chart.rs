//! Packages of Helm charts in registries.

use crate::OciError;
use crate::artifact::Manifest;
use crate::pull::ensure_signed;
use crate::registry::Registry;
use crate::verify::PublicKeys;

/// Media types of a package: the present one, and that of early versions.
const PACKAGE: [&str; 2] = [
    "application/vnd.cncf.helm.chart.content.v1.tar+gzip",
    "application/tar+gzip",
];

/// Returns the package of the chart whose manifest has this digest, of at most `most` bytes. Its
/// bytes have the digest that the manifest names. With keys, one of them must have signed the
/// manifest. The signature is checked before the package is downloaded.
pub async fn package(
    registry: &Registry,
    digest: &str,
    keys: Option<&PublicKeys>,
    most: u64,
) -> Result<Vec<u8>, OciError> {
    let what = format!("{}@{digest}", registry.repository());
    let manifest = registry.manifest(digest).await?;
    if let Some(keys) = keys {
        ensure_signed(registry, digest, keys).await?;
    }
    let manifest = Manifest::parse(&manifest, &what)?;
    registry.blob(manifest.layer(PACKAGE, &what)?, most).await
}
