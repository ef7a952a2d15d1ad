//! Providers that are away, that stay away, and that refuse: on clusters of their own, because their workers' models are
//! those of a stub provider.

use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::plan::{
    AttemptEvent, Budget, BudgetEvent, EndReason, Event, JournalKey, Plan, PlanningEvent, PlanningMode,
    ProviderEvent, ResourceAmounts, RunEvent, Submission, TaskSpec, TaskState,
};
use millrace_protocol::subject::Topic;
use millrace_protocol::wait::ProviderWait;
use millrace_protocol::work::JournalEntry;
use millrace_runtime::Bus;
use millrace_runtime::log::read_topic;
use millrace_runtime::work::registry;
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster};
use millrace_tests::history::History;
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{run_id, submit_run, task_id, wait_for_run_history};
use millrace_tests::provider::{StubProvider, StubReply};
use millrace_tests::wait_for_value;

const CLERK: &str = "name: clerk\ndescription: Answers.\ninstructions: Answer the question.\n";
const PATIENCE: Duration = Duration::from_secs(240);
const ANSWER: &str = "an answer";

/// A cluster with a supervisor, and a way to start workers that offer `clerk` with the provider's model.
struct Office {
    cluster: TestCluster,
    provider: StubProvider,
    clerk: PathBuf,
}

impl Office {
    async fn open(slots: u32, replies: Vec<StubReply>) -> Self {
        let mut cluster = TestCluster::with_server_only(ClusterSetup { slots, ..ClusterSetup::default() });
        cluster.start_process(ProcessRole::Supervisor, "supervisor-1", &[]);
        let clerk = cluster.test_folder().join("clerk.yaml");
        std::fs::write(&clerk, CLERK).unwrap();
        Self { cluster, provider: StubProvider::start(replies).await, clerk }
    }

    fn add_worker(&mut self, name: &str) {
        let arguments = [
            "--model",
            &self.provider.model,
            "--capability",
            self.clerk.to_str().unwrap(),
            "--capability",
            "planner",
        ];
        self.cluster.start_process(ProcessRole::Worker, name, &arguments);
    }

    fn millrace(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let Output { status, stdout, stderr } =
            self.cluster.millrace_command().args(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (status.code(), format!("{}{}", text(&stdout), text(&stderr)))
    }
}

fn question(provider_timeout: Option<Duration>) -> Submission {
    let clerk = Capability::new("clerk").unwrap();
    let task = TaskSpec { is_final: true, ..TaskSpec::new(task_id("ask"), "How long is it?", clerk) };
    let budget = Budget { provider_timeout, ..Budget::default() };
    Submission { budget, ..Submission::new("ask", PlanningMode::Fixed) }.with_tasks([task])
}

async fn wait_until<T>(bus: &Bus, name: &RunId, what: &str, check: impl Fn(&Plan) -> Option<T>) -> T {
    wait_for_value(PATIENCE, what, async || {
        let history = History::read_from_log(bus, name).await.ok()?;
        check(history.folded_plan())
    })
    .await
}

fn current_wait(plan: &Plan) -> Option<ProviderWait> {
    plan.provider_waits().next().cloned()
}

fn paused_for(plan: &Plan) -> Option<ProviderWait> {
    plan.run.paused_for_provider.clone().filter(|_| plan.run.paused.is_some())
}

/// Checks that the run completed in its first attempt.
fn assert_completed_in_one_attempt(history: &History) {
    let plan = history.folded_plan();
    let end = plan.run.end.as_ref().unwrap();
    assert_eq!(end.reason, EndReason::Completed, "{}", end.detail);
    for task in plan.tasks() {
        assert_eq!((task.attempt, task.attempts.len()), (1, 1), "{:?}", task.attempts);
    }
    let is_failure = |event: &Event| {
        matches!(
            event,
            Event::Attempt(AttemptEvent::Errored { .. } | AttemptEvent::TimedOut { .. })
                | Event::Planning(PlanningEvent::Errored { .. })
        )
    };
    assert!(!history.timed_events().any(|(_, event)| is_failure(event)), "an attempt was counted");
    history.assert_consistent();
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_complete_after_an_outage_and_no_attempt_is_counted() {
    const RUNS: usize = 50;
    const SLOTS: u32 = 8;
    let _shared = share_machine();
    let faults = [
        StubReply::Error(500, "server_error"),
        StubReply::Error(503, "overloaded"),
        StubReply::Busy(0),
        StubReply::Disconnect,
        StubReply::BrokenJson,
        StubReply::BrokenStream,
        StubReply::Body("text/html", "<html><head><title>Bad gateway</title></head></html>"),
        StubReply::Body("text/plain", "no healthy upstream"),
        StubReply::Body("application/json", "\"maintenance\""),
        StubReply::Body("application/json", r#"{"status": "starting"}"#),
        StubReply::Body("application/json", ""),
    ];
    let mut office = Office::open(SLOTS, faults.iter().cycle().take(600).cloned().collect()).await;
    office.add_worker("worker-1");
    office.add_worker("worker-2");
    let bus = office.cluster.connect_bus().await;
    let names: Vec<RunId> = (0..RUNS).map(|number| run_id(&format!("away-{number}"))).collect();
    for name in &names {
        submit_run(&bus, name, &question(None)).await;
    }
    let waiting = async || {
        let summaries = registry::read_run_summaries(&bus).await.ok()?;
        let waits = summaries.into_iter().filter_map(|summary| summary.waiting_for_provider);
        Some(waits.collect::<Vec<ProviderWait>>()).filter(|waits| waits.len() == 2 * SLOTS as usize)
    };
    let waits = wait_for_value(PATIENCE, "all slots to wait for the provider", waiting).await;
    assert!(waits.iter().all(|wait| wait.model.starts_with("openai-compatible:stub")), "{waits:?}");
    // Refused connections are an outage too.
    office.provider.go_away().await;
    let refused = async || {
        let summaries = registry::read_run_summaries(&bus).await.ok()?;
        let waits = summaries.into_iter().filter_map(|summary| summary.waiting_for_provider);
        waits.into_iter().any(|wait| wait.error.contains("can't be reached")).then_some(())
    };
    wait_for_value(PATIENCE, "a refused connection", refused).await;
    let (code, list) = office.millrace(&["list"]);
    assert!(code == Some(0) && list.contains("waiting (provider)"), "{list}");
    assert!(list.contains("(waiting for provider openai-compatible:stub"), "{list}");
    let waits = async || {
        let mut waiting = None;
        for name in &names {
            let history = History::read_from_log(&bus, name).await.ok()?;
            waiting = waiting.or(current_wait(history.folded_plan()).map(|_| name.clone()));
        }
        waiting
    };
    let one = wait_for_value(PATIENCE, "a run that waits", waits).await;
    let (_, board) = office.millrace(&["show", one.as_str()]);
    assert!(
        board.contains("waiting for openai-compatible:stub") && board.contains("last error: "),
        "{board}"
    );
    let (_, json) = office.millrace(&["show", one.as_str(), "--json"]);
    assert!(json.contains("waiting_for_provider") && json.contains("next_try"), "{json}");
    office.provider.set_replies(vec![StubReply::Text(ANSWER.into())]);
    office.provider.come_back().await;
    for name in &names {
        assert_completed_in_one_attempt(&wait_for_run_history(&bus, name, PATIENCE).await);
    }
    office.cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_work_of_a_stopped_worker_continues_on_another_at_once() {
    let _shared = share_machine();
    let mut office = Office::open(8, vec![StubReply::Error(500, "server_error")]).await;
    office.add_worker("worker-1");
    let bus = office.cluster.connect_bus().await;
    let name = run_id("drained");
    submit_run(&bus, &name, &question(None)).await;
    let first = wait_until(&bus, &name, "a wait", current_wait).await;
    office.add_worker("worker-2");
    office.cluster.wait_for_heartbeats(&bus, millrace_protocol::registry::ProcessRole::Worker, 2).await;
    let (status, took) = office.cluster.stop_process("worker-1");
    assert!(status.success(), "{status}");
    // Work that is busy gets 2 s in this cluster.
    assert!(took < Duration::from_millis(1_900), "the worker waited with its work: {took:?}");
    let on_second = |plan: &Plan| {
        let attempt = plan.tasks().first()?.attempts.first()?;
        attempt.worker.as_ref().filter(|worker| worker.as_str().starts_with("worker-2"))?;
        current_wait(plan)
    };
    let second = wait_until(&bus, &name, "a wait on the other worker", on_second).await;
    assert_eq!(second.since, first.since, "the wait began on the first worker");
    assert!(second.tries > first.tries, "{second:?}");
    office.provider.set_replies(vec![StubReply::Text(ANSWER.into())]);
    assert_completed_in_one_attempt(&wait_for_run_history(&bus, &name, PATIENCE).await);
    let topic = Topic::Journal(JournalKey::Task(task_id("ask"), 1));
    let mut released = Vec::new();
    for record in read_topic(&bus, bus.lane_of_run(&name), &name, &topic).await.unwrap() {
        if let JournalEntry::Released { worker, .. } = bus.decode_record(&record).await.unwrap() {
            released.push(worker.to_string());
        }
    }
    assert!(
        matches!(released.as_slice(), [worker] if worker.starts_with("worker-1")),
        "work that waits is returned only by a process that stops: {released:?}"
    );
    office.cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn run_pauses_after_the_provider_timeout_and_resumes_in_the_same_attempt() {
    let _shared = share_machine();
    let mut office = Office::open(8, vec![StubReply::Text(ANSWER.into())]).await;
    office.provider.go_away().await;
    office.add_worker("worker-1");
    let bus = office.cluster.connect_bus().await;
    let (fixed, planned) = (run_id("fixed"), run_id("planned"));
    let budget = Budget { provider_timeout: Some(Duration::from_secs(2)), ..Budget::default() };
    submit_run(&bus, &fixed, &question(budget.provider_timeout)).await;
    submit_run(&bus, &planned, &Submission { budget, ..Submission::new("find out", PlanningMode::Llm) })
        .await;
    for name in [&fixed, &planned] {
        let wait = wait_until(&bus, name, "a pause", paused_for).await;
        assert!(wait.error.contains("can't be reached"), "{wait:?}");
        let (code, text) = office.millrace(&["watch", name.as_str()]);
        assert!(code == Some(5) && text.contains(&format!("millrace resume {name}")), "{code:?} {text}");
        let (_, board) = office.millrace(&["show", name.as_str()]);
        assert!(board.contains("paused: the provider of openai-compatible:stub"), "{board}");
    }
    let plan = History::read_from_log(&bus, &planned).await.unwrap().folded_plan().clone();
    assert_eq!(plan.planning.turn.as_ref().map(|turn| (turn.turn, turn.attempt)), Some((1, 1)));
    let (_, list) = office.millrace(&["list"]);
    assert_eq!(list.matches("paused: provider").count(), 2, "{list}");
    office.provider.come_back().await;
    let (code, text) = office.millrace(&["resume", fixed.as_str()]);
    assert!(code == Some(0) && text.contains(ANSWER), "{code:?} {text}");
    let history = wait_for_run_history(&bus, &fixed, PATIENCE).await;
    assert_completed_in_one_attempt(&history);
    let pauses = history
        .timed_events()
        .filter(|(_, event)| matches!(event, Event::Provider(ProviderEvent::GivenUp { .. })))
        .count();
    assert_eq!(pauses, 1);
    office.cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn resumed_run_asks_at_once_a_provider_that_asked_to_wait_for_hours() {
    let _shared = share_machine();
    let mut office = Office::open(8, vec![StubReply::Busy(9_000)]).await;
    office.add_worker("worker-1");
    let bus = office.cluster.connect_bus().await;
    let name = run_id("limited");
    submit_run(&bus, &name, &question(None)).await;
    let wait = wait_until(&bus, &name, "a pause", paused_for).await;
    let asked = wait.next_try.duration_since(jiff::Timestamp::now()).as_secs();
    assert!((8_700..=9_000).contains(&asked), "{wait:?}");
    let (_, shown) = office.millrace(&["show", name.as_str()]);
    let end = wait.next_try.strftime("though it asked to wait until %Y-%m-%d %H:%M:%S UTC").to_string();
    assert!(shown.contains("tries again at once") && shown.contains(&end), "{shown}");
    let requests = office.provider.recorded_activity().requests.len();
    let (code, text) = office.millrace(&["resume", name.as_str()]);
    assert!(code == Some(5), "{code:?} {text}");
    assert_eq!(office.provider.recorded_activity().requests.len(), requests + 1, "it asked once");
    office.provider.set_replies(vec![StubReply::Text(ANSWER.into())]);
    let (code, text) = office.millrace(&["resume", name.as_str()]);
    assert!(code == Some(0) && text.contains(ANSWER), "{code:?} {text}");
    assert_completed_in_one_attempt(&wait_for_run_history(&bus, &name, PATIENCE).await);
    office.cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn open_circuit_breaker_neither_delays_a_pause_nor_repeats_it() {
    let _shared = share_machine();
    let mut office = Office::open(8, vec![StubReply::Text(ANSWER.into())]).await;
    office.provider.go_away().await;
    office.add_worker("worker-1");
    let bus = office.cluster.connect_bus().await;
    // These runs wait for long, and their failures open the breaker of the worker.
    for number in 0..4 {
        submit_run(&bus, &run_id(&format!("patient-{number}")), &question(None)).await;
    }
    let is_open = async || {
        let summaries = registry::read_run_summaries(&bus).await.ok()?;
        let mut waits = summaries.into_iter().filter_map(|summary| summary.waiting_for_provider);
        waits.any(|wait| wait.error.contains("circuit breaker")).then_some(())
    };
    wait_for_value(PATIENCE, "an open breaker", is_open).await;
    let hasty = run_id("hasty");
    submit_run(&bus, &hasty, &question(Some(Duration::from_secs(2)))).await;
    let wait = wait_until(&bus, &hasty, "a pause", paused_for).await;
    assert!(wait.error.contains("can't be reached"), "the last request was sent: {wait:?}");
    office.provider.come_back().await;
    // The breaker may still be open; the request at the deadline is sent nevertheless.
    let (code, text) = office.millrace(&["resume", hasty.as_str()]);
    assert!(code == Some(0) && text.contains(ANSWER), "{code:?} {text}");
    assert_completed_in_one_attempt(&wait_for_run_history(&bus, &hasty, PATIENCE).await);
    office.cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_requests_end_a_run_at_once_and_it_resumes_when_that_is_mended() {
    let _shared = share_machine();
    let mut office = Office::open(8, vec![StubReply::Error(429, "insufficient_quota")]).await;
    office.add_worker("worker-1");
    let bus = office.cluster.connect_bus().await;
    for (name, reply, words) in [
        ("no-quota", StubReply::Error(429, "insufficient_quota"), "has no quota or credit left"),
        ("wrong-key", StubReply::Error(401, "invalid_api_key"), "rejected the API key"),
        ("no-model", StubReply::Error(404, "model_not_found"), "rejected the request"),
    ] {
        office.provider.set_replies(vec![reply]);
        let name = run_id(name);
        submit_run(&bus, &name, &question(None)).await;
        let requests = office.provider.recorded_activity().requests.len();
        let history = wait_for_run_history(&bus, &name, PATIENCE).await;
        let end = history.folded_plan().run.end.clone().unwrap();
        assert_eq!((end.reason, end.is_resumable), (EndReason::Failed, true), "{name}");
        assert!(end.is_refused_by_provider && end.detail.contains(words), "{name}: {}", end.detail);
        assert_eq!(history.folded_plan().tasks()[0].attempts.len(), 1, "{name}: another attempt can't help");
        assert!(
            office.provider.recorded_activity().requests.len() <= requests + 1,
            "{name}: one request was sent"
        );
        let (code, text) = office.millrace(&["watch", name.as_str()]);
        assert!(code == Some(4) && text.contains(&format!("millrace resume {name}")), "{code:?} {text}");
        office.provider.set_replies(vec![StubReply::Text(ANSWER.into())]);
        let (code, text) = office.millrace(&["resume", name.as_str()]);
        assert!(code == Some(0) && text.contains(ANSWER), "{code:?} {text}");
        let history = wait_for_run_history(&bus, &name, PATIENCE).await;
        let reopened = |event: &Event| matches!(event, Event::Run(RunEvent::Reopened));
        assert!(history.timed_events().any(|(_, event)| reopened(event)));
        assert_eq!(history.folded_plan().tasks()[0].state(), TaskState::Completed);
    }
    office.cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn run_whose_planner_was_refused_resumes_and_failed_tasks_are_retried() {
    let _shared = share_machine();
    let mut office = Office::open(8, vec![StubReply::Error(401, "invalid_api_key")]).await;
    office.add_worker("worker-1");
    let bus = office.cluster.connect_bus().await;
    let (planned, fixed) = (run_id("planned"), run_id("retried"));
    submit_run(&bus, &planned, &Submission::new("find out", PlanningMode::Llm)).await;
    let end = wait_for_run_history(&bus, &planned, PATIENCE).await.folded_plan().run.end.clone().unwrap();
    assert_eq!((end.reason, end.is_resumable), (EndReason::PlannerUnavailable, true));
    assert!(end.is_refused_by_provider, "{}", end.detail);
    assert_eq!(office.provider.recorded_activity().requests.len(), 1, "the planner sent one request");
    submit_run(&bus, &fixed, &question(None)).await;
    wait_for_run_history(&bus, &fixed, PATIENCE).await;
    office.provider.set_replies(vec![StubReply::Text(ANSWER.into())]);
    let (code, text) = office.millrace(&["retry", fixed.as_str(), "ask"]);
    assert_eq!(code, Some(0), "{text}");
    let is_completed =
        |plan: &Plan| plan.run.end.as_ref().filter(|end| end.reason == EndReason::Completed).map(drop);
    wait_until(&bus, &fixed, "the end of the retried task", is_completed).await;
    let turn = r#"{"reasoning": "one question", "tasks": [{"id": "ask", "objective": "How long?", "capability": "clerk", "final": true}]}"#;
    office.provider.set_replies(vec![StubReply::Text(turn.into()), StubReply::Text(ANSWER.into())]);
    let mut resumed = office.cluster.millrace_command().args(["resume", planned.as_str()]).spawn().unwrap();
    // There is no critic in this cluster.
    let is_done =
        |plan: &Plan| plan.tasks().first().filter(|task| task.state() == TaskState::NeedsReview).map(drop);
    wait_until(&bus, &planned, "the result of the new plan", is_done).await;
    let (code, text) = office.millrace(&["cancel", planned.as_str()]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(resumed.wait().unwrap().code(), Some(1));
    office.cluster.stop_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn small_budget_ends_with_an_answer_and_pays_for_every_request() {
    const TOKENS: u64 = 9_000;
    let _shared = share_machine();
    let mut office = Office::open(8, vec![StubReply::Metered(ANSWER.into())]).await;
    office.add_worker("worker-1");
    let bus = office.cluster.connect_bus().await;
    let name = run_id("small");
    // About 2,300 tokens each, which is more than a quarter of the budget.
    let clerk = || Capability::new("clerk").unwrap();
    let asked = |name: &str| {
        TaskSpec::new(task_id(name), format!("How long is {}it?", "the very ".repeat(1_000)), clerk())
    };
    let report = TaskSpec {
        depends_on: ["a", "b", "c"].map(task_id).to_vec(),
        is_final: true,
        ..TaskSpec::new(task_id("report"), "Sum it up.", clerk())
    };
    let amounts = ResourceAmounts { tokens: Some(TOKENS), ..ResourceAmounts::default() };
    let budget = Budget { amounts, ..Budget::default() };
    let tasks = vec![asked("a"), asked("b"), asked("c"), report];
    submit_run(
        &bus,
        &name,
        &Submission { budget, ..Submission::new("ask", PlanningMode::Fixed) }.with_tasks(tasks),
    )
    .await;
    let history = wait_for_run_history(&bus, &name, PATIENCE).await;
    let plan = history.folded_plan();
    let end = plan.run.end.as_ref().unwrap();
    assert_eq!(end.reason, EndReason::BudgetExhausted, "{}", end.detail);
    assert_eq!(end.deliverable.as_ref().map(|(task, _)| task.as_str()), Some("report"), "{}", end.detail);
    assert_eq!(
        plan.task_count_in_state(TaskState::Completed),
        3,
        "two questions and the report are paid for"
    );
    let used = plan.budget.spend.total;
    assert!(used.input_tokens + used.output_tokens <= TOKENS, "{used:?}");
    assert_eq!(
        office.provider.recorded_activity().requests.len() as u64,
        used.model_calls,
        "nothing was sent in vain"
    );
    assert!(plan.tasks().iter().all(|task| task.attempts.len() <= 1), "an attempt was counted");
    let is_returned = |event: &Event| matches!(event, Event::Budget(BudgetEvent::TooSmall { .. }));
    assert!(history.timed_events().any(|(_, event)| is_returned(event)));
    office.cluster.stop_all();
}
