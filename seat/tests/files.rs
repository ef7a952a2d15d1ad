//! The file tools of several agents over one workspace on a real server: whoever would overwrite what another has
//! written is refused and sees it, and in the end every change is there once.

use std::collections::BTreeMap;
use std::sync::Arc;

use millrace_agent::files::permissions::Rules;
use millrace_agent::files::{FilePath, Files};
use millrace_agent::tool::files::file_tools;
use millrace_agent::tool::{Call, Tool, ToolError, ToolResult};
use millrace_protocol::ids::{Capability, Lane, RunId, TaskId};
use millrace_protocol::plan::Work;
use millrace_protocol::work::Order;
use millrace_runtime::topology::Wanted;
use millrace_runtime::workspace::Workspace;
use millrace_runtime::{Bus, Connection};
use millrace_seat::Shared;
use millrace_tests::NatsServer;
use serde_json::{Value, json};

async fn bus(server: &NatsServer) -> Bus {
    let connection = Connection::open(server.url.clone());
    Bus::connect(&connection, "test", &Wanted::default()).await.expect("the cluster is made")
}

fn order(run: &str, task: &str) -> Order {
    let run = RunId::new(run).expect("it is a name");
    let work = Work::Task { task: TaskId::new(task).expect("it is a name"), attempt: 1 };
    Order::new(run, Lane(0), work, "o", Capability::new("c").expect("it is a name"))
}

/// An agent that adds lines to a file, as a model would that reads what it is told.
struct Agent {
    bus: Bus,
    order: Order,
    tools: BTreeMap<String, Arc<dyn Tool>>,
    turn: u64,
    /// The lines that it has still to add, the next one last.
    left: Vec<String>,
    has_read: bool,
    refusals: Vec<String>,
    /// What was called, with what came of it.
    record: Vec<(String, Value, ToolResult, Call)>,
}

impl Agent {
    fn new(bus: &Bus, run: &str, name: &str, lines: usize) -> Self {
        let order = order(run, name);
        Self {
            bus: bus.clone(),
            tools: tools(bus, &order),
            order,
            turn: 0,
            left: (0..lines).rev().map(|line| format!("{name}-{line}")).collect(),
            has_read: false,
            refusals: Vec::new(),
            record: Vec::new(),
        }
    }

    async fn call(&mut self, tool: &str, arguments: Value) -> Result<String, String> {
        let call = self.next();
        let done = run(&self.tools[tool], &arguments, &call).await;
        let text = done.clone().unwrap_or_else(|text| text);
        let result = ToolResult { call_id: "c".into(), text, is_error: done.is_err() };
        self.record.push((tool.to_owned(), arguments, result, call));
        self.turn += 1;
        done
    }

    fn next(&self) -> Call {
        let Work::Task { task, .. } = &self.order.work else { panic!("it is a task") };
        Call {
            key: format!("{}/{task}/1/{}.0", self.order.run, self.turn),
            turn: self.turn,
            ..Call::default()
        }
    }

    /// Does the next thing: reads the file once, then adds a line, again if it is refused.
    async fn step(&mut self) {
        if !self.has_read {
            self.call("read_file", json!({"file_path": "/shared.md"})).await.expect("it is there");
            self.has_read = true;
            return;
        }
        let line = self.left.last().expect("there is something to do").clone();
        match self.call("edit_file", edit(&line)).await {
            Ok(_) => drop(self.left.pop()),
            Err(refusal) => self.refusals.push(refusal),
        }
    }

    /// Makes the next change, and is lost before it is recorded.
    async fn step_and_be_lost(&mut self) {
        if let (true, Some(line)) = (self.has_read, self.left.last()) {
            // Whatever comes of it, nobody hears.
            let _ = run(&self.tools["edit_file"], &edit(line), &self.next()).await;
        }
        self.resume();
    }

    /// Goes on in another process, which is told what was recorded.
    fn resume(&mut self) {
        self.tools = tools(&self.bus, &self.order);
        for (name, arguments, result, call) in &self.record {
            self.tools[name].replayed(arguments, result, call);
        }
    }
}

fn edit(line: &str) -> Value {
    json!({"file_path": "/shared.md", "old_string": "END\n", "new_string": format!("{line}\nEND\n")})
}

fn tools(bus: &Bus, order: &Order) -> BTreeMap<String, Arc<dyn Tool>> {
    let tools = file_tools(Arc::new(Shared::of(bus, order)), Rules::default());
    tools.into_iter().map(|tool| (tool.spec().name, tool)).collect()
}

async fn run(tool: &Arc<dyn Tool>, arguments: &Value, call: &Call) -> Result<String, String> {
    match tool.call(arguments.clone(), call).await {
        Ok(output) => Ok(output.text),
        Err(ToolError::Refused(text)) => Err(text),
        Err(other) => panic!("{other:?}"),
    }
}

async fn begin(bus: &Bus, run: &str) {
    let first = Shared::of(bus, &order(run, "first"));
    let path = FilePath::new("/shared.md").expect("it is a path");
    let expected = millrace_agent::files::Expected::Nothing;
    first.write(&path, b"BEGIN\nEND\n".to_vec(), expected, "first").await.expect("nobody was there");
}

/// Every line stands there once, each agent's in their order, and every version is one change.
async fn check(bus: &Bus, run: &str, agents: &[Agent], lines: usize) {
    let workspace = Workspace::new(bus, &RunId::new(run).expect("it is a name"));
    let path = FilePath::new("/shared.md").expect("it is a path");
    let file = workspace.read(&path).await.expect("it answers").expect("it is there");
    let text = String::from_utf8(file.bytes).expect("it is text");
    for agent in agents {
        let Work::Task { task, .. } = &agent.order.work else { panic!("it is a task") };
        let found: Vec<&str> = text.lines().filter(|line| line.starts_with(&format!("{task}-"))).collect();
        let wanted: Vec<String> = (0..lines).map(|line| format!("{task}-{line}")).collect();
        assert_eq!(found, wanted, "{run}: {text}");
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
async fn of_two_agents_that_edit_one_file_one_is_refused_sees_why_and_both_changes_end_up_in_it() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    begin(&bus, "r").await;
    let (mut one, mut two) = (Agent::new(&bus, "r", "one", 1), Agent::new(&bus, "r", "two", 1));
    one.step().await;
    two.step().await;
    one.step().await;
    two.step().await;
    let [refusal] = two.refusals.as_slice() else { panic!("{:?}", two.refusals) };
    assert!(refusal.contains("by task one; nothing was changed. It has version 2\n"), "{refusal}");
    assert!(refusal.contains("\nBEGIN\none-0\nEND\n"), "{refusal}");
    two.step().await;
    check(&bus, "r", &[one, two], 1).await;
}

#[tokio::test]
async fn however_the_steps_of_agents_fall_and_whoever_is_lost_every_change_is_there_once() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    let mut refusals = 0;
    for seed in 0..60 {
        let mut dice = fastrand::Rng::with_seed(seed);
        let (run, lines) = (format!("r{seed}"), dice.usize(1..4));
        begin(&bus, &run).await;
        let names = ["one", "two", "three"];
        let mut agents: Vec<Agent> =
            names[..dice.usize(2..4)].iter().map(|name| Agent::new(&bus, &run, name, lines)).collect();
        while agents.iter().any(|agent| !agent.left.is_empty()) {
            let busy: Vec<usize> = (0..agents.len()).filter(|at| !agents[*at].left.is_empty()).collect();
            let agent = &mut agents[busy[dice.usize(..busy.len())]];
            match dice.u8(..5) {
                0 => agent.step_and_be_lost().await,
                1 => agent.resume(),
                _ => agent.step().await,
            }
        }
        check(&bus, &run, &agents, lines).await;
        refusals += agents.iter().map(|agent| agent.refusals.len()).sum::<usize>();
    }
    assert!(refusals > 30, "they met each other: {refusals}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_that_edit_at_the_same_moment_lose_nothing() {
    let server = NatsServer::start();
    let bus = bus(&server).await;
    begin(&bus, "r").await;
    let lines = 10;
    let working = (0..6).map(|number| {
        let mut agent = Agent::new(&bus, "r", &format!("a{number}"), lines);
        tokio::spawn(async move {
            while !agent.left.is_empty() {
                agent.step().await;
            }
            agent
        })
    });
    let agents: Vec<Agent> = futures::future::join_all(working.collect::<Vec<_>>())
        .await
        .into_iter()
        .map(|agent| agent.expect("it does not panic"))
        .collect();
    assert!(agents.iter().any(|agent| !agent.refusals.is_empty()), "they met each other");
    check(&bus, "r", &agents, lines).await;
}
