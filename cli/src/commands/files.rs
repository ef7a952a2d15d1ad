//! `millrace files`: lists, shows or downloads the files of a run, whether it is in progress or has ended.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use bytes::Bytes;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::files::{
    ContentStream, FilePath, FilesError, FolderFiles, MAX_FILE, WriteCondition, find_nearest_names,
};
use millrace_runtime::Bus;
use millrace_runtime::store::workspace::{FileStream, FileVersionInfo, RunWorkspace};

use crate::exit::{CommandError, CommandExit, CommandResult};
use crate::invocation::command_hint;
use crate::json::{CommandOutcome, FileJson, print_json};
use crate::target::ClusterTarget;
use crate::view::{print_stdout_file, print_stdout_line};
use millrace_client::find_run;

const EXAMPLES: &str = "\
Examples:
  millrace files latest                          list all files
  millrace files latest notes/plan.md            show a file
  millrace files latest notes/plan.md --list     list its versions
  millrace files latest --output results         download all files";

/// The arguments of `millrace files`.
#[derive(Args, Debug)]
#[command(disable_version_flag = true, after_help = EXAMPLES)]
pub struct FilesArguments {
    /// Run id, a unique prefix of it, or `latest`
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    run: String,
    #[command(flatten)]
    files: FileArguments,
}

/// The arguments that select files of a run or of the memories.
#[derive(Args, Debug)]
pub struct FileArguments {
    /// A file to show, or a folder to list
    path: Option<String>,
    /// Show this version of the file [default: the newest]
    #[arg(long, value_name = "N", requires = "path")]
    version: Option<u64>,
    /// List the versions of the file instead of showing it
    #[arg(long, requires = "path", conflicts_with_all = ["version", "output"])]
    list: bool,
    /// Write the file to this path, or all files of the folder or run into this folder
    #[arg(long, short, value_name = "FILE|DIR")]
    output: Option<PathBuf>,
    /// Print a JSON object for each file
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Cluster")]
    target: ClusterTarget,
}

impl FileArguments {
    /// The file or folder; `None` for all.
    pub fn parse_path(&self) -> Result<Option<FilePath>, CommandError> {
        match self.path.as_deref().map(|path| path.trim_end_matches('/')) {
            None | Some("" | ".") => Ok(None),
            Some(path) => path.parse().map(Some).map_err(CommandError::invalid_input),
        }
    }

    pub fn target(&self) -> &ClusterTarget {
        &self.target
    }

    pub fn is_json(&self) -> bool {
        self.json
    }
}

/// Lists, shows or downloads files.
pub async fn run_command(arguments: FilesArguments) -> CommandResult {
    let FilesArguments { run, files } = arguments;
    let show = async |bus: &Bus| {
        let run = find_run(bus, &run).await?;
        list_or_show_files(&RunWorkspace::new(bus, &run), &format!("files {run}"), &files).await
    };
    files.target.read(show).await
}

/// Lists, shows or downloads files. `command` lists all of them.
pub async fn list_or_show_files(
    workspace: &RunWorkspace,
    command: &str,
    arguments: &FileArguments,
) -> CommandResult {
    let Some(path) = arguments.parse_path()? else {
        return list_folder(workspace, command, None, arguments).await;
    };
    if arguments.list {
        return list_versions(workspace, command, &path, arguments).await;
    }
    match workspace.open_file(&path, arguments.version).await? {
        Some(file) => show_file(file, arguments).await,
        None if arguments.version.is_none() => list_folder(workspace, command, Some(&path), arguments).await,
        None => {
            let version = arguments.version.unwrap_or_default();
            Err(version_not_found_error(workspace, command, &path, version).await?)
        }
    }
}

/// Lists a folder, or downloads all files in it.
async fn list_folder(
    workspace: &RunWorkspace,
    command: &str,
    folder: Option<&FilePath>,
    arguments: &FileArguments,
) -> CommandResult {
    let entries = workspace.list_files(folder).await?;
    if let (true, Some(path)) = (entries.is_empty(), folder) {
        return Err(file_not_found_error(workspace, command, path).await?);
    }
    if entries.is_empty() {
        note!("{} has no files", workspace.space());
    }
    match &arguments.output {
        Some(output) => download_all_files(workspace, &entries, folder, output, arguments.json).await?,
        None => print_file_entries(&entries, arguments.json),
    }
    Ok(CommandExit::Completed)
}

async fn list_versions(
    workspace: &RunWorkspace,
    command: &str,
    path: &FilePath,
    arguments: &FileArguments,
) -> CommandResult {
    let entries = workspace.list_versions(path).await?;
    if entries.is_empty() {
        return Err(file_not_found_error(workspace, command, path).await?);
    }
    print_file_entries(&entries, arguments.json);
    Ok(CommandExit::Completed)
}

fn print_file_entries(entries: &[FileVersionInfo], json: bool) {
    let widest = |width: fn(&FileVersionInfo) -> usize| entries.iter().map(width).max().unwrap_or(0);
    let path = widest(|entry| entry.path.as_str().chars().count()).min(60);
    let author = widest(|entry| entry.author.chars().count()).min(30);
    for entry in entries {
        if json {
            print_json(&FileJson::new(entry, None));
            continue;
        }
        let size = if entry.is_deletion { "deleted".into() } else { entry.size.to_string() };
        let when = entry.time.strftime("%Y-%m-%d %H:%M:%S");
        print_stdout_line(&format!(
            "{:path$}  {size:>10}  {:>4}  {:author$}  {when}",
            entry.path,
            format!("v{}", entry.version),
            entry.author
        ));
    }
}

/// Prints a file, or writes it to `--output`. Files that are larger than [`MAX_FILE`] are never in memory as a whole.
async fn show_file(mut file: FileStream, arguments: &FileArguments) -> CommandResult {
    if let Some(output) = &arguments.output {
        write_output_file(file, output, arguments.json).await?;
        return Ok(CommandExit::Completed);
    }
    let FileVersionInfo { path, size, .. } = file.entry.clone();
    if size > MAX_FILE && arguments.json {
        print_json(&FileJson::new(&file.entry, None));
        return Ok(CommandExit::Completed);
    }
    let is_terminal = std::io::stdout().is_terminal();
    if size > MAX_FILE && is_terminal {
        return Err(refused!("{path} is too large to show ({size} bytes); write it to a file with --output"));
    }
    if size > MAX_FILE {
        while let Some(part) = file.next_part().await? {
            print_stdout_file(&part);
        }
        return Ok(CommandExit::Completed);
    }
    let mut bytes = Vec::new();
    while let Some(part) = file.next_part().await? {
        bytes.extend_from_slice(&part);
    }
    let text = std::str::from_utf8(&bytes).ok();
    if arguments.json {
        print_json(&FileJson::new(&file.entry, text));
        return Ok(CommandExit::Completed);
    }
    if text.is_none() && is_terminal {
        return Err(refused!("{path} is no text ({size} bytes); write it to a file with --output"));
    }
    print_stdout_file(&bytes);
    Ok(CommandExit::Completed)
}

/// Writes a file to a path, or under its own name into an existing folder. What was written of a file that can't be read to
/// its end is removed.
async fn write_output_file(mut file: FileStream, output: &Path, json: bool) -> Result<(), CommandError> {
    let name = file.entry.path.parts().last().unwrap_or_default();
    let place = if output.is_dir() { output.join(name) } else { output.to_owned() };
    let cannot =
        |error| CommandError::unusable_environment(anyhow!("{} can't be written: {error}", place.display()));
    let mut target = std::fs::File::create(&place).map_err(cannot)?;
    let mut bytes = 0;
    let written: Result<(), CommandError> = async {
        while let Some(part) = file.next_part().await? {
            target.write_all(&part).map_err(cannot)?;
            bytes += part.len() as u64;
        }
        Ok(())
    }
    .await;
    if written.is_err() && place.metadata().is_ok_and(|metadata| metadata.is_file()) {
        let _ = std::fs::remove_file(&place);
    }
    written?;
    print_written(&place, 1, bytes, json);
    Ok(())
}

/// The content of a file of the workspace, for a local folder.
struct DownloadedContent(FileStream);

impl ContentStream for DownloadedContent {
    fn next_part(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, FilesError>> {
        async move { self.0.next_part().await.map_err(|fault| FilesError::Unavailable(fault.to_string())) }
            .boxed()
    }
}

fn print_written(path: &Path, files: u64, bytes: u64, json: bool) {
    let path = path.display();
    if json {
        print_json(&CommandOutcome::FilesWritten { path: path.to_string(), files, bytes });
    } else {
        let noun = if files == 1 { "file" } else { "files" };
        note!("wrote {path} ({files} {noun}, {bytes} bytes)");
    }
}

/// Writes all files into a folder, keeping their subfolders.
async fn download_all_files(
    workspace: &RunWorkspace,
    entries: &[FileVersionInfo],
    folder: Option<&FilePath>,
    output: &Path,
    json: bool,
) -> Result<(), CommandError> {
    let cannot =
        |error| CommandError::unusable_environment(anyhow!("{} can't be written: {error}", output.display()));
    std::fs::create_dir_all(output).map_err(cannot)?;
    // It follows no symbolic links, so nothing is written outside the folder.
    let target = FolderFiles::open(output).map_err(cannot)?;
    let above = folder.map_or(0, |folder| folder.as_str().len());
    let (mut count, mut bytes) = (0, 0);
    for entry in entries {
        // Deleted meanwhile.
        let Some(file) = workspace.open_file(&entry.path, None).await? else { continue };
        let below: FilePath = entry.path.as_str()[above..].parse().map_err(CommandError::invalid_input)?;
        let mut content = DownloadedContent(file);
        let (_, digest) = target
            .write_content(&below, &mut content, WriteCondition::Always)
            .await
            .map_err(CommandError::unusable_environment)?;
        bytes += digest.size;
        count += 1;
    }
    print_written(output, count, bytes, json);
    Ok(())
}

/// Returns the error for an unknown file, with similar names.
pub async fn file_not_found_error(
    workspace: &RunWorkspace,
    command: &str,
    path: &FilePath,
) -> Result<CommandError, CommandError> {
    let versions = workspace.list_versions(path).await?;
    if let Some(deleted) = versions.last() {
        return Ok(refused!(
            "{path} of {} was deleted by {} with version {}; --version shows an earlier one",
            workspace.space(),
            deleted.author,
            deleted.version
        ));
    }
    let entries = workspace.list_files(None).await?;
    let near = find_nearest_names(path.as_str(), entries.iter().map(|entry| entry.path.as_str()));
    let hint = match near.as_slice() {
        [] => format!("`{}` lists its files", command_hint(command)),
        near => format!("did you mean {}?", near.join(" or ")),
    };
    Ok(refused!("{} has no file {path}; {hint}", workspace.space()))
}

async fn version_not_found_error(
    workspace: &RunWorkspace,
    command: &str,
    path: &FilePath,
    version: u64,
) -> Result<CommandError, CommandError> {
    let versions = workspace.list_versions(path).await?;
    let Some(last) = versions.last() else {
        return file_not_found_error(workspace, command, path).await;
    };
    if versions.iter().any(|entry| entry.version == version) {
        return Ok(refused!("version {version} of {path} is a deletion and has no content"));
    }
    let last = last.version;
    Ok(refused!("{path} has no version {version}; it has versions 1 to {last}"))
}
