//! What others reach of the loop: push webhooks on one listener, metrics and
//! probes on another. And whom the loop tells by itself: webhooks of others.

pub mod hooks;
pub mod metrics;
pub mod notifications;
pub mod probes;
pub mod signature;

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// How long requests may take that are under way when the loop ends.
const DRAIN: Duration = Duration::from_secs(5);

/// An address that cannot be listened on, or a listener that broke down.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be had.
    #[error("failed to listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It broke down while it was served.
    #[error("failed to serve {address}")]
    Serve {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// An address that is listened on.
#[derive(Debug)]
pub struct Listening {
    listener: TcpListener,
    /// The address, with the port that was picked.
    pub address: SocketAddr,
}

/// Takes an address; port 0 picks one.
pub async fn listen(address: SocketAddr) -> Result<Listening, ServerError> {
    let failed = |source| ServerError::Bind { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok(Listening { listener, address })
}

impl Listening {
    /// Serves until it is stopped; requests that are under way get a little time.
    pub async fn serve(self, router: Router, stop: CancellationToken) -> Result<(), ServerError> {
        let address = self.address;
        let ending = stop.clone();
        let serving = axum::serve(self.listener, router)
            .with_graceful_shutdown(async move { ending.cancelled().await });
        let drained = async {
            stop.cancelled().await;
            tokio::time::sleep(DRAIN).await;
        };
        tokio::select! {
            served = async { serving.await } => served.map_err(|source| ServerError::Serve { address, source }),
            () = drained => Ok(()),
        }
    }
}
