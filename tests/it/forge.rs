//! Requests to forges, verified by fake servers of each product.

use std::time::{Duration, Instant};

use pleach_files::{FileContent, write_atomic};
use pleach_forge::{Forge, ForgeError, Proposal, ReportOutcome, State, Status, Token};
use pleach_formats::file::ForgeKind;
use pleach_reconciler::config::ForgeAddress;
use pleach_testkit::forge::{ACCOUNT, FakeForge, PROJECT, Pull, TOKEN};
use rstest::rstest;

const MARKER: &str = "<!-- pleach preview -->";
const SOMEBODY: u64 = 7;

fn forge_as(fake: &FakeForge, kind: ForgeKind, token: Token, patience: Duration) -> Forge {
    // Only the first test succeeds.
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let address = ForgeAddress::named(kind, fake.api(), PROJECT).unwrap();
    Forge::new(address, token, patience).unwrap()
}

fn forge(fake: &FakeForge, kind: ForgeKind) -> Forge {
    let token = Token::Value {
        place: "a test".to_owned(),
        value: TOKEN.into(),
    };
    forge_as(fake, kind, token, Duration::from_secs(5))
}

fn pull(head: &str) -> Pull {
    Pull {
        head: head.to_owned(),
        base_branch: "main".to_owned(),
        ..Pull::default()
    }
}

fn status(state: State, description: &str) -> Status {
    Status {
        context: "pleach/staging".to_owned(),
        state,
        description: description.to_owned(),
    }
}

type Kind = ForgeKind;

#[rstest]
#[tokio::test]
async fn there_is_one_comment_and_it_is_ours(
    #[values(Kind::Github, Kind::Gitlab, Kind::Gitea)] kind: ForgeKind,
) {
    let fake = FakeForge::start(kind).unwrap();
    fake.page(2);
    fake.put(7, pull("abc"));
    // Other accounts can write any text, including the marker, before us.
    let theirs = format!("{MARKER}\nall is well, trust me");
    fake.note(7, SOMEBODY, &theirs);
    fake.note(7, SOMEBODY, "what is this?");
    // Our account can have other comments.
    fake.note(
        7,
        ACCOUNT,
        "<!-- pleach preview production -->\nanother one",
    );
    let forge = forge(&fake, kind);
    let first = format!("{MARKER}\n## one\n");
    let second = format!("{MARKER}\n## two\n");
    assert_eq!(
        forge.report(7, MARKER, &first).await.unwrap(),
        ReportOutcome::Created
    );
    fake.note(7, SOMEBODY, "thanks");
    assert_eq!(
        forge.report(7, MARKER, &first).await.unwrap(),
        ReportOutcome::Unchanged
    );
    assert_eq!(
        forge.report(7, MARKER, &second).await.unwrap(),
        ReportOutcome::Updated
    );
    let notes = fake.notes(7);
    assert_eq!(notes.len(), 5, "{notes:?}");
    assert_eq!(notes[0], (SOMEBODY, theirs));
    assert_eq!(notes[3], (ACCOUNT, second));
    assert_eq!(fake.wrong(), [""; 0]);
    let asked = fake.asked();
    let writes: Vec<&String> = asked
        .iter()
        .filter(|one| !one.starts_with("GET "))
        .collect();
    let expected: &[&str] = match kind {
        ForgeKind::Github => &[
            "POST /api/graphql",
            "POST /api/v3/repos/example/fleet/issues/7/comments",
            "POST /api/graphql",
            "POST /api/graphql",
            "PATCH /api/v3/repos/example/fleet/issues/comments/1004",
        ],
        ForgeKind::Gitlab => &[
            "POST /api/v4/projects/example%2Ffleet/merge_requests/7/notes",
            "PUT /api/v4/projects/example%2Ffleet/merge_requests/7/notes/1004",
        ],
        ForgeKind::Gitea => &[
            "POST /api/v1/repos/example/fleet/issues/7/comments",
            "PATCH /api/v1/repos/example/fleet/issues/comments/1004",
        ],
    };
    assert_eq!(writes, expected);
}

#[rstest]
#[tokio::test]
async fn pull_requests_are_read_page_by_page(
    #[values(Kind::Github, Kind::Gitlab, Kind::Gitea)] kind: ForgeKind,
) {
    let fake = FakeForge::start(kind).unwrap();
    fake.page(2);
    for number in 1..=5 {
        fake.put(number, pull("abc"));
    }
    fake.put(
        3,
        Pull {
            is_fork: true,
            labels: vec!["later".to_owned()],
            ..pull("def")
        },
    );
    fake.put(
        4,
        Pull {
            is_closed: true,
            ..pull("abc")
        },
    );
    let forge = forge(&fake, kind);
    let found = forge.pull_requests().await.unwrap();
    let numbers: Vec<u64> = found.iter().map(|one| one.number).collect();
    assert_eq!(numbers, [1, 2, 3, 5]);
    let third = &found[2];
    assert!(third.is_fork && third.is_open);
    assert_eq!(
        (third.head.as_str(), third.base_branch.as_str()),
        ("def", "main")
    );
    assert_eq!(third.labels, ["later"]);
    assert!(!found[0].is_fork);
    assert!(!forge.pull_request(4).await.unwrap().is_open);
    assert_eq!(fake.wrong(), [""; 0]);
}

#[rstest]
#[tokio::test]
async fn the_pull_request_by_which_a_commit_came_is_found(
    #[values(Kind::Github, Kind::Gitlab, Kind::Gitea)] kind: ForgeKind,
) {
    let fake = FakeForge::start(kind).unwrap();
    fake.put(1, pull("abc"));
    let merged = Pull {
        is_closed: true,
        merged_as: Some("merge".to_owned()),
        ..pull("def")
    };
    fake.put(2, merged);
    let forge = forge(&fake, kind);
    let found = forge.pull_requests_of("merge").await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].number, found[0].head.as_str()), (2, "def"));
    assert!(found[0].merged_as.contains(&"merge".to_owned()));
    // Comments before and after the merge.
    fake.note(1, ACCOUNT, "then");
    fake.note(2, ACCOUNT, "now");
    let merged_at = found[0].merged_at.unwrap();
    for (number, is_known) in [(1, true), (2, false)] {
        let comments = forge.find_comments(number, ACCOUNT, "").await.unwrap();
        assert_eq!(comments[0].changed_at.unwrap() < merged_at, is_known);
    }
    // An open pull request has no merge commit yet.
    let open = forge.pull_requests_of("abc").await.unwrap();
    assert!(
        open.iter()
            .all(|one| one.is_open && one.merged_as.is_empty())
    );
    fake.fail(404, &[], "{}");
    assert_eq!(forge.pull_requests_of("abc").await.unwrap(), []);
    fake.fail(403, &[], "{}");
    assert!(forge.pull_requests_of("abc").await.is_err());
    assert_eq!(fake.wrong(), [""; 0]);
}

#[rstest]
#[tokio::test]
async fn all_comments_of_an_account_are_found(
    #[values(Kind::Github, Kind::Gitlab, Kind::Gitea)] kind: ForgeKind,
) {
    let fake = FakeForge::start(kind).unwrap();
    fake.page(2);
    for (author, text) in [
        (ACCOUNT, "a 1"),
        (5, "a 2"),
        (ACCOUNT, "b"),
        (ACCOUNT, "a 3"),
    ] {
        fake.note(7, author, text);
    }
    let found = forge(&fake, kind)
        .find_comments(7, ACCOUNT, "a")
        .await
        .unwrap();
    let texts: Vec<&str> = found.iter().map(|comment| comment.body.as_str()).collect();
    assert_eq!(texts, ["a 1", "a 3"]);
}

#[tokio::test]
async fn a_comment_that_may_come_on_a_later_page_is_not_written_again() {
    let fake = FakeForge::start(Kind::Github).unwrap();
    fake.page(1);
    fake.put(7, pull("abc"));
    for _ in 0..=100 {
        fake.note(7, SOMEBODY, "me too");
    }
    fake.note(7, ACCOUNT, &format!("{MARKER}\none\n"));
    let forge = forge(&fake, Kind::Github);
    let told = forge.report(7, MARKER, &format!("{MARKER}\ntwo\n")).await;
    assert!(matches!(told, Err(ForgeError::TooLarge { .. })), "{told:?}");
    assert_eq!(fake.notes(7).len(), 102);
}

#[rstest]
#[tokio::test]
async fn states_of_commits_are_set_and_read(
    #[values(Kind::Github, Kind::Gitlab, Kind::Gitea)] kind: ForgeKind,
) {
    let fake = FakeForge::start(kind).unwrap();
    let forge = forge(&fake, kind);
    assert_eq!(forge.status("abc", "pleach/staging").await.unwrap(), None);
    let long = "ä".repeat(300);
    for (state, description) in [
        (State::Pending, "on its way"),
        (State::Failure, long.as_str()),
        (State::Success, "2 releases are in sync"),
        // GitLab correctly refuses a repeated status.
        (State::Success, "2 releases are in sync"),
    ] {
        let status = status(state, description);
        forge.set_status("abc", &status).await.unwrap();
        let known = forge
            .status("abc", "pleach/staging")
            .await
            .unwrap()
            .unwrap();
        assert_eq!(known.state, state);
    }
    let said = fake.statuses("abc");
    assert_eq!(said[0].1, "pending");
    let failed = if kind == ForgeKind::Gitlab {
        "failed"
    } else {
        "failure"
    };
    assert_eq!(said[1].1, failed);
    assert!(said[1].2.ends_with('…'), "{}", said[1].2);
    assert_eq!(fake.wrong(), [""; 0]);
}

#[rstest]
#[tokio::test]
async fn a_pull_request_is_opened(
    #[values(Kind::Github, Kind::Gitlab, Kind::Gitea)] kind: ForgeKind,
) {
    let fake = FakeForge::start(kind).unwrap();
    let proposal = Proposal {
        title: "Promote web".to_owned(),
        body: "It ran for a week.".to_owned(),
        head_branch: "promote/web".to_owned(),
        base_branch: "main".to_owned(),
    };
    let opened = forge(&fake, kind).open(&proposal).await.unwrap();
    assert_eq!(opened.number, 77);
    assert!(
        opened.url.starts_with("https://git.example.org/"),
        "{}",
        opened.url
    );
    let asked = &fake.opened()[0];
    let (head, base) = if kind == ForgeKind::Gitlab {
        ("source_branch", "target_branch")
    } else {
        ("head", "base")
    };
    assert_eq!(
        (&asked[head], &asked[base]),
        (&"promote/web".into(), &"main".into())
    );
}

#[tokio::test]
async fn a_forge_that_has_enough_is_left_alone_for_as_long_as_it_says() {
    let fake = FakeForge::start(ForgeKind::Gitea).unwrap();
    fake.put(1, pull("abc"));
    let forge = forge(&fake, ForgeKind::Gitea);
    fake.fail(429, &[("retry-after", "1")], "{}");
    let started = Instant::now();
    assert!(forge.pull_request(1).await.is_ok());
    assert!(started.elapsed() >= Duration::from_millis(900));
    // The limit is longer than the patience, so nothing more is sent.
    fake.fail(429, &[("retry-after", "3600")], "{}");
    let error = forge.pull_request(1).await.unwrap_err();
    assert!(matches!(error, ForgeError::TooMany { .. }), "{error}");
    assert!(error.is_passing());
    let asked = fake.asked().len();
    assert!(forge.pull_request(1).await.is_err());
    assert_eq!(fake.asked().len(), asked);
}

#[tokio::test]
async fn a_forge_in_trouble_is_asked_again_and_a_comment_is_not_written_twice() {
    let fake = FakeForge::start(ForgeKind::Github).unwrap();
    fake.put(1, pull("abc"));
    let forge = forge(&fake, ForgeKind::Github);
    fake.fail(502, &[], "<html>Bad gateway</html>");
    assert!(forge.pull_request(1).await.is_ok());
    assert_eq!(fake.asked().len(), 2);
    // After the account and the comments are read, the result of the write is unknown.
    fake.fail(200, &[], r#"{"data": {"viewer": {"databaseId": 42}}}"#);
    fake.fail(200, &[], "[]");
    fake.fail(504, &[], "");
    let error = forge.report(1, MARKER, MARKER).await.unwrap_err();
    assert!(error.is_passing(), "{error}");
    assert_eq!(fake.asked().len(), 5);
    assert_eq!(
        forge.report(1, MARKER, MARKER).await.unwrap(),
        ReportOutcome::Created
    );
}

#[tokio::test]
async fn refusals_are_told_and_no_token_is() {
    let fake = FakeForge::start(ForgeKind::Github).unwrap();
    let forge = forge(&fake, ForgeKind::Github);
    let echo = format!(r#"{{"message": "no such token: {TOKEN}"}}"#);
    fake.fail(401, &[], &echo);
    let error = forge.pull_request(1).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to read the pull request: the forge answered 401: no such token: …"
    );
    assert!(error.hint().unwrap().contains("the token is wrong"));
    assert!(!error.is_passing());
    fake.fail(200, &[], "<html>log in</html>");
    let error = forge.pull_request(1).await.unwrap_err();
    assert!(matches!(error, ForgeError::NotUnderstood { .. }), "{error}");
    // Credentials are not sent to another host.
    let elsewhere = FakeForge::start(ForgeKind::Github).unwrap();
    fake.fail(302, &[("location", &elsewhere.api())], "");
    let error = forge.pull_request(1).await.unwrap_err();
    assert!(error.hint().unwrap().contains("has moved"), "{error}");
    assert!(elsewhere.seen().is_empty());
    assert!(!format!("{forge:?}{error:?}").contains(TOKEN));
    let long = "x".repeat(65_537);
    let error = forge.report(1, MARKER, &long).await.unwrap_err();
    assert!(matches!(error, ForgeError::TooLong { .. }), "{error}");
}

#[tokio::test]
async fn the_token_is_read_again_each_time() {
    let fake = FakeForge::start(ForgeKind::Gitlab).unwrap();
    fake.put(1, pull("abc"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    let write = |text: &str| write_atomic(&path, &FileContent::private(text.to_owned())).unwrap();
    write(&format!("{TOKEN}\n"));
    let token = Token::File(path.clone());
    let forge = forge_as(&fake, ForgeKind::Gitlab, token, Duration::ZERO);
    assert!(forge.pull_request(1).await.is_ok());
    fake.demand("another");
    assert!(forge.pull_request(1).await.is_err());
    write("another");
    assert!(forge.pull_request(1).await.is_ok());
    write("");
    let error = forge.pull_request(1).await.unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("does not contain a valid token"),
        "{error}"
    );
}

#[tokio::test]
async fn an_answer_without_end_is_not_read_to_its_end() {
    let fake = FakeForge::start(ForgeKind::Gitea).unwrap();
    let forge = forge(&fake, ForgeKind::Gitea);
    fake.fail(200, &[], &" ".repeat(33 * 1024 * 1024));
    let error = forge.pull_request(1).await.unwrap_err();
    assert!(matches!(error, ForgeError::TooLarge { .. }), "{error}");
}

#[tokio::test]
async fn a_forge_that_is_not_there_is_told() {
    let fake = FakeForge::start(ForgeKind::Gitea).unwrap();
    let forge = forge(&fake, ForgeKind::Gitea);
    drop(fake);
    let error = forge.pull_requests().await.unwrap_err();
    assert!(error.is_passing(), "{error}");
    assert!(error.to_string().contains("http://127.0.0.1:"), "{error}");
}
