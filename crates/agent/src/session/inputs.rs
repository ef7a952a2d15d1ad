//! The inputs of one session: the run's documents, the results that the task depends on, and the further ones of the run's plan that
//! the agent's tools can list and read; and the part of them that goes into the first message. Small inputs are included in full, so
//! that a model that is weak at tool calls can do without them.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt};
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{Plan, Task};
use millrace_protocol::result::TaskResult;
use millrace_protocol::wire::InlineOrStoredBytes;
use millrace_protocol::work::{Assignment, InputResult, Order};

use super::environment::SessionError;
use super::host::DocumentCache;
use crate::answers::NumberedResults;
use crate::answers::labels::{ShownPassage, format_labelled_passages};

use crate::corpus::{Corpus, Document, SearchQuery};

use crate::files::{CompositeFiles, DocumentFiles, FilePath, Files};

use crate::material::{NOTICE, prefix_lines_with_bar};

use crate::model::ModelAbility;
use crate::roles::DocumentList;
use crate::sources::{OrderInputError, OrderInputs};

use crate::spec::{AgentSpec, AnswerForm, ResultScope};

use crate::tool::{ResultEntry, TaskResultSource, ToolError, find_passages};

use crate::turn::{CONVERSATION_STEP, ForkedConversation};

/// The number of results that are read concurrently.
const READS: usize = 16;
/// The most results that are included in the first message.
const MAX_SHOWN: usize = 12;
/// The most characters of all results in the first message.
const MAX_RESULTS: usize = 16_000;
/// The most characters of passages in the first message.
const MAX_PASSAGES: usize = 6_000;
/// The most passages in the first message.
const PASSAGES: usize = 5;
/// The most passages in the first message to a small model, which gets no tool to look for more.
const LABELLED_PASSAGES: usize = 6;
/// The least score of a passage for a small model, relative to the best one: others only distract it.
const MIN_RELATIVE_SCORE: f32 = 0.35;
/// The most characters of an objective that are searched for.
const MAX_QUERY: usize = 1_000;
/// The folder in an agent's files where the run's documents are mounted.
const DOCUMENTS: &str = "/documents";

/// The part of the inputs that goes into the first message.
pub(super) struct InputExcerpt {
    pub text: String,
    /// `true` if it has passages of documents.
    pub has_passages: bool,
    /// `true` if it has all results that the task depends on.
    pub has_all_results: bool,
}

/// Reads the conversation that a fork or a call of a shared agent continues; `None` if a new one begins.
pub(super) async fn read_continued_conversation(
    order: &Order,
    sources: &dyn OrderInputs,
) -> Result<Option<ForkedConversation>, OrderInputError> {
    let bytes = match order.fork.as_deref() {
        None => match order.shared.as_ref().and_then(|shared| shared.last_call.as_ref()) {
            None => return Ok(None),
            Some((task, attempt)) => {
                let step = sources.read_step(task, *attempt, CONVERSATION_STEP).await?;
                step.ok_or_else(|| missing_conversation_error(task, *attempt))?
            }
        },
        Some(InlineOrStoredBytes::Inline(bytes)) => bytes.to_vec(),
        Some(InlineOrStoredBytes::Stored(stored)) => sources.read_blob(&stored.sha256).await?,
    };
    let unreadable =
        |error| OrderInputError::Broken(format!("the conversation that it continues is unreadable: {error}"));
    serde_json::from_slice(&bytes).map(Some).map_err(unreadable)
}

/// A call is completed after its conversation is recorded, so a journal without it is read from a replica that lags.
fn missing_conversation_error(task: &TaskId, attempt: u32) -> OrderInputError {
    OrderInputError::Unavailable(format!(
        "the conversation that it continues, of attempt {attempt} at task {task}, is not in the log yet"
    ))
}

pub(super) struct SessionInputs {
    pub corpus: Option<Arc<Corpus>>,
    /// The vector of the objective, if the documents have vectors too.
    pub objective_vector: Option<Vec<f32>>,
    /// The results with one numbering of all their sources, for agents that write a report.
    pub numbered: Option<Arc<NumberedResults>>,
    /// The results that the first message includes.
    shown: Vec<(ResultEntry, TaskResult)>,
}

impl SessionInputs {
    /// Reads the inputs of an order.
    pub async fn read_inputs(
        documents: &DocumentCache,
        spec: &AgentSpec,
        order: &Order,
        sources: &dyn OrderInputs,
    ) -> Result<Self, SessionError> {
        let corpus = match &order.documents {
            None => None,
            Some(set) => Some(documents.open_corpus(set, sources).await?),
        };
        let is_report = spec.answer == AnswerForm::Report;
        let results = if is_report || order.inputs.len() <= MAX_SHOWN {
            read_results(&order.inputs, sources).await?
        } else {
            Vec::new()
        };
        if !is_report {
            return Ok(Self { corpus, objective_vector: None, numbered: None, shown: results });
        }
        let numbered = NumberedResults::new(results);
        let shown =
            if order.inputs.len() <= MAX_SHOWN { numbered.numbered_results().to_vec() } else { Vec::new() };
        Ok(Self { corpus, objective_vector: None, numbered: Some(Arc::new(numbered)), shown })
    }

    /// Returns the list of documents for prompts.
    pub fn document_list(&self) -> DocumentList {
        self.corpus.as_deref().map(DocumentList::from_corpus).unwrap_or_default()
    }

    /// Returns the results that the agent's tools read; `None` if the task has no inputs.
    pub fn open_results(
        &self,
        order: &Order,
        scope: ResultScope,
        sources: &Arc<dyn OrderInputs>,
    ) -> Option<Arc<dyn TaskResultSource>> {
        match &self.numbered {
            // The numbers of sources are those of the inputs: a report can cite no others.
            Some(numbered) => Some(numbered.clone()),
            None if order.inputs.is_empty() && scope == ResultScope::Dependencies => None,
            None => Some(Arc::new(InputResults::in_scope(order, scope, sources.clone()))),
        }
    }

    /// Mounts the run's documents into its files.
    pub fn mount_documents(&self, files: Arc<dyn Files>) -> Arc<dyn Files> {
        let Some(corpus) = &self.corpus else { return files };
        let folder = FilePath::new(DOCUMENTS).expect("a valid path");
        Arc::new(CompositeFiles::new(files).with_mount(folder, Arc::new(DocumentFiles::new(corpus.clone()))))
    }

    /// Returns the results that the task used and that were read.
    pub fn list_used_results(&self) -> Vec<(TaskId, TaskResult)> {
        self.shown.iter().map(|(entry, result)| (entry.task_id.clone(), result.clone())).collect()
    }

    /// Returns the part of the inputs that goes into the first message.
    pub fn format_excerpt(&self, order: &Order, form: AnswerForm, ability: ModelAbility) -> InputExcerpt {
        let mut text = String::new();
        let is_small = ability.is_small();
        let passages = match (form, is_small) {
            (AnswerForm::Findings, true) => self.find_labelled_passages(order),
            (AnswerForm::Findings, false) => self.find_document_passages(order),
            (AnswerForm::Report | AnswerForm::Text | AnswerForm::Data | AnswerForm::Plan, _) => None,
        };
        if let Some(passages) = &passages {
            let introduction = match is_small {
                true => "Passages.",
                false => {
                    "Passages that match words of the objective, as found by search_documents; each line starts with its \
                     number."
                }
            };
            write!(text, "\n{introduction} {NOTICE}\n\n{passages}").expect(TO_STRING);
        }
        let results = self.format_results();
        if !results.is_empty() {
            let introduction = match is_small {
                true => "Results.",
                false => "The results that your task depends on.",
            };
            // Once is enough for a small model.
            let notice = if is_small && passages.is_some() { "" } else { NOTICE };
            write!(text, "\n{introduction} {notice}\n{results}").expect(TO_STRING);
        }
        let has_all_results = self.shown.is_empty() || !results.is_empty();
        InputExcerpt { text, has_passages: passages.is_some(), has_all_results }
    }

    fn find_document_passages(&self, order: &Order) -> Option<String> {
        find_passages(self.readable_corpus()?, self.query(&order.objective), PASSAGES)
            .map(|text| prefix_lines_with_bar(&text, MAX_PASSAGES))
    }

    /// The documents as a whole if they are short, else the best passages, with labels.
    fn find_labelled_passages(&self, order: &Order) -> Option<String> {
        let corpus = self.readable_corpus()?;
        let size: usize = corpus.documents().iter().map(|document| document.text().len()).sum();
        let whole = |document| {
            let last_line = Document::line_count(document);
            ShownPassage { document, first_line: 1, last_line }
        };
        let passages: Vec<ShownPassage<'_>> = if size <= MAX_PASSAGES {
            corpus.documents().iter().filter(|document| document.image.is_none()).map(whole).collect()
        } else {
            let query: String = order.objective.replace('"', " ").chars().take(MAX_QUERY).collect();
            let hits = corpus.search(self.query(&query), LABELLED_PASSAGES, 3).hits;
            let least = hits.first().map_or(0.0, |best| best.score) * MIN_RELATIVE_SCORE;
            let hits = hits.into_iter().filter(|hit| hit.document.image.is_none());
            let shown = hits.filter(|hit| hit.score >= least).map(|hit| ShownPassage {
                document: hit.document,
                first_line: hit.first_line,
                last_line: hit.last_line,
            });
            shown.collect()
        };
        (!passages.is_empty()).then(|| format_labelled_passages(&passages, MAX_PASSAGES))
    }

    fn query<'q>(&'q self, text: &'q str) -> SearchQuery<'q> {
        SearchQuery { text, vector: self.objective_vector.as_deref() }
    }

    fn readable_corpus(&self) -> Option<&Corpus> {
        self.corpus.as_deref().filter(|corpus| !corpus.documents().is_empty())
    }

    fn format_results(&self) -> String {
        let one = |(entry, result): &(ResultEntry, TaskResult)| {
            let notes = result.notes.as_ref().map(|notes| format!("\n\nNotes: {notes}")).unwrap_or_default();
            let text = format!("Objective: {}\n\n{}{notes}", entry.objective, result.output);
            format!("\nResult of the task {}:\n{}", entry.task_id, prefix_lines_with_bar(&text, MAX_RESULTS))
        };
        let text: String = self.shown.iter().map(one).collect();
        if text.chars().count() > MAX_RESULTS { String::new() } else { text }
    }
}

const TO_STRING: &str = "writing to a String can't fail";

async fn read_results(
    inputs: &[InputResult],
    sources: &dyn OrderInputs,
) -> Result<Vec<(ResultEntry, TaskResult)>, SessionError> {
    // Boxed one by one: the compiler can't prove that a stream of closures over borrowed inputs is `Send`.
    let reads: Vec<_> = inputs.iter().map(|input| sources.read_result(input)).collect();
    let results: Vec<TaskResult> = futures::stream::iter(reads).buffered(READS).try_collect().await?;
    Ok(inputs.iter().map(build_result_entry).zip(results).collect())
}

/// Results that an agent may read.
pub(super) struct InputResults {
    inputs: Vec<InputResult>,
    /// The order and the scope by which further results are found in the plan; `None` for the inputs alone.
    plan_scope: Option<(Box<Order>, ResultScope)>,
    sources: Arc<dyn OrderInputs>,
}

/// A task whose result may be read, with its result if it has one.
struct ReadableTask {
    entry: ResultEntry,
    result: Option<InputResult>,
}

impl InputResults {
    /// Creates a view of exactly these inputs.
    pub fn new(inputs: Vec<InputResult>, sources: Arc<dyn OrderInputs>) -> Self {
        Self { inputs, plan_scope: None, sources }
    }

    /// Creates a view of the inputs of an order and of the further results in this scope.
    pub fn in_scope(order: &Order, scope: ResultScope, sources: Arc<dyn OrderInputs>) -> Self {
        let (inputs, plan_scope) = (order.inputs.clone(), Some((Box::new(order.clone()), scope)));
        Self { inputs, plan_scope, sources }
    }

    /// The tasks whose results may be read: the inputs, and then the others in the order of the plan.
    async fn read_tasks(&self) -> Result<Vec<ReadableTask>, ToolError> {
        let input = |input: &InputResult| ReadableTask {
            entry: build_result_entry(input),
            result: Some(input.clone()),
        };
        let mut tasks: Vec<ReadableTask> = self.inputs.iter().map(input).collect();
        let Some((order, scope)) = &self.plan_scope else { return Ok(tasks) };
        let plan = match scope {
            // Nothing changes about tasks that this one depends on while it runs.
            ResultScope::Dependencies => {
                let through = order.decided.map_or(0, |decided| decided.sequence);
                self.sources.read_plan(order, through).await
            }
            ResultScope::Run => self.sources.read_current_plan(order).await,
        };
        let plan = plan.map_err(|error| convert_error(error, "the plan can't be read".into()))?;
        let known: BTreeSet<TaskId> = self.inputs.iter().map(|input| input.task.clone()).collect();
        let further = find_further_tasks(&plan, order, *scope);
        let further = further.into_iter().filter(|task| !known.contains(&task.spec.id));
        tasks.extend(further.map(readable_task));
        Ok(tasks)
    }
}

/// The tasks of a plan in a scope, in its order, without that of the order itself.
fn find_further_tasks<'a>(plan: &'a Plan, order: &Order, scope: ResultScope) -> Vec<&'a Task> {
    let own = match &order.assignment {
        Assignment::Task { task, .. } | Assignment::Review { task, .. } => plan.task(task),
        Assignment::Planning { .. } => None,
    };
    let is_own = |task: &Task| own.is_some_and(|own| own.spec.id == task.spec.id);
    match scope {
        ResultScope::Run => {
            plan.tasks().iter().filter(|task| !task.spec.is_child() && !is_own(task)).collect()
        }
        ResultScope::Dependencies => {
            let mut found: BTreeSet<&TaskId> = BTreeSet::new();
            let mut open: Vec<&Task> = own.into_iter().collect();
            while let Some(task) = open.pop() {
                let new = task.spec.depends_on.iter().filter(|id| found.insert(id));
                open.extend(new.filter_map(|id| plan.task(id)));
            }
            plan.tasks().iter().filter(|task| found.contains(&task.spec.id)).collect()
        }
    }
}

fn readable_task(task: &Task) -> ReadableTask {
    let accepted = task.accepted_result();
    let result =
        accepted.and_then(|(attempt, at, summary)| InputResult::of_attempt(task, attempt, at, summary));
    let entry = ResultEntry {
        task_id: task.spec.id.clone(),
        objective: task.spec.objective.clone(),
        capability: task.spec.capability.to_string(),
        summary: result.as_ref().map(|result| result.summary.clone()).unwrap_or_default(),
        missing: result.is_none().then(|| format!("it is {}", task.state())),
    };
    ReadableTask { entry, result }
}

/// Returns the entry of an input in a list of results.
pub(super) fn build_result_entry(input: &InputResult) -> ResultEntry {
    ResultEntry {
        task_id: input.task.clone(),
        objective: input.objective.clone(),
        capability: input.capability.to_string(),
        summary: input.summary.clone(),
        missing: None,
    }
}

fn convert_error(error: OrderInputError, message: String) -> ToolError {
    match error {
        OrderInputError::Unavailable(why) => ToolError::Unavailable(why),
        OrderInputError::Broken(detail) => ToolError::Failed { message, detail },
    }
}

impl TaskResultSource for InputResults {
    fn list_results(&self) -> BoxFuture<'_, Result<Vec<ResultEntry>, ToolError>> {
        async move { Ok(self.read_tasks().await?.into_iter().map(|task| task.entry).collect()) }.boxed()
    }

    fn get_result<'a>(&'a self, task: &'a TaskId) -> BoxFuture<'a, Result<Option<TaskResult>, ToolError>> {
        async move {
            let input = match self.inputs.iter().find(|input| input.task == *task) {
                Some(input) => Some(input.clone()),
                None => {
                    let tasks = self.read_tasks().await?;
                    tasks
                        .into_iter()
                        .find(|known| known.entry.task_id == *task)
                        .and_then(|known| known.result)
                }
            };
            let Some(input) = input else { return Ok(None) };
            let read = self.sources.read_result(&input).await;
            read.map(Some)
                .map_err(|error| convert_error(error, format!("the result of {task} can't be read")))
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::{BoxFuture, ready};
    use millrace_protocol::ids::{Capability, Lane, RunId};
    use millrace_protocol::plan::Work;
    use millrace_protocol::work::SharedConversation;

    use super::*;

    /// A log whose only step is this one.
    struct OneStep(Option<Vec<u8>>);

    impl OrderInputs for OneStep {
        fn read_result<'a>(
            &'a self,
            _: &'a InputResult,
        ) -> BoxFuture<'a, Result<TaskResult, OrderInputError>> {
            ready(Err(OrderInputError::Broken("no results here".into()))).boxed()
        }

        fn read_blob<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<u8>, OrderInputError>> {
            ready(Err(OrderInputError::Broken("no blobs here".into()))).boxed()
        }

        fn read_step<'a>(
            &'a self,
            task: &'a TaskId,
            attempt: u32,
            step: &'a str,
        ) -> BoxFuture<'a, Result<Option<Vec<u8>>, OrderInputError>> {
            assert_eq!((task.as_str(), attempt, step), ("first", 2, CONVERSATION_STEP));
            ready(Ok(self.0.clone())).boxed()
        }
    }

    /// A call of a shared agent, after this one.
    fn shared_call(last_call: Option<(TaskId, u32)>) -> Order {
        let task = TaskId::new("next").unwrap();
        let (run, capability) = (RunId::new("r").unwrap(), Capability::new("library").unwrap());
        let order = Order::new(run, Lane(0), Work::Task { task, attempt: 1 }, "go on", capability);
        Order { shared: Some(SharedConversation { last_call }), ..order }
    }

    #[tokio::test]
    async fn call_of_a_shared_agent_never_begins_anew_for_a_conversation_that_is_not_read() {
        let read = async |order: &Order, step: Option<&str>| {
            let log = OneStep(step.map(|text| text.as_bytes().to_vec()));
            read_continued_conversation(order, &log).await
        };
        assert_eq!(read(&shared_call(None), None).await, Ok(None), "the first call begins a conversation");
        let later = shared_call(Some((TaskId::new("first").unwrap(), 2)));
        let missing = read(&later, None).await;
        assert!(matches!(&missing, Err(OrderInputError::Unavailable(why)) if why.contains("task first")));
        assert!(matches!(read(&later, Some("{}")).await, Err(OrderInputError::Broken(_))));
    }
}
