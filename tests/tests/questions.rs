//! Questions to persons: approvals of actions and inputs, answered by several persons at once, while processes die.

use std::collections::BTreeMap;
use std::time::Duration;

use millrace_protocol::ids::{Capability, RunId};
use millrace_protocol::plan::{EndReason, PersonReview, ReviewPolicy, Submission, TaskSpec, TaskState};
use millrace_protocol::question::{Answer, AnswerKind, AnswerScope};
use millrace_protocol::wait::WaitEnd;
use millrace_protocol::wire::decode_task_result;
use millrace_runtime::Bus;
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster};
use millrace_tests::crashes::crash_one_at_random;
use millrace_tests::history::History;
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{
    SeededRandom, echo_task, fixed_submission, run_id, submit_run, task_id, wait_for_run_history,
};
use millrace_tests::wait_for_value;
use millrace_tests::waits::{
    OpenQuestion, TIMEOUT, answer_question, answer_with_scope, read_open_questions, wait_for_questions,
    wait_for_task_count,
};
use serde_json::{Value, json};
use tokio::sync::Notify;

async fn result_of(bus: &Bus, history: &History, task: &str) -> millrace_protocol::result::TaskResult {
    let result = &history.accepted_results()[&task_id(task)];
    decode_task_result(&bus.blobs().read_inline_or_stored(result).await.unwrap()).unwrap()
}

fn assert_completed_in_one_attempt(history: &History) {
    history.assert_consistent();
    let end = history.folded_plan().run.end.as_ref().map(|end| (end.reason, end.detail.clone()));
    assert_eq!(end.as_ref().map(|(reason, _)| *reason), Some(EndReason::Completed), "{end:?}");
    for task in history.folded_plan().tasks() {
        assert_eq!(task.attempts.len(), 1, "{} has another attempt", task.spec.id);
    }
}

fn value(value: &Value) -> Answer {
    Answer::Answer { value: value.to_string() }
}

/// Waits for the decision on a fact: `Ok`, or the text of the refusal.
async fn decision_on(bus: &Bus, run: &RunId, fact: u64) -> Result<(), String> {
    wait_for_value(TIMEOUT, "the decision", async || {
        History::read_from_log(bus, run).await.ok()?.decision_on_fact(fact)
    })
    .await
    .map_err(|refusal| refusal.to_string())
}

/// One slot, three approvals and an attempt with two inputs: all are open at once, and answered in any order.
#[tokio::test(flavor = "multi_thread")]
async fn questions_are_answered_in_any_order_and_hold_no_slot() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup { slots: 1, ..ClusterSetup::default() }, 1);
    let (bus, run) = (cluster.connect_bus().await, run_id("any-order"));
    let approval = |id: &str| echo_task(id, &json!({"approve": true}));
    let tasks = vec![
        approval("approved"),
        approval("edited"),
        approval("rejected"),
        echo_task("asks", &json!({"ask": ["Which region?", "How many?"]})),
        echo_task("plain", &json!({})),
    ];
    submit_run(&bus, &run, &fixed_submission(tasks)).await;
    let open = wait_for_questions(&bus, &run, 5).await;
    wait_for_task_count(&bus, &run, TaskState::Completed, 1).await;
    let of = |task: &str, number: u32| -> &OpenQuestion {
        open.iter().find(|it| it.task() == task && it.id.number == number).unwrap()
    };
    let answers = [
        (of("asks", 2), value(&json!(3))),
        (of("rejected", 1), Answer::Reject { message: "too risky".into() }),
        (of("edited", 1), Answer::Edit { arguments: json!({"text": "edited"}).to_string() }),
        (of("asks", 1), value(&json!("eu"))),
        (of("approved", 1), Answer::Approve),
    ];
    for (question, answer) in answers {
        let fact = answer_question(&bus, &run, "ann", question, answer).await;
        assert_eq!(decision_on(&bus, &run, fact).await, Ok(()), "{}", question.id);
    }
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    assert_completed_in_one_attempt(&history);
    assert_eq!(result_of(&bus, &history, "asks").await.data, Some(json!(["eu", 3])));
    assert_eq!(result_of(&bus, &history, "edited").await.data, Some(json!({"ran": "edited"})));
    assert_eq!(
        result_of(&bus, &history, "rejected").await.data,
        Some(json!({"refused": "rejected: too risky"}))
    );
    let mut ledger: Vec<String> = cluster.read_ledger().lines().map(str::to_owned).collect();
    ledger.sort();
    assert_eq!(ledger, ["any-order approved 1 action proposed", "any-order edited 1 action edited"]);
    cluster.stop_all();
}

/// An answer that does not fit is refused with the reason, and leaves the question open; a cancelled task withdraws its question.
#[tokio::test(flavor = "multi_thread")]
async fn answers_that_do_not_fit_leave_the_question_open() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let (bus, run) = (cluster.connect_bus().await, run_id("misfits"));
    let tasks =
        vec![echo_task("act", &json!({"approve": true})), echo_task("ask", &json!({"ask": ["Why?"]}))];
    submit_run(&bus, &run, &fixed_submission(tasks)).await;
    let open = wait_for_questions(&bus, &run, 2).await;
    let of = |task: &str| open.iter().find(|it| it.task() == task).unwrap();
    let stale = OpenQuestion { digest: "of other arguments".into(), ..of("act").clone() };
    let misfit = Answer::Edit { arguments: json!({"txt": "x"}).to_string() };
    for (question, answer, why) in [
        (&stale, Answer::Approve, "the answer is for other arguments"),
        (of("act"), misfit, "the arguments: "),
        (of("act"), Answer::Decline, "decline is not allowed here"),
        (of("ask"), Answer::Approve, "approve is not allowed here"),
    ] {
        let fact = answer_question(&bus, &run, "bob", question, answer).await;
        let refused = decision_on(&bus, &run, fact).await.unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
    assert_eq!(read_open_questions(&bus, &run).await.unwrap().len(), 2);
    let cancelled = cluster.millrace_command().args(["cancel", "misfits", "--task", "act"]).output().unwrap();
    assert!(cancelled.status.success());
    let fact = answer_question(&bus, &run, "bob", of("act"), Answer::Approve).await;
    let refused = decision_on(&bus, &run, fact).await.unwrap_err();
    assert!(refused.contains("it was withdrawn: task act is cancelled"), "{refused}");
    answer_question(&bus, &run, "ann", of("ask"), value(&json!("because"))).await;
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    history.assert_consistent();
    assert!(cluster.read_ledger().is_empty());
    cluster.stop_all();
}

/// Three clients answer every question at the same time. Each question has one winner, and the others learn who that is.
/// `MILLRACE_ANSWER_RACES=1000` is the long form.
#[tokio::test(flavor = "multi_thread")]
async fn of_three_answers_at_once_one_wins_and_the_others_are_told_who() {
    let _shared = share_machine();
    let races: usize =
        std::env::var("MILLRACE_ANSWER_RACES").ok().and_then(|it| it.parse().ok()).unwrap_or(100);
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let (bus, run) = (cluster.connect_bus().await, run_id("races"));
    let per_task = 20;
    let questions: Vec<String> = (0..per_task).map(|n| format!("question {n}?")).collect();
    let tasks =
        (0..races.div_ceil(per_task)).map(|n| echo_task(&format!("t{n}"), &json!({"ask": questions})));
    submit_run(&bus, &run, &fixed_submission(tasks.collect())).await;
    let open = wait_for_questions(&bus, &run, races.div_ceil(per_task) * per_task).await;
    let clients = [cluster.connect_bus().await, cluster.connect_bus().await, cluster.connect_bus().await];
    let names = ["ann", "bob", "eve"];
    let answer_all = async |at: usize| -> Vec<u64> {
        let mut facts = Vec::new();
        for question in &open {
            facts.push(
                answer_question(&clients[at], &run, names[at], question, value(&json!(names[at]))).await,
            );
        }
        facts
    };
    let (ann, bob, eve) = tokio::join!(answer_all(0), answer_all(1), answer_all(2));
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    assert_completed_in_one_attempt(&history);
    let mut wins: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, question) in open.iter().enumerate() {
        let task = history.folded_plan().task(question.id.task().unwrap()).unwrap();
        let end = task.attempts[0].waits[question.id.number as usize - 1].end.clone();
        let Some(WaitEnd::Answered { by: winner, .. }) = end else { panic!("{end:?}") };
        let facts = [("ann", ann[at]), ("bob", bob[at]), ("eve", eve[at])];
        for (name, fact) in facts {
            match history.decision_on_fact(fact) {
                Some(Ok(())) => assert_eq!(name, winner, "{} has another winner", question.id),
                Some(Err(refusal)) => {
                    let told = refusal.to_string();
                    assert!(
                        name != winner && told.contains(&format!("{winner} answered \"{winner}\" at ")),
                        "{told}"
                    );
                }
                // The run ended first; every answer after its end is refused for that reason.
                None => assert_ne!(name, winner, "the winner has no decision"),
            }
        }
        *wins.entry(names.iter().find(|name| **name == winner).unwrap()).or_default() += 1;
    }
    println!("{} races: {wins:?}", open.len());
    cluster.stop_all();
}

/// An agent with a command under approval: the worker dies while it waits, a person changes the arguments, and another worker runs
/// the changed call once. The next call of the tool is covered by the standing approval.
#[tokio::test(flavor = "multi_thread")]
async fn agent_runs_the_edited_call_on_another_worker() {
    let _shared = share_machine();
    let mut cluster =
        TestCluster::start_with_workers(ClusterSetup { slots: 1, ..ClusterSetup::default() }, 0);
    let folder = tempfile::tempdir().unwrap();
    let (script, capability) = (folder.path().join("model.yaml"), folder.path().join("writer.yaml"));
    std::fs::write(
        &script,
        "rules:\n- turns:\n  - calls: [write_file: {file_path: /a.txt, content: proposed}, think: {thought: x}]\n  \
         - calls: [write_file: {file_path: /b.txt, content: second}]\n  \
         - calls: [write_file: {file_path: /c.txt, content: third}]\n  \
         - calls: [read_file: {file_path: /a.txt}]\n  - {text: \"{{last}}\"}\n",
    )
    .unwrap();
    std::fs::write(
        &capability,
        "name: writer\ndescription: Writes.\ninstructions: Write.\ntools: [write_file, read_file, think]\n\
         approve: [{tool: write_file, description: Writes a file of the run., to: editors}]\n",
    )
    .unwrap();
    let model = format!("script:{}", script.display());
    let arguments = ["--capability", capability.to_str().unwrap(), "--model", &model];
    cluster.start_process(ProcessRole::Worker, "worker-1", &arguments);
    let (bus, run) = (cluster.connect_bus().await, run_id("edited"));
    let task = TaskSpec { capability: Capability::new("writer").unwrap(), ..echo_task("write", &json!({})) };
    submit_run(&bus, &run, &fixed_submission(vec![task])).await;
    let open = wait_for_questions(&bus, &run, 1).await;
    assert_eq!(open[0].text, "Writes a file of the run.");
    cluster.kill_process("worker-1");
    let edit = Answer::Edit { arguments: json!({"file_path": "/a.txt", "content": "edited"}).to_string() };
    answer_question(&bus, &run, "ann", &open[0], edit).await;
    cluster.start_process(ProcessRole::Worker, "worker-2", &arguments);
    let second = wait_for_value(TIMEOUT, "the second question", async || {
        read_open_questions(&bus, &run).await?.into_iter().find(|it| it.id.to_string() == "write/1/2")
    })
    .await;
    answer_with_scope(&bus, &run, "ann", &second, Answer::Approve, AnswerScope::ThisToolInRun).await;
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    assert_completed_in_one_attempt(&history);
    let result = result_of(&bus, &history, "write").await;
    assert!(result.output.contains("edited") && !result.output.contains("proposed"), "{}", result.output);
    assert_eq!(result.usage.model_calls, 5, "no reply is asked for twice");
    let waits = &history.folded_plan().tasks()[0].attempts[0].waits;
    assert_eq!(waits.len(), 3);
    let ends: Vec<String> =
        waits.iter().filter_map(|wait| wait.end.as_ref().map(ToString::to_string)).collect();
    assert_eq!(ends[1..], ["ann approved", "ann approved"], "the third call needed nobody");
    cluster.stop_all();
}

/// Processes and the server are killed at random moments between asking, parking, answering and resuming. Every question is asked
/// once and every action done once. `MILLRACE_WAITING_SEEDS=50` is the long form.
#[tokio::test(flavor = "multi_thread")]
async fn kills_lose_no_question_and_no_answer() {
    let _shared = share_machine();
    let seeds: u64 = std::env::var("MILLRACE_WAITING_SEEDS").ok().and_then(|it| it.parse().ok()).unwrap_or(3);
    for seed in 0..seeds {
        let mut random = SeededRandom::new(seed);
        let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 2);
        let (bus, run) = (cluster.connect_bus().await, run_id(&format!("asked-{seed}")));
        let mut tasks = Vec::new();
        for n in 0..12 {
            let parameters = match n % 3 {
                0 => json!({"approve": true}),
                1 => json!({"ask": ["First?", "Second?"], "steps": 1}),
                _ => json!({"approve": true, "park_ms": random.next_below(800)}),
            };
            let mut task = echo_task(&format!("q{n}"), &parameters);
            task.limits.max_attempts = 1;
            if n % 4 == 0 {
                task.review = review_by_person();
            }
            if n >= 6 {
                task.depends_on = vec![task_id(&format!("q{}", n - 6))];
            }
            tasks.push(task);
        }
        let submission = Submission { approve_plan: true, ..fixed_submission(tasks) };
        submit_run(&bus, &run, &submission).await;
        // A crash is never left in the middle: the process would stay dead, and the run without a summary of its end.
        let has_ended = Notify::new();
        let crashes = async {
            for _ in 0..6 {
                crash_one_at_random(&mut cluster, &mut random).await;
                cluster.restart_exited();
                tokio::time::sleep(Duration::from_millis(random.next_below(500))).await;
            }
            loop {
                let pause = Duration::from_millis(200);
                if tokio::time::timeout(pause, has_ended.notified()).await.is_ok() {
                    return;
                }
                cluster.restart_exited();
            }
        };
        let ended = async {
            millrace_tests::waits::answer_every_question(&bus, &run).await;
            let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
            has_ended.notify_one();
            history
        };
        let ended = async { tokio::join!(ended, crashes).0 };
        let ended = tokio::time::timeout(2 * TIMEOUT, ended).await;
        let history = ended.unwrap_or_else(|_| panic!("seed {seed} does not end"));
        assert_completed_in_one_attempt(&history);
        let actions = cluster.read_ledger().lines().filter(|line| line.contains(" action ")).count();
        assert_eq!(actions, 8, "seed {seed}: {}", cluster.read_ledger());
        let asked: usize = history
            .folded_plan()
            .tasks()
            .iter()
            .flat_map(|task| &task.attempts)
            .map(|it| it.waits.len())
            .sum();
        assert_eq!(asked, 4 + 8 + 4 + 4 + 3, "seed {seed}: each question once, four sleeps, three reviews");
        assert_eq!(history.folded_plan().run.plan_questions.len(), 1);
        println!("seed {seed}: {} takeovers", history.takeover_count());
        cluster.stop_all();
    }
}

fn review_by_person() -> ReviewPolicy {
    ReviewPolicy::Persons(Box::new(PersonReview { ask: vec![String::new()], ..PersonReview::default() }))
}

/// No task starts before the plan is approved. A person fails a result after a critic has passed it; the next attempt gets the
/// feedback, and another person's judgement counts.
#[tokio::test(flavor = "multi_thread")]
async fn person_approves_the_plan_and_judges_results() {
    let _shared = share_machine();
    let mut cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    let (bus, run) = (cluster.connect_bus().await, run_id("judged"));
    let review = PersonReview {
        ask: vec!["ann".into()],
        criteria: vec!["It names a number.".into()],
        first: ReviewPolicy::critic(Vec::new()),
        ..PersonReview::default()
    };
    let mut task = echo_task("report", &json!({}));
    task.review = ReviewPolicy::Persons(Box::new(review));
    let submission = Submission { approve_plan: true, ..fixed_submission(vec![task]) };
    submit_run(&bus, &run, &submission).await;
    let plan_question = wait_for_questions(&bus, &run, 1).await.remove(0);
    assert_eq!(plan_question.id.to_string(), "plan/1");
    cluster.kill_process("supervisor-1");
    cluster.restart_process("supervisor-1");
    answer_question(&bus, &run, "ann", &plan_question, Answer::Approve).await;
    let judgement = |attempt: u32| {
        let (bus, run) = (bus.clone(), run.clone());
        async move {
            let id = format!("report/{attempt}/1");
            let what = format!("the question {id}");
            wait_for_value(TIMEOUT, &what, async || {
                read_open_questions(&bus, &run).await?.into_iter().find(|open| open.id.to_string() == id)
            })
            .await
        }
    };
    let failed = Answer::Fail { feedback: "name the number".into() };
    answer_question(&bus, &run, "ann", &judgement(1).await, failed).await;
    let second = judgement(2).await;
    cluster.kill_process("supervisor-1");
    cluster.restart_process("supervisor-1");
    let fact = answer_question(&bus, &run, "bob", &second, Answer::Pass).await;
    assert_eq!(decision_on(&bus, &run, fact).await, Ok(()));
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    history.assert_consistent();
    let report = history.folded_plan().task(&task_id("report")).unwrap();
    assert_eq!((report.state(), report.attempts.len()), (TaskState::Completed, 2));
    let feedback: Vec<_> =
        report.attempts[0].verdict().iter().filter_map(|it| it.1.feedback.clone()).collect();
    assert_eq!(feedback, ["ann rejected it: name the number"]);
    cluster.stop_all();
}

/// A program asks for an input and an approval, its worker dies, and another one runs it again with the answers.
#[tokio::test(flavor = "multi_thread")]
async fn program_waits_for_answers_and_runs_again_with_them() {
    let _shared = share_machine();
    let mut cluster =
        TestCluster::start_with_workers(ClusterSetup { slots: 1, ..ClusterSetup::default() }, 0);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("deploy.py"),
        "import json, sys\ntask = json.load(sys.stdin)\nopen('runs', 'a').write(task['key'] + '\\n')\n\
         ended = task.get('ended_waits', {})\nif 'go' not in ended:\n    print(json.dumps({'wait_for': {\n        \
         'region': {'ask': {'question': 'Which region?', 'options': ['eu', 'us']}},\n        \
         'go': {'approve': {'action': 'deploy', 'arguments': {'version': 3}}}}}))\nelse:\n    \
         print(json.dumps({'region': ended['region']['value'], 'go': ended['go']}))\n",
    )
    .unwrap();
    let capability = folder.path().join("deploy.yaml");
    std::fs::write(
        &capability,
        "{kind: command, name: deploy, description: Deploys., command: [python3, deploy.py]}",
    )
    .unwrap();
    let arguments = ["--capability", capability.to_str().unwrap()];
    cluster.start_process(ProcessRole::Worker, "worker-1", &arguments);
    let (bus, run) = (cluster.connect_bus().await, run_id("program"));
    let task = TaskSpec { capability: Capability::new("deploy").unwrap(), ..echo_task("deploy", &json!({})) };
    submit_run(&bus, &run, &fixed_submission(vec![task])).await;
    let open = wait_for_questions(&bus, &run, 2).await;
    cluster.kill_process("worker-1");
    for question in &open {
        let edit = Answer::Edit { arguments: json!({"version": 4}).to_string() };
        let answer =
            if question.decisions.contains(&AnswerKind::Approve) { edit } else { value(&json!("eu")) };
        answer_question(&bus, &run, "ann", question, answer).await;
    }
    cluster.start_process(ProcessRole::Worker, "worker-2", &arguments);
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    assert_completed_in_one_attempt(&history);
    let go = json!({"end": "answered", "by": "ann", "answer": "edit", "arguments": {"version": 4}});
    assert_eq!(result_of(&bus, &history, "deploy").await.data, Some(json!({"region": "eu", "go": go})));
    let runs = std::fs::read_to_string(folder.path().join("runs")).unwrap();
    assert_eq!(runs, "program/deploy/1\nprogram/deploy/1/1\n", "it ran twice, with two keys");
    cluster.stop_all();
}

/// Ten questions at once of two children of a child. They are answered in random order, and everything is killed and restarted between
/// any two answers: each question is asked once, and every parent gets the answers of its children.
#[tokio::test(flavor = "multi_thread")]
async fn questions_of_nested_children_are_answered_across_restarts_of_everything() {
    let _shared = share_machine();
    let mut cluster =
        TestCluster::start_with_workers(ClusterSetup { slots: 1, ..ClusterSetup::default() }, 1);
    let (mut bus, run) = (cluster.connect_bus().await, run_id("nested"));
    let five = |name: &str| -> Vec<String> { (0..5).map(|n| format!("{name} {n}?")).collect() };
    let leaf = |name: &str| json!({"parameters": {"ask": five(name), "steps": 1}});
    let middle = json!({"parameters": {"delegate": [leaf("left"), leaf("right")]}});
    let root = echo_task("root", &json!({"delegate": [middle], "steps": 1}));
    submit_run(&bus, &run, &fixed_submission(vec![root])).await;
    let mut open = wait_for_questions(&bus, &run, 10).await;
    let tasks: std::collections::BTreeSet<&str> = open.iter().map(|question| question.task()).collect();
    assert_eq!(tasks.len(), 2, "the ids name the children: {tasks:?}");
    let mut random = SeededRandom::new(14);
    while !open.is_empty() {
        let at = usize::try_from(random.next_below(open.len() as u64)).unwrap();
        let question = open.remove(at);
        answer_question(&bus, &run, "ann", &question, value(&json!(question.text))).await;
        drop(bus);
        cluster.kill_and_restart_all();
        bus = cluster.connect_bus().await;
    }
    let history = wait_for_run_history(&bus, &run, TIMEOUT).await;
    assert_completed_in_one_attempt(&history);
    let plan = history.folded_plan();
    assert_eq!(plan.tasks().len(), 4, "each child was added once");
    let attempts =
        plan.tasks().iter().flat_map(|task| task.attempts.iter().map(move |attempt| (task, attempt)));
    let asked = attempts.flat_map(|(task, attempt)| attempt.questions(task)).count();
    assert_eq!(asked, 10, "each question was asked once");
    assert_eq!(result_of(&bus, &history, "root").await.data, Some(json!([[five("left"), five("right")]])));
    assert_eq!(cluster.read_ledger().lines().count(), 3, "{}", cluster.read_ledger());
    cluster.stop_all();
}
