//! An untrusted branch causes nothing but findings.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use rstest::rstest;

use super::Folder;
use super::diff::{commit, git};

const REPOSITORY: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: fleet\n";
const ENVIRONMENT: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Environment\nreleases: [{name: app, bundle: app, namespace: app}]\n";
const BUNDLE: &str = "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n";

/// Secret outside of the repository that must not be printed.
const OUTSIDE: &str = "Zk4secret8outside";

/// Time-out, generous for a debug build on a busy machine.
const PATIENCE: Duration = Duration::from_mins(5);

/// Expected result of a preview.
#[derive(Clone, Copy)]
enum End {
    /// The change is shown.
    Shown,
    /// The preview is refused with this message.
    Refused(&'static str),
    /// The kernel kills the process.
    Ended,
}

struct Case {
    name: &'static str,
    /// Writes the change into the repository. The path is a file outside.
    write: fn(&Folder, &Path),
    end: End,
}

fn template(folder: &Folder, text: &str) {
    folder.write("manifests/app/more.yaml.j2", text);
}

fn app(folder: &Folder, value: &str) {
    folder.write("manifests/app/app.yaml", &config_map(value));
}

fn config_map(value: &str) -> String {
    let value = serde_json::Value::from(value);
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: app}}\ndata: {{a: {value}}}\n")
}

fn link(folder: &Folder, name: &str, to: &Path) {
    let place = folder.path().join(name);
    fs::create_dir_all(place.parent().unwrap()).unwrap();
    // The link can replace a file.
    drop(fs::remove_file(&place));
    symlink(to, place).unwrap();
}

fn contents() -> Vec<Case> {
    vec![
        Case {
            name: "markup",
            write: |folder, _| {
                app(
                    folder,
                    "````\n</details><script>alert(1)</script>\n@everyone [x](javascript:y) ![i](//e) https://e.example \u{202e}x\u{1b}[31mred",
                );
            },
            end: End::Shown,
        },
        Case {
            name: "a line of 10 MB",
            write: |folder, _| app(folder, &"A".repeat(10_000_000)),
            end: End::Shown,
        },
        Case {
            name: "a hundred thousand lines",
            write: |folder, _| app(folder, &"x: y\n".repeat(100_000)),
            end: End::Shown,
        },
        Case {
            name: "the name of an environment",
            write: |folder, _| folder.write("environments/@team <b>.yaml", ENVIRONMENT),
            end: End::Refused("is not a valid name for an environment"),
        },
        Case {
            name: "a file that is too large",
            write: |folder, _| {
                let file = fs::File::create(folder.path().join("manifests/app/large.yaml"));
                file.unwrap().set_len(64 << 20).unwrap();
            },
            end: End::Refused("at most 16 MiB are read"),
        },
    ]
}

fn templates() -> Vec<Case> {
    vec![
        Case {
            name: "an endless loop",
            write: |folder, _| {
                template(
                    folder,
                    "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = j %}{% endfor %}{% endfor %}",
                );
            },
            end: End::Refused("more.yaml.j2"),
        },
        Case {
            name: "endless recursion",
            write: |folder, _| {
                template(folder, "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}");
            },
            end: End::Refused("recursion limit exceeded"),
        },
        Case {
            name: "endless output",
            write: |folder, _| {
                template(
                    folder,
                    "{% for i in range(99999) %}{{ 'x' * 10000 }}{% endfor %}",
                );
            },
            end: End::Refused("more.yaml.j2"),
        },
        Case {
            name: "a word that doubles",
            write: |folder, _| {
                template(
                    folder,
                    "{% set n = namespace(x='ab') %}{% for i in range(64) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
                );
            },
            end: End::Ended,
        },
        Case {
            name: "a pattern that grows",
            write: |folder, _| {
                template(
                    folder,
                    "{{ 'aaaa' | regex_replace('((((a{99}){99}){99}){99})', 'x') }}",
                );
            },
            end: End::Refused("more.yaml.j2"),
        },
        Case {
            name: "an include from above",
            write: |folder, _| template(folder, "{% include '../../outside' %}"),
            end: End::Refused("names are paths below templates"),
        },
        Case {
            name: "an include from the root",
            write: |folder, _| template(folder, "{% include '/etc/hostname' %}"),
            end: End::Refused("names are paths below templates"),
        },
    ]
}

fn links_and_bombs() -> Vec<Case> {
    vec![
        Case {
            name: "a link to a file outside",
            write: |folder, outside| link(folder, "manifests/app/link.yaml", outside),
            end: End::Refused("symbolic links are not followed"),
        },
        Case {
            name: "a link to a folder outside",
            write: |folder, outside| {
                link(folder, "templates/out", outside.parent().unwrap());
                template(folder, "{% include 'out/outside.j2' %}");
            },
            end: End::Refused("more.yaml.j2"),
        },
        Case {
            name: "an environment that is a link",
            write: |folder, outside| link(folder, "environments/dev.yaml", outside),
            end: End::Refused("link"),
        },
        Case {
            name: "a bundle that is a link",
            write: |folder, outside| {
                fs::remove_dir_all(folder.path().join("manifests/app")).unwrap();
                link(folder, "manifests/app", outside.parent().unwrap());
            },
            end: End::Refused("link"),
        },
        Case {
            name: "a billion laughs",
            write: |folder, _| {
                let mut text = format!("a0: &a0 [{}]\n", ["lol"; 10].join(", "));
                for level in 1..10 {
                    let below = vec![format!("*a{}", level - 1); 10].join(", ");
                    let _never_fails = writeln!(text, "a{level}: &a{level} [{below}]");
                }
                folder.write("manifests/app/bomb.yaml", &text);
            },
            end: End::Refused("bomb.yaml"),
        },
        Case {
            name: "lists in lists",
            write: |folder, _| folder.write("manifests/app/deep.yaml", &"[".repeat(200_000)),
            end: End::Refused("deep.yaml"),
        },
    ]
}

/// Creates the change of a case, in the working tree and on the branch `pr`.
fn change(case: &Case, outside: &Path) -> Folder {
    let folder = Folder::with(&[
        ("pleach.yaml", REPOSITORY),
        ("environments/dev.yaml", ENVIRONMENT),
        ("manifests/app/bundle.yaml", BUNDLE),
        ("manifests/app/app.yaml", &config_map("b")),
    ]);
    commit(&folder);
    git(&folder, &["checkout", "--quiet", "-b", "pr"]);
    (case.write)(&folder, outside);
    git(&folder, &["add", "--all"]);
    git(&folder, &["commit", "--quiet", "--message", "x"]);
    folder
}

#[rstest]
#[case::contents(contents())]
#[case::templates(templates())]
#[case::links_and_bombs(links_and_bombs())]
fn nothing_has_an_effect_beyond_a_finding(#[case] cases: Vec<Case>) {
    let elsewhere = Folder::with(&[("outside.j2", OUTSIDE), ("bundle.yaml", OUTSIDE)]);
    let outside = elsewhere.path().join("outside.j2");
    for case in cases {
        let folder = change(&case, &outside);
        for format in ["text", "markdown", "html"] {
            let args = ["preview", "--untrusted", "--base", "main", "-o", format];
            // Preview of the working tree, and of the branch.
            let head: &[&str] = match format {
                "text" => &[],
                _ => &["--head", "pr"],
            };
            check(&case, &folder, &[&args, head].concat());
        }
    }
}

/// Runs a preview of the case and checks its whole output.
fn check(case: &Case, folder: &Folder, args: &[&str]) {
    let started = Instant::now();
    let mut command = match case.end {
        // A lower limit than in production, because the machine runs other tests.
        End::Ended => {
            let mut shell = assert_cmd::Command::new("sh");
            let line = "ulimit -v 2500000; exec \"$0\" \"$@\"";
            shell
                .args(["-c", line, env!("CARGO_BIN_EXE_pleach")])
                .args(args)
                .current_dir(folder.path());
            shell
        }
        End::Shown | End::Refused(_) => folder.command(args),
    };
    let output = command.timeout(PATIENCE).output().unwrap();
    let name = format!("{}, {args:?}, {:?}", case.name, started.elapsed());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    assert!(!stderr.contains("panicked"), "{name}: {stderr}");
    let both = format!("{stdout}\n{stderr}");
    match case.end {
        End::Shown => {
            assert_eq!(output.status.code(), Some(0), "{name}: {stderr}");
            assert!(stdout.contains("1 to update"), "{name}");
        }
        End::Refused(words) => {
            let head: String = both.chars().take(4_000).collect();
            assert_eq!(output.status.code(), Some(3), "{name}: {head}");
            assert!(both.contains(words), "{name}: {words}: {head}");
        }
        // After a signal there is no exit code.
        End::Ended => {
            assert_eq!(output.status.code(), None, "{name}: {stderr}");
            assert!(stderr.contains("memory allocation"), "{name}: {stderr}");
        }
    }
    assert!(!both.contains(OUTSIDE), "{name}");
    let moves = |c: char| (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}';
    assert!(!both.contains(moves), "{name}");
    match args[args.iter().position(|arg| *arg == "-o").unwrap() + 1] {
        "markdown" => {
            assert!(stdout.len() <= 65_536, "{name}: {}", stdout.len());
            assert!(!stdout.contains("@team"), "{name}: {stdout}");
        }
        "html" => {
            assert!(stdout.len() < 1_000_000, "{name}: {}", stdout.len());
            assert!(
                !stdout.contains("<script>") && !stdout.contains("<b>."),
                "{name}"
            );
        }
        _ => {}
    }
}
