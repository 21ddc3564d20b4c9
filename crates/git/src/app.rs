//! GitHub Apps: a private key signs requests for short-lived installation tokens.
//!
//! A token is cached until shortly before it expires. It is never written to disk.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use rustls::SignatureScheme;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Deserialize;
use serde_json::json;

use super::program::one_line;
use super::{GitError, with_causes};

/// User name for an installation token.
pub(super) const USER: &str = "x-access-token";

/// Minimum remaining lifetime of a token, as a fetch can take this long.
const MARGIN: SignedDuration = SignedDuration::from_mins(10);
/// Lifetime of a signed request in seconds. GitHub allows ten minutes.
const LIFETIME: i64 = 5 * 60;
/// Allowed clock skew in seconds.
const SKEW: i64 = 60;
/// Time-out of the connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Time-out of a request.
const REQUEST: Duration = Duration::from_secs(30);
/// Maximum size of an answer, in bytes.
const LARGEST: usize = 64 * 1024;

/// Installation of a GitHub App. Clones share its token.
#[derive(Clone)]
pub struct GithubApp {
    /// Id of the app.
    app: String,
    installation: String,
    /// File with the private key.
    key: PathBuf,
    /// Root of the API, without a trailing `/`.
    api: String,
    token: Arc<Mutex<Option<Token>>>,
}

#[derive(Deserialize)]
struct Token {
    token: String,
    expires_at: Timestamp,
}

impl fmt::Debug for GithubApp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never show the token.
        f.debug_struct("GithubApp")
            .field("app", &self.app)
            .field("installation", &self.installation)
            .field("api", &self.api)
            .finish_non_exhaustive()
    }
}

impl GithubApp {
    /// Creates an app with its key in a file. Sends no request.
    pub fn new(app: String, installation: String, key: PathBuf, api: String) -> Self {
        Self {
            app,
            installation,
            key,
            api,
            token: Arc::default(),
        }
    }

    /// Returns a valid token. Blocks during the request of a new one, so call it on a blocking
    /// thread.
    pub fn token(&self) -> Result<String, GitError> {
        let mut cached = self.cached();
        if let Some(token) = &*cached
            && token.expires_at.duration_since(Timestamp::now()) > MARGIN
        {
            return Ok(token.token.clone());
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| self.failed(&error.to_string()))?;
        let token = runtime.block_on(self.ask())?;
        let text = token.token.clone();
        *cached = Some(token);
        Ok(text)
    }

    /// Describes the app and its API, for messages.
    pub fn place(&self) -> String {
        format!("app {} of {}", self.app, self.api)
    }

    /// Discards the token, so that the next call requests another one. Waits for a running request.
    pub fn forget(&self) {
        *self.cached() = None;
    }

    fn cached(&self) -> MutexGuard<'_, Option<Token>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, message: &str) -> GitError {
        GitError::Token {
            api: self.api.clone(),
            message: one_line(message),
        }
    }

    async fn ask(&self) -> Result<Token, GitError> {
        let signed = self.signed(Timestamp::now())?;
        let failed = |error: reqwest::Error| {
            let error = error.without_url();
            self.failed(&with_causes(&error))
        };
        let client = reqwest::Client::builder()
            .user_agent(concat!("pleach/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT)
            .timeout(REQUEST)
            // Do not send the credentials to another host.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(failed)?;
        let path = format!("/app/installations/{}/access_tokens", self.installation);
        let mut answer = client
            .post(format!("{}{path}", self.api))
            .bearer_auth(signed)
            .header("accept", "application/vnd.github+json")
            .send()
            .await
            .map_err(failed)?;
        let status = answer.status();
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > LARGEST {
                return Err(self.failed("the response is too long"));
            }
            body.extend_from_slice(&chunk);
        }
        if !status.is_success() {
            return Err(self.failed(&format!("the API answered {status}{}", message(&body))));
        }
        // The parser's message could quote the token.
        let token: Token = serde_json::from_slice(&body)
            .map_err(|_| self.failed("the response has no token or no expiry"))?;
        if token.token.is_empty() || token.token.contains(|c: char| c.is_control()) {
            return Err(self.failed("the response has no token"));
        }
        Ok(token)
    }

    /// Returns a JSON web token of the app, signed with its key.
    fn signed(&self, now: Timestamp) -> Result<String, GitError> {
        let wrong = |why: &str| self.failed(&format!("{}: {why}", self.key.display()));
        let pem = pleach_files::read(&self.key)?;
        let key =
            PrivateKeyDer::from_pem_slice(&pem).map_err(|_| wrong("not a private key in PEM"))?;
        let key = any_supported_type(&key).map_err(|_| wrong("the key cannot be used"))?;
        let signer = key
            .choose_scheme(&[SignatureScheme::RSA_PKCS1_SHA256])
            .ok_or_else(|| wrong("it is not an RSA key"))?;
        let second = now.as_second();
        let header = json!({ "alg": "RS256", "typ": "JWT" });
        let claims = json!({
            "iat": second - SKEW,
            "exp": second + LIFETIME,
            "iss": self.app,
        });
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let text = format!(
            "{}.{}",
            encode(header.to_string().as_bytes()),
            encode(claims.to_string().as_bytes())
        );
        let signature = signer
            .sign(text.as_bytes())
            .map_err(|_| wrong("signing with it failed"))?;
        Ok(format!("{text}.{}", encode(&signature)))
    }
}

/// Returns GitHub's message of a refusal.
fn message(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Refusal {
        message: String,
    }
    let refusal: Option<Refusal> = serde_json::from_slice(body).ok();
    refusal.map_or_else(String::new, |refusal| format!(": {}", refusal.message))
}
