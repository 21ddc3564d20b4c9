//! Helper programs of the controller. They run with time-outs and without the user's settings. Only
//! the keys from the configuration are trusted.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::GitError;

/// Time-out of a program that only computes.
const LIMIT: Duration = Duration::from_secs(30);
/// Poll interval for the end of a program.
const POLL: Duration = Duration::from_millis(5);
/// Maximum retained output, in bytes.
const LARGEST: u64 = 64 * 1024;

/// Creates a command with its own home folder and an empty environment, without the user's
/// settings, keys or agents.
pub(super) fn program(name: &str, home: &Path) -> Command {
    let mut command = Command::new(name);
    command
        .env_clear()
        .env("LC_ALL", "C")
        .env("HOME", home)
        .current_dir(home)
        .stdin(Stdio::null());
    #[expect(
        clippy::disallowed_methods,
        reason = "where programs are is no setting of pleach"
    )]
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    command
}

/// Result of a program with its output.
pub(super) struct Ended {
    pub(super) is_content: bool,
    /// stdout, then stderr.
    pub(super) output: String,
}

/// Runs a program until it ends.
pub(super) fn run(
    command: &mut Command,
    name: &'static str,
    what: &'static str,
) -> Result<Ended, GitError> {
    let failed = |source| GitError::Tool { name, source };
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let readers = [
        child.stdout.take().map(listen),
        child.stderr.take().map(listen),
    ];
    let started = Instant::now();
    let status = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) => break status,
            None if started.elapsed() > LIMIT => {
                drop(child.kill());
                drop(child.wait());
                // Its children could keep the pipes open for longer.
                return Err(GitError::TimedOut { what, after: LIMIT });
            }
            None => std::thread::sleep(POLL),
        }
    };
    let mut output = String::new();
    for reader in readers.into_iter().flatten() {
        let bytes = reader.join().unwrap_or_default();
        output.push_str(&String::from_utf8_lossy(&bytes));
    }
    Ok(Ended {
        is_content: status.success(),
        output,
    })
}

/// Reads a pipe to the end and retains only the start.
pub(super) fn listen(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut content = Vec::new();
        // Treat unreadable output as missing.
        let _end = pipe.by_ref().take(LARGEST).read_to_end(&mut content);
        let _rest = io::copy(&mut pipe, &mut io::sink());
        content
    })
}

/// Formats foreign output as one line without control characters.
pub(super) fn one_line(text: &str) -> String {
    const LONGEST: usize = 400;
    let mut line: String = text
        .chars()
        .map(|char| if char.is_control() { ' ' } else { char })
        .collect();
    if line.len() > LONGEST {
        let end = line.floor_char_boundary(LONGEST);
        line.truncate(end);
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_get_no_user_configuration() {
        let home = tempfile::tempdir().unwrap();
        let output = run(&mut program("env", home.path()), "env", "tell").unwrap();
        assert!(output.is_content);
        let mut names: Vec<&str> = output
            .output
            .lines()
            .filter_map(|line| Some(line.split_once('=')?.0))
            .filter(|name| *name != "PATH")
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["HOME", "LC_ALL"]);
    }

    #[test]
    fn a_program_with_too_much_output_ends() {
        let home = tempfile::tempdir().unwrap();
        let mut command = program("seq", home.path());
        let ended = run(command.arg("100000"), "seq", "count").unwrap();
        assert!(ended.is_content);
        assert_eq!(ended.output.len() as u64, LARGEST);
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let home = tempfile::tempdir().unwrap();
        let mut command = program("no-such-program", home.path());
        let error = run(&mut command, "no-such-program", "run").err().unwrap();
        assert_eq!(error.to_string(), "failed to run no-such-program");
    }

    #[test]
    fn foreign_text_stays_on_one_line() {
        assert_eq!(one_line("a\x1b[31m\nb"), "a [31m b");
        assert!(one_line(&"ü".repeat(1000)).len() < 410);
    }
}
