//! `pleach dump`: a redacted copy of the objects that a plan is about.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::error::{CliError, Kind};
use super::session::{Options, Planned, Predecessors, Session};
use super::{Context, Exit, Target, Ui};
use pleach_engine::rehearse::{self, CopyError, Redacted};
use pleach_rehearsal::dump::Copy;

/// Write a redacted copy of the objects that a plan is about
///
/// Reads what `pleach plan` reads, and what the API server needs to judge the
/// plan: roles, quotas, policies, nodes, classes. Values of Secrets and of
/// secret fields are replaced in memory by placeholders of the same length,
/// also where other objects contain them. Names, labels and annotations stay.
/// Kinds that you are not allowed to list are left out and named.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach dump production --out production.dump        all releases
  pleach dump production/web --out web.dump           one release")]
pub(crate) struct DumpArgs {
    /// Environment, or one release of it
    #[arg(value_name = "ENV[/RELEASE]")]
    target: Target,

    /// File to write, readable only by you
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

pub(crate) async fn run(ui: &mut Ui, ctx: &Context, args: DumpArgs) -> Result<Exit, CliError> {
    let session = Session::open_to_apply(ui, ctx, &args.target, options(), None).await?;
    let planned = match planned(ui, ctx, &session, &args.target).await? {
        Ok(planned) => planned,
        Err(exit) => return Ok(exit),
    };
    let redacted = redacted(&session, &planned).await?;
    write(&args.out, &redacted.copy)?;
    ui.print(format_args!(
        "{} objects written to {}; {} left out",
        redacted.copy.header.objects,
        args.out.display(),
        redacted.copy.header.left_out.len()
    ));
    for left_out in &redacted.copy.header.left_out {
        ui.notice(format_args!(
            "left out: {}: {}",
            left_out.what, left_out.why
        ));
    }
    Ok(Exit::DONE)
}

/// Returns the options of a plan for a copy.
pub(super) fn options() -> Options {
    Options {
        verify: false,
        wait: true,
        review: false,
        nodes_behind: false,
        prune: true,
        predecessors: Predecessors::ComeFirst,
    }
}

/// Plans all releases of a target. The inner error is the exit code of a release that cannot be
/// planned, whose error has been shown.
pub(super) async fn planned(
    ui: &mut Ui,
    ctx: &Context,
    session: &Session,
    target: &Target,
) -> Result<Result<Vec<Planned>, Exit>, CliError> {
    let mut plans = Vec::new();
    for subject in session.subjects(ui, ctx, target).await? {
        match session.plan_for(ui, &subject).await? {
            Ok(planned) => plans.push(planned),
            Err(error) => return Ok(Err(error.exit())),
        }
    }
    Ok(Ok(plans))
}

/// Reads and redacts the objects that plans are about.
pub(super) async fn redacted(session: &Session, planned: &[Planned]) -> Result<Redacted, CliError> {
    let Some(first) = planned.first() else {
        return Err(CliError::usage("the target has no releases"));
    };
    let touched = rehearse::touched(planned.iter());
    let discovery = &first.observation.observed.discovery;
    let reading = async {
        let collected = rehearse::collect(&session.cluster, discovery, touched).await?;
        let planned: Vec<&Planned> = planned.iter().collect();
        let redacting = rehearse::redact(&session.cluster, collected, &session.loaded, &planned);
        redacting.await
    };
    Ok(session.finish(Box::pin(reading)).await??)
}

/// Writes a dump that only its user can read. The file appears whole or not at all.
fn write(path: &Path, copy: &Copy) -> Result<(), CliError> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new("."));
    let failed = |error: std::io::Error| {
        let message = format!("failed to write {}: {error}", path.display());
        CliError::new(Kind::Failed, message)
    };
    // Files of this crate have mode 0600.
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    copy.write(&mut file).map_err(failed)?;
    file.flush().map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

impl From<CopyError> for CliError {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::Cluster(error) => error.into(),
            error @ CopyError::TooLarge { .. } => Self::new(Kind::Failed, error)
                .hint("name one release of the environment: its copy is smaller"),
            error => Self::new(Kind::Failed, error),
        }
    }
}
