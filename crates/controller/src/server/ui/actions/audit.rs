//! Recent actions of users, in the memory of this replica.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use pleach_page::pages::AuditEntry;

/// Number of retained actions.
const MOST: usize = 500;

/// Recent actions. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Audit(Arc<Mutex<VecDeque<AuditEntry>>>);

impl Audit {
    /// Logs an action, and retains it.
    pub(super) fn record(&self, entry: AuditEntry) {
        let AuditEntry {
            at: _,
            user,
            address,
            verb,
            release,
            digest,
            outcome,
        } = &entry;
        tracing::info!(
            user,
            address,
            action = verb.as_str(),
            environment = release.environment,
            release = release.release,
            digest,
            outcome,
            "action on the web page"
        );
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() == MOST {
            entries.pop_front();
        }
        entries.push_back(entry);
    }

    /// Returns the retained actions, oldest first.
    pub(super) fn entries(&self) -> Vec<AuditEntry> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use pleach_model::object::ReleaseName;
    use pleach_page::viewer::Verb;

    use super::*;

    #[test]
    fn the_number_of_actions_is_limited() {
        let audit = Audit::default();
        for number in 0..=MOST {
            audit.record(AuditEntry {
                at: String::new(),
                user: number.to_string(),
                address: String::new(),
                verb: Verb::Sync,
                release: ReleaseName {
                    environment: "prod".to_owned(),
                    release: "web".to_owned(),
                },
                digest: String::new(),
                outcome: String::new(),
            });
        }
        let entries = audit.entries();
        assert_eq!((entries.len(), entries[0].user.as_str()), (MOST, "1"));
    }
}
