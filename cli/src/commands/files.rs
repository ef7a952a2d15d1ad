//! `millrace files`: the files of a run, whether it is under way or over: listed, shown, fetched.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::Args;
use millrace_agent::files::{Expected, FilePath, Files, Folder, nearest};
use millrace_protocol::ids::RunId;
use millrace_runtime::Bus;
use millrace_runtime::workspace::{Entry, File, Workspace};

use crate::client::{Reading, Target, find};
use crate::exit::{Exit, Stop};
use crate::view::{emit, say};

/// The arguments of `millrace files`.
#[derive(Args, Debug)]
#[command(disable_version_flag = true)]
pub struct Arguments {
    /// The run, the beginning of its id, or `latest`
    run: String,
    /// A file, which is shown, or a folder, whose files are listed
    path: Option<String>,
    /// Show this version of the file [default: the last]
    #[arg(long, value_name = "N", requires = "path")]
    version: Option<u64>,
    /// List the versions of the file rather than show it
    #[arg(long, requires = "path", conflicts_with_all = ["version", "output"])]
    list: bool,
    /// Write the file to this place, or all files of a folder or the run into this folder
    #[arg(long, short, value_name = "FILE|DIR")]
    output: Option<PathBuf>,
    /// Print a JSON object for each file
    #[arg(long, conflicts_with = "output")]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Lists, shows or fetches files.
pub async fn command(arguments: Arguments) -> Result<Exit, Stop> {
    let reading = Reading::open(&arguments.target).await?;
    reading.with(async |bus| files(bus, &arguments).await).await
}

async fn files(bus: &Bus, arguments: &Arguments) -> Result<Exit, Stop> {
    let run = find(bus, &arguments.run).await?;
    let workspace = Workspace::new(bus, &run);
    let path = match arguments.path.as_deref().map(|path| path.trim_end_matches('/')) {
        None | Some("" | ".") => None,
        Some(path) => Some(path.parse::<FilePath>().map_err(Stop::refused)?),
    };
    let Some(path) = path else {
        return folder(&workspace, &run, None, arguments).await;
    };
    if arguments.list {
        return versions(&workspace, &run, &path, arguments).await;
    }
    let found = match arguments.version {
        None => workspace.read(&path).await?,
        Some(version) => workspace.read_version(&path, version).await?,
    };
    match found {
        Some(file) => show(&file, arguments).await,
        None if arguments.version.is_none() => folder(&workspace, &run, Some(&path), arguments).await,
        None => Err(no_version(&workspace, &run, &path, arguments.version.unwrap_or_default()).await?),
    }
}

/// Lists a folder, or fetches all that is in it.
async fn folder(
    workspace: &Workspace,
    run: &RunId,
    folder: Option<&FilePath>,
    arguments: &Arguments,
) -> Result<Exit, Stop> {
    let entries = workspace.list(folder).await?;
    if let (true, Some(path)) = (entries.is_empty(), folder) {
        return Err(not_found(workspace, run, path).await?);
    }
    if entries.is_empty() {
        say(&format!("millrace: run {run} has no files"));
    }
    match &arguments.output {
        Some(output) => fetch_all(workspace, &entries, folder, output).await?,
        None => print(&entries, arguments.json),
    }
    Ok(Exit::Completed)
}

async fn versions(
    workspace: &Workspace,
    run: &RunId,
    path: &FilePath,
    arguments: &Arguments,
) -> Result<Exit, Stop> {
    let entries = workspace.versions(path).await?;
    if entries.is_empty() {
        return Err(not_found(workspace, run, path).await?);
    }
    print(&entries, arguments.json);
    Ok(Exit::Completed)
}

fn print(entries: &[Entry], json: bool) {
    let widest = |width: fn(&Entry) -> usize| entries.iter().map(width).max().unwrap_or(0);
    let path = widest(|entry| entry.path.as_str().chars().count()).min(60);
    let author = widest(|entry| entry.author.chars().count()).min(30);
    for entry in entries {
        if json {
            emit(&described(entry));
            continue;
        }
        let size = if entry.is_deletion { "deleted".into() } else { entry.size.to_string() };
        let when = entry.time.strftime("%Y-%m-%d %H:%M:%S");
        // A closed output has seen enough.
        let _ = writeln!(
            std::io::stdout(),
            "{:path$}  {size:>10}  {:>4}  {:author$}  {when}",
            entry.path,
            format!("v{}", entry.version),
            entry.author
        );
    }
}

fn described(entry: &Entry) -> serde_json::Value {
    serde_json::json!({
        "path": entry.path,
        "size": entry.size,
        "version": entry.version,
        "author": entry.author,
        "time": entry.time.to_string(),
        "deleted": entry.is_deletion,
    })
}

/// Shows a file, or writes it where it is wanted.
async fn show(file: &File, arguments: &Arguments) -> Result<Exit, Stop> {
    if let Some(output) = &arguments.output {
        write(file, output)?;
        return Ok(Exit::Completed);
    }
    let text = std::str::from_utf8(&file.bytes).ok();
    if arguments.json {
        let mut described = described(&file.entry);
        described["text"] = serde_json::json!(text);
        emit(&described);
        return Ok(Exit::Completed);
    }
    if text.is_none() && std::io::stdout().is_terminal() {
        return Err(Stop::refused(anyhow!(
            "{} is no text ({} bytes); write it to a file with --output",
            file.entry.path,
            file.entry.size
        )));
    }
    let _ = std::io::stdout().write_all(&file.bytes);
    Ok(Exit::Completed)
}

/// Writes a file to a place, or under its own name into a folder that is there.
fn write(file: &File, output: &Path) -> Result<(), Stop> {
    let name = file.entry.path.parts().last().unwrap_or_default();
    let place = if output.is_dir() { output.join(name) } else { output.to_owned() };
    let cannot = |error| Stop::environment(anyhow!("{} can't be written: {error}", place.display()));
    std::fs::write(&place, &file.bytes).map_err(cannot)?;
    say(&format!("millrace: wrote {} ({} bytes)", place.display(), file.bytes.len()));
    Ok(())
}

/// Writes all files into a folder, with the folders that they are in.
async fn fetch_all(
    workspace: &Workspace,
    entries: &[Entry],
    folder: Option<&FilePath>,
    output: &Path,
) -> Result<(), Stop> {
    let cannot = |error| Stop::environment(anyhow!("{} can't be written: {error}", output.display()));
    std::fs::create_dir_all(output).map_err(cannot)?;
    // It follows no links, so that nothing is written elsewhere.
    let place = Folder::open(output).map_err(cannot)?;
    let above = folder.map_or(0, |folder| folder.as_str().len());
    let mut count = 0;
    for entry in entries {
        // Deleted meanwhile.
        let Some(file) = workspace.read(&entry.path).await? else { continue };
        let below: FilePath = entry.path.as_str()[above..].parse().map_err(Stop::refused)?;
        place.write(&below, file.bytes, Expected::Anything, "").await.map_err(Stop::environment)?;
        count += 1;
    }
    say(&format!("millrace: wrote {count} files into {}", output.display()));
    Ok(())
}

/// What is said where there is no such file, with those that may be meant.
async fn not_found(workspace: &Workspace, run: &RunId, path: &FilePath) -> Result<Stop, Stop> {
    let versions = workspace.versions(path).await?;
    if let Some(deleted) = versions.last() {
        return Ok(Stop::refused(anyhow!(
            "{path} of run {run} was deleted by {} with version {}; --version shows an earlier one",
            deleted.author,
            deleted.version
        )));
    }
    let entries = workspace.list(None).await?;
    let near = nearest(path.as_str(), entries.iter().map(|entry| entry.path.as_str()));
    let hint = match near.as_slice() {
        [] => format!("`millrace files {run}` lists those that there are"),
        near => format!("did you mean {}?", near.join(" or ")),
    };
    Ok(Stop::refused(anyhow!("run {run} has no file {path}; {hint}")))
}

async fn no_version(workspace: &Workspace, run: &RunId, path: &FilePath, version: u64) -> Result<Stop, Stop> {
    let versions = workspace.versions(path).await?;
    let Some(last) = versions.last() else {
        return not_found(workspace, run, path).await;
    };
    if versions.iter().any(|entry| entry.version == version) {
        return Ok(Stop::refused(anyhow!("version {version} of {path} is its deletion: it has no content")));
    }
    let last = last.version;
    Ok(Stop::refused(anyhow!("{path} has no version {version}; it has 1 to {last}")))
}
