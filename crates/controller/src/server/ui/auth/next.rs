//! Paths to return to after a sign-in.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

/// Longest path, in bytes.
const LONGEST: usize = 1024;
/// First parts of the paths of pages.
const PAGES: [&str; 5] = ["", "environments", "releases", "waiting", "actions"];

/// Returns the path of the sign-in that returns to a page.
pub(super) fn sign_in_path(page: &str) -> String {
    path("/login", page)
}

/// Returns the path that starts the sign-in at the issuer and returns to a page.
#[cfg(feature = "oidc")]
pub(super) fn start_path(page: &str) -> String {
    path("/login/start", page)
}

fn path(base: &str, page: &str) -> String {
    if page == "/" || checked(page) != page {
        return base.to_owned();
    }
    format!(
        "{base}?next={}",
        utf8_percent_encode(page, NON_ALPHANUMERIC)
    )
}

/// Returns the path to return to. Anything but the path of a page becomes `/`, because the value
/// comes from the client and could lead to another web site.
pub(super) fn checked(next: &str) -> &str {
    let is_short = next.len() <= LONGEST;
    let is_text =
        |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'\\' | b'#' | b'"' | b'<' | b'>');
    let path = next.split('?').next().unwrap_or_default();
    let parts: Vec<&str> = path.split('/').collect();
    let is_page = match parts.as_slice() {
        ["", first, rest @ ..] => {
            let is_part = |part: &&str| !matches!(*part, "" | "." | "..");
            PAGES.contains(first)
                && (!first.is_empty() || rest.is_empty())
                && rest.iter().all(is_part)
        }
        _ => false,
    };
    if is_short && is_page && next.bytes().all(is_text) {
        next
    } else {
        "/"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_pages_are_returned_to() {
        for next in [
            "/",
            "/?text=web",
            "/environments/prod",
            "/releases/prod/web/objects?page=2&q=%20a",
            "/waiting",
            "/actions",
        ] {
            assert_eq!(checked(next), next);
        }
        for next in [
            "",
            "releases/prod/web",
            "//evil.example.org",
            "///evil.example.org",
            "/\\evil.example.org",
            "/releases//evil.example.org",
            "/releases/../login",
            "/./releases",
            "https://evil.example.org/",
            "javascript:alert(1)",
            "/login",
            "/login?next=/",
            "/logout",
            "/static/x.css",
            "/events",
            "/releases/a b",
            "/releases/a\r\nSet-Cookie: x",
            "/releases/\u{e9}",
            "/#x",
        ] {
            assert_eq!(checked(next), "/", "{next:?}");
        }
        assert_eq!(checked(&format!("/releases/{}", "a".repeat(LONGEST))), "/");
    }

    #[test]
    fn the_path_of_the_sign_in_has_the_page() {
        for (page, expected) in [
            ("/", "/login"),
            ("/static/x", "/login"),
            (
                "/releases/prod/web?q=a",
                "/login?next=%2Freleases%2Fprod%2Fweb%3Fq%3Da",
            ),
        ] {
            assert_eq!(sign_in_path(page), expected);
        }
    }
}
