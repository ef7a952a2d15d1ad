//! The built-in tools by name. Tools that reach outside of the process (`execute`, `fetch_url`, `web_search`, MCP) are
//! added by the host of the agent.

use std::sync::Arc;

use crate::corpus::Corpus;
use crate::corpus::pages::AttemptPages;
use crate::embeddings::AttemptEmbeddings;
use crate::files::Files;
use crate::files::permissions::CompiledPermissions;
use crate::spec::{ToolNames, ToolReference};
use crate::tool::files::create_file_tools;
use crate::tool::{
    ChildTasks, ConsultableCapabilities, ReadableDocuments, TaskResultSource, Tool, append_note_tool,
    ask_user_tool, cancel_child_tool, check_task_tool, compact_conversation_tool, consult_tool,
    continue_at_first_tool, get_task_result_tool, list_completed_tasks_tool, list_tasks_tool,
    message_task_tool, now_tool, read_document_tool, read_notes_tool, search_documents_tool, sleep_for_tool,
    sleep_until_tool, start_task_tool, task_tool, think_tool, wait_for_event_tool, wait_for_tool,
    write_todos_tool,
};

#[derive(Clone, Copy)]
enum ToolConstructor {
    /// By itself; `None` if the session has nothing for it to work on.
    Open(fn(&ToolContext) -> Option<Arc<dyn Tool>>),
    /// As part of a set that shares state: the file tools share the versions that the agent has read, the tools of a
    /// planner share the draft of the plan.
    Stateful,
}

use ToolConstructor::{Open, Stateful};

/// Every built-in tool: its name in capability files and its constructor. Sorted by name.
const TOOLS: [(&str, ToolConstructor); 38] = [
    ("add_task", Stateful),
    ("add_tasks", Stateful),
    ("append_note", Open(|_| Some(append_note_tool()))),
    ("ask_user", Open(|context| context.can_wait.then(ask_user_tool))),
    ("cancel_task", Open(|context| context.children.clone().map(cancel_child_tool))),
    ("check_task", Open(|context| context.children.clone().map(check_task_tool))),
    ("compact_conversation", Open(|context| context.can_wait.then(compact_conversation_tool))),
    ("consult", Open(|context| Some(consult_tool(context.consultants.clone()?, context.results.clone())))),
    ("continue_at_first", Open(|context| context.can_wait.then(continue_at_first_tool))),
    ("delete", Stateful),
    ("edit_file", Stateful),
    ("finish", Stateful),
    ("get_task_result", Open(|context| context.results.clone().map(get_task_result_tool))),
    ("glob", Stateful),
    ("grep", Stateful),
    ("list_completed_tasks", Open(|context| context.results.clone().map(list_completed_tasks_tool))),
    ("list_tasks", Open(|context| context.children.clone().map(list_tasks_tool))),
    ("ls", Stateful),
    ("mark_final", Stateful),
    ("message_task", Open(|context| context.children.clone().map(message_task_tool))),
    ("now", Open(|_| Some(now_tool()))),
    ("patch_task", Stateful),
    ("read_document", Open(|context| context.available_documents().map(read_document_tool))),
    ("read_file", Stateful),
    ("read_notes", Open(|_| Some(read_notes_tool()))),
    ("retry_task", Stateful),
    ("search_documents", Open(ToolContext::open_search)),
    ("set_status", Stateful),
    ("sleep_for", Open(|context| context.can_wait.then(sleep_for_tool))),
    ("sleep_until", Open(|context| context.can_wait.then(sleep_until_tool))),
    ("start_task", Open(|context| context.children.clone().map(start_task_tool))),
    ("task", Open(|context| context.children.clone().map(task_tool))),
    ("think", Open(|_| Some(think_tool()))),
    ("view_qa_report", Stateful),
    ("wait_for", Open(|context| context.children.clone().map(wait_for_tool))),
    ("wait_for_event", Open(|context| context.can_wait.then(wait_for_event_tool))),
    ("write_file", Stateful),
    ("write_todos", Open(|_| Some(write_todos_tool()))),
];

/// The tools that delegate tasks.
pub(super) const DELEGATION: [&str; 2] = ["start_task", "task"];

/// Returns the names of all built-in tools, sorted. A capability file may name any of them; an agent gets those that
/// have something to work on: documents, results, files, other capabilities, a plan.
pub fn list_built_in_tool_names() -> impl Iterator<Item = &'static str> {
    TOOLS.iter().map(|(name, _)| *name)
}

/// The data that the tools of a session work on.
#[derive(Clone, Default)]
pub struct ToolContext {
    /// The documents of the run.
    pub corpus: Option<Arc<Corpus>>,
    /// The web pages that the attempt reads; `None` if it reads none.
    pub pages: Option<Arc<AttemptPages>>,
    /// The search by meaning; `None` if documents are searched by words alone.
    pub embeddings: Option<Arc<AttemptEmbeddings>>,
    /// The results that the task depends on.
    pub results: Option<Arc<dyn TaskResultSource>>,
    /// The capabilities that can be consulted.
    pub consultants: Option<Arc<dyn ConsultableCapabilities>>,
    /// `true` if the work may be parked: an attempt at a task.
    pub can_wait: bool,
    /// The children of the attempt; `None` if it may not delegate.
    pub children: Option<Arc<ChildTasks>>,
    /// Open tools that share state with each other. They take precedence over tools of the same name.
    pub stateful: Vec<Arc<dyn Tool>>,
}

/// The catalogue of the built-in tools; none of them has settings.
#[derive(Debug, Clone, Copy, Default)]
pub struct BuiltInToolNames;

impl ToolNames for BuiltInToolNames {
    fn names(&self) -> Vec<&str> {
        list_built_in_tool_names().collect()
    }

    fn has_settings(&self, _: &str) -> bool {
        false
    }
}

impl ToolContext {
    /// Adds the tools over the run's files.
    #[must_use]
    pub fn with_files(mut self, files: Arc<dyn Files>, rules: CompiledPermissions) -> Self {
        self.stateful.extend(create_file_tools(files, rules));
        self
    }

    /// Opens the built-in tools among `entries` that have something to work on.
    pub fn open_tools(&self, entries: &[ToolReference]) -> Vec<Arc<dyn Tool>> {
        let constructor = |name: &str| TOOLS.iter().find(|(known, _)| *known == name);
        entries
            .iter()
            .filter_map(|entry| constructor(&entry.name))
            .filter_map(|(name, constructor)| self.open_tool(name, *constructor))
            .collect()
    }

    fn open_tool(&self, name: &str, constructor: ToolConstructor) -> Option<Arc<dyn Tool>> {
        let stateful = self.stateful.iter().find(|tool| tool.spec().name == name).cloned();
        match constructor {
            Open(open) => stateful.or_else(|| open(self)),
            Stateful => stateful,
        }
    }

    fn open_search(&self) -> Option<Arc<dyn Tool>> {
        Some(search_documents_tool(self.available_documents()?, self.embeddings.clone()))
    }

    fn available_documents(&self) -> Option<ReadableDocuments> {
        if let Some(pages) = &self.pages {
            return Some(ReadableDocuments::WithPages(pages.clone()));
        }
        let corpus = self.corpus.clone().filter(|corpus| !corpus.documents().is_empty());
        corpus.map(ReadableDocuments::OfRun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::InputFile;
    use crate::files::FolderFiles;

    fn open_tool_names(context: &ToolContext) -> Vec<String> {
        let entries: Vec<ToolReference> = list_built_in_tool_names().map(ToolReference::named).collect();
        context.open_tools(&entries).iter().map(|tool| tool.spec().name).collect()
    }

    #[test]
    fn only_tools_with_something_to_work_on_are_opened() {
        let always = ["append_note", "now", "read_notes", "think", "write_todos"];
        assert_eq!(open_tool_names(&ToolContext::default()), always);
        let file = InputFile { path: "a.txt".into(), bytes: b"text".to_vec() };
        let corpus = Some(Arc::new(Corpus::build_or_load(vec![file], None).unwrap()));
        let with_documents = open_tool_names(&ToolContext { corpus, ..ToolContext::default() });
        assert!(with_documents.contains(&"read_document".into()));
        assert!(with_documents.contains(&"search_documents".into()));
    }

    #[test]
    fn every_file_tool_can_be_named() {
        let folder = tempfile::tempdir().unwrap();
        let files = Arc::new(FolderFiles::open(folder.path()).unwrap());
        let context = ToolContext::default().with_files(files, CompiledPermissions::default());
        let names = open_tool_names(&context);
        assert!(context.stateful.iter().all(|tool| names.contains(&tool.spec().name)), "{names:?}");
        assert_eq!(context.stateful.len(), 7);
    }

    #[test]
    fn the_table_is_sorted_by_name_without_duplicates() {
        assert!(TOOLS.is_sorted_by(|(a, _), (b, _)| a < b));
    }
}
