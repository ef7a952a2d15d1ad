//! The input of an evaluation: objectives of an evaluation file, questions of SQuAD files with their articles as documents, or
//! claims with their evidence.
//!
//! | file | |
//! |---|---|
//! | `file` | the evaluation file |
//! | `statement` | the facts that answers should state |
//! | `reading` | the text of files, and the names in them |
//! | `squad` | question files in the format of SQuAD |
//! | `claims` | claim files |

pub mod claims;
pub mod file;
mod reading;
pub mod squad;
pub mod statement;

use std::path::{Path, PathBuf};

use millrace_agent::corpus::{ListedFile, SkippedFile, list_folder_files};
use serde::Deserialize;
use serde::de::IgnoredAny;

use claims::{Claim, load_claims};
use file::{EntryName, EvaluationFile, load_evaluation_file};
pub use reading::ItemOrigin;
use reading::file_stem;
use squad::{QuestionTerms, load_questions};

use crate::exit::CommandError;

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

fn name_after(paths: &[PathBuf]) -> EntryName {
    let stems: Vec<String> = paths.iter().map(|path| file_stem(path)).collect();
    EntryName::from_any_text(&stems.join("-"))
}
