//! Output of commands. Only this module prints.
//!
//! stdout has the result, stderr everything else. Printing never fails a command. A closed pipe (`|
//! head`) is ignored; any other error of stdout is saved and reported once by [`Ui::finish`].

mod colorless;
mod pager;
mod stream;

use std::fmt::{Display, Write as _};
use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal as _, Write};
use std::time::Duration;

use anstream::AutoStream;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio_util::sync::CancellationToken;

use pleach_model::finding::{Finding, Severity};

use super::error::{CliError, Kind};
use super::format::findings;
use super::format::style::{ERROR, HINT};
use colorless::Colorless;
use pager::Pager;
use stream::Stream;

/// Columns of a terminal of unknown size.
const COLUMNS: usize = 80;

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

/// Verbosity of stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Errors only.
    Quiet,
    /// Also warnings and progress.
    Normal,
    /// Also notes and log lines.
    Verbose,
}

/// Answer to a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    /// Yes.
    Yes,
    /// No, or the end of the input.
    No,
    /// The user wants to see details first.
    Details,
}

/// Output streams and prompts.
pub struct Ui {
    out: Stream,
    err: Stream,
    /// Terminal for prompts, if there is one.
    input: Option<Box<dyn BufRead + Send>>,
    verbosity: Verbosity,
    /// Pager of the user, if there is a terminal.
    pager: Option<Pager>,
    /// Whether the progress bar has colors.
    colored: bool,
    /// Whether to draw a progress bar.
    animated: bool,
    /// Whether stdout is a terminal that can be redrawn.
    redraws: bool,
    bar: Option<ProgressBar>,
}

impl Ui {
    /// Creates the Ui for the streams of the process.
    pub fn new(color: Color, verbosity: Verbosity) -> Self {
        let terminal = io::stderr().is_terminal();
        let colored = colors_on_stderr(color);
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
            pager: input.as_ref().and_then(|_| Pager::of_user(colored)),
            colored,
            input,
            verbosity,
            // Log lines would break the bar.
            animated: terminal && verbosity == Verbosity::Normal,
            redraws: io::stdout().is_terminal(),
            bar: None,
        }
    }

    /// Creates the Ui with streams of a test. `input` acts as the terminal.
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
            pager: None,
            colored: false,
            verbosity,
            animated: false,
            redraws: false,
            bar: None,
        }
    }

    /// Returns the stream of the result. Writing to it never fails.
    pub fn out(&mut self) -> &mut (dyn Write + Send) {
        // Result and bar can share a terminal.
        self.end_progress();
        &mut self.out
    }

    /// Prints a line of the result.
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

    /// Prints a result and flushes. On a terminal it replaces the previous one.
    pub fn redraw(&mut self, text: impl Display) {
        self.end_progress();
        if self.redraws {
            // Move to the top left and clear the screen.
            self.out.write_now("\u{1b}[H\u{1b}[2J");
        }
        self.out.write_line(&text.to_string());
        self.out.flush_now();
    }

    /// Writes the printed result now, because the next part can take long. Returns whether its
    /// reader still reads.
    pub fn flush(&mut self) -> bool {
        self.out.flush_now();
        self.out.is_open()
    }

    /// Prints a progress message on stderr, except in quiet mode.
    pub fn status(&mut self, line: impl Display) {
        if self.verbosity >= Verbosity::Normal {
            self.write_stderr(&line.to_string());
        }
    }

    /// Prints a message that is never suppressed, such as before a prompt.
    pub fn notice(&mut self, line: impl Display) {
        self.write_stderr(&line.to_string());
    }

    /// Returns whether prompts are possible.
    pub fn can_ask(&self) -> bool {
        self.input.is_some()
    }

    /// Prints a message on stderr in verbose mode.
    pub fn detail(&mut self, line: impl Display) {
        if self.verbosity >= Verbosity::Verbose {
            self.write_stderr(&line.to_string());
        }
    }

    /// Returns the verbosity of stderr.
    pub fn verbosity(&self) -> Verbosity {
        self.verbosity
    }

    /// Prints findings in the order of their files: errors always, warnings except in quiet mode,
    /// notes in verbose mode.
    pub fn findings(&mut self, findings: &[Finding]) {
        let least = match self.verbosity {
            Verbosity::Quiet => Severity::Error,
            Verbosity::Normal => Severity::Warning,
            Verbosity::Verbose => Severity::Note,
        };
        let text = findings::text(findings, least);
        if !text.is_empty() {
            self.write_stderr(text.trim_end_matches('\n'));
        }
    }

    /// Prints the error of a command.
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
        self.write_stderr(&text);
    }

    /// Asks for confirmation on the terminal. `yes` is the value of `--yes`. Without a terminal and
    /// `--yes` this is a usage error; end of input means no.
    pub async fn confirm(
        &mut self,
        question: &str,
        yes: bool,
        cancel: &CancellationToken,
    ) -> Result<bool, CliError> {
        let choice = self.choose(question, "[y/N]", yes, cancel).await?;
        Ok(choice == Choice::Yes)
    }

    /// Asks a question like [`Ui::confirm`] with these answers. `d` asks for details.
    pub(super) async fn choose(
        &mut self,
        question: &str,
        answers: &str,
        yes: bool,
        cancel: &CancellationToken,
    ) -> Result<Choice, CliError> {
        if yes {
            return Ok(Choice::Yes);
        }
        let Some(mut input) = self.input.take() else {
            return Err(
                CliError::usage(format!("cannot ask without a terminal: {question}"))
                    .hint("use --yes to confirm"),
            );
        };
        self.end_progress();
        self.out.flush_now();
        self.err.write_now(&format!("{question} {answers} "));
        // Use a blocking thread, because reading a terminal cannot be cancelled.
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
        Ok(match line.trim().to_lowercase().as_str() {
            "y" | "yes" => Choice::Yes,
            "d" | "diff" => Choice::Details,
            _ => Choice::No,
        })
    }

    /// Asks for confirmation like [`Ui::confirm`]. The answer `d` prints the details and asks again.
    pub(super) async fn confirm_with_details(
        &mut self,
        question: &str,
        details: &str,
        yes: bool,
        cancel: &CancellationToken,
    ) -> Result<bool, CliError> {
        loop {
            match self.choose(question, "[y/N/d]", yes, cancel).await? {
                Choice::Details => self.page(details),
                choice => return Ok(choice == Choice::Yes),
            }
        }
    }

    /// Shows a long text in the pager of the user, or on stderr.
    pub(super) fn page(&mut self, text: &str) {
        self.end_progress();
        self.out.flush_now();
        let is_shown = self.pager.as_ref().is_some_and(|pager| pager.show(text));
        if !is_shown {
            self.write_stderr(text.trim_end_matches('\n'));
        }
    }

    /// Starts a progress bar for a release. Draws nothing without a terminal.
    pub fn start_progress(&mut self, steps: usize, release: &str) {
        self.end_progress();
        // Buffered text would break the bar when written later.
        self.out.flush_now();
        if !self.animated {
            return;
        }
        let target = ProgressDrawTarget::stderr_with_hz(10);
        let bar = ProgressBar::with_draw_target(Some(steps as u64), target);
        // The template is a constant. If it were invalid, the default style remains.
        if let Ok(style) =
            ProgressStyle::with_template("{prefix}  {bar:24}  {pos}/{len}  {elapsed}{msg}")
        {
            bar.set_style(style.progress_chars("━╸━"));
        }
        bar.set_prefix(release.to_owned());
        bar.enable_steady_tick(Duration::from_millis(250));
        self.bar = Some(bar);
    }

    /// Updates the bar, the text before it and the text below it. Each line below starts with a line
    /// break.
    pub fn progress(&mut self, done: usize, before: &str, below: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position(done as u64);
            bar.set_prefix(before.to_owned());
            bar.set_message(if self.colored {
                below.to_owned()
            } else {
                anstream::adapter::strip_str(below).to_string()
            });
        }
    }

    /// Returns whether lines below the bar are shown.
    pub fn has_block(&self) -> bool {
        self.bar.is_some()
    }

    /// Removes the bar. Lines printed meanwhile remain.
    pub fn end_progress(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// Flushes both streams. Fails if the result could not be written, unless its reader closed the
    /// pipe.
    pub fn finish(&mut self) -> Result<(), CliError> {
        self.end_progress();
        self.out.flush_now();
        self.err.flush_now();
        match self.out.take_error() {
            Some(error) => Err(CliError::new(Kind::Failed, WriteResult(error))),
            None => Ok(()),
        }
    }

    fn write_stderr(&mut self, line: &str) {
        let mut write = || {
            // Flush stdout first, in case both streams are the same file.
            self.out.flush_now();
            self.err.write_line(line);
        };
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }
}

/// Returns whether log lines on stderr are colored.
pub(super) fn colors_on_stderr(color: Color) -> bool {
    AutoStream::new(io::stderr(), color.into()).current_choice() != anstream::ColorChoice::Never
}

/// Prints a message on stderr without access to the [`Ui`].
pub(super) fn write_notice(line: &str) {
    Stream::new(AutoStream::auto(io::stderr())).write_line(line);
}

/// Prints a panic as an internal error with its location.
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
        // Clear a progress bar on this line.
        Stream::new(io::stderr()).write_now("\r\u{1b}[2K");
    }
    write_notice(&format!(
        "{ERROR}internal error{ERROR:#}{place}: {}\n  {HINT}hint{HINT:#}: this is a bug in pleach {}; please report it",
        findings::plain(message),
        env!("CARGO_PKG_VERSION"),
    ));
}

/// Returns the number of columns of the terminal for progress.
pub(super) fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stderr());
    let columns = size.map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 { COLUMNS } else { columns }
}

/// Returns the stream for log lines.
pub(super) fn stderr() -> io::Stderr {
    io::stderr()
}

/// Returns whether log lines go to a terminal.
pub(super) fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Error of writing to stdout.
#[derive(Debug, thiserror::Error)]
#[error("failed to write the result")]
struct WriteResult(#[source] io::Error);

trait WriteLine {
    fn write_line(&mut self, line: &str);
}

impl<W: Write + ?Sized> WriteLine for W {
    fn write_line(&mut self, line: &str) {
        // Use one write call, so that lines of several processes do not mix. The stream saves
        // errors.
        drop(self.write_all(format!("{line}\n").as_bytes()));
    }
}

#[cfg(test)]
mod tests;
