//! `millrace schema`: the JSON Schemas of the files that users write.

use clap::Args;

use crate::exit::Exit;
use crate::plan_file;
use crate::view::print_line;

/// The arguments of `millrace schema`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Which file
    #[arg(value_enum)]
    of: File,
}

/// The files that have a schema.
#[derive(clap::ValueEnum, Debug, Clone, Copy)]
enum File {
    /// A plan, for `--plan`
    Plan,
    /// A capability, for `millrace worker --capability`
    Capability,
}

/// Prints a schema.
pub fn command(arguments: &Arguments) -> Exit {
    match arguments.of {
        File::Plan => print_line(&format!("{:#}", plan_file::schema())),
        File::Capability => print_line(&format!("{:#}", millrace_worker::file::schema())),
    }
    Exit::Completed
}
