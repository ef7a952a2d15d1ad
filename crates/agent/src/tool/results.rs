//! The tools with which an agent reads the results of other tasks of its run. They own the format and size limits of a
//! result; [`TaskResultSource`] provides the results.

use std::sync::Arc;

use futures::future::BoxFuture;
use millrace_protocol::ids::TaskId;
use millrace_protocol::result::TaskResult;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Tool, ToolError, tool_from_function};

/// The maximum number of characters of one result for a model.
pub const MAX_RESULT_CHARS: usize = 60_000;
/// The default number of characters.
pub const DEFAULT_RESULT_CHARS: usize = 20_000;
/// The minimum that a model may request: anything shorter is not useful.
const MIN_RESULT_CHARS: usize = 500;

/// The results that an agent may read: those of the tasks that its own task depends on, directly or through others, or those of
/// all tasks of the run.
pub trait TaskResultSource: Send + Sync {
    /// Those tasks, in the order of the plan.
    ///
    /// # Errors
    /// They can't be read at the moment ([`ToolError::Unavailable`]).
    fn list_results(&self) -> BoxFuture<'_, Result<Vec<ResultEntry>, ToolError>>;

    /// The full result of one of them; `None` if the task is not among them or has no result.
    ///
    /// # Errors
    /// It can't be read at the moment ([`ToolError::Unavailable`]).
    fn get_result<'a>(&'a self, task: &'a TaskId) -> BoxFuture<'a, Result<Option<TaskResult>, ToolError>>;
}

/// One task in the list of results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultEntry {
    pub task_id: TaskId,
    pub objective: String,
    /// The capability that ran it.
    pub capability: String,
    /// Its summary, in a sentence or two.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
    /// The reason that it has no result, if it failed, was cancelled, or has not finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// A result in the form that the model reads.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ResultView {
    pub task_id: TaskId,
    #[serde(flatten)]
    pub result: TaskResult,
    /// The parts omitted to stay within `max_chars`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "ListArguments")]
#[serde(deny_unknown_fields)]
struct ListCompletedTasksArguments {}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "GetArguments")]
#[serde(deny_unknown_fields)]
struct GetTaskResultArguments {
    /// The task, as named by list_completed_tasks.
    task_id: String,
    /// The maximum number of characters, 500 to 60000; 20000 by default. A longer output keeps its beginning and end.
    #[schemars(range(min = 500, max = 60000))]
    max_chars: Option<u32>,
    /// The offset in the output, in characters from 0: returns only the piece that begins there. Use it to read a long
    /// output in pieces.
    from: Option<u32>,
}

/// `list_completed_tasks{}`: a JSON array with a [`ResultEntry`] for each task whose result may be read.
#[must_use]
pub fn list_completed_tasks_tool(results: Arc<dyn TaskResultSource>) -> Arc<dyn Tool> {
    tool_from_function(
        "list_completed_tasks",
        "Lists the tasks whose results this task uses, as JSON: task_id, objective, capability, summary, and \
         'missing' if a task has no result. Read one with get_task_result.",
        move |ListCompletedTasksArguments {}: ListCompletedTasksArguments, _| {
            let results = results.clone();
            async move { Ok(results_to_json(results.list_results().await?)) }
        },
    )
}

/// `get_task_result{task_id, max_chars?, from?}`: one result as a JSON object: summary, output, notes, sources, quotations;
/// with `from`, only a piece of its output.
#[must_use]
pub fn get_task_result_tool(results: Arc<dyn TaskResultSource>) -> Arc<dyn Tool> {
    tool_from_function(
        "get_task_result",
        "Reads the result of one task, as JSON: summary, output (Markdown), notes, sources, quotations. If it is too \
         long, the output is cut to its beginning and end, and 'cut' lists what was left out.",
        move |arguments: GetTaskResultArguments, _| {
            let results = results.clone();
            async move { read_task_output(results.as_ref(), arguments).await }
        },
    )
}

/// A list of results; objectives and summaries are cut if there are many.
fn results_to_json(entries: Vec<ResultEntry>) -> String {
    let each = (MAX_RESULT_CHARS / 2 / entries.len().max(1)).clamp(60, 2_000);
    let cut = |text: &str| keep_head_and_tail(text, each);
    let shown = entries.into_iter().map(|entry| ResultEntry {
        objective: cut(&entry.objective),
        summary: cut(&entry.summary),
        ..entry
    });
    to_json_text(&shown.collect::<Vec<_>>())
}

async fn read_task_output(
    results: &dyn TaskResultSource,
    arguments: GetTaskResultArguments,
) -> Result<String, ToolError> {
    let task = TaskId::new(&arguments.task_id).map_err(|refusal| ToolError::Refused(refusal.to_string()))?;
    let Some(result) = results.get_result(&task).await? else {
        return Err(no_result_error(&task, &results.list_results().await?));
    };
    let limit = arguments.max_chars.map_or(DEFAULT_RESULT_CHARS, |chars| chars as usize);
    let limit = limit.clamp(MIN_RESULT_CHARS, MAX_RESULT_CHARS);
    match arguments.from {
        None => Ok(result_to_json_within_limit(task, result, limit)),
        Some(from) => format_output_piece(task, &result.output, from as usize, limit),
    }
}

/// A piece of an output, with its position and the offset of the next one.
fn format_output_piece(
    task_id: TaskId,
    output: &str,
    from: usize,
    limit: usize,
) -> Result<String, ToolError> {
    let all = output.chars().count();
    if from >= all {
        let text = format!("the output of task '{task_id}' has {all} characters; 'from' must be less");
        return Err(ToolError::Refused(text));
    }
    let piece: String = output.chars().skip(from).take(limit).collect();
    let to = (from + limit).min(all);
    let more = if to < all { format!("; continue with from = {to}") } else { String::new() };
    let result = TaskResult { output: piece, ..TaskResult::default() };
    Ok(to_json_text(&ResultView {
        task_id,
        result,
        cut: Some(format!("characters {from} to {to} of {all}{more}")),
    }))
}

fn no_result_error(task: &TaskId, entries: &[ResultEntry]) -> ToolError {
    let reason = entries.iter().find(|entry| entry.task_id == *task).and_then(|entry| entry.missing.clone());
    let readable: Vec<&str> =
        entries.iter().filter(|entry| entry.missing.is_none()).map(|entry| entry.task_id.as_str()).collect();
    let readable = match readable.as_slice() {
        [] => "no results are available".to_owned(),
        some => format!("results are available of: {}", some.join(", ")),
    };
    ToolError::Refused(match reason {
        Some(reason) => format!("task '{task}' has no result: {reason}; {readable}"),
        None => format!("there is no readable result of a task '{task}'; {readable}"),
    })
}

/// Serialises a result to about `limit` characters of JSON. The output is shortened first, then the data is dropped, then
/// quotations, sources and files from the end.
fn result_to_json_within_limit(task_id: TaskId, result: TaskResult, limit: usize) -> String {
    let mut shown = ResultView { task_id, result, cut: None };
    let whole = to_json_text(&shown);
    let length = whole.chars().count();
    if length <= limit {
        return whole;
    }
    let mut left_out = Vec::new();
    let output = shown.result.output.chars().count();
    let keep = (limit / 4).max(output.saturating_sub(length - limit + 200));
    if keep < output {
        shown.result.output = keep_head_and_tail(&shown.result.output, keep);
        left_out.push(format!("{} characters of the output", output - keep));
    }
    if json_size(&shown) > limit && shown.result.data.take().is_some() {
        left_out.push("the data".to_owned());
    }
    let quotations = drop_items_from_end(&mut shown, limit, |result| &mut result.quotations);
    if quotations > 0 {
        left_out.push(format!("{quotations} quotations"));
    }
    let sources = drop_items_from_end(&mut shown, limit, |result| &mut result.sources);
    if sources > 0 {
        left_out.push(format!("{sources} sources"));
    }
    let artifacts = drop_items_from_end(&mut shown, limit, |result| &mut result.artifacts);
    if artifacts > 0 {
        left_out.push(format!("{artifacts} files"));
    }
    shown.result.summary = keep_head_and_tail(&shown.result.summary, limit / 4);
    shown.result.notes = shown.result.notes.map(|notes| keep_head_and_tail(&notes, limit / 4));
    shown.cut = Some(left_out.join(", "));
    to_json_text(&shown)
}

fn drop_items_from_end<T: Serialize>(
    shown: &mut ResultView,
    limit: usize,
    list: impl Fn(&mut TaskResult) -> &mut Vec<T>,
) -> usize {
    let mut excess = json_size(shown).saturating_sub(limit);
    let items = list(&mut shown.result);
    let before = items.len();
    while excess > 0
        && let Some(item) = items.pop()
    {
        excess = excess.saturating_sub(to_json_text(&item).chars().count() + 1);
    }
    before - items.len()
}

fn json_size(shown: &ResultView) -> usize {
    to_json_text(shown).chars().count()
}

/// Cuts a text to its beginning and end, `limit` characters together, with a mark between them.
pub(crate) fn keep_head_and_tail(text: &str, limit: usize) -> String {
    let length = text.chars().count();
    if length <= limit {
        return text.to_owned();
    }
    let head: String = text.chars().take(limit - limit / 3).collect();
    let tail: String = text.chars().skip(length - limit / 3).collect();
    format!("{head}\n[… {} characters left out …]\n{tail}", length - limit)
}

fn to_json_text(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("names and texts always serialise")
}

#[cfg(test)]
mod tests {
    use millrace_protocol::result::{Quotation, Source, SourceKind};
    use serde_json::{Value, json};

    use super::*;
    use crate::tool::Call;

    struct StaticResults(Vec<(ResultEntry, Option<TaskResult>)>);

    impl TaskResultSource for StaticResults {
        fn list_results(&self) -> BoxFuture<'_, Result<Vec<ResultEntry>, ToolError>> {
            Box::pin(async { Ok(self.0.iter().map(|(entry, _)| entry.clone()).collect()) })
        }

        fn get_result<'a>(
            &'a self,
            task: &'a TaskId,
        ) -> BoxFuture<'a, Result<Option<TaskResult>, ToolError>> {
            Box::pin(async move {
                Ok(self.0.iter().find(|(entry, _)| entry.task_id == *task).and_then(|(_, r)| r.clone()))
            })
        }
    }

    fn build_entry(id: &str, missing: Option<&str>) -> ResultEntry {
        ResultEntry {
            task_id: TaskId::new(id).unwrap(),
            objective: format!("do {id}"),
            capability: "research".into(),
            summary: String::new(),
            missing: missing.map(str::to_owned),
        }
    }

    fn build_long_result() -> TaskResult {
        let source = Source {
            id: "S1".into(),
            kind: SourceKind::Document,
            title: "A".into(),
            location: "a.txt".into(),
            sha256: None,
            accessed_at: None,
        };
        let quotation = Quotation {
            source: "S1".into(),
            text: "q".repeat(300),
            first_line: 1,
            last_line: 2,
            place: None,
        };
        TaskResult {
            summary: "s".into(),
            output: "äb".repeat(20_000),
            sources: vec![source],
            quotations: vec![quotation; 40],
            ..TaskResult::default()
        }
    }

    fn static_results() -> Arc<dyn TaskResultSource> {
        Arc::new(StaticResults(vec![
            (build_entry("one", None), Some(build_long_result())),
            (build_entry("two", Some("it failed: no model")), None),
        ]))
    }

    #[tokio::test]
    async fn the_list_has_results_and_reasons_for_missing_ones() {
        let text =
            list_completed_tasks_tool(static_results()).call(json!({}), &Call::default()).await.unwrap().text;
        let list: Vec<ResultEntry> = serde_json::from_str(&text).unwrap();
        assert_eq!(list, vec![build_entry("one", None), build_entry("two", Some("it failed: no model"))]);
    }

    #[tokio::test]
    async fn a_long_result_is_cut_to_its_limit_and_stays_valid() {
        let tool = get_task_result_tool(static_results());
        for limit in [500, 1_000, 5_000, 20_000, 60_000] {
            let text = tool
                .call(json!({"task_id": "one", "max_chars": limit}), &Call::default())
                .await
                .unwrap()
                .text;
            let length = text.chars().count();
            assert!(length <= limit + 200, "{length} of {limit}");
            let shown: ResultView = serde_json::from_str(&text).unwrap();
            assert_eq!(shown.result.summary, "s");
            assert_eq!(shown.cut.is_some(), limit < 60_000, "{limit}");
            if limit >= 20_000 {
                assert_eq!(shown.result.quotations.len(), 40, "quotations are dropped last");
            }
        }
    }

    #[tokio::test]
    async fn a_long_output_can_be_read_in_pieces() {
        let tool = get_task_result_tool(static_results());
        let (mut read, mut from) = (String::new(), 0);
        for _ in 0..3 {
            let arguments = json!({"task_id": "one", "max_chars": 15_000, "from": from});
            let text = tool.call(arguments, &Call::default()).await.unwrap().text;
            let shown: ResultView = serde_json::from_str(&text).unwrap();
            read.push_str(&shown.result.output);
            from += 15_000;
            let more = if from < 40_000 { format!("; continue with from = {from}") } else { String::new() };
            let to = from.min(40_000);
            assert_eq!(shown.cut, Some(format!("characters {} to {to} of 40000{more}", from - 15_000)));
        }
        assert_eq!(read, build_long_result().output);
        let past = tool.call(json!({"task_id": "one", "from": 40_000}), &Call::default()).await.unwrap_err();
        let expected = "the output of task 'one' has 40000 characters; 'from' must be less";
        assert_eq!(past, ToolError::Refused(expected.into()));
    }

    #[tokio::test]
    async fn a_missing_result_is_refused_with_the_available_ones() {
        let tool = get_task_result_tool(static_results());
        let table = [
            ("two", "task 'two' has no result: it failed: no model; results are available of: one"),
            ("three", "there is no readable result of a task 'three'; results are available of: one"),
        ];
        for (task, expected) in table {
            let refusal = tool.call(json!({"task_id": task}), &Call::default()).await.unwrap_err();
            assert_eq!(refusal, ToolError::Refused(expected.into()));
        }
        assert!(matches!(
            tool.call(json!({"task_id": "a.b"}), &Call::default()).await,
            Err(ToolError::Refused(_))
        ));
        let bounds: &Value = &tool.spec().schema["properties"]["max_chars"];
        assert_eq!((&bounds["minimum"], &bounds["maximum"]), (&json!(500), &json!(60000)));
    }
}
