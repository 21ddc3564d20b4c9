//! Copies of remote repositories.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pleach_engine::fetching::Fetcher;
use pleach_git::{
    branch_history::BranchHistory,
    budget::Budget,
    mirror::{Fetched, Limits, Mirror},
    remote::{Auth, Remote},
};
use pleach_model::tree::FileTree as _;
use pleach_testkit::git_server::GitServer;
use pleach_testkit::repository::{TestRepo, noise};
use pleach_testkit::tls_front::TlsFront;
use rstest::rstest;
use tokio::sync::Semaphore;

const ENVIRONMENTS: &str = "env/";

fn repository() -> TestRepo {
    let repo = TestRepo::new([("pleach.yaml", "first")]).unwrap();
    repo.commit("first").unwrap();
    repo
}

/// Moves a branch to the checked-out commit.
fn point(repo: &TestRepo, branch: &str) -> String {
    repo.git(&["branch", "--force", branch]).unwrap();
    repo.git(&["rev-parse", branch]).unwrap()
}

fn mirror(url: impl Into<String>, auth: Auth) -> Mirror {
    Mirror::new(Remote {
        url: url.into(),
        auth,
        keys: None,
    })
}

fn fetch(mirror: &mut Mirror) -> Result<Fetched, String> {
    mirror
        .fetch(|branch| branch.starts_with(ENVIRONMENTS))
        .map_err(|error| error.to_string())
}

/// Returns `branch=content of pleach.yaml` for each branch.
fn shown(fetched: &Fetched) -> Vec<String> {
    let heads = fetched.heads.iter();
    heads
        .map(|(branch, commit)| {
            let tree = fetched.reader.tree(commit).unwrap();
            let file = tree.read("pleach.yaml").unwrap();
            format!("{branch}={}", String::from_utf8_lossy(&file))
        })
        .collect()
}

/// Changes a repository and verifies its mirror.
fn check_branches(repo: &TestRepo, url: &str) {
    let mut mirror = mirror(url, Auth::Anonymous);
    assert_eq!(shown(&fetch(&mut mirror).unwrap()), [""; 0]);
    point(repo, "env/a");
    point(repo, "env/b");
    let fetched = fetch(&mut mirror).unwrap();
    assert_eq!(shown(&fetched), ["env/a=first", "env/b=first"]);
    assert_eq!(fetched.default_branch.as_deref(), Some("main"));
    assert!(fetched.branches.contains(&"main".to_owned()));
    // A commit on one branch.
    repo.edit("pleach.yaml", "first", "second").unwrap();
    repo.commit("second").unwrap();
    point(repo, "env/a");
    let before = fetched;
    assert_eq!(
        shown(&fetch(&mut mirror).unwrap()),
        ["env/a=second", "env/b=first"]
    );
    // Previous commits are still readable.
    assert_eq!(shown(&before), ["env/a=first", "env/b=first"]);
    // History is rewritten.
    repo.git(&["checkout", "--quiet", "--orphan", "other"])
        .unwrap();
    repo.write("pleach.yaml", "third").unwrap();
    repo.commit("third").unwrap();
    point(repo, "env/a");
    assert_eq!(
        shown(&fetch(&mut mirror).unwrap()),
        ["env/a=third", "env/b=first"]
    );
    // A branch is deleted and recreated.
    repo.git(&["branch", "--quiet", "-D", "env/b"]).unwrap();
    assert_eq!(shown(&fetch(&mut mirror).unwrap()), ["env/a=third"]);
    point(repo, "env/b");
    assert_eq!(
        shown(&fetch(&mut mirror).unwrap()),
        ["env/a=third", "env/b=third"]
    );
}

#[test]
fn branches_of_a_server_are_followed_wherever_they_go() {
    let repo = repository();
    let server = GitServer::start(repo.path()).unwrap();
    check_branches(&repo, &server.url(".git"));
}

#[test]
fn branches_of_a_folder_are_followed_wherever_they_go() {
    let repo = repository();
    check_branches(&repo, repo.path().to_str().unwrap());
    let repo = repository();
    check_branches(&repo, &format!("file://{}", repo.path().display()));
}

#[test]
fn of_commits_that_somebody_names_only_those_count_that_the_branch_had() {
    let repo = repository();
    let first = point(&repo, "env/a");
    repo.edit("pleach.yaml", "first", "second").unwrap();
    repo.commit("second").unwrap();
    let second = point(&repo, "env/a");
    // A commit on another branch, and the previous one of the rewritten branch.
    repo.git(&["checkout", "--quiet", "-b", "other"]).unwrap();
    repo.edit("pleach.yaml", "second", "theirs").unwrap();
    repo.commit("theirs").unwrap();
    let theirs = point(&repo, "env/b");
    repo.git(&["checkout", "--quiet", "main"]).unwrap();
    repo.edit("pleach.yaml", "second", "third").unwrap();
    repo.commit("third").unwrap();
    point(&repo, "env/a");
    let server = GitServer::start(repo.path()).unwrap();
    for url in [server.url(".git"), repo.path().display().to_string()] {
        let remote = Remote {
            url,
            auth: Auth::Anonymous,
            keys: None,
        };
        let nowhere = "0123456789012345678901234567890123456789";
        // An abbreviated id matches nothing.
        let part = &first[..12];
        let (first, second) = (first.as_str(), second.as_str());
        let named = [first, theirs.as_str(), second, nowhere, part, "none", ""];
        let named: BTreeSet<String> = named.into_iter().map(str::to_owned).collect();
        let mut history = BranchHistory::fetch(&remote, "env/a").unwrap();
        assert_eq!(history.had(&named).unwrap(), [second, first]);
        // Signatures are not required.
        assert_eq!(history.distrusts(first).unwrap(), None);
        let tree = history.reader().tree(first).unwrap();
        let file = tree.read("pleach.yaml").unwrap();
        assert_eq!(String::from_utf8_lossy(&file), "first");
        // A deleted branch has no history.
        assert!(BranchHistory::fetch(&remote, "env/gone").is_err());
    }
}

#[test]
fn what_has_not_changed_is_not_downloaded_again() {
    let repo = repository();
    point(&repo, "env/a");
    let server = GitServer::start(repo.path()).unwrap();
    let mut mirror = mirror(server.url(".git"), Auth::Anonymous);
    let downloads = || {
        let requests = server.requests();
        requests
            .iter()
            .filter(|one| one.starts_with("POST"))
            .count()
    };
    fetch(&mut mirror).unwrap();
    let first = downloads();
    assert!(first > 0);
    fetch(&mut mirror).unwrap();
    assert_eq!(downloads(), first);
}

/// Returns a mirror with a download limit of one mebibyte.
fn small(url: &str, disk: u64) -> Mirror {
    let limits = Limits {
        download: 1 << 20,
        ..Limits::of(Budget::of(disk))
    };
    Mirror::within(anonymous(url), limits)
}

fn anonymous(url: &str) -> Remote {
    Remote {
        url: url.to_owned(),
        auth: Auth::Anonymous,
        keys: None,
    }
}

#[test]
fn a_branch_that_is_too_large_keeps_none_of_the_others_back() {
    let repo = repository();
    point(&repo, "env/a");
    point(&repo, "env/b");
    repo.write("noise", noise(1, 4 << 20)).unwrap();
    repo.commit("large").unwrap();
    point(&repo, "env/large");
    let server = GitServer::start(repo.path()).unwrap();
    let mut mirror = small(&server.url(".git"), 1 << 30);
    let error = fetch(&mut mirror).unwrap_err();
    assert!(error.contains("it is larger than 1 MiB"), "{error}");
    let fetched = fetch(&mut mirror).unwrap();
    assert_eq!(shown(&fetched), ["env/a=first", "env/b=first"]);
    let behind = &fetched.behind["env/large"];
    assert!(behind.contains("it is larger than 1 MiB"), "{behind}");
    // The large branch is not downloaded again, and others are.
    let downloads = |server: &GitServer| {
        let requests = server.requests();
        let posts = requests.iter().filter(|one| one.starts_with("POST"));
        posts.count()
    };
    let before = downloads(&server);
    let fetched = fetch(&mut mirror).unwrap();
    assert!(fetched.behind.contains_key("env/large"));
    assert_eq!(downloads(&server), before);
    repo.git(&["checkout", "--quiet", "env/a"]).unwrap();
    repo.edit("pleach.yaml", "first", "second").unwrap();
    repo.commit("second").unwrap();
    let fetched = fetch(&mut mirror).unwrap();
    assert_eq!(shown(&fetched), ["env/a=second", "env/b=first"]);
    assert!(fetched.behind.contains_key("env/large"));
    // Its previous commit remains, until a smaller one exists.
    repo.git(&["branch", "--force", "env/large", "env/a"])
        .unwrap();
    let fetched = fetch(&mut mirror).unwrap();
    assert_eq!(
        shown(&fetched),
        ["env/a=second", "env/b=first", "env/large=second"]
    );
    assert!(fetched.behind.is_empty(), "{:?}", fetched.behind);
}

#[test]
fn a_branch_that_is_too_large_does_not_make_the_mirror_anew_again_and_again() {
    let repo = repository();
    for branch in ["a", "b", "c", "d"] {
        point(&repo, &format!("env/{branch}"));
    }
    repo.write("noise", noise(1, 4 << 20)).unwrap();
    repo.commit("large").unwrap();
    point(&repo, "env/large");
    let server = GitServer::start(repo.path()).unwrap();
    let limits = Limits {
        download: 1 << 20,
        downloads: 3,
        ..Limits::of(Budget::of(1 << 30))
    };
    let mut mirror = Mirror::within(anonymous(&server.url(".git")), limits);
    fetch(&mut mirror).unwrap_err();
    let first = fetch(&mut mirror).unwrap();
    assert_eq!(first.heads.len(), 4);
    for _ in 0..4 {
        let again = fetch(&mut mirror).unwrap();
        assert_eq!(shown(&again), shown(&first));
        let place = |fetched: &Fetched| format!("{:?}", fetched.reader.place());
        assert_eq!(place(&again), place(&first));
    }
}

#[test]
fn what_downloads_leave_behind_is_bounded_in_bytes() {
    let repo = repository();
    point(&repo, "env/a");
    let server = GitServer::start(repo.path()).unwrap();
    let mut mirror = small(&server.url(".git"), 3_000_000);
    let first = fetch(&mut mirror).unwrap();
    repo.write("noise", noise(1, 800_000)).unwrap();
    repo.commit("large").unwrap();
    point(&repo, "env/a");
    let place = |fetched: &Fetched| format!("{:?}", fetched.reader.place());
    let second = fetch(&mut mirror).unwrap();
    assert_eq!(place(&first), place(&second));
    repo.write("noise", noise(2, 800_000)).unwrap();
    repo.commit("as large").unwrap();
    point(&repo, "env/a");
    let third = fetch(&mut mirror).unwrap();
    assert_eq!(place(&second), place(&third));
    let fourth = fetch(&mut mirror).unwrap();
    assert_ne!(place(&third), place(&fourth));
    assert_eq!(shown(&fourth), ["env/a=first"]);
    // A reader of the previous mirror can continue.
    assert_eq!(shown(&first), ["env/a=first"]);
}

#[test]
fn an_empty_repository_has_no_branches() {
    let repo = TestRepo::new::<&str, &str>([]).unwrap();
    let server = GitServer::start(repo.path()).unwrap();
    for url in [server.url(".git"), repo.path().to_str().unwrap().to_owned()] {
        let fetched = fetch(&mut mirror(url, Auth::Anonymous)).unwrap();
        assert!(fetched.heads.is_empty() && fetched.branches.is_empty());
    }
}

#[test]
fn a_repository_within_a_folder_of_another_is_found() {
    let repo = TestRepo::new([("fleet/pleach.yaml", "inner")]).unwrap();
    repo.commit("start").unwrap();
    point(&repo, "env/a");
    let folder = repo.path().join("fleet");
    let mut mirror = mirror(folder.to_str().unwrap(), Auth::Anonymous);
    assert_eq!(shown(&fetch(&mut mirror).unwrap()), ["env/a=inner"]);
}

#[test]
fn credentials_are_read_from_files_whenever_they_are_needed() {
    let repo = repository();
    point(&repo, "env/a");
    let server = GitServer::start(repo.path()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| -> PathBuf {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    server.demand(&format!("Basic {}", STANDARD.encode("me:hunter2")));
    let mut basic = mirror(
        server.url(".git"),
        Auth::Basic {
            username: file("user", "me\n"),
            password: file("password", "wrong\n"),
        },
    );
    let error = fetch(&mut basic).unwrap_err();
    assert!(
        error.contains("the server rejected the credentials"),
        "{error}"
    );
    assert!(!error.contains("wrong"), "{error}");
    file("password", "hunter2\n");
    assert_eq!(shown(&fetch(&mut basic).unwrap()), ["env/a=first"]);
    let error = fetch(&mut mirror(server.url(".git"), Auth::Anonymous)).unwrap_err();
    assert!(error.contains("the server requires credentials"), "{error}");

    server.demand("Bearer t0ken");
    let mut bearer = mirror(
        server.url(".git"),
        Auth::Bearer {
            token: file("token", "t0ken\n"),
        },
    );
    assert_eq!(shown(&fetch(&mut bearer).unwrap()), ["env/a=first"]);
    file("token", "0ther");
    let error = fetch(&mut bearer).unwrap_err();
    assert!(!error.contains("0ther"), "{error}");
}

#[test]
fn a_server_that_is_gone_for_a_while_is_followed_again() {
    let repo = repository();
    point(&repo, "env/a");
    let mut server = GitServer::start(repo.path()).unwrap();
    let mut mirror = mirror(server.url(".git"), Auth::Anonymous);
    let before = fetch(&mut mirror).unwrap();
    server.close();
    let error = fetch(&mut mirror).unwrap_err();
    assert!(
        error.starts_with("failed to fetch http://127.0.0.1:"),
        "{error}"
    );
    assert_eq!(shown(&before), ["env/a=first"]);
    server.open().unwrap();
    assert_eq!(shown(&fetch(&mut mirror).unwrap()), ["env/a=first"]);
}

#[test]
fn a_server_that_says_nothing_is_given_up() {
    // The kernel accepts connections, but no process answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/fleet.git", silent.local_addr().unwrap());
    let started = Instant::now();
    assert!(fetch(&mut mirror(url, Auth::Anonymous)).is_err());
    assert!(started.elapsed() < Duration::from_mins(1));
}

/// Returns the URL of a server that gives one answer after the other. `PORT` is its port.
fn answering(answers: Vec<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let _requests_are_short = stream.read(&mut request);
            let answer = answer.replace("PORT", &address.port().to_string());
            let _the_client_may_leave = stream.write_all(answer.as_bytes());
        }
    });
    format!("http://{address}/fleet.git")
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

const ADVERTISEMENT: &str = "content-type: application/x-git-upload-pack-advertisement\r\n";

#[rstest]
#[case::hidden(vec![answer("404 Not Found", "", "")], "the server answered 404 Not Found")]
#[case::a_page(vec![answer("200 OK", "content-type: text/html\r\n", "<p>Sign in</p>")],
    "the server does not answer with the protocol of git")]
#[case::half(vec![format!("HTTP/1.1 200 OK\r\n{ADVERTISEMENT}content-length: 900\r\nconnection: close\r\n\r\n001e#")],
    "error decoding response body")]
#[case::elsewhere(vec![answer("302 Found", "location: http://127.0.0.1:PORT/login\r\n", ""), answer("200 OK", ADVERTISEMENT, "0000")],
    "the server redirects to a URL that is not that of a repository")]
#[case::in_circles(vec![answer("302 Found", "location: /fleet.git/info/refs?service=git-upload-pack\r\n", ""); 9],
    "the server redirects to /fleet.git/info/refs?service=git-upload-pack, which is not followed")]
#[case::control(vec![answer("500 Oh\u{1b}[31mno", "", "")], "invalid HTTP status-code")]
fn a_wrong_answer_is_named(#[case] answers: Vec<String>, #[case] expected: &str) {
    let error = fetch(&mut mirror(answering(answers), Auth::Anonymous)).unwrap_err();
    assert!(error.contains(expected), "{error}");
    assert!(!error.contains('\u{1b}'), "{error}");
}

#[tokio::test]
async fn the_certificate_of_a_server_is_verified() {
    let repo = repository();
    point(&repo, "env/a");
    let server = GitServer::start(repo.path()).unwrap();
    server.demand("Bearer t0ken");
    let front = TlsFront::start(server.port()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let token = file("token", "t0ken");
    let trusted = file("ca.pem", front.certificate());
    // Certificates are variables of the process that fetches.
    let program = file(
        "pleach",
        &format!(
            "#!/bin/sh\nSSL_CERT_FILE={} exec {} \"$@\"\n",
            trusted.display(),
            env!("CARGO_BIN_EXE_pleach")
        ),
    );
    std::fs::set_permissions(&program, Permissions::from_mode(0o700)).unwrap();
    let fetched = async |program: PathBuf| {
        let remote = Remote {
            url: front.url(".git"),
            auth: Auth::Bearer {
                token: token.clone(),
            },
            keys: None,
        };
        let fetcher = Fetcher::by(program);
        let calling = fetcher.run(move |carrier| {
            let mut mirror = Mirror::new(remote);
            let fetched = mirror.fetch_by(carrier, |branch| branch.starts_with(ENVIRONMENTS));
            fetched.map_err(|error| error.to_string())
        });
        calling.await.unwrap()
    };
    let error = fetched(env!("CARGO_BIN_EXE_pleach").into())
        .await
        .unwrap_err();
    assert!(error.contains("invalid peer certificate"), "{error}");
    assert!(server.requests().is_empty());
    assert_eq!(shown(&fetched(program).await.unwrap()), ["env/a=first"]);
}

#[test]
fn redirects_are_followed_without_credentials_only() {
    let repo = repository();
    point(&repo, "env/a");
    let server = GitServer::start(repo.path()).unwrap();
    let references = server.url(".git/info/refs?service=git-upload-pack");
    let moved = || {
        vec![answer(
            "301 Moved Permanently",
            &format!("location: {references}\r\n"),
            "",
        )]
    };
    let fetched = fetch(&mut mirror(
        answering([moved(), moved()].concat()),
        Auth::Anonymous,
    ));
    assert_eq!(shown(&fetched.unwrap()), ["env/a=first"]);
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "t0ken").unwrap();
    let before = server.requests().len();
    let error = fetch(&mut mirror(answering(moved()), Auth::Bearer { token })).unwrap_err();
    assert!(
        error.contains("the server redirects to http://127.0.0.1:"),
        "{error}"
    );
    assert!(error.contains("which is not followed"), "{error}");
    assert_eq!(server.requests().len(), before);
}

#[test]
fn a_list_of_branches_without_end_is_too_large() {
    let line = format!(
        "{:04x}{} refs/heads/{}\n",
        4 + 40 + 12 + 8_001,
        "a".repeat(40),
        "b".repeat(8_000)
    );
    let body = format!("001e# service=git-upload-pack\n0000{}", line.repeat(9_000));
    let error = fetch(&mut mirror(
        answering(vec![answer("200 OK", ADVERTISEMENT, &body)]),
        Auth::Anonymous,
    ));
    let error = error.unwrap_err();
    assert!(error.contains("it is larger than 64 MiB"), "{error}");
}

/// Returns the URL of a server whose answers never end. It sends a byte at a time, so the silence
/// time-out never fires.
fn endless() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/fleet.git", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let head = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-git-upload-pack-advertisement\r\ntransfer-encoding: chunked\r\n\r\n";
                let _requests_are_short = stream.read(&mut [0; 4096]);
                let mut sent = stream.write_all(head);
                while sent.is_ok() {
                    // Start of a line that declares more content.
                    sent = stream.write_all(b"1\r\nf\r\n");
                    std::thread::sleep(Duration::from_millis(50));
                }
            });
        }
    });
    url
}

/// Returns the number of running fetch processes of this process.
fn fetching() -> usize {
    let own = std::process::id().to_string();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let is_ours = |folder: &std::fs::DirEntry| {
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name));
        let (Ok(stat), Ok(line)) = (read("stat"), read("cmdline")) else {
            return false;
        };
        // After the name follow the state and the parent.
        let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        let (state, parent) = (fields.next(), fields.next());
        state != Some("Z") && parent == Some(&own) && line.ends_with("worker\0fetch\0")
    };
    processes.filter(is_ours).count()
}

/// Waits until no process fetches. Other tests of this program fetch, too.
async fn no_process_fetches() {
    let started = Instant::now();
    while fetching() > 0 {
        let waited = started.elapsed();
        assert!(waited < Duration::from_mins(1), "it is left behind");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_silent_remote_holds_up_nobody_else() {
    let fetcher = Fetcher::by(env!("CARGO_BIN_EXE_pleach").into());
    let permits = Semaphore::new(1);
    let budget = Budget::of(1 << 30);
    let limits = Limits {
        time: Duration::from_secs(1),
        ..Limits::of(budget.clone())
    };
    let fetched = |url: String, limits: Limits| {
        let fetcher = fetcher.clone();
        let permits = &permits;
        async move {
            let _permit = permits.acquire().await.unwrap();
            let calling = fetcher.run(move |carrier| {
                let mut mirror = Mirror::within(anonymous(&url), limits);
                let fetched = mirror.fetch_by(carrier, |branch| branch.starts_with(ENVIRONMENTS));
                fetched.map_err(|error| error.to_string())
            });
            // Dropping the runtime waits for the thread, which ends with the process.
            calling.await.unwrap()
        }
    };
    let repo = repository();
    point(&repo, "env/a");
    let server = GitServer::start(repo.path()).unwrap();
    let usual = Limits::of(budget.clone());
    let (silent, other) = tokio::join!(
        fetched(endless(), limits),
        fetched(server.url(".git"), usual)
    );
    let error = silent.unwrap_err();
    assert!(error.contains("it takes longer than 1s"), "{error}");
    assert_eq!(shown(&other.unwrap()), ["env/a=first"]);
    no_process_fetches().await;
    // A cancelled caller leaves no process either.
    let long = Limits::of(budget.clone());
    let called = tokio::time::timeout(Duration::from_millis(300), fetched(endless(), long)).await;
    assert!(called.is_err(), "{called:?}");
    no_process_fetches().await;
    let started = Instant::now();
    while budget.used() > 0 {
        let waited = started.elapsed();
        assert!(waited < Duration::from_mins(1), "space is left behind");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
