//! `pleach push`: publishes the files of a commit as an OCI artifact.

use std::time::Duration;

use pleach_model::oci::{OciRepository, check_tag};
use pleach_oci::artifact::{Origin, Package};
use pleach_oci::push::push;
use pleach_oci::registry::Registry;

use super::error::{CliError, Kind};
use super::registry::RegistryArgs;
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

    #[command(flatten)]
    access: RegistryArgs,
}

pub(crate) async fn run(ui: &mut Ui, ctx: &Context, args: PushArgs) -> Result<Exit, CliError> {
    let usage = |error: &dyn std::error::Error| CliError::usage(error.to_string());
    let repository = OciRepository::parse(&args.address).map_err(|error| usage(&error))?;
    check_tag(&args.tag).map_err(|error| usage(&error))?;
    let access = args.access.access(&repository)?;
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
