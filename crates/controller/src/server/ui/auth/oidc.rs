//! Sign-in at an identity provider: authorization code flow with PKCE, state and nonce.
//!
//! The ID token is verified here and never stored. The API server then decides about the user and
//! the groups that it names, as for all users of the page.

mod claims;
mod flow;
mod request;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use openidconnect::core::{
    CoreAuthenticationFlow, CoreClient, CoreClientAuthMethod, CoreIdToken, CoreIdTokenVerifier,
    CoreJwsSigningAlgorithm, CoreProviderMetadata,
};
use openidconnect::{
    AuthType, AuthorizationCode, ClaimsVerificationError, ClientId, ClientSecret, CsrfToken,
    DiscoveryError, EndpointMaybeSet, EndpointNotSet, EndpointSet, IssuerUrl, Nonce,
    PkceCodeChallenge, PkceCodeVerifier, RedirectUrl, RequestTokenError, Scope,
    SignatureVerificationError, TokenResponse as _,
};
use pleach_files::FileError;
use pleach_reconciler::config::OidcClient;
use reqwest::Url;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, timeout};

use self::claims::ClaimError;
use self::request::{IssuerRequests, RequestError};
use super::attempts::Attempts;
use super::{DEADLINE, Identity};

pub(super) use self::flow::router;

/// Number of concurrent sign-ins that ask the issuer.
const SIGN_INS: usize = 8;
/// How long endpoints and keys of the issuer are used.
const KNOWN_FOR: Duration = Duration::from_mins(10);
/// Age from which keys are read again if none of them fits.
const STALE: Duration = Duration::from_secs(30);
/// Scopes that are requested as far as the issuer lists them.
const SCOPES: [&str; 3] = ["email", "profile", "groups"];
/// Signatures of ID tokens. None of them has a shared key.
const ALGORITHMS: [CoreJwsSigningAlgorithm; 9] = [
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha384,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha512,
    CoreJwsSigningAlgorithm::RsaSsaPssSha256,
    CoreJwsSigningAlgorithm::RsaSsaPssSha384,
    CoreJwsSigningAlgorithm::RsaSsaPssSha512,
    CoreJwsSigningAlgorithm::EcdsaP256Sha256,
    CoreJwsSigningAlgorithm::EcdsaP384Sha384,
    CoreJwsSigningAlgorithm::EdDsa,
];

/// A client whose issuer is known.
type KnownClient = CoreClient<
    EndpointSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointMaybeSet,
    EndpointMaybeSet,
>;

/// Identity provider of the page, from the configuration.
#[derive(Debug, Clone)]
pub struct IssuerConfig {
    /// The client at the issuer.
    pub client: OidcClient,
    /// Folder that the paths of the files are relative to.
    pub folder: PathBuf,
    /// External address of the page, without a path.
    pub page: String,
}

/// Identity provider.
pub struct Issuer {
    config: IssuerConfig,
    url: Url,
    provider: Mutex<Option<Arc<Provider>>>,
    permits: Semaphore,
    /// Recent starts and ends of sign-ins.
    starts: Attempts,
    ends: Attempts,
}

/// Endpoints and keys of an issuer.
struct Provider {
    metadata: CoreProviderMetadata,
    requests: IssuerRequests,
    at: Instant,
}

/// Secrets of a started sign-in.
#[derive(Serialize, Deserialize)]
struct Started {
    state: String,
    nonce: String,
    verifier: String,
}

/// Failure of a sign-in. It has no text of a token, a code or a secret.
#[derive(Debug, thiserror::Error)]
pub enum OidcError {
    /// A file cannot be read.
    #[error("failed to read a file of the identity provider")]
    File(#[source] FileError),
    /// The secret is empty or no text.
    #[error("the secret of the client is not a text in one line")]
    Secret,
    /// A URL of the configuration is no URL.
    #[error("`{0}` is not a URL")]
    Url(String),
    /// The CA certificates cannot be used.
    #[error("failed to prepare requests to the issuer")]
    Client(#[source] reqwest::Error),
    /// The time-out passed.
    #[error("the issuer did not answer in {DEADLINE:?}")]
    Late,
    /// A request failed.
    #[error("the issuer {host} did not answer: {reason}")]
    Unreachable {
        /// Host of the issuer.
        host: String,
        /// Failure of the connection.
        reason: String,
    },
    /// An answer is not understood.
    #[error("the issuer {host} sent {reason}")]
    Malformed {
        /// Host of the issuer.
        host: String,
        /// The part that is wrong.
        reason: String,
    },
    /// The ID token is not valid.
    #[error("the ID token is not valid: {0}")]
    IdToken(&'static str),
    /// The ID token names no user.
    #[error("the ID token names no user")]
    Claims(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Started {
    fn has_state(&self, state: &str) -> bool {
        !state.is_empty() && self.state == state
    }
}

impl Issuer {
    /// Reads the configuration. Fails if a file cannot be read or used. The issuer is asked for its
    /// endpoints when the first user signs in.
    pub fn new(config: IssuerConfig) -> Result<Self, OidcError> {
        let address = &config.client.issuer;
        let url = Url::parse(address).map_err(|_| OidcError::Url(address.clone()))?;
        let issuer = Self {
            config,
            url,
            provider: Mutex::default(),
            permits: Semaphore::new(SIGN_INS),
            starts: Attempts::default(),
            ends: Attempts::default(),
        };
        issuer.requests()?;
        issuer.secret()?;
        issuer.callback()?;
        Ok(issuer)
    }

    /// Returns the host of the issuer.
    pub(super) fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }

    /// Returns the URL at the issuer to which a user is sent, and the secrets of the sign-in.
    async fn start(&self) -> Result<(String, Started), OidcError> {
        self.within(async {
            let provider = self.provider(KNOWN_FOR).await?;
            let endpoint = provider.metadata.authorization_endpoint().url();
            if !provider.requests.is_allowed(endpoint) {
                return Err(self.malformed("an authorization endpoint without TLS"));
            }
            let client = self.client(&provider)?;
            let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
            let flow = CoreAuthenticationFlow::AuthorizationCode;
            let request = client
                .authorize_url(flow, CsrfToken::new_random, Nonce::new_random)
                .add_scopes(self.scopes(&provider.metadata))
                .set_pkce_challenge(challenge);
            let (url, state, nonce) = request.url();
            let started = Started {
                state: state.into_secret(),
                nonce: nonce.secret().clone(),
                verifier: verifier.into_secret(),
            };
            Ok((url.into(), started))
        })
        .await
    }

    /// Exchanges the code of the issuer for an ID token, and returns its user.
    async fn finish(&self, code: String, started: Started) -> Result<Identity, OidcError> {
        let Started {
            state: _,
            nonce,
            verifier,
        } = started;
        self.within(async {
            let provider = self.provider(KNOWN_FOR).await?;
            let client = self.client(&provider)?;
            let exchange = client
                .exchange_code(AuthorizationCode::new(code))
                .map_err(|_| self.malformed("no token endpoint"))?
                .set_pkce_verifier(PkceCodeVerifier::new(verifier));
            let response = exchange.request_async(&provider.requests).await;
            let response = response.map_err(|error| match error {
                RequestTokenError::Request(error) => self.unreachable(&error),
                RequestTokenError::ServerResponse(_) => {
                    self.malformed("an error instead of a token")
                }
                _ => self.malformed("no answer that is a token"),
            })?;
            let missing = OidcError::IdToken("there is none");
            let token = response.id_token().ok_or(missing)?;
            let nonce = Nonce::new(nonce);
            let mut verified = verify(token, &self.config.client.id, &provider, &nonce);
            if verified.as_ref().is_err_and(has_no_key) && provider.at.elapsed() >= STALE {
                // The issuer can have changed its keys.
                let provider = self.provider(STALE).await?;
                verified = verify(token, &self.config.client.id, &provider, &nonce);
            }
            verified.map_err(|error| OidcError::IdToken(reason(&error)))?;
            let claims = payload(token).ok_or(OidcError::IdToken("its claims are not JSON"))?;
            let user = claims::identity(&claims, &self.config.client);
            user.map_err(|error: ClaimError| OidcError::Claims(error.into()))
        })
        .await
    }

    async fn within<T>(
        &self,
        work: impl Future<Output = Result<T, OidcError>>,
    ) -> Result<T, OidcError> {
        let limited = async {
            // The semaphore is never closed.
            let _permit = self.permits.acquire().await;
            work.await
        };
        // The state machines of the protocol are large.
        let limited = timeout(DEADLINE, Box::pin(limited)).await;
        limited.map_err(|_| OidcError::Late)?
    }

    /// Returns endpoints and keys that were read within this time.
    async fn provider(&self, age: Duration) -> Result<Arc<Provider>, OidcError> {
        let mut known = self.provider.lock().await;
        if let Some(provider) = known.as_ref()
            && provider.at.elapsed() < age
        {
            return Ok(Arc::clone(provider));
        }
        let requests = self.requests()?;
        let address = self.config.client.issuer.clone();
        let issuer = IssuerUrl::new(address.clone()).map_err(|_| OidcError::Url(address))?;
        let metadata = CoreProviderMetadata::discover_async(issuer, &requests).await;
        let metadata = metadata.map_err(|error| match error {
            DiscoveryError::Request(error) => self.unreachable(&error),
            DiscoveryError::Response(status, ..) => {
                self.malformed(format!("status {status} or no JSON for its configuration"))
            }
            DiscoveryError::Validation(_) => self.malformed("the configuration of another issuer"),
            _ => self.malformed("no configuration of an issuer"),
        })?;
        let provider = Arc::new(Provider {
            metadata,
            requests,
            at: Instant::now(),
        });
        *known = Some(Arc::clone(&provider));
        Ok(provider)
    }

    fn client(&self, provider: &Provider) -> Result<KnownClient, OidcError> {
        let metadata = provider.metadata.clone();
        let id = ClientId::new(self.config.client.id.clone());
        let methods = metadata.token_endpoint_auth_methods_supported();
        let is_in_body = methods.is_some_and(|methods| {
            let basic = CoreClientAuthMethod::ClientSecretBasic;
            let post = CoreClientAuthMethod::ClientSecretPost;
            methods.contains(&post) && !methods.contains(&basic)
        });
        let client = CoreClient::from_provider_metadata(metadata, id, self.secret()?);
        let client = client.set_redirect_uri(self.callback()?);
        Ok(if is_in_body {
            client.set_auth_type(AuthType::RequestBody)
        } else {
            client
        })
    }

    fn callback(&self) -> Result<RedirectUrl, OidcError> {
        let url = format!("{}/login/callback", self.config.page);
        RedirectUrl::new(url.clone()).map_err(|_| OidcError::Url(url))
    }

    fn requests(&self) -> Result<IssuerRequests, OidcError> {
        let authorities = self.file(self.config.client.authorities.as_deref())?;
        IssuerRequests::new(&self.url, authorities.as_deref()).map_err(OidcError::Client)
    }

    /// Reads the secret of the client. The file is read for each use, so that it can be rotated.
    fn secret(&self) -> Result<Option<ClientSecret>, OidcError> {
        let Some(bytes) = self.file(self.config.client.secret.as_deref())? else {
            return Ok(None);
        };
        let text = String::from_utf8(bytes).map_err(|_| OidcError::Secret)?;
        let text = text.trim();
        if text.is_empty() || text.contains(char::is_control) {
            return Err(OidcError::Secret);
        }
        Ok(Some(ClientSecret::new(text.to_owned())))
    }

    fn file(&self, name: Option<&str>) -> Result<Option<Vec<u8>>, OidcError> {
        let read = |name: &str| pleach_files::read(&self.config.folder.join(name));
        name.map(read).transpose().map_err(OidcError::File)
    }

    fn scopes(&self, metadata: &CoreProviderMetadata) -> Vec<Scope> {
        if let Some(scopes) = &self.config.client.scopes {
            return scopes.iter().cloned().map(Scope::new).collect();
        }
        let listed = metadata.scopes_supported();
        let is_listed = |scope: &Scope| match listed {
            Some(listed) => listed.contains(scope),
            None => scope.as_str() != "groups",
        };
        let scopes = SCOPES.map(|scope| Scope::new(scope.to_owned()));
        scopes.into_iter().filter(is_listed).collect()
    }

    fn unreachable(&self, error: &RequestError) -> OidcError {
        OidcError::Unreachable {
            host: self.host().to_owned(),
            reason: pleach_engine::words(error),
        }
    }

    fn malformed(&self, reason: impl Into<String>) -> OidcError {
        OidcError::Malformed {
            host: self.host().to_owned(),
            reason: reason.into(),
        }
    }
}

fn verify(
    token: &CoreIdToken,
    id: &str,
    provider: &Provider,
    nonce: &Nonce,
) -> Result<(), ClaimsVerificationError> {
    let metadata = &provider.metadata;
    let (id, issuer) = (ClientId::new(id.to_owned()), metadata.issuer().clone());
    // A client without a secret accepts no signature with a shared key.
    let verifier = CoreIdTokenVerifier::new_public_client(id, issuer, metadata.jwks().clone());
    let verifier = verifier.set_allowed_algs(ALGORITHMS);
    token.claims(&verifier, nonce).map(drop)
}

fn has_no_key(error: &ClaimsVerificationError) -> bool {
    matches!(
        error,
        ClaimsVerificationError::SignatureVerification(
            SignatureVerificationError::NoMatchingKey | SignatureVerificationError::CryptoError(_)
        )
    )
}

/// Returns the reason without values of the token.
fn reason(error: &ClaimsVerificationError) -> &'static str {
    match error {
        ClaimsVerificationError::Expired(_) => "it has expired",
        ClaimsVerificationError::InvalidAudience(_) => "it is for another client (`aud`)",
        ClaimsVerificationError::InvalidIssuer(_) => "it is of another issuer (`iss`)",
        ClaimsVerificationError::InvalidNonce(_) => "it is of another sign-in (`nonce`)",
        ClaimsVerificationError::SignatureVerification(error) => match error {
            SignatureVerificationError::NoMatchingKey => "the issuer has no key for its signature",
            SignatureVerificationError::DisallowedAlg(_)
            | SignatureVerificationError::UnsupportedAlg(_)
            | SignatureVerificationError::NoSignature => {
                "the algorithm of its signature (`alg`) is not accepted"
            }
            _ => "its signature is wrong",
        },
        _ => "it has an unsupported form",
    }
}

/// Returns the claims of a verified token.
fn payload(token: &CoreIdToken) -> Option<serde_json::Map<String, serde_json::Value>> {
    let text = token.to_string();
    let payload = text.split('.').nth(1)?;
    let bytes = URL_SAFE_NO_PAD.decode(payload).ok()?;
    serde_json::from_slice(&bytes).ok()
}
