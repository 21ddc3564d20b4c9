//! Credentials for a repository: exactly one of the supported kinds.

use super::{Auth, ForgeAddress};
use pleach_formats::file::{self, ForgeKind};
use pleach_model::finding::Finding;
use pleach_model::object::Located;

/// Resolves the credentials for the repository at a URL. Reports incomplete or mixed ones.
pub(super) fn credentials(
    declared: Located<file::Auth>,
    at: (&str, Option<&file::Forge>),
    findings: &mut Vec<Finding>,
) -> Option<Auth> {
    let Located { value, places } = declared;
    let file::Auth {
        username_file,
        password_file,
        token_file,
        ssh_key_file,
        known_hosts_file,
        github_app: app,
    } = value;
    let named = [
        username_file.is_some() || password_file.is_some(),
        token_file.is_some(),
        ssh_key_file.is_some() || known_hosts_file.is_some(),
        app.is_some(),
    ];
    let is_one = named.iter().filter(|is_named| **is_named).count() == 1;
    let basic = username_file.zip(password_file);
    let ssh = ssh_key_file.zip(known_hosts_file);
    match (basic, token_file, ssh, app) {
        (Some((username, password)), None, None, None) if is_one => {
            Some(Auth::Basic { username, password })
        }
        (None, Some(token), None, None) if is_one => Some(Auth::Bearer { token }),
        (None, None, Some((key, known_hosts)), None) if is_one => {
            Some(Auth::Ssh { key, known_hosts })
        }
        (None, None, None, Some(app)) if is_one => github_app(app, at, findings),
        _ => {
            let message = "`auth`: exactly one of `usernameFile` with `passwordFile`, `tokenFile`, `sshKeyFile` with `knownHostsFile`, and `githubApp` is required";
            findings.push(places.invalid(message));
            None
        }
    }
}

fn github_app(
    app: Located<file::GithubApp>,
    (url, forge): (&str, Option<&file::Forge>),
    findings: &mut Vec<Finding>,
) -> Option<Auth> {
    let Located {
        value: declared,
        places,
    } = app;
    let mut wrong = |key: &str, message: &str| {
        findings.push(places.error_at(key, "invalid-value", message));
    };
    let is_id = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric());
    // The app is identified by a number or by its client id.
    let is_app = declared.app_id.split('.').all(is_id);
    if !is_app {
        wrong(
            "appId",
            "`appId`: expected the number of the app, or its client id",
        );
    }
    let is_installation = declared.installation_id.bytes().all(|b| b.is_ascii_digit())
        && !declared.installation_id.is_empty();
    if !is_installation {
        wrong(
            "installationId",
            "`installationId`: expected the number of the installation",
        );
    }
    if forge.is_some_and(|forge| forge.kind != ForgeKind::Github) {
        wrong("", "`githubApp`: the forge is not GitHub");
        return None;
    }
    let api = forge.and_then(|forge| forge.url.as_deref());
    let address = match ForgeAddress::of(ForgeKind::Github, url, api) {
        Ok(address) => address,
        Err(message) => {
            wrong("", &format!("`githubApp`: {message}"));
            return None;
        }
    };
    (is_app && is_installation).then_some(Auth::GithubApp {
        app: declared.app_id,
        installation: declared.installation_id,
        key: declared.private_key_file,
        api: address.api,
    })
}
