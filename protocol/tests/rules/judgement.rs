//! Reviews by persons, and the approval of the plan.

use millrace_protocol::ids::{Lane, RunId};
use millrace_protocol::plan::{
    Budget, CommandAction, Edit, Effect, EffectScope, EndReason, Fact, OverdueInput, PersonReview,
    PlanningMode, ReviewPolicy, RunCommand, Submission, TaskPatch, TaskSpec, TaskState, pending_effects,
};
use millrace_protocol::question::{Answer, ExpiryAction, QuestionExpiry};
use millrace_protocol::registry::RunSummary;

use crate::scene::RunScene;
use crate::{cast, oracle};

fn fail(feedback: &str) -> Answer {
    Answer::Fail { feedback: feedback.into() }
}

/// A run with one task under this review, which has a result.
fn scene_with_result(review: ReviewPolicy) -> RunScene {
    let mut task = cast::echo_task("t", &[]);
    task.review = review;
    let mut scene = RunScene::from_submission(cast::fixed_plan_submission(vec![task]));
    scene.claim_and_finish_task(&cast::task_id("t"), "w1");
    scene
}

fn state(scene: &RunScene) -> TaskState {
    scene.plan.task(&cast::task_id("t")).unwrap().state()
}

fn answer(scene: &mut RunScene, by: &str, question: &str, answer: Answer) -> Result<(), String> {
    let fact = cast::answer_of(&scene.plan, &format!("{by} {question}"), by, question, answer);
    let decided = scene.decide_fact(&fact).map(drop).map_err(|refusal| refusal.to_string());
    oracle::check_invariants(&scene.plan);
    decided
}

/// Every combination of votes of up to three persons, with and without a critic: the result is decided by the vote that
/// decides it, and not before.
#[test]
fn quorum_counts_persons_and_the_critic() {
    for (persons, has_critic) in [(1, false), (2, false), (3, false), (1, true), (2, true), (3, true)] {
        let voters = persons + u32::from(has_critic);
        for quorum in (1..=voters).map(Some).chain([None]) {
            let required = quorum.unwrap_or(voters / 2 + 1);
            for votes in 0..(1_u32 << voters) {
                let vote = |at: u32| votes & (1 << at) != 0;
                let first = if has_critic { ReviewPolicy::critic(Vec::new()) } else { ReviewPolicy::None };
                let ask = vec![""; persons as usize];
                let mut scene = scene_with_result(cast::review_by_persons(&ask, quorum, first));
                let (mut accepting, mut rejecting) = (0, 0);
                let mut decided = None;
                for at in 0..voters {
                    let is_critic = has_critic && at == 0;
                    match (is_critic, vote(at)) {
                        (true, passed) => scene.finish_review(&cast::task_id("t"), passed),
                        (false, passed) => {
                            let number = at + u32::from(!has_critic);
                            let by = format!("person {number}");
                            let given = if passed { Answer::Pass } else { fail("no units") };
                            answer(&mut scene, &by, &format!("t/1/{number}"), given).unwrap();
                        }
                    }
                    accepting += u32::from(vote(at));
                    rejecting += u32::from(!vote(at));
                    decided = match (accepting >= required, rejecting > voters - required) {
                        (true, _) => Some(TaskState::Completed),
                        (_, true) => Some(TaskState::Rerun),
                        (false, false) => None,
                    };
                    let name = format!("{persons} {has_critic} {quorum:?} {votes:b} after {at}");
                    assert_eq!(state(&scene), decided.unwrap_or(TaskState::Waiting), "{name}");
                    if decided.is_some() {
                        assert_eq!(scene.plan.open_questions().count(), 0, "{name}");
                        break;
                    }
                }
                assert!(decided.is_some());
            }
        }
    }
}

/// The next attempt gets the feedback of persons, and the verdict names every voter.
#[test]
fn rejection_by_a_person_is_feedback_for_the_next_attempt() {
    let review = cast::review_by_persons(&["ann", "legal"], Some(2), ReviewPolicy::critic(Vec::new()));
    let mut scene = scene_with_result(review);
    scene.finish_review(&cast::task_id("t"), true);
    answer(&mut scene, "ann", "t/1/1", fail("it has no units")).unwrap();
    assert_eq!(state(&scene), TaskState::Waiting, "two of three can still accept it");
    answer(&mut scene, "bob", "t/1/2", fail("the source is old")).unwrap();
    let task = scene.plan.task(&cast::task_id("t")).unwrap();
    assert_eq!(task.state(), TaskState::Rerun);
    assert_eq!(
        task.collect_feedback(),
        ["Attempt 1 was rejected: ann rejected it: it has no units; bob rejected it: the source is old"]
    );
    let (critic, verdict) = task.attempts[0].verdict().unwrap();
    let voters: Vec<_> = verdict.opinions.iter().map(|it| (it.model.as_str(), it.passed)).collect();
    assert_eq!(voters, [("the critic", true), ("ann", false), ("bob", false)]);
    assert_eq!((critic.as_str(), verdict.find_inconsistency()), ("persons", None));
}

/// No person has two votes on one result, and a vote for a result that was decided comes too late.
#[test]
fn person_votes_once_on_a_result() {
    let mut task = cast::echo_task("t", &[]);
    task.review = cast::review_by_persons(&["", "", ""], Some(2), ReviewPolicy::None);
    let tasks = vec![task, cast::echo_task("o", &[])];
    let mut scene = RunScene::from_submission(cast::fixed_plan_submission(tasks));
    scene.claim_and_finish_task(&cast::task_id("t"), "w1");
    answer(&mut scene, "ann", "t/1/1", Answer::Pass).unwrap();
    let refused = answer(&mut scene, "ann", "t/1/2", Answer::Pass).unwrap_err();
    assert!(refused.contains("ann has judged this result already; another person must answer"), "{refused}");
    answer(&mut scene, "bob", "t/1/3", Answer::Pass).unwrap();
    let refused = answer(&mut scene, "eve", "t/1/2", fail("late")).unwrap_err();
    assert_eq!(refused, "question t/1/2: it was withdrawn: task t is completed");
}

/// A result that fails the checks reaches no person.
#[test]
fn persons_are_asked_only_about_results_that_pass_the_checks() {
    let checks = ReviewPolicy::Checks { checks: vec![millrace_protocol::plan::ReviewCheck::Citations] };
    let mut scene = scene_with_result(cast::review_by_persons(&[""], None, checks));
    assert_eq!((state(&scene), scene.plan.open_questions().count()), (TaskState::NeedsReview, 0));
    scene.finish_review(&cast::task_id("t"), false);
    assert_eq!((state(&scene), scene.plan.open_questions().count()), (TaskState::Rerun, 0));
    scene.claim_and_finish_task(&cast::task_id("t"), "w1");
    scene.finish_review(&cast::task_id("t"), true);
    assert_eq!((state(&scene), scene.plan.open_questions().count()), (TaskState::Waiting, 1));
    answer(&mut scene, "ann", "t/2/1", Answer::Pass).unwrap();
    assert_eq!(state(&scene), TaskState::Completed);
}

#[test]
fn judgement_expires_as_the_review_says() {
    for (action, expected) in [
        (ExpiryAction::Reject, TaskState::Rerun),
        (ExpiryAction::FailTask, TaskState::Failed),
        (ExpiryAction::AskAgain, TaskState::Waiting),
        (ExpiryAction::Escalate, TaskState::Waiting),
    ] {
        let after = std::time::Duration::from_secs(600);
        let expiry = Some(QuestionExpiry { after, action, escalate_to: "chief".into() });
        let review = PersonReview { ask: vec!["ann".into()], expiry, ..PersonReview::default() };
        let mut scene = scene_with_result(ReviewPolicy::Persons(Box::new(review)));
        scene.now = cast::time_after(scene.now, 601);
        scene.decide_overdue_input(&OverdueInput::WaitTime(cast::task_id("t"))).unwrap();
        oracle::check_invariants(&scene.plan);
        assert_eq!(state(&scene), expected, "{action:?}");
        let open: Vec<String> = scene.plan.open_questions().map(|question| question.id.to_string()).collect();
        let renewed: &[&str] = if expected == TaskState::Waiting { &["t/1/1.2"] } else { &[] };
        assert_eq!(open, renewed, "{action:?}");
    }
}

/// A run that winds down waits for no person.
#[test]
fn result_is_not_judged_by_persons_while_the_run_winds_down() {
    let mut task = cast::echo_task("t", &[]);
    task.review = cast::review_by_persons(&[""], None, ReviewPolicy::None);
    let budget = Budget { wall_time: Some(std::time::Duration::from_secs(100)), ..Budget::default() };
    let submission = Submission { budget, ..cast::fixed_plan_submission(vec![task]) };
    for finishes_before in [true, false] {
        let mut scene = RunScene::from_submission(submission.clone());
        let id = cast::task_id("t");
        scene.claim_task(&id, "w1");
        let finished = cast::attempt_ended_fact(&id, 1, "w1", Ok(cast::finished_result(5)));
        if finishes_before {
            scene.decide_fact(&finished).unwrap();
        }
        scene.now = cast::time_after(scene.now, 100);
        scene.decide_overdue_input(&OverdueInput::WallTime).unwrap();
        if !finishes_before {
            scene.decide_fact(&finished).unwrap();
        }
        assert_eq!(state(&scene), TaskState::Cancelled);
        assert!(scene.plan.run.end.is_some(), "the run would wait for ever");
        oracle::check_invariants(&scene.plan);
    }
}

// ---- the approval of the plan

fn plan_scene(submission: Submission) -> RunScene {
    RunScene::from_submission(Submission { approve_plan: true, ..submission })
}

fn offer_count(scene: &RunScene) -> usize {
    let effects = pending_effects(&scene.plan, EffectScope::All);
    effects.iter().filter(|effect| matches!(effect, Effect::Offer(work) if work.task().is_some())).count()
}

fn open_ids(scene: &RunScene) -> Vec<String> {
    scene.plan.open_questions().map(|question| question.id.to_string()).collect()
}

/// No task starts, no clock of a task runs and no budget is reserved before the approval.
#[test]
fn plan_starts_when_a_person_approves_it() {
    let tasks = vec![cast::echo_task("t", &[]), cast::echo_task("u", &["t"])];
    let budget = Budget {
        amounts: serde_json::from_value(serde_json::json!({"model_calls": 100})).unwrap(),
        ..Budget::default()
    };
    let mut scene = plan_scene(Submission { budget, ..cast::fixed_plan_submission(tasks) });
    assert_eq!((open_ids(&scene), offer_count(&scene)), (vec!["plan/1".to_owned()], 0));
    let question = scene.plan.open_questions().next().unwrap().question.clone();
    assert!(
        question.text.contains("t (echo)") && question.text.contains("u (echo, after t)"),
        "{}",
        question.text
    );
    assert_eq!(scene.plan.budget.reserved.iter().count(), 0);
    let run = RunId::new("r1").unwrap();
    let summary = RunSummary::from_plan(&run, Lane(0), &scene.plan, scene.now).unwrap();
    assert_eq!(summary.waiting_for.as_deref(), Some("the plan waits for the approval of a person"));
    scene.now = cast::time_after(scene.now, 40 * 86_400);
    assert_eq!(scene.overdue_inputs_now(), []);
    answer(&mut scene, "ann", "plan/1", Answer::Approve).unwrap();
    assert_eq!((open_ids(&scene), offer_count(&scene)), (Vec::new(), 1));
    assert_eq!(scene.overdue_inputs_now(), [], "the clock of the queue starts with the approval");
    let refused = answer(&mut scene, "bob", "plan/1", Answer::Reject { message: String::new() }).unwrap_err();
    assert!(refused.starts_with("question plan/1: ann approved at"), "{refused}");
}

/// An approval counts for the plan that the person has seen.
#[test]
fn changed_plan_is_asked_about_again() {
    let mut scene = plan_scene(cast::fixed_plan_submission(vec![cast::echo_task("t", &[])]));
    let seen = cast::answer_of(&scene.plan, "a1", "ann", "plan/1", Answer::Approve);
    let control = CommandAction::Edit(Edit::Add(vec![cast::echo_task("u", &[])]));
    let add = Fact::Control(RunCommand { id: "c1".into(), by: "bob".into(), control });
    scene.decide_fact(&add).unwrap();
    assert_eq!(open_ids(&scene), ["plan/1.2"]);
    let refused = scene.decide_fact(&seen).unwrap_err().to_string();
    assert!(refused.contains("the plan has changed, and it was renewed as plan/1.2"), "{refused}");
    answer(&mut scene, "ann", "plan/1.2", Answer::Approve).unwrap();
    assert_eq!(offer_count(&scene), 2);
    // Later changes need no approval.
    let control = CommandAction::Edit(Edit::Add(vec![cast::echo_task("v", &[])]));
    scene.decide_fact(&Fact::Control(RunCommand { id: "c2".into(), by: "bob".into(), control })).unwrap();
    assert_eq!((open_ids(&scene).len(), offer_count(&scene)), (0, 3));
}

#[test]
fn rejected_plan_without_a_planner_cancels_the_run() {
    let mut scene = plan_scene(cast::fixed_plan_submission(vec![cast::echo_task("t", &[])]));
    answer(&mut scene, "ann", "plan/1", Answer::Reject { message: "too dear".into() }).unwrap();
    let end = scene.plan.run.end.as_ref().unwrap();
    assert_eq!((end.reason, end.detail.as_str()), (EndReason::Cancelled, "ann rejected the plan: too dear"));
}

/// The planner reads the reason of a rejection, and its next plan opens another question.
#[test]
fn rejected_plan_goes_back_to_the_planner() {
    let submission = Submission { mode: PlanningMode::Llm, ..cast::fixed_plan_submission(Vec::new()) };
    let mut scene = plan_scene(submission);
    assert!(open_ids(&scene).is_empty(), "there is no plan yet");
    let mut last = cast::echo_task("t", &[]);
    last.is_final = true;
    let planned = cast::planned_fact(1, 1, vec![Edit::Add(vec![last])]);
    scene.decide_fact(&planned).unwrap();
    assert_eq!(open_ids(&scene), ["plan/1"]);
    answer(&mut scene, "ann", "plan/1", Answer::Reject { message: "also ask legal".into() }).unwrap();
    assert!(open_ids(&scene).is_empty());
    assert!(scene.plan.planning.turn.is_some(), "the planner is called");
    assert_eq!(scene.plan.run.messages, [("ann".into(), "I reject the plan. also ask legal".into())]);
    let planned = cast::planned_fact(2, 1, vec![Edit::Add(vec![cast::echo_task("legal", &[])])]);
    scene.decide_fact(&planned).unwrap();
    assert_eq!((open_ids(&scene), offer_count(&scene)), (vec!["plan/2".to_owned()], 0));
    answer(&mut scene, "ann", "plan/2", Answer::Approve).unwrap();
    assert_eq!(offer_count(&scene), 2);
}

/// While the run is paused the planner is not called: the rejected plan gets no new question, and the next one can't be
/// approved before the planner has changed it.
#[test]
fn plan_is_not_approved_while_the_planner_changes_it() {
    let tasks = vec![cast::echo_task("t", &[])];
    let hybrid = Submission { mode: PlanningMode::Hybrid, ..cast::fixed_plan_submission(tasks) };
    let command = |scene: &mut RunScene, id: &str, control: CommandAction| {
        scene.decide_fact(&Fact::Control(RunCommand { id: id.into(), by: "bob".into(), control })).unwrap();
    };
    let mut scene = plan_scene(hybrid.clone());
    command(&mut scene, "c1", CommandAction::Pause);
    answer(&mut scene, "ann", "plan/1", Answer::Reject { message: "no".into() }).unwrap();
    assert!(open_ids(&scene).is_empty(), "the planner has not answered yet");
    command(&mut scene, "c2", CommandAction::Resume { budget: None });
    assert!(scene.plan.planning.turn.is_some() && open_ids(&scene).is_empty());

    let mut scene = plan_scene(hybrid);
    command(&mut scene, "c1", CommandAction::Message { text: "also remove old releases".into() });
    assert_eq!(open_ids(&scene), ["plan/1"]);
    let refused = answer(&mut scene, "ann", "plan/1", Answer::Approve).unwrap_err();
    assert!(refused.contains("the planner is changing the plan"), "{refused}");
    let planned = cast::planned_fact(1, 1, vec![Edit::Add(vec![cast::echo_task("remove", &[])])]);
    scene.decide_fact(&planned).unwrap();
    assert_eq!(open_ids(&scene), ["plan/1.2"]);
    answer(&mut scene, "ann", "plan/1.2", Answer::Approve).unwrap();
    assert_eq!(offer_count(&scene), 2);
}

/// The persons of a capability judge its results whatever review a planner or an agent gives to the task; a critic that comes
/// with that does not vote in their place.
#[test]
fn own_review_of_a_task_does_not_replace_persons() {
    for (quorum, own, required) in [
        (None, ReviewPolicy::critic(Vec::new()), 2),
        (Some(1), ReviewPolicy::critic(Vec::new()), 2),
        (Some(1), ReviewPolicy::Checks { checks: vec![millrace_protocol::plan::ReviewCheck::Citations] }, 1),
    ] {
        let mut task = cast::echo_task("t", &[]);
        task.review = own;
        let mut scene = RunScene::from_submission(cast::fixed_plan_submission(vec![task]));
        scene.claim_task(&cast::task_id("t"), "w1");
        let mut result = cast::finished_result(5);
        result.review = cast::review_by_persons(&["ann"], quorum, ReviewPolicy::None);
        scene.decide_fact(&cast::attempt_ended_fact(&cast::task_id("t"), 1, "w1", Ok(result))).unwrap();
        let ReviewPolicy::Persons(review) = scene.plan.tasks()[0].review_policy() else { panic!() };
        assert_eq!(review.required_votes(), required);
        scene.finish_review(&cast::task_id("t"), true);
        assert_eq!(open_ids(&scene), ["t/1/1"]);
        answer(&mut scene, "ann", "t/1/1", Answer::Pass).unwrap();
        assert_eq!(state(&scene), TaskState::Completed);
    }
}

#[test]
fn planner_can_not_take_persons_out_of_a_review() {
    let mut task = cast::echo_task("t", &["d"]);
    task.review = cast::review_by_persons(&["ann"], None, ReviewPolicy::None);
    let tasks = vec![cast::echo_task("d", &[]), task];
    let hybrid = Submission { mode: PlanningMode::Hybrid, ..cast::fixed_plan_submission(tasks) };
    let mut scene = RunScene::from_submission(hybrid);
    let control = CommandAction::Message { text: "criteria, please".into() };
    scene.decide_fact(&Fact::Control(RunCommand { id: "c1".into(), by: "bob".into(), control })).unwrap();
    let patch = TaskPatch {
        review: Some(ReviewPolicy::critic(vec!["it has units".into()])),
        ..TaskPatch::without_changes(cast::task_id("t"))
    };
    scene.decide_fact(&cast::planned_fact(1, 1, vec![Edit::Patch(patch)])).unwrap();
    let ReviewPolicy::Persons(review) = &scene.plan.task(&cast::task_id("t")).unwrap().spec.review else {
        panic!("the persons are gone")
    };
    assert_eq!((review.ask.as_slice(), review.required_votes()), (&["ann".to_owned()][..], 2));
    assert!(matches!(review.first, ReviewPolicy::Critic { .. }));
}

/// A run whose time is over ends, also without an approval of its plan.
#[test]
fn run_that_winds_down_before_the_approval_ends() {
    let mut last = cast::echo_task("t", &[]);
    last.is_final = true;
    let budget = Budget { wall_time: Some(std::time::Duration::from_secs(100)), ..Budget::default() };
    let mut scene = plan_scene(Submission { budget, ..cast::fixed_plan_submission(vec![last]) });
    scene.now = cast::time_after(scene.now, 100);
    scene.decide_overdue_input(&OverdueInput::WallTime).unwrap();
    assert!(scene.plan.run.end.is_some(), "the run would wait for ever");
    assert!(open_ids(&scene).is_empty());
    let refused = answer(&mut scene, "ann", "plan/1", Answer::Approve).unwrap_err();
    assert!(refused.contains("ended"), "{refused}");
}

/// The criteria of the review of the task `t` after its result.
fn criteria_under_review(tasks: Vec<TaskSpec>, mode: PlanningMode) -> Option<Vec<String>> {
    let criteria = vec!["It names the mill.".to_owned()];
    let submission = Submission { criteria, mode, ..cast::fixed_plan_submission(tasks) };
    let mut scene = RunScene::from_submission(submission);
    scene.claim_and_finish_task(&cast::task_id("t"), "w1");
    match scene.plan.task(&cast::task_id("t")).unwrap().review_policy().by_critic() {
        ReviewPolicy::Critic { criteria, .. } => Some(criteria.clone()),
        ReviewPolicy::None | ReviewPolicy::Checks { .. } | ReviewPolicy::Persons(_) => None,
    }
}

#[test]
fn criteria_of_the_run_are_added_to_the_review_of_the_final_task() {
    let task =
        |id: &str, review: ReviewPolicy, is_final| TaskSpec { review, is_final, ..cast::echo_task(id, &[]) };
    let names_mill = Some(vec!["It names the mill.".to_owned()]);
    let final_task = |review| criteria_under_review(vec![task("t", review, true)], PlanningMode::Fixed);
    assert_eq!(final_task(ReviewPolicy::None), names_mill, "a task without a review gets one");
    let own = ReviewPolicy::critic(vec!["It is short.".into()]);
    assert_eq!(final_task(own.clone()), Some(vec!["It is short.".into(), "It names the mill.".into()]));
    let unsampled = match own {
        ReviewPolicy::Critic { criteria, checks, models, quorum, .. } => {
            ReviewPolicy::Critic { criteria, checks, models, quorum, sample_percent: Some(0) }
        }
        other @ (ReviewPolicy::None | ReviewPolicy::Checks { .. } | ReviewPolicy::Persons(_)) => {
            panic!("{other:?}")
        }
    };
    assert_eq!(final_task(unsampled), names_mill, "the deliverable is reviewed whatever the sample");

    let none = || ReviewPolicy::None;
    let two = |is_final| vec![task("t", none(), false), task("other", none(), is_final)];
    assert_eq!(criteria_under_review(two(true), PlanningMode::Fixed), None, "it is not the final one");
    assert_eq!(
        criteria_under_review(two(false), PlanningMode::Fixed),
        None,
        "either could be the deliverable"
    );
    let only = vec![task("t", none(), false)];
    assert_eq!(
        criteria_under_review(only, PlanningMode::Fixed),
        names_mill,
        "the only task on which none depends"
    );
    let planned = vec![task("t", none(), false)];
    assert_eq!(criteria_under_review(planned, PlanningMode::Hybrid), None, "the planner will mark one");
}

#[test]
fn run_with_bad_criteria_is_refused_with_the_reason() {
    for (criteria, expected) in [
        (vec![" ".to_owned()], "criterion 1 is empty"),
        (vec!["x".repeat(2_001)], "criterion 1 has 2001 bytes"),
        (vec!["x".to_owned(); 51], "there are 51 criteria; at most 50 are allowed"),
    ] {
        let submission =
            Submission { criteria, ..cast::fixed_plan_submission(vec![cast::echo_task("t", &[])]) };
        let scene = RunScene::from_submission(submission);
        let end = scene.plan.run.end.as_ref().unwrap();
        assert!(end.detail.starts_with(expected), "{}", end.detail);
    }
}
