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
            ExitCode::from(code(&error))
        }
    }
}

/// The exit code, as of `millrace worker`: 2 where the command line is wrong, 4 where something that is needed is not there.
fn code(error: &Error) -> u8 {
    match error {
        Error::Model(_) | Error::NoModel(_) | Error::Capability(_) => 2,
        Error::Fault(_) | Error::Host(_) | Error::Http(_) | Error::Signals(_) => 4,
    }
}

#[tokio::main]
async fn work(args: Args) -> Result<(), Error> {
    telemetry::init("info");
    run(args.into_config().await?, on_signals()?).await
}
