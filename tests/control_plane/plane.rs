//! Control planes of the tests, with controllers and without a scheduler and nodes.

use std::sync::OnceLock;

use pleach::io::throwaway::{ControlPlane, Network, Options};
use pleach_testkit::control_plane::binaries;

/// Returns the control plane that all tests share which stay in namespaces of
/// their own.
///
/// A static is never dropped: the kernel ends its processes with this one.
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
