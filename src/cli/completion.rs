//! `pleach completion`.

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::{Cli, Exit, Ui};

/// Write a script that completes commands and options in a shell
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
    clap_complete::generate(args.shell, &mut Cli::command(), "pleach", &mut ui.out());
    Exit::DONE
}
