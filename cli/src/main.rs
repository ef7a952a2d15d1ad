//! The `millrace` command.

mod doctor;
mod folders;
mod local;
mod nats_server;

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(name = "millrace", version)]
enum Command {
    /// Say what a run needs, what of it is there, and what to do about the rest
    Doctor(doctor::Arguments),
}

fn main() -> ExitCode {
    if let Some(code) = local::intercept(std::env::args_os()) {
        return code;
    }
    match run(Command::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("millrace: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match command {
        Command::Doctor(arguments) => runtime.block_on(doctor::run(arguments)),
    }
}
