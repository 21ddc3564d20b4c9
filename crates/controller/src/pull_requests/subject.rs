//! Subject of a preview, and the depth of the preview.
//!
//! Cluster access is decided per commit. Branches of the repository itself belong to users who are
//! allowed to see the clusters. A commit of a fork needs the consent of a member that names the
//! commit, so later pushes are not covered.

use pleach_model::object::Digest;

use super::Live;
use pleach_forge::{
    PullRequest,
    consent::{self, DIGITS, is_named},
};

/// Subject of a preview: a commit of a pull request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) number: u64,
    pub(super) head: String,
    pub(super) base_branch: String,
    /// Account id of the author.
    pub(super) author: Option<u64>,
    origin: Origin,
}

/// Origin of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    /// A branch of the repository itself.
    Own,
    /// A fork, whose commits are never compared with clusters.
    Fork,
    /// A fork, whose commits are compared with clusters after the consent of a member.
    ForkOnConsent {
        /// Prefix of the label that gives consent.
        label: String,
        /// Whether this commit has such a label.
        is_labeled: bool,
    },
}

/// Depth of a preview.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// Without clusters: none is configured.
    Offline,
    /// Without clusters: forks are excluded.
    Fork,
    /// Without clusters: no member consented to this commit of a fork.
    Unconsented,
    /// With the clusters of its environments.
    Live,
    /// With clusters, but one did not answer. The preview is retried.
    Unanswered,
}

impl Subject {
    pub(super) fn of(pull: PullRequest, live: Option<&Live>) -> Self {
        let label = live.and_then(|live| live.fork_label.clone());
        let origin = match label {
            _ if !pull.is_fork => Origin::Own,
            None => Origin::Fork,
            Some(label) => Origin::ForkOnConsent {
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

    /// Returns whether the change comes from another repository.
    pub(super) fn is_fork(&self) -> bool {
        match self.origin {
            Origin::Own => false,
            Origin::Fork | Origin::ForkOnConsent { .. } => true,
        }
    }

    /// Returns whether reviews and comments decide about cluster access.
    pub(super) fn awaits_consent(&self) -> bool {
        matches!(
            self.origin,
            Origin::ForkOnConsent {
                is_labeled: false,
                ..
            }
        )
    }

    /// Returns the depth if cluster access is configured. `is_consented`: a review or comment of a
    /// member consents to the commit.
    pub(super) fn depth(&self, is_consented: bool) -> Depth {
        match self.origin {
            Origin::Own => Depth::Live,
            Origin::Fork => Depth::Fork,
            Origin::ForkOnConsent { is_labeled, .. } if is_labeled || is_consented => Depth::Live,
            Origin::ForkOnConsent { .. } => Depth::Unconsented,
        }
    }

    /// Returns the hint for members on how to allow a comparison with the cluster.
    pub(super) fn how_to_consent(&self, has_reviews: bool) -> String {
        let Origin::ForkOnConsent { label, .. } = &self.origin else {
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
            "Not compared with the cluster: this commit is from a fork, and no member of the repository consented to it. A member consents with {review}the comment `{comment}`, or the label `{label} {digits}`. The consent covers this commit only, and a label without a commit id does not count."
        )
    }

    /// Returns the invisible last line of the comment, which identifies its content.
    pub(super) fn last_line(&self, depth: Depth) -> String {
        let depth = match depth {
            Depth::Offline => "",
            Depth::Fork => "\nno label",
            Depth::Unconsented => "\nno consent",
            Depth::Live => "\nlive",
            Depth::Unanswered => "\nlive, unanswered",
        };
        // Branch names can contain anything but line breaks.
        let content = format!("{}\n{}{depth}", self.head, self.base_branch);
        format!("<!-- pleach told {} -->", Digest::of(content.as_bytes()))
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
    fn a_label_consents_to_the_named_commit_only() {
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
    fn members_consent_to_commits_of_forks() {
        let fork_on_consent = subject(true, Some("ask"), &[]);
        assert!(fork_on_consent.awaits_consent());
        assert_eq!(fork_on_consent.depth(false), Depth::Unconsented);
        assert_eq!(fork_on_consent.depth(true), Depth::Live);
        for (has_reviews, expected) in [(true, 1), (false, 0)] {
            let hint = fork_on_consent.how_to_consent(has_reviews);
            assert_eq!(hint.matches("approving review").count(), expected, "{hint}");
            assert!(hint.contains(&format!("`pleach preview {HEAD}`")), "{hint}");
            assert!(
                hint.contains(&format!("`ask {}`", &HEAD[..DIGITS])),
                "{hint}"
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
    fn each_depth_of_a_preview_has_its_own_last_line() {
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
