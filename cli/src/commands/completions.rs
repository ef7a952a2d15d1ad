//! `millrace completions`: prints the completions of a shell.

use clap::Args;
use clap_complete::Shell;

use crate::exit::CommandExit;
use crate::view::print_stdout_line;

const EXAMPLES: &str = "\
Examples:
  millrace completions bash > ~/.local/share/bash-completion/completions/millrace
  millrace completions zsh > ~/.zfunc/_millrace      with ~/.zfunc in fpath
  millrace completions fish > ~/.config/fish/completions/millrace.fish";

/// The arguments of `millrace completions`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArguments {
    /// Shell to print completions for
    #[arg(value_enum)]
    shell: Shell,
}

pub fn run_command(arguments: &CompletionsArguments, mut command: clap::Command) -> CommandExit {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, name, &mut script);
    print_stdout_line(String::from_utf8_lossy(&script).trim_end());
    CommandExit::Completed
}
