//! Exit codes.
//!
//! Scripts and pipelines depend on the table. `docs/reference/exit-codes.md` explains it, and a test compares
//! both.

/// Exit code of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit(u8);

impl Exit {
    /// Success, also if the reader of the output closed the pipe.
    pub const DONE: Self = Self(0);
    /// Failure without a more specific code, or declined by the user.
    pub const FAILED: Self = Self(1);
    /// Invalid usage, such as an unknown option, or a prompt without a terminal.
    pub const USAGE: Self = Self(2);
    /// The repository is invalid: files, values, templates, manifests.
    pub const REPOSITORY: Self = Self(3);
    /// The cluster is unreachable or denies access.
    pub const CLUSTER: Self = Self(4);
    /// Conflict with another field manager, or stale plan.
    pub const CONFLICT: Self = Self(5);
    /// Not ready in time.
    pub const NOT_READY: Self = Self(6);
    /// Refused by policy: version, confirmation, prune limit, guard or ownership.
    pub const POLICY: Self = Self(7);
    /// There are changes, and `--exit-code` was given.
    pub const CHANGES: Self = Self(10);
    /// Interrupted.
    pub const INTERRUPTED: Self = Self(130);

    /// All codes in order of precedence, for when several apply.
    pub const BY_PRECEDENCE: [Self; 10] = [
        Self::INTERRUPTED,
        Self::USAGE,
        Self::REPOSITORY,
        Self::CLUSTER,
        Self::POLICY,
        Self::CONFLICT,
        Self::NOT_READY,
        Self::FAILED,
        Self::CHANGES,
        Self::DONE,
    ];

    /// Returns the number.
    pub fn code(self) -> u8 {
        self.0
    }

    /// Returns the code with precedence.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self::BY_PRECEDENCE
            .into_iter()
            .find(|exit| *exit == self || *exit == other)
            .unwrap_or(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_severe_cause_wins_whichever_comes_first() {
        for (rank, winner) in Exit::BY_PRECEDENCE.into_iter().enumerate() {
            for other in &Exit::BY_PRECEDENCE[rank..] {
                assert_eq!(winner.and(*other), winner);
                assert_eq!(other.and(winner), winner);
            }
        }
    }

    #[test]
    fn exit_codes_are_stable() {
        let codes = Exit::BY_PRECEDENCE.map(Exit::code);
        assert_eq!(codes, [130, 2, 3, 4, 7, 5, 6, 1, 10, 0]);
    }
}
