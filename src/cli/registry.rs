//! Access of commands to registries.

use std::env::var_os;
use std::path::{Path, PathBuf};

use pleach_model::oci::OciRepository;
use pleach_oci::credentials;
use pleach_oci::registry::Access;
use pleach_oci::{Class, OciError};

use super::error::{CliError, Kind};

/// Files for the access to registries.
#[derive(Debug, clap::Args)]
pub(super) struct RegistryArgs {
    /// File with the credentials of registries [default: that of docker]
    #[arg(long, value_name = "FILE")]
    docker_config: Option<PathBuf>,

    /// File with CA certificates of registries, besides those of the machine
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

impl RegistryArgs {
    /// Reads the credentials for a registry, and the CA certificates.
    pub(super) fn access(&self, repository: &OciRepository) -> Result<Access, CliError> {
        let config = match &self.docker_config {
            Some(file) => Some(pleach_files::read(file)?),
            None => match docker_config() {
                Some(file) if pleach_files::exists(&file)? => Some(pleach_files::read(&file)?),
                _ => None,
            },
        };
        let credentials = config
            .map(|config| credentials::read(&config, &repository.host))
            .transpose()
            .map_err(|error| CliError::new(Kind::Failed, error))?;
        let authorities = self.ca.as_deref().map(pleach_files::read).transpose()?;
        Ok(Access {
            credentials: credentials.flatten(),
            authorities,
        })
    }
}

/// Returns the configuration file of docker that belongs to the user.
#[expect(clippy::disallowed_methods, reason = "settings are read here")]
fn docker_config() -> Option<PathBuf> {
    let folder = var_os("DOCKER_CONFIG").map(PathBuf::from);
    let folder = folder.or_else(|| Some(Path::new(&var_os("HOME")?).join(".docker")))?;
    Some(folder.join("config.json"))
}

impl From<OciError> for CliError {
    fn from(error: OciError) -> Self {
        let kind = match error.class() {
            Some(
                Class::Unauthorized
                | Class::NotFound
                | Class::RateLimited { .. }
                | Class::Unavailable,
            ) => Kind::Cluster,
            Some(Class::Refused) | None => Kind::Failed,
        };
        let hint = error.hint();
        let error = Self::new(kind, error);
        match hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}
