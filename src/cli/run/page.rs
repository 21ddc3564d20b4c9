//! The web page of the controller, from its configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use pleach_cluster::OwnCluster;
use pleach_controller::SourcePolicy;
use pleach_controller::board::BoardWriter;
use pleach_controller::server::metrics::Metrics;
use pleach_controller::server::tls::{Certificate, CertificateFiles};
use pleach_controller::server::ui::actions::Actions;
use pleach_controller::server::ui::auth::cookie::CookieKey;
#[cfg(feature = "oidc")]
use pleach_controller::server::ui::auth::oidc::{Issuer, IssuerConfig};
use pleach_controller::server::ui::auth::{Auth, KnownRelease, KnownReleases, Means};
use pleach_controller::server::ui::security::Security;
use pleach_controller::server::ui::site::{self, Parts};
use pleach_controller::server::ui::{LIMITS, files, pages};
use pleach_controller::server::{self, Listening};
use pleach_page::board::Board;
#[cfg(feature = "oidc")]
use pleach_reconciler::config::OidcClient;
use pleach_reconciler::config::{Page, SignIn};
use tokio::sync::watch;

use crate::cli::Ui;
use crate::cli::error::{CliError, Kind};

/// The web page, with the means to recognize users.
pub(super) struct PagePlan {
    page: Page,
    certificate: Option<CertificateFiles>,
    users: Option<UsersPlan>,
}

/// Means to recognize users.
struct UsersPlan {
    cookies: CookieKey,
    own: OwnCluster,
    /// Identity provider. `None`: users sign in with tokens.
    #[cfg(feature = "oidc")]
    issuer: Option<Issuer>,
}

/// Parts of the page that come from other parts of the controller.
struct PageContent {
    board: watch::Receiver<Arc<Board>>,
    /// Source policies of all repositories.
    source_policies: Vec<Arc<SourcePolicy>>,
    metrics: Arc<Metrics>,
}

impl UsersPlan {
    fn auth(self, page: &Page, known: KnownReleases, metrics: Arc<Metrics>) -> Auth {
        let means = Means {
            own: self.own,
            cookies: self.cookies,
            behind_proxy: page.behind_proxy,
            known,
            metrics,
        };
        #[cfg(feature = "oidc")]
        if let Some(issuer) = self.issuer {
            return Auth::oidc(issuer, means);
        }
        Auth::tokens(means)
    }
}

impl PagePlan {
    /// Reads the configuration of a page, if there is one.
    pub(super) fn of(
        page: Option<Page>,
        folder: &Path,
        own: &OwnCluster,
    ) -> Result<Option<Self>, CliError> {
        page.map(|page| Self::new(page, folder, own)).transpose()
    }

    /// Reads the configuration. Paths are relative to `folder`. Users are reviewed by the cluster of
    /// the controller.
    fn new(page: Page, folder: &Path, own: &OwnCluster) -> Result<Self, CliError> {
        let file = |name: &str| -> PathBuf { folder.join(name) };
        let cookie_key = match &page.sign_in {
            SignIn::Off => None,
            SignIn::Token { cookie_key } => Some(cookie_key),
            #[cfg(feature = "oidc")]
            SignIn::Oidc { cookie_key, .. } => Some(cookie_key),
            #[cfg(not(feature = "oidc"))]
            SignIn::Oidc { .. } => {
                let message = "`auth: oidc`: this program was built without the feature `oidc`";
                return Err(CliError::usage(message));
            }
        };
        let cookies =
            cookie_key.map(|cookie_key| CookieKey::new(file(cookie_key), page.is_encrypted()));
        if let Some(cookies) = &cookies {
            cookies
                .check()
                .map_err(|error| CliError::new(Kind::Failed, error))?;
        }
        #[cfg(feature = "oidc")]
        let mut issuer = issuer(&page, folder)?;
        let certificate = page.tls.as_ref().map(|tls| CertificateFiles {
            certificate: file(&tls.certificate),
            key: file(&tls.key),
        });
        let users = cookies.map(|cookies| UsersPlan {
            cookies,
            own: own.clone(),
            #[cfg(feature = "oidc")]
            issuer: issuer.take(),
        });
        Ok(Self {
            page,
            certificate,
            users,
        })
    }

    /// Adds the listener of the page, prints its address, and returns the writer of its board.
    pub(super) async fn serve(
        self,
        ui: &mut Ui,
        source_policies: Vec<Arc<SourcePolicy>>,
        metrics: &Arc<Metrics>,
        listening: &mut Vec<(Listening, Router)>,
    ) -> Result<BoardWriter, CliError> {
        let (writer, board) = BoardWriter::new();
        let content = PageContent {
            board,
            source_policies,
            metrics: Arc::clone(metrics),
        };
        listening.push(self.start(ui, content).await?);
        Ok(writer)
    }

    /// Binds the listener, prints its address, and returns it with the routes.
    async fn start(
        self,
        ui: &mut Ui,
        content: PageContent,
    ) -> Result<(Listening, Router), CliError> {
        let Self {
            page,
            certificate,
            users,
        } = self;
        let certificate = certificate.map(Certificate::read).transpose();
        let certificate = certificate.map_err(|error| CliError::new(Kind::Failed, error))?;
        let scheme = if certificate.is_some() {
            "https"
        } else {
            "http"
        };
        let mut listening = server::listen(page.listen).await?;
        (listening.limits, listening.certificate) = (LIMITS, certificate);
        ui.print(format!("page: {scheme}://{}", listening.address));
        let PageContent {
            board,
            source_policies,
            metrics,
        } = content;
        let known = known(board.clone());
        let auth = Arc::new(match users {
            None => Auth::off(Arc::clone(&metrics)),
            Some(users) => users.auth(&page, Arc::clone(&known), Arc::clone(&metrics)),
        });
        let actions = Actions::new(
            Arc::clone(&auth),
            source_policies,
            known,
            board.clone(),
            Arc::clone(&metrics),
        );
        let router = site::router(Parts {
            pages: pages(board, Arc::clone(&metrics)),
            files: files(),
            auth,
            actions,
            security: Security::of(&page),
            metrics,
        });
        Ok((listening, router))
    }
}

/// Reads the files of the identity provider, if users sign in at one.
#[cfg(feature = "oidc")]
fn issuer(page: &Page, folder: &Path) -> Result<Option<Issuer>, CliError> {
    let (SignIn::Oidc { client, .. }, Some(url)) = (&page.sign_in, &page.url) else {
        return Ok(None);
    };
    let issuer = Issuer::new(IssuerConfig {
        client: OidcClient::clone(client),
        folder: folder.to_owned(),
        page: url.clone(),
    });
    issuer
        .map(Some)
        .map_err(|error| CliError::new(Kind::Failed, error))
}

/// Returns the releases of the board.
fn known(board: watch::Receiver<Arc<Board>>) -> KnownReleases {
    Arc::new(move || {
        let board = Arc::clone(&board.borrow());
        let releases = board.environments.values();
        let releases = releases.flat_map(|environment| environment.releases.values());
        let known = releases.map(|release| KnownRelease {
            name: release.name.clone(),
            namespace: match (&release.facts, &release.recorded) {
                (Some(facts), _) => facts.store_namespace.clone(),
                (None, Some(recorded)) => recorded.namespace.clone(),
                (None, None) => None,
            },
        });
        known.collect()
    })
}
