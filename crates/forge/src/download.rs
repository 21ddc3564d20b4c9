//! Downloads of public files over https, such as packages of charts. No credentials are sent.

use std::time::Duration;

use http::StatusCode;
use reqwest::Url;
use reqwest::redirect::Policy;

/// Time-out of the connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Time-out of a whole download.
const REQUEST: Duration = Duration::from_mins(2);
/// Maximum number of redirects. Chart repositories often have their packages elsewhere.
const REDIRECTS: usize = 5;

/// Error of a download.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The address is not an https URL.
    #[error("`{0}` is not an https address")]
    Address(String),
    /// The server is unreachable, or the connection was lost.
    #[error("failed to download {url}")]
    Unreachable {
        /// The address.
        url: String,
        /// Cause.
        #[source]
        source: reqwest::Error,
    },
    /// The server answered with an error status.
    #[error("failed to download {url}: the server answered {status}")]
    Refused {
        /// The address.
        url: String,
        /// The status.
        status: StatusCode,
    },
    /// The file is larger than allowed.
    #[error("failed to download {url}: it is larger than {} MiB", longest >> 20)]
    TooLarge {
        /// The address.
        url: String,
        /// Maximum size in bytes.
        longest: usize,
    },
}

/// Returns an address that can be relative to a folder.
///
/// ```
/// use pleach_forge::download::address;
/// let folder = "https://charts.example.org/stable";
/// let joined = address(folder, "web-1.0.0.tgz").unwrap();
/// assert_eq!(joined, "https://charts.example.org/stable/web-1.0.0.tgz");
/// assert_eq!(address(folder, "https://example.org/a.tgz").unwrap(), "https://example.org/a.tgz");
/// assert!(address(folder, "file:///etc/passwd").is_err());
/// ```
pub fn address(folder: &str, path: &str) -> Result<String, DownloadError> {
    let folder = format!("{}/", folder.trim_end_matches('/'));
    let joined = Url::parse(&folder).and_then(|folder| folder.join(path));
    match joined {
        Ok(url) if url.scheme() == "https" => Ok(url.into()),
        _ => Err(DownloadError::Address(path.to_owned())),
    }
}

/// Downloads a file of at most `longest` bytes.
pub async fn download(url: &str, longest: usize) -> Result<Vec<u8>, DownloadError> {
    let url = url.to_owned();
    let unreachable = |source| DownloadError::Unreachable {
        url: url.clone(),
        source,
    };
    let client = reqwest::Client::builder()
        .user_agent(concat!("pleach/", env!("CARGO_PKG_VERSION")))
        .https_only(true)
        .connect_timeout(CONNECT)
        .timeout(REQUEST)
        .redirect(Policy::limited(REDIRECTS))
        .build()
        .map_err(unreachable)?;
    let mut response = client.get(&url).send().await.map_err(unreachable)?;
    let status = response.status();
    if !status.is_success() {
        return Err(DownloadError::Refused { url, status });
    }
    let mut content = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
        content.extend_from_slice(&chunk);
        if content.len() > longest {
            return Err(DownloadError::TooLarge { url, longest });
        }
    }
    Ok(content)
}
