//! What is previewed once, and how far it is looked at.
//!
//! Whether clusters are asked is decided for each commit. Branches of the
//! repository itself are those of people who may see what is there. For a commit of
//! a fork, a member has to consent, in words that name the commit: nothing which
//! is pushed afterwards is covered by them.

use pleach_domain::object::Digest;

use super::Live;
use crate::io::forge::PullRequest;
use crate::io::forge::consent::{self, DIGITS, is_named};

/// What is previewed once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) number: u64,
    pub(super) head: String,
    pub(super) base_branch: String,
    /// Who opened it, by the number of the account.
    pub(super) author: Option<u64>,
    origin: Origin,
}

/// Where a change comes from, as far as it matters.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    /// A branch of the repository itself.
    Own,
    /// Another repository, of which no commit is compared.
    Fork,
    /// Another repository, of which a commit is compared with the consent of a member.
    Asking {
        /// How the label begins that consents.
        label: String,
        /// Whether there is such a label for this commit.
        is_labeled: bool,
    },
}

/// How far a commit is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// Without a cluster: there is none to be asked.
    Offline,
    /// Without a cluster: no commit of a fork is compared.
    Fork,
    /// Without a cluster: no member consented to this commit of a fork.
    Unconsented,
    /// With those of its environments.
    Live,
    /// Likewise, and one of them did not answer: it is tried again.
    Unanswered,
}

impl Subject {
    pub(super) fn of(pull: PullRequest, live: Option<&Live>) -> Self {
        let label = live.and_then(|live| live.fork_label.clone());
        let origin = match label {
            _ if !pull.is_fork => Origin::Own,
            None => Origin::Fork,
            Some(label) => Origin::Asking {
                is_labeled: pull.labels.iter().any(|one| {
                    let name = one.strip_prefix(&label).unwrap_or_default();
                    name.starts_with(' ') && is_named(&pull.head, name.trim_start())
                }),
                label,
            },
        };
        Self {
            number: pull.number,
            head: pull.head,
            base_branch: pull.base_branch,
            author: pull.author,
            origin,
        }
    }

    /// Whether it comes from another repository.
    pub(super) fn is_fork(&self) -> bool {
        match self.origin {
            Origin::Own => false,
            Origin::Fork | Origin::Asking { .. } => true,
        }
    }

    /// Whether reviews and comments decide how far it is looked at.
    pub(super) fn awaits_consent(&self) -> bool {
        matches!(
            self.origin,
            Origin::Asking {
                is_labeled: false,
                ..
            }
        )
    }

    /// How far it is looked at where clusters may be asked. `is_consented` says that
    /// a review or a comment of a member consents to the commit.
    pub(super) fn depth(&self, is_consented: bool) -> Depth {
        match self.origin {
            Origin::Own => Depth::Live,
            Origin::Fork => Depth::Fork,
            Origin::Asking { is_labeled, .. } if is_labeled || is_consented => Depth::Live,
            Origin::Asking { .. } => Depth::Unconsented,
        }
    }

    /// What members are told who want it compared with the cluster.
    pub(super) fn how_to_consent(&self, has_reviews: bool) -> String {
        let Origin::Asking { label, .. } = &self.origin else {
            return String::new();
        };
        let review = if has_reviews {
            "an approving review of this commit, "
        } else {
            ""
        };
        let comment = consent::comment(&self.head);
        let digits = self.head.get(..DIGITS).unwrap_or(&self.head);
        format!(
            "Not compared with the cluster: this commit is of a fork, and no member of the repository consented to it. Consent is {review}the comment `{comment}`, or the label `{label} {digits}`. It counts for this commit only, and the label without a commit does not count."
        )
    }

    /// The line that ends the comment about it, which nobody sees.
    pub(super) fn last_line(&self, depth: Depth) -> String {
        let depth = match depth {
            Depth::Offline => "",
            Depth::Fork => "\nno label",
            Depth::Unconsented => "\nno consent",
            Depth::Live => "\nlive",
            Depth::Unanswered => "\nlive, unanswered",
        };
        // Names of branches may hold anything, but no ends of lines.
        let told = format!("{}\n{}{depth}", self.head, self.base_branch);
        format!("<!-- pleach told {} -->", Digest::of(told.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "0123456789abcdef0123456789abcdef01234567";

    fn subject(is_fork: bool, fork_label: Option<&str>, labels: &[&str]) -> Subject {
        let pull = PullRequest {
            number: 7,
            is_open: true,
            head: HEAD.to_owned(),
            base_branch: "env/production".to_owned(),
            is_fork,
            author: None,
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            updated_at: None,
            merged_as: Vec::new(),
            merged_at: None,
        };
        let live = Live {
            fork_label: fork_label.map(str::to_owned),
            variables: Vec::new(),
            details: false,
        };
        Subject::of(pull, Some(&live))
    }

    #[test]
    fn a_label_counts_for_the_commit_that_it_names() {
        let short = &HEAD[..DIGITS];
        for (label, expected) in [
            ("ask".to_owned(), Depth::Unconsented),
            (format!("ask {HEAD}"), Depth::Live),
            (format!("ask {short}"), Depth::Live),
            (format!("ask {}", &HEAD[..12]), Depth::Unconsented),
            (format!("ask{short}"), Depth::Unconsented),
            (format!("asked {short}"), Depth::Unconsented),
            (format!("ask {}", "f".repeat(40)), Depth::Unconsented),
            (short.to_owned(), Depth::Unconsented),
        ] {
            let subject = subject(true, Some("ask"), &["x", &label]);
            assert_eq!(subject.depth(false), expected, "{label}");
            assert_eq!(subject.awaits_consent(), expected != Depth::Live, "{label}");
        }
    }

    #[test]
    fn members_consent_where_forks_may_ask() {
        let asking = subject(true, Some("ask"), &[]);
        assert!(asking.awaits_consent());
        assert_eq!(asking.depth(false), Depth::Unconsented);
        assert_eq!(asking.depth(true), Depth::Live);
        for (has_reviews, expected) in [(true, 1), (false, 0)] {
            let said = asking.how_to_consent(has_reviews);
            assert_eq!(said.matches("approving review").count(), expected, "{said}");
            assert!(said.contains(&format!("`pleach preview {HEAD}`")), "{said}");
            assert!(
                said.contains(&format!("`ask {}`", &HEAD[..DIGITS])),
                "{said}"
            );
        }
        let fork = subject(true, None, &["ask"]);
        assert!(!fork.awaits_consent());
        assert_eq!(fork.depth(true), Depth::Fork);
        let own = subject(false, Some("ask"), &[]);
        assert!(!own.awaits_consent());
        assert_eq!(own.depth(false), Depth::Live);
    }

    #[test]
    fn what_was_not_answered_is_not_taken_for_told() {
        let own = subject(false, None, &[]);
        let lines = [
            Depth::Offline,
            Depth::Fork,
            Depth::Unconsented,
            Depth::Live,
            Depth::Unanswered,
        ];
        let lines = lines.map(|depth| own.last_line(depth));
        let different: std::collections::BTreeSet<&String> = lines.iter().collect();
        assert_eq!(different.len(), lines.len());
    }
}
