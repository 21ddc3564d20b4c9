//! User objects that are copied by pattern from the previous namespace of a product.

use pleach_model::finding::{Finding, Kind};
use pleach_planner::observe::Observed;
use pleach_planner::plan::{Desired, is_copied};

use super::{Reader, ends_observation};
use crate::sync::error::SyncError;
use pleach_cluster::{ResourcePath, Selector};

impl Reader<'_> {
    /// Finds the objects that match a pattern of the bundle. A failed list is an error of the plan,
    /// because objects could be left behind.
    pub(super) async fn find_copies(
        &self,
        desired: &mut Desired,
        observed: &mut Observed,
    ) -> Result<(), SyncError> {
        for (namespace, rule) in desired.copies_to_list(observed) {
            // A kind that is not served has no objects.
            let Some(path) = ResourcePath::preferred(&observed.discovery, &rule.kind) else {
                continue;
            };
            let within = Selector::namespace(Some(&namespace));
            let listed = self.cluster.list_metadata(&path, &within, &self.manager);
            match listed.await {
                Ok(list) => {
                    let found = list.items.into_iter();
                    let found = found.filter(|(id, live)| is_copied(&rule, id, live));
                    observed.copies.extend(found.map(|(id, _)| id));
                }
                Err(error) if ends_observation(&error) => return Err(error.into()),
                Err(error) => {
                    let message = format!(
                        "objects to copy from {namespace} cannot be listed: {}: {error}",
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
