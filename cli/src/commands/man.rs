//! `millrace man`: manual pages, from the same texts as `--help`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use clap_mangen::Man;

use crate::exit::{CommandError, CommandExit, CommandResult};
use crate::view::print_stdout_line;

const EXAMPLES: &str = "\
Examples:
  millrace man ~/.local/share/man/man1
  millrace man | man -l -";

/// The arguments of `millrace man`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ManArguments {
    /// Folder for the pages, one for each command [default: print that of millrace itself]
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

/// Prints or writes the pages of `command`.
pub fn run_command(arguments: &ManArguments, command: clap::Command) -> CommandResult {
    let home = std::env::home_dir().filter(|home| home.is_absolute() && home.parent().is_some());
    let mut command = name_home_folder(command, home.as_deref());
    command.build();
    match &arguments.folder {
        None => {
            let page = render_page(command, "millrace").map_err(CommandError::unusable_environment)?;
            print_stdout_line(page.trim_end());
        }
        Some(folder) => {
            let unwritable = || format!("can't write manual pages to {}", folder.display());
            let count = write_pages(command, folder).with_context(unwritable)?;
            note!("wrote {count} manual pages to {}", folder.display());
        }
    }
    Ok(CommandExit::Completed)
}

/// Writes `millrace.1` and `millrace-COMMAND.1`, and returns their number.
fn write_pages(command: clap::Command, folder: &Path) -> io::Result<usize> {
    fs::create_dir_all(folder)?;
    let children: Vec<clap::Command> = command
        .get_subcommands()
        .filter(|child| !child.is_hide_set() && child.get_name() != "help")
        .cloned()
        .collect();
    let name = command.get_name().to_owned();
    let pages = std::iter::once((name.clone(), command))
        .chain(children.into_iter().map(|child| (format!("{name}-{}", child.get_name()), child)));
    let mut count = 0;
    for (name, page) in pages {
        fs::write(folder.join(format!("{name}.1")), render_page(page, &name)?)?;
        count += 1;
    }
    Ok(count)
}

fn render_page(command: clap::Command, name: &str) -> io::Result<String> {
    let title = name.to_uppercase();
    let source = format!("millrace {}", env!("CARGO_PKG_VERSION"));
    let mut page = Vec::new();
    // Without a date, the same program always writes the same pages.
    Man::new(command).title(title).source(source).manual("Millrace").date("").render(&mut page)?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

/// Replaces the home folder in default values by `~`: pages are made on other machines than they are read on.
pub fn name_home_folder(command: clap::Command, home: Option<&Path>) -> clap::Command {
    let Some(home) = home else { return command };
    let replace = |argument: clap::Arg| {
        let default = argument.get_default_values().first().map(PathBuf::from);
        match default.as_deref().and_then(|default| default.strip_prefix(home).ok()) {
            // The parser takes static texts only; this process ends soon.
            Some(rest) => argument.default_value(&*format!("~/{}", rest.display()).leak()),
            None => argument,
        }
    };
    command.mut_args(replace).mut_subcommands(|child| name_home_folder(child, Some(home)))
}
