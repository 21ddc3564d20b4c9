//! Notifications about releases as Kubernetes Events.

use pleach_engine::sync::state::Announcement;
use pleach_reconciler::state_changes::Item;

/// Returns a notification about a revision as a Kubernetes Event.
pub(super) fn announcement<'a>(item: &'a Item, revision: &'a str) -> Announcement<'a> {
    Announcement {
        reason: item.reason,
        is_warning: item.is_warning,
        message: &item.message,
        revision,
    }
}
