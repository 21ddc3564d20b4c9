//! Notifications about releases as Kubernetes Events.

use pleach_engine::sync::state::Announcement;
use pleach_reconciler::state_changes::Notice;

/// Returns a notification about a revision as a Kubernetes Event.
pub(super) fn announcement<'a>(notice: &'a Notice, revision: &'a str) -> Announcement<'a> {
    Announcement {
        reason: notice.reason,
        is_warning: notice.is_warning,
        message: &notice.message,
        revision,
    }
}
