//! The critic, whose role is not a capability file's to change: what it is asked, what it is told and what it works
//! with. It runs nothing and knows no model in particular.

use std::sync::Arc;

use millrace_protocol::ids::TaskId;
use millrace_protocol::result::{TaskResult, Verdict};
use serde::{Deserialize, Serialize};

use crate::corpus::Corpus;
use crate::roles::{DocumentList, MAX_OUTPUT_TOKENS, question};
use crate::tool::{Tool, Toolbox, read_document, search_documents, think};
use crate::turn::{Answer, Brief, Limits};

/// The name of a verdict's schema. A model can tell a review by it.
pub const VERDICT: &str = "verdict";
/// What a critic does, for people.
pub const CRITIC_DESCRIPTION: &str = "Judges the result of one task against its criteria and its sources.";

/// What a critic is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReviewTask {
    /// The task whose result is judged.
    pub task_id: TaskId,
    /// What it was to do.
    pub objective: String,
    /// What the user wants of the whole run.
    pub run_objective: String,
    /// The capability that did it.
    pub capability: String,
    /// The plan's criteria; those of the role come on top.
    #[serde(default)]
    pub criteria: Vec<String>,
    /// The documents of the run.
    #[serde(default)]
    pub documents: DocumentList,
    /// The result.
    pub result: TaskResult,
}

/// How far a critic may go: it reads every quotation.
const CRITIC_LIMITS: Limits = Limits { tool_calls: 400, ..Limits::DEFAULT };

/// The tools of a critic, as far as there is something to use them on.
#[must_use]
pub fn tools(corpus: Option<&Arc<Corpus>>) -> Toolbox {
    let corpus = corpus.filter(|corpus| !corpus.documents().is_empty());
    let documents = corpus.into_iter().flat_map(|corpus| -> [Arc<dyn Tool>; 2] {
        [search_documents(corpus.clone()), read_document(corpus.clone())]
    });
    Toolbox::new(documents.chain([think()])).expect("the built-in tools have names of their own")
}

/// What a critic is told.
#[must_use]
pub fn brief(task: &ReviewTask, toolbox: &Toolbox) -> Brief {
    Brief {
        system: CRITIC.to_owned(),
        task: question(task, ""),
        tools: toolbox.specs(),
        answer: Verdict::schema(VERDICT),
        limits: CRITIC_LIMITS,
        max_output_tokens: MAX_OUTPUT_TOKENS,
    }
}

const CRITIC: &str = "\
You judge the result of one task. You are not its author and you do not mend it.
- Check each criterion of the task, and these always: the result is not empty; every citation in the output names a \
listed source, every source is a document that can be read and is cited; every quotation stands word for word at its lines \
(white space folded; read the document); what the objective asks about is covered, or the result says plainly that \
the documents are silent.
- Give each criterion with its outcome, and for one that is not met what is missing.
- passed is true exactly if all criteria are met.
- If it does not pass, say in the feedback what the next attempt must do differently.";
