//! The `millrace-worker` program: a worker with the built-in capabilities and those of files.

use std::process::ExitCode;

use clap::Parser;
use millrace_worker::{Args, Error, launcher, on_signals, run, telemetry};

#[derive(Parser)]
#[command(name = "millrace-worker", version)]
struct Command {
    #[command(flatten)]
    args: Args,
}

fn main() -> ExitCode {
    if let Some(code) = launcher() {
        return code;
    }
    let Command { args } = Command::parse();
    match work(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("millrace-worker: {error}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn work(args: Args) -> Result<(), Error> {
    telemetry::init("info");
    run(args.into_config().await?, on_signals()?).await
}
