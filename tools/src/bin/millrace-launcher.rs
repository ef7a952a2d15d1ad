//! The launcher of `execute` and nothing else, for programs whose own `main` does not call it.

use std::process::ExitCode;

fn main() -> ExitCode {
    millrace_tools::execute::launcher().unwrap_or_else(|| {
        eprintln!("millrace-launcher: started by the tool `execute`, not by hand");
        ExitCode::from(2)
    })
}
