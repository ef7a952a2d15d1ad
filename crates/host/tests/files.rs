//! The file tools of several agents over one workspace on a real server: an edit of a stale version is refused and shows
//! the current content, and no change is lost or applied twice.

use std::collections::BTreeMap;
use std::sync::Arc;

use millrace_agent::files::permissions::CompiledPermissions;
use millrace_agent::files::{FilePath, Files, FilesError, WriteCondition};
use millrace_agent::tool::files::create_file_tools;
use millrace_agent::tool::{Call, Tool, ToolError, ToolResult};
use millrace_host::NatsFiles;
use millrace_protocol::ids::{Capability, Lane, RunId, TaskId};
use millrace_protocol::plan::Work;
use millrace_protocol::work::{Assignment, Order};
use millrace_runtime::nats::topology::ClusterOptions;
use millrace_runtime::store::workspace::RunWorkspace;
use millrace_runtime::{Bus, ConnectionSettings};
use millrace_tests::NatsServer;
use serde_json::{Value, json};

async fn connect_bus(server: &NatsServer) -> Bus {
    let connection = ConnectionSettings::unauthenticated(server.url.clone());
    Bus::connect_and_ensure_cluster(&connection, "test", &ClusterOptions::default())
        .await
        .expect("the cluster is created")
}

fn build_order(run: &str, task: &str) -> Order {
    let run = RunId::new(run).expect("a valid name");
    let work = Work::Task { task: TaskId::new(task).expect("a valid name"), attempt: 1 };
    Order::new(run, Lane(0), work, "o", Capability::new("c").expect("a valid name"))
}

/// An agent that adds lines to a file and reacts to refusals as a model would.
struct EditingAgent {
    bus: Bus,
    order: Order,
    tools: BTreeMap<String, Arc<dyn Tool>>,
    turn: u64,
    /// The lines that it still has to add, the next one last.
    pending: Vec<String>,
    has_read: bool,
    refusals: Vec<String>,
    /// The recorded tool calls and their results.
    record: Vec<(String, Value, ToolResult, Call)>,
}

impl EditingAgent {
    fn new(bus: &Bus, run: &str, name: &str, lines: usize) -> Self {
        let order = build_order(run, name);
        Self {
            bus: bus.clone(),
            tools: open_file_tools(bus, &order),
            order,
            turn: 0,
            pending: (0..lines).rev().map(|line| format!("{name}-{line}")).collect(),
            has_read: false,
            refusals: Vec::new(),
            record: Vec::new(),
        }
    }

    async fn call_tool(&mut self, tool: &str, arguments: Value) -> Result<String, String> {
        let call = self.next_call();
        let outcome = run_tool(&self.tools[tool], &arguments, &call).await;
        let text = outcome.clone().unwrap_or_else(|text| text);
        let result = ToolResult { call_id: "c".into(), text, is_error: outcome.is_err(), images: Vec::new() };
        self.record.push((tool.to_owned(), arguments, result, call));
        self.turn += 1;
        outcome
    }

    fn next_call(&self) -> Call {
        let Assignment::Task { task, .. } = &self.order.assignment else { panic!("it is a task") };
        Call {
            key: format!("{}/{task}/1/{}.0", self.order.run, self.turn),
            turn: self.turn,
            ..Call::default()
        }
    }

    /// Takes the next step: reads the file once, then adds lines; a refused edit is retried in the next step.
    async fn run_next_step(&mut self) {
        if !self.has_read {
            self.call_tool("read_file", json!({"file_path": "/shared.md"})).await.expect("the file exists");
            self.has_read = true;
            return;
        }
        let line = self.pending.last().expect("a line is pending").clone();
        match self.call_tool("edit_file", edit_arguments(&line)).await {
            Ok(_) => drop(self.pending.pop()),
            Err(refusal) => self.refusals.push(refusal),
        }
    }

    /// Makes the next change, and crashes before it is recorded.
    async fn run_step_and_lose_agent(&mut self) {
        if let (true, Some(line)) = (self.has_read, self.pending.last()) {
            // The result is lost in the crash.
            let _ = run_tool(&self.tools["edit_file"], &edit_arguments(line), &self.next_call()).await;
        }
        self.resume_after_crash();
    }

    /// Resumes in another process, with the recorded calls.
    fn resume_after_crash(&mut self) {
        self.tools = open_file_tools(&self.bus, &self.order);
        for (name, arguments, result, call) in &self.record {
            self.tools[name].on_replay(arguments, result, call);
        }
    }
}

fn edit_arguments(line: &str) -> Value {
    json!({"file_path": "/shared.md", "old_string": "END\n", "new_string": format!("{line}\nEND\n")})
}

fn open_file_tools(bus: &Bus, order: &Order) -> BTreeMap<String, Arc<dyn Tool>> {
    let tools = create_file_tools(Arc::new(NatsFiles::new(bus, order)), CompiledPermissions::default());
    tools.into_iter().map(|tool| (tool.spec().name, tool)).collect()
}

async fn run_tool(tool: &Arc<dyn Tool>, arguments: &Value, call: &Call) -> Result<String, String> {
    match tool.call(arguments.clone(), call).await {
        Ok(output) => Ok(output.text),
        Err(ToolError::Refused(text)) => Err(text),
        Err(other) => panic!("{other:?}"),
    }
}

async fn begin_run(bus: &Bus, run: &str) {
    let first = NatsFiles::new(bus, &build_order(run, "first"));
    let path = FilePath::new("/shared.md").expect("a valid path");
    let expected = millrace_agent::files::WriteCondition::Absent;
    first.write(&path, b"BEGIN\nEND\n".to_vec(), expected, "first").await.expect("the file is new");
}

/// Asserts that every line is in the file once, those of each agent in order, and that every version is one change.
async fn check_lines_survived(bus: &Bus, run: &str, agents: &[EditingAgent], lines: usize) {
    let workspace = RunWorkspace::new(bus, &RunId::new(run).expect("a valid name"));
    let path = FilePath::new("/shared.md").expect("a valid path");
    let file = workspace.read_file(&path).await.expect("the server responds").expect("the file exists");
    let text = String::from_utf8(file.bytes).expect("UTF-8");
    for agent in agents {
        let Assignment::Task { task, .. } = &agent.order.assignment else { panic!("it is a task") };
        let actual: Vec<&str> = text.lines().filter(|line| line.starts_with(&format!("{task}-"))).collect();
        let expected: Vec<String> = (0..lines).map(|line| format!("{task}-{line}")).collect();
        assert_eq!(actual, expected, "{run}: {text}");
    }
    assert_eq!(file.entry.version as usize, 1 + agents.len() * lines, "{run}: each change is one version");
    for refusal in agents.iter().flat_map(|agent| &agent.refusals) {
        assert!(
            refusal.starts_with("Error: /shared.md was changed since you read it, by task "),
            "{refusal}"
        );
        assert!(refusal.contains("\nBEGIN\n") && refusal.ends_with("END\n"), "{refusal}");
    }
}

#[tokio::test]
async fn a_conflicting_edit_is_refused_and_then_succeeds() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    begin_run(&bus, "r").await;
    let (mut one, mut two) = (EditingAgent::new(&bus, "r", "one", 1), EditingAgent::new(&bus, "r", "two", 1));
    one.run_next_step().await;
    two.run_next_step().await;
    one.run_next_step().await;
    two.run_next_step().await;
    let [refusal] = two.refusals.as_slice() else { panic!("{:?}", two.refusals) };
    assert!(refusal.contains("by task one; nothing was changed. It has version 2\n"), "{refusal}");
    assert!(refusal.contains("\nBEGIN\none-0\nEND\n"), "{refusal}");
    two.run_next_step().await;
    check_lines_survived(&bus, "r", &[one, two], 1).await;
}

#[tokio::test]
async fn no_edit_is_lost_or_repeated_in_any_interleaving() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let mut refusals = 0;
    for seed in 0..60 {
        let mut dice = fastrand::Rng::with_seed(seed);
        let (run, lines) = (format!("r{seed}"), dice.usize(1..4));
        begin_run(&bus, &run).await;
        let names = ["one", "two", "three"];
        let mut agents: Vec<EditingAgent> =
            names[..dice.usize(2..4)].iter().map(|name| EditingAgent::new(&bus, &run, name, lines)).collect();
        while agents.iter().any(|agent| !agent.pending.is_empty()) {
            let busy: Vec<usize> = (0..agents.len()).filter(|at| !agents[*at].pending.is_empty()).collect();
            let agent = &mut agents[busy[dice.usize(..busy.len())]];
            match dice.u8(..5) {
                0 => agent.run_step_and_lose_agent().await,
                1 => agent.resume_after_crash(),
                _ => agent.run_next_step().await,
            }
        }
        check_lines_survived(&bus, &run, &agents, lines).await;
        refusals += agents.iter().map(|agent| agent.refusals.len()).sum::<usize>();
    }
    assert!(refusals > 30, "edits conflicted: {refusals}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_edits_are_not_lost() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    begin_run(&bus, "r").await;
    let lines = 10;
    let working = (0..6).map(|number| {
        let mut agent = EditingAgent::new(&bus, "r", &format!("a{number}"), lines);
        tokio::spawn(async move {
            while !agent.pending.is_empty() {
                agent.run_next_step().await;
            }
            agent
        })
    });
    let agents: Vec<EditingAgent> = futures::future::join_all(working.collect::<Vec<_>>())
        .await
        .into_iter()
        .map(|agent| agent.expect("no panic"))
        .collect();
    assert!(agents.iter().any(|agent| !agent.refusals.is_empty()), "edits conflicted");
    check_lines_survived(&bus, "r", &agents, lines).await;
}

#[tokio::test]
async fn agents_of_two_runs_share_the_memories() {
    let server = NatsServer::start();
    let bus = connect_bus(&server).await;
    let path = FilePath::new("/team.md").expect("a path");
    let [first, second] = ["r1", "r2"].map(|run| NatsFiles::of_memories(&bus, &build_order(run, "t")));
    first.write(&path, b"one\n".to_vec(), WriteCondition::Absent, "r1/t/1/0.0").await.expect("it is new");
    let read = second.read(&path).await.expect("it is readable").expect("it is there");
    assert_eq!((read.bytes, read.entry.author.as_str()), (b"one\n".to_vec(), "task t of run r1"));
    let run = NatsFiles::new(&bus, &build_order("r1", "t"));
    assert_eq!(run.list("/").await.expect("a list"), vec![], "the files of a run are others");

    // Both have read version 1 and append a line.
    let write = async |files: &NatsFiles, text: &str, version: u64, key: &str| {
        files.write(&path, text.as_bytes().to_vec(), WriteCondition::Version(version), key).await
    };
    let (a, b) =
        tokio::join!(write(&first, "one\na\n", 1, "r1/t/1/1.0"), write(&second, "one\nb\n", 1, "r2/t/1/0.0"));
    let (winner, loser) = if a.is_ok() { ("a", b) } else { ("b", a) };
    let Err(FilesError::Stale { current: Some(current), .. }) = loser else { panic!("{loser:?}") };
    assert_eq!(current.bytes, format!("one\n{winner}\n").into_bytes());
    let (other, files) = if winner == "a" { ("b", &second) } else { ("a", &first) };
    let both = format!("one\n{winner}\n{other}\n");
    let key = if winner == "a" { "r2/t/1/1.0" } else { "r1/t/1/2.0" };
    write(files, &both, 2, key).await.expect("it has the current content");
    assert_eq!(write(files, &both, 2, key).await.expect("the same write"), 3, "a repetition changes nothing");
    let read = first.read(&path).await.expect("it is readable").expect("it is there");
    assert_eq!(read.bytes, both.into_bytes());
}
