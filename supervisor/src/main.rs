//! A supervisor as a program of its own.

use std::process::ExitCode;

use clap::Parser;

/// A Millrace supervisor.
#[derive(Parser)]
#[command(name = "millrace-supervisor", version)]
struct Cli {
    #[command(flatten)]
    args: millrace_supervisor::Args,
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    millrace_runtime::telemetry::init("info");
    let result = match millrace_runtime::shutdown::on_signals() {
        Ok(shutdown) => millrace_supervisor::run(cli.args.into_config(), shutdown).await,
        Err(error) => {
            eprintln!("error: can't listen to signals: {error}");
            return ExitCode::from(4);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(4)
        }
    }
}
