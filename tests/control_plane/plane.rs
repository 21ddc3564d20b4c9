//! Control planes for the tests, with controllers but without a scheduler and nodes.

use std::sync::OnceLock;

use pleach_testkit::control_plane::binaries;
use pleach_testkit::throwaway::{ControlPlane, Network, Options};

/// Returns the control plane shared by all tests that stay in their own namespaces.
///
/// A static is never dropped, but the kernel ends its processes with this one.
pub(crate) fn shared() -> &'static ControlPlane {
    static SHARED: OnceLock<ControlPlane> = OnceLock::new();
    SHARED.get_or_init(control_plane)
}

/// Starts a control plane.
pub(crate) fn control_plane() -> ControlPlane {
    pleach_testkit::control_plane::start(Options {
        binaries: binaries(),
        controllers: true,
        scheduler: false,
        nodes: 0,
        network: Network::Host,
    })
    .expect("the control plane starts")
}
