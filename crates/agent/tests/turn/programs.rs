//! Programs that work on the agent's files, together with state, a veto and a change of the phase: lost after any step, the
//! work continues to the same end.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use millrace_agent::files::{
    AgentFiles, FileContent, FileEntry, FilePath, Files, FilesError, ProgramFiles, WorkingCopy,
    WriteCondition,
};
use millrace_agent::model::Reply;
use millrace_agent::state::{StateRules, create_state_tools};
use millrace_agent::tool::{Call, Effect, Output, Tool, ToolError, ToolSpec, Toolbox};
use millrace_agent::turn::{JournalStep, Machine, MemoryHost, PlainText, WorkOutcome, WorkSummary};
use serde_json::{Value, json};

use super::support::{self, Scripted, attempt, brief, calls, conversation, named, names, says};

/// The versions of a file: author, key and content.
type Versions = Vec<(String, String, Option<Vec<u8>>)>;

/// Files in memory that record the keys of writes, as a workspace does.
#[derive(Default)]
struct Workspace(Mutex<BTreeMap<FilePath, Versions>>);

impl Workspace {
    fn with(files: &[(&str, &str)]) -> Arc<Self> {
        let workspace = Self::default();
        for (path, text) in files {
            workspace.put(path, "someone", text);
        }
        Arc::new(workspace)
    }

    fn put(&self, path: &str, author: &str, text: &str) {
        let version = (author.to_owned(), format!("key of {author}"), Some(text.as_bytes().to_vec()));
        self.0.lock().unwrap().entry(FilePath::new(path).unwrap()).or_default().push(version);
    }

    fn texts(&self) -> BTreeMap<String, Vec<Option<String>>> {
        let text = |bytes: &Vec<u8>| String::from_utf8(bytes.clone()).unwrap();
        let all = self.0.lock().unwrap();
        all.iter()
            .map(|(path, all)| {
                (path.to_string(), all.iter().map(|(_, _, bytes)| bytes.as_ref().map(text)).collect())
            })
            .collect()
    }

    fn current(&self, path: &FilePath) -> Option<FileContent> {
        let all = self.0.lock().unwrap();
        let versions = all.get(path)?;
        let (author, _, bytes) = versions.last()?;
        let bytes = bytes.clone()?;
        let (size, version) = (bytes.len() as u64, versions.len() as u64);
        let entry = FileEntry { path: path.clone(), size, version, author: author.clone() };
        Some(FileContent { entry, bytes })
    }

    fn append(
        &self,
        path: &FilePath,
        bytes: Option<Vec<u8>>,
        expected: WriteCondition,
        key: &str,
    ) -> Result<u64, FilesError> {
        let has_key = |(_, other, _): &(String, String, Option<Vec<u8>>)| other == key;
        if let Some(at) = self.0.lock().unwrap().get(path).and_then(|all| all.iter().position(has_key)) {
            return Ok(at as u64 + 1);
        }
        let current = self.current(path);
        let fits = match expected {
            WriteCondition::Always => true,
            WriteCondition::Absent => current.is_none(),
            WriteCondition::Version(version) => {
                current.as_ref().is_some_and(|now| now.entry.version == version)
            }
        };
        if !fits {
            return Err(FilesError::Stale { path: path.clone(), current: current.map(Box::new) });
        }
        let mut all = self.0.lock().unwrap();
        let versions = all.entry(path.clone()).or_default();
        versions.push(("this task".into(), key.into(), bytes));
        Ok(versions.len() as u64)
    }
}

impl Files for Workspace {
    fn list<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<FileEntry>, FilesError>> {
        let paths: Vec<FilePath> = self.0.lock().unwrap().keys().cloned().collect();
        let entries = paths.iter().filter_map(|path| self.current(path)).map(|content| content.entry);
        ready(Ok(entries.collect())).boxed()
    }

    fn read<'a>(&'a self, path: &'a FilePath) -> BoxFuture<'a, Result<Option<FileContent>, FilesError>> {
        ready(Ok(self.current(path))).boxed()
    }

    fn write<'a>(
        &'a self,
        path: &'a FilePath,
        bytes: Vec<u8>,
        expected: WriteCondition,
        key: &'a str,
    ) -> BoxFuture<'a, Result<u64, FilesError>> {
        ready(self.append(path, Some(bytes), expected, key)).boxed()
    }

    fn delete<'a>(
        &'a self,
        path: &'a FilePath,
        expected: WriteCondition,
        key: &'a str,
    ) -> BoxFuture<'a, Result<(), FilesError>> {
        ready(self.append(path, None, expected, key).map(drop)).boxed()
    }
}

/// A program in a folder: it gets the files, runs a script, and hands its changes over.
struct Program {
    files: AgentFiles,
    runs: Arc<AtomicUsize>,
    /// What others do to the files while it runs.
    meanwhile: fn(&Workspace),
    workspace: Arc<Workspace>,
}

impl Tool for Program {
    fn spec(&self) -> ToolSpec {
        let schema =
            json!({"type": "object", "properties": {"script": {"type": "string"}}, "required": ["script"]});
        ToolSpec { name: "program".into(), description: "Runs a script.".into(), schema: schema.into() }
    }

    fn effect(&self) -> Effect {
        Effect::Effect
    }

    fn call<'a>(&'a self, arguments: Value, _: &'a Call) -> BoxFuture<'a, Result<Output, ToolError>> {
        async move {
            self.runs.fetch_add(1, Ordering::SeqCst);
            let folder = tempfile::tempdir().unwrap();
            let settings = ProgramFiles::default();
            let mut copy = WorkingCopy::open(self.files.clone(), settings, folder.path()).unwrap();
            copy.update_folder().await.unwrap();
            run_script(folder.path(), arguments["script"].as_str().unwrap());
            (self.meanwhile)(&self.workspace);
            let changes = copy.find_changes(false).await.unwrap();
            // The folder is needed until the contents are recorded.
            std::mem::forget(folder);
            Ok(Output { changes: Some(Box::new(changes)), ..String::from("it ran").into() })
        }
        .boxed()
    }
}

fn run_script(folder: &Path, script: &str) {
    let status = Command::new("sh").args(["-c", script]).current_dir(folder).status().unwrap();
    assert!(status.success());
}

const SCRIPT: &str =
    "wc -l < in.txt > out/lines.txt 2>/dev/null || { mkdir out; wc -l < in.txt > out/lines.txt; }
sed s/a/b/ in.txt > new.txt; mv new.txt in.txt; rm old.txt";

fn rules() -> StateRules {
    serde_json::from_value(json!({
        "fields": {
            "count": {
                "schema": {"type": "integer"}, "default": 0, "access": "readwrite",
                "policies": [{"on": ["set"], "max": 5.0}],
            },
        },
        "conditions": {"program": "phase == 'work'"},
        "phases": [{"from": "plan", "to": "work", "when": "state.count > 0"}],
    }))
    .unwrap()
}

fn replies() -> Vec<Reply> {
    let call = |id: &str, tool: &str, arguments: Value| named(id, tool, &arguments.to_string());
    vec![
        calls(vec![
            call("a", "set_count", json!({"value": 9})),
            call("b", "program", json!({"script": "true"})),
            call("c", "get_count", json!({})),
        ]),
        calls(vec![call("d", "set_count", json!({"value": 1}))]),
        calls(vec![call("e", "program", json!({"script": SCRIPT}))]),
        calls(vec![call("f", "get_count", json!({}))]),
        says("done"),
    ]
}

/// The end of the work, its journal, the runs of the program, and the requests for each turn.
struct Ended {
    summary: WorkSummary<PlainText>,
    journal: MemoryHost,
    runs: usize,
    requests: BTreeMap<usize, usize>,
}

async fn work(workspace: &Arc<Workspace>, held: &[JournalStep], meanwhile: fn(&Workspace)) -> Ended {
    let files = AgentFiles::unrestricted(workspace.clone());
    let runs = Arc::new(AtomicUsize::new(0));
    let (own, counter) = (workspace.clone(), runs.clone());
    let program: Arc<dyn Tool> =
        Arc::new(Program { files: files.clone(), runs: counter, meanwhile, workspace: own });
    let tools = Toolbox::new(create_state_tools(&rules()).into_iter().chain([program])).unwrap();
    let model = Scripted::new(replies());
    let mut journal = MemoryHost::with_steps(held.to_vec());
    let mut conversation = conversation(&model, &tools);
    (conversation.attempt, conversation.agent_files) = (attempt(), Some(files));
    conversation.state = Some(rules());
    let summary = support::drive(conversation, &mut journal).await.unwrap();
    Ended { summary, journal, runs: runs.load(Ordering::SeqCst), requests: model.requests_by_turn() }
}

fn before() -> Arc<Workspace> {
    Workspace::with(&[("/in.txt", "a\na\n"), ("/old.txt", "old"), ("/other.txt", "other")])
}

/// A workspace as it is when a worker is lost after some of the writes.
fn after_writes(whole: &Workspace, writes: usize) -> Arc<Workspace> {
    let partial = before();
    let mut left = writes;
    for (path, versions) in whole.0.lock().unwrap().iter() {
        for version in versions.iter().filter(|(author, _, _)| author == "this task").take(left) {
            partial.0.lock().unwrap().entry(path.clone()).or_default().push(version.clone());
            left -= 1;
        }
    }
    partial
}

fn result_text(journal: &MemoryHost, step: &str) -> String {
    let step = journal.steps().iter().find(|recorded| recorded.name == step).unwrap();
    step.value["text"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn attempt_with_state_and_a_program_is_resumed_after_any_step() {
    let workspace = before();
    let whole = work(&workspace, &[], |_| {}).await;
    assert_eq!(whole.summary.outcome, WorkOutcome::Answered(PlainText("done".into())));
    let steps = names(&whole.journal);
    let expected = [
        "model.0",
        "model.1",
        "model.2",
        "begin.2",
        "files.2.0.program",
        "tool.2.0.program",
        "model.3",
        "model.4",
    ];
    assert_eq!(steps, expected);
    assert_eq!(
        result_text(&whole.journal, "tool.2.0.program"),
        "it ran\n[Files: changed /in.txt (version 2, 4 bytes); deleted /old.txt; created /out/lines.txt (version 1, 2 bytes)]"
    );
    let artifacts: Vec<(&str, u64)> =
        whole.summary.artifacts.iter().map(|made| (made.path.as_str(), made.version)).collect();
    assert_eq!(artifacts, [("/in.txt", 2), ("/out/lines.txt", 1)]);
    let refused = &whole.journal.steps()[1].value["sent"]["results"];
    let texts: Vec<&str> = (0..3).map(|at| refused[at]["text"].as_str().unwrap()).collect();
    assert_eq!(
        texts,
        [
            "count was not changed: the number must be at most 5. It is still 0.",
            "program is not available now: it is available where phase == 'work'. It was not run.",
            "0",
        ]
    );
    let told = &whole.journal.steps()[2].value["sent"]["user"];
    assert_eq!(*told, json!(["The phase has changed from plan to work."]));
    let (files_at, tool_at) = (5, 6);
    for prefix in 0..=steps.len() {
        let partial = if prefix == files_at { 0..=3 } else { 0..=0 };
        for writes in partial {
            let written = if prefix >= tool_at { 3 } else { writes };
            let store = after_writes(&workspace, written);
            let held = &whole.journal.steps()[..prefix];
            let resumed = work(&store, held, |_| {}).await;
            let what = format!("after {prefix} steps and {writes} writes");
            let is_unknown = prefix == files_at - 1;
            assert_eq!(resumed.runs, usize::from(prefix < files_at - 1), "{what}: runs of the program");
            let asked = |turn: usize| !held.iter().any(|step| step.name == format!("model.{turn}"));
            let expected: BTreeMap<usize, usize> =
                (0..5).filter(|turn| asked(*turn)).map(|turn| (turn, 1)).collect();
            assert_eq!(resumed.requests, expected, "{what}");
            if is_unknown {
                // The program may have run, and nothing of it is recorded: its outcome is unknown, and nothing is written.
                let text = result_text(&resumed.journal, "tool.2.0.program");
                assert!(text.starts_with("It is unknown whether this call took effect"), "{text}");
                assert_eq!(store.texts(), before().texts());
                continue;
            }
            assert_eq!(resumed.summary.outcome, whole.summary.outcome, "{what}");
            assert_eq!(resumed.summary.artifacts, whole.summary.artifacts, "{what}");
            assert_eq!(store.texts(), workspace.texts(), "{what}: each change is there once");
            assert_eq!(
                result_text(&resumed.journal, "tool.2.0.program"),
                result_text(&whole.journal, "tool.2.0.program"),
                "{what}"
            );
        }
    }
}

#[tokio::test]
async fn conflicting_changes_lose_nothing() {
    let workspace = before();
    let meanwhile = |workspace: &Workspace| {
        workspace.put("/in.txt", "task other", "changed by another task");
        workspace.put("/old.txt", "task other", "still needed");
        workspace.put("/out/lines.txt", "task other", "their lines");
    };
    let ended = work(&workspace, &[], meanwhile).await;
    let text = result_text(&ended.journal, "tool.2.0.program");
    assert_eq!(
        text,
        "it ran\n[Files: created /in.conflict-t1.2.2.0.txt (version 1, 4 bytes); created /out/lines.conflict-t1.2.2.0.txt \
         (version 1, 2 bytes)]\n[Conflicts: /in.txt was not changed: task other has changed it since; its version is 2; the \
         program's content is in /in.conflict-t1.2.2.0.txt; /old.txt was not deleted: task other has changed it since; its \
         version is 2; /out/lines.txt was not changed: task other has changed it since; its version is 1; the \
         program's content is in /out/lines.conflict-t1.2.2.0.txt]"
    );
    let texts = workspace.texts();
    let newest = |path: &str| texts[path].last().unwrap().clone().unwrap();
    assert_eq!(newest("/in.txt"), "changed by another task");
    assert_eq!(newest("/in.conflict-t1.2.2.0.txt"), "b\nb\n");
    assert_eq!(newest("/old.txt"), "still needed");
}

#[tokio::test]
async fn stored_machine_keeps_state_and_phase() {
    let workspace = before();
    let program: Arc<dyn Tool> = Arc::new(Program {
        files: AgentFiles::unrestricted(workspace.clone()),
        runs: Arc::default(),
        meanwhile: |_| {},
        workspace,
    });
    let tools = Toolbox::new(create_state_tools(&rules()).into_iter().chain([program])).unwrap();
    let mut machine = Machine::<PlainText>::new(brief(&tools, None)).with_state(Some(rules()));
    for reply in replies().into_iter().take(2) {
        let stored = serde_json::to_value(&machine).unwrap();
        machine = serde_json::from_value(stored).unwrap();
        machine.feed_reply(reply, std::time::Duration::ZERO).unwrap();
    }
    let stored: Machine<PlainText> = serde_json::from_value(serde_json::to_value(&machine).unwrap()).unwrap();
    let state = stored.agent_state().unwrap();
    assert_eq!((state.phase(), state.value("count")), ("work", Some(&json!(1))));
    assert_eq!(stored.next_step(), machine.next_step());
}
