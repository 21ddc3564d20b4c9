//! Releases that the cluster has and git has not, for commands.

use super::{Session, Subject, finish};
use crate::cli::error::CliError;
use crate::cli::{Context, Target, Ui};
use crate::engine::load::beside;
use crate::engine::planning::{self, Candidate, Gone};
use crate::engine::sync::state::{self, Search};
use crate::io::cluster::Class;

impl Session {
    /// What plans are made for: the releases of the target in the order in which
    /// they depend on each other, then those that git
    /// has no more, which go last.
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
            .map(|(release, rendered)| Subject::Wanted(release, rendered))
            .collect();
        let gone = self.gone(ui, ctx, target).await?;
        subjects.extend(gone.into_iter().map(|gone| Subject::Gone(Box::new(gone))));
        Ok(subjects)
    }

    /// The releases of this environment that the cluster has and git has not,
    /// and those elsewhere whose objects come over to the target.
    async fn gone(
        &self,
        ui: &mut Ui,
        ctx: &Context,
        target: &Target,
    ) -> Result<Vec<Gone>, CliError> {
        let is_whole = target.release.is_none();
        if !is_whole && planning::formers(&self.loaded).next().is_none() {
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

    /// Every release whose record can be read, where this environment keeps
    /// them; none where we may not ask.
    async fn installed(&self, ui: &mut Ui) -> Result<Option<Vec<Candidate>>, CliError> {
        let search = self.search();
        match finish(&self.cancel, state::releases(&self.cluster, &search)).await? {
            Ok(records) => Ok(Some(planning::readable(records.releases))),
            Err(error) if error.class() == Some(&Class::Forbidden) => {
                ui.detail("releases may not be listed: one that left git is not noticed");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Where the records of the environment are; anywhere, when it is gone.
    pub(in crate::cli) fn search(&self) -> Search {
        if self.is_without_file {
            Search::Everywhere
        } else {
            Search::In(self.loaded.environment.store.clone())
        }
    }
}
