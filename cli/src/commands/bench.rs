//! `millrace bench`: measures a cluster on this machine and prints the report.

use millrace_bench::BenchArguments;
use tokio_util::sync::CancellationToken;

use crate::exit::{CommandError, CommandExit, CommandResult};
use crate::json::{BenchJson, print_json};
use crate::view::{print_stderr_line, print_stdout_line};

/// Runs the benchmarks and prints the report.
pub async fn run_command(arguments: BenchArguments, interrupt: CancellationToken) -> CommandResult {
    let report = tokio::select! {
        report = millrace_bench::run_benchmarks(&arguments, &print_stderr_line) => report?,
        () = interrupt.cancelled() => return Ok(CommandExit::Interrupted),
    };
    if arguments.json {
        let report = serde_json::to_value(&report).and_then(serde_json::from_value);
        print_json(&BenchJson { report: report.map_err(CommandError::unusable_environment)? });
    } else {
        report.table_lines().iter().for_each(|line| print_stdout_line(line));
    }
    Ok(CommandExit::Completed)
}
