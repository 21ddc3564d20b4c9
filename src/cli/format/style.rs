//! Colors. The output is complete without them.

use anstyle::{AnsiColor, Style};
use pleach_planner::plan::Action;

pub(crate) const ERROR: Style = AnsiColor::Red.on_default().bold();
pub(crate) const WARNING: Style = AnsiColor::Yellow.on_default().bold();
pub(crate) const NOTE: Style = AnsiColor::Blue.on_default().bold();
pub(crate) const HINT: Style = AnsiColor::Cyan.on_default().bold();
pub(crate) const PLACE: Style = Style::new().bold();
/// Added lines.
pub(crate) const ADDED: Style = AnsiColor::Green.on_default();
/// Removed lines.
pub(crate) const REMOVED: Style = AnsiColor::Red.on_default();

/// Returns the color of an action.
pub(super) fn of_action(action: Action) -> Style {
    match action {
        Action::Create => ADDED.bold(),
        Action::Delete | Action::Recreate | Action::Blocked => REMOVED.bold(),
        Action::Update | Action::Unchanged | Action::Skip => WARNING,
        Action::Adopt => AnsiColor::Magenta.on_default().bold(),
    }
}
