//! Differences of the planned releases of a command, with one masker for all of them.

use pleach_fields::diff::{fields::Scope, masking::Masker};
use pleach_planner::text_diff::View;
use pleach_planner::view::{Drawing, ReleaseDiff};

use super::error::CliError;
use super::format::change::{self, Fields};
use super::mask;
use super::session::Session;
use pleach_engine::planning::{Planned, Subject};
use pleach_engine::preview::Kinds;

/// Fields that count, as by default in `pleach diff`.
const VIEW: View = View {
    scope: Scope::Owned,
    status: false,
    full_deletes: false,
};

/// Differences of the releases of a session. Equal secret values have the same number.
pub(super) struct Differences<'a> {
    session: &'a Session,
    kinds: Kinds,
    masker: Masker,
}

impl<'a> Differences<'a> {
    pub(super) fn of(session: &'a Session) -> Result<Self, CliError> {
        let loaded = &session.loaded;
        Ok(Self {
            session,
            kinds: Kinds::of(&loaded.environment, loaded.all()),
            masker: mask::masker(&mask::run_key()?, loaded.all()),
        })
    }

    /// Compares all objects of a release.
    pub(super) fn release(&mut self, subject: &Subject<'_>, planned: &Planned) -> ReleaseDiff {
        let policy = self.session.policy_for(subject);
        let drawing = Drawing {
            desired: &planned.desired,
            observed: &planned.observation.observed,
            policy: &policy,
            kinds: self.kinds.catalog(),
            view: VIEW,
        };
        drawing.release(&planned.plan, &mut self.masker)
    }

    /// Returns the changed fields of the objects of a release that stay.
    pub(super) fn fields(&mut self, subject: &Subject<'_>, planned: &Planned) -> Fields {
        let policy = self.session.policy_for(subject);
        let drawing = Drawing {
            desired: &planned.desired,
            observed: &planned.observation.observed,
            policy: &policy,
            kinds: self.kinds.catalog(),
            view: VIEW,
        };
        change::fields(&drawing.updates(&planned.plan, &mut self.masker))
    }
}
