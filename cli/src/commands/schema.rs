//! `millrace schema`: prints the JSON Schemas of the files that users write and of what commands print with `--json`.

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::Value;

use crate::evaluation::input::file::evaluation_file_schema;
use crate::exit::CommandExit;
use crate::json::output_schema;
use crate::plan_file;
use crate::view::print_json_stdout_document;

const EXAMPLES: &str = "\
`plan`, `capability` and `evaluation` are files that you write; `result`, `event` and `error` are objects; all other names are
commands: the schema of each line that the command prints with --json.

Examples:
  millrace schema plan > plan.schema.json
  millrace schema result
  millrace schema list";

/// Files that users write.
#[cfg(test)]
pub const FILES: [&str; 4] = ["plan", "capability", "evaluation", "api"];

/// Everything that has a schema.
pub const NAMES: [&str; 47] = [
    "api",
    "plan",
    "capability",
    "evaluation",
    "result",
    "event",
    "error",
    "run",
    "resume",
    "watch",
    "submit",
    "list",
    "show",
    "up",
    "down",
    "cancel",
    "pause",
    "edit",
    "retry",
    "add",
    "message",
    "signal",
    "inbox",
    "answer",
    "files",
    "memories",
    "delete",
    "prune",
    "retention",
    "sessions",
    "limits",
    "token",
    "webhook",
    "audit",
    "replay",
    "status",
    "workers",
    "capabilities",
    "logs",
    "backup",
    "restore",
    "config",
    "doctor",
    "nats-config",
    "eval",
    "verify",
    "bench",
];

/// The arguments of `millrace schema`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct SchemaArguments {
    /// File, object or command
    #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(NAMES))]
    of: String,
}

/// Returns the schema of a file, an object or a command, [`NAMES`].
pub fn schema_of(name: &str) -> Value {
    match name {
        "api" => millrace_gateway::api_document(),
        "plan" => plan_file::plan_file_schema(),
        "capability" => millrace_worker::file::capability_file_schema(),
        "evaluation" => evaluation_file_schema(),
        name => output_schema(name).unwrap_or_default(),
    }
}

/// Prints a schema.
pub fn run_command(arguments: &SchemaArguments) -> CommandExit {
    print_json_stdout_document(&schema_of(&arguments.of));
    CommandExit::Completed
}
