//! The user who reads a page, with permissions.

use std::collections::{BTreeMap, BTreeSet};

use pleach_model::object::ReleaseName;
use serde::Deserialize;

/// Verb on `releases.pleach.dev` that a page or an action needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// Read the pages of a release.
    Get,
    /// Request an immediate sync.
    Sync,
    /// Suspend a release.
    Suspend,
    /// Resume a suspended release.
    Resume,
    /// Approve the plan of a release.
    Approve,
}

impl Verb {
    /// All verbs.
    pub const ALL: [Self; 5] = [
        Self::Get,
        Self::Sync,
        Self::Suspend,
        Self::Resume,
        Self::Approve,
    ];

    /// Returns the verb as RBAC and the paths of the actions have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Sync => "sync",
            Self::Suspend => "suspend",
            Self::Resume => "resume",
            Self::Approve => "approve",
        }
    }
}

/// User who reads a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Viewer {
    /// Name of the user; `None` without sign-in.
    pub name: Option<String>,
    permissions: Permissions,
}

/// Verbs that a user is allowed to use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Permissions {
    /// Verbs on every release.
    pub everywhere: BTreeSet<Verb>,
    /// Further verbs on single releases.
    pub releases: BTreeMap<ReleaseName, BTreeSet<Verb>>,
    /// Whether the reviews of some releases take too long. They are not seen.
    pub is_partial: bool,
}

impl Viewer {
    /// Returns the viewer of a page without sign-in, who sees every release and is allowed no
    /// action.
    pub fn read_only() -> Self {
        Self {
            name: None,
            permissions: Permissions {
                everywhere: [Verb::Get].into(),
                ..Permissions::default()
            },
        }
    }

    /// Returns a signed-in user with permissions.
    pub fn signed_in(name: impl Into<String>, permissions: Permissions) -> Self {
        Self {
            name: Some(name.into()),
            permissions,
        }
    }

    /// Returns whether the reviews of some releases take too long. They are not seen.
    pub fn is_partial(&self) -> bool {
        self.permissions.is_partial
    }

    /// Returns whether the viewer is allowed to use a verb on a release.
    pub fn may(&self, verb: Verb, release: &ReleaseName) -> bool {
        let Permissions {
            everywhere,
            releases,
            is_partial: _,
        } = &self.permissions;
        let of_release = releases.get(release);
        everywhere.contains(&verb) || of_release.is_some_and(|verbs| verbs.contains(&verb))
    }
}

/// Fields of the form of an action: POST `/releases/ENV/NAME/{sync,suspend,resume,approve}`, as
/// `application/x-www-form-urlencoded`. An empty field was left out by the user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ActionFields {
    /// Effects digest of the plan on the page; only `approve` and `sync` send it.
    pub digest: String,
    /// Reason; `suspend` requires it.
    pub reason: String,
    /// Duration of a suspension, such as `2h`. Empty: until resumed.
    pub duration: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(name: &str) -> ReleaseName {
        ReleaseName {
            environment: "production".to_owned(),
            release: name.to_owned(),
        }
    }

    #[test]
    fn without_sign_in_everything_is_seen_and_nothing_done() {
        let viewer = Viewer::read_only();
        for verb in Verb::ALL {
            let is_allowed = viewer.may(verb, &release("web"));
            assert_eq!(is_allowed, verb == Verb::Get, "{verb:?}");
        }
    }

    #[test]
    fn permissions_on_one_release_add_to_those_on_all() {
        let viewer = Viewer::signed_in(
            "ann",
            Permissions {
                everywhere: [Verb::Sync].into(),
                releases: [(release("web"), [Verb::Get, Verb::Approve].into())].into(),
                is_partial: false,
            },
        );
        for (name, verb, expected) in [
            ("web", Verb::Get, true),
            ("web", Verb::Sync, true),
            ("web", Verb::Approve, true),
            ("web", Verb::Suspend, false),
            ("db", Verb::Get, false),
            ("db", Verb::Sync, true),
        ] {
            let is_allowed = viewer.may(verb, &release(name));
            assert_eq!(is_allowed, expected, "{name} {verb:?}");
        }
    }
}
