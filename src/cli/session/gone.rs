//! Releases that are in the cluster but not in git.

use super::{Session, finish};
use crate::cli::{Context, Target, Ui, error::CliError};
use pleach_cluster::Class;
use pleach_engine::load::beside;
use pleach_engine::planning::{self, Candidate, Gone, Subject};
use pleach_engine::sync::state::{self, Search};

impl Session {
    /// Returns the subjects to plan: the releases of the target in dependency order, then those
    /// that git no longer has.
    pub(in crate::cli) async fn subjects(
        &self,
        ui: &mut Ui,
        ctx: &Context,
        target: &Target,
    ) -> Result<Vec<Subject<'_>>, CliError> {
        let releases = self.releases();
        let mut subjects: Vec<Subject<'_>> = planning::in_order(releases)
            .into_iter()
            .map(|index| &releases[index])
            .map(|(release, rendered)| Subject::Desired(release, rendered))
            .collect();
        let gone = self.gone(ui, ctx, target).await?;
        subjects.extend(gone.into_iter().map(|gone| Subject::Gone(Box::new(gone))));
        Ok(subjects)
    }

    /// Returns the installed releases of this environment that are not in git, and releases
    /// elsewhere whose objects move to the target.
    async fn gone(
        &self,
        ui: &mut Ui,
        ctx: &Context,
        target: &Target,
    ) -> Result<Vec<Gone>, CliError> {
        let is_whole = target.release.is_none();
        if !is_whole && planning::previous_releases(&self.loaded).next().is_none() {
            return Ok(Vec::new());
        }
        let Some(installed) = self.installed(ui).await? else {
            return Ok(Vec::new());
        };
        let candidates = planning::candidates(&self.loaded, is_whole, installed);
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        let tree = ctx.open()?.tree;
        let loaded = &self.loaded;
        let read = beside(&*tree, loaded);
        Ok(planning::gone(loaded, &*tree, candidates, &read))
    }

    /// Returns the releases with a readable record in the store of this environment. `None` without
    /// the permission to list them.
    async fn installed(&self, ui: &mut Ui) -> Result<Option<Vec<Candidate>>, CliError> {
        let early = self.early().records.take();
        let search = self.search();
        let listed = match early {
            Some(listed) => listed,
            None => finish(&self.cancel, state::releases(&self.cluster, &search)).await?,
        };
        match listed {
            Ok(records) => Ok(Some(planning::readable(records.releases))),
            Err(error) if error.class() == Some(&Class::Forbidden) => {
                ui.detail("no permission to list releases: releases that git no longer has are not detected");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns where to search the records of the environment. Searches everywhere if its file is
    /// missing.
    pub(in crate::cli) fn search(&self) -> Search {
        if self.is_without_file {
            Search::Everywhere
        } else {
            Search::In(self.loaded.environment.store.clone())
        }
    }
}
