//! Consent of members to a preview of one commit with access to a cluster.
//!
//! Consent names a commit: by the `commit_id` of an approving review, or by a comment that is only
//! the line `pleach preview COMMIT`. The forge decides whether the author is a member; the text of
//! the author does not.

use std::collections::BTreeMap;

use super::request::Call;
use super::{Comment, Forge, ForgeError, PAGES, read};

/// Minimum number of digits of a commit id. The author of a fork could create two commits that
/// share a shorter prefix.
pub const DIGITS: usize = 32;
/// Maximum number of accounts to check for one commit, newest statements first.
const ACCOUNTS: usize = 20;

/// Account on a forge.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Account {
    /// Id of the account.
    pub id: u64,
    /// Login. `None` if the forge looks up accounts by id.
    pub login: Option<String>,
}

/// A review of a pull request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Review {
    /// Author. `None` if the account was deleted.
    pub(super) author: Option<Account>,
    /// Commit that was reviewed.
    pub(super) commit: String,
    pub(super) opinion: Opinion,
    /// Whether the author has push access, if the review contains this.
    pub(super) is_official: bool,
}

/// Verdict of a review.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opinion {
    /// The review approves the commit.
    Approves,
    /// The review rejects the commit, or the approval was withdrawn.
    Objects,
    /// The review has no verdict.
    None,
}

/// Returns whether a text identifies a commit.
pub fn is_named(commit: &str, text: &str) -> bool {
    text.len() >= DIGITS && commit.starts_with(&text.to_ascii_lowercase())
}

/// Returns the text of the comment by which a member consents.
pub fn comment(commit: &str) -> String {
    format!("pleach preview {commit}")
}

/// Returns whether a comment consents to a commit. The line must be the whole comment, so a quote
/// does not count.
fn consents(body: &str, commit: &str) -> bool {
    let words: Vec<&str> = body.split_whitespace().collect();
    matches!(words.as_slice(), ["pleach", "preview", name] if is_named(commit, name))
}

/// Result of a search for consent: an official review, or the accounts with consenting statements,
/// newest first.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Consent,
    Claims(Vec<Account>),
}

fn find(commit: &str, reviews: Vec<Review>, comments: Vec<Comment>) -> Found {
    // Only the last verdict of each account counts.
    let mut opinions: BTreeMap<u64, Review> = BTreeMap::new();
    for review in reviews {
        if let (Some(author), Opinion::Approves | Opinion::Objects) =
            (&review.author, review.opinion)
        {
            opinions.insert(author.id, review);
        }
    }
    let approving =
        |review: &Review| review.opinion == Opinion::Approves && review.commit == commit;
    let approvals: Vec<Review> = opinions.into_values().filter(approving).collect();
    if approvals.iter().any(|review| review.is_official) {
        return Found::Consent;
    }
    let approvals = approvals.into_iter().filter_map(|review| review.author);
    let comments = comments.into_iter().rev();
    let comments = comments
        .filter(|comment| consents(&comment.body, commit))
        .filter_map(|comment| {
            Some(Account {
                id: comment.author?,
                login: comment.login,
            })
        });
    let mut claims = Vec::new();
    for account in approvals.chain(comments) {
        if claims.len() < ACCOUNTS && !claims.contains(&account) {
            claims.push(account);
        }
    }
    Found::Claims(claims)
}

impl Forge {
    /// Returns whether the reviews of this product name their commit.
    pub fn has_reviews(&self) -> bool {
        self.dialect.reviews(&self.project, 1, 1).is_some()
    }

    /// Returns whether a member consented to a commit of a pull request.
    pub async fn is_consented(&self, number: u64, commit: &str) -> Result<bool, ForgeError> {
        let reviews = self.reviews(number).await?;
        let comments = self.comments(number).await?;
        let claims = match find(commit, reviews, comments) {
            Found::Consent => return Ok(true),
            Found::Claims(claims) => claims,
        };
        for account in claims {
            if self.is_member(&account).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn reviews(&self, number: u64) -> Result<Vec<Review>, ForgeError> {
        let mut found = Vec::new();
        for page in 1..=PAGES {
            let Some(path) = self.dialect.reviews(&self.project, number, page) else {
                return Ok(found);
            };
            let call = Call::get("list the reviews", path);
            let answer = self.send(&call).await?;
            found.extend(read(&call, self.dialect.read_reviews(&answer.body))?);
            if !answer.more {
                return Ok(found);
            }
        }
        // A later page could contain an objection.
        Err(ForgeError::TooLarge {
            what: "list the reviews",
        })
    }

    /// Returns whether an account has push access to the repository, according to the forge.
    async fn is_member(&self, account: &Account) -> Result<bool, ForgeError> {
        let Some(path) = self.dialect.permission(&self.project, account) else {
            return Ok(false);
        };
        let call = Call::get("read the permissions of an account", path);
        match self.send(&call).await {
            Ok(answer) => read(&call, self.dialect.read_permission(&answer.body, account)),
            Err(ForgeError::Refused { status: 404, .. }) => Ok(false),
            Err(error @ ForgeError::Refused { status: 403, .. }) => {
                tracing::warn!(
                    account = account.id,
                    %error,
                    "the token is not allowed to read memberships: the comment is ignored"
                );
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn review(author: u64, commit: &str, opinion: Opinion, is_official: bool) -> Review {
        Review {
            author: Some(account(author)),
            commit: commit.to_owned(),
            opinion,
            is_official,
        }
    }

    fn account(id: u64) -> Account {
        Account {
            id,
            login: Some(format!("user-{id}")),
        }
    }

    fn comment_by(author: u64, body: &str) -> Comment {
        Comment {
            id: 1,
            author: Some(author),
            login: account(author).login,
            body: body.to_owned(),
            changed_at: None,
        }
    }

    fn claims(ids: &[u64]) -> Found {
        Found::Claims(ids.iter().copied().map(account).collect())
    }

    #[test]
    fn reviews_and_comments_consent_to_the_commit_that_they_name() {
        use Opinion::{Approves, None, Objects};
        let other = "f".repeat(40);
        let full = comment(COMMIT);
        let cases: Vec<(&str, Vec<Review>, Vec<Comment>, Found)> = vec![
            ("nothing", vec![], vec![], claims(&[])),
            (
                "an approval",
                vec![review(1, COMMIT, Approves, false)],
                vec![],
                claims(&[1]),
            ),
            (
                "of another commit",
                vec![review(1, &other, Approves, true)],
                vec![],
                claims(&[]),
            ),
            (
                "an official approval",
                vec![review(1, COMMIT, Approves, true)],
                vec![],
                Found::Consent,
            ),
            (
                "withdrawn",
                vec![
                    review(1, COMMIT, Approves, true),
                    review(1, COMMIT, Objects, true),
                ],
                vec![],
                claims(&[]),
            ),
            (
                "talked about afterwards",
                vec![
                    review(1, COMMIT, Approves, false),
                    review(1, COMMIT, None, false),
                ],
                vec![],
                claims(&[1]),
            ),
            (
                "comments, the newest first",
                vec![],
                vec![
                    comment_by(1, &full),
                    comment_by(2, &format!(" {full}\r\n")),
                    comment_by(1, &full),
                ],
                claims(&[1, 2]),
            ),
            (
                "an abbreviated name",
                vec![],
                vec![
                    comment_by(1, &comment(&COMMIT[..DIGITS])),
                    comment_by(2, &comment(&COMMIT[..12])),
                ],
                claims(&[1]),
            ),
            (
                "words of others",
                vec![],
                vec![
                    comment_by(1, &format!("> {full}")),
                    comment_by(2, &format!("{full}\nplease")),
                    comment_by(3, &comment(&other)),
                    comment_by(4, "pleach preview"),
                ],
                claims(&[]),
            ),
        ];
        for (name, reviews, comments, expected) in cases {
            assert_eq!(find(COMMIT, reviews, comments), expected, "{name}");
        }
    }

    #[test]
    fn a_commit_needs_enough_digits() {
        assert!(is_named(COMMIT, COMMIT));
        assert!(is_named(COMMIT, &COMMIT[..DIGITS].to_uppercase()));
        for text in [
            "",
            &COMMIT[..DIGITS - 1],
            &"0".repeat(40),
            &format!("{COMMIT}0"),
        ] {
            assert!(!is_named(COMMIT, text), "{text}");
        }
    }
}
