use std::io::Cursor;
use std::sync::{Arc, Mutex};

use super::*;
use crate::cli::Exit;

/// Stream that records the output, or fails.
#[derive(Clone, Default)]
struct Tape {
    text: Arc<Mutex<Vec<u8>>>,
    refuses: Option<io::ErrorKind>,
}

impl Tape {
    fn text(&self) -> String {
        String::from_utf8(self.text.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Tape {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.refuses {
            Some(kind) => Err(kind.into()),
            None => self.text.lock().unwrap().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn ui(verbosity: Verbosity, answers: Option<&str>) -> (Ui, Tape, Tape) {
    let (out, err) = (Tape::default(), Tape::default());
    let input =
        answers.map(|answers| Box::new(Cursor::new(answers.to_owned())) as Box<dyn BufRead + Send>);
    let ui = Ui::with_streams(out.clone(), err.clone(), input, verbosity);
    (ui, out, err)
}

async fn ask(answers: Option<&str>, yes: bool) -> Result<bool, CliError> {
    let (mut ui, _, _) = ui(Verbosity::Normal, answers);
    ui.confirm("apply?", yes, &CancellationToken::new()).await
}

#[tokio::test]
async fn details_can_be_asked_for() {
    let (mut ui, _, err) = ui(Verbosity::Normal, Some("d\ny\n"));
    let cancel = CancellationToken::new();
    let mut choices = Vec::new();
    for _ in 0..3 {
        choices.push(
            ui.choose("apply?", "[y/N/d]", false, &cancel)
                .await
                .unwrap(),
        );
    }
    assert_eq!(choices, [Choice::Details, Choice::Yes, Choice::No]);
    // Without a pager, details are shown beside the question.
    ui.page("all differences\n");
    let shown = err.text();
    assert!(
        shown.starts_with("apply? [y/N/d] apply? [y/N/d] "),
        "{shown}"
    );
    assert!(shown.ends_with("all differences\n"), "{shown}");
}

#[tokio::test]
async fn only_yes_is_yes() {
    for (answer, expected) in [
        ("y\n", true),
        ("YES\n", true),
        ("\n", false),
        ("n\n", false),
        ("yesterday\n", false),
        ("", false),
    ] {
        assert_eq!(
            ask(Some(answer), false).await.unwrap(),
            expected,
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn a_question_without_terminal_is_a_usage_error_unless_answered() {
    let error = ask(None, false).await.unwrap_err();
    assert_eq!(error.exit(), Exit::USAGE);
    assert_eq!(error.to_string(), "cannot ask without a terminal: apply?");
    assert_eq!(error.hints(), ["use --yes to confirm"]);
    assert!(ask(None, true).await.unwrap());
}

#[tokio::test]
async fn a_question_can_be_interrupted() {
    let (mut ui, _, _) = ui(Verbosity::Normal, Some("y\n"));
    let cancel = CancellationToken::new();
    cancel.cancel();
    let error = ui.confirm("apply?", false, &cancel).await.unwrap_err();
    assert_eq!(error.exit(), Exit::INTERRUPTED);
}

#[test]
fn a_closed_pipe_is_success() {
    let out = Tape {
        refuses: Some(io::ErrorKind::BrokenPipe),
        ..Tape::default()
    };
    let mut ui = Ui::with_streams(out, Tape::default(), None, Verbosity::Normal);
    ui.print("one");
    ui.print("two");
    ui.finish().unwrap();
}

#[test]
fn a_full_disk_is_reported_once() {
    let out = Tape {
        refuses: Some(io::ErrorKind::StorageFull),
        ..Tape::default()
    };
    let mut ui = Ui::with_streams(out, Tape::default(), None, Verbosity::Normal);
    ui.print("one");
    let error = ui.finish().unwrap_err();
    assert_eq!(error.exit(), Exit::FAILED);
    assert_eq!(error.to_string(), "failed to write the result");
    ui.finish().unwrap();
}

#[test]
fn verbosity_is_about_stderr_only() {
    for (verbosity, expected) in [
        (Verbosity::Quiet, ""),
        (Verbosity::Normal, "status\n"),
        (Verbosity::Verbose, "status\ndetail\n"),
    ] {
        let (mut ui, out, err) = ui(verbosity, None);
        ui.print("result");
        ui.status("status");
        ui.detail("detail");
        assert_eq!(out.text(), "result\n");
        assert_eq!(err.text(), expected);
    }
}

#[test]
fn text_before_a_question_is_shown_even_when_quiet() {
    let (mut ui, out, err) = ui(Verbosity::Quiet, Some("y\n"));
    assert!(ui.can_ask());
    ui.notice("plan");
    assert_eq!((out.text().as_str(), err.text().as_str()), ("", "plan\n"));
    let (ui, _, _) = self::ui(Verbosity::Quiet, None);
    assert!(!ui.can_ask());
}

#[test]
fn an_error_shows_its_causes_and_hint() {
    let (mut ui, _, err) = ui(Verbosity::Quiet, None);
    let cause = io::Error::other("disk \u{1b}[31mfull");
    ui.error(&CliError::new(Kind::Failed, WriteResult(cause)).hint("make room"));
    let text = anstream::adapter::strip_str(&err.text()).to_string();
    assert_eq!(
        text,
        "error: failed to write the result\n  caused by: disk \\u{1b}[31mfull\n  hint: make room\n"
    );
}

/// A bar such as `0/5` must not stay on the terminal after its run, below a question, or beside a new bar.
#[tokio::test]
async fn no_bar_stays_after_its_run() {
    for (case, ends) in [("end", 0), ("finish", 1), ("question", 2), ("new bar", 3)] {
        let (mut ui, _, _) = ui(Verbosity::Normal, Some("y\n"));
        let bar = ProgressBar::hidden();
        ui.bar = Some(bar.clone());
        assert!(ui.has_block(), "{case}");
        match ends {
            0 => ui.end_progress(),
            1 => ui.finish().unwrap(),
            2 => {
                let cancel = CancellationToken::new();
                assert!(ui.confirm("apply?", false, &cancel).await.unwrap());
            }
            _ => ui.start_progress(5, "dev.web"),
        }
        assert!(bar.is_finished(), "{case}");
        // Without a terminal, no bar is started.
        assert!(!ui.has_block(), "{case}");
    }
}
