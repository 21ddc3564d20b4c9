//! `pleach doctor`.

use clap::ValueEnum;
use pleach_model::finding::Severity;
use pleach_model::object::ObjectId;
use pleach_report::doctor::{Code, Diagnosis, Refusal, diagnose};

use super::error::{CliError, Kind};
use super::session::connect;
use super::status::StateStore;
use super::{Context, Exit, Ui, explain, format};
use pleach_cluster::{Cluster, Deleted};
use pleach_engine::doctor;

/// Show problems of the cluster and their remedies
///
/// Checks the whole cluster, including objects of other tools: APIs and
/// webhooks whose Service is missing or has no endpoints, with their effects;
/// namespaces and objects whose deletion does not finish, with the cause;
/// objects of pleach that belong to no release; releases that are not ready;
/// permissions that pleach lacks. Needs no repository and changes nothing. The
/// exit code is 1 if there are errors or warnings.
///
/// With --fix, it removes one `APIService` or webhook configuration whose
/// Service does not exist, or one gate of an upgrade that is no longer running.
/// It asks for confirmation and checks the object again first. Objects of other
/// owners are only removed with --yes, objects with an owner reference never.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pleach doctor
  pleach doctor -o json
  pleach doctor --state-namespace team-a
                                    with access to that namespace only
  pleach doctor --fix APIService.apiregistration.k8s.io/v1beta1.metrics.example.org")]
pub(crate) struct DoctorArgs {
    /// Remove this dead registration or gate: Kind.group/name, or as for kubectl
    #[arg(long, value_name = "ID")]
    fix: Option<ObjectId>,

    #[command(flatten)]
    place: StateStore,

    /// Do not ask for confirmation, and override other owners
    #[arg(short, long, requires = "fix")]
    yes: bool,

    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: DoctorOutput,
}

/// Formats of the diagnoses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DoctorOutput {
    /// For people, with colors on a terminal.
    Text,
    /// For programs.
    Json,
}

pub(crate) async fn run(
    ui: &mut Ui,
    ctx: &Context,
    mut args: DoctorArgs,
) -> Result<Exit, CliError> {
    let kinds = doctor::fixable_kinds;
    args.fix = args.fix.map(|id| explain::with_kind(id, kinds()));
    if let Some(id) = &args.fix
        && !doctor::is_fixable_kind(id)
    {
        return Err(CliError::usage(format!(
            "--fix removes APIServices, webhook configurations and gates only, not {id}"
        ))
        .hint("write Kind.group/name, as `pleach doctor` shows it, or as for kubectl"));
    }
    let cluster = connect(
        ctx.settings.kubeconfig.clone(),
        ctx.settings.context.clone(),
    )
    .await?;
    match &args.fix {
        Some(id) => fix(ui, ctx, &cluster, id, &args).await,
        None => show(ui, &cluster, &args).await,
    }
}

async fn show(ui: &mut Ui, cluster: &Cluster, args: &DoctorArgs) -> Result<Exit, CliError> {
    let search = args.place.search(None);
    let diagnoses = diagnose(&doctor::examine(cluster, &search).await?);
    ui.print(match args.output {
        DoctorOutput::Text => format::doctor::text(&diagnoses),
        DoctorOutput::Json => format::json(&format::doctor::json(cluster.server(), &diagnoses)),
    });
    let is_ill = diagnoses
        .iter()
        .any(|diagnosis| diagnosis.severity >= Severity::Warning);
    Ok(if is_ill { Exit::FAILED } else { Exit::DONE })
}

async fn fix(
    ui: &mut Ui,
    ctx: &Context,
    cluster: &Cluster,
    id: &ObjectId,
    args: &DoctorArgs,
) -> Result<Exit, CliError> {
    let diagnosis = diagnose_one(ui, cluster, id).await?;
    let mut shown = String::new();
    format::doctor::one(&mut shown, &diagnosis);
    ui.status(shown.trim_end());
    let decided = diagnosis
        .deletion(args.yes)
        .map_err(|refusal| refused(id, &refusal))?;
    let question = format!("Delete {id} from {}?", cluster.server());
    if !ui.confirm(&question, args.yes, &ctx.cancel).await? {
        return Err(CliError::new(Kind::Failed, "declined; nothing was deleted"));
    }
    // The prompt can take long, and the Service can be back.
    let again = diagnose_one(ui, cluster, id).await?;
    if again.deletion(args.yes).as_ref() != Ok(&decided) {
        return Err(CliError::new(
            Kind::Conflict,
            format!("{id} has changed since it was shown; nothing was deleted"),
        )
        .hint("run the command again"));
    }
    for (id, deletion) in again.deletions_before() {
        doctor::remove(cluster, &id, &deletion).await?;
        ui.status(format!("deleted {id}"));
    }
    let deleted = doctor::remove(cluster, id, &decided).await?;
    let reason = decided.explain();
    let text = match &deleted {
        Deleted::Gone => format!("deleted {id}: it {reason}"),
        Deleted::Absent => format!("{id} was already deleted"),
        Deleted::Accepted { finalizers } => format!(
            "{id} is being deleted and waits for finalizers {}: it {reason}",
            finalizers.join(", ")
        ),
    };
    ui.print(match args.output {
        DoctorOutput::Text => text,
        DoctorOutput::Json => format::json(&serde_json::json!({
            "format": 1,
            "server": cluster.server(),
            "deleted": id,
            "because": decided.because(),
            "waitsFor": match deleted {
                Deleted::Accepted { finalizers } => finalizers,
                Deleted::Gone | Deleted::Absent => Vec::new(),
            },
        })),
    });
    Ok(Exit::DONE)
}

/// Diagnoses one registration.
async fn diagnose_one(
    ui: &mut Ui,
    cluster: &Cluster,
    id: &ObjectId,
) -> Result<Diagnosis, CliError> {
    let Some(observations) = doctor::examine_one(cluster, id).await? else {
        return Err(CliError::new(
            Kind::Failed,
            format!("there is no {id} in {}", cluster.server()),
        ));
    };
    let diagnoses = diagnose(&observations);
    for gap in diagnoses
        .iter()
        .filter(|diagnosis| diagnosis.code == Code::NotExamined)
    {
        ui.status(&gap.message);
    }
    diagnoses
        .into_iter()
        .find(|diagnosis| diagnosis.object.as_ref() == Some(id))
        .ok_or_else(|| {
            CliError::new(
                Kind::Policy,
                format!("{id} is not removed: there is no evidence that its Service does not exist or that it is unused"),
            )
        })
}

fn refused(id: &ObjectId, refusal: &Refusal) -> CliError {
    let error = CliError::new(Kind::Policy, format!("{id} is not removed: {refusal}"));
    match refusal {
        Refusal::NotDead(_) => {
            error.hint("--fix only removes registrations whose Services do not exist, and gates of upgrades that are no longer running")
        }
        Refusal::Owned(_) => error,
        Refusal::Foreign { suspend, .. } => {
            let error = error.hint("--yes removes it anyway");
            match suspend {
                Some(command) => error.hint(format!("stop its owner first: `{command}`")),
                None => error,
            }
        }
    }
}
