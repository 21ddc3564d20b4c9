//! The web page of the controller: its listener, and how users sign in.

use core::net::SocketAddr;

use super::forge::is_loopback;
use pleach_formats::file::{self, PageAuth};
use pleach_model::finding::Finding;
use pleach_model::object::{Located, Places};

/// Code of the findings about a page that strangers could reach, or whose cookies they could read.
pub const PAGE_EXPOSED: &str = "page-exposed";

/// The web page of the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Listen address.
    pub listen: SocketAddr,
    /// How users sign in.
    pub sign_in: SignIn,
    /// External address, without a trailing `/`.
    pub url: Option<String>,
    /// Certificate of the listener. `None` without TLS.
    pub tls: Option<TlsFiles>,
    /// Whether a proxy in front of the listener terminates TLS.
    pub behind_proxy: bool,
}

/// Certificate of the listener, as paths of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// File with the certificate chain in PEM.
    pub certificate: String,
    /// File with the private key in PEM.
    pub key: String,
}

/// How users of the page sign in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignIn {
    /// No sign-in. The page is read-only.
    Off,
    /// With a bearer token that the API server accepts.
    Token {
        /// File with the key of the cookies.
        cookie_key: String,
    },
    /// At an identity provider.
    Oidc {
        /// File with the key of the cookies.
        cookie_key: String,
        /// This client of the identity provider.
        client: Box<OidcClient>,
    },
}

/// A client of an identity provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OidcClient {
    /// URL of the issuer.
    pub issuer: String,
    /// Id of the client.
    pub id: String,
    /// File with the secret of the client. `None` for a public client.
    pub secret: Option<String>,
    /// File with CA certificates of the issuer, besides those of the machine.
    pub authorities: Option<String>,
    /// Scopes to request besides `openid`. `None`: the usual ones, as far as the issuer lists them.
    pub scopes: Option<Vec<String>>,
    /// Claim with the user name.
    pub username_claim: String,
    /// Prefix of user names. Can be empty.
    pub username_prefix: String,
    /// Claim with the groups. `None`: no groups.
    pub groups_claim: Option<String>,
    /// Prefix of groups. Can be empty.
    pub groups_prefix: String,
}

impl Page {
    /// Returns whether browsers reach the page over TLS only.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some() || self.behind_proxy
    }

    /// Returns host and port of the external address, as browsers send them in `Host`. `None`
    /// without such an address.
    pub fn host(&self) -> Option<&str> {
        let (_, host) = self.url.as_deref()?.split_once("://")?;
        Some(host)
    }
}

/// Reads the block `ui`. `None` without a listener, and after an error.
pub(super) fn resolve(
    declared: Located<file::WebPage>,
    findings: &mut Vec<Finding>,
) -> Option<Page> {
    let before = findings.len();
    let Located { value, places } = declared;
    let listen = value
        .listen
        .as_deref()
        .and_then(|text| listen(text, &places, findings));
    let behind_proxy = value.behind_proxy == Some(true);
    let auth = value.auth.unwrap_or(PageAuth::None);
    check_exposure(listen, (auth, &value), &places, findings);
    let url = value
        .url
        .and_then(|text| external(&text, &places, findings));
    if auth == PageAuth::Oidc && !places.has("url") {
        let message =
            "`url`: `auth: oidc` needs the external address, to which the issuer returns users";
        findings.push(places.error("missing-field", message));
    }
    let cookie_key = cookie_key(value.cookie_key_file, auth, &places, findings);
    let client = oidc(value.oidc, auth, &places, findings);
    if findings.len() > before {
        return None;
    }
    let sign_in = match (auth, cookie_key, client) {
        (PageAuth::None, None, None) => SignIn::Off,
        (PageAuth::Kubernetes, Some(cookie_key), None) => SignIn::Token { cookie_key },
        (PageAuth::Oidc, Some(cookie_key), Some(client)) => SignIn::Oidc {
            cookie_key,
            client: Box::new(client),
        },
        // Reported above.
        _ => return None,
    };
    Some(Page {
        listen: listen?,
        sign_in,
        url,
        tls: value.tls.map(|tls| TlsFiles {
            certificate: tls.value.cert_file,
            key: tls.value.key_file,
        }),
        behind_proxy,
    })
}

fn listen(text: &str, places: &Places, findings: &mut Vec<Finding>) -> Option<SocketAddr> {
    let address = text.parse().ok();
    if address.is_none() {
        let message = format!("`listen`: `{text}` is not an address such as `127.0.0.1:8081`");
        findings.push(places.error_at("listen", "invalid-value", message));
    }
    address
}

/// Refuses a page beyond loopback without sign-in or without TLS.
fn check_exposure(
    listen: Option<SocketAddr>,
    (auth, declared): (PageAuth, &file::WebPage),
    places: &Places,
    findings: &mut Vec<Finding>,
) {
    let behind_proxy = declared.behind_proxy == Some(true);
    if declared.tls.is_some() && behind_proxy {
        let message = "`behindProxy`: the listener has a certificate of its own (`tls`)";
        findings.push(places.error_at("behindProxy", "invalid-value", message));
    }
    let Some(listen) = listen.filter(|listen| !listen.ip().is_loopback()) else {
        return;
    };
    if auth == PageAuth::None {
        let message = format!(
            "`listen`: {listen} is reachable from other machines, and `auth: none` shows the page to everybody"
        );
        findings.push(
            places
                .error_at("listen", PAGE_EXPOSED, message)
                .hint("listen on 127.0.0.1, or set `auth: kubernetes` or `auth: oidc`"),
        );
    }
    if declared.tls.is_none() && !behind_proxy {
        let message = format!(
            "`listen`: {listen} is reachable from other machines without TLS, which would show tokens and cookies to the network"
        );
        findings.push(
            places
                .error_at("listen", PAGE_EXPOSED, message)
                .hint("set `tls`, or `behindProxy: true` if a proxy terminates TLS"),
        );
    }
}

/// Checks an external address: a scheme and a host, without a path.
fn external(text: &str, places: &Places, findings: &mut Vec<Finding>) -> Option<String> {
    let trimmed = text.strip_suffix('/').unwrap_or(text);
    let is_host = |host: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
        !host.is_empty() && host.bytes().all(is_part)
    };
    let is_address = match trimmed.split_once("://") {
        Some(("https", host)) => is_host(host),
        Some(("http", host)) => is_host(host) && is_loopback(host),
        _ => false,
    };
    if is_address {
        // Browsers send host names in lower case.
        return Some(trimmed.to_ascii_lowercase());
    }
    let message =
        "`url`: expected an https address without a path, such as `https://pleach.example.org`";
    findings.push(places.error_at("url", "invalid-value", message));
    None
}

/// Checks that the key of the cookies is named exactly where users sign in.
fn cookie_key(
    declared: Option<String>,
    auth: PageAuth,
    places: &Places,
    findings: &mut Vec<Finding>,
) -> Option<String> {
    match (auth, &declared) {
        (PageAuth::None, Some(_)) => {
            let message =
                "`cookieKeyFile`: it has no effect without `auth: kubernetes` or `auth: oidc`";
            findings.push(places.error_at("cookieKeyFile", "missing-field", message));
        }
        (PageAuth::Kubernetes | PageAuth::Oidc, None) => {
            let message = "`cookieKeyFile`: sign-in needs a file with 32 random bytes";
            findings.push(places.error("missing-field", message));
        }
        (PageAuth::None, None) | (PageAuth::Kubernetes | PageAuth::Oidc, Some(_)) => {}
    }
    declared
}

fn oidc(
    declared: Option<Located<file::OidcProvider>>,
    auth: PageAuth,
    places: &Places,
    findings: &mut Vec<Finding>,
) -> Option<OidcClient> {
    let Some(Located { value, places: at }) = declared else {
        if auth == PageAuth::Oidc {
            let message = "`oidc`: `auth: oidc` needs the issuer and the client";
            findings.push(places.error("missing-field", message));
        }
        return None;
    };
    if auth != PageAuth::Oidc {
        let message = "`oidc`: it has no effect without `auth: oidc`";
        findings.push(places.error_at("oidc", "missing-field", message));
    }
    let is_issuer = match value.issuer.split_once("://") {
        Some(("https", rest)) => !rest.is_empty() && !rest.contains(['@', '?', '#']),
        Some(("http", rest)) => is_loopback(rest.split('/').next().unwrap_or_default()),
        _ => false,
    };
    if !is_issuer {
        let message = "`issuer`: expected an https URL";
        findings.push(at.error_at("issuer", "invalid-value", message));
    }
    // Characters of RFC 6749.
    let is_scope = |scope: &String| {
        let is_part = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
        !scope.is_empty() && scope.bytes().all(is_part)
    };
    if !value.scopes.iter().flatten().all(is_scope) {
        let message = "`scopes`: expected names without spaces, such as `groups`";
        findings.push(at.error_at("scopes", "invalid-value", message));
    }
    if value.client_id.is_empty() {
        let message = "`clientId`: expected the id of this client at the issuer";
        findings.push(at.error_at("clientId", "invalid-value", message));
    }
    let username_claim = value.username_claim.unwrap_or_else(|| "sub".to_owned());
    check_prefix(
        "usernamePrefix",
        value.username_prefix.as_deref(),
        &at,
        findings,
    );
    if value.groups_claim.is_some() {
        check_prefix(
            "groupsPrefix",
            value.groups_prefix.as_deref(),
            &at,
            findings,
        );
    }
    Some(OidcClient {
        issuer: value.issuer,
        id: value.client_id,
        secret: value.client_secret_file,
        authorities: value.ca_file,
        scopes: value.scopes,
        username_claim,
        username_prefix: value.username_prefix.unwrap_or_default(),
        groups_claim: value.groups_claim,
        groups_prefix: value.groups_prefix.unwrap_or_default(),
    })
}

/// Requires a declared prefix. The issuer must not name accounts of Kubernetes by accident.
fn check_prefix(key: &str, prefix: Option<&str>, places: &Places, findings: &mut Vec<Finding>) {
    let hint = "it is the prefix of these names in RBAC, such as `oidc:`; `\"\"` for none";
    let (code, message) = match prefix {
        None => ("missing-field", format!("`{key}` is required")),
        Some(prefix) if prefix.starts_with("system:") => {
            let message = format!("`{key}`: `system:` is the prefix of accounts of Kubernetes");
            ("invalid-value", message)
        }
        Some(_) => return,
    };
    findings.push(places.error_at(key, code, message).hint(hint));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::read;

    const OIDC: &str =
        "oidc: {issuer: 'https://login.example.org', clientId: pleach, usernamePrefix: 'oidc:'}";

    fn page(ui: &str) -> Result<Option<Page>, Vec<String>> {
        let text = format!(
            "apiVersion: pleach.dev/v1alpha1\nkind: Controller\nui: {{{ui}}}\nrepositories:\n  - name: fleet\n    url: /srv/fleet\n    environments: [{{match: env/*, cluster: {{inCluster: true, id: c}}, allow: all}}]\n"
        );
        read("loop.yaml", text.into_bytes())
            .map(|controller| controller.page)
            .map_err(|findings| {
                let texts = findings.iter().map(|one| format!("{}: {one}", one.code));
                texts.collect()
            })
    }

    #[test]
    fn all_fields_of_the_page_are_read() {
        let ui = "listen: '0.0.0.0:8081', auth: oidc, url: 'https://Pleach.example.org/', tls: {certFile: c, keyFile: k}, cookieKeyFile: key, oidc: {issuer: 'https://login.example.org/a', clientId: pleach, clientSecretFile: s, caFile: ca, scopes: [email, groups], usernameClaim: email, usernamePrefix: 'oidc:', groupsClaim: groups, groupsPrefix: 'oidc:'}";
        let page = page(ui).unwrap().unwrap();
        assert_eq!(page.host(), Some("pleach.example.org"));
        assert!(page.is_encrypted());
        let files = TlsFiles {
            certificate: "c".to_owned(),
            key: "k".to_owned(),
        };
        assert_eq!(page.tls, Some(files));
        let SignIn::Oidc { cookie_key, client } = page.sign_in else {
            panic!("{:?}", page.sign_in)
        };
        assert_eq!(cookie_key, "key");
        assert_eq!(
            *client,
            OidcClient {
                issuer: "https://login.example.org/a".to_owned(),
                id: "pleach".to_owned(),
                secret: Some("s".to_owned()),
                authorities: Some("ca".to_owned()),
                scopes: Some(vec!["email".to_owned(), "groups".to_owned()]),
                username_claim: "email".to_owned(),
                username_prefix: "oidc:".to_owned(),
                groups_claim: Some("groups".to_owned()),
                groups_prefix: "oidc:".to_owned(),
            }
        );
    }

    #[test]
    fn sound_pages_are_accepted() {
        for (ui, is_served) in [
            ("listen: '127.0.0.1:8081'", true),
            ("listen: '[::1]:8081', auth: none", true),
            ("auth: none", false),
            (
                "listen: '127.0.0.1:0', auth: kubernetes, cookieKeyFile: key",
                true,
            ),
            (
                "listen: '0.0.0.0:1', auth: kubernetes, cookieKeyFile: key, behindProxy: true",
                true,
            ),
            ("listen: '127.0.0.1:1', url: 'http://localhost:9000'", true),
            (
                &format!(
                    "listen: '127.0.0.1:1', auth: oidc, cookieKeyFile: key, url: 'https://p', {OIDC}"
                ),
                true,
            ),
        ] {
            assert_eq!(page(ui).map(|page| page.is_some()), Ok(is_served), "{ui}");
        }
    }

    #[test]
    fn unsound_pages_are_refused() {
        let loopback = "listen: '127.0.0.1:1'";
        for (ui, expected) in [
            ("listen: here".to_owned(), "`listen`: `here` is not an address"),
            ("listen: '0.0.0.0:1', behindProxy: true".to_owned(), "page-exposed: loop.yaml:3: `listen`: 0.0.0.0:1 is reachable from other machines, and `auth: none`"),
            ("listen: '[::]:1', auth: kubernetes, cookieKeyFile: key".to_owned(), "page-exposed: loop.yaml:3: `listen`: [::]:1 is reachable from other machines without TLS"),
            ("listen: '0.0.0.0:1', auth: kubernetes, cookieKeyFile: key, behindProxy: true, tls: {certFile: c, keyFile: k}".to_owned(), "`behindProxy`"),
            (format!("{loopback}, auth: kubernetes"), "`cookieKeyFile`: sign-in needs"),
            (format!("{loopback}, cookieKeyFile: key"), "`cookieKeyFile`: it has no effect"),
            (format!("{loopback}, auth: oidc, cookieKeyFile: key, url: 'https://p'"), "`oidc`: `auth: oidc` needs"),
            (format!("{loopback}, auth: oidc, cookieKeyFile: key, {OIDC}"), "`url`: `auth: oidc` needs"),
            (format!("{loopback}, {OIDC}"), "`oidc`: it has no effect"),
            (format!("{loopback}, url: 'http://pleach.example.org'"), "`url`: expected an https address"),
            (format!("{loopback}, url: 'https://pleach.example.org/page'"), "`url`: expected an https address"),
            (format!("{loopback}, url: 'https://'"), "`url`: expected an https address"),
            (format!("{loopback}, auth: basic"), "`ui.auth`: `basic` is not one of"),
            (format!("{loopback}, tls: {{certFile: c}}"), "`keyFile` is required"),
            (format!("{loopback}, auth: oidc, cookieKeyFile: key, url: 'https://p', oidc: {{issuer: 'http://login.example.org', clientId: pleach, usernamePrefix: 'oidc:'}}"), "`issuer`: expected an https URL"),
            (format!("{loopback}, auth: oidc, cookieKeyFile: key, url: 'https://p', oidc: {{issuer: 'https://i', clientId: pleach, usernamePrefix: 'system:'}}"), "`usernamePrefix`"),
            (format!("{loopback}, auth: oidc, cookieKeyFile: key, url: 'https://p', oidc: {{issuer: 'https://i', clientId: pleach, usernamePrefix: 'o:', scopes: ['a b']}}"), "`scopes`"),
            (format!("{loopback}, auth: oidc, cookieKeyFile: key, url: 'https://p', oidc: {{issuer: 'https://i', clientId: pleach, usernamePrefix: 'o:', groupsClaim: g}}"), "`groupsPrefix`"),
        ] {
            let errors = page(&ui).unwrap_err();
            assert!(errors.iter().any(|error| error.contains(expected)), "{ui}: {errors:?}");
        }
    }
}
