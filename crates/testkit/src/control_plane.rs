//! Control planes for tests.

use std::{
    env,
    path::{Path, PathBuf},
};

use crate::throwaway::{Binaries, ControlPlane, Options, ThrowawayError};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// Returns the locations of the programs from the environment.
#[expect(
    clippy::disallowed_methods,
    reason = "tests and the demo have no settings but the environment"
)]
pub fn binaries() -> Binaries {
    let path = |name| env::var_os(name).map(PathBuf::from);
    Binaries::new(
        path("KUBEBUILDER_ASSETS"),
        path("XDG_CACHE_HOME"),
        path("HOME"),
    )
}

/// Maximum number of attempts to start a control plane.
const TRIES: usize = 5;

/// Starts a control plane and retries if it does not become ready in time, as on a busy machine.
pub async fn start_patiently(options: Options) -> anyhow::Result<ControlPlane> {
    for _ in 1..TRIES {
        match ControlPlane::start(options.clone()).await {
            Err(error @ ThrowawayError::NotReady { .. }) => {
                tracing::warn!(%error, "the control plane is started again");
            }
            started => return Ok(started?),
        }
    }
    Ok(ControlPlane::start(options).await?)
}

/// Starts a control plane from synchronous code.
///
/// Works inside and outside of runtimes, so it can be used in statics.
pub fn start(options: Options) -> anyhow::Result<ControlPlane> {
    let start = || -> anyhow::Result<Result<ControlPlane, ThrowawayError>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(runtime.block_on(ControlPlane::start(options)))
    };
    let started = std::thread::scope(|scope| scope.spawn(start).join());
    let started = started.map_err(|_| anyhow::anyhow!("the start of a control plane panicked"))?;
    Ok(started??)
}

/// Connects to a control plane as the user of a kubeconfig, without proxies.
pub async fn client(kubeconfig: &Path) -> anyhow::Result<Client> {
    // Fails if a provider is already installed, which is fine.
    drop(rustls::crypto::ring::default_provider().install_default());
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.proxy_url = None;
    Ok(Client::try_from(config)?)
}
