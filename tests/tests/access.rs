//! Who may do what: each role with the credentials that `millrace nats-config` makes for it, at a real server. What a
//! role needs it may do, and everything else the server refuses; where it can't, nobody believes what comes of it.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

#[path = "access/place.rs"]
mod place;
#[path = "access/raw.rs"]
mod raw;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

use millrace_protocol::ids::{Capability, Lane, RunId, WorkerId};
use millrace_protocol::plan::{Decision, EndReason, Event, Review, TaskSpec, Work};
use millrace_protocol::registry as roles;
use millrace_protocol::result::Verdict;
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::{body, seal};
use millrace_protocol::work::{Entry, Order, Outcome};
use millrace_runtime::record::Record;
use millrace_runtime::{Bus, archive, log, queue, registry};
use millrace_tests::cluster::{Fleet, Role, alone, clean};
use millrace_tests::eventually;
use millrace_tests::history::History;
use millrace_tests::plans::{echo, finished, fixed, id, run, submit};
use millrace_tests::program::millrace;
use place::Place;
use raw::Raw;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(90);
/// The oracle, written by hand: `w` may write to the subject, `h` may hear it.
const TABLE: &str = include_str!("access/table.txt");

/// What the table says of one subject for one identity.
struct Cell {
    identity: String,
    subject: String,
    may_write: bool,
    may_hear: bool,
}

fn cells() -> Vec<Cell> {
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
            let (may_write, may_hear) = (allowed.contains('w'), allowed.contains('h'));
            cells.push(Cell { identity, subject: subject.into(), may_write, may_hear });
        }
    }
    cells
}

#[test]
fn each_role_may_do_what_the_table_says_and_the_server_refuses_it_everything_else() {
    let place = Place::new(&["millrace"]);
    let cells = cells();
    let identities: BTreeSet<&str> = cells.iter().map(|cell| cell.identity.as_str()).collect();
    let other = place.thief("millrace", "worker-echo").inbox;
    let (mut wrong, mut refused) = (String::new(), 0);
    for identity in identities {
        let mut raw = place.thief("millrace", identity);
        let own = raw.inbox.clone();
        for cell in cells.iter().filter(|cell| cell.identity == identity) {
            let subject = cell.subject.replace("_INBOX.OWN", &own).replace("_INBOX.OTHER", &other);
            for (what, found, expected) in [
                ("write to", raw.may_publish(&subject), cell.may_write),
                ("hear", raw.may_hear(&subject), cell.may_hear),
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
    assert_eq!(place.refusals().len(), refused, "each refusal stands in the log of the server");
    println!("{} subjects, {} answers, {refused} of them refusals", cells.len() / 9, cells.len() * 2);
}

/// The processes of a cluster, each with the credentials of its role, and models that answer by hand.
fn fleet(place: &Place) -> Fleet {
    let folder = place.folder.path();
    std::fs::write(folder.join("model.yaml"), MODEL).unwrap();
    std::fs::write(folder.join("writer.yaml"), WRITER).unwrap();
    let model = format!("script:{}", folder.join("model.yaml").display());
    let writer = folder.join("writer.yaml").display().to_string();
    let mut fleet = Fleet::default();
    let mut launch = |role, name: &str, identity: &str, arguments: Vec<&str>| {
        let made = place.command(identity);
        let environment: Vec<_> =
            made.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect();
        let arguments: Vec<String> = arguments.into_iter().map(ToOwned::to_owned).collect();
        fleet.launch(role, name, move |id| {
            let mut command = clean(Command::new(millrace()));
            command.envs(environment.clone()).args(&arguments).args(["--id", id]);
            command
        });
    };
    for name in ["supervisor-1", "supervisor-2"] {
        let leases = ["--lane-lease", "1s", "--work-lease", "2s", "--linger", "1s"];
        launch(Role::Supervisor, name, "supervisor", [&["supervisor", "--lanes", "2"], &leases[..]].concat());
    }
    for name in ["research", "producer", "planner", "echo"] {
        let identity = format!("worker-{name}");
        launch(Role::Worker, name, &identity, vec!["worker", "--capability", name, "--model", &model]);
    }
    launch(
        Role::Worker,
        "writer",
        "worker-writer",
        vec!["worker", "--capability", &writer, "--model", &model],
    );
    launch(Role::Critic, "critic", "critic", vec!["critic", "--model", &model]);
    fleet
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
      - {id: question, objective: What is said of patents?, capability: research}
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

/// Who holds the lane of a run, by the names that the test gave.
async fn owner(bus: &Bus, run: &RunId) -> Option<String> {
    let context = async_nats::jetstream::new(bus.client().clone());
    let leases = context.get_key_value(millrace_runtime::topology::LEASES).await.ok()?;
    let id = leases.get(format!("lane-{}", bus.lane(run))).await.ok()??;
    let id = String::from_utf8(id.to_vec()).ok()?;
    id.rsplit_once('-').map(|(name, _)| name.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_cluster_does_its_work_and_the_server_refuses_nothing() {
    let _alone = alone();
    let place = Place::new(&["millrace"]);
    let mut fleet = fleet(&place);
    let watching = place.bus("millrace", "metrics").await;
    eventually(PATIENCE, "all processes", async || (alive(&watching).await == [2, 5, 1]).then_some(())).await;
    let file = |name: &str, text: &str| {
        std::fs::write(place.folder.path().join(name), text).unwrap();
        place.folder.path().join(name).display().to_string()
    };
    let (plan, long) =
        (file("plan.yaml", PLAN), file("long.yaml", &PLAN.replace("delay_ms: 4000", "delay_ms: 600000")));
    let documents = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/licences");
    let model = format!("script:{}", place.folder.path().join("model.yaml").display());

    place.printed("client", &["limits", "set", "script:*", "--requests", "1000"]);
    let submit = |more: &[&str]| place.printed("client", &[&["submit"], more].concat()).trim().to_owned();
    let planned = submit(&["What is said of patents?", "--docs", documents, "--model", &model]);
    let (large, endless) = (submit(&["--plan", &plan]), submit(&["--plan", &long]));
    let told = place.printed("viewer", &["watch", &planned]);
    assert!(told.contains("It grants patents [1]."), "{told}");
    place.printed("client", &["cancel", &endless]);

    // Whoever owns the lane of the run with the large value dies in the middle of it.
    let large = run(&large);
    let owner = eventually(PATIENCE, "an owner", async || owner(&watching, &large).await).await;
    fleet.kill(&owner);
    place.printed("client", &["watch", large.as_str()]);
    fleet.restart(&owner);
    let runs = [planned.as_str(), large.as_str(), endless.as_str()];
    eventually(PATIENCE, "the archive", async || {
        let all = registry::runs(&watching).await.ok()?;
        (all.iter().filter(|summary| summary.archived).count() == runs.len()).then_some(())
    })
    .await;
    for identity in ["client", "viewer"] {
        for run in runs {
            assert!(place.printed(identity, &["list"]).contains(run));
            assert!(place.printed(identity, &["show", run]).contains(run));
            place.printed(identity, &["replay", run]);
        }
        assert_eq!(place.printed(identity, &["files", large.as_str(), "/note.txt"]), "written");
        assert!(place.printed(identity, &["limits"]).contains("of 1000 a minute"));
    }
    place.printed("client", &["limits", "clear", "script:*"]);
    let history = History::read(&place.bus("millrace", "viewer").await, &large).await.unwrap();
    history.assert_holds();
    fleet.end();
    assert_eq!(place.refusals(), Vec::<String>::new());
    place.thief("millrace", "viewer").may_publish("work.research.r.t.1");
    assert_eq!(place.refusals().len(), 1, "it would be seen");
}

/// How many processes of each role live: supervisors, workers, critics.
async fn alive(bus: &Bus) -> [usize; 3] {
    let beats = registry::beats(bus).await.unwrap_or_default();
    let count = |role| beats.iter().filter(|beat| beat.role == role).count();
    [count(roles::Role::Supervisor), count(roles::Role::Worker), count(roles::Role::Critic)]
}

fn capability(name: &str) -> Capability {
    Capability::new(name).unwrap()
}

fn order(run: &RunId, lane: Lane, capability_: &str) -> Order {
    let work = Work::Task { task: id("t"), attempt: 1 };
    Order::new(run.clone(), lane, work, "a secret", capability(capability_))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stolen_credential_of_a_worker_gets_at_no_other_queue() {
    let place = Place::new(&["millrace"]);
    let bus = place.supervisor("millrace").await;
    let queues = ["research", "producer", "echo"].map(capability).into();
    queue::ensure(&bus, &queues).await.unwrap();
    let run = run("r");
    let orders = ["research", "producer"].map(|name| order(&run, bus.lane(&run), name));
    queue::offer(&bus, orders.into()).await.map_err(|(_, fault)| fault).unwrap();
    let mut thief = place.thief("millrace", "worker-research");
    for subject in ["work.producer.>", "work.>", "_INBOX.>", ">"] {
        assert!(!thief.may_hear(subject), "{subject}");
    }
    for question in [
        ("CONSUMER.MSG.NEXT.WORK.producer", json!({"batch": 10})),
        ("DIRECT.GET.WORK", json!({"seq": 1, "batch": 10, "next_by_subj": "work.producer.>"})),
        ("DIRECT.GET.WORK.work.producer.r.t.1", json!({})),
        ("STREAM.MSG.GET.WORK", json!({"last_by_subj": "work.producer.r.t.1"})),
        ("CONSUMER.INFO.WORK.producer", json!({})),
    ] {
        assert_eq!(thief.ask(&format!("$JS.API.{}", question.0), &question.1), None, "{question:?}");
    }
    make_queues(&mut thief);
    let own = thief.ask("$JS.API.CONSUMER.MSG.NEXT.WORK.research", &json!({"batch": 10, "no_wait": true}));
    assert!(own.unwrap().to_string().contains("a secret"), "its own queue it may pull");
    let next = thief.next().map(|heard| String::from_utf8_lossy(&heard).into_owned());
    assert!(next.is_none_or(|text| !text.contains("secret")), "and gets one order from it");
    let context = async_nats::jetstream::new(bus.client().clone());
    let stream = context.get_stream("WORK").await.unwrap();
    assert_eq!(stream.cached_info().state.messages, 2, "nothing was taken away");
    assert_eq!(stream.cached_info().state.consumer_count, 3, "nothing was made");
}

/// Every way to make a queue, or to make its own another's.
fn make_queues(thief: &mut Raw) {
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
        assert_eq!(thief.ask(&format!("$JS.API.{subject}"), &question), None, "{subject} {config}");
    }
}

/// What a thief would like to be believed.
struct Forged {
    subject: String,
    payload: Vec<u8>,
}

impl Forged {
    fn plan(lane: Lane, run: &RunId) -> Self {
        let end =
            Event::RunEnded { reason: EndReason::Completed, detail: "forged".into(), deliverable: None };
        let by = WorkerId::new("thief").unwrap();
        let decision =
            Decision { by, previous: 0, at: jiff::Timestamp::now(), answers: Vec::new(), events: vec![end] };
        Self { subject: subject::topic(lane, run, &Topic::Plan), payload: seal::<Decision>(&body(&decision)) }
    }

    fn verdict(lane: Lane, run: &RunId) -> Self {
        let verdict = json!({"passed": false, "criteria": [], "reasoning": "forged", "feedback": "forged"});
        let verdict: Verdict = serde_json::from_value(verdict).unwrap();
        let worker = WorkerId::new("thief").unwrap();
        let entry = Entry::Outcome { worker, review: 1, outcome: Outcome::Judged(verdict) };
        let subject = subject::topic(lane, run, &Topic::Review(id("long"), 1));
        Self { subject, payload: seal::<Entry>(&body(&entry)) }
    }

    fn order(lane: Lane, run: &RunId) -> Self {
        let order = Order { objective: "forged".into(), ..order(run, lane, "producer") };
        Self { subject: format!("work.producer.{run}.t.1"), payload: seal::<Order>(&body(&order)) }
    }

    /// Writes it where it may be written, and has it sent where it may not: as the server's answer. Also with headers
    /// that claim to be those of whoever hands it out.
    fn smuggle(&self, thief: &mut Raw, lane: Lane) {
        let headers = [("Millrace-Id", "x"), ("Nats-Subject", self.subject.as_str())];
        let hiding = format!("lane.{lane}.run.thief.task.{}.1", uuid::Uuid::new_v4().simple());
        let refused = thief.publish(&hiding, "", &headers, &self.payload);
        assert_eq!(refused, Vec::<String>::new(), "its own journals it may write");
        let question = format!("$JS.API.DIRECT.GET.LANE_{lane}");
        for more in [json!({}), json!({"no_hdr": true}), json!({"batch": 1})] {
            let mut wish = json!({"seq": 1, "next_by_subj": hiding});
            wish.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            thief.publish(&question, &self.subject, &[], wish.to_string().as_bytes());
        }
    }
}

/// The strays on a subject of a run.
async fn strays(bus: &Bus, run: &RunId, subject: &str) -> Vec<Record> {
    let records = log::read_run(bus, bus.lane(run), run, 1).await.unwrap_or_default();
    records.into_iter().filter(|record| record.is_stray && *record.subject == *subject).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stolen_credential_of_a_worker_writes_no_verdict_and_forges_no_plan() {
    let _alone = alone();
    let place = Place::new(&["millrace"]);
    let mut fleet = fleet(&place);
    let client = place.bus("millrace", "client").await;
    let name = run("under-attack");
    let review = Review::critic(vec!["it is long".into()]);
    let long = TaskSpec { review, is_final: true, ..echo("long", &json!({"delay_ms": 6000, "steps": 6})) };
    submit(&client, &name, &fixed(vec![long])).await;
    let lane = client.lane(&name);
    eventually(PATIENCE, "a first step", async || {
        let records = log::read_topic(&client, lane, &name, &Topic::Task(id("long"), 1)).await.ok()?;
        (records.len() >= 2).then_some(())
    })
    .await;

    let mut thief = place.thief("millrace", "worker-research");
    let forged = [Forged::plan(lane, &name), Forged::verdict(lane, &name), Forged::order(lane, &name)];
    for forged in &forged {
        let refused = thief.publish(&forged.subject, "", &[], &forged.payload);
        assert_eq!(refused.len(), 1, "{}", forged.subject);
        forged.smuggle(&mut thief, lane);
    }
    for forged in &forged[..2] {
        let there = eventually(PATIENCE, "what was smuggled", async || {
            Some(strays(&client, &name, &forged.subject).await).filter(|strays| strays.len() >= 3)
        })
        .await;
        for stray in there {
            assert!(
                client.open::<Decision>(&stray).await.is_err() && client.open::<Entry>(&stray).await.is_err()
            );
        }
    }
    // Whoever takes the lane over reads all of it, and believes none of it.
    let owner = eventually(PATIENCE, "an owner", async || {
        owner(&place.bus("millrace", "metrics").await, &name).await
    })
    .await;
    fleet.kill(&owner);
    let told = place.printed("client", &["watch", name.as_str()]);
    assert!(!told.contains("forged"), "{told}");
    let history = finished(&client, &name, PATIENCE).await;
    history.assert_holds();
    let task = history.plan().task(&id("long")).unwrap();
    assert_eq!(history.plan().end.as_ref().unwrap().reason, EndReason::Completed);
    assert_eq!((task.attempt, task.reason.as_deref()), (1, None), "its verdict is the critic's");
    assert!(!fleet.logs().contains("order comes"), "{}", fleet.logs());
    let producer = fleet.log("producer");
    assert!(producer.contains("nobody wrote it there"), "a forged order is no order:\n{producer}");
}

/// Has the server answer with the last message of a subject, and the answer sent where it does not belong.
fn send_last(thief: &mut Raw, stream: &str, subject: &str, to: &str) {
    let question = json!({ "last_by_subj": subject, "no_hdr": true }).to_string();
    let refused = thief.publish(&format!("$JS.API.DIRECT.GET.{stream}"), to, &[], question.as_bytes());
    assert_eq!(refused, Vec::<String>::new(), "it may ask");
}

/// What there is on the server: each stream with how many messages and consumers it has.
fn inventory(place: &Place) -> BTreeMap<String, (u64, u64)> {
    let mut raw = place.thief("millrace", "backup");
    let names = raw.ask("$JS.API.STREAM.NAMES", &json!({})).unwrap();
    let names = names["streams"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned());
    let mut all = BTreeMap::new();
    for name in names.collect::<Vec<_>>() {
        let info = raw.ask(&format!("$JS.API.STREAM.INFO.{name}"), &json!({}));
        let count =
            |what: &str| info.as_ref().and_then(|info| info["state"][what].as_u64()).unwrap_or(u64::MAX);
        all.insert(name, (count("messages"), count("consumer_count")));
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_of_the_server_is_carried_out_by_its_own_api() {
    for more in [&[][..], &["--jwt"]] {
        let place = Place::with(&["millrace"], more);
        let bus = place.supervisor("millrace").await;
        queue::ensure(&bus, &["research", "producer"].map(capability).into()).await.unwrap();
        let mut thief = place.thief("millrace", "worker-research");
        let wishes = [
            ("CONSUMER.CREATE.LANE_0", json!({"stream_name": "LANE_0", "config": {"ack_policy": "none"}})),
            (
                "STREAM.CREATE.MINE",
                json!({"name": "MINE", "subjects": ["mine.>"], "storage": "file", "retention": "limits"}),
            ),
            ("STREAM.PURGE.LANE_1", json!({})),
        ];
        let hidden = |number: usize| format!("lane.{}.run.thief.task.t{number}.1", number % 2);
        for (number, (_, wish)) in wishes.iter().enumerate() {
            let wish = wish.to_string();
            assert_eq!(thief.publish(&hidden(number), "", &[], wish.as_bytes()), Vec::<String>::new());
        }
        let before = inventory(&place);
        // Whoever reads only has an answer without content sent, that there is no such message.
        let mut viewer = place.thief("millrace", "viewer");
        for stream in ["FILES", "LANE_0", "WORK"] {
            for request in ["DELETE", "PURGE"] {
                let (place, nothing) =
                    (format!("$JS.API.STREAM.{request}.{stream}"), json!({"seq": 1_000_000}));
                let question = nothing.to_string();
                assert_eq!(
                    viewer.publish("$JS.API.DIRECT.GET.FILES", &place, &[], question.as_bytes()),
                    [""; 0]
                );
            }
        }
        for (number, (request, _)) in wishes.iter().enumerate() {
            let stream = format!("LANE_{}", number % 2);
            send_last(&mut thief, &stream, &hidden(number), &format!("$JS.API.{request}"));
        }
        // Where the API is, no answer can be sent.
        for question in ["$JS.API.DIRECT.GET.FILES", "$JS.API.CONSUMER.MSG.NEXT.WORK.research"] {
            let refused = thief.publish(question, "$JS.ACK.millrace.api.STREAM.DELETE.FILES", &[], b"{}");
            assert!(refused.len() == 1 && refused[0].contains("Publish with Reply"), "{refused:?}");
        }
        // What was asked for before this has been answered, and whatever came of that has begun.
        for (stream, raw) in [("FILES", &mut viewer), ("LANE_0", &mut thief)] {
            assert!(raw.ask(&format!("$JS.API.DIRECT.GET.{stream}"), &json!({"seq": 1_000_000})).is_some());
        }
        queue::ensure(&bus, &["research", "producer"].map(capability).into()).await.unwrap();
        assert_eq!(inventory(&place), before, "{more:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stolen_credential_changes_nothing_of_the_cluster_s_settings() {
    let place = Place::new(&["millrace"]);
    let bus = place.supervisor("millrace").await;
    let settings = async_nats::jetstream::new(bus.client().clone()).get_key_value("cluster").await.unwrap();
    let before = settings.entry("settings").await.unwrap().unwrap();
    // Settings that would let orders count that nobody wrote.
    let mut lie: Value = serde_json::from_slice(&before.value).unwrap();
    lie["unmarked_orders_through"] = u64::MAX.into();
    let mut thief = place.thief("millrace", "worker-research");
    let hidden = "lane.0.run.thief.task.t.1";
    assert_eq!(thief.publish(hidden, "", &[], lie.to_string().as_bytes()), Vec::<String>::new());
    for key in ["settings", "ready", "beside"] {
        send_last(&mut thief, "LANE_0", hidden, &format!("$KV.cluster.{key}"));
    }
    eventually(PATIENCE, "what was sent last", async || settings.get("beside").await.ok()?).await;
    let after = settings.entry("settings").await.unwrap().unwrap();
    assert_eq!((after.revision, &after.value), (before.revision, &before.value));
    // Whoever begins now reads what always stood there.
    assert_eq!(place.bus("millrace", "worker-producer").await.settings(), bus.settings());
    assert_eq!(place.supervisor("millrace").await.settings(), bus.settings());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stolen_credential_stops_nobody_s_work() {
    let place = Place::new(&["millrace"]);
    let bus = place.supervisor("millrace").await;
    let producer = place.bus("millrace", "worker-producer").await;
    let mut stops = queue::Stops::listen(&producer).await.unwrap();
    producer.client().flush().await.unwrap();
    let mut thief = place.thief("millrace", "worker-research");
    let (id, all) = ([("Millrace-Id", "x")], [0xc0]);
    for (hidden, headers) in [("lane.0.run.thief.task.t.1", &id[..0]), ("lane.0.run.thief.task.t.2", &id)] {
        assert_eq!(thief.publish(hidden, "", headers, &all), Vec::<String>::new());
        for no_hdr in [true, false] {
            let question = json!({ "last_by_subj": hidden, "no_hdr": no_hdr }).to_string();
            let asked = thief.publish("$JS.API.DIRECT.GET.LANE_0", "stop.live", &[], question.as_bytes());
            assert_eq!(asked, Vec::<String>::new());
        }
    }
    // What was asked for before this has been answered.
    assert!(thief.ask("$JS.API.DIRECT.GET.LANE_0", &json!({"seq": 1_000_000})).is_some());
    let other = RunId::new("other").unwrap();
    queue::stop(&bus, &other, None).await.unwrap();
    let heard = tokio::time::timeout(PATIENCE, stops.next()).await.expect("a stop in time");
    assert_eq!(heard, Some((other, None)), "the first that counts");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stolen_credential_removes_no_live_run_by_saying_that_it_is_archived() {
    let _alone = alone();
    let place = Place::new(&["millrace"]);
    let mut fleet = fleet(&place);
    fleet.kill("supervisor-2");
    let client = place.bus("millrace", "client").await;
    let (done, live) = (run("done"), run("live"));
    submit(&client, &done, &fixed(vec![echo("t", &json!({}))])).await;
    let archived = eventually(PATIENCE, "the archive", async || {
        registry::summary(&client, &done).await.ok()?.filter(|summary| summary.archived)
    })
    .await;
    submit(&client, &live, &fixed(vec![echo("long", &json!({"delay_ms": 6000, "steps": 6}))])).await;
    let lane = client.lane(&live);
    eventually(PATIENCE, "a first step", async || {
        let records = log::read_topic(&client, lane, &live, &Topic::Task(id("long"), 1)).await.ok()?;
        (records.len() >= 2).then_some(())
    })
    .await;

    let plan = subject::topic(lane, &live, &Topic::Plan);
    let mut viewer = place.thief("millrace", "viewer");
    send_last(&mut viewer, "KV_runs", "$KV.runs.done", "$KV.runs.live");
    send_last(&mut viewer, "KV_runs", "$KV.runs.done", &plan);
    // With the credential of a client also a summary that names the run.
    let mut thief = place.thief("millrace", "client");
    let lie = serde_json::to_vec(&roles::RunSummary { run: live.clone(), ..archived }).unwrap();
    assert_eq!(thief.publish("$O.blobs.C.lie", "", &[], &lie), Vec::<String>::new());
    send_last(&mut thief, "OBJ_blobs", "$O.blobs.C.lie", "$KV.runs.live");
    eventually(PATIENCE, "what was smuggled", async || {
        let is_told = registry::summary(&client, &live).await.ok()?.is_some_and(|summary| summary.archived);
        (is_told && !strays(&client, &live, &plan).await.is_empty()).then_some(())
    })
    .await;
    // Whoever begins with the lane looks every run of it up.
    fleet.kill("supervisor-1");
    fleet.restart("supervisor-1");
    let history = finished(&client, &live, PATIENCE).await;
    history.assert_holds();
    assert_eq!(history.plan().end.as_ref().unwrap().reason, EndReason::Completed);
    assert_eq!(history.plan().task(&id("long")).unwrap().attempt, 1);
    let told = fleet.logs();
    assert!(told.contains("which does not hold it"), "{told}");
    assert!(told.contains("a message that nobody wrote there is passed over"), "{told}");
    assert!(!told.contains("another owner has decided on this run"), "a stray is no decision:\n{told}");
    fleet.end();
}

#[tokio::test]
async fn nobody_hears_what_another_is_answered() {
    let place = Place::new(&["millrace"]);
    let victim = place.supervisor("millrace").await;
    let mut thief = place.thief("millrace", "client");
    let theirs = place.thief("millrace", "supervisor").inbox;
    for subject in
        [format!("{theirs}.>"), format!("{theirs}.*"), "_INBOX.>".into(), "_INBOX.*.>".into(), "*.>".into()]
    {
        assert_eq!(thief.hear(&subject).len(), 1, "{subject}");
    }
    let own = format!("{}.>", thief.inbox);
    assert_eq!(thief.hear(&own), Vec::<String>::new());
    let asked = registry::beats(&victim).await;
    assert!(asked.is_ok() && thief.next().is_none());
    assert_eq!(place.refusals().len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_one_tenant_is_invisible_to_another_on_the_same_server() {
    let place = Place::new(&["one", "two"]);
    let (one, two) = (place.supervisor("one").await, place.supervisor("two").await);
    let name = run("20261122-000000-aaaaaa");
    let client = place.bus("one", "client").await;
    submit(&client, &name, &fixed(vec![echo("t", &json!({}))])).await;
    one.blobs().put(b"a secret").await.unwrap();
    assert_eq!(log::handed_in(&one).await.unwrap().len(), 1);

    let mut stranger = place.thief("two", "backup");
    assert_eq!(log::handed_in(&two).await.unwrap().len(), 0);
    assert!(archive::find_run(&two, two.lane(&name), &name).await.unwrap().is_empty());
    assert!(two.blobs().get(&millrace_runtime::blobs::sha256(b"a secret")).await.is_err());
    let lane = format!("$JS.API.STREAM.INFO.LANE_{}", one.lane(&name));
    let messages = |info: Option<Value>| info.unwrap()["state"]["messages"].as_u64().unwrap();
    assert_eq!(messages(stranger.ask(&lane, &json!({}))), 0, "a lane of its own");
    assert_eq!(messages(place.thief("one", "backup").ask(&lane, &json!({}))), 1);
    // The same subjects are others there.
    let mut supervisor = place.thief("two", "supervisor");
    supervisor.publish(&subject::topic(one.lane(&name), &name, &Topic::Plan), "", &[], b"x");
    assert_eq!(messages(place.thief("one", "backup").ask(&lane, &json!({}))), 1);
    assert!(place.seed("one", "client").exists() && place.seed("two", "client").exists());
}
