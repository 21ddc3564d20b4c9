//! Help texts of the program: groups of commands, and the options of every command in one place.

use std::fmt::Write as _;

use clap::builder::Styles;
use clap::{Arg, Command, CommandFactory as _};

use super::Cli;

/// Commands with a common purpose.
struct Group {
    title: &'static str,
    commands: &'static [&'static str],
}

/// All commands for users, in the order of their first use.
const GROUPS: &[Group] = &[
    Group {
        title: "Start",
        commands: &["init", "add", "vendor", "bootstrap", "doctor"],
    },
    Group {
        title: "Review",
        commands: &["render", "lint", "diff", "plan", "preview"],
    },
    Group {
        title: "Change",
        commands: &["apply", "rollback", "promote", "push", "uninstall"],
    },
    Group {
        title: "Observe",
        commands: &["status", "history", "logs"],
    },
    Group {
        title: "Controller",
        commands: &["run", "suspend", "resume", "sync"],
    },
    Group {
        title: "Repair",
        commands: &["recover"],
    },
    #[cfg(feature = "rehearsal")]
    Group {
        title: "Rehearse",
        commands: &["rehearse", "dump", "sandbox"],
    },
    Group {
        title: "Program",
        commands: &["completion", "version"],
    },
];

/// Layout of the help of the program. The groups are its `before-help`.
const TEMPLATE: &str = "\
{about-with-newline}
{usage-heading} {usage}

{before-help}Options:
{options}{after-help}";

const EXAMPLES: &str = "\
Examples:
  pleach init fleet                 create a small example repository
  pleach render production          show the rendered objects; needs no cluster
  pleach lint                       find mistakes in the files; needs no cluster
  pleach diff production            show what apply would change
  pleach apply production/web       apply one release, after confirmation
  pleach status                     show installed releases and their readiness
  pleach doctor                     show problems of the cluster
  pleach bootstrap --url URL        install the controller in a cluster
  pleach run --repo URL             reconcile clusters with the branches of a repository";

const EXIT_CODES: &str = "\
Exit codes:
  0  done                                  5    conflict
  1  failed, or declined                   6    not ready in time
  2  invalid usage                         7    refused by policy
  3  repository invalid                    10   changes found (--exit-code)
  4  cluster unreachable or access denied  130  interrupted";

/// Last line of the short help of the program.
const MORE: &str = "\
`pleach COMMAND -h` shows one command, `pleach --help` the commands with a description, the global
options and the exit codes";

/// Last line of the help of a command.
const GLOBAL: &str =
    "`pleach --help` lists the global options, such as --repo, --context and --verbose";

/// Returns the definition of the command line with its help texts. Only `pleach --help` lists the
/// global options.
pub(super) fn command() -> Command {
    let program = Cli::command();
    let global: Vec<Arg> = program
        .get_arguments()
        .filter(|arg| arg.is_global_set())
        .map(|arg| arg.clone().hide(true))
        .collect();
    let all = descriptions(&program);
    program
        .mut_args(|arg| {
            let is_global = arg.is_global_set();
            arg.hide_short_help(is_global)
        })
        .mut_subcommands(|command| {
            let help = match command.get_after_help() {
                Some(examples) => format!("{examples}\n\n{GLOBAL}"),
                None => GLOBAL.to_owned(),
            };
            // A command with an argument of the same id keeps its own.
            command.args(global.clone()).after_help(help)
        })
        .help_template(TEMPLATE)
        .before_help(names())
        .before_long_help(all)
        .after_help(format!("{EXAMPLES}\n\n{MORE}"))
        .after_long_help(format!("{EXAMPLES}\n\n{EXIT_CODES}"))
}

/// Lists the names of the commands, one line per group.
fn names() -> String {
    let mut text = String::new();
    for Group { title, commands } in GROUPS {
        let space = 12 - title.len();
        // Writing to a String cannot fail.
        let heading = heading(&text, "\n", title);
        let _ = write!(text, "{heading}{:space$}{}", "", commands.join("  "));
    }
    text
}

/// Lists the commands with their descriptions, by group.
fn descriptions(program: &Command) -> String {
    let mut text = String::new();
    for Group { title, commands } in GROUPS {
        text.push_str(&heading(&text, "\n\n", title));
        for name in *commands {
            let about = program
                .find_subcommand(name)
                .and_then(|command| command.get_about())
                .map(ToString::to_string)
                .unwrap_or_default();
            let _ = write!(text, "\n  {name:<10}  {about}");
        }
    }
    text
}

/// Formats the heading of a group. It contains the line breaks after the previous text: clap wraps
/// a text with styles correctly only if they are in the part with the style.
fn heading(before: &str, breaks: &str, title: &str) -> String {
    let breaks = if before.is_empty() { "" } else { breaks };
    let styles = Styles::styled();
    let style = styles.get_header();
    format!("{style}{breaks}{title}:{style:#}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns the program and its commands for users, on a terminal of 100 columns.
    fn commands() -> Vec<Command> {
        let mut program = command().term_width(100);
        program.build();
        let mut commands: Vec<Command> = program
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .cloned()
            .collect();
        commands.push(program);
        commands
    }

    #[test]
    fn every_command_is_in_one_group() {
        let listed: Vec<&str> = GROUPS
            .iter()
            .flat_map(|group| group.commands.iter().copied())
            .collect();
        let program = Cli::command();
        let visible: BTreeSet<&str> = program
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(Command::get_name)
            .collect();
        assert_eq!(listed.len(), visible.len());
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), visible);
    }

    #[test]
    fn a_short_help_fits_on_a_screen() {
        for mut command in commands() {
            let help = command.render_help().to_string();
            let lines = help.trim_end().lines().count();
            assert!(lines <= 35, "{}: {lines} lines", command.get_name());
        }
    }

    #[test]
    fn only_the_help_of_the_program_lists_global_options() {
        let program = Cli::command();
        let global: Vec<String> = program
            .get_arguments()
            .filter(|arg| arg.is_global_set() && !arg.is_hide_set())
            .filter_map(|arg| Some(format!("--{}", arg.get_long()?)))
            .collect();
        assert!(global.len() > 4);
        let lists = |help: &str, option: &str| {
            let mut lines = help.lines().map(str::trim_start);
            lines.any(|line| {
                let mut words = line.split_whitespace();
                line.starts_with('-') && words.any(|word| word.trim_end_matches("...") == option)
            })
        };
        for mut command in commands() {
            let short = command.render_help().to_string();
            let long = command.render_long_help().to_string();
            let name = command.get_name();
            for option in &global {
                assert!(!lists(&short, option), "{name}: {option}");
                assert_eq!(lists(&long, option), name == "pleach", "{name}: {option}");
            }
        }
    }
}
