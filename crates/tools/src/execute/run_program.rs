//! Runs a confined program with arguments and input, for callers that need its outcome rather than text for a model.

use std::io;
use std::time::Duration;

use super::ExecuteTool;
use super::launch_message::ExceededLimit;
use super::running_command::CommandEnd;
use super::tool::MAX_COMMAND;

/// The input file in the working folder; it exists while the program runs.
const INPUT_FILE: &str = "input";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramOutcome {
    /// Its exit code as in shells: 128 plus the signal number if a signal ended it. `None` if it was killed because of the
    /// timeout.
    pub code: Option<i32>,
    /// Its standard output and error, at most [`super::MAX_OUTPUT`] bytes, head and tail.
    pub output: String,
}

impl ExecuteTool {
    /// Runs a program in the tool's working folder. The input is a file in this folder, so programs that run concurrently
    /// on the same tool would share it.
    ///
    /// # Errors
    /// The command is too long, or the launcher fails. A missing program ends with exit code 127, one that is not
    /// executable with 126.
    pub async fn run_program(
        &self,
        argv: &[String],
        input: &[u8],
        limit: Duration,
    ) -> Result<ProgramOutcome, String> {
        let command = shell_command(argv)?;
        let path = self.work_folder().join(INPUT_FILE);
        tokio::fs::write(&path, input).await.map_err(|error| {
            format!("cannot write the program's input to the file {}: {error}", path.display())
        })?;
        let ended = self.run_command_to_end(command, limit).await;
        match tokio::fs::remove_file(&path).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(format!("cannot remove the program's input file {}: {error}", path.display()));
            }
            Ok(()) | Err(_) => {}
        }
        let (end, output) = ended?;
        match end {
            CommandEnd::Exited { code, exceeded: None, .. } => {
                Ok(ProgramOutcome { code: Some(code), output })
            }
            CommandEnd::TimedOut(_) => Ok(ProgramOutcome { code: None, output }),
            CommandEnd::Exited { code, exceeded: Some(limit), .. } => {
                let reason = self.exceeded_text(limit);
                match limit {
                    ExceededLimit::Processes | ExceededLimit::Memory | ExceededLimit::Disk => {
                        let output = format!("{output}\nkilled: {reason}").trim_start().to_owned();
                        Ok(ProgramOutcome { code: Some(code), output })
                    }
                    // Not the program's fault: a later attempt may succeed.
                    ExceededLimit::SharedMemory | ExceededLimit::SharedDisk | ExceededLimit::FullDisk => {
                        Err(format!("the program was killed: {reason}"))
                    }
                }
            }
        }
    }
}

/// Converts a program with arguments to a shell command that replaces the shell by the program.
fn shell_command(argv: &[String]) -> Result<String, String> {
    let quoted: Vec<String> = argv.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect();
    let command = format!("exec {} < {INPUT_FILE}", quoted.join(" "));
    if command.len() > MAX_COMMAND || command.contains('\0') {
        return Err(format!("a program with its arguments may have at most {MAX_COMMAND} bytes and no NUL"));
    }
    Ok(command)
}
