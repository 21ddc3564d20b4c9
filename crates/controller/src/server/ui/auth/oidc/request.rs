//! Requests to an identity provider: time-outs, a size limit, and no redirects.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use axum::http;
use axum::http::header::{AUTHORIZATION, HeaderValue};
use openidconnect::{AsyncHttpClient, HttpRequest, HttpResponse};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Url};

/// Time-out of the connection.
const CONNECT: Duration = Duration::from_secs(3);
/// Time-out of a whole request.
const REQUEST: Duration = Duration::from_secs(5);
/// Largest answer, in bytes.
const LARGEST: usize = 256 * 1024;

/// Client of one identity provider.
#[derive(Debug)]
pub(super) struct IssuerRequests {
    http: Client,
    /// Whether the issuer is on this machine and has no TLS.
    is_plain: bool,
}

/// Failure of a request. It has no text of the answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    /// The issuer names a URL without TLS.
    #[error("expected an https URL from the issuer")]
    Insecure,
    /// The request failed.
    #[error("no answer")]
    Connection(#[source] reqwest::Error),
    /// The answer is too large.
    #[error("the answer has more than {LARGEST} bytes")]
    TooLarge,
    /// The request or the answer is not HTTP.
    #[error("not an HTTP message")]
    Malformed,
}

impl IssuerRequests {
    /// Creates a client. `authorities` are CA certificates in PEM, besides those of the machine.
    pub(super) fn new(issuer: &Url, authorities: Option<&[u8]>) -> Result<Self, reqwest::Error> {
        // Fails if the program has installed one, which is the same.
        drop(rustls::crypto::ring::default_provider().install_default());
        let is_plain = issuer.scheme() == "http";
        let mut client = Client::builder();
        if is_plain {
            // Only issuers on this machine have http. A proxy must not receive the secret.
            client = client.no_proxy();
        }
        if let Some(authorities) = authorities {
            client = client.tls_certs_merge(Certificate::from_pem_bundle(authorities)?);
        }
        let http = client
            .user_agent(concat!("pleach/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT)
            .timeout(REQUEST)
            // Codes and secrets stay at their origin.
            .redirect(Policy::none())
            .build()?;
        Ok(Self { http, is_plain })
    }

    /// Returns whether a URL that the issuer names can be used.
    pub(super) fn is_allowed(&self, url: &Url) -> bool {
        let is_loopback = matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
        url.scheme() == "https" || (self.is_plain && url.scheme() == "http" && is_loopback)
    }

    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, RequestError> {
        let (mut parts, body) = request.into_parts();
        let url = Url::parse(&parts.uri.to_string()).map_err(|_| RequestError::Malformed)?;
        if !self.is_allowed(&url) {
            return Err(RequestError::Insecure);
        }
        if let Some(value) = parts.headers.get_mut(AUTHORIZATION) {
            HeaderValue::set_sensitive(value, true);
        }
        let failed = |error: reqwest::Error| RequestError::Connection(error.without_url());
        let sending = self.http.request(parts.method, url).headers(parts.headers);
        let mut response = sending.body(body).send().await.map_err(failed)?;
        let mut received = Vec::new();
        while let Some(part) = response.chunk().await.map_err(failed)? {
            if received.len() + part.len() > LARGEST {
                return Err(RequestError::TooLarge);
            }
            received.extend_from_slice(&part);
        }
        let mut answer = http::Response::new(received);
        *answer.status_mut() = response.status();
        *answer.headers_mut() = std::mem::take(response.headers_mut());
        Ok(answer)
    }
}

impl<'c> AsyncHttpClient<'c> for IssuerRequests {
    type Error = RequestError;
    type Future = Pin<Box<dyn Future<Output = Result<HttpResponse, RequestError>> + Send + 'c>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        Box::pin(self.send(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_issuer_names_urls_with_tls_only() {
        let url = |text: &str| Url::parse(text).unwrap();
        for (issuer, named, expected) in [
            ("https://a.example.org", "https://b.example.org/token", true),
            ("https://a.example.org", "http://a.example.org/token", false),
            ("https://a.example.org", "http://127.0.0.1/token", false),
            ("https://a.example.org", "file:///etc/passwd", false),
            ("http://127.0.0.1:1", "http://127.0.0.1:2/token", true),
            ("http://localhost:1", "http://[::1]:2/token", true),
            ("http://127.0.0.1:1", "http://192.0.2.1/token", false),
        ] {
            let requests = IssuerRequests::new(&url(issuer), None).unwrap();
            let is_allowed = requests.is_allowed(&url(named));
            assert_eq!(is_allowed, expected, "{issuer} {named}");
        }
    }
}
