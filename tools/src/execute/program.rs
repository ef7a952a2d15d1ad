//! A program with its arguments and its input, run like a command and confined like one, for those who want to know how it
//! ended rather than to show it to a model.

use std::io;
use std::time::Duration;

use super::Execute;
use super::tool::{End, MAX_COMMAND};

/// Where the input lies for as long as the program runs, in its folder.
const INPUT: &str = "input";

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Its exit code, as shells count: 128 and the signal's number, if one ended it. `None` if it was killed because its
    /// time was over.
    pub code: Option<i32>,
    /// What it said on its standard output and error, at most [`super::MAX_OUTPUT`] bytes, head and tail.
    pub said: String,
}

impl Execute {
    /// Runs a program. It works in the tool's folder, in which its input lies as a file too, so that a tool with which
    /// several programs are run at once has a folder that they share.
    ///
    /// # Errors
    /// It can't be run: what is to be run is too long, or the launcher fails. A program that is not there ends with 127,
    /// one that may not be run with 126.
    pub async fn program(&self, words: &[String], input: &[u8], limit: Duration) -> Result<Ended, String> {
        let command = command(words)?;
        let path = self.folder().join(INPUT);
        tokio::fs::write(&path, input)
            .await
            .map_err(|error| format!("its input can't be written: {error}"))?;
        let ended = self.finish(command, limit).await;
        match tokio::fs::remove_file(&path).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(format!("its input can't be removed: {error}"));
            }
            Ok(()) | Err(_) => {}
        }
        let (end, said) = ended?;
        let code = match end {
            End::Itself { code, .. } => Some(code),
            End::InTime(_) => None,
        };
        Ok(Ended { code, said })
    }
}

/// The words as a command of the shell, which is replaced by the program.
fn command(words: &[String]) -> Result<String, String> {
    let quoted: Vec<String> = words.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect();
    let command = format!("exec {} < {INPUT}", quoted.join(" "));
    if command.len() > MAX_COMMAND || command.contains('\0') {
        return Err(format!("a program and its arguments are at most {MAX_COMMAND} bytes without NUL"));
    }
    Ok(command)
}
