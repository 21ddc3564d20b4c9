//! SSH addresses of repositories.

/// A repository on an SSH host.
///
/// ```
/// use pleach_reconciler::config::SshAddress;
///
/// let short = SshAddress::parse("git@git.example.org:team/fleet.git").unwrap();
/// assert_eq!((short.host.as_str(), short.path.as_str()), ("git.example.org", "team/fleet.git"));
/// let long = SshAddress::parse("ssh://git@git.example.org:2222/srv/fleet.git").unwrap();
/// assert_eq!(long.known_as(), "[git.example.org]:2222");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshAddress {
    /// User name on the host.
    pub user: String,
    /// Name or address of the host.
    pub host: String,
    /// Port, unless the default is used.
    pub port: Option<u16>,
    /// Path of the repository, absolute or relative to the user's home.
    pub path: String,
}

impl SshAddress {
    /// Parses `ssh://user@host:port/path` and `user@host:path`. Errors do not quote the text, which
    /// can contain a password.
    pub fn parse(url: &str) -> Result<Self, String> {
        if url.chars().any(|char| char.is_control() || char == ' ') {
            return Err("the URL contains a space or a control character".to_owned());
        }
        let (user, host, path) = if let Some(rest) = url.strip_prefix("ssh://") {
            if rest.contains('%') {
                return Err(
                    "the URL contains `%…`, which is not decoded; write the characters themselves"
                        .to_owned(),
                );
            }
            let (authority, _) = rest.split_once('/').ok_or("the URL has no path")?;
            let path = &rest[authority.len()..];
            let (user, host) = split_user(authority)?;
            // `/~/x` and `/~name/x` are relative to a home directory.
            let path = if path.starts_with("/~") {
                &path[1..]
            } else {
                path
            };
            (user, host, path)
        } else {
            let (user, rest) = split_user(url)?;
            let end = if rest.starts_with('[') {
                rest.find("]:").map(|end| end + 1)
            } else {
                rest.find(':')
            };
            let end = end.ok_or("the URL has no path; expected `user@host:path`")?;
            (user, &rest[..end], &rest[end + 1..])
        };
        let is_long = url.starts_with("ssh://");
        let (host, port) = split_port(host, is_long)?;
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let is_address = |byte: u8| byte.is_ascii_hexdigit() || b":.".contains(&byte);
        if host.is_empty()
            || host.starts_with('-')
            || !(host.bytes().all(is_name) || host.bytes().all(is_address))
        {
            return Err("the URL has no valid host".to_owned());
        }
        if user.is_empty() || user.starts_with('-') || !user.bytes().all(is_name) {
            return Err("the URL has no valid user; expected `ssh://git@host/path`".to_owned());
        }
        if matches!(path, "" | "/") || path.starts_with('-') {
            return Err("the URL has no path".to_owned());
        }
        Ok(Self {
            user: user.to_owned(),
            host: host.to_owned(),
            port,
            path: path.to_owned(),
        })
    }

    /// Returns the name of the host in a known hosts file.
    pub fn known_as(&self) -> String {
        match self.port {
            None | Some(22) => self.host.clone(),
            Some(port) => format!("[{}]:{port}", self.host),
        }
    }
}

fn split_user(authority: &str) -> Result<(&str, &str), String> {
    let (user, host) = authority
        .split_once('@')
        .ok_or("the URL has no valid user; expected `ssh://git@host/path`")?;
    if user.contains(':') || host.contains('@') {
        return Err("passwords do not belong in a URL, and are not used for ssh".to_owned());
    }
    Ok((user, host))
}

/// Splits a host into name, without brackets, and port.
fn split_port(host: &str, may_have_port: bool) -> Result<(&str, Option<u16>), String> {
    let (host, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or("the URL has no valid host")?,
        None => match host.find(':') {
            Some(at) => host.split_at(at),
            None => (host, ""),
        },
    };
    if port.is_empty() {
        return Ok((host, None));
    }
    let number = port.strip_prefix(':').and_then(|port| port.parse().ok());
    match number {
        Some(port) if port > 0 && may_have_port => Ok((host, Some(port))),
        _ => Err("the URL has no valid port after the host".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Formats `user host port path`, or returns the error.
    fn shown(url: &str) -> String {
        match SshAddress::parse(url) {
            Ok(SshAddress {
                user,
                host,
                port,
                path,
            }) => {
                let port = port.map_or_else(|| "-".to_owned(), |port| port.to_string());
                format!("{user} {host} {port} {path}")
            }
            Err(wrong) => wrong,
        }
    }

    #[test]
    fn both_url_forms_are_parsed() {
        for (url, read) in [
            (
                "ssh://git@h.example.org/a/b.git",
                "git h.example.org - /a/b.git",
            ),
            ("ssh://git@h:2222/a", "git h 2222 /a"),
            ("ssh://git@[::1]:2222/a", "git ::1 2222 /a"),
            ("ssh://git@[fe80::1]/a", "git fe80::1 - /a"),
            ("ssh://me@h/~/fleet", "me h - ~/fleet"),
            ("ssh://me@h/~you/fleet", "me h - ~you/fleet"),
            ("git@h:a/b.git", "git h - a/b.git"),
            ("git@h:/a/b.git", "git h - /a/b.git"),
            // Like git, reads `22/a` as a path, not as a port.
            ("git@h:22/a", "git h - 22/a"),
            ("git@[::1]:a", "git ::1 - a"),
            ("git@10.0.0.1:it's", "git 10.0.0.1 - it's"),
        ] {
            assert_eq!(shown(url), read, "{url}");
        }
    }

    #[test]
    fn ambiguous_addresses_are_refused() {
        let user = "the URL has no valid user; expected `ssh://git@host/path`";
        let password = "passwords do not belong in a URL, and are not used for ssh";
        for (url, wrong) in [
            ("ssh://h/a", user),
            ("ssh://@h/a", user),
            ("ssh://-l@h/a", user),
            ("ssh://me:hunter2@h/a", password),
            ("ssh://a@b@h/a", password),
            ("ssh://git@-oProxyCommand=x/a", "the URL has no valid host"),
            ("ssh://git@/a", "the URL has no valid host"),
            ("ssh://git@h$(x)/a", "the URL has no valid host"),
            ("ssh://git@[::1/a", "the URL has no valid host"),
            ("ssh://git@h", "the URL has no path"),
            ("ssh://git@h/", "the URL has no path"),
            ("git@h:", "the URL has no path"),
            ("git@h:-x", "the URL has no path"),
            ("git@h", "the URL has no path; expected `user@host:path`"),
            (
                "ssh://git@h:0/a",
                "the URL has no valid port after the host",
            ),
            (
                "ssh://git@h:x/a",
                "the URL has no valid port after the host",
            ),
            (
                "ssh://git@h:99999/a",
                "the URL has no valid port after the host",
            ),
            (
                "ssh://git@h/a%20b",
                "the URL contains `%…`, which is not decoded; write the characters themselves",
            ),
            (
                "ssh://git@h/a b",
                "the URL contains a space or a control character",
            ),
            (
                "git@h:a\nb",
                "the URL contains a space or a control character",
            ),
        ] {
            assert_eq!(shown(url), wrong, "{url}");
        }
    }

    #[test]
    fn hosts_are_named_as_in_known_hosts_files() {
        let known = |url| SshAddress::parse(url).unwrap().known_as();
        assert_eq!(known("git@h:a"), "h");
        assert_eq!(known("ssh://git@h:22/a"), "h");
        assert_eq!(known("ssh://git@h:2222/a"), "[h]:2222");
    }
}
