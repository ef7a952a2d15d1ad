//! The tool by which an agent asks another capability a short question: one reply of a model with that capability's
//! instructions, without tools. It owns the bounds of question, context and answer; who can be asked, and the models,
//! are behind [`Consultants`].

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_models::model::{Message, Model, Request};
use millrace_protocol::ids::{Capability, TaskId};
use millrace_protocol::result::{CapabilityDescription, ModelUsage, Usage};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{Call, Output, Purse, Results, Tool, ToolError, ToolSpec, read_arguments, schema_of};
use crate::material::{NOTICE, barred, ends};

/// The tool's name.
const NAME: &str = "consult";
/// The most characters of a question.
const MAX_QUESTION: usize = 4_000;
/// The most characters of one result in the context.
const MAX_RESULT: usize = 1_200;
/// The most characters of the whole context.
const MAX_CONTEXT: usize = 6_000;
/// The most tokens of an answer.
const MAX_ANSWER_TOKENS: u32 = 1_200;
/// The most characters of an answer, where the caller does not say.
const DEFAULT_CHARS: u32 = 3_000;
/// What is told where nothing is left to ask with.
const SPENT: &str =
    "what this task may use of models is used up but for your own answer; go on without asking";
/// What an answer begins with where the context does not carry one.
const INSUFFICIENT: &str = "INSUFFICIENT_CONTEXT";

/// Who can be asked, as one agent sees it.
pub trait Consultants: Send + Sync {
    /// The capability of the agent itself, which it can't ask.
    fn own(&self) -> &Capability;

    /// The capabilities of the cluster.
    ///
    /// # Errors
    /// They can't be read now ([`ToolError::Unavailable`]).
    fn known(&self) -> BoxFuture<'_, Result<Vec<CapabilityDescription>, ToolError>>;

    /// The model of this full name, or of the agent itself.
    ///
    /// # Errors
    /// It can't be opened here, with the reason.
    fn model(&self, name: Option<&str>) -> Result<Arc<dyn Model>, String>;
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The capability to ask.
    #[schemars(length(min = 1))]
    capability: String,
    /// The question, which must be understood without this conversation.
    #[schemars(length(min = 1))]
    question: String,
    /// The tasks whose results are shown along with it; all that this task builds on if left out.
    task_ids: Option<Vec<String>>,
    /// The most characters of the answer, 200 to 6000; 3000 if left out.
    #[schemars(range(min = 200, max = 6000))]
    max_chars: Option<u32>,
}

/// `consult{capability, question, task_ids?, max_chars?}`: a short answer of another capability.
#[must_use]
pub fn consult(consultants: Arc<dyn Consultants>, results: Option<Arc<dyn Results>>) -> Arc<dyn Tool> {
    Arc::new(Consult { consultants, results })
}

struct Consult {
    consultants: Arc<dyn Consultants>,
    results: Option<Arc<dyn Results>>,
}

impl Tool for Consult {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: NAME.into(),
            description: "Asks another capability a short question and returns its answer. It sees the question and \
                          the results of the named tasks, uses no tools and does no work of its own. Where these do \
                          not carry an answer it says INSUFFICIENT_CONTEXT and what is missing."
                .into(),
            schema: schema_of::<Arguments>(),
        }
    }

    fn bounds_itself(&self) -> bool {
        true
    }

    fn call<'a>(&'a self, arguments: Value, call: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        async move { self.ask(read_arguments(NAME, arguments)?, &call.purse).await }.boxed()
    }
}

impl Consult {
    async fn ask(&self, arguments: Arguments, purse: &Purse) -> Result<Output, ToolError> {
        let question = arguments.question.trim();
        if question.is_empty() {
            return Err(refused("the question is empty; say what you want to know"));
        }
        if question.chars().count() > MAX_QUESTION {
            return Err(refused(format!(
                "the question is longer than {MAX_QUESTION} characters; ask one thing"
            )));
        }
        let asked = self.asked(arguments.capability.trim()).await?;
        let context = self.context(arguments.task_ids.as_deref()).await?;
        let consult = asked.consult.as_ref().expect("only capabilities that can be asked are found");
        let model = self.consultants.model(consult.model.as_deref()).map_err(|why| ToolError::Failed {
            told: format!("'{}' can't be asked here: its model can't be used", asked.name),
            detail: why,
        })?;
        let mut purse = purse.open().await;
        if purse.is_empty() {
            return Err(refused(SPENT));
        }
        let request = Request {
            system: format!("{}\n\n{RULES}", consult.instructions.trim()),
            messages: vec![Message::User { text: message(question, &context) }],
            tools: Vec::new(),
            answer: None,
            max_output_tokens: MAX_ANSWER_TOKENS.min(purse.of_next_reply()),
        };
        let reply = model.reply(&request, &()).await.map_err(|error| ToolError::Failed {
            told: format!("'{}' could not be asked: its model gave no answer; go on without it", asked.name),
            detail: error.to_string(),
        })?;
        let usage = Usage { model_calls: 1, ..reply.usage };
        purse.pay(&usage);
        let answered = reply.model.unwrap_or_else(|| model.name().to_owned());
        let limit = arguments.max_chars.unwrap_or(DEFAULT_CHARS) as usize;
        let answer = match reply.text.trim() {
            "" => format!("{INSUFFICIENT}: '{}' gave no answer.", asked.name),
            text => ends(text, limit),
        };
        Ok(Output { text: answer, usage, models: ModelUsage::from([(answered, usage)]) })
    }

    async fn asked(&self, name: &str) -> Result<CapabilityDescription, ToolError> {
        if name == self.consultants.own().as_str() {
            return Err(refused(format!("'{name}' is what you are yourself; ask another, or think")));
        }
        let known = self.consultants.known().await?;
        let can = |one: &&CapabilityDescription| one.consult.is_some() && one.name != *self.consultants.own();
        let names: Vec<&str> = known.iter().filter(can).map(|one| one.name.as_str()).collect();
        let names = match names.as_slice() {
            [] => "none can be asked here".to_owned(),
            some => format!("these can be asked: {}", some.join(", ")),
        };
        match known.iter().find(|one| one.name.as_str() == name) {
            Some(one) if one.consult.is_some() => Ok(one.clone()),
            Some(_) => Err(refused(format!("'{name}' answers no questions; {names}"))),
            None => Err(refused(format!("there is no capability '{name}'; {names}"))),
        }
    }

    /// The results that are shown along, each cut, all together within their bound.
    async fn context(&self, tasks: Option<&[String]>) -> Result<String, ToolError> {
        let Some(results) = &self.results else {
            return match tasks {
                None | Some([]) => Ok(String::new()),
                Some(_) => Err(refused("this task builds on no results; leave task_ids out")),
            };
        };
        let entries = results.list().await?;
        let known: Vec<&str> = entries.iter().map(|entry| entry.task_id.as_str()).collect();
        let wanted: Vec<&str> =
            tasks.map_or(known.clone(), |tasks| tasks.iter().map(String::as_str).collect());
        let mut context = String::new();
        for name in wanted {
            let task = TaskId::new(name).ok().filter(|task| known.contains(&task.as_str()));
            let Some(task) = task else {
                let known = known.join(", ");
                return Err(refused(format!(
                    "no result of a task '{name}' can be shown; there are: {known}"
                )));
            };
            let Some(result) = results.get(&task).await? else { continue };
            let shown = format!("Result of the task {task}:\n{}", barred(&result.output, MAX_RESULT));
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
You are asked one question by another agent. Answer it shortly, from your instructions and from what is shown with it; \
use no tools and promise no work. If that does not carry an answer, begin with INSUFFICIENT_CONTEXT and say what is \
missing. Make nothing up.";

fn message(question: &str, context: &str) -> String {
    match context {
        "" => question.to_owned(),
        context => format!("{question}\n\n{NOTICE}\n\n{context}"),
    }
}

fn refused(text: impl Into<String>) -> ToolError {
    ToolError::Refused(text.into())
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::Mutex;

    use millrace_models::model::{ModelError, Reply, Watch};
    use millrace_protocol::result::{Consult as Told, TaskResult};
    use serde_json::json;

    use super::super::ResultEntry;
    use super::*;

    /// Answers with a fixed text and keeps what it was asked.
    #[derive(Default)]
    struct Fixed {
        asked: Mutex<Vec<Request>>,
        text: String,
    }

    impl Model for Fixed {
        fn name(&self) -> &str {
            "fixed"
        }

        fn reply<'a>(
            &'a self,
            request: &'a Request,
            _: &'a dyn Watch,
        ) -> BoxFuture<'a, Result<Reply, ModelError>> {
            self.asked.lock().unwrap().push(request.clone());
            let usage = Usage { input_tokens: 7, ..Usage::default() };
            ready(Ok(Reply { text: self.text.clone(), usage, ..Reply::default() })).boxed()
        }
    }

    struct Known(Arc<Fixed>, Capability);

    impl Consultants for Known {
        fn own(&self) -> &Capability {
            &self.1
        }

        fn known(&self) -> BoxFuture<'_, Result<Vec<CapabilityDescription>, ToolError>> {
            let one = |name: &str| CapabilityDescription::new(Capability::new(name).unwrap(), name);
            let told = Told { instructions: "You know the law.".into(), model: None };
            let legal = CapabilityDescription { consult: Some(told), ..one("legal") };
            ready(Ok(vec![legal, one("echo"), one("own")])).boxed()
        }

        fn model(&self, _: Option<&str>) -> Result<Arc<dyn Model>, String> {
            Ok(self.0.clone())
        }
    }

    struct Done;

    impl Results for Done {
        fn list(&self) -> BoxFuture<'_, Result<Vec<ResultEntry>, ToolError>> {
            let entry = |name: &str| ResultEntry {
                task_id: TaskId::new(name).unwrap(),
                objective: String::new(),
                capability: "research".into(),
                summary: String::new(),
                missing: None,
            };
            ready(Ok((1..=9).map(|n| entry(&format!("t{n}"))).collect())).boxed()
        }

        fn get<'a>(&'a self, _: &'a TaskId) -> BoxFuture<'a, Result<Option<TaskResult>, ToolError>> {
            let output = format!("{}\nIgnore this.", "x".repeat(5_000));
            ready(Ok(Some(TaskResult { output, ..TaskResult::default() }))).boxed()
        }
    }

    fn tool(text: &str, results: bool) -> (Arc<Fixed>, Arc<dyn Tool>) {
        let model = Arc::new(Fixed { text: text.into(), ..Fixed::default() });
        let results = results.then(|| Arc::new(Done) as Arc<dyn Results>);
        let known = Known(model.clone(), Capability::new("own").unwrap());
        (model, consult(Arc::new(known), results))
    }

    #[tokio::test]
    async fn a_question_is_answered_from_its_bounded_context_without_tools() {
        let (model, tool) = tool("It is so.", true);
        let output =
            tool.call(json!({"capability": "legal", "question": "Is it?"}), &Call::default()).await.unwrap();
        assert_eq!(
            (output.text.as_str(), output.usage.model_calls, output.usage.input_tokens),
            ("It is so.", 1, 7)
        );
        let asked = model.asked.lock().unwrap();
        let Message::User { text } = &asked[0].messages[0] else { panic!("no question") };
        assert!(asked[0].system.starts_with("You know the law.") && asked[0].tools.is_empty());
        assert_eq!(asked[0].max_output_tokens, MAX_ANSWER_TOKENS);
        assert!(
            text.chars().count() < MAX_CONTEXT + 300 && text.contains("Further results are left out."),
            "{text}"
        );
        assert!(text.contains("\n| Ignore this.\n"));
    }

    #[tokio::test]
    async fn who_can_not_be_asked_is_told_with_those_who_can() {
        let (_, with) = tool("", true);
        let (_, without) = tool("", false);
        for (tool, arguments, expected) in [
            (&with, json!({"capability": "own", "question": "x"}), "'own' is what you are yourself"),
            (
                &with,
                json!({"capability": "echo", "question": "x"}),
                "'echo' answers no questions; these can be asked: legal",
            ),
            (
                &with,
                json!({"capability": "lgal", "question": "x"}),
                "there is no capability 'lgal'; these can be asked: legal",
            ),
            (&with, json!({"capability": "legal", "question": " "}), "the question is empty"),
            (
                &with,
                json!({"capability": "legal", "question": "x", "task_ids": ["t77"]}),
                "no result of a task 't77' can be shown; there are: t1, t2",
            ),
            (
                &without,
                json!({"capability": "legal", "question": "x", "task_ids": ["t1"]}),
                "this task builds on no results",
            ),
        ] {
            let told = tool.call(arguments, &Call::default()).await.unwrap_err().to_string();
            assert!(told.starts_with(expected), "{told}");
        }
        let silent =
            without.call(json!({"capability": "legal", "question": "x"}), &Call::default()).await.unwrap();
        assert!(silent.text.starts_with(INSUFFICIENT));
    }
}
