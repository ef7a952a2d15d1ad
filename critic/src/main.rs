//! The `millrace-critic` program.

use std::process::ExitCode;

use clap::Parser;
use millrace_critic::{Args, Error, launcher, on_signals, run, telemetry};

#[derive(Parser)]
#[command(name = "millrace-critic", version)]
struct Command {
    #[command(flatten)]
    args: Args,
}

fn main() -> ExitCode {
    if let Some(code) = launcher() {
        return code;
    }
    let Command { args } = Command::parse();
    match judge(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("millrace-critic: {error}");
            ExitCode::from(code(&error))
        }
    }
}

/// The exit code, as of `millrace critic`: 2 where the command line is wrong, 4 where something that is needed is not there.
fn code(error: &Error) -> u8 {
    match error {
        Error::Model(_) | Error::NoModel(_) => 2,
        Error::Fault(_) | Error::Host(_) | Error::Http(_) | Error::Signals(_) => 4,
    }
}

#[tokio::main]
async fn judge(args: Args) -> Result<(), Error> {
    telemetry::init("info");
    run(args.into_config()?, on_signals()?).await
}
