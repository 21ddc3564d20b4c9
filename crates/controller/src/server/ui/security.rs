//! Protection of the web page against other web sites and oversized requests.
//!
//! Each rule is a function of the request head. [`secured`] applies all of them, and adds the
//! headers to every answer.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use pleach_reconciler::config::Page;
use tokio::time::timeout;

use crate::server::bounds::bounded;

/// Maximum size of a request body, in bytes.
const LARGEST: usize = 16 * 1024;
/// Time-out of a request until the head of its answer.
const REQUEST: Duration = Duration::from_secs(10);

/// Content security policy of every answer.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";
/// Headers of every answer.
const HEADERS: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (header::X_FRAME_OPTIONS, "DENY"),
];
/// Duration for which browsers use TLS only, with TLS.
const TRANSPORT_SECURITY: &str = "max-age=31536000";

/// Facts of the configuration that the rules need.
#[derive(Debug, Clone)]
pub struct Security {
    /// Whether only clients on this machine reach the listener, with any name in `Host`.
    is_on_loopback: bool,
    /// Whether browsers reach the page over TLS only.
    is_encrypted: bool,
    /// Host and port of the external address.
    host: Option<String>,
}

impl Security {
    /// Reads the facts.
    pub fn of(page: &Page) -> Self {
        Self {
            is_on_loopback: page.listen.ip().is_loopback(),
            is_encrypted: page.is_encrypted(),
            host: page.host().map(str::to_owned),
        }
    }

    /// Returns the reason to refuse a request, or `None`.
    fn refusal(&self, method: &Method, headers: &HeaderMap) -> Option<(StatusCode, &'static str)> {
        if self.is_on_loopback && !self.is_own_host(headers) {
            let message = "this host name does not belong to the page\n";
            return Some((StatusCode::MISDIRECTED_REQUEST, message));
        }
        if !method.is_safe() && !self.is_of_own_page(headers) {
            let message = "the request comes from another web site\n";
            return Some((StatusCode::FORBIDDEN, message));
        }
        None
    }

    /// Returns whether `Host` is a loopback name, or the external one. A web site can make its own
    /// name resolve to loopback, but browsers send that name.
    fn is_own_host(&self, headers: &HeaderMap) -> bool {
        let Some(host) = only(headers, &header::HOST) else {
            return false;
        };
        let name = without_port(host);
        let external = self.host.as_deref().map(without_port);
        let names = [
            Some("localhost"),
            Some("127.0.0.1"),
            Some("[::1]"),
            external,
        ];
        names
            .into_iter()
            .flatten()
            .any(|own| own.eq_ignore_ascii_case(name))
    }

    /// Returns whether a browser sent the request from this page. Old browsers send no
    /// `Sec-Fetch-Site`; their `Origin` must then be this host.
    fn is_of_own_page(&self, headers: &HeaderMap) -> bool {
        if headers.contains_key("sec-fetch-site") {
            let site = only(headers, &HeaderName::from_static("sec-fetch-site"));
            return matches!(site, Some("same-origin" | "none"));
        }
        let origin = only(headers, &header::ORIGIN);
        let Some((_, origin)) = origin.and_then(|origin| origin.split_once("://")) else {
            return false;
        };
        let hosts = [only(headers, &header::HOST), self.host.as_deref()];
        hosts
            .into_iter()
            .flatten()
            .any(|host| host.eq_ignore_ascii_case(origin))
    }

    /// Adds the headers of every answer. A handler decides about caching of its own answer.
    fn protect(&self, headers: &mut HeaderMap) {
        for (name, value) in HEADERS {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers
            .entry(header::CACHE_CONTROL)
            .or_insert(HeaderValue::from_static("no-store"));
        if self.is_encrypted {
            let value = HeaderValue::from_static(TRANSPORT_SECURITY);
            headers.insert(header::STRICT_TRANSPORT_SECURITY, value);
        }
    }
}

/// Adds all rules to a router.
pub fn secured(router: Router, security: Security) -> Router {
    bounded(router, LARGEST).layer(from_fn_with_state(Arc::new(security), check))
}

async fn check(State(security): State<Arc<Security>>, request: Request, next: Next) -> Response {
    let mut response = match security.refusal(request.method(), request.headers()) {
        Some(refusal) => refusal.into_response(),
        None => match timeout(REQUEST, next.run(request)).await {
            Ok(response) => response,
            Err(_) => StatusCode::REQUEST_TIMEOUT.into_response(),
        },
    };
    security.protect(response.headers_mut());
    response
}

/// Returns the value of a header that occurs exactly once.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // A colon within brackets belongs to an IPv6 address.
        Some((name, port)) if !port.contains(']') => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn security(is_on_loopback: bool, host: Option<&str>) -> Security {
        Security {
            is_on_loopback,
            is_encrypted: false,
            host: host.map(str::to_owned),
        }
    }

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_page_on_loopback_has_few_names() {
        for (host, expected) in [
            (Some("localhost"), true),
            (Some("LOCALHOST:8081"), true),
            (Some("127.0.0.1:8081"), true),
            (Some("[::1]:8081"), true),
            (Some("[::1]"), true),
            (Some("pleach.example.org"), true),
            (Some("pleach.example.org:444"), true),
            (Some("evil.example.org"), false),
            (Some("localhost.evil.example.org"), false),
            (Some("127.0.0.1.evil.example.org:8081"), false),
            (Some("::1"), false),
            (Some(""), false),
            (None, false),
        ] {
            let list: Vec<_> = host.iter().map(|host| ("host", *host)).collect();
            let security = security(true, Some("pleach.example.org"));
            let refusal = security.refusal(&Method::GET, &headers(&list));
            let code = refusal.map(|(code, _)| code.as_u16());
            assert_eq!(code, (!expected).then_some(421), "{host:?}");
        }
        let other = headers(&[("host", "10.0.0.7:8081")]);
        assert_eq!(security(false, None).refusal(&Method::GET, &other), None);
        let two = headers(&[("host", "localhost"), ("host", "evil.example.org")]);
        assert!(security(true, None).refusal(&Method::GET, &two).is_some());
    }

    #[test]
    fn other_sites_send_no_unsafe_requests() {
        let site = "sec-fetch-site";
        let origin = "origin";
        for (list, expected) in [
            (vec![(site, "same-origin")], true),
            (vec![(site, "none")], true),
            (vec![(site, "same-site")], false),
            (vec![(site, "cross-site")], false),
            (
                vec![(site, "cross-site"), (origin, "https://p.example.org")],
                false,
            ),
            (vec![(site, "same-origin"), (site, "cross-site")], false),
            (vec![(origin, "https://p.example.org")], true),
            (vec![(origin, "https://external.example.org")], true),
            (vec![(origin, "https://p.example.org:444")], false),
            (vec![(origin, "https://evil.example.org")], false),
            (vec![(origin, "null")], false),
            (vec![], false),
        ] {
            let mut all = list.clone();
            all.push(("host", "p.example.org"));
            let security = security(false, Some("external.example.org"));
            let refusal = |method: Method| {
                let refusal = security.refusal(&method, &headers(&all));
                refusal.map(|(code, _)| code.as_u16())
            };
            let code = (!expected).then_some(403);
            assert_eq!(refusal(Method::POST), code, "{list:?}");
            assert_eq!(refusal(Method::DELETE), code, "{list:?}");
            assert_eq!(refusal(Method::GET), None, "{list:?}");
        }
    }
}
