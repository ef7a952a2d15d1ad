//! The input of an evaluation: objectives of an evaluation file, questions of SQuAD files with their articles as documents, or
//! claims with their evidence.
//!
//! | file | |
//! |---|---|
//! | `file` | the evaluation file |
//! | `statement` | the facts that answers should state |
//! | `squad` | question files in the format of SQuAD |
//! | `claims` | claim files |

pub mod claims;
pub mod file;
pub mod squad;
pub mod statement;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use millrace_agent::corpus::{ListedFile, SkippedFile, list_folder_files};
use serde::Deserialize;
use serde::de::IgnoredAny;

use claims::{Claim, load_claims};
use file::{EntryName, EvaluationFile, load_evaluation_file};
use squad::{QuestionTerms, load_questions};

use crate::exit::CommandError;

/// The maximum size of a question file or a claim file in bytes.
const MAX_BYTES: u64 = 256 << 20;

/// The input of an evaluation.
#[derive(Debug)]
pub enum EvaluationInput {
    Objectives(Box<ObjectiveInput>),
    Claims { name: EntryName, claims: Vec<Claim> },
}

/// Objectives with the files of their documents' folder.
#[derive(Debug)]
pub struct ObjectiveInput {
    pub file: EvaluationFile,
    pub documents: Vec<ListedFile>,
    pub skipped: Vec<SkippedFile>,
    /// `true` if the objectives are the questions of question files.
    pub has_questions: bool,
}

/// The place of an item in the files, by which a part of them is drawn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ItemOrigin {
    /// The name of its file among several; empty for a single file.
    pub file: String,
    /// Its id in the file.
    pub id: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileKind {
    Evaluation,
    Questions,
    Claims,
}

/// Reads the files of an evaluation: one evaluation file, or question files, or claim files. `has_web` is `true` if the command line
/// lets agents read the web.
pub fn load_input(
    paths: &[PathBuf],
    has_web: bool,
    terms: &QuestionTerms,
) -> Result<EvaluationInput, CommandError> {
    let kinds: Vec<FileKind> = paths.iter().map(|path| find_kind(path)).collect();
    match kinds.as_slice() {
        [FileKind::Evaluation] => {
            let file = load_evaluation_file(&paths[0], has_web).map_err(CommandError::invalid_input)?;
            let listed = file.documents.as_ref().map(|folder| list_folder_files(folder)).transpose();
            let (documents, skipped) = listed.map_err(CommandError::invalid_input)?.unwrap_or_default();
            let input = ObjectiveInput { file, documents, skipped, has_questions: false };
            Ok(EvaluationInput::Objectives(Box::new(input)))
        }
        kinds if kinds.iter().all(|kind| *kind == FileKind::Questions) => {
            let (objectives, documents) = load_questions(paths, terms)?;
            let file = EvaluationFile::of_objectives(name_after(paths), objectives);
            let skipped = Vec::new();
            let input = ObjectiveInput { file, documents, skipped, has_questions: true };
            Ok(EvaluationInput::Objectives(Box::new(input)))
        }
        kinds if kinds.iter().all(|kind| *kind == FileKind::Claims) => {
            Ok(EvaluationInput::Claims { name: name_after(paths), claims: load_claims(paths)? })
        }
        _ => Err(refused!(
            "only question files (.json) or claim files (.jsonl) can be evaluated together, not files of several kinds, and an \
             evaluation file (.yaml) alone"
        )),
    }
}

/// The kind of a file by its ending. A `.json` file is an evaluation file if it has objectives.
fn find_kind(path: &Path) -> FileKind {
    #[derive(Deserialize)]
    struct Beginning {
        objectives: Option<IgnoredAny>,
    }
    let has_objectives = || {
        let bytes = std::fs::read(path).unwrap_or_default();
        serde_json::from_slice::<Beginning>(&bytes).is_ok_and(|file| file.objectives.is_some())
    };
    match path.extension().and_then(|ending| ending.to_str()).map(str::to_lowercase).as_deref() {
        Some("jsonl" | "ndjson") => FileKind::Claims,
        Some("json") if !has_objectives() => FileKind::Questions,
        _ => FileKind::Evaluation,
    }
}

fn file_stem(path: &Path) -> String {
    path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

fn name_after(paths: &[PathBuf]) -> EntryName {
    let stems: Vec<String> = paths.iter().map(|path| file_stem(path)).collect();
    EntryName::from_any_text(&stems.join("-"))
}

/// The names of several files, by their stems; the name of a single file is empty.
fn file_names(paths: &[PathBuf]) -> Vec<String> {
    match paths {
        [_] => vec![String::new()],
        paths => {
            let mut used = BTreeSet::new();
            paths.iter().map(|path| unique_name(&file_stem(path), &mut used)).collect()
        }
    }
}

/// A name of an item or a document, after that of its file.
fn name_in_file(file: &str, separator: char, name: &str) -> String {
    if file.is_empty() { name.to_owned() } else { format!("{file}{separator}{name}") }
}

/// A name, with a number if it is used already.
fn unique_name(name: &str, used: &mut BTreeSet<String>) -> String {
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let free = std::iter::once(name.to_owned()).chain(numbered).find(|name| !used.contains(name));
    let free = free.expect("there is always another number");
    used.insert(free.clone());
    free
}

/// Reads a file as text.
fn read_input_text(path: &Path, content: &str) -> Result<String, CommandError> {
    let shown = path.display();
    let unreadable = |error: std::io::Error| refused!("cannot read {shown}: {error}");
    let size = std::fs::metadata(path).map_err(unreadable)?.len();
    if size > MAX_BYTES {
        return Err(refused!("{shown} is larger than {} MiB; split it", MAX_BYTES >> 20));
    }
    let bytes = std::fs::read(path).map_err(unreadable)?;
    let text = String::from_utf8(bytes).map_err(|_| refused!("{shown} is no text in UTF-8; convert it"))?;
    match text.trim().is_empty() {
        true => Err(refused!("{shown} is empty; it should have {content}")),
        false => Ok(text.trim_start_matches('\u{feff}').to_owned()),
    }
}

/// The message of a JSON error without its position.
fn json_message(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or(&text).to_owned()
}
