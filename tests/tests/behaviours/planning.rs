//! Planners that create a plan, change it and stop, by answers and by tools, in each of the three modes.

use millrace_protocol::plan::{
    Budget, CommandAction, DeliverableRule, EndReason, Event, OnFailedDependency, Plan, PlannerConsultMode,
    PlanningEvent, PlanningMode, Submission, TaskLimits, TaskSpec, TaskState,
};
use millrace_tests::history::History;
use millrace_tests::plans::{echo_task, task_id};
use millrace_tests::testbed::{MEASURE, TestBed, capability_task, verdict_json, writer_task};
use serde_json::json;

use super::{end_reason, task_state};

/// A run whose planner and workers use a model with these rules. The critic accepts everything.
pub fn planned_submission(
    testbed: &TestBed,
    name: &str,
    mode: PlanningMode,
    tasks: Vec<TaskSpec>,
    rules: &str,
) -> Submission {
    let passes = verdict_json("");
    let rules = format!("rules:\n- when: {{answer: verdict}}\n  reply: {{answer: {passes}}}\n{rules}");
    let model = Some(testbed.write_scripted_model(name, &rules));
    Submission { model, ..Submission::new("find out what there is", mode) }.with_tasks(tasks)
}

/// The same task with a single attempt.
pub fn with_single_attempt(task: TaskSpec) -> TaskSpec {
    TaskSpec { limits: TaskLimits { max_attempts: 1, ..task.limits.clone() }, ..task }
}

/// Two independent tasks, the second with this name. Neither is final, so the deliverable is ambiguous.
pub fn two_tasks(name: &str) -> Vec<TaskSpec> {
    vec![echo_task("beside", &json!({})), echo_task(name, &json!({}))]
}

/// The planner's reasons, turn by turn.
fn planner_reasons(plan: &Plan) -> Vec<&str> {
    plan.planning.reasoning.iter().map(String::as_str).collect()
}

fn planner_triggers(history: &History) -> Vec<String> {
    let requests = history.timed_events().filter_map(|(_, event)| {
        if let Event::Planning(PlanningEvent::Requested { triggers, .. }) = event {
            Some(triggers)
        } else {
            None
        }
    });
    requests.flatten().map(ToString::to_string).collect()
}

pub async fn planner_turns_an_objective_into_a_plan_that_runs(testbed: &TestBed) {
    let rules = "
- when: {answer: plan}
  reply:
    answer:
      reasoning: one question and one report
      tasks:
      - {id: alpha, objective: gather it, capability: writer, criteria: [it is there]}
      - {id: omega, objective: put it together, capability: writer, depends_on: [alpha], final: true}
- when: {task: put it together}
  reply: {text: the report of what was gathered}
- reply: {text: what was gathered}
";
    let run = testbed
        .submit_run("made", &planned_submission(testbed, "made", PlanningMode::Llm, Vec::new(), rules))
        .await;
    let history = run.wait_for_end().await;
    let plan = history.folded_plan();
    assert_eq!(
        (end_reason(plan), plan.planning.turns, planner_reasons(plan)),
        (EndReason::Completed, 1, vec!["one question and one report"])
    );
    assert_eq!(run.read_task_result(&history, "omega").await.output, "the report of what was gathered");
    assert!(
        plan.task(&task_id("alpha")).unwrap().attempts[0].verdict().is_some(),
        "the criteria of the planner were reviewed"
    );
    let shown = run.run_show_json();
    assert_eq!(shown["result"]["output"], "the report of what was gathered", "{shown}");
}

pub async fn planner_extends_a_seed_plan_in_hybrid_mode(testbed: &TestBed) {
    let rules = "
- when: {answer: plan}
  reply:
    answer:
      reasoning: the deliverable is missing
      tasks: [{id: omega, objective: put it together, capability: writer, depends_on: [seed], final: true}]
- reply: {text: the report}
";
    let seed = vec![echo_task("seed", &json!({}))];
    let run = testbed
        .submit_run("extended", &planned_submission(testbed, "extended", PlanningMode::Hybrid, seed, rules))
        .await;
    let history = run.wait_for_end().await;
    assert_eq!(
        (end_reason(history.folded_plan()), history.folded_plan().planning.turns),
        (EndReason::Completed, 1)
    );
    assert_eq!(task_state(history.folded_plan(), "omega"), TaskState::Completed);
}

pub async fn planner_tools_reject_invalid_changes_at_once(testbed: &TestBed) {
    // The second call names an unknown task, the third adds a cycle, the fourth calls an unknown tool, the fifth is not
    // JSON.
    let rules = "
- when: {answer: plan, task: There is no plan}
  turns:
  - calls:
    - add_task: {id: alpha, objective: gather it, capability: writer}
  - calls:
    - add_task: {id: beta, objective: go on, capability: writer, depends_on: [nowhere]}
  - calls:
    - patch_task: {task_id: alpha, depends_on: [alpha]}
  - calls:
    - launch_rocket: {}
  - calls:
    - add_task: '{\"id\": broken'
  - calls:
    - add_tasks: {tasks: [{id: omega, objective: put it together, capability: writer, depends_on: [alpha]}]}
  - calls:
    - mark_final: {task_id: omega}
  - answer: {reasoning: made by tools}
- when: {answer: plan}
  reply: {answer: {reasoning: nothing more}}
- reply: {text: it is written}
";
    let run = testbed
        .submit_run(
            "by-tools",
            &planned_submission(testbed, "by-tools", PlanningMode::Llm, Vec::new(), rules),
        )
        .await;
    let history = run.wait_for_end().await;
    let plan = history.folded_plan();
    assert_eq!((end_reason(plan), plan.tasks().len(), plan.planning.turns), (EndReason::Completed, 2, 1));
    assert!(plan.task(&task_id("omega")).unwrap().spec.is_final);
    let decided = history.timed_events().find_map(|(_, event)| {
        let Event::Planning(PlanningEvent::ProposalAccepted { refused, usage, .. }) = event else {
            return None;
        };
        Some((refused.clone(), *usage))
    });
    let (refused, usage) = decided.unwrap();
    assert_eq!((refused, usage.model_calls), (Vec::new(), 8), "one turn with all its calls");
}

pub async fn planner_of_a_fixed_plan_may_retry_but_not_change_it(testbed: &TestBed) {
    // In this mode the planner has no tool that adds tasks; its first call names one all the same.
    let rules = "
- when: {answer: plan, offered: add_task}
  reply: {error: bad_request, message: it has tools that it must not have}
- when: {answer: plan, turn: 1}
  reply: {calls: [{add_task: {id: more, objective: more, capability: writer}}]}
- when: {answer: plan}
  reply: {answer: {reasoning: once more, retry: [{task: work, feedback: try the other way}]}}
- when: {task: try the other way}
  reply: {text: done the other way}
- reply: {error: bad_request, message: no way}
";
    let work = with_single_attempt(writer_task("work", "do it"));
    let mut submission = planned_submission(testbed, "fixed", PlanningMode::Fixed, vec![work], rules);
    submission.consult = Some(PlannerConsultMode::Judgement);
    let run = testbed.submit_run("fixed", &submission).await;
    let history = run.wait_for_end().await;
    let plan = history.folded_plan();
    assert_eq!((end_reason(plan), plan.tasks().len()), (EndReason::Completed, 1));
    assert_eq!(run.read_task_result(&history, "work").await.output, "done the other way");
    assert_eq!(plan.task(&task_id("work")).unwrap().spec.objective, "do it");
}

pub async fn planner_replaces_a_failed_task_that_others_need(testbed: &TestBed) {
    let rules = "
- when: {answer: plan, task: is lost}
  reply:
    answer:
      reasoning: another route
      tasks: [{id: detour, objective: go around, capability: writer}]
      patch: [{task: omega, depends_on: [detour]}]
- when: {answer: plan}
  reply: {answer: {reasoning: nothing more}}
- when: {task: go straight}
  reply: {error: bad_request, message: there is no way}
- reply: {text: it is written}
";
    let mut tasks =
        vec![with_single_attempt(writer_task("road", "go straight")), writer_task("omega", "arrive")];
    tasks[1].depends_on = vec![task_id("road")];
    tasks[1].on_failed_dependency = OnFailedDependency::Ask;
    tasks[1].is_final = true;
    let run = testbed
        .submit_run("replaced", &planned_submission(testbed, "replaced", PlanningMode::Hybrid, tasks, rules))
        .await;
    let history = run.wait_for_end().await;
    let plan = history.folded_plan();
    let states = ["road", "detour", "omega"].map(|task| task_state(plan, task));
    assert_eq!(states, [TaskState::Failed, TaskState::Completed, TaskState::Completed]);
    assert_eq!(end_reason(plan), EndReason::CompletedPartial, "a task failed, but there is a deliverable");
    assert_eq!(plan.run.end.as_ref().unwrap().deliverable, Some((task_id("omega"), DeliverableRule::Final)));
}

pub async fn planner_replaces_an_unknown_capability(testbed: &TestBed) {
    let rules = "
- when: {answer: plan, task: writer}
  reply: {answer: {reasoning: another does it, patch: [{task: work, capability: writer}]}}
- reply: {text: it is written}
";
    let mut work = capability_task("work", "do it", "no-such");
    work.is_final = true;
    let run = testbed
        .submit_run(
            "unknown",
            &planned_submission(testbed, "unknown", PlanningMode::Hybrid, vec![work], rules),
        )
        .await;
    let history = run.wait_for_end().await;
    assert_eq!(end_reason(history.folded_plan()), EndReason::Completed);
    let texts = planner_triggers(&history);
    let text = texts.iter().find(|text| text.contains("no worker provides no-such")).unwrap();
    assert!(text.contains("available: ") && text.contains("echo") && text.contains("writer"), "{text}");
}

pub async fn user_repairs_a_task_with_a_capability_or_parameters(testbed: &TestBed) {
    let tasks =
        vec![capability_task("unknown", "do it", "no-such"), capability_task("bare", "measure it", MEASURE)];
    let run = testbed.submit_run("revived", &millrace_tests::plans::fixed_submission(tasks)).await;
    let problem = run.wait_for_plan("problems with both tasks", |plan| {
        let is_stuck = |task: &str| task_state(plan, task) == TaskState::Errored;
        (is_stuck("unknown") && is_stuck("bare"))
            .then(|| plan.task(&task_id("bare")).unwrap().parameter_problem().map(str::to_owned))
    });
    let problem = problem.await.unwrap();
    assert!(problem.contains("length"), "{problem}");
    let patch = |task: &str| millrace_protocol::plan::TaskPatch::without_changes(task_id(task));
    let mut capability = patch("unknown");
    capability.capability = Some(millrace_protocol::ids::Capability::new("echo").unwrap());
    let mut wrong = patch("bare");
    wrong.parameters.insert("length".into(), json!("long"));
    let mut right = patch("bare");
    right.parameters.insert("length".into(), json!(3));
    let edit = |patch| CommandAction::Edit(millrace_protocol::plan::Edit::Patch(patch));
    run.send_command("1", edit(capability)).await.unwrap();
    run.send_command("2", edit(wrong)).await.unwrap();
    let still = run.wait_for_plan("another problem", |plan| {
        plan.task(&task_id("bare"))
            .unwrap()
            .parameter_problem()
            .filter(|now| *now != problem)
            .map(str::to_owned)
    });
    let still = still.await;
    assert!(still.contains("length") && still.contains("integer"), "{still}");
    run.send_command("3", edit(right)).await.unwrap();
    assert_eq!(end_reason(run.wait_for_end().await.folded_plan()), EndReason::Completed);
}

pub async fn planner_supplies_missing_parameters(testbed: &TestBed) {
    let rules = "
- when: {answer: plan, task: length}
  reply: {answer: {reasoning: three will do, patch: [{task: work, parameters: {length: 3}}]}}
";
    let mut work = capability_task("work", "measure it", MEASURE);
    work.is_final = true;
    let run = testbed
        .submit_run(
            "supplied",
            &planned_submission(testbed, "supplied", PlanningMode::Hybrid, vec![work], rules),
        )
        .await;
    let history = run.wait_for_end().await;
    assert_eq!(end_reason(history.folded_plan()), EndReason::Completed);
    assert_eq!(
        history.folded_plan().task(&task_id("work")).unwrap().attempts.len(),
        1,
        "it did not start without parameters"
    );
}

pub async fn false_finish_is_rejected_and_counts_as_no_progress(testbed: &TestBed) {
    let rules = "
- when: {answer: plan, task: You declared the objective achieved}
  reply: {answer: {reasoning: it is achieved all the same, finished: true}}
- when: {answer: plan}
  reply: {answer: {reasoning: it is achieved, finished: true}}
";
    let run = testbed
        .submit_run(
            "false-end",
            &planned_submission(testbed, "false-end", PlanningMode::Hybrid, two_tasks("seed"), rules),
        )
        .await;
    let history = run.wait_for_end().await;
    let plan = history.folded_plan();
    assert_eq!(
        (end_reason(plan), plan.planning.idle_turns),
        (EndReason::NoProgress, 3),
        "{:?}",
        plan.run.end
    );
    let detail = &plan.run.end.as_ref().unwrap().detail;
    assert!(detail.contains("3 turns of the planner in a row brought the run nowhere"), "{detail}");
    let texts = planner_triggers(&history);
    assert!(
        texts.iter().any(|text| text.starts_with("You said that the objective is achieved, but")),
        "{texts:?}"
    );
    let repeats = |reason: &&str| reason.starts_with("it is achieved all the same");
    assert!(
        planner_reasons(plan).iter().copied().any(|reason| repeats(&reason)),
        "the planner was notified before it claimed the end again"
    );
    assert_eq!(
        plan.run.end.as_ref().unwrap().deliverable,
        Some((task_id("seed"), DeliverableRule::Detailed)),
        "finished tasks stay finished"
    );
}

pub async fn turns_without_progress_end_the_run_with_a_report(testbed: &TestBed) {
    let rules = "
- when: {answer: plan, task: nothing is left to do}
  reply: {answer: {reasoning: I have seen the report}}
- when: {answer: plan}
  reply: {answer: {reasoning: nothing comes to mind}}
";
    let run = testbed
        .submit_run(
            "idle",
            &planned_submission(testbed, "idle", PlanningMode::Hybrid, two_tasks("seed"), rules),
        )
        .await;
    let history = run.wait_for_end().await;
    let plan = history.folded_plan();
    assert_eq!((end_reason(plan), plan.planning.turns), (EndReason::NoProgress, 3));
    assert!(
        planner_reasons(plan).iter().all(|reason| reason.starts_with("I have seen the report")),
        "{:?}",
        planner_reasons(plan)
    );
    let detail = &plan.run.end.as_ref().unwrap().detail;
    assert!(detail.contains("nothing is left to do, but no task of the plan is final"), "{detail}");
}

pub async fn unavailable_planner_is_tried_three_times(testbed: &TestBed) {
    let rules = "
- when: {answer: plan}
  reply: {error: overloaded, message: the planner's model is down}
";
    let run = testbed
        .submit_run(
            "outage",
            &planned_submission(testbed, "outage", PlanningMode::Hybrid, two_tasks("seed"), rules),
        )
        .await;
    let history = run.wait_for_end().await;
    let plan = history.folded_plan();
    assert_eq!(end_reason(plan), EndReason::PlannerUnavailable);
    let end = plan.run.end.clone().unwrap();
    assert!(end.detail.contains("the planner's model is down"), "{}", end.detail);
    assert_eq!(end.deliverable, Some((task_id("seed"), DeliverableRule::Detailed)));
    let tries = history
        .timed_events()
        .filter(|(_, event)| matches!(event, Event::Planning(PlanningEvent::Errored { .. })))
        .count();
    assert_eq!(tries, 3);
}

pub async fn planner_stops_at_its_step_limit_and_can_be_resumed(testbed: &TestBed) {
    let rules = "
- when: {answer: plan, task: 'ann: write it down'}
  reply: {answer: {reasoning: then, tasks: [{id: omega, objective: end, capability: writer, final: true}]}}
- when: {answer: plan}
  reply: {answer: {reasoning: nothing yet}}
- reply: {text: the end}
";
    let mut submission = planned_submission(testbed, "steps", PlanningMode::Hybrid, two_tasks("seed"), rules);
    submission.budget.steps = Some(1);
    let run = testbed.submit_run("steps", &submission).await;
    let stopped = run.wait_until_run_stopped().await;
    assert_eq!(
        (end_reason(&stopped), stopped.planning.turns),
        (EndReason::MaxSteps, 1),
        "{:?}",
        stopped.run.end
    );
    assert!(stopped.is_resumable());
    let more = Budget { steps: Some(5), ..Budget::default() };
    run.send_command("more", CommandAction::Resume { budget: Some(more) }).await.unwrap();
    run.send_command("say", CommandAction::Message { text: "write it down".into() }).await.unwrap();
    run.wait_for_completion().await;
}

pub async fn planner_can_be_consulted_about_every_result(testbed: &TestBed) {
    let rules = "
- when: {answer: plan, task: The result of task}
  reply: {answer: {reasoning: I have seen it}}
- when: {answer: plan}
  reply: {answer: {reasoning: asked for something else}}
";
    let mut tasks =
        vec![echo_task("a", &json!({})), echo_task("b", &json!({})), echo_task("omega", &json!({}))];
    tasks[1].depends_on = vec![task_id("a")];
    tasks[2].depends_on = vec![task_id("b")];
    tasks[2].is_final = true;
    let mut submission = planned_submission(testbed, "every", PlanningMode::Hybrid, tasks, rules);
    submission.consult = Some(PlannerConsultMode::EveryResult);
    let history = testbed.submit_run("every", &submission).await.wait_for_end().await;
    assert_eq!(end_reason(history.folded_plan()), EndReason::Completed);
    let texts = planner_triggers(&history);
    assert!(texts.iter().any(|text| text == "The result of task a was accepted."), "{texts:?}");
    assert!(planner_reasons(history.folded_plan()).contains(&"I have seen it"));
}

pub async fn stale_part_of_a_turn_is_refused_and_the_rest_is_kept(testbed: &TestBed) {
    // While the planner's request is pending, a user cancels the task that the planner is about to change.
    let rules = "
- when: {answer: plan, task: Rejected from your last turn}
  reply: {answer: {reasoning: then without it, final_task: kept}}
- when: {answer: plan}
  reply:
    answer:
      reasoning: both
      patch: [{task: waits, objective: do it better}]
      tasks: [{id: kept, objective: write it, capability: writer}]
    delay: 3
- reply: {text: it is written}
";
    let mut tasks = vec![
        with_single_attempt(writer_task("lost", "fail")),
        echo_task("slow", &json!({"delay_ms": 8000})),
        echo_task("waits", &json!({})),
    ];
    tasks[0].capability = millrace_protocol::ids::Capability::new("echo").unwrap();
    tasks[0].parameters.insert("fail_rate".into(), json!(1.0));
    tasks[2].depends_on = vec![task_id("slow")];
    let run = testbed
        .submit_run("moved-on", &planned_submission(testbed, "moved-on", PlanningMode::Hybrid, tasks, rules))
        .await;
    run.wait_for_plan("a claimed planning order", |plan| plan.planning.turn.as_ref()?.worker.clone()).await;
    let cancel = CommandAction::CancelTask { task: task_id("waits"), reason: "not needed".into() };
    run.send_command("cancel", cancel).await.unwrap();
    let history = run.wait_for_end().await;
    let plan = history.folded_plan();
    assert_eq!(task_state(plan, "kept"), TaskState::Completed, "the valid part was applied");
    assert_eq!(task_state(plan, "waits"), TaskState::Cancelled);
    let texts = planner_triggers(&history);
    let refused = texts.iter().find(|text| text.contains("edits of your last turn were refused")).unwrap();
    assert!(refused.contains("patch_task: task waits is cancelled"), "{refused}");
    assert_eq!(
        plan.run.end.as_ref().unwrap().deliverable,
        Some((task_id("kept"), DeliverableRule::Final)),
        "{:?}",
        plan.run.end
    );
}

pub async fn planner_gives_up_with_the_best_available_result(testbed: &TestBed) {
    let rules = "
- when: {answer: plan}
  turns:
  - calls: [view_qa_report: {task_id: lost}, get_task_result: {task_id: seed}]
  - answer: {reasoning: there is no other way, give_up: the deliverable is lost}
";
    let mut lost = with_single_attempt(echo_task("lost", &json!({"fail_rate": 1.0})));
    lost.is_final = true;
    lost.depends_on = vec![task_id("seed")];
    let seed = vec![echo_task("seed", &json!({})), lost];
    let run = testbed
        .submit_run("gives-up", &planned_submission(testbed, "gives-up", PlanningMode::Hybrid, seed, rules))
        .await;
    let history = run.wait_for_end().await;
    assert_eq!(
        (end_reason(history.folded_plan()), history.folded_plan().planning.turns),
        (EndReason::CompletedPartial, 1)
    );
    let deliverable = history.folded_plan().run.end.as_ref().unwrap().deliverable.clone();
    assert_eq!(deliverable, Some((task_id("seed"), DeliverableRule::Detailed)));
}
