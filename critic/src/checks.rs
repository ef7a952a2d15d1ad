//! The checks of a review, in order. Each is a step of the review's journal, so that a critic that resumes the review
//! does not repeat them.
//!
//! Checks by programs. A program gets the result as JSON on standard input, and its exit code decides the check. Programs
//! run in the same sandbox as an agent's commands: they can read the system's programs and the configured folders, have
//! no network, see no other processes, and get a temporary folder that is deleted afterwards.

use std::path::PathBuf;
use std::time::Duration;

use millrace_agent::critic::checks::{
    InvalidCheckError, build_criterion_outcome, check_name, check_reads_documents, find_faults,
};
use millrace_agent::session::AgentHost;
use millrace_host::AttemptContext;
use millrace_protocol::plan::ReviewCheck;
use millrace_protocol::result::{CriterionOutcome, ErrorKind, TaskError, TaskResult};
use millrace_protocol::work::Order;
use millrace_tools::execute::{ExecuteSettings, ExecuteTool, Launcher, ProgramOutcome};

/// Runs all checks of an order.
///
/// # Errors
/// A check can't run, the documents can't be read, or the journal can't be written.
pub(crate) async fn run_checks(
    agents: &AgentHost,
    programs: &CheckProgramRunner,
    attempt: &mut AttemptContext,
    order: &Order,
    result: &TaskResult,
) -> Result<Vec<CriterionOutcome>, TaskError> {
    let checks = order.review_brief().map(|brief| brief.checks.as_slice()).unwrap_or_default();
    let corpus = match checks.iter().any(check_reads_documents) {
        false => None,
        true => {
            let sources = attempt.cluster_reader();
            let opened = agents.open_sources_of_result(order.documents.as_ref(), result, &sources).await;
            opened.map_err(|error| attempt.end_with_session_error(error))?
        }
    };
    let mut outcomes = Vec::with_capacity(checks.len());
    for (number, check) in checks.iter().enumerate() {
        let checked = async {
            let faults = match find_faults(check, result, corpus.as_deref()).map_err(invalid_check_error)? {
                Some(faults) => faults,
                None => run_check_program(programs, check, result).await?,
            };
            Ok(build_criterion_outcome(&check_name(check), faults))
        };
        outcomes.push(attempt.run_step_once(&format!("check.{number}"), checked).await?);
    }
    Ok(outcomes)
}

async fn run_check_program(
    programs: &CheckProgramRunner,
    check: &ReviewCheck,
    result: &TaskResult,
) -> Result<Vec<String>, TaskError> {
    match check {
        ReviewCheck::Command { command, timeout_s } => {
            programs.run_program_and_find_faults(command, *timeout_s, result).await
        }
        ReviewCheck::Citations
        | ReviewCheck::Quotations
        | ReviewCheck::Schema(_)
        | ReviewCheck::Matches(_)
        | ReviewCheck::MatchesNot(_) => Ok(Vec::new()),
    }
}

/// Not retryable: the check itself is invalid.
fn invalid_check_error(error: InvalidCheckError) -> TaskError {
    TaskError::new(ErrorKind::InvalidTask, error.to_string())
}

/// The default timeout of a check.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The most characters of a program's output that are kept: the last ones.
const MAX_OUTPUT: usize = 2_000;
/// The exit codes of programs that could not be started.
const NOT_STARTED: [i32; 2] = [126, 127];

/// Runs check programs.
pub(crate) struct CheckProgramRunner {
    /// The launcher that sandboxes them; without one no program can run.
    pub launcher: Option<Launcher>,
    /// The folders that they may read, in addition to the system's programs.
    pub folders: Vec<PathBuf>,
}

impl CheckProgramRunner {
    /// Runs a program and returns the faults it found in a result; none if it exits with 0.
    ///
    /// # Errors
    /// The program can't run on this machine, so the result was not checked.
    pub async fn run_program_and_find_faults(
        &self,
        command: &[String],
        timeout_s: Option<u32>,
        result: &TaskResult,
    ) -> Result<Vec<String>, TaskError> {
        let limit = timeout_s.map_or(TIMEOUT, |seconds| Duration::from_secs(seconds.into()));
        let input = serde_json::to_vec(result).expect("a result holds only texts, numbers and JSON values");
        let tool = self.open_execute_tool().await.map_err(|why| cannot_run_error(command, &why))?;
        let ended = tool
            .run_program(command, &input, limit)
            .await
            .map_err(|reason| cannot_run_error(command, &reason))?;
        find_exit_faults(command, &ended, limit)
    }

    /// Opens a sandbox for one program, so that programs can't read each other's files.
    async fn open_execute_tool(&self) -> Result<ExecuteTool, String> {
        let launcher = self.launcher.clone().ok_or(
            "this program can't sandbox commands; call millrace_tools::execute::launcher() first in its main",
        )?;
        let settings = ExecuteSettings { read: self.folders.clone(), ..ExecuteSettings::default() };
        ExecuteTool::open(settings, launcher).await.map_err(|error| error.to_string())
    }
}

fn find_exit_faults(
    command: &[String],
    ended: &ProgramOutcome,
    limit: Duration,
) -> Result<Vec<String>, TaskError> {
    let output = keep_last_characters(ended.output.trim());
    Ok(match ended.code {
        Some(0) => Vec::new(),
        Some(code) if NOT_STARTED.contains(&code) => {
            let why = format!(
                "it failed with exit code {code}: {output}. It can run the system's programs and read the folders of \
                 --check-folder"
            );
            return Err(cannot_run_error(command, &why));
        }
        Some(code) if output.is_empty() => vec![format!("It failed with exit code {code} and no output.")],
        Some(code) => vec![format!("{output} (exit code {code})")],
        None => vec![format!("It timed out after {} s. {output}", limit.as_secs()).trim_end().to_owned()],
    })
}

fn cannot_run_error(command: &[String], why: &str) -> TaskError {
    let program = command.first().map_or("", String::as_str);
    let message = format!("the check program {program:?} can't run on this machine: {why}");
    TaskError::new(ErrorKind::Tool, message)
}

fn keep_last_characters(text: &str) -> String {
    let over = text.chars().count().saturating_sub(MAX_OUTPUT);
    let end: String = text.chars().skip(over).collect();
    if over > 0 { format!("[… {over} characters left out …] {end}") } else { end }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_and_output_become_the_faults() {
        let command = ["lint".to_owned()];
        let faults = |code, output: &str| {
            find_exit_faults(&command, &ProgramOutcome { code, output: output.into() }, TIMEOUT)
        };
        assert_eq!(faults(Some(0), "all is well"), Ok(Vec::new()));
        assert_eq!(faults(Some(3), " no title\n"), Ok(vec!["no title (exit code 3)".into()]));
        assert_eq!(faults(Some(1), "\n"), Ok(vec!["It failed with exit code 1 and no output.".into()]));
        assert_eq!(faults(None, ""), Ok(vec!["It timed out after 60 s.".into()]));
        assert_eq!(faults(None, "begun"), Ok(vec!["It timed out after 60 s. begun".into()]));
        let error = faults(Some(127), "lint: not found").unwrap_err();
        assert!(error.kind.is_retryable() && error.message.contains("lint: not found"), "{error}");
        let long = faults(Some(1), &format!("{}end", "x".repeat(3_000))).unwrap().remove(0);
        assert!(long.starts_with("[… 1003 characters left out …]") && long.ends_with("end (exit code 1)"));
    }
}
