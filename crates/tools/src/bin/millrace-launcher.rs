//! The launcher of the tool `execute`, for programs whose own `main` does not call it.

use std::process::ExitCode;

fn main() -> ExitCode {
    millrace_tools::execute::launcher().unwrap_or_else(|| {
        eprintln!("millrace-launcher: for internal use by the tool `execute`");
        ExitCode::from(2)
    })
}
