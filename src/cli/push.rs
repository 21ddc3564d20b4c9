//! `pleach push`: publishes the files of a commit as an OCI artifact.

use std::env::var_os;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pleach_model::oci::{OciRepository, check_tag};
use pleach_oci::artifact::{Origin, Package};
use pleach_oci::credentials;
use pleach_oci::push::push;
use pleach_oci::registry::{Access, Registry};
use pleach_oci::{Class, OciError};

use super::error::{CliError, Kind};
use super::{Context, Exit, Ui};

/// Time-out of all requests of a push together.
const PUSHING: Duration = Duration::from_mins(10);
/// Digits of a commit in the output.
const SHORT: usize = 7;
/// Name of a remote whose URL the artifact has as its source.
const REMOTE: &str = "origin";

/// Publish the files of a commit as an OCI artifact
///
/// Packs the files of a commit, never those of the working tree, and uploads
/// them to a registry under a tag. A controller follows the tag. The same commit
/// gives the same digest. `cosign sign --key` signs the artifact.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach push oci://example.org/fleet --tag production                   the checked-out commit
  pleach push oci://example.org/fleet --tag production --revision main   a branch, tag or commit")]
pub(crate) struct PushArgs {
    /// Repository in the registry
    #[arg(value_name = "oci://HOST/REPOSITORY")]
    address: String,

    /// Tag that the artifact gets
    #[arg(long, value_name = "TAG")]
    tag: String,

    /// File with the credentials of registries [default: that of docker]
    #[arg(long, value_name = "FILE")]
    docker_config: Option<PathBuf>,

    /// File with CA certificates, besides those of the machine
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

pub(crate) async fn run(ui: &mut Ui, ctx: &Context, args: PushArgs) -> Result<Exit, CliError> {
    let usage = |error: &dyn std::error::Error| CliError::usage(error.to_string());
    let repository = OciRepository::parse(&args.address).map_err(|error| usage(&error))?;
    check_tag(&args.tag).map_err(|error| usage(&error))?;
    let access = access(&repository, &args)?;
    let source = ctx.source()?;
    let revision = match &ctx.settings.revision {
        Some(revision) => revision.clone(),
        None => source
            .branch()
            .map_or_else(|_| "HEAD".to_owned(), |branch| branch.name),
    };
    let tree = source.tree(&revision)?;
    let commit = tree.commit();
    let contents = tree
        .contents()
        .map_err(|error| CliError::new(Kind::Repository, error))?;
    if let Some(first) = contents.skipped.first() {
        let count = contents.skipped.len();
        ui.status(format_args!(
            "links and submodules are not part of the artifact: {count}, such as {first}"
        ));
    }
    let origin = Origin {
        source: source.public_remote(REMOTE),
        revision: Some(commit.clone()),
        created: tree.time(),
    };
    let package = Package::new(&contents.files, &origin)
        .map_err(|error| CliError::new(Kind::Failed, error))?;
    let registry = Registry::connect(&repository, &access, PUSHING)?;
    push(&registry, &package, &args.tag).await?;
    let (digest, files) = (package.digest(), contents.files.len());
    let size = package.size().div_ceil(1 << 10);
    let short = commit.get(..SHORT).unwrap_or(&commit);
    ui.print(format!(
        "{digest}  {revision} {short}  {files} files, {size} KiB"
    ));
    Ok(Exit::DONE)
}

/// Reads the credentials for a registry, and the CA certificates.
fn access(repository: &OciRepository, args: &PushArgs) -> Result<Access, CliError> {
    let config = match &args.docker_config {
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
    let authorities = args.ca.as_deref().map(pleach_files::read).transpose()?;
    Ok(Access {
        credentials: credentials.flatten(),
        authorities,
    })
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
