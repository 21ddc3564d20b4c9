//! Consent of members to a preview of one commit that asks a cluster.
//!
//! Consent names a commit: by the `commit_id` of an approving review, or by a
//! comment that is one line, `pleach preview COMMIT`. The forge answers whether
//! its author is a member; nothing that the author writes says so.

use std::collections::BTreeMap;

use super::request::Call;
use super::{Comment, Forge, ForgeError, PAGES, read};

/// The least digits that name a commit. The author of a fork can make two commits
/// that share all digits of a shorter name.
pub const DIGITS: usize = 32;
/// How many accounts are looked up for one commit, the newest words first.
const ACCOUNTS: usize = 20;

/// An account on a forge.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Account {
    /// Its number.
    pub id: u64,
    /// Its name; none where the forge finds accounts by number.
    pub login: Option<String>,
}

/// A review of a pull request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Review {
    /// None of an account that is gone.
    pub(super) author: Option<Account>,
    /// The commit that was reviewed.
    pub(super) commit: String,
    pub(super) opinion: Opinion,
    /// Whether the author may push, where the review says so.
    pub(super) is_official: bool,
}

/// What a review says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opinion {
    /// The commit is good.
    Approves,
    /// It is not, or the approval was withdrawn.
    Objects,
    /// Neither.
    None,
}

/// Whether a text names a commit.
pub fn is_named(commit: &str, text: &str) -> bool {
    text.len() >= DIGITS && commit.starts_with(&text.to_ascii_lowercase())
}

/// The comment by which a member consents.
pub fn comment(commit: &str) -> String {
    format!("pleach preview {commit}")
}

/// Whether a comment consents to a commit: it is that line and nothing else, so that
/// no text which repeats words of others does.
fn consents(body: &str, commit: &str) -> bool {
    let words: Vec<&str> = body.split_whitespace().collect();
    matches!(words.as_slice(), ["pleach", "preview", name] if is_named(commit, name))
}

/// The accounts whose words consent to a commit, the newest first; or that a review
/// which the forge counts does.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Consent,
    Claims(Vec<Account>),
}

fn find(commit: &str, reviews: Vec<Review>, comments: Vec<Comment>) -> Found {
    // The last opinion of each account counts.
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
    /// Whether reviews name the commit that they are of.
    pub fn has_reviews(&self) -> bool {
        self.dialect.reviews(&self.project, 1, 1).is_some()
    }

    /// Whether a member consented to a commit of a pull request.
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
        // An objection may be on the pages after these.
        Err(ForgeError::TooLarge {
            what: "list the reviews",
        })
    }

    /// Whether an account may push to the repository, by the answer of the forge.
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
                    "the token is not allowed to read who is a member: the comment does not count"
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

    fn said(author: u64, body: &str) -> Comment {
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
                    said(1, &full),
                    said(2, &format!(" {full}\r\n")),
                    said(1, &full),
                ],
                claims(&[1, 2]),
            ),
            (
                "an abbreviated name",
                vec![],
                vec![
                    said(1, &comment(&COMMIT[..DIGITS])),
                    said(2, &comment(&COMMIT[..12])),
                ],
                claims(&[1]),
            ),
            (
                "words of others",
                vec![],
                vec![
                    said(1, &format!("> {full}")),
                    said(2, &format!("{full}\nplease")),
                    said(3, &comment(&other)),
                    said(4, "pleach preview"),
                ],
                claims(&[]),
            ),
        ];
        for (name, reviews, comments, expected) in cases {
            assert_eq!(find(COMMIT, reviews, comments), expected, "{name}");
        }
    }

    #[test]
    fn a_name_has_enough_digits_that_nobody_finds_a_second_commit() {
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
