//! `millrace schema`: the JSON Schemas of the files that users write.

use clap::Args;

use crate::exit::Exit;
use crate::plan_file;

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
        File::Plan => println!("{:#}", plan_file::schema()),
        File::Capability => println!("{:#}", millrace_worker::file::schema()),
    }
    Exit::Completed
}
