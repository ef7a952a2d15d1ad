//! The critic, whose role can't be changed by a capability file: its input, its instructions, its tools for reading
//! evidence, and how several opinions are combined. It runs nothing and depends on no particular model.
//!
//! ```text
//! checks   checks without a model       sheet   the message to a model
//! standing the criteria of every        panel   the combined verdict of
//!          result, checked by code              several models
//! form     the form of the answer and its validation
//! check    the checks of an answer, with the verdicts on the result's statements
//! ```
//!
//! # Invariants
//!
//! - I92: No model judges a property that code can check: a verdict follows from its criteria, and citations, quotations and
//!   repetitions are compared before a review.
//!   (`crates/agent/tests/judge.rs::whether_a_result_passes_is_computed_from_the_criteria`,
//!   `crates/agent/tests/judge.rs::code_checks_citations_and_repetitions_and_no_model_is_asked`)

mod check;
pub mod checks;
mod form;
mod panel;
mod sheet;
pub(crate) mod standing;

use std::sync::Arc;

use millrace_protocol::ids::TaskId;
use millrace_protocol::result::TaskResult;
use serde_json::json;

use crate::corpus::Corpus;
use crate::files::Files;
use crate::files::permissions::{
    CompiledPermissions, FileOperation, PermissionMode, PermissionRule, PermissionRules,
};
use crate::model::ModelAbility;
use crate::roles::{DocumentList, MAX_OUTPUT_TOKENS};
use crate::spec::Template;
use crate::tool::files::create_file_tools;
use crate::tool::{
    ReadableDocuments, TaskResultSource, Tool, Toolbox, get_task_result_tool, list_completed_tasks_tool,
    read_document_tool, search_documents_tool, think_tool,
};
use crate::turn::{AgentBrief, Limits};

pub use form::{CriterionJudgement, Judgement};

pub(crate) use check::{JudgementCheck, LateVerdicts};
pub(crate) use panel::{ModelVerdict, ReviewPanel};
pub(crate) use sheet::read_review_task;

/// The name of a verdict's schema, by which a model can recognise a review.
pub const VERDICT: &str = "verdict";
/// The description of the critic for people.
pub const CRITIC_DESCRIPTION: &str = "Judges the result of one task against its criteria and its sources.";

/// The most tokens of a small critic's reply: room for the longest verdict that its form allows.
const MAX_OUTPUT_TOKENS_SMALL: u32 = 1_500;
/// The limits of a critic: it reads every quotation.
const CRITIC_LIMITS: Limits = Limits { tool_calls: 400, ..Limits::DEFAULT };
/// The file tools that change nothing.
const READING: [&str; 3] = ["ls", "read_file", "grep"];

/// The input of a critic.
#[derive(Debug, Clone, PartialEq)]
pub struct ReviewTask {
    /// The task whose result is judged.
    pub task_id: TaskId,
    /// The objective of the task.
    pub objective: String,
    /// The objective of the whole run, in the user's words.
    pub run_objective: String,
    /// The capability that produced the result.
    pub capability: String,
    /// The requirements of the result, none of them empty; the role's own criteria apply in addition.
    pub criteria: Vec<String>,
    /// The documents of the run.
    pub documents: DocumentList,
    pub result: TaskResult,
    /// `true` if the output is not complete here.
    pub is_cut: bool,
    /// The number of this try at the review, from 1.
    pub review: u32,
}

/// The evidence that a critic can read, as far as there is any.
#[derive(Clone, Default)]
pub struct ReviewEvidence {
    /// The documents of the run.
    pub corpus: Option<Arc<Corpus>>,
    /// The result under review, and those that its task used.
    pub results: Option<Arc<dyn TaskResultSource>>,
    /// The files of the run.
    pub files: Option<Arc<dyn Files>>,
    /// `true` if the task used other results.
    pub has_inputs: bool,
    /// `true` if there are files.
    pub has_files: bool,
}

impl ReviewEvidence {
    /// The tools of a critic: those that have something to read. None of them changes anything, and none consults another
    /// agent, which might be the author of the result.
    ///
    /// A small model reads less: the documents only if the result quotes nothing, and nothing at all once a try at the
    /// review has given no verdict.
    pub fn open_tools(&self, task: &ReviewTask, ability: ModelAbility) -> Toolbox {
        if ability.is_small() && task.review > 1 {
            return Toolbox::default();
        }
        let reads_documents = !ability.is_small() || task.result.quotations.is_empty();
        let evidence = Self {
            corpus: self.corpus.clone().filter(|_| reads_documents),
            results: self.results.clone().filter(|_| self.has_inputs || is_output_cut(task)),
            files: self.files.clone().filter(|_| self.has_files),
            ..*self
        };
        let tools = evidence.list_tools();
        let think = (!tools.is_empty() && !ability.is_small()).then(think_tool);
        Toolbox::new(tools.into_iter().chain(think)).expect("the built-in tools have unique names")
    }

    fn list_tools(&self) -> Vec<Arc<dyn Tool>> {
        let corpus = self.corpus.as_ref().filter(|corpus| corpus.has_sources());
        let documents = corpus.into_iter().flat_map(|corpus| {
            let has_text = corpus.documents_and_pages().next().is_some();
            let documents = ReadableDocuments::OfRun(corpus.clone());
            let search = has_text.then(|| search_documents_tool(documents.clone(), None));
            search.into_iter().chain([read_document_tool(documents)])
        });
        let results = self.results.iter().flat_map(|results| -> [Arc<dyn Tool>; 2] {
            [list_completed_tasks_tool(results.clone()), get_task_result_tool(results.clone())]
        });
        let files = self.files.iter().flat_map(|files| read_only_tools(files.clone()));
        documents.chain(results).chain(files).collect()
    }
}

fn read_only_tools(files: Arc<dyn Files>) -> impl Iterator<Item = Arc<dyn Tool>> {
    let never = PermissionRule {
        operations: vec![FileOperation::Write],
        paths: vec!["/**".into()],
        mode: PermissionMode::Deny,
    };
    let rules = CompiledPermissions::compile(&PermissionRules(vec![never])).expect("the pattern is valid");
    create_file_tools(files, rules).into_iter().filter(|tool| READING.contains(&tool.spec().name.as_str()))
}

/// The brief of a critic for a conversation with a model of this ability.
#[must_use]
pub fn build_review_brief(task: &ReviewTask, toolbox: &Toolbox, ability: ModelAbility) -> AgentBrief {
    let can_read_documents = toolbox.get("read_document").is_some();
    let documents = if can_read_documents { task.documents.clone() } else { DocumentList::default() };
    AgentBrief {
        system: choose_instructions(ability, toolbox),
        task: sheet::render_review_task(&ReviewTask { documents, ..task.clone() }),
        tools: toolbox.specs(),
        answer: Some(form::judgement_schema(VERDICT, task.criteria.len(), ability)),
        limits: CRITIC_LIMITS,
        max_output_tokens: if ability.is_small() { MAX_OUTPUT_TOKENS_SMALL } else { MAX_OUTPUT_TOKENS },
        ability,
    }
}

fn choose_instructions(ability: ModelAbility, toolbox: &Toolbox) -> String {
    match ability {
        ModelAbility::Small => render_small_instructions(toolbox),
        ModelAbility::Strong => include_str!("../../prompts/critic.strong.md").to_owned(),
    }
}

/// With tools, the form of a reply is that of calls and answers, which the request describes.
fn render_small_instructions(toolbox: &Toolbox) -> String {
    let tools: Vec<String> = toolbox.specs().iter().map(|tool| tool.name.clone()).collect();
    let template = Template::new(include_str!("../../prompts/critic.small.md"));
    let rendered = template.and_then(|template| template.render_value(&json!({ "tools": tools })));
    rendered.expect("the built-in instructions have no mistakes and use only the tools")
}

fn is_output_cut(task: &ReviewTask) -> bool {
    task.is_cut || task.result.output.chars().count() > sheet::MAX_OUTPUT
}

#[cfg(test)]
mod tests {
    use millrace_protocol::result::Quotation;

    use super::*;
    use crate::corpus::InputFile;
    use crate::files::FolderFiles;
    use crate::tool::Effect;

    #[test]
    fn a_critic_cannot_change_anything_or_consult_others() {
        let file = InputFile { path: "a.txt".into(), bytes: b"text".to_vec() };
        let corpus = Some(Arc::new(Corpus::build_or_load(vec![file], None).unwrap()));
        let folder = tempfile::tempdir().unwrap();
        let files: Arc<dyn Files> = Arc::new(FolderFiles::open(folder.path()).unwrap());
        let evidence = ReviewEvidence { corpus, files: Some(files), has_files: true, ..Default::default() };
        let toolbox = evidence.open_tools(&review_task(), ModelAbility::Strong);
        let names: Vec<String> = toolbox.specs().iter().map(|spec| spec.name.clone()).collect();
        assert_eq!(names, ["grep", "ls", "read_document", "read_file", "search_documents", "think"]);
        for name in &names {
            assert_eq!(toolbox.get(name).unwrap().effect(), Effect::Pure, "{name}");
        }
    }

    fn review_task() -> ReviewTask {
        ReviewTask {
            task_id: TaskId::new("t").unwrap(),
            objective: "Find it.".into(),
            run_objective: "Find it.".into(),
            capability: "research".into(),
            criteria: vec!["It is short.".into()],
            documents: DocumentList::default(),
            result: TaskResult { output: "Found.".into(), ..TaskResult::default() },
            is_cut: false,
            review: 1,
        }
    }

    fn tool_names(evidence: &ReviewEvidence, task: &ReviewTask, ability: ModelAbility) -> Vec<String> {
        evidence.open_tools(task, ability).specs().iter().map(|spec| spec.name.clone()).collect()
    }

    #[test]
    fn a_critic_gets_tools_only_where_there_is_something_to_read() {
        let file = InputFile { path: "a.txt".into(), bytes: b"text".to_vec() };
        let corpus = Some(Arc::new(Corpus::build_or_load(vec![file], None).unwrap()));
        let folder = tempfile::tempdir().unwrap();
        let files: Option<Arc<dyn Files>> = Some(Arc::new(FolderFiles::open(folder.path()).unwrap()));
        let results: Option<Arc<dyn TaskResultSource>> =
            Some(Arc::new(crate::answers::NumberedResults::default()));
        let bare = ReviewEvidence { results, files, ..ReviewEvidence::default() };
        let (strong, small) = (ModelAbility::Strong, ModelAbility::Small);
        let task = review_task();
        assert_eq!(tool_names(&bare, &task, strong), Vec::<String>::new());
        let full = ReviewEvidence { corpus, has_inputs: true, has_files: true, ..bare };
        assert_eq!(tool_names(&full, &task, strong).len(), 8);
        assert_eq!(tool_names(&full, &task, small).len(), 7);
        let again = ReviewTask { review: 2, ..review_task() };
        assert_eq!(tool_names(&full, &again, small), Vec::<String>::new());
        let quotation =
            Quotation { source: "S1".into(), text: "text".into(), first_line: 1, last_line: 1, place: None };
        let quoting = TaskResult { quotations: vec![quotation], ..review_task().result };
        let quoting = ReviewTask { result: quoting, ..review_task() };
        assert!(!tool_names(&full, &quoting, small).contains(&"read_document".to_owned()));
    }

    #[test]
    fn small_critic_with_tools_gets_one_form_of_its_reply() {
        let file = InputFile { path: "a.txt".into(), bytes: b"text".to_vec() };
        let corpus = Some(Arc::new(Corpus::build_or_load(vec![file], None).unwrap()));
        let small = ModelAbility::Small;
        let system = |evidence: ReviewEvidence| {
            let toolbox = evidence.open_tools(&review_task(), small);
            (toolbox.specs().iter().count(), build_review_brief(&review_task(), &toolbox, small).system)
        };
        let (tools, with) = system(ReviewEvidence { corpus, ..ReviewEvidence::default() });
        assert!(tools > 0 && !with.contains("Answer with JSON"), "{with}");
        let (tools, without) = system(ReviewEvidence::default());
        assert!(tools == 0 && without.starts_with(with.trim_end()), "{without}");
        assert!(without.ends_with("\n\nAnswer with JSON: {\"C1\": {\"met\": true}, \"C2\": {\"gap\": \"…\", \"met\": false}, \"reasoning\": \"…\"}"));
    }

    #[test]
    fn another_try_at_a_review_has_another_prompt() {
        for ability in ModelAbility::ALL {
            let brief = |review| {
                let task = ReviewTask { review, ..review_task() };
                build_review_brief(&task, &ReviewEvidence::default().open_tools(&task, ability), ability).task
            };
            assert_ne!(brief(1), brief(2));
            assert_ne!(brief(2), brief(3));
        }
    }
}
