//! `millrace verify`: verifies the statements of a text with documents.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use millrace_agent::corpus::Corpus;
use millrace_agent::verification::verify_text;
use millrace_protocol::result::{StatementVerdict, VerifiedStatement};
use millrace_protocol::safe_text::single_line;
use millrace_verification::VerificationCounts;

use crate::documents::DocumentFiles;
use crate::exit::{CommandError, CommandExit, CommandResult};
use crate::json::{VerificationJson, print_json};
use crate::verifier::open_verifier;
use crate::view::{print_stderr_line, print_stdout_line};

/// The largest text in bytes.
const MAX_TEXT: u64 = 16 << 20;

const EXAMPLES: &str = "\
Each sentence, list item and table row is a statement. Its marks are those of Millrace's reports, links or footnotes to \
documents; a statement without marks is compared with all documents. Code tells quotations and invented figures; a model \
judges the rest.

Exit codes: 0 all statements are supported; 1 a statement is contradicted or not supported; 2 the file or the arguments are \
invalid; 3 a statement is supported in part, or has no judgement; 4 the model can't be used.

Examples:
  millrace verify report.md --docs handbook/
  millrace verify README.md --docs . --model verifier=ollama:bespoke-minicheck --json
  millrace run \"…\" --docs handbook/ | millrace verify - --docs handbook/ --model verifier=none";

/// The arguments of `millrace verify`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct VerifyArguments {
    /// Text to verify, as Markdown; `-` reads standard input
    file: PathBuf,
    /// Document, folder, pattern or URL that the statements are compared with; may be given several times
    #[arg(long, value_name = "PATH", required = true)]
    docs: Vec<String>,
    /// Model that judges the statements, as provider:model; verifier=none asks no model [default: the model that the
    /// environment suggests]
    #[arg(long, value_name = "[verifier=]MODEL")]
    model: Option<String>,
    /// Print the verdicts as JSON
    #[arg(long)]
    json: bool,
}

pub async fn run_command(arguments: VerifyArguments) -> CommandResult {
    let text = read_text(&arguments.file)?;
    let model = arguments.model.as_deref().map(|model| if model == "none" { "verifier=none" } else { model });
    let verifier = open_verifier(&model.map(str::to_owned).into_iter().collect::<Vec<_>>(), None)?;
    let documents = DocumentFiles::collect(&arguments.docs).await?;
    if !arguments.json {
        documents.summary_lines(false).iter().for_each(|line| print_stderr_line(line));
    }
    let corpus = read_corpus(documents)?;
    let verified = verify_text(&text, &corpus, verifier.as_ref()).await;
    let verified = verified.map_err(CommandError::unusable_environment)?;
    let counts = VerificationCounts::of(&verified.statements);
    if arguments.json {
        print_json(&VerificationJson::new(&verified, &counts));
    } else {
        let name = arguments.file.display().to_string();
        let unverified = verified.statements.iter().filter(|one| one.verdict != StatementVerdict::Supported);
        let line_ends: Vec<usize> =
            text.chars().enumerate().filter(|(_, c)| *c == '\n').map(|(at, _)| at).collect();
        unverified.for_each(|one| print_stdout_line(&single_line(&format_verdict(&name, &line_ends, one))));
        print_stdout_line(&single_line(&counts.to_string()));
    }
    Ok(match (counts.contradicted + counts.unsupported, counts.partly + counts.unverified) {
        (0, 0) => CommandExit::Completed,
        (0, _) => CommandExit::Partial,
        _ => CommandExit::Failed,
    })
}

/// One line about a statement: its line in the file, the verdict, its words and the reason.
fn format_verdict(name: &str, line_ends: &[usize], one: &VerifiedStatement) -> String {
    let line = line_ends.partition_point(|end| *end < one.start as usize) + 1;
    format!("{name}:{line}: {}: “{}” {}", one.outcome(), one.text, one.reason)
}

fn read_text(file: &Path) -> Result<String, CommandError> {
    let shown =
        if file.as_os_str() == "-" { "standard input".to_owned() } else { file.display().to_string() };
    let unreadable = |error: std::io::Error| refused!("cannot read {shown}: {error}");
    let mut bytes = Vec::new();
    match file.as_os_str() == "-" {
        true => std::io::stdin().take(MAX_TEXT + 1).read_to_end(&mut bytes).map_err(unreadable)?,
        false => std::fs::File::open(file)
            .and_then(|opened| opened.take(MAX_TEXT + 1).read_to_end(&mut bytes))
            .map_err(unreadable)?,
    };
    if bytes.len() as u64 > MAX_TEXT {
        let most = MAX_TEXT >> 20;
        return Err(refused!("{shown} is larger than {most} MiB; verify it in parts"));
    }
    let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    text.ok_or_else(|| {
        refused!("{shown} is no text in UTF-8; `millrace verify` reads Markdown and plain text")
    })
}

fn read_corpus(documents: DocumentFiles) -> Result<Corpus, CommandError> {
    let files = documents.files.into_iter().filter_map(|file| file.read_file().ok()).collect();
    Corpus::build_or_load(files, None).map_err(CommandError::unusable_environment)
}
