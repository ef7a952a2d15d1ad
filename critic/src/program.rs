//! Programs as checks: each is given the result as JSON on its standard input, and stands for itself by how it ends. It
//! owns what they may do, which is what commands of agents may: read the system's programs and the folders that the
//! critic was given, and nothing else; no network, no other processes, and a folder of their own that is gone with them.

use std::path::PathBuf;
use std::time::Duration;

use millrace_protocol::result::{ErrorKind, TaskError, TaskResult};
use millrace_tools::execute::{Ended, Execute, Launcher, Settings};

/// How long a program may take, unless its check says another time.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The most characters of what it says that are kept: its last ones.
const MAX_SAID: usize = 2_000;
/// The exit codes of what could not be started.
const NOT_STARTED: [i32; 2] = [126, 127];

/// What starts the programs of checks.
pub(crate) struct Programs {
    /// What confines them; `None` runs none.
    pub launcher: Option<Launcher>,
    /// What they may read besides the system's programs.
    pub folders: Vec<PathBuf>,
}

impl Programs {
    /// What a program finds wrong with a result; nothing if it ends with 0.
    ///
    /// # Errors
    /// It can't be run here, which says nothing of the result.
    pub async fn faults(
        &self,
        command: &[String],
        timeout_s: Option<u32>,
        result: &TaskResult,
    ) -> Result<Vec<String>, TaskError> {
        let limit = timeout_s.map_or(TIMEOUT, |seconds| Duration::from_secs(seconds.into()));
        let input = serde_json::to_vec(result).expect("a result holds only texts, numbers and JSON values");
        let tool = self.open().await.map_err(|why| cannot(command, &why))?;
        let ended = tool.program(command, &input, limit).await.map_err(|why| cannot(command, &why))?;
        judged(command, &ended, limit)
    }

    /// One for each program, so that none finds what another left.
    async fn open(&self) -> Result<Execute, String> {
        let launcher = self.launcher.clone().ok_or(
            "this program can't confine commands; let its main begin with millrace_tools::execute::launcher()",
        )?;
        let settings = Settings { read: self.folders.clone(), ..Settings::default() };
        Execute::open(settings, launcher).await.map_err(|error| error.to_string())
    }
}

fn judged(command: &[String], ended: &Ended, limit: Duration) -> Result<Vec<String>, TaskError> {
    let said = last(ended.said.trim());
    Ok(match ended.code {
        Some(0) => Vec::new(),
        Some(code) if NOT_STARTED.contains(&code) => {
            let why = format!(
                "it ended with exit code {code}: {said}. It can run the system's programs and read what --check-folder \
                 names"
            );
            return Err(cannot(command, &why));
        }
        Some(code) if said.is_empty() => vec![format!("It ended with exit code {code} and said nothing.")],
        Some(code) => vec![format!("{said} (exit code {code})")],
        None => vec![format!("It did not end within {} s. {said}", limit.as_secs()).trim_end().to_owned()],
    })
}

fn cannot(command: &[String], why: &str) -> TaskError {
    let program = command.first().map_or("", String::as_str);
    let message = format!("the check by the program {program:?} can't be made on this machine: {why}");
    TaskError::new(ErrorKind::Tool, message)
}

fn last(text: &str) -> String {
    let over = text.chars().count().saturating_sub(MAX_SAID);
    let kept: String = text.chars().skip(over).collect();
    if over > 0 { format!("[… {over} characters left out …] {kept}") } else { kept }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_program_ends_says_what_is_wrong_with_the_result() {
        let command = ["lint".to_owned()];
        let of = |code, said: &str| judged(&command, &Ended { code, said: said.into() }, TIMEOUT);
        assert_eq!(of(Some(0), "all is well"), Ok(Vec::new()));
        assert_eq!(of(Some(3), " no title\n"), Ok(vec!["no title (exit code 3)".into()]));
        assert_eq!(of(Some(1), "\n"), Ok(vec!["It ended with exit code 1 and said nothing.".into()]));
        assert_eq!(of(None, ""), Ok(vec!["It did not end within 60 s.".into()]));
        assert_eq!(of(None, "begun"), Ok(vec!["It did not end within 60 s. begun".into()]));
        let error = of(Some(127), "lint: not found").unwrap_err();
        assert!(error.kind.is_retryable() && error.message.contains("lint: not found"), "{error}");
        let long = of(Some(1), &format!("{}end", "x".repeat(3_000))).unwrap().remove(0);
        assert!(long.starts_with("[… 1003 characters left out …]") && long.ends_with("end (exit code 1)"));
    }
}
