//! What is previewed once, and how far it is looked at.
//!
//! Whether clusters are asked is decided for each commit. Branches of the
//! repository itself are those of people who may see what is there; a commit of a
//! fork has to be vouched for by a label. Labels are of pull requests and not of
//! commits: one counts for a commit that was told here without it before, and
//! for no other, so that nothing which is pushed after the label is covered by it.

use pleach_domain::object::Digest;

use super::Live;
use crate::io::forge::PullRequest;

/// What is previewed once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) number: u64,
    pub(super) head: String,
    pub(super) base_branch: String,
    origin: Origin,
}

/// Where a change comes from, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// A branch of the repository itself.
    Own,
    /// Another repository.
    Fork,
    /// Another repository, and the label is on the pull request.
    LabeledFork,
}

/// How far a commit is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// Without a cluster: there is none to be asked.
    Offline,
    /// Without a cluster: a fork without the label.
    Unlabeled,
    /// Without a cluster: the label that is there was there before the commit.
    StaleLabel,
    /// With those of its environments.
    Live,
    /// Likewise, and one of them did not answer: it is tried again.
    Unanswered,
}

impl Subject {
    pub(super) fn of(pull: PullRequest, live: Option<&Live>) -> Self {
        let label = live.and_then(|live| live.fork_label.as_ref());
        let origin = match label {
            _ if !pull.is_fork => Origin::Own,
            Some(label) if pull.labels.contains(label) => Origin::LabeledFork,
            _ => Origin::Fork,
        };
        Self {
            number: pull.number,
            head: pull.head,
            base_branch: pull.base_branch,
            origin,
        }
    }

    /// How far it is looked at where clusters may be asked, by the line that ends
    /// the comment so far.
    pub(super) fn depth(&self, told: Option<&str>) -> Depth {
        let is_told = |depth: Depth| told == Some(&*self.last_line(depth));
        match self.origin {
            Origin::Own => Depth::Live,
            Origin::Fork => Depth::Unlabeled,
            Origin::LabeledFork => {
                let before = [Depth::Unlabeled, Depth::Live, Depth::Unanswered];
                if before.into_iter().any(is_told) {
                    Depth::Live
                } else {
                    Depth::StaleLabel
                }
            }
        }
    }

    /// The line that ends the comment about it, which nobody sees.
    pub(super) fn last_line(&self, depth: Depth) -> String {
        let depth = match depth {
            Depth::Offline => "",
            Depth::Unlabeled => "\nno label",
            Depth::StaleLabel => "\nstale label",
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

    fn pull(is_fork: bool, head: &str, labels: &[&str]) -> PullRequest {
        PullRequest {
            number: 7,
            is_open: true,
            head: head.to_owned(),
            base_branch: "env/production".to_owned(),
            is_fork,
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            merged_as: Vec::new(),
            merged_at: None,
        }
    }

    fn subject(is_fork: bool, head: &str, labels: &[&str]) -> Subject {
        let live = Live {
            fork_label: Some("ask".to_owned()),
            variables: Vec::new(),
        };
        Subject::of(pull(is_fork, head, labels), Some(&live))
    }

    #[test]
    fn a_label_counts_for_the_commit_that_was_told_without_it() {
        let depth = |subject: &Subject, told: Option<&(Subject, Depth)>| {
            let told = told.map(|(subject, depth)| subject.last_line(*depth));
            subject.depth(told.as_deref())
        };
        let (before, after) = (
            subject(true, "a", &["x"]),
            subject(true, "a", &["x", "ask"]),
        );
        assert_eq!(depth(&before, None), Depth::Unlabeled);
        assert_eq!(depth(&after, None), Depth::StaleLabel);
        assert_eq!(
            depth(&after, Some(&(before.clone(), Depth::Unlabeled))),
            Depth::Live
        );
        for asked in [Depth::Live, Depth::Unanswered] {
            assert_eq!(depth(&after, Some(&(after.clone(), asked))), Depth::Live);
        }
        // Told when nobody asked for labels.
        let offline = (before.clone(), Depth::Offline);
        assert_eq!(depth(&after, Some(&offline)), Depth::StaleLabel);
        // Told with the label on it: it may be of another commit.
        let stale = (after.clone(), Depth::StaleLabel);
        assert_eq!(depth(&after, Some(&stale)), Depth::StaleLabel);
        assert_eq!(depth(&before, Some(&stale)), Depth::Unlabeled);
        // What is pushed afterwards is another commit, whatever was told of the first.
        let pushed = subject(true, "b", &["ask"]);
        for told in [
            Depth::Unlabeled,
            Depth::Live,
            Depth::Unanswered,
            Depth::StaleLabel,
        ] {
            assert_eq!(
                depth(&pushed, Some(&(before.clone(), told))),
                Depth::StaleLabel
            );
        }
    }

    #[test]
    fn what_was_not_answered_is_not_taken_for_told() {
        let own = subject(false, "a", &[]);
        let unanswered = own.last_line(Depth::Unanswered);
        assert_eq!(own.depth(Some(&unanswered)), Depth::Live);
        assert_ne!(own.last_line(Depth::Live), unanswered);
    }

    #[test]
    fn branches_of_the_repository_need_no_label_and_forks_have_no_other_way() {
        assert_eq!(subject(false, "a", &[]).depth(None), Depth::Live);
        assert_eq!(subject(true, "a", &["asked"]).depth(None), Depth::Unlabeled);
        let live = Live {
            fork_label: None,
            variables: Vec::new(),
        };
        let fork = Subject::of(pull(true, "a", &["ask"]), Some(&live));
        assert_eq!(fork.origin, Origin::Fork);
    }
}
