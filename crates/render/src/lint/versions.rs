//! Checks that bundles support the declared Kubernetes version.

use semver::Version;

use super::Scene;
use pleach_model::finding::{Finding, Kind};

pub(super) fn check(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    let Some(declared) = &scene.environment.cluster.kubernetes else {
        return;
    };
    let Some(version) = newest_patch(declared) else {
        return;
    };
    for release in &scene.environment.releases {
        let Some(range) = &release.versions.kubernetes else {
            continue;
        };
        if !range.matches(&version) {
            findings.push(
                Finding::warning(
                    Kind::Repository,
                    "kubernetes-range",
                    format!(
                        "bundle {} is for Kubernetes {range}, but the cluster has {declared}",
                        release.bundle
                    ),
                )
                .at(release.origin.clone())
                .hint("apply refuses to install it there"),
            );
        }
    }
}

/// Higher than any patch number of Kubernetes.
const NEWEST: u64 = 999;

/// Parses a version. A minor without a patch number stands for its newest patch.
fn newest_patch(declared: &str) -> Option<Version> {
    let text = declared.trim_start_matches('v');
    let mut parts = text.split('.').map(str::parse::<u64>);
    let (major, minor) = (parts.next()?.ok()?, parts.next()?.ok()?);
    let patch = parts.next().and_then(Result::ok).unwrap_or(NEWEST);
    Some(Version::new(major, minor, patch))
}
