//! A planner that makes a plan, changes it and stops: by its answer and by its tools, in each of the three modes.

use millrace_protocol::plan::{
    Budget, Consult, Control, EndReason, Event, FinalRung, Limits, Mode, OnFailedDependency, Plan,
    Submission, TaskSpec, TaskState,
};
use millrace_tests::history::History;
use millrace_tests::plans::{echo, id};
use millrace_tests::stage::{MEASURE, Stage, task, verdict, write};
use serde_json::json;

use crate::{end, state};

/// A run whose planner, workers and critics are answered for by these rules. The critic accepts everything.
pub fn planned(stage: &Stage, name: &str, mode: Mode, tasks: Vec<TaskSpec>, rules: &str) -> Submission {
    let passes = verdict("");
    let rules = format!("rules:\n- when: {{answer: verdict}}\n  reply: {{answer: {passes}}}\n{rules}");
    let model = Some(stage.model(name, &rules));
    Submission { tasks, model, ..Submission::new("find out what there is", mode) }
}

/// An attempt that is not repeated.
pub fn once(task: TaskSpec) -> TaskSpec {
    TaskSpec { limits: Limits { max_attempts: 1, ..task.limits.clone() }, ..task }
}

/// Two tasks that nothing is built on, the second of this name: so nobody can tell which is to be the deliverable.
pub fn two(name: &str) -> Vec<TaskSpec> {
    vec![echo("beside", &json!({})), echo(name, &json!({}))]
}

/// The reasons that the planner gave, turn by turn.
fn reasons(plan: &Plan) -> Vec<&str> {
    plan.reasoning.iter().map(String::as_str).collect()
}

fn occasions(history: &History) -> Vec<String> {
    let asked = history.events().filter_map(|(_, event)| {
        if let Event::PlanningAsked { occasions, .. } = event { Some(occasions) } else { None }
    });
    asked.flatten().map(ToString::to_string).collect()
}

pub async fn an_objective_becomes_a_plan_that_is_carried_out(stage: &Stage) {
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
    let run = stage.hand_in("made", &planned(stage, "made", Mode::Llm, Vec::new(), rules)).await;
    let history = run.ended().await;
    let plan = history.plan();
    assert_eq!(
        (end(plan), plan.turns, reasons(plan)),
        (EndReason::Completed, 1, vec!["one question and one report"])
    );
    assert_eq!(run.result(&history, "omega").await.output, "the report of what was gathered");
    assert!(
        plan.task(&id("alpha")).unwrap().attempts[0].verdict.is_some(),
        "what the planner asked for was judged"
    );
    let shown = run.shown();
    assert_eq!(shown["result"]["output"], "the report of what was gathered", "{shown}");
}

pub async fn a_seed_plan_is_extended_where_the_mode_allows_it(stage: &Stage) {
    let rules = "
- when: {answer: plan}
  reply:
    answer:
      reasoning: the deliverable is missing
      tasks: [{id: omega, objective: put it together, capability: writer, depends_on: [seed], final: true}]
- reply: {text: the report}
";
    let seed = vec![echo("seed", &json!({}))];
    let run = stage.hand_in("extended", &planned(stage, "extended", Mode::Hybrid, seed, rules)).await;
    let history = run.ended().await;
    assert_eq!((end(history.plan()), history.plan().turns), (EndReason::Completed, 1));
    assert_eq!(state(history.plan(), "omega"), TaskState::Completed);
}

pub async fn a_planner_works_by_its_tools_and_is_told_at_once_what_does_not_hold(stage: &Stage) {
    // The second call names a task that is not there, the third makes a circle, the fourth calls what there is not.
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
    let run = stage.hand_in("by-tools", &planned(stage, "by-tools", Mode::Llm, Vec::new(), rules)).await;
    let history = run.ended().await;
    let plan = history.plan();
    assert_eq!((end(plan), plan.tasks().len(), plan.turns), (EndReason::Completed, 2, 1));
    assert!(plan.task(&id("omega")).unwrap().spec.is_final);
    let decided = history.events().find_map(|(_, event)| {
        let Event::ProposalAccepted { refused, usage, .. } = event else { return None };
        Some((refused.clone(), *usage))
    });
    let (refused, usage) = decided.unwrap();
    assert_eq!((refused, usage.model_calls), (Vec::new(), 8), "one turn, with all its calls in it");
}

pub async fn the_planner_of_a_fixed_plan_may_run_and_cancel_but_changes_nothing_of_it(stage: &Stage) {
    // A model that wants to add tasks by a tool has no such tool; that it may try again is its own word.
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
    let work = once(write("work", "do it"));
    let mut submission = planned(stage, "fixed", Mode::Fixed, vec![work], rules);
    submission.consult = Some(Consult::Judgement);
    let run = stage.hand_in("fixed", &submission).await;
    let history = run.ended().await;
    let plan = history.plan();
    assert_eq!((end(plan), plan.tasks().len()), (EndReason::Completed, 1));
    assert_eq!(run.result(&history, "work").await.output, "done the other way");
    assert_eq!(plan.task(&id("work")).unwrap().spec.objective, "do it");
}

pub async fn a_lost_task_is_told_to_the_planner_who_replaces_it_while_others_wait(stage: &Stage) {
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
    let mut tasks = vec![once(write("road", "go straight")), write("omega", "arrive")];
    tasks[1].depends_on = vec![id("road")];
    tasks[1].on_failed_dependency = OnFailedDependency::Ask;
    tasks[1].is_final = true;
    let run = stage.hand_in("replaced", &planned(stage, "replaced", Mode::Hybrid, tasks, rules)).await;
    let history = run.ended().await;
    let plan = history.plan();
    let states = ["road", "detour", "omega"].map(|task| state(plan, task));
    assert_eq!(states, [TaskState::Failed, TaskState::Completed, TaskState::Completed]);
    assert_eq!(end(plan), EndReason::CompletedPartial, "a task failed, and the deliverable is there");
    assert_eq!(plan.end.as_ref().unwrap().deliverable, Some((id("omega"), FinalRung::Final)));
}

pub async fn a_task_for_a_capability_that_nobody_has_is_told_with_those_there_are_and_revived(stage: &Stage) {
    let rules = "
- when: {answer: plan, task: writer}
  reply: {answer: {reasoning: another does it, patch: [{task: work, capability: writer}]}}
- reply: {text: it is written}
";
    let mut work = task("work", "do it", "no-such");
    work.is_final = true;
    let run = stage.hand_in("unknown", &planned(stage, "unknown", Mode::Hybrid, vec![work], rules)).await;
    let history = run.ended().await;
    assert_eq!(end(history.plan()), EndReason::Completed);
    let told = occasions(&history);
    let told = told.iter().find(|told| told.contains("nobody offers the capability no-such")).unwrap();
    assert!(told.contains("there are") && told.contains("echo") && told.contains("writer"), "{told}");
}

pub async fn a_user_revives_a_task_by_giving_it_a_capability_or_parameters(stage: &Stage) {
    let tasks = vec![task("unknown", "do it", "no-such"), task("bare", "measure it", MEASURE)];
    let run = stage.hand_in("revived", &millrace_tests::plans::fixed(tasks)).await;
    let problem = run.until("both to be stuck", |plan| {
        let is_stuck = |task: &str| state(plan, task) == TaskState::Errored;
        (is_stuck("unknown") && is_stuck("bare")).then(|| plan.task(&id("bare")).unwrap().problem.clone())
    });
    let problem = problem.await.unwrap();
    assert!(problem.contains("length"), "{problem}");
    let patch = |task: &str| millrace_protocol::plan::Patch::of(id(task));
    let mut capability = patch("unknown");
    capability.capability = Some(millrace_protocol::ids::Capability::new("echo").unwrap());
    let mut wrong = patch("bare");
    wrong.parameters.insert("length".into(), json!("long"));
    let mut right = patch("bare");
    right.parameters.insert("length".into(), json!(3));
    let edit = |patch| Control::Edit(millrace_protocol::plan::Edit::Patch(patch));
    run.command("1", edit(capability)).await.unwrap();
    run.command("2", edit(wrong)).await.unwrap();
    let still = run.until("another problem", |plan| {
        plan.task(&id("bare")).unwrap().problem.clone().filter(|now| *now != problem)
    });
    let still = still.await;
    assert!(still.contains("length") && still.contains("integer"), "{still}");
    run.command("3", edit(right)).await.unwrap();
    assert_eq!(end(run.ended().await.plan()), EndReason::Completed);
}

pub async fn missing_parameters_are_told_to_the_planner_who_supplies_them(stage: &Stage) {
    let rules = "
- when: {answer: plan, task: length}
  reply: {answer: {reasoning: three will do, patch: [{task: work, parameters: {length: 3}}]}}
";
    let mut work = task("work", "measure it", MEASURE);
    work.is_final = true;
    let run = stage.hand_in("supplied", &planned(stage, "supplied", Mode::Hybrid, vec![work], rules)).await;
    let history = run.ended().await;
    assert_eq!(end(history.plan()), EndReason::Completed);
    assert_eq!(history.plan().task(&id("work")).unwrap().attempts.len(), 1, "it did not begin before");
}

pub async fn an_end_that_is_none_is_told_and_counts_until_the_run_stops_with_its_reason(stage: &Stage) {
    let rules = "
- when: {answer: plan, task: You said that the objective is achieved}
  reply: {answer: {reasoning: it is achieved all the same, finished: true}}
- when: {answer: plan}
  reply: {answer: {reasoning: it is achieved, finished: true}}
";
    let run =
        stage.hand_in("false-end", &planned(stage, "false-end", Mode::Hybrid, two("seed"), rules)).await;
    let history = run.ended().await;
    let plan = history.plan();
    assert_eq!((end(plan), plan.idle_turns), (EndReason::NoProgress, 3), "{:?}", plan.end);
    let detail = &plan.end.as_ref().unwrap().detail;
    assert!(detail.contains("3 turns of the planner in a row brought the run nowhere"), "{detail}");
    let told = occasions(&history);
    assert!(
        told.iter().any(|told| told.starts_with("You said that the objective is achieved, but")),
        "{told:?}"
    );
    let repeats = |reason: &&str| reason.starts_with("it is achieved all the same");
    assert!(
        reasons(plan).iter().copied().any(|reason| repeats(&reason)),
        "it was told before it claimed it again"
    );
    assert_eq!(
        plan.end.as_ref().unwrap().deliverable,
        Some((id("seed"), FinalRung::Detailed)),
        "what is done stays"
    );
}

pub async fn turns_that_change_nothing_stop_the_run_with_a_report_that_the_planner_has_seen(stage: &Stage) {
    let rules = "
- when: {answer: plan, task: nothing is left to do}
  reply: {answer: {reasoning: I have seen the report}}
- when: {answer: plan}
  reply: {answer: {reasoning: nothing comes to mind}}
";
    let run = stage.hand_in("idle", &planned(stage, "idle", Mode::Hybrid, two("seed"), rules)).await;
    let history = run.ended().await;
    let plan = history.plan();
    assert_eq!((end(plan), plan.turns), (EndReason::NoProgress, 3));
    assert!(
        reasons(plan).iter().all(|reason| reason.starts_with("I have seen the report")),
        "{:?}",
        reasons(plan)
    );
    let detail = &plan.end.as_ref().unwrap().detail;
    assert!(detail.contains("nothing is left to do, but no task of the plan is final"), "{detail}");
}

pub async fn a_planner_that_can_t_be_had_is_tried_three_times_and_what_is_done_is_kept(stage: &Stage) {
    let rules = "
- when: {answer: plan}
  reply: {error: overloaded, message: the planner's model is down}
";
    let run = stage.hand_in("outage", &planned(stage, "outage", Mode::Hybrid, two("seed"), rules)).await;
    let history = run.ended().await;
    let plan = history.plan();
    assert_eq!(end(plan), EndReason::PlannerUnavailable);
    let end = plan.end.clone().unwrap();
    assert!(end.detail.contains("the planner's model is down"), "{}", end.detail);
    assert_eq!(end.deliverable, Some((id("seed"), FinalRung::Detailed)));
    let tries = history.events().filter(|(_, event)| matches!(event, Event::PlanningErrored { .. })).count();
    assert_eq!(tries, 3);
}

pub async fn a_planner_is_asked_no_more_often_than_its_steps_and_goes_on_with_more(stage: &Stage) {
    let rules = "
- when: {answer: plan, task: 'ann: write it down'}
  reply: {answer: {reasoning: then, tasks: [{id: omega, objective: end, capability: writer, final: true}]}}
- when: {answer: plan}
  reply: {answer: {reasoning: nothing yet}}
- reply: {text: the end}
";
    let mut submission = planned(stage, "steps", Mode::Hybrid, two("seed"), rules);
    submission.budget.steps = Some(1);
    let run = stage.hand_in("steps", &submission).await;
    let stopped = run.stopped().await;
    assert_eq!((end(&stopped), stopped.turns), (EndReason::MaxSteps, 1), "{:?}", stopped.end);
    assert!(stopped.is_resumable());
    let more = Budget { steps: Some(5), ..Budget::default() };
    run.command("more", Control::Resume { budget: Some(more) }).await.unwrap();
    run.command("say", Control::Message { text: "write it down".into() }).await.unwrap();
    run.completed().await;
}

pub async fn a_planner_may_be_asked_about_every_result(stage: &Stage) {
    let rules = "
- when: {answer: plan, task: The result of task}
  reply: {answer: {reasoning: I have seen it}}
- when: {answer: plan}
  reply: {answer: {reasoning: asked for something else}}
";
    let mut tasks = vec![echo("a", &json!({})), echo("b", &json!({})), echo("omega", &json!({}))];
    tasks[1].depends_on = vec![id("a")];
    tasks[2].depends_on = vec![id("b")];
    tasks[2].is_final = true;
    let mut submission = planned(stage, "every", Mode::Hybrid, tasks, rules);
    submission.consult = Some(Consult::EveryResult);
    let history = stage.hand_in("every", &submission).await.ended().await;
    assert_eq!(end(history.plan()), EndReason::Completed);
    let told = occasions(&history);
    assert!(told.iter().any(|told| told == "The result of task a was accepted."), "{told:?}");
    assert!(reasons(history.plan()).contains(&"I have seen it"));
}

pub async fn what_no_longer_holds_of_a_turn_is_asked_again_with_the_reason_and_the_rest_is_kept(
    stage: &Stage,
) {
    // While the planner thinks, a user cancels the task that it is about to change.
    let rules = "
- when: {answer: plan, task: was not carried out}
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
        once(write("lost", "fail")),
        echo("slow", &json!({"delay_ms": 8000})),
        echo("waits", &json!({})),
    ];
    tasks[0].capability = millrace_protocol::ids::Capability::new("echo").unwrap();
    tasks[0].parameters.insert("fail_rate".into(), json!(1.0));
    tasks[2].depends_on = vec![id("slow")];
    let run = stage.hand_in("moved-on", &planned(stage, "moved-on", Mode::Hybrid, tasks, rules)).await;
    run.until("a planner at work", |plan| plan.planning.as_ref()?.worker.clone()).await;
    let cancel = Control::CancelTask { task: id("waits"), reason: "not needed".into() };
    run.command("cancel", cancel).await.unwrap();
    let history = run.ended().await;
    let plan = history.plan();
    assert_eq!(state(plan, "kept"), TaskState::Completed, "what held was carried out");
    assert_eq!(state(plan, "waits"), TaskState::Cancelled);
    let told = occasions(&history);
    let refused = told.iter().find(|told| told.contains("was not carried out")).unwrap();
    assert!(refused.contains("patch_task: task waits is cancelled"), "{refused}");
    assert_eq!(
        plan.end.as_ref().unwrap().deliverable,
        Some((id("kept"), FinalRung::Final)),
        "{:?}",
        plan.end
    );
}

pub async fn a_planner_that_sees_no_way_on_gives_up_with_what_there_is(stage: &Stage) {
    let rules = "
- when: {answer: plan}
  turns:
  - calls: [view_qa_report: {task_id: lost}, get_task_result: {task_id: seed}]
  - answer: {reasoning: there is no other way, give_up: the deliverable is lost}
";
    let mut lost = once(echo("lost", &json!({"fail_rate": 1.0})));
    lost.is_final = true;
    lost.depends_on = vec![id("seed")];
    let seed = vec![echo("seed", &json!({})), lost];
    let run = stage.hand_in("gives-up", &planned(stage, "gives-up", Mode::Hybrid, seed, rules)).await;
    let history = run.ended().await;
    assert_eq!((end(history.plan()), history.plan().turns), (EndReason::CompletedPartial, 1));
    let deliverable = history.plan().end.as_ref().unwrap().deliverable.clone();
    assert_eq!(deliverable, Some((id("seed"), FinalRung::Detailed)));
}
