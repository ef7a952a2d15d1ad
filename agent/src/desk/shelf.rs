//! The tools that agents can name. It owns the list of those that need nothing but what lies on the desk; those that
//! reach out of the process are brought by whoever hosts the agent, and those that work on a plan by the planner's turn.

use std::sync::Arc;

use crate::corpus::Corpus;
use crate::files::Files;
use crate::files::permissions::Rules;
use crate::spec::{Shelf, ToolEntry};
use crate::tool::files::file_tools;
use crate::tool::{
    Consultants, Results, Tool, append_note, consult, get_task_result, list_completed_tasks, now,
    read_document, read_notes, search_documents, think, write_todos,
};

/// The tools of this crate, by name. A file that names one gets it where there is something to use it on: documents,
/// results, files, other capabilities, a plan.
pub const NAMES: [&str; 26] = [
    "add_task",
    "add_tasks",
    "append_note",
    "cancel_task",
    "consult",
    "delete",
    "edit_file",
    "finish",
    "get_task_result",
    "glob",
    "grep",
    "list_completed_tasks",
    "ls",
    "mark_final",
    "now",
    "patch_task",
    "read_document",
    "read_file",
    "read_notes",
    "retry_task",
    "search_documents",
    "set_status",
    "think",
    "view_qa_report",
    "write_file",
    "write_todos",
];

/// What tools work on.
#[derive(Clone, Default)]
pub struct Bench {
    /// The documents of the run.
    pub corpus: Option<Arc<Corpus>>,
    /// The results that the task builds on.
    pub results: Option<Arc<dyn Results>>,
    /// The run's files, and what may be done with them.
    pub files: Option<(Arc<dyn Files>, Rules)>,
    /// Whom to ask.
    pub consultants: Option<Arc<dyn Consultants>>,
}

/// The shelf with nothing but these tools.
#[derive(Debug, Clone, Copy, Default)]
pub struct Inner;

impl Shelf for Inner {
    fn names(&self) -> Vec<&str> {
        NAMES.to_vec()
    }

    fn has_settings(&self, _: &str) -> bool {
        false
    }
}

impl Bench {
    /// The tools of a list that are of this crate and have something to work on.
    #[must_use]
    pub fn tools(&self, entries: &[ToolEntry]) -> Vec<Arc<dyn Tool>> {
        let files = self.files.as_ref().map(|(files, rules)| file_tools(files.clone(), rules.clone()));
        let files = files.unwrap_or_default();
        let named = |name: &str| files.iter().find(|tool| tool.spec().name == name).cloned();
        entries.iter().filter_map(|entry| self.tool(&entry.name).or_else(|| named(&entry.name))).collect()
    }

    fn tool(&self, name: &str) -> Option<Arc<dyn Tool>> {
        let corpus = self.corpus.as_ref().filter(|corpus| !corpus.documents().is_empty());
        let results = self.results.as_ref();
        match name {
            "append_note" => Some(append_note()),
            "consult" => self.consultants.clone().map(|others| consult(others, results.cloned())),
            "get_task_result" => results.cloned().map(get_task_result),
            "list_completed_tasks" => results.cloned().map(list_completed_tasks),
            "now" => Some(now()),
            "read_document" => corpus.cloned().map(read_document),
            "read_notes" => Some(read_notes()),
            "search_documents" => corpus.cloned().map(search_documents),
            "think" => Some(think()),
            "write_todos" => Some(write_todos()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_forms::Place;

    use super::*;
    use crate::corpus::File;

    fn entries() -> Vec<ToolEntry> {
        let place = Place { line: 1, column: 1 };
        NAMES.iter().map(|name| ToolEntry { name: (*name).into(), place, settings: None }).collect()
    }

    #[test]
    fn only_tools_that_have_something_to_work_on_are_given() {
        let names = |bench: &Bench| -> Vec<String> {
            bench.tools(&entries()).iter().map(|tool| tool.spec().name).collect()
        };
        assert_eq!(names(&Bench::default()), ["append_note", "now", "read_notes", "think", "write_todos"]);
        let file = File { path: "a.txt".into(), bytes: b"text".to_vec() };
        let corpus = Some(Arc::new(Corpus::open(vec![file], None).unwrap()));
        let with = names(&Bench { corpus, ..Bench::default() });
        assert!(with.contains(&"read_document".into()) && with.contains(&"search_documents".into()));
    }

    #[test]
    fn every_tool_of_a_planner_can_be_named() {
        assert!(crate::planner::TOOLS.iter().all(|name| NAMES.contains(name)));
        assert!(NAMES.is_sorted());
    }
}
