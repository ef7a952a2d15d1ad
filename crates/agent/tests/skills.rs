//! Skills: the list in the prompt, files on demand, and the same content on every worker that takes an attempt over.

use std::collections::BTreeMap;
use std::fs;
use std::future::ready;
use std::path::Path;
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_agent::files::FolderFiles;
use millrace_agent::model::{Message, ModelFactory, Request};
use millrace_agent::session::tools::BuiltInToolNames;
use millrace_agent::session::{AgentHost, AgentSession, HostSettings, SessionEnvironment, SessionError};
use millrace_agent::skills::load_skills;
use millrace_agent::sources::{OrderInputError, OrderInputs};
use millrace_agent::spec::AgentSpec;
use millrace_agent::turn::{Host, JournalStep, MemoryHost};
use millrace_protocol::ids::{RunId, TaskId};
use millrace_protocol::plan::Work;
use millrace_protocol::result::{TaskError, TaskResult};
use millrace_protocol::wire::InlineOrStoredBytes;
use millrace_protocol::work::{InputResult, Order};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

const CLERK: &str = "\
name: clerk
description: Writes letters.
instructions: You write letters.
tools: [read_file, edit_file, delete, ls, grep, write_file]
skills: [./skills]
";

/// Blobs by their SHA-256, shared by all workers of a run.
#[derive(Clone, Default)]
struct Blobs(Arc<Mutex<BTreeMap<String, Vec<u8>>>>);

impl OrderInputs for Blobs {
    fn read_result<'a>(&'a self, _: &'a InputResult) -> BoxFuture<'a, Result<TaskResult, OrderInputError>> {
        ready(Err(OrderInputError::Broken("no results".into()))).boxed()
    }

    fn read_blob<'a>(&'a self, sha256: &'a str) -> BoxFuture<'a, Result<Vec<u8>, OrderInputError>> {
        let blob = self.0.lock().unwrap().get(sha256).cloned();
        ready(blob.ok_or_else(|| OrderInputError::Broken(format!("there is no blob {sha256}")))).boxed()
    }
}

/// A journal in memory with a blob store.
#[derive(Default)]
struct StoringJournal {
    journal: MemoryHost,
    blobs: Blobs,
}

impl Host for StoringJournal {
    fn replay<'a>(
        &'a mut self,
        names: &'a [String],
    ) -> BoxFuture<'a, Result<Option<(usize, Value)>, TaskError>> {
        self.journal.replay(names)
    }

    fn peek(&mut self) -> BoxFuture<'_, Result<Option<(String, Value)>, TaskError>> {
        self.journal.peek()
    }

    fn record<'a>(&'a mut self, name: &'a str, value: &'a Value) -> BoxFuture<'a, Result<(), TaskError>> {
        self.journal.record(name, value)
    }

    fn store_blob(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, Result<(), TaskError>> {
        let name = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        self.blobs.0.lock().unwrap().insert(name, bytes);
        ready(Ok(())).boxed()
    }
}

/// A worker with its own folder of skills.
struct Worker {
    folder: TempDir,
    file: &'static str,
    /// The conversation that the attempt continues, as recorded.
    continued: Option<Vec<u8>>,
}

impl Worker {
    fn new(file: &'static str) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), file, continued: None }
    }

    /// Adds a skill: its front matter after the name, its instructions, and the text of a reference.
    fn with_skill(self, name: &str, front_matter: &str, body: &str) -> Self {
        let folder = self.folder.path().join("skills").join(name);
        fs::create_dir_all(folder.join("references")).unwrap();
        fs::write(folder.join("SKILL.md"), format!("---\nname: {name}\n{front_matter}\n---\n{body}\n"))
            .unwrap();
        fs::write(folder.join("references/tone.md"), format!("tone of {body}\n")).unwrap();
        self
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// The requests to the model, in order.
    fn requests(&self) -> Vec<Request> {
        let read = |line: &str| {
            let mut entry: Value = serde_json::from_str(line).unwrap();
            serde_json::from_value(entry["request"].take()).unwrap()
        };
        fs::read_to_string(self.path("requests")).unwrap_or_default().lines().map(read).collect()
    }

    /// Runs the attempt from what the journal holds. The files of the run are in `workspace`.
    async fn run(
        &self,
        turns: &[Value],
        workspace: &Path,
        journal: &mut StoringJournal,
    ) -> Result<TaskResult, SessionError> {
        let script = self.path("model.yaml");
        fs::write(&script, json!({"rules": [{ "turns": turns }]}).to_string()).unwrap();
        let spec = AgentSpec::parse(self.file.as_bytes(), &BuiltInToolNames).unwrap();
        let folders: Vec<_> = spec.skills.iter().map(|folder| self.path("").join(folder)).collect();
        let run = RunId::new("r").unwrap();
        let work = Work::Task { task: TaskId::new("t").unwrap(), attempt: 1 };
        let order = Order {
            own_model: Some(format!("script:{}", script.display())),
            fork: self.continued.clone().map(|bytes| Box::new(InlineOrStoredBytes::Inline(bytes.into()))),
            ..Order::new(run.clone(), run.lane(1), work, "Write to the miller.", spec.about.name.clone())
        };
        let factory = ModelFactory { record_file: Some(self.path("requests")), ..ModelFactory::default() };
        let host = AgentHost::new(HostSettings { factory, ..HostSettings::default() }).unwrap();
        let sources = Arc::new(journal.blobs.clone());
        let env = SessionEnvironment {
            files: Some(Arc::new(FolderFiles::open(workspace).unwrap())),
            skills: load_skills(&folders).unwrap().skills,
            ..SessionEnvironment::new(sources, journal)
        };
        AgentSession::prepare(&host, &spec, &order, env).await?.run_work().await
    }
}

fn letter_writer() -> Worker {
    let skill = "description: Format of letters.\nallowed-tools: write_file";
    Worker::new(CLERK).with_skill("letters", skill, "Be polite.")
}

fn call(tool: &str, arguments: Value) -> Value {
    json!({"calls": [{ tool: arguments }]})
}

fn read(path: &str) -> Value {
    call("read_file", json!({ "file_path": path }))
}

/// The results of calls in a request.
fn results(request: &Request) -> Vec<(String, bool)> {
    let result = |message: &Message| match message {
        Message::Tool(result) => Some((result.text.clone(), result.is_error)),
        Message::User { .. } | Message::Assistant { .. } => None,
    };
    request.messages.iter().filter_map(result).collect()
}

#[tokio::test]
async fn prompt_has_the_list_and_files_are_read_on_demand() {
    let (worker, workspace) = (letter_writer(), tempfile::tempdir().unwrap());
    let turns = [
        read("/skills/letters/SKILL.md"),
        read("/skills/letters/references/tone.md"),
        call("ls", json!({"path": "/skills"})),
        json!({"text": "Dear miller"}),
    ];
    let result = worker.run(&turns, workspace.path(), &mut StoringJournal::default()).await.unwrap();
    assert_eq!(result.output, "Dear miller");
    let requests = worker.requests();
    let system = &requests[0].system;
    assert!(system.starts_with("You write letters.\n\n## Skills\n\n"), "{system}");
    assert!(system.ends_with("\n- letters: Format of letters. (/skills/letters/SKILL.md)"), "{system}");
    assert!(!system.contains("Be polite."), "the instructions are read on demand");
    let results = results(&requests[3]);
    assert!(
        results[0].0.contains("Be polite.") && results[1].0.contains("tone of Be polite."),
        "{results:?}"
    );
    assert!(results[2].0.contains("letters"), "{results:?}");
}

#[tokio::test]
async fn agents_without_skills_have_the_same_prompt_as_before() {
    let worker =
        Worker::new("name: clerk\ndescription: x\ninstructions: You write letters.\ntools: [read_file]\n")
            .with_skill("letters", "description: x", "y");
    let workspace = tempfile::tempdir().unwrap();
    let turns = [read("/skills/letters/SKILL.md"), json!({"text": "done"})];
    worker.run(&turns, workspace.path(), &mut StoringJournal::default()).await.unwrap();
    let requests = worker.requests();
    assert_eq!(requests[0].system, "You write letters.");
    assert!(results(&requests[1])[0].1, "there is no file below /skills");
}

#[tokio::test]
async fn skills_are_never_changed() {
    let (worker, workspace) = (letter_writer(), tempfile::tempdir().unwrap());
    let path = "/skills/letters/SKILL.md";
    let turns = [
        read(path),
        call("write_file", json!({"file_path": path, "content": "Be rude."})),
        call("write_file", json!({"file_path": "/skills/letters/new.md", "content": "x"})),
        call("edit_file", json!({"file_path": path, "old_string": "polite", "new_string": "rude"})),
        call("delete", json!({"file_path": path})),
        call("write_file", json!({"file_path": "/skills/../letters.md", "content": "x"})),
        read(path),
        json!({"text": "done"}),
    ];
    worker.run(&turns, workspace.path(), &mut StoringJournal::default()).await.unwrap();
    let results = results(worker.requests().last().unwrap());
    for (text, is_error) in &results[1..5] {
        assert!(
            *is_error && text.contains("skills are read-only; write to a path outside of /skills"),
            "{text}"
        );
    }
    assert!(results[5].1, "{}", results[5].0);
    assert!(results[6].0.contains("Be polite."), "{}", results[6].0);
    assert_eq!(fs::read_dir(workspace.path()).unwrap().count(), 0, "nothing is written to the workspace");
}

#[tokio::test]
async fn attempt_taken_over_after_any_step_has_the_skills_that_it_began_with() {
    let first = letter_writer();
    let turns = [
        read("/skills/letters/SKILL.md"),
        call("ls", json!({"path": "/skills"})),
        read("/skills/letters/references/tone.md"),
        json!({"text": "Dear miller"}),
    ];
    let workspace = tempfile::tempdir().unwrap();
    let mut whole = StoringJournal::default();
    first.run(&turns, workspace.path(), &mut whole).await.unwrap();
    let expected = first.requests().pop().unwrap();
    let steps: Vec<JournalStep> = whole.journal.steps().to_vec();
    assert!(steps[0].value.to_string().contains("\"sha256\""), "{}", steps[0].value);
    for after in 1..steps.len() {
        let second = Worker::new(CLERK)
            .with_skill("letters", "description: Other letters.", "Be rude.")
            .with_skill("more", "description: More.", "More.");
        let workspace = tempfile::tempdir().unwrap();
        let blobs = whole.blobs.clone();
        let journal = MemoryHost::with_steps(steps[..after].to_vec());
        let mut journal = StoringJournal { journal, blobs };
        let result = second.run(&turns, workspace.path(), &mut journal).await.unwrap();
        assert_eq!(result.output, "Dear miller");
        if let Some(last) = second.requests().pop() {
            assert_eq!(last.system, expected.system, "after {after} steps");
            assert_eq!(last.messages, expected.messages, "after {after} steps");
        }
        assert_eq!(journal.journal.steps()[0], steps[0]);
    }
    // If the stored files are missing, the attempt fails with the reason.
    let journal = MemoryHost::with_steps(steps[..1].to_vec());
    let mut journal = StoringJournal { journal, blobs: Blobs::default() };
    let second = Worker::new(CLERK).with_skill("letters", "description: Other letters.", "Be rude.");
    let error = second.run(&turns, workspace.path(), &mut journal).await.unwrap_err().to_string();
    assert!(error.contains("there is no blob"), "{error}");
}

#[tokio::test]
async fn tools_are_offered_once_a_skill_that_lists_them_was_read() {
    const FILE: &str = "\
name: clerk
description: Writes letters.
instructions: You have {{ state.letters }} letters.
state: {letters: {schema: {type: integer}, default: 0, access: hidden}}
tools:
- read_file
- write_file: {when: \"'write_file' in skills.tools\"}
- delete: {when: \"'other' in skills.read\"}
skills: [./skills]
";
    let skill = "description: Format of letters.\nallowed-tools: write_file";
    let worker = Worker::new(FILE).with_skill("letters", skill, "Be polite.");
    let workspace = tempfile::tempdir().unwrap();
    let write = || call("write_file", json!({"file_path": "/draft.md", "content": "Dear miller"}));
    let turns = [write(), read("/skills/letters/SKILL.md"), write(), json!({"text": "done"})];
    worker.run(&turns, workspace.path(), &mut StoringJournal::default()).await.unwrap();
    let requests = worker.requests();
    let offered = |at: usize| requests[at].tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>();
    assert_eq!(offered(0), ["read_file"]);
    assert_eq!(offered(2), ["read_file", "write_file"]);
    let results = results(&requests[3]);
    assert!(results[0].1 && results[0].0.contains("write_file is not available now"), "{results:?}");
    assert!(workspace.path().join("draft.md").exists());
    // A prompt that shows the state keeps the list.
    for request in &requests {
        assert!(request.system.starts_with("You have 0 letters.\n\n## Skills"), "{}", request.system);
    }
}

#[test]
fn mistakes_in_the_field_are_reported() {
    let parse = |text: &str| AgentSpec::parse(text.as_bytes(), &BuiltInToolNames);
    let base = "name: a\ndescription: b\ninstructions: c\n";
    for (more, expected) in [
        ("skills: [./skills]", "add it to \"tools\""),
        ("tools: [read_file]\nskills: []", "a list of 1 to 16 folders"),
        ("tools: [read_file]\nskills: ['']", "the path of a folder"),
        ("tools: [read_file: {when: \"'a' in skills.read\"}]", "there are no skills"),
        (
            "tools: [read_file, ls: {when: \"'a' in skills.raed\"}]\nskills: [x]",
            "the names are skills.read and skills.tools",
        ),
    ] {
        let mistake = parse(&format!("{base}{more}\n")).unwrap_err().to_string();
        assert!(mistake.contains(expected), "{mistake}");
    }
    assert!(parse(&format!("{base}tools: [read_file]\nskills: [x, /y]\n")).is_ok());
}

#[tokio::test]
async fn conversation_that_continues_keeps_its_skills() {
    const FILE: &str = "\
name: clerk
description: Writes letters.
instructions: You write letters.
tools: [read_file]
skills: [./skills]
revise: same_conversation
";
    let first = Worker::new(FILE).with_skill("letters", "description: Format of letters.", "Be polite.");
    let workspace = tempfile::tempdir().unwrap();
    let mut journal = StoringJournal::default();
    let turns = [read("/skills/letters/SKILL.md"), json!({"text": "Dear miller"})];
    first.run(&turns, workspace.path(), &mut journal).await.unwrap();
    let last = journal.journal.steps().last().unwrap().clone();
    assert_eq!(last.name, "conversation");

    let mut second = Worker::new(FILE).with_skill("letters", "description: Other letters.", "Be rude.");
    second.continued = Some(last.value.to_string().into_bytes());
    let mut next = StoringJournal { blobs: journal.blobs.clone(), ..StoringJournal::default() };
    let unused = json!({"text": "unused"});
    let turns = [unused.clone(), unused, read("/skills/letters/references/tone.md"), json!({"text": "done"})];
    second.run(&turns, workspace.path(), &mut next).await.unwrap();
    let request = second.requests().pop().unwrap();
    assert!(request.system.contains("Format of letters."), "{}", request.system);
    assert!(results(&request)[1].0.contains("tone of Be polite."), "{:?}", results(&request));
    let recorded = next.journal.steps()[0].value["skills"].to_string();
    assert!(recorded.contains("Format of letters."), "{recorded}");
}
