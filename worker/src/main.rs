//! The `millrace-worker` program: a worker with the built-in capabilities.

use std::process::ExitCode;

use clap::Parser;
use millrace_worker::{Args, Error, on_signals, run, telemetry};

#[derive(Parser)]
#[command(name = "millrace-worker", version)]
struct Command {
    #[command(flatten)]
    args: Args,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Command { args } = Command::parse();
    telemetry::init("info");
    let worked: Result<(), Error> = async { run(args.into_config(), on_signals()?).await }.await;
    match worked {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("millrace-worker: {error}");
            ExitCode::FAILURE
        }
    }
}
