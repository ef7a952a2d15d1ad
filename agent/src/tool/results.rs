//! The tools through which an agent reads what other tasks of its run came to. They own the form in which a result
//! is shown and its bounds; where results are kept is behind [`Results`].

use std::sync::Arc;

use futures::future::BoxFuture;
use millrace_protocol::ids::TaskId;
use millrace_protocol::result::TaskResult;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Tool, ToolError, typed};

/// The most characters of one result that a model gets to read.
pub const MAX_RESULT_CHARS: usize = 60_000;
/// How many it gets when it does not say.
pub const DEFAULT_RESULT_CHARS: usize = 20_000;
/// The fewest it may ask for: below this nothing useful is left.
const MIN_RESULT_CHARS: usize = 500;

/// The results that an agent may read: those of the tasks its own task depends on, directly or through others.
pub trait Results: Send + Sync {
    /// Those tasks, in the order of the plan.
    ///
    /// # Errors
    /// They can't be read now ([`ToolError::Unavailable`]).
    fn list(&self) -> BoxFuture<'_, Result<Vec<ResultEntry>, ToolError>>;

    /// The whole result of one of them; `None` if the task is not among them or has no result.
    ///
    /// # Errors
    /// It can't be read now ([`ToolError::Unavailable`]).
    fn get<'a>(&'a self, task: &'a TaskId) -> BoxFuture<'a, Result<Option<TaskResult>, ToolError>>;
}

/// One task in the list of results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultEntry {
    /// The task.
    pub task_id: TaskId,
    /// What it was to do.
    pub objective: String,
    /// The capability that did it.
    pub capability: String,
    /// What it came to, in a sentence or two.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
    /// Why it has no result, if it failed, was cancelled, or is not done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// A result as the model reads it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Shown {
    pub task_id: TaskId,
    #[serde(flatten)]
    pub result: TaskResult,
    /// What was left out to keep within `max_chars`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListArguments {}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GetArguments {
    /// The task, as list_completed_tasks names it.
    task_id: String,
    /// The most characters to return, 500 to 60000; 20000 if left out. Of a longer output the beginning and the
    /// end are kept.
    #[schemars(range(min = 500, max = 60000))]
    max_chars: Option<u32>,
    /// Where to begin in the output, in characters from 0: then that piece of the output comes, and nothing else. Use it
    /// to read a long output piece by piece.
    from: Option<u32>,
}

/// `list_completed_tasks{}`: a JSON array with a [`ResultEntry`] for each task whose result may be read.
#[must_use]
pub fn list_completed_tasks(results: Arc<dyn Results>) -> Arc<dyn Tool> {
    typed(
        "list_completed_tasks",
        "Lists the tasks whose results this task builds on, as JSON: task_id, objective, capability, summary, and \
         'missing' where a task has no result. Read one with get_task_result.",
        move |ListArguments {}: ListArguments, _| {
            let results = results.clone();
            async move { Ok(listed(results.list().await?)) }
        },
    )
}

/// `get_task_result{task_id, max_chars?, from?}`: one result as a JSON object: summary, output, notes, sources, quotations;
/// with `from`, a piece of its output alone.
#[must_use]
pub fn get_task_result(results: Arc<dyn Results>) -> Arc<dyn Tool> {
    typed(
        "get_task_result",
        "Reads the result of one task, as JSON: summary, output (Markdown), notes, sources, quotations. An output \
         that is too long comes with its beginning and its end, and 'cut' says what was left out.",
        move |arguments: GetArguments, _| {
            let results = results.clone();
            async move { get(results.as_ref(), arguments).await }
        },
    )
}

/// A list of results, in which of many the objectives and summaries are cut.
fn listed(entries: Vec<ResultEntry>) -> String {
    let each = (MAX_RESULT_CHARS / 2 / entries.len().max(1)).clamp(60, 2_000);
    let cut = |text: &str| head_and_tail(text, each);
    let shown = entries.into_iter().map(|entry| ResultEntry {
        objective: cut(&entry.objective),
        summary: cut(&entry.summary),
        ..entry
    });
    as_json(&shown.collect::<Vec<_>>())
}

async fn get(results: &dyn Results, arguments: GetArguments) -> Result<String, ToolError> {
    let task = TaskId::new(&arguments.task_id).map_err(|refusal| ToolError::Refused(refusal.to_string()))?;
    let Some(result) = results.get(&task).await? else {
        return Err(no_result(&task, &results.list().await?));
    };
    let limit = arguments.max_chars.map_or(DEFAULT_RESULT_CHARS, |chars| chars as usize);
    let limit = limit.clamp(MIN_RESULT_CHARS, MAX_RESULT_CHARS);
    match arguments.from {
        None => Ok(shown(task, result, limit)),
        Some(from) => piece(task, &result.output, from as usize, limit),
    }
}

/// A piece of an output, with where it stands and where to go on.
fn piece(task_id: TaskId, output: &str, from: usize, limit: usize) -> Result<String, ToolError> {
    let all = output.chars().count();
    if from >= all {
        let text = format!("the output of task '{task_id}' has {all} characters; 'from' must be less");
        return Err(ToolError::Refused(text));
    }
    let piece: String = output.chars().skip(from).take(limit).collect();
    let to = (from + limit).min(all);
    let more = if to < all { format!("; go on with from = {to}") } else { String::new() };
    let result = TaskResult { output: piece, ..TaskResult::default() };
    Ok(as_json(&Shown { task_id, result, cut: Some(format!("characters {from} to {to} of {all}{more}")) }))
}

fn no_result(task: &TaskId, entries: &[ResultEntry]) -> ToolError {
    let reason = entries.iter().find(|entry| entry.task_id == *task).and_then(|entry| entry.missing.clone());
    let readable: Vec<&str> =
        entries.iter().filter(|entry| entry.missing.is_none()).map(|entry| entry.task_id.as_str()).collect();
    let readable = match readable.as_slice() {
        [] => "there are none to read".to_owned(),
        some => format!("there are results of: {}", some.join(", ")),
    };
    ToolError::Refused(match reason {
        Some(reason) => format!("task '{task}' has no result: {reason}; {readable}"),
        None => format!("no result of a task '{task}' can be read here; {readable}"),
    })
}

/// A result as JSON of at most about `limit` characters. The output gives way first, then data, then quotations and
/// sources from the end.
fn shown(task_id: TaskId, result: TaskResult, limit: usize) -> String {
    let mut shown = Shown { task_id, result, cut: None };
    let whole = as_json(&shown);
    let length = whole.chars().count();
    if length <= limit {
        return whole;
    }
    let mut left_out = Vec::new();
    let output = shown.result.output.chars().count();
    let keep = (limit / 4).max(output.saturating_sub(length - limit + 200));
    if keep < output {
        shown.result.output = head_and_tail(&shown.result.output, keep);
        left_out.push(format!("{} characters of the output", output - keep));
    }
    if size(&shown) > limit && shown.result.data.take().is_some() {
        left_out.push("the data".to_owned());
    }
    let quotations = drop_from_end(&mut shown, limit, |result| &mut result.quotations);
    if quotations > 0 {
        left_out.push(format!("{quotations} quotations"));
    }
    let sources = drop_from_end(&mut shown, limit, |result| &mut result.sources);
    if sources > 0 {
        left_out.push(format!("{sources} sources"));
    }
    shown.result.summary = head_and_tail(&shown.result.summary, limit / 4);
    shown.result.notes = shown.result.notes.map(|notes| head_and_tail(&notes, limit / 4));
    shown.cut = Some(left_out.join(", "));
    as_json(&shown)
}

fn drop_from_end<T: Serialize>(
    shown: &mut Shown,
    limit: usize,
    list: impl Fn(&mut TaskResult) -> &mut Vec<T>,
) -> usize {
    let mut excess = size(shown).saturating_sub(limit);
    let items = list(&mut shown.result);
    let before = items.len();
    while excess > 0
        && let Some(item) = items.pop()
    {
        excess = excess.saturating_sub(as_json(&item).chars().count() + 1);
    }
    before - items.len()
}

fn size(shown: &Shown) -> usize {
    as_json(shown).chars().count()
}

/// The beginning and the end of a text, `limit` characters together, with a mark between them.
pub(crate) fn head_and_tail(text: &str, limit: usize) -> String {
    let length = text.chars().count();
    if length <= limit {
        return text.to_owned();
    }
    let head: String = text.chars().take(limit - limit / 3).collect();
    let tail: String = text.chars().skip(length - limit / 3).collect();
    format!("{head}\n[… {} characters left out …]\n{tail}", length - limit)
}

fn as_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("names and texts always serialise")
}

#[cfg(test)]
mod tests {
    use millrace_protocol::result::{Quotation, Source, SourceKind};
    use serde_json::{Value, json};

    use super::*;
    use crate::tool::Call;

    struct Fixed(Vec<(ResultEntry, Option<TaskResult>)>);

    impl Results for Fixed {
        fn list(&self) -> BoxFuture<'_, Result<Vec<ResultEntry>, ToolError>> {
            Box::pin(async { Ok(self.0.iter().map(|(entry, _)| entry.clone()).collect()) })
        }

        fn get<'a>(&'a self, task: &'a TaskId) -> BoxFuture<'a, Result<Option<TaskResult>, ToolError>> {
            Box::pin(async move {
                Ok(self.0.iter().find(|(entry, _)| entry.task_id == *task).and_then(|(_, r)| r.clone()))
            })
        }
    }

    fn entry(id: &str, missing: Option<&str>) -> ResultEntry {
        ResultEntry {
            task_id: TaskId::new(id).unwrap(),
            objective: format!("do {id}"),
            capability: "research".into(),
            summary: String::new(),
            missing: missing.map(str::to_owned),
        }
    }

    fn long_result() -> TaskResult {
        let source = Source {
            id: "S1".into(),
            kind: SourceKind::Document,
            title: "A".into(),
            location: "a.txt".into(),
            sha256: None,
        };
        let quotation = Quotation { source: "S1".into(), text: "q".repeat(300), first_line: 1, last_line: 2 };
        TaskResult {
            summary: "s".into(),
            output: "äb".repeat(20_000),
            sources: vec![source],
            quotations: vec![quotation; 40],
            ..TaskResult::default()
        }
    }

    fn fixed() -> Arc<dyn Results> {
        Arc::new(Fixed(vec![
            (entry("one", None), Some(long_result())),
            (entry("two", Some("it failed: no model")), None),
        ]))
    }

    #[tokio::test]
    async fn the_list_names_what_is_there_and_why_something_is_not() {
        let text = list_completed_tasks(fixed()).call(json!({}), &Call::default()).await.unwrap().text;
        let list: Vec<ResultEntry> = serde_json::from_str(&text).unwrap();
        assert_eq!(list, vec![entry("one", None), entry("two", Some("it failed: no model"))]);
    }

    #[tokio::test]
    async fn a_long_result_keeps_within_its_bound_and_stays_readable() {
        let tool = get_task_result(fixed());
        for limit in [500, 1_000, 5_000, 20_000, 60_000] {
            let text = tool
                .call(json!({"task_id": "one", "max_chars": limit}), &Call::default())
                .await
                .unwrap()
                .text;
            let length = text.chars().count();
            assert!(length <= limit + 200, "{length} of {limit}");
            let shown: Shown = serde_json::from_str(&text).unwrap();
            assert_eq!(shown.result.summary, "s");
            assert_eq!(shown.cut.is_some(), limit < 60_000, "{limit}");
            if limit >= 20_000 {
                assert_eq!(shown.result.quotations.len(), 40, "quotations give way last");
            }
        }
    }

    #[tokio::test]
    async fn a_long_output_is_read_whole_piece_by_piece() {
        let tool = get_task_result(fixed());
        let (mut read, mut from) = (String::new(), 0);
        for _ in 0..3 {
            let arguments = json!({"task_id": "one", "max_chars": 15_000, "from": from});
            let text = tool.call(arguments, &Call::default()).await.unwrap().text;
            let shown: Shown = serde_json::from_str(&text).unwrap();
            read.push_str(&shown.result.output);
            from += 15_000;
            let more = if from < 40_000 { format!("; go on with from = {from}") } else { String::new() };
            let to = from.min(40_000);
            assert_eq!(shown.cut, Some(format!("characters {} to {to} of 40000{more}", from - 15_000)));
        }
        assert_eq!(read, long_result().output);
        let past = tool.call(json!({"task_id": "one", "from": 40_000}), &Call::default()).await.unwrap_err();
        let told = "the output of task 'one' has 40000 characters; 'from' must be less";
        assert_eq!(past, ToolError::Refused(told.into()));
    }

    #[tokio::test]
    async fn a_task_without_a_result_is_told_with_those_that_have_one() {
        let tool = get_task_result(fixed());
        let table = [
            ("two", "task 'two' has no result: it failed: no model; there are results of: one"),
            ("three", "no result of a task 'three' can be read here; there are results of: one"),
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
