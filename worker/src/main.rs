//! The `millrace-worker` program: a worker with the built-in capabilities and those of files.

use std::process::ExitCode;

use clap::Parser;
use millrace_worker::{Args, Error, block_on, launcher, on_signals, run, telemetry};

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
    match block_on(work(args)) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => stop(&error, code(&error)),
        Err(error) => stop(&error, 4),
    }
}

fn stop(error: &dyn std::fmt::Display, code: u8) -> ExitCode {
    eprintln!("millrace-worker: {error}");
    ExitCode::from(code)
}

/// The exit code, as of `millrace worker`: 2 where the command line is wrong, 4 where something that is needed is not there.
fn code(error: &Error) -> u8 {
    match error {
        Error::Model(_) | Error::NoModel(_) | Error::Capability(_) => 2,
        Error::Fault(_) | Error::Host(_) | Error::Http(_) | Error::Signals(_) => 4,
    }
}

async fn work(args: Args) -> Result<(), Error> {
    telemetry::init("info");
    run(args.into_config().await?, on_signals()?).await
}
