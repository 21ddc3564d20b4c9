//! Pushes of artifacts.

use crate::OciError;
use crate::artifact::Package;
use crate::registry::Registry;

/// Uploads an artifact under a tag. The tag moves last, so that no client sees an incomplete
/// artifact.
pub async fn push(registry: &Registry, package: &Package, tag: &str) -> Result<(), OciError> {
    registry.upload(package.config.clone()).await?;
    registry.upload(package.layer.clone()).await?;
    registry.publish(tag, package.manifest.clone()).await
}
