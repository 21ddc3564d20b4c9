//! `pleach status --audit`.

use std::path::Path;

use pleach_report::audit::{LastPlan, Reader};
use pleach_state::inventory::{ReleaseSummary, Store};

use super::StatusOutput;
use crate::cli::{
    Exit, Ui,
    error::{CliError, Kind},
    format::{
        self,
        audit::{self, Compared},
    },
};
use pleach_cluster::Cluster;
use pleach_engine::sync::state::last_plan;

pub(super) async fn run(
    ui: &mut Ui,
    cluster: &Cluster,
    releases: Vec<ReleaseSummary>,
    path: &Path,
    output: StatusOutput,
) -> Result<Exit, CliError> {
    let mut plans: Vec<(LastPlan, Store)> = Vec::new();
    for ReleaseSummary { name, store, .. } in releases {
        match last_plan(cluster, &name, &store).await? {
            Some(Ok(plan)) => plans.push((plan, store)),
            Some(Err(error)) => return Err(CliError::new(Kind::Policy, error)),
            None => ui.status(format_args!("release {name}: no plan is recorded")),
        }
    }
    if plans.is_empty() {
        return Err(CliError::new(
            Kind::Failed,
            "there is no plan to compare with: none was executed, or its release was removed",
        ));
    }
    let mut readers: Vec<Reader<'_>> = plans
        .iter()
        .map(|(plan, store)| Reader::new(plan, store))
        .collect();
    pleach_files::each_line(path, |line| {
        for reader in &mut readers {
            reader.line(line);
        }
    })?;
    let reports = readers.into_iter().map(Reader::report);
    let compared: Vec<Compared<'_>> = plans
        .iter()
        .zip(reports)
        .map(|((plan, _), report)| Compared { plan, report })
        .collect();
    ui.print(match output {
        StatusOutput::Text => audit::text(&compared),
        StatusOutput::Json => format::json(&audit::json(&compared)),
    });
    let same = compared.iter().all(Compared::is_same);
    Ok(if same { Exit::DONE } else { Exit::FAILED })
}
