//! A program that does nothing but parse documents, for tests.

use std::process::ExitCode;

fn main() -> ExitCode {
    millrace_documents::run_as_extractor().unwrap_or(ExitCode::FAILURE)
}
