//! `millrace limits`: shows or changes the rate limits of models in a cluster, and their use in the last minute.

use std::time::Duration;

use anyhow::anyhow;
use clap::{Args, Subcommand};
use millrace_client::{Administrator, author_name};
use millrace_plan_file::limits::{describe_valid_amount, parse_amount};
use millrace_protocol::admission::AdmissionCaps;
use millrace_protocol::audit::Actor;
use millrace_protocol::plan::ResourceKind;
use millrace_runtime::Bus;
use millrace_runtime::store::admission;
use millrace_runtime::store::rate_limits::{self, LimitName, LimitStatus, RateLimit};
use tokio_util::sync::CancellationToken;

use crate::exit::{CommandError, CommandExit, CommandResult};
use crate::invocation::command_hint;
use crate::json::{Admission, CommandOutcome, LimitJson, print_json};
use crate::target::ClusterTarget;
use crate::view::write_stdout_line;

/// Refresh interval of `--watch`.
const REFRESH: Duration = Duration::from_secs(1);

const EXAMPLES: &str = "\
All workers, critics and planners of the cluster share these limits.

Examples:
  millrace limits
  millrace limits set openai:gpt-5.2 --requests 60 --tokens 200000
  millrace limits clear openai:gpt-5.2
  millrace limits runs --running 10 --waiting 100";

/// The arguments of `millrace limits`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct LimitsArguments {
    #[command(subcommand)]
    command: Option<LimitChange>,
    /// Print a JSON object for each limit
    #[arg(long)]
    json: bool,
    /// Print the limits again each second until interrupted
    #[arg(long)]
    watch: bool,
    #[command(flatten, next_help_heading = "Cluster")]
    target: ClusterTarget,
}

#[derive(Subcommand, Debug)]
enum LimitChange {
    /// Set the limits of a model per minute, replacing earlier ones: requests, tokens or both
    #[command(override_usage = "millrace limits set [OPTIONS] <MODEL>")]
    Set {
        /// Model (`provider:model`), or all models of a provider (`provider:*`)
        #[arg(value_parser = parse_limited_model)]
        model: LimitName,
        /// Requests per minute [default: unlimited]
        #[arg(long, value_name = "N", value_parser = parse_rate, required_unless_present = "tokens")]
        requests: Option<u64>,
        /// Tokens per minute, input and output, such as 200k [default: unlimited]
        #[arg(long, value_name = "N", value_parser = parse_rate)]
        tokens: Option<u64>,
        /// Author of the change, recorded in the audit [default: your login name]
        #[arg(long, value_name = "NAME")]
        by: Option<String>,
        /// Print the outcome as a JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten, next_help_heading = "Cluster")]
        target: ClusterTarget,
    },
    /// Show or set the maximum numbers of running and of waiting runs
    #[command(override_usage = "millrace limits runs [OPTIONS]")]
    Runs {
        /// Runs that may run at once, or `unlimited`. Others wait in the order of their submissions
        #[arg(long, value_name = "N", value_parser = parse_cap)]
        running: Option<RunCap>,
        /// Runs that may wait for a place, or `unlimited`. Others are refused
        #[arg(long, value_name = "N", value_parser = parse_cap)]
        waiting: Option<RunCap>,
        /// Author of the change, recorded in the audit [default: your login name]
        #[arg(long, value_name = "NAME")]
        by: Option<String>,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten, next_help_heading = "Cluster")]
        target: ClusterTarget,
    },
    /// Remove the limits of a model, and the pause that its provider requested
    Clear {
        /// Model (`provider:model`), or all models of a provider (`provider:*`)
        model: LimitName,
        /// Author of the change, recorded in the audit [default: your login name]
        #[arg(long, value_name = "NAME")]
        by: Option<String>,
        /// Print the outcome as a JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten, next_help_heading = "Cluster")]
        target: ClusterTarget,
    },
}

/// Parses the name of a limit. A limit on an unknown provider would hold for nothing.
fn parse_limited_model(text: &str) -> anyhow::Result<LimitName> {
    let name = text.parse::<LimitName>()?;
    millrace_models::provider::parse_model_name(text)?;
    Ok(name)
}

/// Parses a number per minute, as an amount of a budget.
fn parse_rate(text: &str) -> anyhow::Result<u64> {
    let counted = ResourceKind::Tokens;
    parse_amount(counted, text).ok_or_else(|| anyhow!("expected {}", describe_valid_amount(counted)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RunCap(Option<u32>);

fn parse_cap(text: &str) -> anyhow::Result<RunCap> {
    match text {
        "unlimited" => Ok(RunCap(None)),
        _ => Ok(RunCap(Some(text.parse().map_err(|_| anyhow!("use a number, or \"unlimited\""))?))),
    }
}

/// Shows or changes the limits.
pub async fn run_command(arguments: LimitsArguments, shutdown: CancellationToken) -> CommandResult {
    match arguments.command {
        Some(LimitChange::Set { model, requests, tokens, by, json, target }) => {
            let allowed = RateLimit { requests, tokens };
            target.read(async |bus| Ok(administrator(bus, by).set_limit(&model, allowed).await?)).await?;
            let name = model.to_string();
            if json {
                print_json(&CommandOutcome::LimitSet { name: &name, requests, tokens });
            } else {
                note!("{model} is limited to {} per minute", describe_rate_limit(&allowed));
            }
            Ok(CommandExit::Completed)
        }
        Some(LimitChange::Clear { model, by, json, target }) => {
            match target.read(async |bus| Ok(administrator(bus, by).remove_limit(&model).await?)).await? {
                true if json => print_json(&CommandOutcome::LimitCleared { name: &model.to_string() }),
                true => note!("{model} is no longer limited"),
                false => return Err(refused!("{model} has no limit")),
            }
            Ok(CommandExit::Completed)
        }
        Some(LimitChange::Runs { running, waiting, by, json, target }) => {
            target.read(async |bus| show_or_set_caps(bus, (running, waiting), by, json).await).await
        }
        None => {
            let (json, watch) = (arguments.json, arguments.watch);
            arguments.target.read(async |bus| show_limits(bus, json, watch, &shutdown).await).await
        }
    }
}

/// Makes changes on behalf of a user of this machine.
fn administrator(bus: &Bus, by: Option<String>) -> Administrator<'_> {
    Administrator::new(bus, Actor::local(author_name(by)))
}

/// Sets those caps that are given; shows all if there is none.
async fn show_or_set_caps(
    bus: &Bus,
    (running, waiting): (Option<RunCap>, Option<RunCap>),
    by: Option<String>,
    json: bool,
) -> CommandResult {
    let known = admission::read_caps(bus).await?.caps;
    if running.is_none() && waiting.is_none() {
        let board = admission::read_board(bus).await?;
        let Admission { running_runs, waiting_runs, .. } = Admission::new(&known, &board);
        if json {
            print_json(&Admission::new(&known, &board));
        } else if write_stdout_line(&format!("{known}  (now {running_runs} and {waiting_runs})")).is_err() {
            // A closed pipe.
        }
        return Ok(CommandExit::Completed);
    }
    let max_running_runs = running.map_or(known.max_running_runs, |RunCap(cap)| cap);
    // Without a cap on running runs, none waits.
    let known_waiting = known.max_waiting_runs.filter(|_| max_running_runs.is_some());
    let max_waiting_runs = waiting.map_or(known_waiting, |RunCap(cap)| cap);
    let caps = AdmissionCaps { max_running_runs, max_waiting_runs };
    let caps = caps.validate().map_err(CommandError::invalid_input)?;
    administrator(bus, by).set_caps(caps).await?;
    if json {
        print_json(&CommandOutcome::RunCapsSet { max_running_runs, max_waiting_runs });
    } else {
        note!("{caps}");
    }
    Ok(CommandExit::Completed)
}

async fn show_limits(bus: &Bus, json: bool, watch: bool, shutdown: &CancellationToken) -> CommandResult {
    loop {
        let standings = rate_limits::read_rate_limit_statuses(bus).await?;
        if standings.is_empty() && !json {
            note!(
                "no model has a rate limit; set one with `{}`",
                command_hint("limits set MODEL --requests N --tokens N")
            );
        }
        for standing in &standings {
            if json {
                print_json(&LimitJson::from(standing));
            } else {
                // A closed pipe ends the listing.
                if write_stdout_line(&format_limit_line(standing)).is_err() {
                    return Ok(CommandExit::Completed);
                }
            }
        }
        if !watch {
            return Ok(CommandExit::Completed);
        }
        tokio::select! {
            () = tokio::time::sleep(REFRESH) => {}
            () = shutdown.cancelled() => return Ok(CommandExit::Completed),
        }
    }
}

/// Returns how much of a limit is left this minute.
fn remaining_this_minute(allowed: Option<u64>, used: u64) -> Option<u64> {
    allowed.map(|allowed| allowed.saturating_sub(used))
}

fn format_limit_line(standing: &LimitStatus) -> String {
    let LimitStatus { name, limit: allowed, requests, tokens, paused_until } = standing;
    let part = |what: &str, used: u64, allowed: Option<u64>| match remaining_this_minute(allowed, used) {
        Some(left) => format!("{what} {used} of {} per minute, {left} left", allowed.unwrap_or_default()),
        None => format!("{what} {used} in the last minute, unlimited"),
    };
    let paused = paused_until
        .map_or(String::new(), |until| format!("  paused until {}", until.strftime("%Y-%m-%d %H:%M:%S UTC")));
    format!(
        "{name:30}  {}  {}{paused}",
        part("requests", *requests, allowed.requests),
        part("tokens", *tokens, allowed.tokens)
    )
}

fn describe_rate_limit(allowed: &RateLimit) -> String {
    let part = |number: Option<u64>, what: &str| number.map(|number| format!("{number} {what}"));
    let parts = [part(allowed.requests, "requests"), part(allowed.tokens, "tokens")];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::to_value;

    #[test]
    fn a_limit_is_shown_with_its_use_and_remainder() {
        let standing = LimitStatus {
            name: "openai:x".into(),
            limit: RateLimit { requests: Some(60), tokens: None },
            requests: 12,
            tokens: 3_400,
            paused_until: Some("2026-11-22T01:02:03Z".parse().unwrap()),
        };
        assert_eq!(
            format_limit_line(&standing),
            "openai:x                        requests 12 of 60 per minute, 48 left  tokens 3400 in the last minute, \
             unlimited  paused until 2026-11-22 01:02:03 UTC"
        );
        let printed = to_value(&LimitJson::from(&standing));
        assert_eq!(
            (&printed["requests"]["left"], &printed["tokens"]["left"]),
            (&48.into(), &serde_json::Value::Null)
        );
    }
}
