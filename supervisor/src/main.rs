//! A supervisor as a program of its own.

use std::process::ExitCode;

use clap::Parser;
use millrace_runtime::shutdown::{block_on, on_signals};
use millrace_runtime::telemetry;
use millrace_supervisor::{Args, Error, run};

/// A Millrace supervisor.
#[derive(Parser)]
#[command(name = "millrace-supervisor", version)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn main() -> ExitCode {
    let Cli { args } = Cli::parse();
    match block_on(supervise(args)) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => stop(&error),
        Err(error) => stop(&error),
    }
}

fn stop(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("millrace-supervisor: {error}");
    ExitCode::from(4)
}

async fn supervise(args: Args) -> Result<(), Error> {
    telemetry::init("info");
    run(args.into_config(), on_signals()?).await
}
