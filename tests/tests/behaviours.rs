//! What Millrace does, as black boxes: real processes, a real server, and models that answer by hand. Each case is named
//! after what it shows; those of a group play side by side on one cluster, each with a run of its own. `MILLRACE_CASE`
//! chooses cases by a part of their names.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

#[path = "behaviours/deaths.rs"]
mod deaths;
#[path = "behaviours/judging.rs"]
mod judging;
#[path = "behaviours/order.rs"]
mod order;
#[path = "behaviours/planning.rs"]
mod planning;
#[path = "behaviours/rubbish.rs"]
mod rubbish;
#[path = "behaviours/spending.rs"]
mod spending;
#[path = "behaviours/steering.rs"]
mod steering;

use millrace_protocol::plan::{EndReason, Plan, TaskState};
use millrace_tests::cases;
use millrace_tests::cluster::Setup;
use millrace_tests::plans::id;
use millrace_tests::stage::{Stage, play};

fn end(plan: &Plan) -> EndReason {
    plan.end.as_ref().unwrap().reason
}

fn state(plan: &Plan, task: &str) -> TaskState {
    plan.task(&id(task)).unwrap().state
}

fn setup() -> Setup {
    Setup { slots: 32, ..Setup::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn plans_that_nobody_changes() {
    use order::*;
    let files = [("brief", BRIEF), ("producer", PRODUCER)];
    let stage = Stage::with(setup(), &files).await;
    play(cases![&stage;
        tasks_in_a_row_run_one_behind_the_other_and_see_each_other_s_results,
        the_middle_of_a_diamond_runs_at_once,
        a_child_begins_before_its_parent_s_slow_sibling_has_ended,
        whoever_depends_on_a_failed_task_goes_by_its_own_policy_at_once,
        a_plan_in_which_nothing_can_begin_any_more_ends_with_a_report_of_what_waits_for_what,
        a_cancelled_task_takes_all_with_it_that_hang_on_it_and_no_others,
        a_sibling_s_failure_stops_nobody_unless_the_first_failure_is_to_end_the_run,
        the_deliverable_is_chosen_by_four_rungs_and_the_newest_wins,
        a_plan_file_that_is_none_is_refused_with_its_line_and_nothing_is_handed_in,
        an_end_that_comes_twice_or_late_is_refused_and_changes_nothing,
    ])
    .await;
    stage.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn results_that_are_judged_and_attempts_that_fail() {
    use judging::*;
    let stage = Stage::with(setup(), &[("asker", ASKER), ("expert", EXPERT)]).await;
    play(cases![&stage;
        a_rejected_result_is_made_again_with_the_reason_beside_an_unchanged_objective,
        a_result_that_is_rejected_three_times_fails,
        an_attempt_that_fails_is_never_judged_and_never_accepted,
        an_agent_that_calls_tools_without_end_reaches_its_limit_and_is_not_accepted,
        a_conversation_that_is_too_long_goes_on_from_its_notes_at_most_twice,
        a_provider_that_is_asked_too_often_is_asked_again_when_it_says_so,
        a_question_to_another_capability_is_one_reply_and_counts,
        a_verdict_that_contradicts_itself_is_asked_again_and_never_counts,
    ])
    .await;
    stage.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn planners_in_their_three_modes() {
    use planning::*;
    let stage = Stage::open(setup()).await;
    play(cases![&stage;
        an_objective_becomes_a_plan_that_is_carried_out,
        a_seed_plan_is_extended_where_the_mode_allows_it,
        a_planner_works_by_its_tools_and_is_told_at_once_what_does_not_hold,
        the_planner_of_a_fixed_plan_may_run_and_cancel_but_changes_nothing_of_it,
        a_lost_task_is_told_to_the_planner_who_replaces_it_while_others_wait,
        a_task_for_a_capability_that_nobody_has_is_told_with_those_there_are_and_revived,
        a_user_revives_a_task_by_giving_it_a_capability_or_parameters,
        missing_parameters_are_told_to_the_planner_who_supplies_them,
        an_end_that_is_none_is_told_and_counts_until_the_run_stops_with_its_reason,
        turns_that_change_nothing_stop_the_run_with_a_report_that_the_planner_has_seen,
        a_planner_that_can_t_be_had_is_tried_three_times_and_what_is_done_is_kept,
        a_planner_is_asked_no_more_often_than_its_steps_and_goes_on_with_more,
        a_planner_may_be_asked_about_every_result,
        what_no_longer_holds_of_a_turn_is_asked_again_with_the_reason_and_the_rest_is_kept,
        a_planner_that_sees_no_way_on_gives_up_with_what_there_is,
    ])
    .await;
    stage.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn planners_that_answer_rubbish() {
    use rubbish::*;
    let stage = Stage::open(setup()).await;
    play(cases![&stage;
        a_planner_that_never_answers_in_its_form_is_given_up,
        a_planner_that_calls_tools_that_there_are_not_is_given_up,
        a_planner_that_wants_circles_changes_nothing,
        a_planner_that_wants_thousands_of_tasks_gets_none_of_them,
        a_planner_that_claims_the_end_for_ever_is_stopped,
        a_planner_that_makes_more_work_for_ever_comes_to_the_end_of_its_steps,
        a_planner_whose_model_says_nothing_is_given_up_in_its_time,
        errors_of_the_planner_s_model_for_a_while_delay_the_run_and_no_more,
    ])
    .await;
    stage.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn users_that_steer() {
    use steering::*;
    let stage = Stage::open(setup()).await;
    play(cases![&stage;
        a_cancelled_run_or_task_hangs_up_on_its_provider_within_a_second,
        a_cancelled_run_hangs_up_on_its_planner_s_and_its_critic_s_provider,
        a_paused_run_gives_nothing_out_and_goes_on_when_it_is_resumed,
        a_task_that_waits_runs_as_it_was_edited,
        a_finished_task_that_is_retried_takes_back_what_was_built_on_it,
        what_a_user_says_reaches_the_planner_s_next_turn,
        a_command_that_is_given_twice_is_carried_out_once,
        a_command_that_comes_too_late_is_refused_with_the_reason,
    ])
    .await;
    stage.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn budgets() {
    use spending::*;
    let stage = Stage::with(setup(), &FILES).await;
    play(cases![&stage;
        what_planner_workers_critics_and_those_they_ask_use_is_counted_by_role_and_model,
        a_budget_that_is_used_up_ends_the_run_with_the_final_task_made_from_what_was_kept_for_it,
        a_planner_is_told_once_that_the_budget_comes_to_its_end,
        an_attempt_is_held_to_what_was_set_aside_for_it,
        a_capability_and_a_task_have_budgets_of_their_own,
        a_run_whose_time_is_over_ends_with_what_it_has_and_its_running_work_by_its_policy,
        a_planner_keeps_to_the_number_of_tasks_and_to_the_depth_that_a_run_may_have,
    ])
    .await;
    stage.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn deaths_in_the_middle_of_a_planned_run() {
    deaths::whatever_dies_a_planned_run_comes_to_the_same_end_and_asks_again_only_for_what_was_lost().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_death_of_everything_between_a_budget_s_end_and_its_raise() {
    deaths::a_run_whose_budget_is_used_up_outlives_every_process_and_goes_on_with_more().await;
}
