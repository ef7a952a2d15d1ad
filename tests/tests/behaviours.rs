//! The behaviour of Millrace as a black box: real processes, a real server, and scripted models. Each case is a test
//! that `cargo test NAME` selects. Those listed here share one cluster, on which each has a run of its own; those of
//! `crashes` kill the processes of their own clusters.

mod bad_planner;
mod budgets;
mod crashes;
mod hostile_text;
mod order;
mod planning;
mod providers;
mod reviews;
mod steering;
mod views;

use std::time::Duration;

use millrace_protocol::plan::{EndReason, Plan, TaskState};
use millrace_tests::cluster::ClusterSetup;
use millrace_tests::plans::task_id;
use millrace_tests::shared_cluster_tests;
use millrace_tests::testbed::TestBed;

fn end_reason(plan: &Plan) -> EndReason {
    plan.run.end.as_ref().unwrap().reason
}

fn task_state(plan: &Plan, task: &str) -> TaskState {
    plan.task(&task_id(task)).unwrap().state()
}

fn cluster_setup() -> ClusterSetup {
    ClusterSetup { slots: 32, ..ClusterSetup::default() }
}

/// No case kills a process of the shared cluster: no lease may end because the machine is busy.
fn shared_cluster_setup() -> ClusterSetup {
    ClusterSetup { work_lease: Some(Duration::from_secs(10)), ..cluster_setup() }
}

/// The capabilities of the shared cluster besides those of every testbed.
const CAPABILITIES: [(&str, &str); 6] = [
    ("brief", order::BRIEF),
    ("producer", order::PRODUCER),
    ("asker", reviews::ASKER),
    ("expert", reviews::EXPERT),
    ("scribe", hostile_text::SCRIBE),
    ("shout", hostile_text::SHOUT),
];

shared_cluster_tests! {
    TestBed::start_with_capabilities(shared_cluster_setup(), &CAPABILITIES);
    order: [
        chained_tasks_run_in_order_and_see_earlier_results,
        middle_of_a_diamond_runs_in_parallel,
        task_starts_once_its_own_dependencies_are_done,
        dependents_of_a_failed_task_follow_their_policy,
        blocked_plan_ends_with_a_report_of_what_waits_for_what,
        cancelling_a_task_cancels_only_its_dependents,
        failure_does_not_stop_siblings_unless_fail_fast,
        deliverable_is_chosen_by_four_rules_and_the_newest_wins,
        invalid_plan_file_is_rejected_with_its_line,
        duplicate_and_late_outcomes_are_rejected,
    ],
    reviews: [
        rejected_result_is_redone_with_feedback,
        result_rejected_three_times_fails_the_task,
        failed_attempts_are_never_reviewed_or_accepted,
        endless_tool_calls_hit_the_limit_and_fail_the_attempt,
        context_overflow_continues_from_notes_at_most_twice,
        rate_limited_request_is_retried_after_the_given_wait,
        consulting_another_capability_is_one_counted_reply,
        invalid_verdict_is_asked_again_and_never_counts,
        verdict_that_contradicts_itself_counts_by_its_criteria,
    ],
    planning: [
        planner_turns_an_objective_into_a_plan_that_runs,
        planner_extends_a_seed_plan_in_hybrid_mode,
        planner_tools_reject_invalid_changes_at_once,
        planner_of_a_fixed_plan_may_retry_but_not_change_it,
        planner_replaces_a_failed_task_that_others_need,
        planner_replaces_an_unknown_capability,
        user_repairs_a_task_with_a_capability_or_parameters,
        planner_supplies_missing_parameters,
        false_finish_is_rejected_and_counts_as_no_progress,
        turns_without_progress_end_the_run_with_a_report,
        unavailable_planner_is_tried_three_times,
        planner_stops_at_its_step_limit_and_can_be_resumed,
        planner_can_be_consulted_about_every_result,
        stale_part_of_a_turn_is_refused_and_the_rest_is_kept,
        planner_gives_up_with_the_best_available_result,
    ],
    bad_planner: [
        planner_that_ignores_the_answer_format_is_given_up,
        planner_that_calls_unknown_tools_is_given_up,
        planner_that_proposes_cycles_changes_nothing,
        planner_that_proposes_too_many_tasks_adds_none,
        planner_that_keeps_claiming_the_end_is_stopped,
        planner_that_keeps_adding_work_reaches_its_step_limit,
        unresponsive_planner_is_stopped_by_the_time_budget,
        temporary_planner_errors_only_delay_the_run,
    ],
    steering: [
        cancel_closes_the_worker_s_provider_connection,
        cancel_closes_planner_and_critic_connections,
        paused_run_dispatches_nothing_until_resumed,
        waiting_task_runs_as_edited,
        retrying_a_finished_task_redoes_its_dependents,
        user_message_reaches_the_planner_s_next_turn,
        repeated_command_is_applied_once,
        late_command_is_rejected_with_the_reason,
    ],
    budgets: [
        usage_is_counted_by_role_capability_and_model,
        spent_budget_still_pays_for_the_final_task,
        planner_is_warned_once_that_the_budget_runs_low,
        attempt_cannot_exceed_its_reserved_budget,
        capabilities_and_tasks_have_budgets_of_their_own,
        run_out_of_time_ends_running_tasks_by_policy,
        planner_respects_the_limits_on_tasks_and_depth,
    ],
    views: [
        transcript_shows_what_an_agent_did,
        transcript_is_followed_until_the_task_ends,
        transcript_of_the_planner_shows_its_turns,
        status_shows_processes_queues_lanes_and_runs,
    ],
    hostile_text: [
        hostile_text_reaches_no_output,
    ],
}
