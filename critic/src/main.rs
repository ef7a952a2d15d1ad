//! The `millrace-critic` program.

use std::process::ExitCode;

use clap::Parser;
use millrace_critic::{Args, Error, on_signals, run, telemetry};

#[derive(Parser)]
#[command(name = "millrace-critic", version)]
struct Command {
    #[command(flatten)]
    args: Args,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Command { args } = Command::parse();
    telemetry::init("info");
    let judged: Result<(), Error> = async { run(args.into_config()?, on_signals()?).await }.await;
    match judged {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("millrace-critic: {error}");
            ExitCode::FAILURE
        }
    }
}
