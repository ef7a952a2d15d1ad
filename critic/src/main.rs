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
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn judge(args: Args) -> Result<(), Error> {
    telemetry::init("info");
    run(args.into_config()?, on_signals()?).await
}
