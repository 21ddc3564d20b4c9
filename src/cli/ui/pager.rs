//! Pager of the user.

use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};

/// Command that shows long texts page by page.
#[derive(Debug)]
pub(super) struct Pager {
    /// Command for the shell.
    command: String,
    /// Whether to send colors.
    colored: bool,
}

impl Pager {
    /// Returns the pager that variable `PAGER` names, if any.
    pub(super) fn of_user(colored: bool) -> Option<Self> {
        #[expect(clippy::disallowed_methods, reason = "settings are read here")]
        let command = std::env::var("PAGER").ok()?;
        let is_set = !command.trim().is_empty();
        is_set.then_some(Self { command, colored })
    }

    /// Shows a text, and waits until the user ends the pager. Returns whether it was started.
    pub(super) fn show(&self, text: &str) -> bool {
        // stdout can be a file; the terminal is that of the question.
        let Ok(terminal) = io::stderr().as_fd().try_clone_to_owned() else {
            return false;
        };
        let started = Command::new("sh")
            // Without -R, less shows colors as text.
            .args([
                "-c",
                &format!("export LESS=\"${{LESS-FRX}}\"\n{}", self.command),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::from(terminal))
            .spawn();
        let Ok(mut pager) = started else {
            return false;
        };
        if let Some(mut input) = pager.stdin.take() {
            let text = if self.colored {
                text.to_owned()
            } else {
                anstream::adapter::strip_str(text).to_string()
            };
            // The user can end the pager early.
            drop(input.write_all(text.as_bytes()));
        }
        let ended = pager.wait();
        ended.is_ok_and(|status| !matches!(status.code(), Some(126 | 127)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pager_that_does_not_exist_shows_nothing() {
        let pager = |command: &str| Pager {
            command: command.to_owned(),
            colored: false,
        };
        assert!(pager("cat >/dev/null").show("text"));
        assert!(pager("exit 1").show("text"));
        assert!(!pager("exec /nowhere/pager 2>/dev/null").show("text"));
    }
}
