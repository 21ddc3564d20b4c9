//! With which code a command ends.
//!
//! The table is the contract of scripts and pipelines; `docs/exit-codes.md`
//! explains it, and a test compares the two.

/// The code that a command ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit(u8);

impl Exit {
    /// Done; also when the reader of our output went away.
    pub const DONE: Self = Self(0);
    /// Failed for a reason that no other code stands for, or declined.
    pub const FAILED: Self = Self(1);
    /// Called wrongly: unknown options, or a question without anyone to answer.
    pub const USAGE: Self = Self(2);
    /// The repository is invalid: files, values, templates, manifests.
    pub const REPOSITORY: Self = Self(3);
    /// The cluster cannot be reached, or does not let us.
    pub const CLUSTER: Self = Self(4);
    /// Conflict with another field manager, or the plan is stale.
    pub const CONFLICT: Self = Self(5);
    /// Not ready in time.
    pub const NOT_READY: Self = Self(6);
    /// Refused by policy: version, consent, prune cap, guard, ownership.
    pub const POLICY: Self = Self(7);
    /// Changes were found, and `--exit-code` was given.
    pub const CHANGES: Self = Self(10);
    /// Interrupted.
    pub const INTERRUPTED: Self = Self(130);

    /// Every code, the one that wins first when several apply.
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

    /// The number.
    pub fn code(self) -> u8 {
        self.0
    }

    /// The one that wins when both apply.
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
    fn numbers_are_the_contract() {
        let codes = Exit::BY_PRECEDENCE.map(Exit::code);
        assert_eq!(codes, [130, 2, 3, 4, 7, 5, 6, 1, 10, 0]);
    }
}
