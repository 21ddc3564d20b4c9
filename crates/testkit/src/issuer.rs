//! Identity provider for sign-ins on loopback, with a new key for each start.
//!
//! It signs in one user without a question: the authorization endpoint redirects at once. A test
//! can select one fault.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::anyhow;
use axum::body::Body;
use axum::extract::{FromRequest as _, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Form, Router};
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use jiff::Timestamp;
use ring::digest::{SHA256, digest};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};

use crate::loopback::Loopback;

/// Id of the client that the issuer knows.
pub const CLIENT: &str = "pleach";
/// Secret of the client, with a character that needs an escape.
pub const SECRET: &str = "secret of+the/client";
/// The code of every sign-in.
const CODE: &str = "code-of-the-issuer";

/// Deviation of the issuer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// None.
    #[default]
    None,
    /// The configuration is not answered.
    SilentConfiguration,
    /// The configuration never ends.
    HugeConfiguration,
    /// The configuration is of another issuer.
    OtherConfiguration,
    /// The token is not answered.
    SilentToken,
    /// The token is an answer without an end.
    HugeToken,
    /// The code is refused.
    RefusedCode,
    /// There is no ID token.
    NoIdToken,
    /// Claim `nonce` of another sign-in.
    WrongNonce,
    /// Claim `aud` of another client.
    WrongAudience,
    /// Claim `iss` of another issuer.
    WrongIssuer,
    /// Claim `exp` in the past.
    Expired,
    /// The signature is by a key that the issuer does not publish.
    WrongSignature,
    /// `alg: none`, and no signature.
    NoSignature,
    /// The signature is by the secret of the client (`alg: HS256`).
    SharedKey,
    /// The claims changed after the signature.
    ChangedClaims,
    /// The authorization endpoint denies access.
    Denied,
}

/// Started sign-in.
#[derive(Debug, Default, Clone)]
struct Started {
    nonce: String,
    challenge: String,
    redirect: String,
}

/// State of the issuer.
struct Provider {
    url: Mutex<String>,
    key: Mutex<EcdsaKeyPair>,
    claims: Mutex<Value>,
    fault: Mutex<Fault>,
    started: Mutex<Started>,
    seen: Mutex<Vec<String>>,
}

/// Running issuer. Dropping it ends it.
pub struct Issuer {
    provider: Arc<Provider>,
    _server: Loopback,
}

fn lock<T>(value: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

fn new_key() -> anyhow::Result<EcdsaKeyPair> {
    let random = SystemRandom::new();
    let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
    let key = EcdsaKeyPair::generate_pkcs8(algorithm, &random)
        .map_err(|_| anyhow!("no key was generated"))?;
    EcdsaKeyPair::from_pkcs8(algorithm, key.as_ref(), &random)
        .map_err(|_| anyhow!("the key is not usable"))
}

impl Issuer {
    /// Starts an issuer, whose user has these claims besides the usual ones.
    pub fn start(claims: Value) -> anyhow::Result<Self> {
        let provider = Arc::new(Provider {
            url: Mutex::default(),
            key: Mutex::new(new_key()?),
            claims: Mutex::new(claims),
            fault: Mutex::default(),
            started: Mutex::default(),
            seen: Mutex::default(),
        });
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(configuration))
            .route("/keys", get(keys))
            .route("/authorize", get(authorize))
            .route("/token", post(token))
            .with_state(Arc::clone(&provider));
        let server = Loopback::start(0, router)?;
        *lock(&provider.url) = format!("http://{}", server.address());
        Ok(Self {
            provider,
            _server: server,
        })
    }

    /// Returns the URL of the issuer.
    pub fn url(&self) -> String {
        lock(&self.provider.url).clone()
    }

    /// Selects a fault.
    pub fn fail(&self, fault: Fault) {
        *lock(&self.provider.fault) = fault;
    }

    /// Replaces the claims of the user.
    pub fn replace_claims(&self, claims: Value) {
        *lock(&self.provider.claims) = claims;
    }

    /// Replaces the key, as issuers do from time to time.
    pub fn rotate_key(&self) -> anyhow::Result<()> {
        *lock(&self.provider.key) = new_key()?;
        Ok(())
    }

    /// Returns the paths of the requests so far.
    pub fn requests(&self) -> Vec<String> {
        lock(&self.provider.seen).clone()
    }
}

impl Provider {
    fn see(&self, path: &str) -> Fault {
        lock(&self.seen).push(path.to_owned());
        *lock(&self.fault)
    }

    /// Returns a signed ID token.
    fn id_token(&self, fault: Fault, nonce: &str) -> anyhow::Result<String> {
        let now = Timestamp::now().as_second();
        let mut claims = json!({
            "iss": *lock(&self.url), "aud": CLIENT, "sub": "ann-1", "nonce": nonce,
            "iat": now, "exp": now + 300,
        });
        if let (Some(claims), Some(more)) = (claims.as_object_mut(), lock(&self.claims).as_object())
        {
            claims.extend(more.clone());
        }
        match fault {
            Fault::WrongNonce => claims["nonce"] = json!("another"),
            Fault::WrongAudience => claims["aud"] = json!("another"),
            Fault::WrongIssuer => claims["iss"] = json!("https://login.example.org"),
            Fault::Expired => claims["exp"] = json!(now - 1),
            _ => {}
        }
        let key = lock(&self.key);
        let algorithm = match fault {
            Fault::NoSignature => "none",
            Fault::SharedKey => "HS256",
            _ => "ES256",
        };
        let header = json!({"alg": algorithm, "typ": "JWT", "kid": key_id(&key)});
        let encode = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", encode(&header), encode(&claims));
        let sign = |key: &EcdsaKeyPair| {
            let signature = key.sign(&SystemRandom::new(), signed.as_bytes());
            let signature = signature.map_err(|_| anyhow!("nothing was signed"))?;
            anyhow::Ok(signature.as_ref().to_vec())
        };
        let signature = match fault {
            Fault::NoSignature => Vec::new(),
            Fault::SharedKey => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
                hmac::sign(&key, signed.as_bytes()).as_ref().to_vec()
            }
            Fault::WrongSignature => sign(&new_key()?)?,
            _ => sign(&key)?,
        };
        let signature = BASE64_URL_SAFE_NO_PAD.encode(signature);
        if fault == Fault::ChangedClaims {
            claims["sub"] = json!("root");
            return Ok(format!(
                "{}.{}.{signature}",
                encode(&header),
                encode(&claims)
            ));
        }
        Ok(format!("{signed}.{signature}"))
    }
}

fn key_id(key: &EcdsaKeyPair) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(digest(&SHA256, key.public_key().as_ref()))
}

/// Answers with JSON without an end.
fn endless() -> Response {
    let part = Bytes::from(vec![b' '; 64 * 1024]);
    let parts = futures::stream::repeat_with(move || Ok::<_, std::io::Error>(part.clone()));
    let content_type = [(header::CONTENT_TYPE, "application/json")];
    (content_type, Body::from_stream(parts)).into_response()
}

async fn configuration(State(provider): State<Arc<Provider>>) -> Response {
    let fault = provider.see("configuration");
    let url = lock(&provider.url).clone();
    let issuer = match fault {
        Fault::SilentConfiguration => return std::future::pending().await,
        Fault::HugeConfiguration => return endless(),
        Fault::OtherConfiguration => "https://login.example.org".to_owned(),
        _ => url.clone(),
    };
    let configuration = json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{url}/authorize"),
        "token_endpoint": format!("{url}/token"),
        "jwks_uri": format!("{url}/keys"),
        "response_types_supported": ["code"],
        "subject_types_supported": ["public"],
        // Some issuers list algorithms that no client should accept.
        "id_token_signing_alg_values_supported": ["ES256", "HS256", "none"],
        "scopes_supported": ["openid", "email", "groups"],
    });
    axum::Json(configuration).into_response()
}

async fn keys(State(provider): State<Arc<Provider>>) -> Response {
    provider.see("keys");
    let key = lock(&provider.key);
    // An uncompressed point: 4, x and y.
    let point = key.public_key().as_ref();
    let [x, y] = [&point[1..33], &point[33..65]].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part));
    let key = json!({"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256",
        "kid": key_id(&key), "x": x, "y": y});
    axum::Json(json!({ "keys": [key] })).into_response()
}

async fn authorize(
    State(provider): State<Arc<Provider>>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    let fault = provider.see("authorize");
    let of = |key: &str| query.get(key).cloned().unwrap_or_default();
    let scopes = of("scope");
    let is_sound = of("client_id") == CLIENT
        && of("response_type") == "code"
        && of("code_challenge_method") == "S256"
        && scopes.split(' ').any(|scope| scope == "openid");
    if !is_sound {
        return StatusCode::BAD_REQUEST.into_response();
    }
    let redirect = of("redirect_uri");
    let state = of("state");
    let answer = match fault {
        Fault::Denied => "error=access_denied".to_owned(),
        _ => format!("code={CODE}"),
    };
    let url = format!("{redirect}?{answer}&state={state}");
    *lock(&provider.started) = Started {
        nonce: of("nonce"),
        challenge: of("code_challenge"),
        redirect,
    };
    (StatusCode::FOUND, [(header::LOCATION, url)]).into_response()
}

async fn token(State(provider): State<Arc<Provider>>, request: Request) -> Response {
    let fault = provider.see("token");
    match fault {
        Fault::SilentToken => return std::future::pending().await,
        Fault::HugeToken => return endless(),
        _ => {}
    }
    let refused = |error: &str| {
        let error = json!({"error": error, "error_description": CODE});
        (StatusCode::BAD_REQUEST, axum::Json(error)).into_response()
    };
    let started = lock(&provider.started).clone();
    if !is_client(&request) {
        return refused("invalid_client");
    }
    let Ok(Form(form)) = Form::<BTreeMap<String, String>>::from_request(request, &()).await else {
        return refused("invalid_request");
    };
    let of = |key: &str| form.get(key).map(String::as_str).unwrap_or_default();
    let challenge = BASE64_URL_SAFE_NO_PAD.encode(digest(&SHA256, of("code_verifier").as_bytes()));
    let is_sound = of("grant_type") == "authorization_code"
        && of("code") == CODE
        && of("redirect_uri") == started.redirect
        && challenge == started.challenge;
    if !is_sound || fault == Fault::RefusedCode {
        return refused("invalid_grant");
    }
    let mut answer = json!({"access_token": "access-of-the-issuer", "token_type": "Bearer"});
    if fault != Fault::NoIdToken {
        match provider.id_token(fault, &started.nonce) {
            Ok(token) => answer["id_token"] = json!(token),
            Err(_) => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
    axum::Json(answer).into_response()
}

/// Returns whether a request has the secret of the client, escaped as RFC 6749 requires.
fn is_client(request: &Request) -> bool {
    let value = request.headers().get(header::AUTHORIZATION);
    let value = value.and_then(|value| value.to_str().ok()?.strip_prefix("Basic "));
    let pair = value.and_then(|value| BASE64_STANDARD.decode(value).ok());
    pair.as_deref() == Some(format!("{CLIENT}:secret+of%2Bthe%2Fclient").as_bytes())
}
