//! Running program: its output so far, and signals.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::fleet::{Fleet, Run};

/// Time-out of all waits in tests.
const PATIENCE: Duration = Duration::from_mins(1);
/// Minimum poll interval.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// Maximum poll interval.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Started command line.
pub(crate) struct Running {
    args: Vec<String>,
    child: Child,
    started: Instant,
    said: Arc<Mutex<String>>,
    printed: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

/// Collects the output line by line.
fn read(from: impl std::io::Read + Send + 'static, into: &Arc<Mutex<String>>) -> JoinHandle<()> {
    let into = Arc::clone(into);
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines() {
            let mut text = into.lock().unwrap();
            text.push_str(&line.unwrap());
            text.push('\n');
        }
    })
}

impl Fleet {
    /// Starts a command line.
    #[track_caller]
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        let mut command = self.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (said, printed) = (Arc::default(), Arc::default());
        let readers = vec![
            read(child.stdout.take().unwrap(), &printed),
            read(child.stderr.take().unwrap(), &said),
        ];
        Running {
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            child,
            started: Instant::now(),
            said,
            printed,
            readers,
        }
    }

    /// Polls until `look` returns a value.
    #[track_caller]
    pub(crate) fn until<T>(&self, what: &str, mut look: impl FnMut(&Self) -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            let looking = Instant::now();
            if let Some(found) = look(self) {
                return found;
            }
            assert!(started.elapsed() < PATIENCE, "{what} never came about");
            // Looking is often more expensive than the awaited operation.
            let pause = 2 * looking.elapsed();
            std::thread::sleep(pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE));
        }
    }
}

impl Running {
    /// Waits until stderr contains a text.
    #[track_caller]
    pub(crate) fn until_says(&mut self, text: &str) {
        self.until(text, |running| running.said().contains(text).then_some(()));
    }

    /// Waits for a line of stdout with a prefix and returns the rest.
    #[track_caller]
    pub(crate) fn until_prints(&mut self, start: &str) -> String {
        self.until(start, |running| {
            let printed = running.printed.lock().unwrap();
            let rest = printed.lines().find_map(|line| line.strip_prefix(start));
            rest.map(str::to_owned)
        })
    }

    /// Returns stderr so far.
    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    #[track_caller]
    fn until<T>(&mut self, text: &str, look: impl Fn(&Self) -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            let said = self.said();
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

    /// Waits for the exit. The code is -1 after a signal.
    #[track_caller]
    pub(crate) fn ended(mut self) -> Run {
        let asked = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                asked.elapsed() < 2 * PATIENCE,
                "it never ended: {}",
                self.said.lock().unwrap()
            );
            std::thread::sleep(Duration::from_millis(10));
        };
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        let run = Run {
            code: status.code().unwrap_or(-1),
            stdout: self.printed.lock().unwrap().clone(),
            stderr: self.said(),
            took: self.started.elapsed(),
        };
        run.sound(&args)
    }
}

impl Drop for Running {
    /// Kills the process if the test failed.
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
