//! Crash records and their backoff.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

/// Reads the crash record of an environment.
fn of(crashes: &Crashes, environment: &str) -> Attempt {
    let key = EnvironmentKey {
        environment: environment.to_owned(),
        cluster: None,
    };
    Attempt::of(crashes, "https://git.example.org/fleet.git", &key)
}

/// Starts a process, and returns the attempt of its environment.
fn start(folder: &Path) -> Attempt {
    of(&Crashes::of(folder.to_owned()), "web")
}

/// Returns the remaining backoff of a crashed commit.
fn backoff_left(attempt: &Attempt) -> Option<Duration> {
    let state = attempt.lock();
    let until = state.crashed.as_ref()?.until;
    until
        .checked_duration_since(Instant::now())
        .filter(|left| !left.is_zero())
}

#[tokio::test(start_paused = true)]
async fn a_commit_at_which_the_controller_crashes_waits_longer_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let first = start(folder.path());
    assert_eq!((first.stall("a"), backoff_left(&first)), (None, None));
    first.begin("a", None).await;
    for (crashes, seconds) in [(1, 2.0), (2, 4.0), (3, 8.0)] {
        let attempt = start(folder.path());
        let stall = attempt.stall("a").unwrap();
        assert_eq!(stall.reason, "ControllerCrashed");
        let counted = format!(
            "commit a: the controller crashed while it read or planned this commit (crashes: {crashes});"
        );
        assert!(stall.message.starts_with(&counted), "{}", stall.message);
        assert_eq!(attempt.stall("b"), None);
        let left = backoff_left(&attempt).unwrap();
        let ratio = left.as_secs_f64() / seconds;
        assert!((0.89..=1.11).contains(&ratio), "{crashes}: {ratio}");
        // Another environment crashed the controller during the backoff.
        assert_eq!(start(folder.path()).stall("a"), Some(stall));
        tokio::time::advance(left).await;
        assert_eq!((attempt.stall("a"), backoff_left(&attempt)), (None, None));
        attempt.begin("a", None).await;
    }
}

#[tokio::test]
async fn an_attempt_that_ended_normally_is_no_crash() {
    let folder = tempfile::tempdir().unwrap();
    let is_there = || !pleach_files::names(folder.path()).unwrap().is_empty();
    let attempt = start(folder.path());
    attempt.begin("a", None).await;
    assert!(is_there());
    attempt.end();
    assert!(!is_there());
    attempt.begin("a", None).await;
    attempt.end_with(BTreeSet::new());
    assert!(!is_there());
    attempt.begin("b", None).await;
    attempt.end_with(["db", "web"].map(str::to_owned).into());
    for (commit, release, is_open) in [
        ("b", "db", true),
        ("b", "db", true),
        ("a", "web", true),
        ("b", "web", false),
    ] {
        attempt.planned(commit, release);
        assert_eq!(is_there(), is_open, "{commit} {release}");
    }
    assert_eq!(backoff_left(&start(folder.path())), None);
    // Files of another version count as absent.
    let previous = r#"{"version":1,"commit":"c","crashes":1,"isOpen":true,"process":4294967295}"#;
    let previous = FileContent::private(previous.as_bytes().to_vec());
    pleach_files::write_atomic(&attempt.0.file, &previous).unwrap();
    assert_eq!(start(folder.path()).stall("c"), None);
    // So do those of a running controller, here process 1, and not those of one that ended.
    for (process, waits) in [(1, false), (u32::MAX, true)] {
        let content = Content {
            version: VERSION,
            commit: "c".to_owned(),
            crashes: 1,
            is_open: true,
            is_suspect: false,
            process,
        };
        write(&attempt.0.file, &content);
        assert_eq!(
            start(folder.path()).stall("c").is_some(),
            waits,
            "{process}"
        );
    }
}

#[tokio::test]
async fn only_a_panic_leaves_the_attempt_of_a_dropped_task_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let is_there = || !pleach_files::names(folder.path()).unwrap().is_empty();
    let attempt = start(folder.path());
    attempt.begin("a", None).await;
    drop(attempt.end_on_drop());
    assert!(!is_there());
    // The thread that writes continues after its caller was canceled.
    attempt.write();
    assert!(!is_there());
    attempt.begin("a", None).await;
    let panicking = AssertUnwindSafe(|| {
        let _ending = attempt.end_on_drop();
        assert!(std::hint::black_box(false), "a bug");
    });
    assert!(catch_unwind(panicking).is_err() && is_there());
    assert!(start(folder.path()).stall("a").is_some());
}

#[tokio::test]
async fn an_attempt_is_not_recorded_while_nothing_can_be_planned() {
    let folder = tempfile::tempdir().unwrap();
    let is_there = || !pleach_files::names(folder.path()).unwrap().is_empty();
    let attempt = start(folder.path());
    attempt.begin("a", None).await;
    for _ in 0..2 {
        attempt.suspend_record();
        assert!(!is_there());
    }
    attempt.record().await;
    assert!(is_there());
    attempt.end();
    attempt.record().await;
    assert!(!is_there());
}

#[test]
fn only_the_cause_of_a_crash_waits() {
    const OPEN: (bool, bool) = (true, false);
    const OPEN_SUSPECT: (bool, bool) = (true, true);
    const WAITING_SUSPECT: (bool, bool) = (false, true);
    for (name, before, cause) in [
        ("nothing is recorded", &[][..], None),
        ("alone", &[OPEN], Some(0)),
        ("one of two", &[OPEN, OPEN], None),
        ("a suspect alone", &[OPEN_SUSPECT], Some(0)),
        (
            "a suspect beside others",
            &[OPEN, OPEN_SUSPECT, OPEN],
            Some(1),
        ),
        ("two suspects", &[OPEN_SUSPECT, OPEN_SUSPECT], None),
        (
            "two suspects and another",
            &[OPEN_SUSPECT, OPEN, OPEN_SUSPECT],
            None,
        ),
        (
            "suspects that waited",
            &[WAITING_SUSPECT, WAITING_SUSPECT],
            None,
        ),
        ("while a suspect waited", &[WAITING_SUSPECT, OPEN], Some(1)),
        (
            "while another suspect waited",
            &[OPEN_SUSPECT, WAITING_SUSPECT],
            Some(0),
        ),
        (
            "neither of two while a suspect waited",
            &[OPEN, WAITING_SUSPECT, OPEN],
            None,
        ),
    ] {
        let content = |(is_open, is_suspect): &(bool, bool)| Content {
            version: VERSION,
            commit: "c".to_owned(),
            crashes: 3,
            is_open: *is_open,
            is_suspect: *is_suspect,
            process: 1,
        };
        let mut records: Vec<Content> = before.iter().map(content).collect();
        count_crashes(&mut records);
        for (index, record) in records.iter().enumerate() {
            let crashes = if cause == Some(index) { 4 } else { 3 };
            assert_eq!(record.crashes, crashes, "{name}: {index}");
            assert!(record.is_suspect && !record.is_open, "{name}: {index}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn suspects_of_a_crash_are_processed_one_at_a_time_and_delay_no_other_environment() {
    let folder = tempfile::tempdir().unwrap();
    let restart = || {
        let crashes = Crashes::of(folder.path().to_owned());
        ["db", "web", "other"].map(|name| of(&crashes, name))
    };
    let stalled = |all: &[Attempt; 3]| all.each_ref().map(|one| one.stall("a").is_some());
    let [db, web, _] = restart();
    for suspect in [&db, &web] {
        assert!(suspect.permit().await.is_none());
        suspect.begin("a", None).await;
    }
    let all = restart();
    assert_eq!(stalled(&all), [false; 3]);
    let [db, web, other] = all;
    let permit = db.permit().await;
    assert!(permit.is_some());
    db.begin("a", permit).await;
    // Another environment does not wait, and another suspect waits for a limited time.
    let began = Instant::now();
    assert!(other.permit().await.is_none());
    assert_eq!(began.elapsed(), Duration::ZERO);
    other.begin("a", None).await;
    assert!(web.permit().await.is_none());
    assert!(began.elapsed() <= SUSPECT_TIMEOUT + SUSPECT_DELAY + Duration::from_secs(1));
    // A crash finds its cause now.
    let all = restart();
    assert_eq!(stalled(&all), [true, false, false]);
    let [_, web, other] = all;
    // The permit passes on at the end of an attempt, and to the next commit of a suspect.
    web.begin("a", web.permit().await).await;
    web.begin("b", web.permit().await).await;
    web.end();
    let began = Instant::now();
    let permit = other.permit().await;
    assert!(permit.is_some() && began.elapsed() <= SUSPECT_DELAY + Duration::from_secs(1));
    // A suspect that was processed is none any more.
    assert!(web.permit().await.is_none());
    let [_, web, _] = restart();
    assert!(!web.lock().is_suspect);
}
