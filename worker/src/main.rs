//! The `millrace-worker` program: a worker with the built-in capabilities and those of capability files.

use std::process::ExitCode;

use clap::Parser;
use millrace_runtime::program::parse_arguments;
use millrace_worker::{Args, run_as_launcher, run_program, run_worker_from_args};

/// The allocator: an agent's step takes a third less CPU time with it than with the allocator of the C library, and static
/// programs do not get a slow one.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A Millrace worker.
#[derive(Parser)]
#[command(name = "millrace-worker", version)]
struct WorkerCommand {
    #[command(flatten)]
    args: Args,
}

fn main() -> ExitCode {
    run_as_launcher().unwrap_or_else(|| {
        let WorkerCommand { args } = parse_arguments();
        run_program("millrace-worker", |shutdown| run_worker_from_args(args, shutdown))
    })
}
