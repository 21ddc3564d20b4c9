//! `pleach completion`, and the candidates that its scripts request.

use std::ffi::{OsStr, OsString};

use clap::{Arg, Command};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};
use pleach_engine::doctor::fixable_kinds;
use pleach_engine::load::pleach_version;
use pleach_model::kinds::KindTable;
use pleach_model::object::GroupKind;

use super::load::{Context, Settings};
use super::{Exit, Ui, help, option};

/// Variable in which a script names its shell when it requests candidates.
const VARIABLE: &str = "PLEACH_COMPLETE";

/// Write a script that completes commands, options, environments and releases in a shell
///
/// The script runs pleach for each completion. Environments and releases are
/// read from the environment files, without rendering and without a cluster.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  source <(pleach completion bash)                                     for this shell
  pleach completion zsh > \"${fpath[1]}/_pleach\"                        for every zsh
  pleach completion fish > ~/.config/fish/completions/pleach.fish      for every fish")]
pub(crate) struct CompletionArgs {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(ui: &mut Ui, args: &CompletionArgs) -> Exit {
    let shells = Shells::builtins();
    if let Some(shell) = shells.completer(&args.shell.to_string()) {
        // Writing the result never fails.
        drop(shell.write_registration(VARIABLE, "pleach", "pleach", "pleach", ui.out()));
    }
    Exit::DONE
}

/// Answers a completion script. `None`: the process was started for something else.
pub fn complete(arguments: impl IntoIterator<Item = OsString>) -> Option<Exit> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let program = || with_candidates(help::command(), &context(&arguments));
    let folder = std::env::current_dir().ok();
    let answered = CompleteEnv::with_factory(program)
        .var(VARIABLE)
        .try_complete(arguments.iter().cloned(), folder.as_deref());
    match answered {
        Ok(false) => None,
        Ok(true) => Some(Exit::DONE),
        Err(error) => {
            // Ignore a closed pipe.
            drop(error.print());
            Some(Exit::USAGE)
        }
    }
}

/// Returns the context of an incomplete command line: the repository and the revision.
fn context(arguments: &[OsString]) -> Context {
    // bash passes `--repo=DIR` as three words.
    let words: Vec<OsString> = arguments
        .iter()
        .filter(|word| *word != "=")
        .cloned()
        .collect();
    let revision = option(&words, "--revision", "PLEACH_REVISION");
    Context::new(Settings {
        repo: option(&words, "--repo", "PLEACH_REPO").map(Into::into),
        revision: revision.and_then(|revision| revision.into_string().ok()),
        ..Settings::default()
    })
}

/// Adds candidates to the arguments of all commands.
fn with_candidates(program: Command, ctx: &Context) -> Command {
    program.mut_subcommands(|command| {
        command.mut_args(|arg| match Values::of(&arg) {
            Some(values) => {
                let ctx = ctx.clone();
                let complete = move |typed: &OsStr| candidates(values, typed, &ctx);
                arg.add(ArgValueCompleter::new(complete))
            }
            None => arg,
        })
    })
}

fn candidates(values: Values, typed: &OsStr, ctx: &Context) -> Vec<CompletionCandidate> {
    let Some(typed) = typed.to_str() else {
        return Vec::new();
    };
    let values = values.starting_with(typed, ctx);
    values.into_iter().map(CompletionCandidate::new).collect()
}

/// Values of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Values {
    /// Environments.
    Environments,
    /// Environments, and their releases.
    Targets,
    /// Releases of environments.
    Releases,
    /// Built-in kinds of the newest Kubernetes, as the start of the id of an object.
    Kinds,
    /// Kinds that `pleach doctor --fix` removes.
    FixableKinds,
}

impl Values {
    /// Returns the values of an argument. `None`: it takes others.
    fn of(arg: &Arg) -> Option<Self> {
        let [name] = arg.get_value_names()? else {
            return None;
        };
        match (name.as_str(), arg.get_id().as_str()) {
            ("ENV" | "FROM" | "TO", _) => Some(Self::Environments),
            ("ENV[/RELEASE]", _) => Some(Self::Targets),
            ("ENV/RELEASE", _) => Some(Self::Releases),
            ("ID", "explain") => Some(Self::Kinds),
            ("ID", "fix") => Some(Self::FixableKinds),
            _ => None,
        }
    }

    /// Returns the values that start with a text, sorted by name. Empty if a file cannot be read.
    fn starting_with(self, typed: &str, ctx: &Context) -> Vec<String> {
        let values = match (self, typed.split_once('/')) {
            (Self::Environments | Self::Targets, None) => environments(ctx),
            (Self::Targets | Self::Releases, Some((environment, _))) => releases(ctx, environment),
            (Self::Releases, None) => {
                let environments = environments(ctx).into_iter();
                environments.map(|name| format!("{name}/")).collect()
            }
            (Self::Kinds, None) => {
                let (table, _) = KindTable::nearest(None);
                starts_of_ids(table.group_kinds())
            }
            (Self::FixableKinds, None) => starts_of_ids(fixable_kinds()),
            (Self::Environments | Self::Kinds | Self::FixableKinds, Some(_)) => Vec::new(),
        };
        let is_kind = matches!(self, Self::Kinds | Self::FixableKinds);
        let starts = |value: &String| match value.get(..typed.len()) {
            Some(start) if is_kind => start.eq_ignore_ascii_case(typed),
            Some(start) => start == typed,
            None => false,
        };
        values.into_iter().filter(starts).collect()
    }
}

/// Returns the environments of the repository.
fn environments(ctx: &Context) -> Vec<String> {
    let tree = ctx.tree();
    tree.map(|tree| pleach_config::environments(&*tree))
        .unwrap_or_default()
}

/// Returns the releases of an environment, as targets.
fn releases(ctx: &Context, environment: &str) -> Vec<String> {
    let Ok(tree) = ctx.tree() else {
        return Vec::new();
    };
    let outline = pleach_config::outline(&*tree, environment, &pleach_version());
    let releases = outline.map(|outline| outline.releases).unwrap_or_default();
    let names = releases.keys();
    names.map(|name| format!("{environment}/{name}")).collect()
}

/// Returns the start of the ids of objects of these kinds.
fn starts_of_ids(kinds: impl IntoIterator<Item = GroupKind>) -> Vec<String> {
    kinds.into_iter().map(|kind| format!("{kind}/")).collect()
}

#[cfg(test)]
mod tests {
    use pleach_files::FileContent;

    use super::*;

    /// Returns a repository with two environments, one of which cannot be parsed.
    fn repository() -> (tempfile::TempDir, Context) {
        let folder = tempfile::tempdir().unwrap();
        let api = "apiVersion: pleach.dev/v1alpha1";
        let files = [
            (
                "pleach.yaml",
                format!("{api}\nkind: Repository\nid: fleet\n"),
            ),
            (
                "environments/_base.yaml",
                format!("{api}\nkind: Environment\n"),
            ),
            (
                "environments/dev.yaml",
                format!(
                    "{api}\nkind: Environment\nextends: _base.yaml\nreleases:\n  - {{name: web, bundle: none}}\n  - {{name: api, bundle: none}}\n"
                ),
            ),
            ("environments/broken.yaml", "releases: [".to_owned()),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), FileContent::new(text)));
        pleach_files::add_files(folder.path(), &files.into()).unwrap();
        let ctx = Context::new(Settings {
            repo: Some(folder.path().to_owned()),
            ..Settings::default()
        });
        (folder, ctx)
    }

    #[test]
    fn names_come_from_the_environment_files() {
        let (_folder, ctx) = repository();
        for (values, typed, expected) in [
            (Values::Environments, "", &["broken", "dev"][..]),
            (Values::Targets, "d", &["dev"]),
            (Values::Targets, "dev/", &["dev/api", "dev/web"]),
            (Values::Targets, "dev/w", &["dev/web"]),
            (Values::Releases, "d", &["dev/"]),
            (Values::Releases, "dev/w", &["dev/web"]),
            (Values::Environments, "dev/", &[]),
            // The bundles of the releases need not exist, but the files have to be readable.
            (Values::Targets, "broken/", &[]),
            (Values::Targets, "none/", &[]),
            (Values::Targets, "../", &[]),
        ] {
            assert_eq!(values.starting_with(typed, &ctx), expected, "{typed}");
        }
        let ctx = Context::new(Settings {
            repo: Some("/nowhere".into()),
            ..Settings::default()
        });
        assert!(Values::Targets.starting_with("d", &ctx).is_empty());
    }

    #[test]
    fn kinds_are_completed_in_any_case() {
        let ctx = Context::new(Settings::default());
        for (values, typed, expected) in [
            (Values::Kinds, "deploy", &["Deployment.apps/"][..]),
            (Values::Kinds, "ConfigM", &["ConfigMap/"]),
            (Values::Kinds, "ConfigMap/a", &[]),
            (
                Values::FixableKinds,
                "API",
                &["APIService.apiregistration.k8s.io/"],
            ),
            (Values::FixableKinds, "Deployment", &[]),
        ] {
            assert_eq!(values.starting_with(typed, &ctx), expected, "{typed}");
        }
    }

    #[test]
    fn arguments_with_environments_have_candidates() {
        let program = help::command();
        let mut count = 0;
        for command in program.get_subcommands() {
            for arg in command.get_arguments() {
                let names = arg.get_value_names().unwrap_or_default();
                if names.iter().any(|name| name.contains("ENV")) {
                    assert!(Values::of(arg).is_some(), "{} {arg}", command.get_name());
                    count += 1;
                }
            }
        }
        assert!(count > 10);
    }

    #[test]
    fn the_repository_is_that_of_the_command_line() {
        for words in [
            &["--", "pleach", "--repo", "fleet", "apply", ""][..],
            &["--", "pleach", "--repo=fleet", "apply", ""],
            &["--", "pleach", "--repo", "=", "fleet", "apply", ""],
        ] {
            let words: Vec<OsString> = words.iter().map(Into::into).collect();
            let repo = context(&words).settings.repo;
            assert_eq!(repo.as_deref(), Some("fleet".as_ref()), "{words:?}");
        }
    }
}
