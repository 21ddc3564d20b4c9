//! What users keep where a product was, and that comes along by a pattern.

use pleach_domain::finding::{Finding, Kind};
use pleach_domain::observe::Observed;
use pleach_domain::plan::Desired;

use super::{Reader, ends_observation};
use crate::engine::sync::error::SyncError;
use crate::io::cluster::{ResourcePath, Selector};

impl Reader<'_> {
    /// Finds the objects that the bundle does not name one by one. What cannot be
    /// listed is an error of the plan: without it something would be left behind.
    pub(super) async fn find_copies(
        &self,
        desired: &mut Desired,
        observed: &mut Observed,
    ) -> Result<(), SyncError> {
        for (namespace, rule) in desired.sought_copies(observed) {
            // Of a kind that is not served there is nothing.
            let Some(path) = ResourcePath::preferred(&observed.discovery, &rule.kind) else {
                continue;
            };
            let within = Selector::namespace(Some(&namespace));
            let listed = self.cluster.list_metadata(&path, &within, &self.manager);
            match listed.await {
                Ok(list) => {
                    let found = list.items.into_iter();
                    let found = found.filter(|(id, live)| rule.takes(id, live));
                    observed.copies.extend(found.map(|(id, _)| id));
                }
                Err(error) if ends_observation(&error) => return Err(error.into()),
                Err(error) => {
                    let message = format!(
                        "what comes along from {namespace} cannot be listed: {}: {error}",
                        rule.kind
                    );
                    let mut finding = Finding::error(Kind::Cluster, "copies-unlisted", message);
                    finding.hint = error.hint();
                    desired.findings.push(finding);
                }
            }
        }
        Ok(())
    }
}
