//! Runs the commands of README.md in their order, in a fresh folder and on a throwaway control plane.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use pleach_testkit::control_plane::binaries;
use pleach_testkit::demo::copy_example;
use pleach_testkit::repository::TestRepo;
use pleach_testkit::throwaway::{ControlPlane, Network, Options};
use tempfile::TempDir;

/// Commands that run, with their exit codes. A command runs each time that the page has it.
const RUN: &[(&str, &[i32])] = &[
    ("pleach doctor", &[0]),
    (
        "kubectl create deployment blog --image=nginx --dry-run=client -o yaml > blog.yaml",
        &[0],
    ),
    ("pleach init fleet --from blog.yaml --version v1.0.0", &[0]),
    ("cd fleet", &[0]),
    (
        "git init -b main && git add . && git commit -m \"First environment\"",
        &[0],
    ),
    ("pleach diff dev", &[0]),
    ("pleach apply dev", &[0]),
    ("pleach status dev", &[0]),
    ("pleach uninstall dev/blog", &[0]),
    ("pleach render demo/web --show-values", &[0]),
    // The first time without the id of the cluster.
    ("pleach apply demo/web --yes", &[2, 0]),
    ("pleach apply demo/web --yes --cluster-id ID", &[0]),
    ("kubectl -n web scale deployment web --replicas=5", &[0]),
    ("pleach diff demo/web", &[0]),
    (
        "pleach plan demo/web --explain Deployment.apps/web/web",
        &[0],
    ),
];

/// Commands that do not run, with the reason.
const SKIPPED: &[(&str, &str)] = &[
    ("make build", "builds the program, which the test has"),
    (
        "export PATH=$PWD/target/debug:$PATH",
        "the test has the program in PATH",
    ),
    (
        "make demo",
        "builds and runs the demo, which has its own test",
    ),
    (
        "make demo-platform",
        "builds and runs the demo, which has its own test",
    ),
    ("make test", "runs this test"),
    (
        "apt-get install git make gcc iproute2 util-linux openssh-client openssh-server gnupg chromium chromium-driver",
        "downloads packages",
    ),
];

/// Command of the page, with the output below it.
#[derive(Debug, PartialEq, Eq)]
struct Documented {
    command: String,
    output: Vec<String>,
}

/// Returns the commands of a page in their order: lines of `console` blocks that start with a prompt,
/// and lines of other blocks that start with the name of a program.
fn commands(page: &str) -> Vec<Documented> {
    let mut commands: Vec<Documented> = Vec::new();
    let mut block = None;
    for line in page.lines() {
        if let Some(language) = line.strip_prefix("```") {
            block = match block {
                Some(_) => None,
                None => Some(language.to_owned()),
            };
            continue;
        }
        let line = match (&block, line.strip_prefix("    ")) {
            (Some(_), _) => line,
            (None, Some(line)) => line,
            (None, None) => continue,
        };
        let command = match block.as_deref() {
            Some("console") => line.strip_prefix("$ "),
            _ => is_command(line).then_some(line),
        };
        match (command, commands.last_mut()) {
            (Some(command), _) => commands.push(Documented {
                command: without_remark(command),
                output: Vec::new(),
            }),
            (None, Some(last)) if block.as_deref() == Some("console") => {
                last.output.push(line.to_owned());
            }
            (None, _) => {}
        }
    }
    commands
}

fn is_command(line: &str) -> bool {
    let programs = [
        "apt-get", "cargo", "cd", "curl", "export", "git", "helm", "kubectl", "make", "pleach",
    ];
    let first = line.split_whitespace().next();
    first.is_some_and(|first| programs.contains(&first)) && !line.starts_with(' ')
}

/// Removes the explanation that follows a command after several spaces.
fn without_remark(command: &str) -> String {
    command
        .split("  ")
        .next()
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Returns a command with a placeholder for the id of the cluster.
fn general(command: &str) -> String {
    let words = command.split(' ').map(|word| {
        let is_id = word.len() == 36 && word.matches('-').count() == 4;
        if is_id { "ID" } else { word }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Session of a user.
struct User {
    home: TempDir,
    folder: PathBuf,
    kubeconfig: PathBuf,
}

impl User {
    fn new(control_plane: &ControlPlane) -> Self {
        let home = tempfile::tempdir().unwrap();
        for program in [
            Path::new(env!("CARGO_BIN_EXE_pleach")),
            control_plane.kubectl(),
        ] {
            symlink(program, home.path().join(program.file_name().unwrap())).unwrap();
        }
        Self {
            folder: home.path().to_owned(),
            kubeconfig: control_plane.kubeconfig().to_owned(),
            home,
        }
    }

    /// Runs a command, and returns its exit code and output. A question is answered with yes.
    fn run(&mut self, command: &str) -> (i32, String) {
        if let Some(folder) = command.strip_prefix("cd ") {
            self.folder.push(folder);
            return (i32::from(!self.folder.is_dir()), String::new());
        }
        let asks = ["pleach apply", "pleach uninstall"];
        let asks =
            asks.iter().any(|start| command.starts_with(start)) && !command.contains("--yes");
        let mut shell = if asks {
            let mut shell = Command::new("script");
            shell.args(["--quiet", "--return", "--command", command, "/dev/null"]);
            shell
        } else {
            let mut shell = Command::new("sh");
            shell.args(["-c", command]);
            shell
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "commands need the programs of the machine"
        )]
        let path = std::env::var("PATH").unwrap();
        shell
            .env_clear()
            .env("HOME", self.home.path())
            .env("PATH", format!("{}:{path}", self.home.path().display()))
            .env("KUBECONFIG", &self.kubeconfig)
            .env("NO_COLOR", "1")
            .current_dir(&self.folder);
        for person in ["AUTHOR", "COMMITTER"] {
            shell.env(format!("GIT_{person}_NAME"), "Ann");
            shell.env(format!("GIT_{person}_EMAIL"), "ann@example.org");
        }
        let mut shell = assert_cmd::Command::from_std(shell);
        let output = shell.write_stdin("y\n").output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.code().unwrap(),
            String::from_utf8(text).unwrap(),
        )
    }
}

#[test]
fn the_commands_of_the_readme_work_in_their_order() {
    let page = include_str!("../../README.md");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let options = Options {
        binaries: binaries(),
        controllers: true,
        scheduler: true,
        nodes: 2,
        network: Network::Host,
    };
    let control_plane = runtime.block_on(ControlPlane::start(options)).unwrap();
    let mut user = User::new(&control_plane);
    let (_, id) = user.run("kubectl get namespace kube-system -o jsonpath={.metadata.uid}");
    let example = TestRepo::new::<&str, &str>([]).unwrap();
    copy_example(Path::new(env!("CARGO_MANIFEST_DIR")), example.path()).unwrap();
    example.commit("Install").unwrap();
    let mut runs: Vec<usize> = vec![0; RUN.len()];
    for Documented { command, output } in commands(page) {
        if SKIPPED.iter().any(|(skipped, _)| *skipped == command) {
            continue;
        }
        let command = general(&command);
        let position = RUN.iter().position(|(known, _)| *known == command);
        let position = position.unwrap_or_else(|| {
            panic!("add this command of README.md to RUN or SKIPPED: {command}")
        });
        prepare(&command, &mut user, &example);
        let (code, text) = user.run(&command.replace("ID", &id));
        let codes = RUN[position].1;
        let expected = codes[runs[position].min(codes.len() - 1)];
        runs[position] += 1;
        assert_eq!(code, expected, "$ {command}\n{text}");
        for line in output.iter().filter(|line| is_steady(line)) {
            assert!(
                text.contains(line.as_str()),
                "$ {command}\nmissing: {line}\n{text}"
            );
        }
    }
    let unused = RUN.iter().zip(runs).filter(|(_, runs)| *runs == 0);
    let unused: Vec<&str> = unused.map(|((command, _), _)| *command).collect();
    assert!(unused.is_empty(), "README.md has no command {unused:?}");
}

/// Returns whether a line of the output is the same in every run.
fn is_steady(line: &str) -> bool {
    let differs = ["…", "https://", " ago"];
    !differs.iter().any(|part| line.contains(part))
}

/// Makes the changes that the text of the page describes before a command.
fn prepare(command: &str, user: &mut User, example: &TestRepo) {
    match command {
        // "This repository is itself an example."
        "pleach render demo/web --show-values" => example.path().clone_into(&mut user.folder),
        // "git gets another host and session key."
        "kubectl -n web scale deployment web --replicas=5" => {
            let file = "environments/demo.yaml";
            example
                .edit(file, "web.demo.example.org", "www.demo.example.org")
                .unwrap();
            example
                .edit(file, "only-for-the-demo", "another-key-of-the-demo")
                .unwrap();
            example.commit("Change host and key").unwrap();
        }
        _ => {}
    }
}

#[test]
fn commands_are_found_in_all_blocks() {
    let page = "\
Text about `make test`.

```
make build
not a command
```

    make demo      an upgrade

```console
$ pleach diff dev
release dev.web v1.0.0
…
$ pleach apply x --cluster-id f1d06f34-95de-4e0a-93b4-5922c17138da
```
";
    let found = commands(page);
    let names: Vec<String> = found.iter().map(|one| general(&one.command)).collect();
    assert_eq!(
        names,
        [
            "make build",
            "make demo",
            "pleach diff dev",
            "pleach apply x --cluster-id ID"
        ]
    );
    assert_eq!(found[2].output, ["release dev.web v1.0.0", "…"]);
}
