//! Pseudo-terminal of 100 × 35 characters, with the screen that its user sees.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// Size of the terminal, in characters.
pub(super) const COLUMNS: u16 = 100;
/// Size of the terminal, in lines.
pub(super) const LINES: u16 = 35;
/// Longest time without the expected screen, after which a test fails.
const PATIENCE: Duration = Duration::from_mins(1);

/// Program on a terminal. Dropping it ends the program.
pub(super) struct Terminal {
    program: Child,
    keyboard: File,
    output: Receiver<Vec<u8>>,
    parser: vt100::Parser,
}

impl Terminal {
    /// Starts a program with a shell prompt above it, as a user would see it.
    pub(super) fn start(mut command: Command, line: &str) -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let size = Winsize {
            ws_row: LINES,
            ws_col: COLUMNS,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&controller, size).unwrap();
        let path = ptsname(&controller, Vec::new())
            .unwrap()
            .into_string()
            .unwrap();
        let end = || {
            let file = OpenOptions::new().read(true).write(true).open(&path);
            Stdio::from(file.unwrap())
        };
        let program = command
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        // Otherwise the terminal would stay open after the program ends.
        drop(command);
        let keyboard = File::from(controller.try_clone().unwrap());
        let output = reader(controller);
        let mut parser = vt100::Parser::new(LINES, COLUMNS, 0);
        parser.process(format!("$ {line}\r\n").as_bytes());
        Self {
            program,
            keyboard,
            output,
            parser,
        }
    }

    /// Types text.
    pub(super) fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    /// Waits until the screen shows this, and returns it.
    pub(super) fn until(&mut self, is_shown: impl Fn(&str) -> bool) -> vt100::Screen {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let screen = self.parser.screen();
            if is_shown(&screen.contents()) {
                return screen.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(bytes) => self.parser.process(&bytes),
                Err(error) => panic!(
                    "the expected screen did not appear ({error}):\n{}",
                    self.parser.screen().contents()
                ),
            }
        }
    }

    /// Waits until the program ends, and returns its exit code and the last screen.
    pub(super) fn end(mut self) -> (i32, vt100::Screen) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(bytes) => self.parser.process(&bytes),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    panic!(
                        "the program did not end:\n{}",
                        self.parser.screen().contents()
                    )
                }
            }
        }
        let code = self.program.wait().unwrap().code().unwrap();
        (code, self.parser.screen().clone())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        drop(self.program.kill());
        drop(self.program.wait());
    }
}

/// Reads the output of the program until it ends. The kernel then reports an error.
fn reader(controller: OwnedFd) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    let mut file = File::from(controller);
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = file.read(&mut buffer) {
            if sender.send(buffer[..length].to_vec()).is_err() {
                break;
            }
        }
    });
    receiver
}
