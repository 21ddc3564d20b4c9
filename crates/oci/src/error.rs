use std::fmt;
use std::time::Duration;

use pleach_model::archive::ArchiveError;
use pleach_model::oci::OciAddressError;

use crate::credentials::CredentialsError;
use crate::verify::Untrusted;

/// Class of a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The registry refuses access.
    Unauthorized,
    /// The registry does not have it.
    NotFound,
    /// The registry accepts no more requests until a time.
    RateLimited {
        /// Time until the registry accepts requests again.
        after: Duration,
    },
    /// The registry is unreachable, or failed.
    Unavailable,
    /// The registry refuses the request for another reason.
    Refused,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unauthorized => "unauthorized",
            Self::NotFound => "not-found",
            Self::RateLimited { .. } => "rate-limited",
            Self::Unavailable => "unavailable",
            Self::Refused => "refused",
        })
    }
}

/// Errors of registries and artifacts.
#[derive(Debug, thiserror::Error)]
pub enum OciError {
    /// The address is not one of an artifact.
    #[error(transparent)]
    Address(#[from] OciAddressError),
    /// The credentials cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The client could not be made.
    #[error("failed to prepare the connection to {host}: {why}")]
    Client {
        /// Host of the registry.
        host: String,
        /// Reason.
        why: String,
    },
    /// The registry answered with an error, or did not answer.
    #[error("failed to {what}: {class}: {why}")]
    Request {
        /// Operation and object, as the continuation of "failed to".
        what: String,
        /// Class.
        class: Class,
        /// Reason, without credentials.
        why: String,
    },
    /// An answer is larger than allowed, or than its descriptor says.
    #[error("failed to {what}: it is larger than {most} bytes")]
    TooLarge {
        /// Operation and object.
        what: String,
        /// Limit in bytes.
        most: u64,
    },
    /// Content has another digest than requested.
    #[error("failed to {what}: its digest is {found}")]
    Digest {
        /// Operation and object, which names the expected digest.
        what: String,
        /// Digest of the received content.
        found: String,
    },
    /// Content is not as expected.
    #[error("{what} {why}")]
    Format {
        /// The object.
        what: String,
        /// Reason, as a clause after the object.
        why: String,
    },
    /// The files cannot be unpacked.
    #[error("failed to unpack {what}: {source}")]
    Unpack {
        /// The object.
        what: String,
        /// Cause.
        source: ArchiveError,
    },
    /// No trusted key signed the artifact.
    #[error("{what} has no trusted signature: {source}")]
    Untrusted {
        /// The artifact with its digest.
        what: String,
        /// Reasons.
        source: Untrusted,
    },
}

impl OciError {
    /// Returns the class of a failed request. `None` for other errors.
    pub fn class(&self) -> Option<Class> {
        match self {
            Self::Request { class, .. } => Some(*class),
            Self::Address(_)
            | Self::Credentials(_)
            | Self::Client { .. }
            | Self::TooLarge { .. }
            | Self::Digest { .. }
            | Self::Format { .. }
            | Self::Unpack { .. }
            | Self::Untrusted { .. } => None,
        }
    }

    /// Returns the next step for the user, if there is an obvious one.
    pub fn hint(&self) -> Option<String> {
        match self.class()? {
            Class::Unauthorized => Some(
                "credentials are those of the docker configuration file: `docker login HOST`"
                    .to_owned(),
            ),
            Class::NotFound => {
                Some("check the repository and the tag; some registries hide what an account cannot read".to_owned())
            }
            Class::RateLimited { .. } | Class::Unavailable | Class::Refused => None,
        }
    }
}
