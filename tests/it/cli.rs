//! Tests of the program's exit codes, stdout and stderr.

mod add;
mod bad_input;
mod bootstrap;
mod charts;
mod comment;
mod completion;
mod diff;
mod doctor;
mod errors;
mod help;
mod hostile;
mod init;
mod lint;
mod logs;
mod plan;
mod preview;
mod promote;
mod push;
mod rehearse;
mod render;
mod sops;
mod status;
mod sync;
mod version;
mod write_only;

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use tempfile::TempDir;

/// Result of a run.
struct Run {
    code: i32,
    stdout: String,
    stderr: String,
}

/// Working folder with its own home.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Creates a repository with an environment `dev`.
    fn with(files: &[(&str, &str)]) -> Self {
        let folder = Self::new();
        for (path, content) in files {
            folder.write(path, content);
        }
        folder
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path().join(path)).unwrap()
    }

    /// Returns all files below a folder, sorted.
    fn files(&self, folder: &str) -> Vec<String> {
        pleach_files::files_below(&self.path().join(folder)).unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pleach"));
        command
            .env_clear()
            .env("HOME", self.path().join("home"))
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("NO_COLOR", "1")
            .env("COLUMNS", "100")
            .current_dir(self.path())
            .args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Run {
        self.finish(&mut self.command(arguments))
    }

    fn finish(&self, command: &mut Command) -> Run {
        let output = command.output().unwrap();
        let here = self.path().canonicalize().unwrap();
        let text = |bytes: Vec<u8>| {
            String::from_utf8(bytes)
                .unwrap()
                .replace(&here.join("home").display().to_string(), "HOME")
                .replace(&here.display().to_string(), "HERE")
        };
        Run {
            code: output.status.code().expect("ended by itself"),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }
}

impl Run {
    /// Formats code and streams, for snapshots.
    fn shown(&self) -> String {
        format!(
            "exit: {}\n--- stdout\n{}--- stderr\n{}",
            self.code, self.stdout, self.stderr
        )
    }
}
