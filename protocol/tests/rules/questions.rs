//! Answers to questions: every answer × every state of a question. The golden file is `tests/questions.txt`.

use std::fmt::Write;

use millrace_protocol::plan::{
    Budget, CommandAction, Edit, Fact, OverdueInput, ReviewPolicy, RunCommand, Submission, TaskPatch,
    TaskState,
};
use millrace_protocol::question::{Answer, AnswerKind, AnswerScope, ExpiryAction, RunAnswer};
use millrace_protocol::wait::Wait;

use crate::scene::{RunScene, is_plan_unchanged};
use crate::{cast, golden, oracle, show};

/// A run with the task `t`, parked with these waits, and the independent task `o`.
fn parked_scene(waits: Vec<Wait>) -> RunScene {
    let tasks = vec![cast::echo_task("t", &[]), cast::echo_task("o", &[])];
    let mut scene = RunScene::from_submission(cast::fixed_plan_submission(tasks));
    scene.claim_task(&cast::task_id("t"), "w1");
    scene.decide_fact(&cast::parked_fact(&cast::task_id("t"), 1, "w1", waits)).unwrap();
    scene
}

fn pass_time(scene: &mut RunScene, seconds: u64) {
    scene.now = cast::time_after(scene.now, seconds);
    scene.decide_overdue_input(&OverdueInput::WaitTime(cast::task_id("t"))).unwrap();
}

fn command(scene: &mut RunScene, control: CommandAction) {
    scene.decide_fact(&Fact::Control(RunCommand { id: "c1".into(), by: "bob".into(), control })).unwrap();
}

/// The name of the digest that the plan has for the question.
const OWN_DIGEST: &str = "the question's";

/// A run whose task `t` has a result that these persons must judge.
fn reviewed_scene(ask: &[&str]) -> RunScene {
    let mut task = cast::echo_task("t", &[]);
    task.review = cast::review_by_persons(ask, None, ReviewPolicy::None);
    let tasks = vec![task, cast::echo_task("o", &[])];
    let mut scene = RunScene::from_submission(cast::fixed_plan_submission(tasks));
    scene.claim_and_finish_task(&cast::task_id("t"), "w1");
    scene
}

/// The same, judged by persons one after the other.
fn reviewed_by(persons: &[&str]) -> RunScene {
    let mut scene = reviewed_scene(&["", ""]);
    for (number, by) in (1..).zip(persons) {
        let answer = cast::answer_of(&scene.plan, by, by, &format!("t/1/{number}"), Answer::Pass);
        scene.decide_fact(&answer).unwrap();
    }
    scene
}

/// A run whose plan needs an approval.
fn plan_scene() -> RunScene {
    let tasks = vec![cast::echo_task("t", &[]), cast::echo_task("o", &["t"])];
    let submission = cast::fixed_plan_submission(tasks);
    RunScene::from_submission(Submission { approve_plan: true, ..submission })
}

/// The same, and a task is added while the question is open.
fn changed_plan_scene() -> RunScene {
    let mut scene = plan_scene();
    command(&mut scene, CommandAction::Edit(Edit::Add(vec![cast::echo_task("more", &[])])));
    scene
}

/// A question in each state: its name, the run, the id that answers name, and the key of its digest.
fn question_states() -> Vec<(&'static str, RunScene, &'static str, &'static str)> {
    let approval = |expiry| vec![cast::approval_wait("q", expiry), cast::time_wait("s", 90_000)];
    let expiring = |action| approval(Some((600, action)));
    let answered = |answer| {
        let mut scene = parked_scene(approval(None));
        scene.decide_fact(&cast::answer_fact("a0", "t/1/1", "q", answer, AnswerScope::Once)).unwrap();
        scene
    };
    let expired = |action| {
        let mut scene = parked_scene(expiring(action));
        pass_time(&mut scene, 601);
        scene
    };
    let withdrawn = |control| {
        let mut scene = parked_scene(approval(None));
        command(&mut scene, control);
        scene
    };
    let reason = || "enough".to_owned();
    vec![
        ("open: approval", parked_scene(approval(None)), "t/1/1", "q"),
        (
            "open: approval without other waits",
            parked_scene(vec![cast::approval_wait("q", None)]),
            "t/1/1",
            "q",
        ),
        ("open: input", parked_scene(vec![cast::input_wait("q", None)]), "t/1/1", "q"),
        ("open, and shown with other arguments", parked_scene(approval(None)), "t/1/1", "other"),
        ("answered: approved", answered(Answer::Approve), "t/1/1", "q"),
        ("answered: rejected", answered(Answer::Reject { message: "too risky".into() }), "t/1/1", "q"),
        ("expired: rejected", expired(ExpiryAction::Reject), "t/1/1", "q"),
        ("expired: the task failed", expired(ExpiryAction::FailTask), "t/1/1", "q"),
        ("expired and asked again: the first round", expired(ExpiryAction::AskAgain), "t/1/1", "q"),
        ("expired and asked again: the second round", expired(ExpiryAction::AskAgain), "t/1/1.2", "q"),
        ("escalated: the second round", expired(ExpiryAction::Escalate), "t/1/1.2", "q"),
        (
            "withdrawn: the task is cancelled",
            withdrawn(CommandAction::CancelTask { task: cast::task_id("t"), reason: reason() }),
            "t/1/1",
            "q",
        ),
        (
            "withdrawn: the run is cancelled",
            withdrawn(CommandAction::CancelRun { reason: reason() }),
            "t/1/1",
            "q",
        ),
        ("unknown: no such number", parked_scene(approval(None)), "t/1/7", "q"),
        ("unknown: no such attempt", parked_scene(approval(None)), "t/2/1", "q"),
        ("unknown: no such round", parked_scene(approval(None)), "t/1/1.2", "q"),
        ("unknown: no such task", parked_scene(approval(None)), "nobody/1/1", "q"),
        ("unknown: a wait that is no question", parked_scene(approval(None)), "t/1/2", "s"),
        ("unknown: no question about the plan", parked_scene(approval(None)), "plan/1", OWN_DIGEST),
        ("open: review", reviewed_scene(&["", ""]), "t/1/1", OWN_DIGEST),
        ("open: review that decides", reviewed_scene(&[""]), "t/1/1", OWN_DIGEST),
        ("open: review, and the author has judged it", reviewed_by(&["ann"]), "t/1/2", OWN_DIGEST),
        ("answered: judged", reviewed_by(&["bob"]), "t/1/1", OWN_DIGEST),
        ("open: plan", plan_scene(), "plan/1", OWN_DIGEST),
        ("open: plan that has changed", changed_plan_scene(), "plan/1", OWN_DIGEST),
        ("open: plan that has changed, second round", changed_plan_scene(), "plan/1.2", OWN_DIGEST),
    ]
}

#[test]
fn every_answer_to_every_state_of_a_question() {
    let mut text =
        String::from("Each row: the answer, then the state of t and all events, or the refusal.\n");
    let (mut accepted, mut kinds) = (0, 0);
    for answer in cast::answers_of_all_kinds() {
        kinds += 1;
        for (name, mut scene, id, key) in question_states() {
            let before = scene.plan.clone();
            let decided = match key {
                OWN_DIGEST => scene.decide_fact(&cast::answer_of(&before, "a1", "ann", id, answer.clone())),
                _ => scene.decide_fact(&cast::answer_fact("a1", id, key, answer.clone(), AnswerScope::Once)),
            };
            let cell = match decided {
                Err(refusal) => {
                    assert!(
                        is_plan_unchanged(&before, &scene.plan),
                        "{name}: a refused answer changed the plan"
                    );
                    format!("refused: {refusal}")
                }
                Ok(events) => {
                    accepted += 1;
                    let state = scene.plan.task(&cast::task_id("t")).unwrap().state();
                    format!(
                        "{state} | {}",
                        events.iter().map(show::format_event).collect::<Vec<_>>().join("; ")
                    )
                }
            };
            oracle::check_invariants(&scene.plan);
            writeln!(text, "{:8} {name:46} -> {cell}", answer.kind().name()).unwrap();
        }
    }
    assert_eq!(kinds, AnswerKind::ALL.len());
    // Four open approvals take four kinds each, the input, the two reviews and the two plans two.
    assert_eq!(accepted, 4 * 4 + 5 * 2);
    golden::compare_with_golden_file("questions.txt", &text);
}

#[test]
fn repeated_answer_is_applied_once_and_the_second_author_is_told_who_was_first() {
    let mut scene = parked_scene(vec![cast::approval_wait("q", None), cast::time_wait("s", 90_000)]);
    let answer = |id: &str, answer| cast::answer_fact(id, "t/1/1", "q", answer, AnswerScope::Once);
    scene.decide_fact(&answer("a1", Answer::Approve)).unwrap();
    let refused = scene.decide_fact(&answer("a1", Answer::Approve)).unwrap_err();
    assert!(refused.to_string().contains("already applied"), "{refused}");
    let refused = scene.decide_fact(&answer("a2", Answer::Reject { message: String::new() })).unwrap_err();
    assert_eq!(refused.to_string(), "question t/1/1: ann approved at 2026-11-21 23:00:00 UTC");
}

/// An answer for the tool also decides its other open calls and later ones; one for the call only those with the same arguments.
#[test]
fn standing_answers_decide_open_and_later_calls() {
    for (scope, same, other) in [
        (AnswerScope::Once, false, false),
        (AnswerScope::ThisCallInRun, true, false),
        (AnswerScope::ThisToolInRun, true, true),
    ] {
        let (first, third) = (cast::approval_wait("q", None), cast::approval_wait("x", None));
        // The same call has the same digest, under another key.
        let second = Wait { key: "again".into(), ..first.clone() };
        let mut scene = parked_scene(vec![first, second.clone(), third.clone()]);
        scene.decide_fact(&cast::answer_fact("a1", "t/1/1", "q", Answer::Approve, scope)).unwrap();
        let open: Vec<u32> = scene.plan.open_questions().map(|question| question.id.number).collect();
        let expected: Vec<u32> = [(2, same), (3, other)]
            .into_iter()
            .filter(|(_, is_decided)| !is_decided)
            .map(|(n, _)| n)
            .collect();
        assert_eq!(open, expected, "{scope:?}");

        scene.claim_task(&cast::task_id("o"), "w2");
        let waits = vec![second, third];
        scene.decide_fact(&cast::parked_fact(&cast::task_id("o"), 1, "w2", waits)).unwrap();
        let of_o = scene.plan.open_questions().filter(|it| it.id.task() == Some(&cast::task_id("o")));
        let open: Vec<u32> = of_o.map(|question| question.id.number).collect();
        let expected: Vec<u32> = [(1, same), (2, other)]
            .into_iter()
            .filter(|(_, is_decided)| !is_decided)
            .map(|(n, _)| n)
            .collect();
        assert_eq!(open, expected, "{scope:?}");
        oracle::check_invariants(&scene.plan);
    }
}

#[test]
fn standing_answers_are_for_their_capability_only() {
    let mut other = cast::echo_task("o", &[]);
    other.capability = cast::capability_name("search");
    let tasks = vec![cast::echo_task("t", &[]), other];
    let mut scene = RunScene::from_submission(cast::fixed_plan_submission(tasks));
    for task in ["t", "o"] {
        scene.claim_task(&cast::task_id(task), "w1");
        let waits = vec![cast::approval_wait("q", None)];
        scene.decide_fact(&cast::parked_fact(&cast::task_id(task), 1, "w1", waits)).unwrap();
    }
    let answer = cast::answer_fact("a1", "t/1/1", "q", Answer::Approve, AnswerScope::ThisToolInRun);
    scene.decide_fact(&answer).unwrap();
    let open: Vec<String> = scene.plan.open_questions().map(|question| question.id.to_string()).collect();
    assert_eq!(open, ["o/1/1"]);
}

/// A question without an expiry stays open for a month and longer; one with an expiry expires once per round.
#[test]
fn questions_expire_only_where_that_was_asked_for() {
    let mut scene = parked_scene(vec![
        cast::input_wait("for ever", None),
        cast::input_wait("a week", Some((604_800, ExpiryAction::Escalate))),
    ]);
    let open = |scene: &RunScene| -> Vec<String> {
        scene.plan.open_questions().map(|question| question.id.to_string()).collect()
    };
    pass_time(&mut scene, 604_800);
    assert_eq!(open(&scene), ["t/1/1", "t/1/2.2"]);
    let to = |scene: &RunScene| {
        scene.plan.open_questions().map(|question| question.question.to.clone()).collect::<Vec<_>>()
    };
    assert_eq!(to(&scene), ["ops", "chief"]);
    let early = scene.decide_overdue_input(&OverdueInput::WaitTime(cast::task_id("t")));
    assert!(early.is_err(), "it expires once");
    pass_time(&mut scene, 604_800);
    assert_eq!(open(&scene), ["t/1/1"]);
    scene.now = cast::time_after(scene.now, 31 * 86_400);
    assert!(scene.decide_overdue_input(&OverdueInput::WaitTime(cast::task_id("t"))).is_err());
    assert_eq!(scene.plan.task(&cast::task_id("t")).unwrap().state(), TaskState::Waiting);
    oracle::check_invariants(&scene.plan);
}

/// The worker parks its attempt in the moment in which the run is interrupted. Its entry is after the command in the log and counts
/// nevertheless, because no worker could continue from that journal.
#[test]
fn attempt_parked_in_the_moment_of_an_interrupt_waits() {
    let tasks = vec![cast::echo_task("t", &[]), cast::echo_task("o", &[])];
    let mut scene = RunScene::from_submission(cast::fixed_plan_submission(tasks));
    scene.claim_task(&cast::task_id("t"), "w1");
    command(&mut scene, CommandAction::Interrupt);
    let parked = cast::parked_fact(&cast::task_id("t"), 1, "w1", vec![cast::approval_wait("q", None)]);
    scene.decide_fact(&parked).unwrap();
    let state = |scene: &RunScene| scene.plan.task(&cast::task_id("t")).unwrap().state();
    assert_eq!(state(&scene), TaskState::Waiting);
    oracle::check_invariants(&scene.plan);
    scene.decide_fact(&cast::command_fact("c9", CommandAction::Resume { budget: None })).unwrap();
    scene.decide_fact(&cast::answer_fact("a1", "t/1/1", "q", Answer::Approve, AnswerScope::Once)).unwrap();
    assert_eq!(state(&scene), TaskState::Ready);
    // An attempt that no worker has had can't be parked.
    let unclaimed = cast::parked_fact(&cast::task_id("o"), 1, "w1", vec![cast::approval_wait("q", None)]);
    assert!(scene.decide_fact(&unclaimed).is_err());
}

/// A run that winds down waits for nobody: a task that would is cancelled, and the run ends.
#[test]
fn run_that_winds_down_does_not_wait_for_people() {
    let budget = Budget { wall_time: Some(std::time::Duration::from_secs(100)), ..Budget::default() };
    let submission = cast::fixed_plan_submission(vec![cast::echo_task("t", &[])]);
    let mut scene = RunScene::from_submission(Submission { budget, ..submission });
    scene.claim_task(&cast::task_id("t"), "w1");
    scene.now = cast::time_after(scene.now, 100);
    scene.decide_overdue_input(&OverdueInput::WallTime).unwrap();
    assert!(scene.plan.run.winding_down.is_some() && scene.plan.run.end.is_none());
    let parked = cast::parked_fact(&cast::task_id("t"), 1, "w1", vec![cast::approval_wait("q", None)]);
    scene.decide_fact(&parked).unwrap();
    assert_eq!(scene.plan.task(&cast::task_id("t")).unwrap().state(), TaskState::Cancelled);
    assert!(scene.plan.run.end.is_some(), "the run would wait for ever");
}

/// A woken attempt has begun: its task can't be changed, and other parameters of its capability do not replace it.
#[test]
fn woken_attempt_is_not_replaced() {
    let mut scene = parked_scene(vec![cast::approval_wait("q", None)]);
    scene.decide_fact(&cast::answer_fact("a1", "t/1/1", "q", Answer::Approve, AnswerScope::Once)).unwrap();
    let patch =
        TaskPatch { objective: Some("else".into()), ..TaskPatch::without_changes(cast::task_id("t")) };
    let edit = cast::command_fact("c9", CommandAction::Edit(Edit::Patch(patch)));
    let refused = scene.decide_fact(&edit).unwrap_err();
    assert!(refused.to_string().contains("it has begun and can't be changed"), "{refused}");
    assert_eq!(scene.plan.task(&cast::task_id("t")).unwrap().attempt, 1);
}

#[test]
fn answer_without_an_author_is_refused() {
    let mut scene = parked_scene(vec![cast::approval_wait("q", None)]);
    for by in ["", " ", "a\u{1b}[2J", &"x".repeat(300)] {
        let Fact::Answered(given) = cast::answer_fact("a1", "t/1/1", "q", Answer::Approve, AnswerScope::Once)
        else {
            panic!("an answer")
        };
        let refused = scene.decide_fact(&Fact::Answered(RunAnswer { by: by.into(), ..given })).unwrap_err();
        assert!(refused.to_string().contains("the name of its author"), "{refused}");
    }
    assert_eq!(scene.plan.open_questions().count(), 1);
}
