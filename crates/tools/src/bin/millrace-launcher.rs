//! The launcher of the tool `execute` and the extractor of documents, for programs whose own `main` calls neither.

use std::process::ExitCode;

fn main() -> ExitCode {
    let internal = millrace_tools::execute::launcher().or_else(millrace_documents::run_as_extractor);
    internal.unwrap_or_else(|| {
        eprintln!("millrace-launcher: for internal use by the tools `execute` and `fetch_url`");
        ExitCode::from(2)
    })
}
