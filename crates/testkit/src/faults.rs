//! Proxy for the API server that counts writes and injects faults.
//!
//! [`FaultProxy`] terminates TLS, forwards every request as the user of its kubeconfig, and
//! provides a kubeconfig for itself. It ignores credentials of clients; all of them act as that
//! user. A test with two users starts two proxies. Answers are streamed, so watches work. Protocol
//! upgrades (`exec`) do not.
//!
//! The proxy runs in its own thread, so a test can block while a client uses it. Hooks run in that
//! thread and must not wait for requests.
//!
//! ```no_run
//! use pleach_testkit::faults::{Fault, FaultProxy, Rule};
//!
//! # fn test(kubeconfig: &std::path::Path) -> anyhow::Result<()> {
//! let proxy = FaultProxy::start(kubeconfig)?;
//! proxy.add(Rule::on_writes(Fault::LoseAnswer).nth(3));
//! // a client with proxy.kubeconfig() finds its third write unanswered
//! assert_eq!(proxy.log().writes().count(), 3);
//! # Ok(()) }
//! ```

mod log;
mod relay;
mod script;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread::JoinHandle,
};

use anyhow::Context as _;
use serde_json::json;
use tokio_util::sync::CancellationToken;

pub use self::{
    log::{Kind, Log, Seen},
    script::{Answer, Fault, Moment, Rule},
};

use self::{log::Recorder, relay::Relay};

/// Running proxy. Dropping it ends it.
#[derive(Debug)]
pub struct FaultProxy {
    recorder: Arc<Recorder>,
    folder: tempfile::TempDir,
    url: String,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl FaultProxy {
    /// Starts a proxy that forwards to the cluster of a kubeconfig as its user.
    pub fn start(kubeconfig: &Path) -> anyhow::Result<Self> {
        let recorder = Arc::new(Recorder::default());
        let stop = CancellationToken::new();
        let certificate = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
        let ca_pem = certificate.cert.pem();

        let (started, ready) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("fault-proxy".into())
            .spawn({
                let (recorder, stop) = (recorder.clone(), stop.clone());
                let kubeconfig = kubeconfig.to_owned();
                move || serve(&kubeconfig, &certificate, recorder, &stop, &started)
            })?;
        let port = ready
            .recv()
            .context("the thread of the fault proxy ended")??;
        let url = format!("https://127.0.0.1:{port}");

        let folder = tempfile::Builder::new()
            .prefix("pleach-faults-")
            .tempdir()?;
        write_kubeconfig(&kubeconfig_in(&folder), &url, &ca_pem)?;
        Ok(Self {
            recorder,
            folder,
            url,
            stop,
            thread: Some(thread),
        })
    }

    /// Returns the kubeconfig for this proxy.
    pub fn kubeconfig(&self) -> PathBuf {
        kubeconfig_in(&self.folder)
    }

    /// Returns the address of this proxy.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Adds a rule. The first matching rule decides.
    pub fn add(&self, rule: Rule) {
        self.recorder.add(rule);
    }

    /// Returns the requests so far, in order of arrival.
    pub fn log(&self) -> Log {
        self.recorder.log()
    }

    /// Removes all rules and recorded requests. Counting restarts.
    pub fn reset(&self) {
        self.recorder.reset();
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the thread of the fault proxy panicked");
        }
    }
}

fn serve(
    kubeconfig: &Path,
    certificate: &rcgen::CertifiedKey<rcgen::KeyPair>,
    recorder: Arc<Recorder>,
    stop: &CancellationToken,
    started: &mpsc::SyncSender<anyhow::Result<u16>>,
) {
    let run = || -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        // Dropping the runtime ends all connections.
        runtime.block_on(async {
            let relay = Relay::connect(kubeconfig, recorder).await?;
            let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
            let _sent = started.send(Ok(listener.local_addr()?.port()));
            let tls = relay::server_config(certificate)?;
            stop.run_until_cancelled(relay.accept(listener, tls)).await;
            Ok(())
        })
    };
    if let Err(error) = run() {
        let _sent = started.send(Err(error));
    }
}

fn kubeconfig_in(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("kubeconfig")
}

#[expect(
    clippy::disallowed_methods,
    reason = "a file in a folder of its own; the context names it"
)]
fn write_kubeconfig(path: &Path, url: &str, ca_pem: &str) -> anyhow::Result<()> {
    use base64::{Engine as _, prelude::BASE64_STANDARD};

    let name = "faults";
    // Without credentials, kubectl would prompt for a name and a password.
    let text = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{ "name": name, "cluster": {
            "server": url,
            "certificate-authority-data": BASE64_STANDARD.encode(ca_pem),
        }}],
        "users": [{ "name": name, "user": { "token": "ignored" } }],
        "contexts": [{ "name": name, "context": { "cluster": name, "user": name } }],
    });
    std::fs::write(path, text.to_string())
        .with_context(|| format!("failed to write {}", path.display()))
}
