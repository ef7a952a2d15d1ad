//! `millrace list`: lists the runs of a cluster, oldest first.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use millrace_protocol::ids::{RunId, SessionId};
use millrace_protocol::labels::LabelSelector;
use millrace_protocol::plan::{ResourceKind, RunWaitKind};
use millrace_protocol::registry::RunSummary;
use millrace_protocol::safe_text::single_line;
use millrace_protocol::time_text::parse_time_or_age;

use crate::exit::{CommandExit, CommandResult};
use crate::interrupted::offline_runs_hint;
use crate::json::{RunListLine, RunState, describe_wait_of_summary, print_json, waiting_work_of_summary};
use crate::target::{ClusterTarget, ReadConnection};
use crate::view::{align_columns, format_age, print_stderr_line, print_stdout_line, separate_thousands};
use millrace_client::{list_runs, list_runs_from_log};
use millrace_runtime::work::queue_place::read_places;
use millrace_runtime::{Bus, Fault};

/// Maximum number of characters of an objective.
const MAX_OBJECTIVE: usize = 60;

const EXAMPLES: &str = "\
Examples:
  millrace list
  millrace list --state running --state paused
  millrace list --waiting question
  millrace list --label team=search
  millrace list --since 2h --limit 20 --json";

/// The arguments of `millrace list`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ListArguments {
    /// Only runs in this state; may be given several times
    #[arg(long, value_name = "STATE", value_parser = PossibleValuesParser::new(RunState::ALL.map(RunState::name)).map(state_of_name))]
    state: Vec<RunState>,
    /// Only live runs that wait for this; may be given several times
    #[arg(long, value_name = "WHAT", value_parser = PossibleValuesParser::new(RunWaitKind::ALL.map(RunWaitKind::name)).map(wait_of_name))]
    waiting: Vec<RunWaitKind>,
    /// Only runs that started in this time, such as 2h or 30m, or since this date (2026-11-22 or 2026-11-22T09:30Z)
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    since: Option<Timestamp>,
    /// Only runs with this label, or with any value of it; may be given several times
    #[arg(long, value_name = "NAME[=VALUE]")]
    label: Vec<LabelSelector>,
    /// Only runs of this session
    #[arg(long, value_name = "NAME")]
    session: Option<SessionId>,
    /// Only the newest N runs
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Print a JSON object for each run
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Cluster")]
    target: ClusterTarget,
}

fn state_of_name(name: String) -> RunState {
    let state = RunState::ALL.into_iter().find(|state| state.name() == name);
    state.expect("the parser accepts the names of states only")
}

fn wait_of_name(name: String) -> RunWaitKind {
    let kind = RunWaitKind::ALL.into_iter().find(|kind| kind.name() == name);
    kind.expect("the parser accepts the names of waits only")
}

/// Parses a duration before now, a date in local time, or a time.
fn parse_since(text: &str) -> Result<Timestamp, String> {
    parse_time_or_age(text, Timestamp::now(), &TimeZone::system())
}

/// A run and its summary; `None` if no supervisor has started it.
type ListedRun = (RunId, Option<RunSummary>);

pub async fn run_command(arguments: ListArguments) -> CommandResult {
    let reading = ReadConnection::open_for_reading(&arguments.target).await?;
    let is_offline = reading.is_offline();
    let runs = async |bus: &Bus| match is_offline {
        // The last summaries of a cluster that has stopped may be older than its last decisions.
        true => {
            let mut all = list_runs_from_log(bus).await?;
            all.iter_mut().filter_map(|(_, summary)| summary.as_mut()).for_each(mark_as_offline);
            Ok((all.is_empty(), select_runs(all, &arguments)))
        }
        false => {
            let all = list_runs(bus).await?;
            let is_empty = all.is_empty();
            let mut runs = select_runs(all, &arguments);
            add_places_in_queue(bus, &mut runs).await?;
            Ok((is_empty, runs))
        }
    };
    let (is_empty, runs) = reading.read_and_close(runs).await?;
    if arguments.json {
        for (run, summary) in &runs {
            print_json(&RunListLine::new(run, summary.as_ref()));
        }
        return Ok(CommandExit::Completed);
    }
    if is_empty {
        print_stderr_line("millrace: there are no runs yet");
    } else if runs.is_empty() {
        print_stderr_line("millrace: no run matches");
    } else {
        format_runs(&runs, Timestamp::now()).iter().for_each(|line| print_stdout_line(line));
    }
    let is_live = |(_, summary): &&ListedRun| !RunState::of_summary(summary.as_ref()).has_ended();
    let live: Vec<&ListedRun> = runs.iter().filter(is_live).collect();
    if is_offline && !live.is_empty() {
        let is_stopped = |summary: &RunSummary| summary.is_paused;
        let stopped = live.iter().filter(|(_, summary)| summary.as_ref().is_some_and(is_stopped));
        let stopped: Vec<&RunId> = stopped.map(|(run, _)| run).collect();
        print_stderr_line(&offline_runs_hint(&stopped, stopped.len() < live.len()));
    }
    Ok(CommandExit::Completed)
}

/// Changes what the runs wait for that wait for a worker: their places in the queues.
async fn add_places_in_queue(bus: &Bus, runs: &mut [ListedRun]) -> Result<(), Fault> {
    let summaries = || runs.iter().filter_map(|(_, summary)| summary.as_ref());
    let places = read_places(bus, summaries().filter_map(waiting_work_of_summary).collect()).await?;
    for summary in runs.iter_mut().filter_map(|(_, summary)| summary.as_mut()) {
        summary.waiting_for = describe_wait_of_summary(summary, &places).or(summary.waiting_for.take());
    }
    Ok(())
}

/// Changes what a live run waits for, since no process of its cluster is running.
fn mark_as_offline(summary: &mut RunSummary) {
    if summary.end.is_none() && !summary.is_paused && summary.waiting_for_provider.is_none() {
        (summary.wait, summary.waiting_for) = (None, Some("no cluster is running".into()));
    }
}

/// Returns the runs that the options select, oldest first.
fn select_runs(mut runs: Vec<ListedRun>, arguments: &ListArguments) -> Vec<ListedRun> {
    runs.retain(|(_, summary)| {
        let state = RunState::of_summary(summary.as_ref());
        // A run that no supervisor has started was submitted a moment ago.
        let is_recent = |since| summary.as_ref().is_none_or(|summary| summary.started >= since);
        let wait = summary.as_ref().and_then(|summary| summary.wait.as_ref());
        (arguments.state.is_empty() || arguments.state.contains(&state))
            && (arguments.waiting.is_empty()
                || wait.is_some_and(|wait| arguments.waiting.contains(&wait.kind)))
            && arguments.since.is_none_or(is_recent)
            && has_labels(summary.as_ref(), &arguments.label)
            && is_of_session(summary.as_ref(), arguments.session.as_ref())
    });
    let surplus = arguments.limit.map_or(0, |limit| runs.len().saturating_sub(limit));
    runs.split_off(surplus)
}

/// `true` if a run has all these labels. One that no supervisor has started has none.
fn has_labels(summary: Option<&RunSummary>, selectors: &[LabelSelector]) -> bool {
    selectors.iter().all(|selector| summary.is_some_and(|summary| selector.selects(&summary.labels)))
}

/// `true` if a run belongs to the session, or any will do. One that no supervisor has started belongs to none.
fn is_of_session(summary: Option<&RunSummary>, session: Option<&SessionId>) -> bool {
    session.is_none_or(|session| summary.is_some_and(|summary| summary.session.as_ref() == Some(session)))
}

fn format_runs(runs: &[ListedRun], now: Timestamp) -> Vec<String> {
    let heads = ["RUN", "STATE", "TASKS", "AGE", "TIME", "USED", "OBJECTIVE"].map(str::to_owned);
    let rows = runs.iter().map(|(run, summary)| match summary {
        Some(summary) => summary_row(summary, now),
        None => [run.to_string(), "waiting for a supervisor".into()]
            .into_iter()
            .chain(std::iter::repeat_n(String::new(), 5))
            .collect::<Vec<_>>()
            .try_into()
            .expect("there are seven columns"),
    });
    align_columns(&std::iter::once(heads).chain(rows).collect::<Vec<_>>())
}

fn summary_row(summary: &RunSummary, now: Timestamp) -> [String; 7] {
    let (all, done) = summary.completed_and_total_tasks();
    let objective: String = single_line(&summary.objective).chars().take(MAX_OBJECTIVE).collect();
    let provider = summary.waiting_for_provider.as_ref();
    let provider = provider.map(|wait| {
        let age = format_age(now.duration_since(wait.since));
        format!("  (waiting for provider {} for {age})", single_line(&wait.model))
    });
    // The wait for a provider is in `provider`.
    let wait = summary.waiting_for.as_ref().filter(|_| provider.is_none());
    let wait = summary.log_damage.as_ref().or(wait);
    let wait = wait.map(|wait| format!("  ({})", single_line(wait)));
    let until = if summary.end.is_some() { summary.updated } else { now };
    [
        summary.run.to_string(),
        format_run_state(summary) + &describe_open_questions(summary),
        format!("{done}/{all}"),
        format_age(now.duration_since(summary.started)),
        format_age(until.duration_since(summary.started)),
        format_cost_or_tokens(summary),
        objective + &provider.unwrap_or_default() + &wait.unwrap_or_default(),
    ]
}

/// Returns `, 2 questions` for a live run that waits for the answers of persons.
fn describe_open_questions(summary: &RunSummary) -> String {
    match summary.open_questions {
        0 => String::new(),
        1 => ", 1 question".into(),
        count => format!(", {count} questions"),
    }
}

fn format_run_state(summary: &RunSummary) -> String {
    if summary.log_damage.is_some() {
        return "log damaged".into();
    }
    match (summary.end, summary.winding_down) {
        (Some(end), _) if summary.is_resumable => format!("{end}, resumable"),
        (Some(end), _) => end.to_string(),
        (None, _) if summary.is_paused && summary.waiting_for_provider.is_some() => "paused: provider".into(),
        (None, _) if summary.is_interrupted => "interrupted".into(),
        (None, _) if summary.is_paused => "paused".into(),
        (None, _) if summary.hold.is_some() => "queued".into(),
        (None, Some(_)) => "winding down".into(),
        (None, None) => match &summary.wait {
            Some(wait) => format!("waiting ({})", wait.kind),
            None => "running".into(),
        },
    }
}

/// Returns the cost, or the number of tokens if no price is known; empty if no model was called.
fn format_cost_or_tokens(summary: &RunSummary) -> String {
    let tokens = ResourceKind::Tokens.amount_used(&summary.usage);
    match (summary.usage.cost_micros, tokens) {
        (0, 0) => String::new(),
        (0, tokens) => separate_thousands(&ResourceKind::Tokens.format_amount(tokens)),
        (cost, _) => ResourceKind::Cost.format_amount(cost),
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use millrace_protocol::ids::Lane;
    use millrace_protocol::plan::{EndReason, RunWait};
    use millrace_protocol::result::Usage;

    use super::*;

    fn now() -> Timestamp {
        "2026-11-22T12:00:00Z".parse().unwrap()
    }

    fn run(name: &str, minutes_ago: i64, end: Option<EndReason>) -> ListedRun {
        let started = now() - SignedDuration::from_mins(minutes_ago);
        let run = RunId::new(name).unwrap();
        let summary = RunSummary {
            run: run.clone(),
            lane: Lane(0),
            objective: "find\nout".into(),
            end,
            started,
            updated: started + SignedDuration::from_secs(75),
            counts: [0, 0, 1, 0, 2, 0, 0, 0, 0],
            waiting: 0,
            open_questions: 0,
            questions: 0,
            archived: false,
            is_resumable: false,
            is_paused: false,
            is_interrupted: false,
            winding_down: None,
            waiting_for_provider: None,
            usage: Usage::default(),
            wait: None,
            waiting_for: None,
            log_damage: None,
            labels: Default::default(),
            session: None,
            session_position: None,
            hold: None,
            queue_place: None,
            spend: None,
            archived_span: None,
        };
        (run, Some(summary))
    }

    #[test]
    fn runs_are_listed_in_a_table_with_age_and_duration() {
        let waiting = (RunId::new("new").unwrap(), None);
        let runs = [run("old", 125, Some(EndReason::Completed)), run("young", 1, None), waiting];
        assert_eq!(
            format_runs(&runs, now()),
            [
                "RUN    STATE                     TASKS  AGE        TIME        USED  OBJECTIVE",
                "old    completed                 2/3    2 h 5 min  1 min 15 s        find out",
                "young  running                   2/3    1 min 0 s  1 min 0 s         find out",
                "new    waiting for a supervisor",
            ]
        );
    }

    #[test]
    fn waiting_runs_say_what_they_wait_for() {
        let list = |wait: Option<RunWaitKind>, is_winding_down: bool| {
            let (_, mut summary) = run("a", 1, None);
            let summary = summary.as_mut().unwrap();
            summary.wait = wait.map(|kind| RunWait { kind, order: None });
            summary.winding_down = is_winding_down.then_some(EndReason::BudgetExhausted);
            format_run_state(summary)
        };
        assert_eq!(list(Some(RunWaitKind::SubAgent), false), "waiting (sub-agent)");
        assert_eq!(list(Some(RunWaitKind::Question), false), "waiting (question)");
        assert_eq!(list(Some(RunWaitKind::Question), true), "winding down");
        assert_eq!(list(None, false), "running");
    }

    #[test]
    fn interrupted_and_damaged_runs_have_states_of_their_own() {
        let (mut interrupted, mut damaged) = (run("a", 3, None), run("b", 2, None));
        interrupted.1.as_mut().unwrap().is_paused = true;
        interrupted.1.as_mut().unwrap().is_interrupted = true;
        damaged.1.as_mut().unwrap().log_damage = Some("decision 57 follows 45".into());
        for ((run, summary), state, shown) in
            [(interrupted, "interrupted", "interrupted"), (damaged, "log_damaged", "log damaged")]
        {
            let line = crate::json::to_value(&RunListLine::new(&run, summary.as_ref()));
            crate::json::tests::assert_matches_schema("list", &line);
            assert_eq!(line["state"], state);
            assert_eq!(line["log_damage"].is_string(), state == "log_damaged", "{line}");
            assert_eq!(format_run_state(&summary.unwrap()), shown);
        }
    }

    #[test]
    fn runs_are_selected_by_state_time_and_number() {
        use clap::Parser;

        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            arguments: ListArguments,
        }

        let names = |options: &[&str]| -> Vec<String> {
            let line = Line::parse_from([&["list"], options].concat());
            let mut all = vec![
                run("a", 300, Some(EndReason::Failed)),
                run("b", 200, Some(EndReason::Completed)),
                run("c", 100, None),
            ];
            let wait = RunWait { kind: RunWaitKind::Time, order: None };
            all[2].1.as_mut().unwrap().wait = Some(wait);
            select_runs(all, &line.arguments).into_iter().map(|(run, _)| run.to_string()).collect()
        };
        assert_eq!(names(&[]), ["a", "b", "c"]);
        assert_eq!(names(&["--state", "failed", "--state", "running"]), ["a", "c"]);
        assert_eq!(names(&["--waiting", "time"]), ["c"]);
        assert_eq!(names(&["--waiting", "question", "--state", "running"]), [""; 0]);
        assert_eq!(names(&["--limit", "2"]), ["b", "c"]);
        assert_eq!(names(&["--since", "2026-11-22T08:00:00Z"]), ["b", "c"]);
        assert_eq!(names(&["--since", "2026-11-22T10:00:00Z", "--limit", "5"]), ["c"]);
        let error = parse_since("soon").unwrap_err();
        assert!(error.contains("neither a time"), "{error}");
    }
}
