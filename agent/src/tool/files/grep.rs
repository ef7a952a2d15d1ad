//! `grep`: where a text stands in the files.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::session::{Session, refused};
use super::{Call, FileTool, Tool, ToolError, show};
use crate::files::{Content, FilePath, FilesError};

/// The most matches of one search.
const MAX_MATCHES: usize = 1_000;
/// The most characters of one search's result.
const MAX_CHARS: usize = 60_000;
/// The most characters of a line that are shown.
const MAX_LINE: usize = 500;
/// How long one search takes at most.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many files are read at once.
const READS: usize = 8;
/// The longest text that is looked for, in characters.
const MAX_PATTERN: usize = 1_000;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GrepArguments {
    /// The text to look for, as it stands; it is no regular expression.
    #[schemars(length(min = 1))]
    pattern: String,
    /// The folder or file to look in; all of the workspace if left out.
    path: Option<String>,
    /// Which files, as a pattern for their paths, such as **/*.md.
    glob: Option<String>,
    /// What is shown; files_with_matches if left out.
    #[serde(default)]
    output_mode: OutputMode,
    /// The most matches (or files), 1 to 1000.
    #[schemars(range(min = 1, max = 1000))]
    max_count: Option<u32>,
    /// Whether capitals count as small letters.
    #[serde(default)]
    ignore_case: bool,
}

/// What is shown of the matches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum OutputMode {
    /// The paths of the files.
    #[default]
    FilesWithMatches,
    /// The lines, with their numbers, below the path of each file.
    Content,
    /// The number of lines of each file.
    Count,
}

/// `grep{pattern, path?, glob?, output_mode?, max_count?, ignore_case?}`.
pub(super) fn grep(session: &Arc<Session>) -> Arc<dyn Tool> {
    let description = "Finds the lines of the workspace's files in which a text stands, word for word. Shows the files, the \
                       lines, or how many there are.";
    Arc::new(FileTool::new("grep", description, session, run))
}

/// The lines of one file in which the text stands.
struct Matches {
    path: FilePath,
    lines: Vec<(usize, String)>,
}

/// What came of looking through the files.
#[derive(Default)]
struct Search {
    found: Vec<Matches>,
    /// How many lines were found.
    count: usize,
    looked: usize,
    binary: usize,
    unreadable: Vec<String>,
    stopped: Option<&'static str>,
}

fn run<'a>(
    session: &'a Session,
    arguments: GrepArguments,
    _: &'a Call,
) -> BoxFuture<'a, Result<String, ToolError>> {
    async move {
        check(&arguments)?;
        let search = search(session, &arguments).await?;
        Ok(show_found(&search, &arguments))
    }
    .boxed()
}

fn check(arguments: &GrepArguments) -> Result<(), ToolError> {
    if arguments.pattern.chars().count() > MAX_PATTERN {
        return Err(refused(format!("Error: the pattern is longer than {MAX_PATTERN} characters")));
    }
    if arguments.pattern.contains('\n') {
        return Err(refused(
            "Error: the pattern has a line end, and lines are searched one by one; look for a part of one line",
        ));
    }
    Ok(())
}

async fn search(session: &Session, arguments: &GrepArguments) -> Result<Search, ToolError> {
    let folder = Session::folder(arguments.path.as_deref())?;
    let mut paths: Vec<FilePath> = session.list(&folder).await?.into_iter().map(|entry| entry.path).collect();
    if paths.is_empty() && folder != "/" {
        let path = session.path(&folder, crate::files::permissions::Operation::Read)?;
        paths.push(session.find(&path).await?.entry.path);
    } else if let Some(glob) = &arguments.glob {
        let fits = super::find::pattern(glob, &folder)?;
        paths.retain(fits);
    }
    let (started, most) = (Instant::now(), most(arguments));
    let mut search = Search::default();
    // Boxed one by one: the compiler can't see that a stream of closures over borrowed paths may be sent.
    let reads: Vec<_> = paths.iter().map(|path| session.files.read(path)).collect();
    let mut reads = futures::stream::iter(reads).buffered(READS).zip(futures::stream::iter(&paths));
    while let Some((read, path)) = reads.next().await {
        search.look(path, read, arguments)?;
        let enough = match arguments.output_mode {
            OutputMode::FilesWithMatches | OutputMode::Count => search.found.len() >= most,
            OutputMode::Content => search.count >= most,
        };
        if enough {
            search.stopped = Some("there may be more matches: this is as many as were asked for");
            break;
        }
        if started.elapsed() > PATIENCE {
            search.stopped = Some("it took too long: not all files were looked at; name a folder or a glob");
            break;
        }
    }
    Ok(search)
}

fn most(arguments: &GrepArguments) -> usize {
    arguments.max_count.map_or(MAX_MATCHES, |most| most as usize).clamp(1, MAX_MATCHES)
}

impl Search {
    fn look(
        &mut self,
        path: &FilePath,
        read: Result<Option<Content>, FilesError>,
        arguments: &GrepArguments,
    ) -> Result<(), ToolError> {
        let content = match read {
            Ok(Some(content)) => content,
            // Gone meanwhile.
            Ok(None) => return Ok(()),
            Err(FilesError::Unavailable(why)) => return Err(ToolError::Unavailable(why)),
            Err(
                error @ (FilesError::Stale { .. }
                | FilesError::Denied(_)
                | FilesError::TooLarge { .. }
                | FilesError::Broken(_)),
            ) => {
                self.unreadable.push(error.to_string());
                return Ok(());
            }
        };
        self.looked += 1;
        let Some(text) = show::text(&content.bytes) else {
            self.binary += 1;
            return Ok(());
        };
        let lines = lines(text, arguments);
        if !lines.is_empty() {
            self.count += lines.len();
            self.found.push(Matches { path: path.clone(), lines });
        }
        Ok(())
    }
}

fn lines(text: &str, arguments: &GrepArguments) -> Vec<(usize, String)> {
    let folded = arguments.pattern.to_lowercase();
    let fits = |line: &str| {
        if arguments.ignore_case {
            line.to_lowercase().contains(&folded)
        } else {
            line.contains(&arguments.pattern)
        }
    };
    let found = text.lines().enumerate().filter(|(_, line)| fits(line));
    let most = match arguments.output_mode {
        OutputMode::Content => most(arguments),
        OutputMode::FilesWithMatches => 1,
        OutputMode::Count => usize::MAX,
    };
    found.take(most).map(|(at, line)| (at + 1, cut(line))).collect()
}

fn cut(line: &str) -> String {
    let cut: String = line.chars().take(MAX_LINE).collect();
    if cut.len() < line.len() { cut + "…" } else { cut }
}

fn show_found(search: &Search, arguments: &GrepArguments) -> String {
    let mut text = String::new();
    let mut left = most(arguments);
    for Matches { path, lines } in &search.found {
        if text.len() > MAX_CHARS {
            text += "[cut here: the result is too long; look for something rarer, or in fewer files]\n";
            break;
        }
        match arguments.output_mode {
            OutputMode::FilesWithMatches => writeln!(text, "{path}"),
            OutputMode::Count => writeln!(text, "{path}: {}", lines.len()),
            OutputMode::Content => {
                let shown = lines.len().min(left);
                left -= shown;
                let lines = lines[..shown].iter().map(|(number, line)| format!("  {number}: {line}\n"));
                writeln!(text, "{path}:\n{}", lines.collect::<String>().trim_end_matches('\n'))
            }
        }
        .expect("a string takes what is written to it");
    }
    if search.found.is_empty() {
        let files = show::count(search.looked as u64, "file");
        text =
            format!("No matches found for '{}' in {files}{}\n", arguments.pattern, hint(&arguments.pattern));
    }
    text + &notes(search)
}

/// What is said of a text that looks like a regular expression and stands nowhere.
fn hint(pattern: &str) -> &'static str {
    let marks = [".*", ".+", "\\d", "\\w", "\\s", "\\b", "\\.", "[^", "(?", "|", "[a-z", "[0-9"];
    let anchored = pattern.starts_with('^') || pattern.ends_with('$');
    if anchored || marks.iter().any(|mark| pattern.contains(mark)) {
        ". The pattern is looked for as it stands and is no regular expression: look for a plain piece of the text, \
         one call for each alternative"
    } else {
        ""
    }
}

fn notes(search: &Search) -> String {
    let mut notes = Vec::new();
    if search.binary > 0 {
        notes.push(format!("{} with no text passed over", show::count(search.binary as u64, "file")));
    }
    if let Some(first) = search.unreadable.first() {
        let files = show::count(search.unreadable.len() as u64, "file");
        notes.push(format!("{files} could not be read: {first}"));
    }
    notes.extend(search.stopped.map(str::to_owned));
    notes.iter().map(|note| format!("[{note}]\n")).collect()
}
