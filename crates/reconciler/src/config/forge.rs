//! API address of a repository's forge, and the repository's name there, derived from its clone
//! URL.

use core::net::SocketAddr;

use super::Transport;
use pleach_formats::file::ForgeKind;

/// A repository on its forge.
///
/// ```
/// use pleach_reconciler::config::ForgeAddress;
/// use pleach_formats::file::ForgeKind;
///
/// let url = "git@git.example.org:team/infra/fleet.git";
/// let fleet = ForgeAddress::of(ForgeKind::Gitlab, url, None).unwrap();
/// assert_eq!(fleet.api, "https://git.example.org/api/v4");
/// assert_eq!(fleet.project, "team/infra/fleet");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForgeAddress {
    /// Kind of forge.
    pub kind: ForgeKind,
    /// Root of its API, without a trailing `/`.
    pub api: String,
    /// Owner and name, including GitLab subgroups.
    pub project: String,
}

impl ForgeAddress {
    /// Derives the address from a clone URL. `api` overrides the default API root of the product.
    pub fn of(kind: ForgeKind, repository: &str, api: Option<&str>) -> Result<Self, String> {
        let (base, path) =
            parts(repository).ok_or("expected a repository URL with the host of the forge")?;
        let api = match api {
            Some(api) => check_api(api)?,
            None => default_api(kind, &base),
        };
        // If the forge is served below a path, clone URLs include that path.
        let below = api
            .split_once("://")
            .and_then(|(_, rest)| rest.split_once('/'))
            .and_then(|(_, path)| path.split("api/").next())
            .unwrap_or_default();
        let path = path.strip_prefix(below).unwrap_or(path);
        Self::named(kind, api, path)
    }

    /// Creates an address from the name on the forge.
    pub fn named(kind: ForgeKind, api: String, project: &str) -> Result<Self, String> {
        let project = project.trim_matches('/');
        let project = project.strip_suffix(".git").unwrap_or(project);
        let parts: Vec<&str> = project.split('/').collect();
        let is_name = |part: &&str| !matches!(*part, "" | "." | "..");
        let has_groups = kind == ForgeKind::Gitlab;
        if !parts.iter().all(is_name) || (parts.len() > 2 && !has_groups) {
            return Err(format!("`{project}` is not OWNER/NAME"));
        }
        Ok(Self {
            kind,
            api,
            project: project.to_owned(),
        })
    }
}

/// Checks the root of an API. It must use https, because tokens are sent there.
pub fn check_api(url: &str) -> Result<String, String> {
    let trimmed = url.trim_end_matches('/');
    let authority = |rest: &str| rest.split('/').next().unwrap_or_default().to_owned();
    match trimmed.split_once("://") {
        Some(("https" | "http", rest)) if authority(rest).contains('@') => {
            Err("credentials belong in a file, not in the URL".to_owned())
        }
        Some(("https", rest)) if !authority(rest).is_empty() => Ok(trimmed.to_owned()),
        Some(("http", rest)) if is_loopback(&authority(rest)) => Ok(trimmed.to_owned()),
        Some(("http", _)) => Err("tokens are sent over https only".to_owned()),
        _ => Err("expected the https URL of an API".to_owned()),
    }
}

/// Splits a clone URL into the root of the host and the path of the repository.
fn parts(repository: &str) -> Option<(String, &str)> {
    let transport = Transport::of(repository)?;
    if transport == Transport::Local {
        return None;
    }
    let Some((scheme, rest)) = repository.split_once("://") else {
        let (host, path) = repository.split_once(':')?;
        return Some((format!("https://{}", host.rsplit('@').next()?), path));
    };
    let (authority, path) = rest.split_once('/')?;
    let host = authority.rsplit('@').next()?;
    let base = match transport {
        // The SSH port does not apply to the API.
        Transport::Ssh => format!("https://{}", without_port(host)),
        _ => format!("{scheme}://{host}"),
    };
    Some((base, path))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

fn default_api(kind: ForgeKind, base: &str) -> String {
    match kind {
        ForgeKind::Github if base == "https://github.com" => "https://api.github.com".to_owned(),
        ForgeKind::Github => format!("{base}/api/v3"),
        ForgeKind::Gitlab => format!("{base}/api/v4"),
        ForgeKind::Gitea => format!("{base}/api/v1"),
    }
}

/// Returns whether an authority is the local machine.
pub(super) fn is_loopback(authority: &str) -> bool {
    authority
        .parse::<SocketAddr>()
        .is_ok_and(|address| address.ip().is_loopback())
        || authority.split(':').next() == Some("localhost")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(
        ForgeKind::Github,
        "https://github.com/example/fleet.git",
        None,
        "https://api.github.com",
        "example/fleet"
    )]
    #[case(
        ForgeKind::Github,
        "ssh://git@github.com:22/example/fleet",
        None,
        "https://api.github.com",
        "example/fleet"
    )]
    #[case(
        ForgeKind::Github,
        "https://git.example.org/example/fleet/",
        None,
        "https://git.example.org/api/v3",
        "example/fleet"
    )]
    #[case(
        ForgeKind::Github,
        "https://git.example.org/example/fleet",
        Some("https://api.example.org/"),
        "https://api.example.org",
        "example/fleet"
    )]
    #[case(
        ForgeKind::Gitlab,
        "https://git.example.org:8443/a/b/c.git",
        None,
        "https://git.example.org:8443/api/v4",
        "a/b/c"
    )]
    #[case(
        ForgeKind::Gitlab,
        "https://example.org/gitlab/a/b.git",
        Some("https://example.org/gitlab/api/v4"),
        "https://example.org/gitlab/api/v4",
        "a/b"
    )]
    #[case(
        ForgeKind::Gitea,
        "git@git.example.org:example/fleet.git",
        None,
        "https://git.example.org/api/v1",
        "example/fleet"
    )]
    #[case(
        ForgeKind::Gitea,
        "http://127.0.0.1:3000/example/fleet.git",
        None,
        "http://127.0.0.1:3000/api/v1",
        "example/fleet"
    )]
    fn the_forge_is_found_by_the_url(
        #[case] kind: ForgeKind,
        #[case] repository: &str,
        #[case] given: Option<&str>,
        #[case] api: &str,
        #[case] project: &str,
    ) {
        let found = ForgeAddress::of(kind, repository, given).unwrap();
        assert_eq!((found.api.as_str(), found.project.as_str()), (api, project));
    }

    #[rstest]
    #[case(ForgeKind::Github, "/srv/fleet", None, "expected a repository URL")]
    #[case(ForgeKind::Github, "https://github.com/", None, "is not OWNER/NAME")]
    #[case(
        ForgeKind::Gitea,
        "https://git.example.org/a/b/c",
        None,
        "is not OWNER/NAME"
    )]
    #[case(
        ForgeKind::Gitlab,
        "https://git.example.org/a/../c",
        None,
        "is not OWNER/NAME"
    )]
    #[case(
        ForgeKind::Gitlab,
        "https://git.example.org/a/b",
        Some("http://git.example.org/api/v4"),
        "over https only"
    )]
    #[case(
        ForgeKind::Gitlab,
        "https://git.example.org/a/b",
        Some("https://me:pass@git.example.org"),
        "belong in a file"
    )]
    #[case(
        ForgeKind::Gitlab,
        "https://git.example.org/a/b",
        Some("git.example.org"),
        "expected the https URL"
    )]
    fn what_is_no_forge_is_refused(
        #[case] kind: ForgeKind,
        #[case] repository: &str,
        #[case] given: Option<&str>,
        #[case] words: &str,
    ) {
        let error = ForgeAddress::of(kind, repository, given).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}
