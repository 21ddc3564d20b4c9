//! A page whose replica is killed.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Extension;
use pleach_controller::server::ui::security::{Security, secured};
use pleach_controller::server::{self, ui};
use pleach_page::board::Board;
use pleach_page::viewer::Viewer;
use pleach_reconciler::config::{Page, SignIn};
use pleach_reconciler::outcome::ReconcileOutcome;
use pleach_testkit::browser::Browser;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::page_fixtures::{every_state, name, outcome};

/// A replica with its own threads, which end without any cleanup.
struct Replica {
    address: SocketAddr,
    runtime: Runtime,
    _board: watch::Sender<Arc<Board>>,
}

impl Replica {
    /// Starts a replica whose board has this message.
    fn start(message: &str) -> Self {
        let mut board = every_state();
        let failed = outcome(ReconcileOutcome::Failed, message);
        board.finished(&name("production", "failed"), failed);
        let (board, shown) = watch::channel(Arc::new(board));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listening = std::thread::scope(|scope| {
            let listening = scope.spawn(|| runtime.block_on(server::listen(any)).unwrap());
            listening.join().unwrap()
        });
        let address = listening.address;
        let page = Page {
            listen: address,
            sign_in: SignIn::Off,
            url: None,
            tls: None,
            behind_proxy: false,
        };
        let pages = ui::pages(shown, Arc::default()).layer(Extension(Viewer::read_only()));
        let router = secured(ui::files().merge(pages), Security::of(&page));
        drop(runtime.spawn(listening.serve(router, CancellationToken::new())));
        Self {
            address,
            runtime,
            _board: board,
        }
    }

    fn kill(self) {
        self.runtime.shutdown_background();
    }
}

/// Forwards connections to a replica, as a Service does. Dropping it ends it.
struct Service {
    address: SocketAddr,
    replica: Arc<Mutex<SocketAddr>>,
    _served: JoinSet<()>,
}

impl Service {
    async fn start(replica: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let replica = Arc::new(Mutex::new(replica));
        let target = Arc::clone(&replica);
        let mut served = JoinSet::new();
        served.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let to = *target.lock().unwrap();
                connections.spawn(async move {
                    if let Ok(mut server) = TcpStream::connect(to).await {
                        // Either side can end the connection at any time.
                        drop(copy_bidirectional(&mut client, &mut server).await);
                    }
                });
            }
        });
        Self {
            address,
            replica,
            _served: served,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_recovers_when_its_replica_is_killed() {
    let (first, second) = (
        Replica::start("as seen by one"),
        Replica::start("as seen by two"),
    );
    let service = Service::start(first.address).await;
    let browser = Browser::start().await.unwrap();
    browser
        .open(&format!("http://{}/", service.address))
        .await
        .unwrap();
    browser.until("live").await.unwrap();
    browser.until("as seen by one").await.unwrap();
    let connected = "document.body.dataset.test = 'same page'";
    browser.run(connected).await.unwrap();
    first.kill();
    browser.until("connecting").await.unwrap();
    *service.replica.lock().unwrap() = second.address;
    browser.until("as seen by two").await.unwrap();
    browser.until("live").await.unwrap();
    // The page was neither left nor loaded again.
    let same = browser
        .run("return document.body.dataset.test")
        .await
        .unwrap();
    assert_eq!(same, "same page");
    second.kill();
}
