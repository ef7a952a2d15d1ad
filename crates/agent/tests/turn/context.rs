//! Conversations that are kept within their model's context window: cuts, summaries, the history file, the same on a resume, and
//! a beginning that stays the same between cuts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use millrace_agent::files::{FileContent, FileEntry, FilePath, Files, FilesError, WriteCondition};
use millrace_agent::model::{DeltaListener, Message, Model, ModelError, Reply, Request};
use millrace_agent::tool::{Toolbox, append_note_tool, compact_conversation_tool, tool_from_function};
use millrace_agent::turn::{
    ContextSettings, Conversation, JournalStep, Limits, MemoryHost, PlainText, StopReason, WorkOutcome,
    WorkSummary,
};
use millrace_models::ModelFactory;
use millrace_models::selection::ModelSelection;
use millrace_protocol::result::Usage;
use serde_json::json;

use super::support::{self, Look, attempt, call, calls, limited, named, names, says};

const SUMMARISER: &str = "You summarise";

/// The key of a write and the content.
type FileVersion = (String, Vec<u8>);

/// Files in memory with versions and keys.
#[derive(Default)]
struct VersionedFiles {
    files: Mutex<BTreeMap<FilePath, Vec<FileVersion>>>,
    is_full: bool,
}

impl VersionedFiles {
    fn text(&self, path: &str) -> String {
        let files = self.files.lock().unwrap();
        let versions = files.get(&FilePath::new(path).unwrap()).expect("the file exists");
        String::from_utf8(versions.last().unwrap().1.clone()).unwrap()
    }
}

impl Files for VersionedFiles {
    fn list<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<FileEntry>, FilesError>> {
        ready(Ok(Vec::new())).boxed()
    }

    fn read<'a>(&'a self, path: &'a FilePath) -> BoxFuture<'a, Result<Option<FileContent>, FilesError>> {
        let files = self.files.lock().unwrap();
        let content = files.get(path).map(|versions| {
            let bytes = versions.last().unwrap().1.clone();
            let (size, version) = (bytes.len() as u64, versions.len() as u64);
            let entry = FileEntry { path: path.clone(), size, version, author: "it".into() };
            FileContent { entry, bytes }
        });
        ready(Ok(content)).boxed()
    }

    fn write<'a>(
        &'a self,
        path: &'a FilePath,
        bytes: Vec<u8>,
        _: WriteCondition,
        key: &'a str,
    ) -> BoxFuture<'a, Result<u64, FilesError>> {
        if self.is_full {
            return ready(Err(FilesError::Denied("the store is full".into()))).boxed();
        }
        let mut files = self.files.lock().unwrap();
        let versions = files.entry(path.clone()).or_default();
        versions.push((key.to_owned(), bytes));
        ready(Ok(versions.len() as u64)).boxed()
    }

    fn delete<'a>(
        &'a self,
        _: &'a FilePath,
        _: WriteCondition,
        _: &'a str,
    ) -> BoxFuture<'a, Result<(), FilesError>> {
        ready(Ok(())).boxed()
    }

    fn find_version_by_key<'a>(
        &'a self,
        path: &'a FilePath,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<u64>, FilesError>> {
        let files = self.files.lock().unwrap();
        let versions = files.get(path).map_or(&[][..], Vec::as_slice);
        let at = versions.iter().position(|(other, _)| other == key);
        ready(Ok(at.map(|at| at as u64 + 1))).boxed()
    }
}

/// A model with a window, and a cache of the last prompt. It looks at one thing after the other, which it knows from the number of
/// its requests, and answers at the end.
struct WindowedModel {
    window: u64,
    things: usize,
    /// Calls besides `look`, by the thing.
    extra: BTreeMap<usize, &'static str>,
    requests: Mutex<Vec<Request>>,
    /// The requests for summaries that it answered.
    summaries: Mutex<Vec<Request>>,
    /// The most tokens of a request for a summary.
    summary_window: u64,
}

impl WindowedModel {
    fn new(window: u64, things: usize) -> Self {
        let (extra, requests, summaries) = Default::default();
        Self { window, things, extra, requests, summaries, summary_window: window }
    }

    fn reply_to(&self, request: &Request) -> Result<Reply, ModelError> {
        let tokens = tokens_of(request);
        let is_summary = request.system.starts_with(SUMMARISER);
        let window = if is_summary { self.summary_window } else { self.window };
        if tokens > window {
            let message = format!("prompt is too long: {tokens} tokens > {window} maximum");
            return Err(ModelError::ContextOverflow { message });
        }
        if is_summary {
            self.summaries.lock().unwrap().push(request.clone());
            return Ok(says("The agent looked at things."));
        }
        let mut requests = self.requests.lock().unwrap();
        let cached = requests.last().map_or(0, |last| common_tokens(last, request));
        let at = requests.len();
        requests.push(request.clone());
        let usage =
            Usage { input_tokens: tokens, cached_tokens: cached, output_tokens: 5, ..Usage::default() };
        if at >= self.things {
            return Ok(Reply { usage, ..says("done") });
        }
        let look = call(&format!("c{at}"), json!({"at": format!("thing {at}")}));
        let extra = self.extra.get(&at).map(|tool| named(&format!("e{at}"), tool, "{}"));
        Ok(Reply { usage, ..calls([look].into_iter().chain(extra).collect()) })
    }
}

impl Model for WindowedModel {
    fn name(&self) -> &str {
        "test:windowed"
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        _: &'a dyn DeltaListener,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        ready(self.reply_to(request)).boxed()
    }
}

fn size_of(messages: &[Message]) -> u64 {
    let size = |message: &Message| match message {
        Message::User { text } => text.len(),
        Message::Tool(result) => result.text.len(),
        Message::Assistant { text, calls, .. } => {
            text.len() + calls.iter().map(|call| call.name.len() + call.arguments.len()).sum::<usize>()
        }
    };
    messages.iter().map(size).sum::<usize>() as u64
}

/// Three bytes a token: more than the machine assumes before it has measured any.
fn tokens_of(request: &Request) -> u64 {
    (request.system.len() as u64 + size_of(&request.messages)) / 3
}

fn common_tokens(before: &Request, after: &Request) -> u64 {
    let same = before.messages.iter().zip(&after.messages).take_while(|(a, b)| a == b).count();
    size_of(&after.messages[..same]) / 3
}

fn thing(at: &str, length: usize) -> String {
    let sentence = format!("<{at}> The miller notes how high the water stands before the gate is opened. ");
    sentence.chars().cycle().take(length).collect()
}

fn tools(length: usize) -> Toolbox {
    let look = tool_from_function("look", "Looks.", move |Look { at, .. }: Look, _| async move {
        Ok(thing(&at, length))
    });
    // Only its name counts: agents with it can read the history file.
    let read = tool_from_function("read_file", "Reads.", |Look { at, .. }: Look, _| async move { Ok(at) });
    Toolbox::new([look, read, append_note_tool(), compact_conversation_tool()]).unwrap()
}

async fn drive(
    model: &Arc<impl Model + 'static>,
    settings: ContextSettings,
    length: usize,
    files: Option<Arc<VersionedFiles>>,
    journal: &mut MemoryHost,
) -> WorkSummary<PlainText> {
    let tools = tools(length);
    let limits = Limits { turns: 500, tool_calls: 500, ..Limits::DEFAULT };
    let files = files.map(|files| files as Arc<dyn Files>);
    let mut conversation = Conversation::new(limited(&tools, limits), model.clone(), tools);
    (conversation.attempt, conversation.files, conversation.context) = (attempt(), files, Some(settings));
    support::drive(conversation, journal).await.unwrap()
}

fn answered() -> WorkOutcome<PlainText> {
    WorkOutcome::Answered(PlainText("done".into()))
}

fn cuts(journal: &MemoryHost) -> Vec<&JournalStep> {
    journal.steps().iter().filter(|step| step.name.starts_with("context.")).collect()
}

#[tokio::test]
async fn two_million_characters_go_through_a_small_window_and_nothing_is_lost() {
    let (window, things, length) = (32_768, 100, 20_000);
    let (model, files) = (Arc::new(WindowedModel::new(window, things)), Arc::new(VersionedFiles::default()));
    let mut journal = MemoryHost::default();
    let settings = ContextSettings::for_window(Some(window));
    let ended = drive(&model, settings, length, Some(files.clone()), &mut journal).await;
    assert_eq!(ended.outcome, answered());
    let overflows =
        journal.steps().iter().filter(|step| step.value["heard"].get("overflow").is_some()).count();
    assert_eq!(overflows, 0, "it is shortened before it overflows");

    let path = "/conversation_history/t1/2.md";
    let history = files.text(path);
    assert!(history.len() > 1_800_000, "{} characters", history.len());
    // Newer results are in the conversation.
    let requests = model.requests.lock().unwrap().clone();
    let rest = format!("{:?}", requests.last().unwrap().messages);
    for at in 0..things {
        let text = thing(&format!("thing {at}"), length);
        let times = history.matches(&text).count();
        assert!(times == 1 || (times == 0 && rest.contains(&text)), "thing {at}: {times} times");
    }

    let cuts = cuts(&journal);
    let summaries = model.summaries.lock().unwrap().len();
    assert!(summaries > 0 && cuts.len() > 10, "{} cuts, {summaries} summaries", cuts.len());
    assert!(cuts.iter().all(|cut| cut.value["tokens_before"].as_u64().unwrap() > 25_000));
    // Between cuts each conversation begins with the one before, byte for byte.
    let changed = requests.windows(2).filter(|pair| !pair[1].messages.starts_with(&pair[0].messages)).count();
    assert!(changed <= cuts.len(), "{changed} of {} beginnings changed", requests.len());
    assert!(
        requests
            .iter()
            .all(|request| request.system == requests[0].system && request.tools == requests[0].tools)
    );
    let named = requests.iter().filter(|request| format!("{:?}", request.messages).contains(path)).count();
    assert!(named > things / 2, "the file is named in {named} requests");
    let Usage { input_tokens, cached_tokens, model_calls, .. } = ended.usage;
    println!("cached: {cached_tokens} of {input_tokens} input tokens, {} cuts", cuts.len());
    assert!(cached_tokens * 100 > input_tokens * 40, "{cached_tokens} of {input_tokens} cached");
    assert_eq!(model_calls as usize, requests.len() + summaries, "summaries are counted");
}

/// A real model whose replies are replaced, so that a small one looks at one thing after the other. Its tokens, its
/// limit and its summaries are real.
struct LedModel {
    real: Arc<dyn Model>,
    things: usize,
    replies: Mutex<Vec<Usage>>,
}

impl LedModel {
    async fn lead(&self, request: &Request, listener: &dyn DeltaListener) -> Result<Reply, ModelError> {
        let is_summary = request.system.starts_with(SUMMARISER);
        let most = if is_summary { 200 } else { 8 };
        let request = Request { max_output_tokens: request.max_output_tokens.min(most), ..request.clone() };
        let reply = self.real.reply(&request, listener).await?;
        if is_summary {
            return Ok(reply);
        }
        let usage = reply.usage;
        let mut replies = self.replies.lock().unwrap();
        let at = replies.len();
        replies.push(usage);
        if at >= self.things {
            return Ok(Reply { usage, ..says("done") });
        }
        let look = call(&format!("c{at}"), json!({"at": format!("thing {at}")}));
        Ok(Reply { usage, ..calls(vec![look]) })
    }
}

impl Model for LedModel {
    fn name(&self) -> &str {
        self.real.name()
    }

    fn reply<'a>(
        &'a self,
        request: &'a Request,
        listener: &'a dyn DeltaListener,
    ) -> BoxFuture<'a, Result<Reply, ModelError>> {
        self.lead(request, listener).boxed()
    }
}

fn number_from_environment(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// As many things as fill `MILLRACE_TEST_LLM_CHARACTERS` against a window of `MILLRACE_TEST_LLM_WINDOW` tokens.
#[tokio::test]
async fn long_conversation_stays_in_the_window_of_a_real_model() {
    let Ok(address) = std::env::var("MILLRACE_TEST_LLM") else {
        println!("skipped: MILLRACE_TEST_LLM is not set (such as http://127.0.0.1:8081/v1)");
        return;
    };
    let window = number_from_environment("MILLRACE_TEST_LLM_WINDOW", 4_096);
    let length = window * 5 / 8;
    let things = number_from_environment("MILLRACE_TEST_LLM_CHARACTERS", 50_000) / length;
    let selection = ModelSelection::parse(&format!("openai-compatible:local@{address}")).unwrap();
    let real = ModelFactory::default().create(&selection, &|_| None).unwrap();
    let model = Arc::new(LedModel { real, things, replies: Mutex::default() });
    let (mut journal, files) = (MemoryHost::default(), Arc::new(VersionedFiles::default()));
    let settings = ContextSettings::for_window(Some(window as u64));
    let ended = drive(&model, settings, length, Some(files.clone()), &mut journal).await;
    assert_eq!(ended.outcome, answered());
    let overflows =
        journal.steps().iter().filter(|step| step.value["heard"].get("overflow").is_some()).count();
    let replies = std::mem::take(&mut *model.replies.lock().unwrap());
    let largest = replies.iter().map(|usage| usage.input_tokens).max().unwrap();
    let history = files.text("/conversation_history/t1/2.md");
    let missing = (0..things).filter(|at| !history.contains(&thing(&format!("thing {at}"), length))).count();
    let Usage { input_tokens, cached_tokens, output_tokens, .. } = ended.usage;
    println!(
        "{things} things of {length} characters, window {window}: {} cuts, {overflows} overflows, largest prompt {largest} \
         tokens; {cached_tokens} of {input_tokens} input tokens cached, {output_tokens} output tokens; history of {} \
         characters, {missing} things only in the conversation",
        cuts(&journal).len(),
        history.len()
    );
    assert!(largest <= window as u64, "{largest}");
    assert_eq!(overflows, 0, "it is shortened before it overflows");
    // The last ones are in the conversation still.
    assert!(missing <= 8, "{missing} of {things} are missing from the history");
}

#[tokio::test]
async fn resume_after_any_step_shortens_identically() {
    // Results of 1,500 characters are not cut, so that most shortenings need a summary. Longer ones are cut in the conversation.
    for length in [1_500, 3_000] {
        resume_after_any_step(length).await;
    }
}

async fn resume_after_any_step(length: usize) {
    let (window, things) = (4_096, 24);
    let settings = ContextSettings::for_window(Some(window));
    let (model, mut journal) = (Arc::new(WindowedModel::new(window, things)), MemoryHost::default());
    let files = Arc::new(VersionedFiles::default());
    let ended = drive(&model, settings, length, Some(files.clone()), &mut journal).await;
    assert_eq!(ended.outcome, answered());
    assert!(cuts(&journal).len() > 2, "{:?}", names(&journal));
    assert!(model.summaries.lock().unwrap().len() > 1, "{:?}", names(&journal));
    let whole = model.requests.lock().unwrap().clone();
    for kept in 0..=journal.steps().len() {
        let steps = journal.steps()[..kept].to_vec();
        let count = |name: &str| steps.iter().filter(|step| step.name.starts_with(name)).count();
        let (answered, cut) = (count("model."), count("context."));
        let again = Arc::new(WindowedModel::new(window, things));
        *again.requests.lock().unwrap() = whole[..answered].to_vec();
        // A worker that was lost may have saved the history and not recorded it.
        let saved = Arc::new(VersionedFiles::default());
        for (path, versions) in files.files.lock().unwrap().iter() {
            let versions = versions.iter().take(cut + 1).cloned().collect();
            saved.files.lock().unwrap().insert(path.clone(), versions);
        }
        let mut resumed = MemoryHost::with_steps(steps);
        // Another release may know another window: the recorded one counts. The session passes it on.
        let end = drive(&again, settings, length, Some(saved.clone()), &mut resumed).await;
        assert_eq!(end.outcome, ended.outcome, "after {kept} steps");
        assert_eq!(names(&resumed), names(&journal));
        assert_eq!(again.requests.lock().unwrap().clone(), whole, "after {kept} steps");
        let path = "/conversation_history/t1/2.md";
        assert_eq!(saved.text(path), files.text(path), "after {kept} steps");
    }
}

#[tokio::test]
async fn nothing_is_dropped_while_the_history_can_not_be_saved() {
    let window = 4_096;
    let model = Arc::new(WindowedModel::new(window, 16));
    let full = Arc::new(VersionedFiles { is_full: true, ..VersionedFiles::default() });
    let mut journal = MemoryHost::default();
    let settings = ContextSettings::for_window(Some(window));
    let ended = drive(&model, settings, 3_500, Some(full), &mut journal).await;
    assert!(matches!(ended.outcome, WorkOutcome::Stopped(StopReason::Context { .. })), "{:?}", ended.outcome);
    let requests = model.requests.lock().unwrap().clone();
    for pair in requests.windows(2) {
        assert!(pair[1].messages.starts_with(&pair[0].messages), "the conversation only grows");
    }
    assert_eq!(cuts(&journal)[0].value["history"]["failed"], "the store is full");
    assert_eq!(model.summaries.lock().unwrap().len(), 0);
}

/// The length of each result in a request for a summary, without the bars.
fn results_of_summary(request: &Request) -> Vec<usize> {
    let Message::User { text } = &request.messages[0] else { panic!("one message") };
    let results = text.split("## Result of call ").skip(1);
    results.map(|result| result.split("\n| ## ").next().unwrap().len()).collect()
}

#[tokio::test]
async fn summary_is_written_from_whole_results_as_far_as_they_fit() {
    let window = 8_192;
    // Two older results of 6,000 characters fit into 70% of the window, three of 6,600 do not.
    for (things, length, least) in [(3, 6_000, 5_990), (4, 6_600, 5_500)] {
        let mut model = WindowedModel::new(window, things);
        model.extra = [(things - 1, "compact_conversation")].into();
        let model = Arc::new(model);
        let mut journal = MemoryHost::default();
        let ended =
            drive(&model, ContextSettings::for_window(Some(window)), length, None, &mut journal).await;
        assert_eq!(ended.outcome, answered());
        let summaries = model.summaries.lock().unwrap().clone();
        let request = summaries.first().expect("the agent asks for a summary");
        let results = results_of_summary(request);
        assert_eq!(results.len(), things - 1);
        assert!(results.iter().all(|length| *length >= least), "{results:?}");
        assert_eq!(results.iter().all(|shown| *shown >= length - 10), things == 3, "{results:?}");
        let share = tokens_of(request) * 100 / window;
        assert!(share <= 80, "{share} % of the window: {results:?}");
    }
}

#[tokio::test]
async fn summary_is_written_from_cut_results_if_the_model_refuses_more() {
    let window = 8_192;
    let mut model = WindowedModel::new(window, 24);
    model.summary_window = window * 45 / 100;
    let model = Arc::new(model);
    let mut journal = MemoryHost::default();
    let ended = drive(&model, ContextSettings::for_window(Some(window)), 1_500, None, &mut journal).await;
    assert_eq!(ended.outcome, answered());
    let summarised = cuts(&journal).into_iter().filter(|cut| cut.value.get("summary").is_some()).count();
    assert!(summarised > 0 && cuts(&journal).iter().all(|cut| cut.value.get("summary_error").is_none()));
}

#[tokio::test]
async fn window_that_the_provider_names_is_kept_afterwards() {
    let model = Arc::new(WindowedModel::new(4_096, 16));
    let mut journal = MemoryHost::default();
    let files = Arc::new(VersionedFiles::default());
    let ended = drive(&model, ContextSettings::default(), 3_500, Some(files), &mut journal).await;
    assert_eq!(ended.outcome, answered());
    let overflows =
        journal.steps().iter().filter(|step| step.value["heard"].get("overflow").is_some()).count();
    assert_eq!(overflows, 1, "only the first one is not foreseen: {:?}", names(&journal));
    assert!(cuts(&journal).len() > 2);
}

#[tokio::test]
async fn agent_can_compact_its_conversation_from_half_of_the_trigger_on() {
    let window = 16_384;
    let mut model = WindowedModel::new(window, 14);
    model.extra = [(1, "compact_conversation"), (12, "compact_conversation")].into();
    let model = Arc::new(model);
    let mut journal = MemoryHost::default();
    let files = Arc::new(VersionedFiles::default());
    let settings = ContextSettings::for_window(Some(window));
    let ended = drive(&model, settings, 2_000, Some(files), &mut journal).await;
    assert_eq!(ended.outcome, answered());
    let steps = names(&journal);
    let cut = steps.iter().position(|name| *name == "context.0").unwrap();
    assert_eq!((cuts(&journal).len(), steps[cut + 1]), (1, "model.13"), "{steps:?}");
    let requests = model.requests.lock().unwrap().clone();
    let refused = format!("{:?}", requests[2].messages);
    assert!(refused.contains("need not be compacted; it can be from 6963 tokens on"), "{refused}");
    let Message::User { text } = &requests[13].messages[1] else { panic!("a notice") };
    assert!(
        text.contains("## Summary\nThe agent looked at things.")
            && text.contains("/conversation_history/t1/2.md")
    );
}
