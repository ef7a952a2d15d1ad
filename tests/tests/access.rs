//! Permissions of each role, with the credentials that `millrace nats-config` generates, against a real server. Each
//! role may do what it needs; the server refuses everything else. Messages that the server can't refuse are detected as
//! forged and ignored.

pub mod place;
pub mod raw;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

use crate::gateway::http;
use millrace_protocol::ids::{Capability, Lane, RunId, WorkerId};
use millrace_protocol::plan::{
    Decision, EndReason, Event, JournalKey, ReviewPolicy, RunEvent, TaskSpec, Work,
};
use millrace_protocol::registry as roles;
use millrace_protocol::result::Verdict;
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::{encode_body, encode_with_inline_body};
use millrace_protocol::work::{JournalEntry, Order, WorkOutcome};
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::store::archive;
use millrace_runtime::work::{queue, registry};
use millrace_runtime::{Bus, log};
use millrace_tests::cluster::{NamedProcesses, ProcessRole, remove_millrace_variables};
use millrace_tests::history::History;
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{
    echo_task, fixed_submission, run_id, submit_run, task_id, wait_for_archive, wait_for_run_history,
};
use millrace_tests::program::millrace_program;
use millrace_tests::wait_for_value;
use place::RestrictedServer;
use raw::RawNatsClient;
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(120);
/// The expected permissions, written by hand: `w` may publish to the subject, `h` may subscribe to it.
const TABLE: &str = include_str!("access/table.txt");

/// The permissions of one identity on one subject.
struct PermissionCell {
    identity: String,
    subject: String,
    may_write: bool,
    may_subscribe: bool,
}

fn parse_permission_table() -> Vec<PermissionCell> {
    let mut lines = TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let roles: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    let workers = ["research", "producer", "planner"];
    let mut cells = Vec::new();
    for line in lines {
        let mut words = line.split_whitespace();
        let subject = words.next().unwrap();
        let allowed: Vec<&str> = words.collect();
        assert_eq!(allowed.len(), roles.len(), "{line}");
        for (role, allowed) in roles.iter().zip(allowed) {
            assert!(["·", "w", "h", "wh"].contains(&allowed), "{line}");
            let identity = if workers.contains(role) { format!("worker-{role}") } else { (*role).to_owned() };
            let (may_write, may_subscribe) = (allowed.contains('w'), allowed.contains('h'));
            cells.push(PermissionCell { identity, subject: subject.into(), may_write, may_subscribe });
        }
    }
    cells
}

#[test]
fn permissions_of_each_role_match_the_table() {
    let place = RestrictedServer::start_for_tenants(&["millrace"]);
    let cells = parse_permission_table();
    let identities: BTreeSet<&str> = cells.iter().map(|cell| cell.identity.as_str()).collect();
    let other = place.connect_with_stolen_seed("millrace", "worker-echo").inbox;
    let (mut wrong, mut refused) = (String::new(), 0);
    for identity in identities {
        let mut raw = place.connect_with_stolen_seed("millrace", identity);
        let own = raw.inbox.clone();
        for cell in cells.iter().filter(|cell| cell.identity == identity) {
            let subject = cell.subject.replace("_INBOX.OWN", &own).replace("_INBOX.OTHER", &other);
            for (what, found, expected) in [
                ("write to", raw.may_publish(&subject), cell.may_write),
                ("subscribe to", raw.may_subscribe(&subject), cell.may_subscribe),
            ] {
                refused += usize::from(!found);
                if found != expected {
                    let may = if found { "may" } else { "may not" };
                    writeln!(wrong, "{identity} {may} {what} {}", cell.subject).unwrap();
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    assert_eq!(place.logged_permission_violations().len(), refused, "the server logs each refusal");
    println!("{} subjects, {} checks, {refused} refused", cells.len() / 11, cells.len() * 2);
}

/// The processes of a cluster, each with the credentials of its role, and scripted models.
fn start_restricted_processes(place: &RestrictedServer) -> NamedProcesses {
    let folder = place.folder.path();
    std::fs::write(folder.join("model.yaml"), MODEL).unwrap();
    std::fs::write(folder.join("writer.yaml"), WRITER).unwrap();
    let model = format!("script:{}", folder.join("model.yaml").display());
    let writer = folder.join("writer.yaml").display().to_string();
    let mut processes = NamedProcesses::default();
    let mut launch = |role, name: &str, identity: &str, arguments: Vec<&str>| {
        let made = place.millrace_command_as(identity);
        let environment: Vec<_> =
            made.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect();
        let arguments: Vec<String> = arguments.into_iter().map(ToOwned::to_owned).collect();
        processes.start_process(role, name, move |id| {
            let mut command = remove_millrace_variables(Command::new(millrace_program()));
            command.envs(environment.clone()).args(&arguments).args(["--id", id]);
            command
        });
    };
    for name in ["supervisor-1", "supervisor-2"] {
        let leases = ["--lane-lease", "1s", "--work-lease", "2s", "--linger", "1s"];
        launch(
            ProcessRole::Supervisor,
            name,
            "supervisor",
            [&["supervisor", "--lanes", "2"], &leases[..]].concat(),
        );
    }
    for name in ["research", "producer", "planner", "echo"] {
        let identity = format!("worker-{name}");
        launch(ProcessRole::Worker, name, &identity, vec!["worker", "--capability", name, "--model", &model]);
    }
    launch(
        ProcessRole::Worker,
        "writer",
        "worker-writer",
        vec!["worker", "--capability", &writer, "--model", &model],
    );
    launch(ProcessRole::Critic, "critic", "critic", vec!["critic", "--model", &model]);
    processes
}

const WRITER: &str =
    "name: writer\ndescription: Writes a file.\ninstructions: Write it.\ntools: [write_file]\n";

const MODEL: &str = "
rules:
- when: {answer: plan}
  reply:
    answer:
      reasoning: One question and one report.
      tasks:
      - {id: question, objective: Find the patent clauses., capability: research}
      - id: report
        objective: Write down what was found.
        capability: producer
        depends_on: [question]
        final: true
        criteria: [There is a result.]
- when: {answer: findings}
  turns:
  - calls: [search_documents: {query: patent}]
  - answer:
      quotations: [{document: Apache-2.0.txt, first_line: 74, last_line: 78}]
      output: 'Each contributor grants a patent licence [1].'
      summary: It grants patents.
- when: {answer: report}
  reply: {answer: {summary: The report., output: 'It grants patents [1].'}, pieces: 5, delay: 0.5}
- when: {answer: verdict}
  reply:
    answer: {passed: true, criteria: [{criterion: There is a result., met: true}], reasoning: It is there.}
- turns:
  - calls: [write_file: {file_path: /note.txt, content: written}]
  - text: It is written.
";

const PLAN: &str = "
objective: Large values and files
tasks:
- id: big
  objective: A large result
  capability: echo
  parameters: {bytes: 700000, delay_ms: 4000, steps: 4}
  review: {criteria: [It is long.]}
- {id: write, objective: A file, capability: writer}
- {id: end, objective: Both together, capability: echo, depends_on: [big, write], final: true}
";

/// The owner of a run's lane, by the name that the test gave the supervisor.
async fn lane_owner(bus: &Bus, run: &RunId) -> Option<String> {
    let context = async_nats::jetstream::new(bus.client().clone());
    let leases = context.get_key_value(millrace_runtime::nats::topology::LEASES).await.ok()?;
    let id = leases.get(format!("lane-{}", bus.lane_of_run(run))).await.ok()??;
    let id = String::from_utf8(id.to_vec()).ok()?;
    id.rsplit_once('-').map(|(name, _)| name.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_works_without_any_permission_violation() {
    let _shared = share_machine();
    let place = RestrictedServer::start_for_tenants(&["millrace"]);
    let mut processes = start_restricted_processes(&place);
    let watching = place.connect_identity("millrace", "metrics").await;
    wait_for_value(TIMEOUT, "all processes", async || {
        (count_live_processes(&watching).await == [2, 5, 1]).then_some(())
    })
    .await;
    let file = |name: &str, text: &str| {
        std::fs::write(place.folder.path().join(name), text).unwrap();
        place.folder.path().join(name).display().to_string()
    };
    let (plan, long) =
        (file("plan.yaml", PLAN), file("long.yaml", &PLAN.replace("delay_ms: 4000", "delay_ms: 600000")));
    let documents = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/licences");
    let model = format!("script:{}", place.folder.path().join("model.yaml").display());

    place.run_and_read_stdout("client", &["limits", "set", "script:*", "--requests", "1000"]);
    let submit =
        |more: &[&str]| place.run_and_read_stdout("client", &[&["submit"], more].concat()).trim().to_owned();
    let planned = submit(&["Find the patent clauses.", "--docs", documents, "--model", &model]);
    let (large, endless) = (submit(&["--plan", &plan, "--session", "chat"]), submit(&["--plan", &long]));
    let following = submit(&["--plan", &plan, "--session", "chat"]);
    let printed = place.run_and_read_stdout("viewer", &["watch", &planned]);
    assert!(printed.contains("It grants patents [1]."), "{printed}");
    place.run_and_read_stdout("client", &["cancel", &endless]);

    // The owner of the lane is killed during the run with the large value.
    let large = run_id(&large);
    let owner = wait_for_value(TIMEOUT, "an owner", async || lane_owner(&watching, &large).await).await;
    processes.kill_process(&owner);
    place.run_and_read_stdout("client", &["watch", large.as_str()]);
    processes.restart_process(&owner);
    // It sees the results and files of the run before it, which its supervisor reads.
    assert!(
        place
            .run_and_read_stdout("client", &["watch", "--json", &following])
            .contains(&format!("earlier/{large}"))
    );
    let runs = [planned.as_str(), large.as_str(), endless.as_str(), following.as_str()];
    wait_for_value(TIMEOUT, "the archive", async || {
        let all = registry::read_run_summaries(&watching).await.ok()?;
        (all.iter().filter(|summary| summary.archived).count() == runs.len()).then_some(())
    })
    .await;
    for identity in ["client", "viewer"] {
        for run in runs {
            assert!(place.run_and_read_stdout(identity, &["list"]).contains(run));
            assert!(place.run_and_read_stdout(identity, &["show", run]).contains(run));
            place.run_and_read_stdout(identity, &["replay", run]);
        }
        assert_eq!(place.run_and_read_stdout(identity, &["files", large.as_str(), "/note.txt"]), "written");
        assert!(place.run_and_read_stdout(identity, &["limits"]).contains("of 1000 per minute"));
        assert!(
            place
                .run_and_read_stdout(identity, &["show", &planned, "question"])
                .contains("→ search_documents")
        );
        let status: Value =
            serde_json::from_str(&place.run_and_read_stdout(identity, &["status", "--json"])).unwrap();
        let is_owned =
            |lane: &Value| lane["owner"].as_str().is_some_and(|owner| owner.starts_with("supervisor-"));
        assert!(status["lanes"].as_array().unwrap().iter().all(is_owned), "{status:#}");
        let has_queue = |capability: &Value| capability["queue"].is_object();
        assert!(status["capabilities"].as_array().unwrap().iter().all(has_queue), "{status:#}");
        assert!(place.run_and_read_stdout(identity, &["workers"]).contains("research"));
        assert!(place.run_and_read_stdout(identity, &["capabilities"]).contains("Writes a file."));
    }
    place.run_and_read_stdout("client", &["limits", "clear", "script:*"]);
    let history =
        History::read_from_log(&place.connect_identity("millrace", "viewer").await, &large).await.unwrap();
    history.assert_consistent();
    processes.stop_all();
    assert_eq!(place.logged_permission_violations(), Vec::<String>::new());
    place.connect_with_stolen_seed("millrace", "viewer").may_publish("work.research.r.t.1");
    assert_eq!(place.logged_permission_violations().len(), 1, "a refusal would be in the log");
}

/// The number of live processes of each role: supervisors, workers, critics.
#[tokio::test(flavor = "multi_thread")]
async fn gateway_needs_no_more_than_the_identity_of_a_client() {
    let _shared = share_machine();
    let place = RestrictedServer::start_for_tenants(&["millrace"]);
    let _processes = start_restricted_processes(&place);
    let bus = place.connect_identity("millrace", "client").await;
    let file = place.folder.path().join("api.url");
    let mut command = place.millrace_command_as("client");
    command.args(["serve", "--api", "127.0.0.1:0", "--url-file"]).arg(&file);
    let mut gateway = command.spawn().unwrap();
    let url = wait_for_value(Duration::from_secs(60), "the URL of the gateway", async || {
        std::fs::read_to_string(&file).ok().filter(|url| url.ends_with('\n'))
    })
    .await;
    let address = url.trim().strip_prefix("http://").unwrap().parse().unwrap();
    wait_for_value(Duration::from_secs(60), "the worker", async || {
        let names = millrace_runtime::work::registry::read_capability_names(&bus).await.ok()?;
        names.contains(&capability_name("echo")).then_some(())
    })
    .await;
    let plan = serde_json::json!({ "tasks": [
        { "id": "a", "objective": "say it", "capability": "echo", "parameters": { "approve": true } },
    ] });
    let submit = http::Request::new("POST", "/api/v1/runs")
        .header("Idempotency-Key", "one")
        .json(&serde_json::json!({ "objective": "say it", "plan": plan }));
    let submitted = submit.send(address).await;
    assert_eq!(submitted.status, 201, "{}", submitted.text());
    let run = submitted.json()["run"].as_str().unwrap().to_owned();
    let question = format!("/api/v1/questions/{run}/a/1/1");
    wait_for_value(Duration::from_secs(60), "the question", async || {
        (http::Request::new("GET", question.clone()).send(address).await.status == 200).then_some(())
    })
    .await;
    let approval = http::Request::new("POST", question).json(&serde_json::json!({ "answer": "approve" }));
    assert_eq!(approval.send(address).await.status, 200);
    let events = http::Request::new("GET", format!("/api/v1/runs/{run}/events?level=live"));
    let frames = http::read_events(address, &events, None).await;
    assert_eq!(frames.last().map(|frame| frame.event.as_str()), Some("end"));
    for path in ["status", "limits", "questions", "runs", &format!("runs/{run}/files")] {
        let answer = http::Request::new("GET", format!("/api/v1/{path}")).send(address).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }
    gateway.kill().unwrap();
    gateway.wait().unwrap();
    assert_eq!(place.logged_permission_violations(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn answerer_answers_questions_and_does_nothing_else() {
    let _shared = share_machine();
    let place = RestrictedServer::start_for_tenants(&["millrace"]);
    let _processes = start_restricted_processes(&place);
    let watching = place.connect_identity("millrace", "metrics").await;
    wait_for_value(TIMEOUT, "all processes", async || {
        (count_live_processes(&watching).await == [2, 5, 1]).then_some(())
    })
    .await;
    let plan = place.folder.path().join("questions.yaml");
    std::fs::write(
        &plan,
        "objective: ask\ntasks:\n  - {id: ask, objective: ask, capability: echo, parameters: {ask: [\"Which?\", \"When?\"]}}\n",
    )
    .unwrap();
    let plan = plan.display().to_string();
    let run = place.run_and_read_stdout("client", &["submit", "--plan", &plan]).trim().to_owned();
    let inbox = wait_for_value(TIMEOUT, "the questions", async || {
        let listed = place.run_and_read_stdout("answerer", &["inbox", "--json"]);
        (listed.lines().count() == 2).then_some(listed)
    })
    .await;
    assert!(inbox.contains("Which?"), "{inbox}");
    let (which, when) = (format!("{run}/ask/1/1"), format!("{run}/ask/1/2"));
    // The server refuses the answer of a viewer and of a worker, and every other command of an answerer.
    let answer = ["answer", &which, "--value", "forged"];
    for (identity, arguments) in
        [("viewer", &answer[..]), ("answerer", &["cancel", &run]), ("answerer", &["submit", "--plan", &plan])]
    {
        let output = place.millrace_command_as(identity).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{identity} {arguments:?}: {said}");
        assert!(said.contains("permission denied by the NATS server"), "{identity} {arguments:?}: {said}");
    }
    // Workers and critics do not even get as far as that: they may not read the list of runs.
    let lane = watching.lane_of_run(&run_id(&run));
    let subject = subject::topic_subject(lane, &run_id(&run), &Topic::Answer);
    for identity in ["worker-echo", "worker-planner", "critic", "viewer"] {
        let mut thief = place.connect_with_stolen_seed("millrace", identity);
        assert!(!thief.may_publish(&subject), "{identity}");
    }
    place.run_and_read_stdout("answerer", &["answer", &which, "--value", "north", "--by", "ann"]);
    place.run_and_read_stdout("client", &["answer", &when, "--value", "now"]);
    place.run_and_read_stdout("viewer", &["watch", &run]);
    let history = place.run_and_read_stdout("viewer", &["inbox", &run, "--history"]);
    assert!(history.contains("ann answered \"north\" at "), "{history}");
}

async fn count_live_processes(bus: &Bus) -> [usize; 3] {
    let beats = registry::read_heartbeats(bus).await.unwrap_or_default();
    let count = |role| beats.iter().filter(|beat| beat.role == role).count();
    [
        count(roles::ProcessRole::Supervisor),
        count(roles::ProcessRole::Worker),
        count(roles::ProcessRole::Critic),
    ]
}

fn capability_name(name: &str) -> Capability {
    Capability::new(name).unwrap()
}

fn secret_order(run: &RunId, lane: Lane, capability_: &str) -> Order {
    let work = Work::Task { task: task_id("t"), attempt: 1 };
    Order::new(run.clone(), lane, work, "a secret", capability_name(capability_))
}

#[tokio::test(flavor = "multi_thread")]
async fn stolen_worker_credential_cannot_read_other_queues() {
    let place = RestrictedServer::start_for_tenants(&["millrace"]);
    let bus = place.connect_supervisor("millrace").await;
    let queues = ["research", "producer", "echo"].map(capability_name).into();
    queue::ensure_queues(&bus, &queues).await.unwrap();
    let run = run_id("r");
    let orders = ["research", "producer"].map(|name| secret_order(&run, bus.lane_of_run(&run), name));
    queue::publish_orders(&bus, orders.into()).await.map_err(|(_, fault)| fault).unwrap();
    let mut thief = place.connect_with_stolen_seed("millrace", "worker-research");
    for subject in ["work.producer.>", "work.>", "_INBOX.>", ">"] {
        assert!(!thief.may_subscribe(subject), "{subject}");
    }
    for question in [
        ("CONSUMER.MSG.NEXT.WORK.producer", json!({"batch": 10})),
        ("DIRECT.GET.WORK", json!({"seq": 1, "batch": 10, "next_by_subj": "work.producer.>"})),
        ("DIRECT.GET.WORK.work.producer.r.t.1", json!({})),
        ("STREAM.MSG.GET.WORK", json!({"last_by_subj": "work.producer.r.t.1"})),
        ("CONSUMER.INFO.WORK.producer", json!({})),
    ] {
        assert_eq!(thief.request_json(&format!("$JS.API.{}", question.0), &question.1), None, "{question:?}");
    }
    try_to_create_consumers(&mut thief);
    let own =
        thief.request_json("$JS.API.CONSUMER.MSG.NEXT.WORK.research", &json!({"batch": 10, "no_wait": true}));
    assert!(own.unwrap().to_string().contains("a secret"), "it may pull from its own queue");
    let next = thief.next_payload().map(|payload| String::from_utf8_lossy(&payload).into_owned());
    assert!(next.is_none_or(|text| !text.contains("secret")), "and gets a single order");
    let context = async_nats::jetstream::new(bus.client().clone());
    let stream = context.get_stream("WORK").await.unwrap();
    assert_eq!(stream.cached_info().state.messages, 2, "no message was removed");
    assert_eq!(stream.cached_info().state.consumer_count, 3, "no consumer was created");
}

/// Tries every way to create a consumer, or to point its own consumer at another queue.
fn try_to_create_consumers(thief: &mut RawNatsClient) {
    let own = "CONSUMER.CREATE.WORK.research.work.research.>";
    for (subject, config) in [
        (own, json!({"durable_name": "research", "filter_subject": "work.producer.>"})),
        (own, json!({"durable_name": "research", "filter_subjects": ["work.research.>", "work.producer.>"]})),
        (own, json!({"durable_name": "producer", "filter_subject": "work.producer.>"})),
        (
            own,
            json!({"durable_name": "research", "filter_subject": "work.research.>", "deliver_subject": "x"}),
        ),
        ("CONSUMER.CREATE.WORK", json!({"filter_subject": "work.producer.>"})),
        ("CONSUMER.CREATE.WORK.mine", json!({"name": "mine", "filter_subject": "work.producer.>"})),
        (
            "CONSUMER.CREATE.WORK.mine.work.producer.>",
            json!({"name": "mine", "filter_subject": "work.producer.>"}),
        ),
        ("CONSUMER.DURABLE.CREATE.WORK.research", json!({"durable_name": "research"})),
        ("CONSUMER.CREATE.LANE_0", json!({"deliver_subject": "work.research.r.x.1"})),
        ("STREAM.CREATE.MINE", json!({"name": "MINE", "sources": [{"name": "WORK"}]})),
    ] {
        let stream = subject.split('.').nth(2).unwrap();
        let question = json!({"stream_name": stream, "config": config, "name": "MINE", "action": ""});
        assert_eq!(thief.request_json(&format!("$JS.API.{subject}"), &question), None, "{subject} {config}");
    }
}

/// A message that an attacker tries to forge.
struct ForgedMessage {
    subject: String,
    payload: Vec<u8>,
}

impl ForgedMessage {
    fn forged_plan(lane: Lane, run: &RunId) -> Self {
        let end = Event::Run(RunEvent::Ended {
            is_resumable: false,
            reason: EndReason::Completed,
            detail: "forged".into(),
            deliverable: None,
        });
        let by = WorkerId::new("thief").unwrap();
        let decision =
            Decision { by, previous: 0, at: jiff::Timestamp::now(), answers: Vec::new(), events: vec![end] };
        Self {
            subject: subject::topic_subject(lane, run, &Topic::Plan),
            payload: encode_with_inline_body::<Decision>(&encode_body(&decision)),
        }
    }

    fn forged_verdict(lane: Lane, run: &RunId) -> Self {
        let verdict = json!({"passed": false, "criteria": [], "reasoning": "forged", "feedback": "forged"});
        let verdict: Verdict = serde_json::from_value(verdict).unwrap();
        let worker = WorkerId::new("thief").unwrap();
        let entry = JournalEntry::Outcome { worker, review: 1, outcome: WorkOutcome::Judged(verdict) };
        let subject =
            subject::topic_subject(lane, run, &Topic::Journal(JournalKey::Review(task_id("long"), 1)));
        Self { subject, payload: encode_with_inline_body::<JournalEntry>(&encode_body(&entry)) }
    }

    fn forged_order(lane: Lane, run: &RunId) -> Self {
        let order = Order { objective: "forged".into(), ..secret_order(run, lane, "producer") };
        Self {
            subject: format!("work.producer.{run}.t.1"),
            payload: encode_with_inline_body::<Order>(&encode_body(&order)),
        }
    }

    /// Publishes it to a subject that the credential allows, and redirects the server's reply with it to a subject that
    /// it does not allow. Also with headers that imitate those of a supervisor.
    fn publish_with_redirected_reply(&self, thief: &mut RawNatsClient, lane: Lane) {
        let headers = [("Millrace-Id", "x"), ("Nats-Subject", self.subject.as_str())];
        let hiding = format!("lane.{lane}.run.thief.task.{}.1", uuid::Uuid::new_v4().simple());
        let refused = thief.publish_and_read_errors(&hiding, "", &headers, &self.payload);
        assert_eq!(refused, Vec::<String>::new(), "it may write its own journals");
        let question = format!("$JS.API.DIRECT.GET.LANE_{lane}");
        for more in [json!({}), json!({"no_hdr": true}), json!({"batch": 1})] {
            let mut wish = json!({"seq": 1, "next_by_subj": hiding});
            wish.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            thief.publish_and_read_errors(&question, &self.subject, &[], wish.to_string().as_bytes());
        }
    }
}

/// The redirected server replies on a subject of a run.
async fn read_redirected_replies(bus: &Bus, run: &RunId, subject: &str) -> Vec<StreamRecord> {
    let records = log::read_run(bus, bus.lane_of_run(run), run, 1).await.unwrap_or_default();
    records.into_iter().filter(|record| record.is_forged() && *record.subject == *subject).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn stolen_worker_credential_cannot_forge_verdicts_or_plans() {
    let _shared = share_machine();
    let place = RestrictedServer::start_for_tenants(&["millrace"]);
    let mut processes = start_restricted_processes(&place);
    let client = place.connect_identity("millrace", "client").await;
    let name = run_id("under-attack");
    let review = ReviewPolicy::critic(vec!["it is long".into()]);
    let long =
        TaskSpec { review, is_final: true, ..echo_task("long", &json!({ "delay_ms": 6000, "steps": 6 })) };
    submit_run(&client, &name, &fixed_submission(vec![long])).await;
    let lane = client.lane_of_run(&name);
    wait_for_value(TIMEOUT, "a first step", async || {
        let records =
            log::read_topic(&client, lane, &name, &Topic::Journal(JournalKey::Task(task_id("long"), 1)))
                .await
                .ok()?;
        (records.len() >= 2).then_some(())
    })
    .await;

    let mut thief = place.connect_with_stolen_seed("millrace", "worker-research");
    let forged = [
        ForgedMessage::forged_plan(lane, &name),
        ForgedMessage::forged_verdict(lane, &name),
        ForgedMessage::forged_order(lane, &name),
    ];
    for forged in &forged {
        let refused = thief.publish_and_read_errors(&forged.subject, "", &[], &forged.payload);
        assert_eq!(refused.len(), 1, "{}", forged.subject);
        forged.publish_with_redirected_reply(&mut thief, lane);
    }
    for forged in &forged[..2] {
        let there = wait_for_value(TIMEOUT, "the forged summary", async || {
            Some(read_redirected_replies(&client, &name, &forged.subject).await)
                .filter(|replies| replies.len() >= 3)
        })
        .await;
        for stray in there {
            assert!(
                client.decode_record::<Decision>(&stray).await.is_err()
                    && client.decode_record::<JournalEntry>(&stray).await.is_err()
            );
        }
    }
    // The supervisor that takes over the lane reads the forged messages and ignores them.
    let owner = wait_for_value(TIMEOUT, "an owner", async || {
        lane_owner(&place.connect_identity("millrace", "metrics").await, &name).await
    })
    .await;
    processes.kill_process(&owner);
    let output = place.run_and_read_stdout("client", &["watch", name.as_str()]);
    assert!(!output.contains("forged"), "{output}");
    let history = wait_for_run_history(&client, &name, TIMEOUT).await;
    history.assert_consistent();
    let task = history.folded_plan().task(&task_id("long")).unwrap();
    assert_eq!(history.folded_plan().run.end.as_ref().unwrap().reason, EndReason::Completed);
    assert_eq!((task.attempt, task.end_reason()), (1, None), "the verdict is the critic's");
    assert!(!processes.read_all_logs().contains("order comes"), "{}", processes.read_all_logs());
    let producer = processes.read_log("producer");
    assert!(producer.contains("it is forged"), "a forged order is ignored:\n{producer}");
}

/// Requests the last message of a subject, with a reply subject that the credential may not publish to.
fn request_redirected_last_message(thief: &mut RawNatsClient, stream: &str, subject: &str, to: &str) {
    let question = json!({ "last_by_subj": subject, "no_hdr": true }).to_string();
    let refused =
        thief.publish_and_read_errors(&format!("$JS.API.DIRECT.GET.{stream}"), to, &[], question.as_bytes());
    assert_eq!(refused, Vec::<String>::new(), "it may send the request");
}

/// The streams of the server, each with the numbers of its messages and consumers.
fn count_messages_and_consumers(place: &RestrictedServer) -> BTreeMap<String, (u64, u64)> {
    let mut raw = place.connect_with_stolen_seed("millrace", "backup");
    let names = raw.request_json("$JS.API.STREAM.NAMES", &json!({})).unwrap();
    let names = names["streams"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned());
    let mut all = BTreeMap::new();
    for name in names.collect::<Vec<_>>() {
        let info = raw.request_json(&format!("$JS.API.STREAM.INFO.{name}"), &json!({}));
        let count =
            |what: &str| info.as_ref().and_then(|info| info["state"][what].as_u64()).unwrap_or(u64::MAX);
        all.insert(name, (count("messages"), count("consumer_count")));
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn server_replies_are_not_accepted_as_api_requests() {
    for more in [&[][..], &["--jwt"]] {
        let place = RestrictedServer::start_with_arguments(&["millrace"], more);
        let bus = place.connect_supervisor("millrace").await;
        queue::ensure_queues(&bus, &["research", "producer"].map(capability_name).into()).await.unwrap();
        let mut thief = place.connect_with_stolen_seed("millrace", "worker-research");
        let requests = [
            ("CONSUMER.CREATE.LANE_0", json!({"stream_name": "LANE_0", "config": {"ack_policy": "none"}})),
            (
                "STREAM.CREATE.MINE",
                json!({"name": "MINE", "subjects": ["mine.>"], "storage": "file", "retention": "limits"}),
            ),
            ("STREAM.PURGE.LANE_1", json!({})),
        ];
        let hidden = |number: usize| format!("lane.{}.run.thief.task.t{number}.1", number % 2);
        for (number, (_, wish)) in requests.iter().enumerate() {
            let wish = wish.to_string();
            assert_eq!(
                thief.publish_and_read_errors(&hidden(number), "", &[], wish.as_bytes()),
                Vec::<String>::new()
            );
        }
        let before = count_messages_and_consumers(&place);
        // A read-only identity redirects an empty reply: that there is no such message.
        let mut viewer = place.connect_with_stolen_seed("millrace", "viewer");
        for stream in ["FILES", "LANE_0", "WORK"] {
            for request in ["DELETE", "PURGE"] {
                let (place, nothing) =
                    (format!("$JS.API.STREAM.{request}.{stream}"), json!({"seq": 1_000_000}));
                let question = nothing.to_string();
                assert_eq!(
                    viewer.publish_and_read_errors(
                        "$JS.API.DIRECT.GET.FILES",
                        &place,
                        &[],
                        question.as_bytes()
                    ),
                    [""; 0]
                );
            }
        }
        for (number, (request, _)) in requests.iter().enumerate() {
            let stream = format!("LANE_{}", number % 2);
            request_redirected_last_message(
                &mut thief,
                &stream,
                &hidden(number),
                &format!("$JS.API.{request}"),
            );
        }
        // The API's own subjects are refused as reply subjects.
        for question in ["$JS.API.DIRECT.GET.FILES", "$JS.API.CONSUMER.MSG.NEXT.WORK.research"] {
            let refused = thief.publish_and_read_errors(
                question,
                "$JS.ACK.millrace.api.STREAM.DELETE.FILES",
                &[],
                b"{}",
            );
            assert!(refused.len() == 1 && refused[0].contains("Publish with Reply"), "{refused:?}");
        }
        // All earlier requests have been answered, and their effects have begun.
        for (stream, raw) in [("FILES", &mut viewer), ("LANE_0", &mut thief)] {
            assert!(
                raw.request_json(&format!("$JS.API.DIRECT.GET.{stream}"), &json!({"seq": 1_000_000}))
                    .is_some()
            );
        }
        queue::ensure_queues(&bus, &["research", "producer"].map(capability_name).into()).await.unwrap();
        assert_eq!(count_messages_and_consumers(&place), before, "{more:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stolen_credential_cannot_change_the_cluster_settings() {
    let place = RestrictedServer::start_for_tenants(&["millrace"]);
    let bus = place.connect_supervisor("millrace").await;
    let settings = async_nats::jetstream::new(bus.client().clone()).get_key_value("cluster").await.unwrap();
    let before = settings.entry("settings").await.unwrap().unwrap();
    // Settings with which no program could join.
    let mut lie: Value = serde_json::from_slice(&before.value).unwrap();
    lie["lanes"] = 9.into();
    let mut thief = place.connect_with_stolen_seed("millrace", "worker-research");
    let hidden = "lane.0.run.thief.task.t.1";
    assert_eq!(
        thief.publish_and_read_errors(hidden, "", &[], lie.to_string().as_bytes()),
        Vec::<String>::new()
    );
    for key in ["settings", "ready", "beside"] {
        request_redirected_last_message(&mut thief, "LANE_0", hidden, &format!("$KV.cluster.{key}"));
    }
    wait_for_value(TIMEOUT, "the last redirected message", async || settings.get("beside").await.ok()?).await;
    let after = settings.entry("settings").await.unwrap().unwrap();
    assert_eq!((after.revision, &after.value), (before.revision, &before.value));
    // A process that starts now reads the original settings.
    assert_eq!(place.connect_identity("millrace", "worker-producer").await.settings(), bus.settings());
    assert_eq!(place.connect_supervisor("millrace").await.settings(), bus.settings());
}

#[tokio::test(flavor = "multi_thread")]
async fn stolen_credential_cannot_stop_work() {
    let place = RestrictedServer::start_for_tenants(&["millrace"]);
    let bus = place.connect_supervisor("millrace").await;
    let producer = place.connect_identity("millrace", "worker-producer").await;
    let mut stops = queue::StopSubscription::subscribe_to_stops(&producer).await.unwrap();
    producer.client().flush().await.unwrap();
    let mut thief = place.connect_with_stolen_seed("millrace", "worker-research");
    let (id, all) = ([("Millrace-Id", "x")], [0xc0]);
    for (hidden, headers) in [("lane.0.run.thief.task.t.1", &id[..0]), ("lane.0.run.thief.task.t.2", &id)] {
        assert_eq!(thief.publish_and_read_errors(hidden, "", headers, &all), Vec::<String>::new());
        for no_hdr in [true, false] {
            let question = json!({ "last_by_subj": hidden, "no_hdr": no_hdr }).to_string();
            let replies = thief.publish_and_read_errors(
                "$JS.API.DIRECT.GET.LANE_0",
                "stop.live",
                &[],
                question.as_bytes(),
            );
            assert_eq!(replies, Vec::<String>::new());
        }
    }
    // All earlier requests have been answered.
    assert!(thief.request_json("$JS.API.DIRECT.GET.LANE_0", &json!({"seq": 1_000_000})).is_some());
    let other = RunId::new("other").unwrap();
    queue::publish_stop(&bus, &other, None).await.unwrap();
    let stop = tokio::time::timeout(TIMEOUT, stops.next_stop()).await.expect("a stop in time");
    assert_eq!(stop, Some((other, None)), "the first valid stop message");
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_archive_summary_does_not_remove_a_live_run() {
    let _shared = share_machine();
    let place = RestrictedServer::start_for_tenants(&["millrace"]);
    let mut processes = start_restricted_processes(&place);
    processes.kill_process("supervisor-2");
    let client = place.connect_identity("millrace", "client").await;
    let (done, live) = (run_id("done"), run_id("live"));
    submit_run(&client, &done, &fixed_submission(vec![echo_task("t", &json!({}))])).await;
    let archived = wait_for_archive(&client, &done, TIMEOUT).await;
    submit_run(
        &client,
        &live,
        &fixed_submission(vec![echo_task("long", &json!({ "delay_ms": 6000, "steps": 6 }))]),
    )
    .await;
    let lane = client.lane_of_run(&live);
    wait_for_value(TIMEOUT, "a first step", async || {
        let records =
            log::read_topic(&client, lane, &live, &Topic::Journal(JournalKey::Task(task_id("long"), 1)))
                .await
                .ok()?;
        (records.len() >= 2).then_some(())
    })
    .await;

    let plan = subject::topic_subject(lane, &live, &Topic::Plan);
    let mut viewer = place.connect_with_stolen_seed("millrace", "viewer");
    request_redirected_last_message(&mut viewer, "KV_runs", "$KV.runs.done", "$KV.runs.live");
    request_redirected_last_message(&mut viewer, "KV_runs", "$KV.runs.done", &plan);
    // With a client's credential also a summary that names the run.
    let mut thief = place.connect_with_stolen_seed("millrace", "client");
    let lie = serde_json::to_vec(&roles::RunSummary { run: live.clone(), ..archived }).unwrap();
    assert_eq!(thief.publish_and_read_errors("$O.blobs.C.lie", "", &[], &lie), Vec::<String>::new());
    request_redirected_last_message(&mut thief, "OBJ_blobs", "$O.blobs.C.lie", "$KV.runs.live");
    wait_for_value(TIMEOUT, "the forged summary", async || {
        let is_told =
            registry::read_summary(&client, &live).await.ok()?.is_some_and(|summary| summary.archived);
        (is_told && !read_redirected_replies(&client, &live, &plan).await.is_empty()).then_some(())
    })
    .await;
    // A supervisor that starts on the lane looks up each of its runs.
    processes.kill_process("supervisor-1");
    processes.restart_process("supervisor-1");
    let history = wait_for_run_history(&client, &live, TIMEOUT).await;
    history.assert_consistent();
    assert_eq!(history.folded_plan().run.end.as_ref().unwrap().reason, EndReason::Completed);
    assert_eq!(history.folded_plan().task(&task_id("long")).unwrap().attempt, 1);
    let logs = processes.read_all_logs();
    assert!(logs.contains("the archive does not hold the run"), "{logs}");
    assert!(logs.contains("ignoring forged message"), "{logs}");
    assert!(
        !logs.contains("another supervisor has decided on this run"),
        "a forged message is not a decision:\n{logs}"
    );
    processes.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn redirected_replies_fill_no_store_and_make_no_capability() {
    let _shared = share_machine();
    let place = RestrictedServer::start_for_tenants(&["millrace"]);
    let processes = start_restricted_processes(&place);
    let bus = place.connect_identity("millrace", "client").await;
    let run = run_id("first");
    submit_run(&bus, &run, &fixed_submission(vec![echo_task("t", &json!({}))])).await;
    wait_for_run_history(&bus, &run, TIMEOUT).await;
    let (echo, research) = ("$KV.capabilities.echo", "$KV.capabilities.research");
    let names =
        ["echo", "research", "producer", "planner", "writer"].map(|name| Capability::new(name).unwrap());
    let has_all = async || {
        let published = registry::read_capability_names(&bus).await.ok()?;
        names.iter().all(|name| published.contains(name)).then_some(())
    };
    wait_for_value(TIMEOUT, "the capabilities", has_all).await;
    // One for each of them, and one for the critics.
    wait_for_value(TIMEOUT, "the queues", async || {
        (count_messages_and_consumers(&place)["WORK"].1 > 5).then_some(())
    })
    .await;

    let mut thief = place.connect_with_stolen_seed("millrace", "worker-research");
    let file = vec![b'x'; 100_000];
    assert_eq!(
        thief.publish_and_read_errors("files.r.a", "", &[("Millrace-Id", "x")], &file),
        Vec::<String>::new()
    );
    let before = count_messages_and_consumers(&place);
    let mut viewer = place.connect_with_stolen_seed("millrace", "viewer");
    for _ in 0..5 {
        request_redirected_copy(&mut viewer, "FILES", "files.>", "files.amp.x");
        request_redirected_copy(&mut viewer, "FILES", "files.>", "lane.1.run.x.plan");
        request_redirected_copy(&mut viewer, "LANE_0", ">", "$O.blobs.C.x");
        request_redirected_copy(&mut viewer, "OBJ_blobs", ">", "$O.blobs.C.x");
    }
    for number in 0..20 {
        request_redirected_last_message(
            &mut viewer,
            "KV_capabilities",
            research,
            &format!("$KV.capabilities.fake{number}"),
        );
        request_redirected_copy(
            &mut viewer,
            "KV_capabilities",
            research,
            &format!("$KV.capabilities.more{number}"),
        );
    }
    request_redirected_last_message(&mut viewer, "KV_capabilities", research, echo);
    wait_for_value(TIMEOUT, "the copies", async || {
        (count_messages_and_consumers(&place)["FILES"].0 >= 32).then_some(())
    })
    .await;

    // Ten lane leases later, all of it is gone, and the worker has written its entry again.
    let cleaned = ["FILES", "LANE_1", "OBJ_blobs", "KV_capabilities"];
    wait_for_value(TIMEOUT, "clean streams", async || {
        let now = count_messages_and_consumers(&place);
        cleaned.iter().all(|&stream| now[stream].0 <= before[stream].0).then_some(())
    })
    .await;
    wait_for_value(TIMEOUT, "the capabilities", has_all).await;
    let known = registry::read_capabilities(&bus).await.unwrap();
    assert!(known.keys().all(|name| !name.as_str().contains("fake") && !name.as_str().contains("more")));
    let file =
        bus.client().request("$JS.API.DIRECT.GET.FILES", r#"{"last_by_subj":"files.r.a"}"#.into()).await;
    assert_eq!(file.unwrap().payload.len(), 100_000, "the file is untouched");
    assert_eq!(count_messages_and_consumers(&place)["WORK"].1, before["WORK"].1, "no queue was made");
    assert_eq!(History::read_from_log(&bus, &run).await.unwrap().folded_plan().tasks().len(), 1);
    assert!(place.logged_permission_violations().is_empty(), "{:?}", place.logged_permission_violations());
    processes.stop_all();
}

/// Has the server send all messages of a stream that match a filter to a subject.
fn request_redirected_copy(viewer: &mut RawNatsClient, stream: &str, filter: &str, to: &str) {
    let question = json!({ "seq": 1, "batch": 100_000, "next_by_subj": filter }).to_string();
    let request = format!("$JS.API.DIRECT.GET.{stream}");
    let refused = viewer.publish_and_read_errors(&request, to, &[], question.as_bytes());
    assert_eq!(refused, Vec::<String>::new(), "it may send the request");
}

#[tokio::test]
async fn identities_cannot_subscribe_to_each_other_s_replies() {
    let place = RestrictedServer::start_for_tenants(&["millrace"]);
    let victim = place.connect_supervisor("millrace").await;
    let mut thief = place.connect_with_stolen_seed("millrace", "client");
    let theirs = place.connect_with_stolen_seed("millrace", "supervisor").inbox;
    for subject in
        [format!("{theirs}.>"), format!("{theirs}.*"), "_INBOX.>".into(), "_INBOX.*.>".into(), "*.>".into()]
    {
        assert_eq!(thief.subscribe_and_read_errors(&subject).len(), 1, "{subject}");
    }
    let own = format!("{}.>", thief.inbox);
    assert_eq!(thief.subscribe_and_read_errors(&own), Vec::<String>::new());
    let heartbeats = registry::read_heartbeats(&victim).await;
    assert!(heartbeats.is_ok() && thief.next_payload().is_none());
    assert_eq!(place.logged_permission_violations().len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_invisible_to_other_tenants() {
    let place = RestrictedServer::start_for_tenants(&["one", "two"]);
    let (one, two) = (place.connect_supervisor("one").await, place.connect_supervisor("two").await);
    let name = run_id("20261122-000000-aaaaaa");
    let client = place.connect_identity("one", "client").await;
    submit_run(&client, &name, &fixed_submission(vec![echo_task("t", &json!({}))])).await;
    one.blobs().put_blob(b"a secret").await.unwrap();
    assert_eq!(log::list_submitted_runs(&one).await.unwrap().len(), 1);

    let mut stranger = place.connect_with_stolen_seed("two", "backup");
    assert_eq!(log::list_submitted_runs(&two).await.unwrap().len(), 0);
    assert!(
        archive::read_run_from_log_or_archive(&two, two.lane_of_run(&name), &name).await.unwrap().is_empty()
    );
    assert!(two.blobs().get(&millrace_runtime::store::blobs::sha256_hex(b"a secret")).await.is_err());
    let lane = format!("$JS.API.STREAM.INFO.LANE_{}", one.lane_of_run(&name));
    let messages = |info: Option<Value>| info.unwrap()["state"]["messages"].as_u64().unwrap();
    assert_eq!(messages(stranger.request_json(&lane, &json!({}))), 0, "the other tenant's lane is empty");
    assert_eq!(messages(place.connect_with_stolen_seed("one", "backup").request_json(&lane, &json!({}))), 1);
    // The same subjects belong to another account there.
    let mut supervisor = place.connect_with_stolen_seed("two", "supervisor");
    supervisor.publish_and_read_errors(
        &subject::topic_subject(one.lane_of_run(&name), &name, &Topic::Plan),
        "",
        &[],
        b"x",
    );
    assert_eq!(messages(place.connect_with_stolen_seed("one", "backup").request_json(&lane, &json!({}))), 1);
    assert!(place.seed_path("one", "client").exists() && place.seed_path("two", "client").exists());
}
