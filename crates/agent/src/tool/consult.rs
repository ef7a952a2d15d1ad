//! The tool with which an agent asks another capability a short question: one model reply under that capability's
//! instructions, without tools. It owns the limits of question, context and answer; [`ConsultableCapabilities`] provides the
//! capabilities and models.
//!
//! The shared budget for model calls by the tool calls of one turn. The calls run concurrently and charge this budget, so
//! that together they exceed an amount by at most one model request. The turn sets the amounts.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_models::model::{Message, Model, Request};
use millrace_protocol::ids::{Capability, TaskId};
use millrace_protocol::plan::ResourceAmounts;
use millrace_protocol::result::{CapabilityDescription, ModelUsage, Usage};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard};

use super::{Call, Output, TaskResultSource, Tool, ToolError, ToolSpec, read_arguments, schema_of};
use crate::material::{NOTICE, keep_beginning_and_end, prefix_lines_with_bar};

use crate::turn::describe_uncounted_cost;

/// The tool's name.
const NAME: &str = "consult";
/// The maximum number of characters of a question.
const MAX_QUESTION: usize = 4_000;
/// The maximum number of characters of one result in the context.
const MAX_RESULT: usize = 1_200;
/// The maximum number of characters of the whole context.
const MAX_CONTEXT: usize = 6_000;
/// The maximum number of tokens of an answer.
const MAX_ANSWER_TOKENS: u32 = 1_200;
/// The default maximum number of characters of an answer.
const DEFAULT_CHARS: u32 = 3_000;
/// The refusal when the budget for model calls is used up.
const NO_BUDGET: &str =
    "the model budget of this task is used up except for your own answer; continue without asking";
/// The beginning of an answer if the context is not sufficient.
const INSUFFICIENT: &str = "INSUFFICIENT_CONTEXT";

/// The capabilities that one agent can consult.
pub trait ConsultableCapabilities: Send + Sync {
    /// The agent's own capability, which it can't consult.
    fn own_capability(&self) -> &Capability;

    /// The capabilities of the cluster.
    ///
    /// # Errors
    /// They can't be read at the moment ([`ToolError::Unavailable`]).
    fn list_capabilities(&self) -> BoxFuture<'_, Result<Vec<CapabilityDescription>, ToolError>>;

    /// The model of this full name; `None` for the agent's own model.
    fn open_model(&self, name: Option<&str>) -> Result<Arc<dyn Model>, String>;
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Arguments")]
#[serde(deny_unknown_fields)]
struct ConsultArguments {
    /// The capability to ask.
    #[schemars(length(min = 1))]
    capability: String,
    /// The question, understandable without this conversation.
    #[schemars(length(min = 1))]
    question: String,
    /// The tasks whose results are sent along; by default all that this task depends on.
    task_ids: Option<Vec<String>>,
    /// The maximum number of characters of the answer, 200 to 6000; 3000 by default.
    #[schemars(range(min = 200, max = 6000))]
    max_chars: Option<u32>,
}

/// `consult{capability, question, task_ids?, max_chars?}`: a short answer from another capability.
#[must_use]
pub fn consult_tool(
    consultants: Arc<dyn ConsultableCapabilities>,
    results: Option<Arc<dyn TaskResultSource>>,
) -> Arc<dyn Tool> {
    Arc::new(ConsultTool { consultants, results })
}

struct ConsultTool {
    consultants: Arc<dyn ConsultableCapabilities>,
    results: Option<Arc<dyn TaskResultSource>>,
}

impl Tool for ConsultTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: NAME.into(),
            description: "Asks another capability a short question and returns its answer. It sees the question and \
                          the results of the named tasks, uses no tools and does no work of its own. If these do not \
                          contain an answer, it says INSUFFICIENT_CONTEXT and what is missing."
                .into(),
            schema: schema_of::<ConsultArguments>().into(),
        }
    }

    fn has_bounded_output(&self) -> bool {
        true
    }

    fn call<'a>(&'a self, arguments: Value, call: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        async move { self.ask_capability(read_arguments(NAME, arguments)?, &call.budget).await }.boxed()
    }
}

impl ConsultTool {
    async fn ask_capability(
        &self,
        arguments: ConsultArguments,
        budget: &ModelCallBudget,
    ) -> Result<Output, ToolError> {
        let question = arguments.question.trim();
        if question.is_empty() {
            return Err(refused_error("the question is empty; state what you want to know"));
        }
        if question.chars().count() > MAX_QUESTION {
            return Err(refused_error(format!(
                "the question is longer than {MAX_QUESTION} characters; ask one thing"
            )));
        }
        let consulted = self.find_capability(arguments.capability.trim()).await?;
        let context = self.build_context(arguments.task_ids.as_deref()).await?;
        let consult = consulted.consult.as_ref().expect("find returns only capabilities with consult");
        let model =
            self.consultants.open_model(consult.model.as_deref()).map_err(|why| ToolError::Failed {
                message: format!("'{}' can't be asked here: its model is not available", consulted.name),
                detail: why,
            })?;
        let mut budget = budget.lock().await;
        if budget.is_used_up() {
            return Err(refused_error(NO_BUDGET));
        }
        if let Some(model) = model.uncounted_cost().filter(|_| budget.limits_cost()) {
            return Err(ToolError::Failed {
                message: format!("'{}' can't be asked here: its cost can't be counted", consulted.name),
                detail: describe_uncounted_cost(model),
            });
        }
        let request = Request {
            system: format!("{}\n\n{RULES}", consult.instructions.trim()),
            messages: vec![Message::User { text: format_question(question, &context) }],
            tools: Vec::new(),
            answer: None,
            max_output_tokens: MAX_ANSWER_TOKENS.min(budget.max_reply_tokens()),
            ..Request::default()
        };
        let reply = model.reply(&request, &()).await.map_err(|error| ToolError::Failed {
            message: format!("'{}' gave no answer: its model failed; continue without it", consulted.name),
            detail: error.to_string(),
        })?;
        let usage = Usage { model_calls: 1, ..reply.usage };
        budget.charge_usage(&usage);
        let model = reply.model.unwrap_or_else(|| model.name().to_owned());
        let limit = arguments.max_chars.unwrap_or(DEFAULT_CHARS) as usize;
        let mut answer = match reply.text.trim() {
            "" => format!("{INSUFFICIENT}: '{}' gave no answer.", consulted.name),
            text => keep_beginning_and_end(text, limit),
        };
        if reply.finish.is_cut_off() {
            answer.push_str("\n[The answer was cut off here]");
        }
        Ok(Output { text: answer, usage, models: ModelUsage::from([(model, usage)]), ..Output::default() })
    }

    async fn find_capability(&self, name: &str) -> Result<CapabilityDescription, ToolError> {
        if name == self.consultants.own_capability().as_str() {
            return Err(refused_error(format!("'{name}' is your own capability; ask another, or think")));
        }
        let capabilities = self.consultants.list_capabilities().await?;
        let is_available = |one: &&CapabilityDescription| {
            one.consult.is_some() && one.name != *self.consultants.own_capability()
        };
        let names: Vec<&str> =
            capabilities.iter().filter(is_available).map(|one| one.name.as_str()).collect();
        let names = match names.as_slice() {
            [] => "none is available here".to_owned(),
            some => format!("available: {}", some.join(", ")),
        };
        match capabilities.iter().find(|one| one.name.as_str() == name) {
            Some(one) if one.consult.is_some() => Ok(one.clone()),
            Some(_) => Err(refused_error(format!("'{name}' does not answer questions; {names}"))),
            None => Err(refused_error(format!("there is no capability '{name}'; {names}"))),
        }
    }

    /// The results for the context, each cut, together within their limit.
    async fn build_context(&self, tasks: Option<&[String]>) -> Result<String, ToolError> {
        let Some(results) = &self.results else {
            return match tasks {
                None | Some([]) => Ok(String::new()),
                Some(_) => Err(refused_error("this task depends on no results; leave task_ids out")),
            };
        };
        let entries = results.list_results().await?;
        let available: Vec<&str> = entries.iter().map(|entry| entry.task_id.as_str()).collect();
        let wanted: Vec<&str> =
            tasks.map_or(available.clone(), |tasks| tasks.iter().map(String::as_str).collect());
        let mut context = String::new();
        for name in wanted {
            let task = TaskId::new(name).ok().filter(|task| available.contains(&task.as_str()));
            let Some(task) = task else {
                let available = available.join(", ");
                return Err(refused_error(format!(
                    "there is no result of a task '{name}'; available: {available}"
                )));
            };
            let Some(result) = results.get_result(&task).await? else { continue };
            let shown =
                format!("Result of the task {task}:\n{}", prefix_lines_with_bar(&result.output, MAX_RESULT));
            if context.chars().count() + shown.chars().count() > MAX_CONTEXT {
                context.push_str("Further results are left out.\n");
                break;
            }
            context.push_str(&shown);
        }
        Ok(context)
    }
}

const RULES: &str = "\
Another agent asks you one question. Answer it briefly, from your instructions and the material shown with it; use no \
tools and promise no work. If these do not contain an answer, begin with INSUFFICIENT_CONTEXT and state what is missing. \
Make nothing up.";

fn format_question(question: &str, context: &str) -> String {
    match context {
        "" => question.to_owned(),
        context => format!("{question}\n\n{NOTICE}\n\n{context}"),
    }
}

fn refused_error(text: impl Into<String>) -> ToolError {
    ToolError::Refused(text.into())
}

/// The model usage that the calls of a turn may have together. The default is unlimited.
#[derive(Debug, Clone, Default)]
pub struct ModelCallBudget(Option<Arc<Mutex<ResourceAmounts>>>);

impl ModelCallBudget {
    /// A budget of these amounts; unlimited if there are none.
    #[must_use]
    pub fn new(left: ResourceAmounts) -> Self {
        Self((!left.is_empty()).then(|| Arc::new(Mutex::new(left))))
    }

    /// Locks it. While it is locked, no other call of the turn can call a model; an unlimited budget does not lock.
    pub async fn lock(&self) -> ModelCallBudgetGuard<'_> {
        match &self.0 {
            None => ModelCallBudgetGuard(None),
            Some(left) => ModelCallBudgetGuard(Some(left.lock().await)),
        }
    }
}

/// A locked budget.
pub struct ModelCallBudgetGuard<'a>(Option<MutexGuard<'a, ResourceAmounts>>);

impl ModelCallBudgetGuard<'_> {
    /// `true` if no model request is left.
    pub fn is_used_up(&self) -> bool {
        self.0.as_ref().is_some_and(|left| left.iter().any(|(_, amount)| amount == 0))
    }

    /// `true` if the cost is limited.
    pub fn limits_cost(&self) -> bool {
        self.0.as_ref().is_some_and(|left| left.cost_micros.is_some())
    }

    /// The maximum number of tokens of the next reply.
    pub fn max_reply_tokens(&self) -> u32 {
        let left =
            self.0.as_ref().and_then(|left| [left.tokens, left.output_tokens].into_iter().flatten().min());
        left.and_then(|left| u32::try_from(left).ok()).unwrap_or(u32::MAX)
    }

    /// Deducts usage.
    pub fn charge_usage(&mut self, used: &Usage) {
        let Some(left) = &mut self.0 else { return };
        let now = **left;
        for (dimension, amount) in now.iter() {
            left.set(dimension, Some(amount.saturating_sub(dimension.amount_used(used))));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::Mutex;

    use millrace_models::model::{DeltaListener, ModelError, Reply};
    use millrace_protocol::plan::ResourceAmounts;
    use millrace_protocol::result::{ConsultSettings as ConsultInfo, TaskResult};
    use serde_json::json;

    use super::super::ResultEntry;
    use super::*;

    /// Answers with a fixed text and records its requests.
    #[derive(Default)]
    struct FixedModel {
        requests: Mutex<Vec<Request>>,
        text: String,
        /// `true` if its price is not known.
        is_unpriced: bool,
    }

    impl Model for FixedModel {
        fn name(&self) -> &str {
            "fixed"
        }

        fn uncounted_cost(&self) -> Option<&str> {
            self.is_unpriced.then(|| self.name())
        }

        fn reply<'a>(
            &'a self,
            request: &'a Request,
            _: &'a dyn DeltaListener,
        ) -> BoxFuture<'a, Result<Reply, ModelError>> {
            self.requests.lock().unwrap().push(request.clone());
            let usage = Usage { input_tokens: 7, ..Usage::default() };
            ready(Ok(Reply { text: self.text.clone(), usage, ..Reply::default() })).boxed()
        }
    }

    struct AvailableConsultant(Arc<FixedModel>, Capability);

    impl ConsultableCapabilities for AvailableConsultant {
        fn own_capability(&self) -> &Capability {
            &self.1
        }

        fn list_capabilities(&self) -> BoxFuture<'_, Result<Vec<CapabilityDescription>, ToolError>> {
            let one = |name: &str| CapabilityDescription::new(Capability::new(name).unwrap(), name);
            let consult = ConsultInfo { instructions: "You know the law.".into(), model: None };
            let legal = CapabilityDescription { consult: Some(consult), ..one("legal") };
            ready(Ok(vec![legal, one("echo"), one("own")])).boxed()
        }

        fn open_model(&self, _: Option<&str>) -> Result<Arc<dyn Model>, String> {
            Ok(self.0.clone())
        }
    }

    struct TwoResults;

    impl TaskResultSource for TwoResults {
        fn list_results(&self) -> BoxFuture<'_, Result<Vec<ResultEntry>, ToolError>> {
            let entry = |name: &str| ResultEntry {
                task_id: TaskId::new(name).unwrap(),
                objective: String::new(),
                capability: "research".into(),
                summary: String::new(),
                missing: None,
            };
            ready(Ok((1..=9).map(|n| entry(&format!("t{n}"))).collect())).boxed()
        }

        fn get_result<'a>(&'a self, _: &'a TaskId) -> BoxFuture<'a, Result<Option<TaskResult>, ToolError>> {
            let output = format!("{}\nIgnore this.", "x".repeat(5_000));
            ready(Ok(Some(TaskResult { output, ..TaskResult::default() }))).boxed()
        }
    }

    fn build_consult_tool(text: &str, results: bool) -> (Arc<FixedModel>, Arc<dyn Tool>) {
        consult_tool_of(FixedModel { text: text.into(), ..FixedModel::default() }, results)
    }

    fn consult_tool_of(model: FixedModel, results: bool) -> (Arc<FixedModel>, Arc<dyn Tool>) {
        let model = Arc::new(model);
        let results = results.then(|| Arc::new(TwoResults) as Arc<dyn TaskResultSource>);
        let consultants = AvailableConsultant(model.clone(), Capability::new("own").unwrap());
        (model, consult_tool(Arc::new(consultants), results))
    }

    #[tokio::test]
    async fn a_question_is_answered_from_its_bounded_context_without_tools() {
        let (model, tool) = build_consult_tool("It is so.", true);
        let output =
            tool.call(json!({"capability": "legal", "question": "Is it?"}), &Call::default()).await.unwrap();
        assert_eq!(
            (output.text.as_str(), output.usage.model_calls, output.usage.input_tokens),
            ("It is so.", 1, 7)
        );
        let requests = model.requests.lock().unwrap();
        let Message::User { text } = &requests[0].messages[0] else { panic!("no question") };
        assert!(requests[0].system.starts_with("You know the law.") && requests[0].tools.is_empty());
        assert_eq!(requests[0].max_output_tokens, MAX_ANSWER_TOKENS);
        assert!(
            text.chars().count() < MAX_CONTEXT + 300 && text.contains("Further results are left out."),
            "{text}"
        );
        assert!(text.contains("\n| Ignore this.\n"));
    }

    #[tokio::test]
    async fn a_model_whose_cost_is_limited_and_not_counted_is_not_asked() {
        let cost = ResourceAmounts { cost_micros: Some(1_000), ..ResourceAmounts::default() };
        let tokens = ResourceAmounts { tokens: Some(1_000), ..ResourceAmounts::default() };
        for (is_unpriced, budget, is_refused) in
            [(true, cost, true), (true, tokens, false), (false, cost, false)]
        {
            let (model, tool) = consult_tool_of(FixedModel { is_unpriced, ..FixedModel::default() }, false);
            let call = Call { budget: ModelCallBudget::new(budget), ..Call::default() };
            let asked = tool.call(json!({"capability": "legal", "question": "Is it?"}), &call).await;
            assert_eq!(asked.is_err(), is_refused, "{budget}: {asked:?}");
            assert_eq!(model.requests.lock().unwrap().is_empty(), is_refused, "{budget}");
        }
    }

    #[tokio::test]
    async fn an_unavailable_capability_is_refused_with_the_available_ones() {
        let (_, with) = build_consult_tool("", true);
        let (_, without) = build_consult_tool("", false);
        for (tool, arguments, expected) in [
            (&with, json!({"capability": "own", "question": "x"}), "'own' is your own capability"),
            (
                &with,
                json!({"capability": "echo", "question": "x"}),
                "'echo' does not answer questions; available: legal",
            ),
            (
                &with,
                json!({"capability": "lgal", "question": "x"}),
                "there is no capability 'lgal'; available: legal",
            ),
            (&with, json!({"capability": "legal", "question": " "}), "the question is empty"),
            (
                &with,
                json!({"capability": "legal", "question": "x", "task_ids": ["t77"]}),
                "there is no result of a task 't77'; available: t1, t2",
            ),
            (
                &without,
                json!({"capability": "legal", "question": "x", "task_ids": ["t1"]}),
                "this task depends on no results",
            ),
        ] {
            let refusal = tool.call(arguments, &Call::default()).await.unwrap_err().to_string();
            assert!(refusal.starts_with(expected), "{refusal}");
        }
        let silent =
            without.call(json!({"capability": "legal", "question": "x"}), &Call::default()).await.unwrap();
        assert!(silent.text.starts_with(INSUFFICIENT));
    }
}
