//! `millrace memories`: lists, shows, downloads or removes the memories of a cluster, the files that agents keep across runs.

use clap::Args;
use millrace_agent::files::{FilePath, WriteCondition};
use millrace_runtime::Bus;
use millrace_runtime::store::workspace::{FileAuthor, FileWriteError, RunWorkspace};

use super::files::{FileArguments, file_not_found_error, list_or_show_files};
use crate::exit::{CommandExit, CommandResult};
use crate::json::{CommandOutcome, print_json};
use crate::target::ReadConnection;

const EXAMPLES: &str = "\
Agents whose capability file has the field `memory` read and write these files below /memories. Every version is kept, with the
task and run that wrote it.

Examples:
  millrace memories                              list all memories
  millrace memories team/style.md                show one
  millrace memories team/style.md --list         list its versions
  millrace memories team/style.md --remove       remove it; agents no longer see it";

const COMMAND: &str = "memories";
const AUTHOR: &str = "millrace memories";

/// The arguments of `millrace memories`.
#[derive(Args, Debug)]
#[command(disable_version_flag = true, after_help = EXAMPLES)]
pub struct MemoriesArguments {
    #[command(flatten)]
    files: FileArguments,
    /// Remove the file; its versions stay readable with --version
    #[arg(long, requires = "path", conflicts_with_all = ["version", "list", "output"])]
    remove: bool,
}

/// Lists, shows, downloads or removes memories.
pub async fn run_command(arguments: MemoriesArguments) -> CommandResult {
    let MemoriesArguments { files, remove } = arguments;
    let reading = ReadConnection::open_for_reading(files.target()).await?;
    let act = async |bus: &Bus| {
        let memories = RunWorkspace::of_memories(bus);
        match files.parse_path()?.filter(|_| remove) {
            Some(path) => remove_memory(&memories, &path, files.is_json()).await,
            None => list_or_show_files(&memories, COMMAND, &files).await,
        }
    };
    reading.read_and_close(act).await
}

async fn remove_memory(memories: &RunWorkspace, path: &FilePath, json: bool) -> CommandResult {
    let Some(file) = memories.read_file(path).await? else {
        return Err(file_not_found_error(memories, COMMAND, path).await?);
    };
    let version = file.entry.version;
    let key = format!("{AUTHOR}/{path}/{version}");
    let author = FileAuthor { author: AUTHOR, key: &key };
    match memories.delete_file(path, WriteCondition::Version(version), author).await {
        Ok(version) => {
            if json {
                print_json(&CommandOutcome::MemoryRemoved { path: path.as_str(), version });
            } else {
                note!("removed {path} (version {version})");
            }
            Ok(CommandExit::Completed)
        }
        Err(FileWriteError::Fault(fault)) => Err(fault.into()),
        Err(
            changed @ (FileWriteError::Stale { .. }
            | FileWriteError::TooLarge { .. }
            | FileWriteError::Clash { .. }),
        ) => Err(refused!("{path} was not removed: {changed}; try again")),
    }
}
