//! The documents of a run, as the command line names them: folders, files, patterns, URLs and standard input. Mistakes are
//! reported before a cluster starts, and unreadable files are listed with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

use futures::StreamExt;
use globset::GlobBuilder;
use millrace_agent::corpus::{ListedFile, MAX_BYTES, SUPPORTED, SkippedFile, list_folder_files};
use millrace_client::store_document_list;
use millrace_protocol::plan::{Document, DocumentSet};
use millrace_protocol::safe_text::single_line;
use millrace_runtime::{Bus, Fault};
use millrace_tools::web::{Download, FetchSettings, download};

use crate::exit::CommandError;

/// Number of unreadable files that an error lists.
const MAX_LISTED: usize = 10;
/// Number of kinds of skipped files that the summary names.
const MAX_KINDS: usize = 6;
/// Number of documents that are uploaded concurrently.
const UPLOADS: usize = 16;
const STANDARD_INPUT: &str = "-";

#[derive(Debug, Default)]
pub struct DocumentFiles {
    /// The submitted files, unreadable ones included: agents list these in their results.
    pub files: Vec<ListedFile>,
    /// The number of those that can be read.
    pub readable: usize,
    /// The files that can't be read, with the reason.
    pub skipped: Vec<SkippedFile>,
}

impl DocumentFiles {
    /// Finds the documents that arguments name, and checks which of them can be read.
    pub async fn collect(arguments: &[String]) -> Result<Self, CommandError> {
        let (mut files, mut skipped) = (Vec::new(), Vec::new());
        for argument in arguments {
            let (mut listed, mut unreadable) = list_argument(argument).await?;
            if let Some(prefix) = folder_prefix(argument).filter(|_| arguments.len() > 1) {
                listed.iter_mut().for_each(|file| file.path = format!("{prefix}/{}", file.path));
                unreadable.iter_mut().for_each(|file| file.path = format!("{prefix}/{}", file.path));
            }
            refuse_if_nothing_is_listed(argument, &listed, &unreadable)?;
            files.extend(listed);
            skipped.extend(unreadable);
        }
        refuse_same_paths(&files)?;
        let checked = files.clone();
        let found = tokio::task::spawn_blocking(move || find_unreadable_files(checked))
            .await
            .expect("checking files does not panic");
        let readable = files.len() - found.len();
        skipped.extend(found);
        Ok(Self { files, readable, skipped })
    }

    /// Returns the lines that tell which documents the run has; none if it has none.
    pub fn summary_lines(&self, is_verbose: bool) -> Vec<String> {
        let Self { readable, skipped, .. } = self;
        let all = readable + skipped.len();
        if all == 0 {
            return Vec::new();
        }
        let files = if all == 1 { "file" } else { "files" };
        if skipped.is_empty() {
            return vec![format!("documents: {readable} of {all} {files}")];
        }
        let kinds = summarize_kinds(skipped);
        let hint = if is_verbose { "" } else { "; --verbose lists them" };
        let mut lines = vec![format!(
            "documents: {readable} of {all} {files} ({} skipped: {kinds}{hint})",
            skipped.len()
        )];
        if is_verbose {
            let line = |file: &SkippedFile| format!("millrace: skipped {}: {}", file.path, file.reason);
            lines.extend(skipped.iter().map(|file| single_line(&line(file))));
        }
        lines
    }
}

/// Counts skipped files by their kind, most frequent first.
fn summarize_kinds(skipped: &[SkippedFile]) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for file in skipped {
        *counts.entry(single_line(&file.reason.summary(&file.path))).or_default() += 1;
    }
    let mut counts: Vec<(String, usize)> = counts.into_iter().collect();
    counts.sort_by(|(_, one), (_, other)| other.cmp(one));
    let others: usize = counts.iter().skip(MAX_KINDS).map(|(_, count)| count).sum();
    let mut named: Vec<String> =
        counts.iter().take(MAX_KINDS).map(|(kind, count)| format!("{count} {kind}")).collect();
    if others > 0 {
        named.push(format!("{others} others"));
    }
    named.join(", ")
}

/// Lists skipped files with the reason, one a line, the first ones only.
pub fn list_skipped_files(skipped: &[SkippedFile]) -> String {
    let mut lines: Vec<String> = skipped
        .iter()
        .take(MAX_LISTED)
        .map(|file| single_line(&format!("  {}: {}", file.path, file.reason)))
        .map(|line| format!("  {}", line.trim_start()))
        .collect();
    if skipped.len() > MAX_LISTED {
        lines.push(format!("  and {} more", skipped.len() - MAX_LISTED));
    }
    lines.join("\n")
}

/// Lists the files that one argument names.
async fn list_argument(argument: &str) -> Result<(Vec<ListedFile>, Vec<SkippedFile>), CommandError> {
    if argument == STANDARD_INPUT {
        return Ok((vec![read_standard_input()?], Vec::new()));
    }
    if argument.starts_with("http://") || argument.starts_with("https://") {
        let limit = usize::try_from(MAX_BYTES).unwrap_or(usize::MAX);
        let file = download(argument, FetchSettings::default(), limit).await;
        let file = file.map_err(CommandError::invalid_input)?;
        return Ok((vec![ListedFile::from_bytes(document_path_of_download(&file), file.bytes)], Vec::new()));
    }
    let path = Path::new(argument);
    if path.is_file() {
        return Ok(match ListedFile::open_single_file(path) {
            Ok(file) => (vec![file], Vec::new()),
            Err(skipped) => (Vec::new(), vec![skipped]),
        });
    }
    if !path.exists() && argument.contains(['*', '?', '[', '{']) {
        return list_matching_files(argument);
    }
    list_folder_files(path).map_err(CommandError::invalid_input)
}

fn read_standard_input() -> Result<ListedFile, CommandError> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(MAX_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| refused!("cannot read standard input: {error}"))?;
    if bytes.len() as u64 > MAX_BYTES {
        let most = MAX_BYTES / (1024 * 1024);
        return Err(refused!("standard input has more than {most} MiB"));
    }
    Ok(ListedFile::from_bytes("standard-input".into(), bytes))
}

/// The path under which a downloaded file is cited: its host and path.
fn document_path_of_download(file: &Download) -> String {
    let host = file.url.host_str().unwrap_or("web");
    let path = match file.url.path().trim_matches('/') {
        "" => "index",
        path => path,
    };
    let is_html = matches!(file.content_type.as_str(), "text/html" | "application/xhtml+xml");
    let has_ending = [".html", ".htm", ".xhtml"].iter().any(|ending| path.to_lowercase().ends_with(ending));
    let ending = if is_html && !has_ending { ".html" } else { "" };
    format!("{host}/{path}{ending}")
}

/// Lists the files that match a pattern, below the folder that it begins with.
fn list_matching_files(argument: &str) -> Result<(Vec<ListedFile>, Vec<SkippedFile>), CommandError> {
    let is_fixed = |part: &&str| !part.contains(['*', '?', '[', '{']);
    let parts: Vec<&str> = argument.split('/').collect();
    let fixed = parts.iter().take_while(|part| is_fixed(part)).count();
    let folder = match parts[..fixed].join("/") {
        root if root.is_empty() && argument.starts_with('/') => "/".to_owned(),
        current if current.is_empty() => ".".to_owned(),
        folder => folder,
    };
    let pattern = parts[fixed..].join("/");
    let matcher = GlobBuilder::new(&pattern).literal_separator(true).build();
    let matcher = matcher.map_err(|error| refused!("--docs {argument}: {error}"))?.compile_matcher();
    let (mut files, mut skipped) =
        list_folder_files(&PathBuf::from(folder)).map_err(CommandError::invalid_input)?;
    files.retain(|file| matcher.is_match(&file.path));
    skipped.retain(|file| matcher.is_match(&file.path));
    if files.is_empty() && skipped.is_empty() {
        return Err(refused!("no file matches --docs {argument}"));
    }
    Ok((files, skipped))
}

/// The name of a folder, by which its documents are told from those of others; `None` if the argument names none.
fn folder_prefix(argument: &str) -> Option<String> {
    let path = Path::new(argument);
    if !path.is_dir() {
        return None;
    }
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    Some(whole.file_name().map_or_else(|| "docs".into(), |name| name.to_string_lossy().into_owned()))
}

fn refuse_if_nothing_is_listed(
    argument: &str,
    files: &[ListedFile],
    skipped: &[SkippedFile],
) -> Result<(), CommandError> {
    if !files.is_empty() {
        return Ok(());
    }
    let reasons =
        if skipped.is_empty() { String::new() } else { format!("\n{}", list_skipped_files(skipped)) };
    Err(refused!("no readable documents in {argument}: {SUPPORTED} are supported{reasons}"))
}

fn refuse_same_paths(files: &[ListedFile]) -> Result<(), CommandError> {
    let mut paths = BTreeSet::new();
    match files.iter().find(|file| !paths.insert(file.path.as_str())) {
        None => Ok(()),
        Some(file) => Err(refused!(
            "two documents have the path {}: rename one of them, or its --docs folder",
            file.path
        )),
    }
}

/// Returns the files that can't be read, in order. They are checked concurrently.
fn find_unreadable_files(files: Vec<ListedFile>) -> Vec<SkippedFile> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = files.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let check = |files: &[ListedFile]| -> Vec<SkippedFile> {
            files.iter().filter_map(|file| file.check_readable().err()).collect()
        };
        let running: Vec<_> = files.chunks(share).map(|files| scope.spawn(move || check(files))).collect();
        let join =
            |thread: std::thread::ScopedJoinHandle<'_, Vec<SkippedFile>>| thread.join().unwrap_or_default();
        running.into_iter().flat_map(join).collect()
    })
}

/// Uploads files by content hash, and a manifest that lists them.
pub async fn upload_documents(bus: &Bus, files: Vec<ListedFile>) -> Result<DocumentSet, Fault> {
    store_document_list(bus, &upload_files(bus, files).await?).await
}

/// Uploads files by content hash. Each file is read just before its upload.
pub async fn upload_files(bus: &Bus, files: Vec<ListedFile>) -> Result<Vec<Document>, Fault> {
    let puts = futures::stream::iter(files).map(|listed| async move {
        let outcome =
            tokio::task::spawn_blocking(|| listed.read_file()).await.expect("reading a file does not panic");
        let file = match outcome {
            Ok(file) => file,
            Err(SkippedFile { path, reason }) => {
                note!("skipped {path}: {reason}");
                return Ok(None);
            }
        };
        let stored = bus.blobs().put_blob(&file.bytes).await?;
        Ok::<_, Fault>(Some(Document { path: file.path, sha256: stored.sha256, size: stored.size }))
    });
    let documents: Vec<Result<Option<Document>, Fault>> = puts.buffered(UPLOADS).collect().await;
    documents.into_iter().filter_map(Result::transpose).collect()
}
