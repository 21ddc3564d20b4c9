//! The program while it runs: what it has said so far, and signals.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::fleet::{Fleet, Run};

/// Nothing that a test waits for takes longer.
const PATIENCE: Duration = Duration::from_mins(1);

/// A command line that was started.
pub(crate) struct Running {
    args: Vec<String>,
    child: Child,
    started: Instant,
    said: Arc<Mutex<String>>,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<()>>,
}

impl Fleet {
    /// Starts a command line.
    #[track_caller]
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        let mut command = self.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let said = Arc::new(Mutex::new(String::new()));
        let heard = Arc::clone(&said);
        Running {
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            child,
            started: Instant::now(),
            said,
            stdout: Some(std::thread::spawn(move || {
                let mut text = String::new();
                stdout.read_to_string(&mut text).unwrap();
                text
            })),
            stderr: Some(std::thread::spawn(move || {
                for line in stderr.lines() {
                    let mut said = heard.lock().unwrap();
                    said.push_str(&line.unwrap());
                    said.push('\n');
                }
            })),
        }
    }

    /// Looks again and again until there is something.
    #[track_caller]
    pub(crate) fn until<T>(&self, what: &str, mut look: impl FnMut(&Self) -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            assert!(started.elapsed() < PATIENCE, "{what} never came about");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Running {
    /// Waits until it has said something on stderr.
    #[track_caller]
    pub(crate) fn until_says(&mut self, text: &str) {
        let started = Instant::now();
        loop {
            let said = self.said.lock().unwrap().clone();
            if said.contains(text) {
                return;
            }
            let ended = self.child.try_wait().unwrap();
            assert_eq!(ended, None, "it ended and never said {text:?}: {said}");
            assert!(
                started.elapsed() < PATIENCE,
                "it never said {text:?}: {said}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends a signal: `INT`, `TERM`, `KILL`.
    #[track_caller]
    pub(crate) fn signal(&self, name: &str) {
        let process = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &process]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits for its end. The code is -1 when a signal ended it.
    #[track_caller]
    pub(crate) fn ended(mut self) -> Run {
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                self.started.elapsed() < 2 * PATIENCE,
                "it never ended: {}",
                self.said.lock().unwrap()
            );
            std::thread::sleep(Duration::from_millis(10));
        };
        let stdout = self.stdout.take().unwrap().join().unwrap();
        self.stderr.take().unwrap().join().unwrap();
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        let run = Run {
            code: status.code().unwrap_or(-1),
            stdout,
            stderr: self.said.lock().unwrap().clone(),
            took: self.started.elapsed(),
        };
        run.sound(&args)
    }
}

impl Drop for Running {
    /// A test that failed leaves nothing behind.
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
