//! What people and programs see: the only place that prints.
//!
//! stdout is for the result, stderr for everything else. Printing never fails
//! a command: a reader that goes away (`| head`) is fine, whatever else goes
//! wrong with stdout is kept and reported once, by [`Ui::finish`].

mod colorless;
mod stream;

use std::fmt::{Display, Write as _};
use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal as _, Write};
use std::time::Duration;

use anstream::AutoStream;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio_util::sync::CancellationToken;

use pleach_domain::finding::{Finding, Severity};

use super::error::{CliError, Kind};
use super::format::findings;
use super::format::style::{ERROR, HINT};
use colorless::Colorless;
use stream::Stream;

/// When to use colors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Color {
    /// On a terminal, unless `NO_COLOR` is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl From<Color> for anstream::ColorChoice {
    fn from(color: Color) -> Self {
        match color {
            Color::Auto => Self::Auto,
            Color::Always => Self::Always,
            Color::Never => Self::Never,
        }
    }
}

/// How much is said on stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Errors only.
    Quiet,
    /// Warnings and progress too.
    Normal,
    /// Notes and log lines too.
    Verbose,
}

/// Handed down to whatever prints or asks.
pub struct Ui {
    out: Stream,
    err: Stream,
    /// Someone who can be asked.
    input: Option<Box<dyn BufRead + Send>>,
    verbosity: Verbosity,
    /// Whether a bar may be drawn.
    animated: bool,
    /// Whether the result goes to a terminal, where it may be drawn anew.
    redraws: bool,
    bar: Option<ProgressBar>,
}

impl Ui {
    /// Takes the streams of the process.
    pub fn new(color: Color, verbosity: Verbosity) -> Self {
        let terminal = io::stderr().is_terminal();
        let choice = AutoStream::new(io::stdout(), color.into()).current_choice();
        let out: Box<dyn Write + Send> = if choice == anstream::ColorChoice::Never {
            Box::new(Colorless::new(io::stdout()))
        } else {
            Box::new(io::stdout())
        };
        let err = AutoStream::new(io::stderr(), color.into());
        let input = (terminal && io::stdin().is_terminal())
            .then(|| Box::new(BufReader::new(io::stdin())) as Box<dyn BufRead + Send>);
        Self {
            out: Stream::new(BufWriter::with_capacity(64 * 1024, out)),
            err: Stream::new(err),
            input,
            verbosity,
            // Log lines would tear a bar apart.
            animated: terminal && verbosity == Verbosity::Normal,
            redraws: io::stdout().is_terminal(),
            bar: None,
        }
    }

    /// Takes streams of a test; `input` is a terminal's.
    #[cfg(test)]
    pub(crate) fn with_streams(
        out: impl Write + Send + 'static,
        err: impl Write + Send + 'static,
        input: Option<Box<dyn BufRead + Send>>,
        verbosity: Verbosity,
    ) -> Self {
        Self {
            out: Stream::new(out),
            err: Stream::new(err),
            input,
            verbosity,
            animated: false,
            redraws: false,
            bar: None,
        }
    }

    /// Where the result goes. Writing to it never fails.
    pub fn out(&mut self) -> &mut (dyn Write + Send) {
        // A result and a bar may share a terminal.
        self.end_progress();
        &mut self.out
    }

    /// Writes a line of the result.
    pub fn print(&mut self, line: impl Display) {
        let line = line.to_string();
        match &self.bar {
            Some(bar) => bar.suspend(|| {
                self.out.write_line(&line);
                self.out.flush_now();
            }),
            None => self.out.write_line(&line),
        }
    }

    /// Shows a result in place of the one before: on a terminal over it, else
    /// below it. It is seen at once.
    pub fn redraw(&mut self, text: impl Display) {
        self.end_progress();
        if self.redraws {
            // To the corner, and everything below is cleared.
            self.out.write_now("\u{1b}[H\u{1b}[2J");
        }
        self.out.write_line(&text.to_string());
        self.out.flush_now();
    }

    /// Says what is being done, unless told to be quiet.
    pub fn status(&mut self, line: impl Display) {
        if self.verbosity >= Verbosity::Normal {
            self.say(&line.to_string());
        }
    }

    /// Says something that nobody may miss: what comes before a question.
    pub fn notice(&mut self, line: impl Display) {
        self.say(&line.to_string());
    }

    /// Whether there is somebody who can be asked.
    pub fn can_ask(&self) -> bool {
        self.input.is_some()
    }

    /// Says something for those who want to know more.
    pub fn detail(&mut self, line: impl Display) {
        if self.verbosity >= Verbosity::Verbose {
            self.say(&line.to_string());
        }
    }

    /// Whether stderr is quiet, normal or verbose.
    pub fn verbosity(&self) -> Verbosity {
        self.verbosity
    }

    /// Shows findings in the order of their files: errors always, warnings
    /// unless told to be quiet, notes when told to be verbose.
    pub fn findings(&mut self, findings: &[Finding]) {
        let least = match self.verbosity {
            Verbosity::Quiet => Severity::Error,
            Verbosity::Normal => Severity::Warning,
            Verbosity::Verbose => Severity::Note,
        };
        let text = findings::text(findings, least);
        if !text.is_empty() {
            self.say(text.trim_end_matches('\n'));
        }
    }

    /// Shows why a command failed.
    pub fn error(&mut self, error: &CliError) {
        self.end_progress();
        self.findings(error.findings());
        let mut text = format!(
            "{ERROR}error{ERROR:#}: {}",
            findings::plain(&error.to_string())
        );
        for cause in error.causes() {
            text.push_str("\n  caused by: ");
            text.push_str(&findings::plain(&cause));
        }
        for hint in error.hints() {
            let hint = findings::plain(hint);
            // Writing to a String cannot fail.
            let _ = write!(text, "\n  {HINT}hint{HINT:#}: {hint}");
        }
        self.say(&text);
    }

    /// Asks on the terminal; `yes` is the answer given beforehand by `--yes`.
    /// Without either that is a usage error, and a closed terminal means no.
    pub async fn confirm(
        &mut self,
        question: &str,
        yes: bool,
        cancel: &CancellationToken,
    ) -> Result<bool, CliError> {
        if yes {
            return Ok(true);
        }
        let Some(mut input) = self.input.take() else {
            return Err(
                CliError::usage(format!("there is no terminal to ask on: {question}"))
                    .hint("--yes answers yes"),
            );
        };
        self.end_progress();
        self.out.flush_now();
        self.err.write_now(&format!("{question} [y/N] "));
        // A thread of its own: reading a terminal cannot be cancelled.
        let reading = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            let read = input.read_line(&mut line);
            (input, read.map(|_| line))
        });
        let (input, line) = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(CliError::interrupted()),
            answer = reading => answer.map_err(|error| CliError::new(Kind::Failed, error))?,
        };
        self.input = Some(input);
        let line = line.map_err(|error| CliError::new(Kind::Failed, error))?;
        if !line.ends_with('\n') {
            self.err.write_now("\n");
        }
        let answer = line.trim().to_lowercase();
        Ok(answer == "y" || answer == "yes")
    }

    /// Starts a bar of so many steps; nothing is drawn without a terminal.
    pub fn start_progress(&mut self, steps: usize) {
        self.end_progress();
        // Text that is written later would tear the bar apart, and leave it there.
        self.out.flush_now();
        if !self.animated {
            return;
        }
        let target = ProgressDrawTarget::stderr_with_hz(10);
        let bar = ProgressBar::with_draw_target(Some(steps as u64), target);
        // The template is a constant; the default style is what is left if it
        // were wrong.
        if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len} {elapsed}{msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(250));
        self.bar = Some(bar);
    }

    /// Moves the bar, and shows lines of plain text below it: each begins with a line break.
    pub fn progress(&mut self, done: usize, below: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position(done as u64);
            bar.set_message(below.to_owned());
        }
    }

    /// Whether such lines are shown.
    pub fn has_block(&self) -> bool {
        self.bar.is_some()
    }

    /// Takes the bar away; lines that were said meanwhile stay.
    pub fn end_progress(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// Writes out what is buffered. Fails when the result could not be written,
    /// unless its reader went away.
    pub fn finish(&mut self) -> Result<(), CliError> {
        self.end_progress();
        self.out.flush_now();
        self.err.flush_now();
        match self.out.take_error() {
            Some(error) => Err(CliError::new(Kind::Failed, WriteResult(error))),
            None => Ok(()),
        }
    }

    fn say(&mut self, line: &str) {
        let mut write = || {
            // Results that were printed before come first, should both be one file.
            self.out.flush_now();
            self.err.write_line(line);
        };
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }
}

/// Whether log lines on stderr are colored.
pub(super) fn colors_on_stderr(color: Color) -> bool {
    AutoStream::new(io::stderr(), color.into()).current_choice() != anstream::ColorChoice::Never
}

/// Says something on stderr while somebody else holds the [`Ui`].
pub(super) fn write_notice(line: &str) {
    Stream::new(AutoStream::auto(io::stderr())).write_line(line);
}

/// Says that we are wrong, and where.
pub(super) fn write_panic(panic: &std::panic::PanicHookInfo<'_>) {
    let payload = panic.payload();
    let message = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    let place = panic
        .location()
        .map(|location| format!(" at {}:{}", location.file(), location.line()))
        .unwrap_or_default();
    if io::stderr().is_terminal() {
        // A bar may stand where this goes.
        Stream::new(io::stderr()).write_now("\r\u{1b}[2K");
    }
    write_notice(&format!(
        "{ERROR}internal error{ERROR:#}{place}: {}\n  {HINT}hint{HINT:#}: this is a bug in pleach {}; please report it",
        findings::plain(message),
        env!("CARGO_PKG_VERSION"),
    ));
}

/// Where log lines go.
pub(super) fn stderr() -> io::Stderr {
    io::stderr()
}

/// Whether log lines go to a terminal.
pub(super) fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// stdout could not be written.
#[derive(Debug, thiserror::Error)]
#[error("failed to write the result")]
struct WriteResult(#[source] io::Error);

trait WriteLine {
    fn write_line(&mut self, line: &str);
}

impl<W: Write + ?Sized> WriteLine for W {
    fn write_line(&mut self, line: &str) {
        // One call, so that lines of several processes do not mix. Errors are
        // kept by the stream.
        drop(self.write_all(format!("{line}\n").as_bytes()));
    }
}

#[cfg(test)]
mod tests;
