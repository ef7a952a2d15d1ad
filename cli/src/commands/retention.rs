//! `millrace retention`: shows and changes the rules by which supervisors delete runs.

use std::time::Duration;

use clap::{Args, Subcommand};
use millrace_client::administration::read_retention;
use millrace_client::{Administrator, author_name};
use millrace_protocol::audit::Actor;
use millrace_protocol::ids::RunId;
use millrace_protocol::retention::{MIN_BLOB_GRACE, SweepSettings};
use millrace_runtime::Bus;
use millrace_runtime::clock::{format_duration, parse_duration};

use crate::commands::prune::SelectionArguments;
use crate::exit::{CommandError, CommandExit, CommandResult};
use crate::invocation::complete_hints;
use crate::json::{CommandOutcome, RetentionJson, print_json};
use crate::target::ClusterTarget;
use crate::view::{print_stderr_line, print_stdout_line};

const EXAMPLES: &str = "\
Supervisors apply the rules every five minutes. A run is deleted if any rule selects it and it can no longer be resumed:
seven days after its end at the latest. `millrace delete` and `millrace prune` do not wait for that.

Examples:
  millrace retention
  millrace retention set month --older-than 30d
  millrace retention set failed --older-than 3d --state failed --label team=search
  millrace retention remove month
  millrace retention sweep";

/// The arguments of `millrace retention`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct RetentionArguments {
    #[command(subcommand)]
    command: Option<RetentionCommand>,
    #[command(flatten)]
    common: CommonArguments,
}

#[derive(Args, Debug)]
struct CommonArguments {
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Cluster")]
    target: ClusterTarget,
}

#[derive(Subcommand, Debug)]
enum RetentionCommand {
    /// Set a rule, replacing an earlier one of its name
    #[command(override_usage = "millrace retention set [OPTIONS] --older-than <DURATION> <NAME>")]
    Set {
        /// Name of the rule
        name: RunId,
        #[command(flatten)]
        selection: SelectionArguments,
        /// Author, recorded with the rule [default: your login name]
        #[arg(long, value_name = "NAME")]
        by: Option<String>,
        #[command(flatten)]
        common: CommonArguments,
    },
    /// Remove a rule
    Remove {
        /// Name of the rule
        name: RunId,
        /// Author of the change, recorded in the audit [default: your login name]
        #[arg(long, value_name = "NAME")]
        by: Option<String>,
        #[command(flatten)]
        common: CommonArguments,
    },
    /// Set how long blobs stay in the store to which nothing refers
    Grace {
        /// At least 1h
        #[arg(value_parser = parse_grace)]
        duration: Duration,
        /// Author of the change, recorded in the audit [default: your login name]
        #[arg(long, value_name = "NAME")]
        by: Option<String>,
        #[command(flatten)]
        common: CommonArguments,
    },
    /// Sweep unreferenced blobs now instead of within the next hours
    Sweep {
        /// Author of the change, recorded in the audit [default: your login name]
        #[arg(long, value_name = "NAME")]
        by: Option<String>,
        #[command(flatten)]
        common: CommonArguments,
    },
}

fn parse_grace(text: &str) -> Result<Duration, String> {
    let grace = parse_duration(text)?;
    match grace >= MIN_BLOB_GRACE {
        true => Ok(grace),
        false => Err(format!("{text:?} is too short; use at least {}", format_duration(MIN_BLOB_GRACE))),
    }
}

/// Shows or changes the rules.
pub async fn run_command(arguments: RetentionArguments) -> CommandResult {
    let RetentionArguments { command, common } = arguments;
    let Some(command) = command else {
        return common.target.read(async |bus| show_retention(bus, common.json).await).await;
    };
    match command {
        RetentionCommand::Set { name, selection, by, common } => {
            let selection = selection.into();
            change(&common, by, CommandOutcome::RetentionRuleSet { name: name.as_str() }, async |cluster| {
                Ok(cluster.set_retention_rule(&name, selection).await?)
            })
            .await
        }
        RetentionCommand::Remove { name, by, common } => {
            change(
                &common,
                by,
                CommandOutcome::RetentionRuleRemoved { name: name.as_str() },
                async |cluster| match cluster.remove_retention_rule(&name).await? {
                    true => Ok(()),
                    false => Err(refused!("there is no retention rule {name}")),
                },
            )
            .await
        }
        RetentionCommand::Grace { duration, by, common } => {
            let settings = SweepSettings::with_blob_grace(duration);
            change(
                &common,
                by,
                CommandOutcome::BlobGraceSet { blob_grace_ms: settings.blob_grace_ms },
                async |cluster| Ok(cluster.set_sweep_settings(&settings).await?),
            )
            .await
        }
        RetentionCommand::Sweep { by, common } => {
            change(&common, by, CommandOutcome::SweepRequested, async |cluster| {
                Ok(cluster.request_sweep().await?)
            })
            .await
        }
    }
}

/// Makes a change and prints its outcome.
async fn change(
    common: &CommonArguments,
    by: Option<String>,
    outcome: CommandOutcome<'_>,
    write: impl AsyncFnOnce(Administrator<'_>) -> Result<(), CommandError>,
) -> CommandResult {
    let write = async |bus: &Bus| write(Administrator::new(bus, Actor::local(author_name(by)))).await;
    common.target.command(write).await?;
    match common.json {
        true => print_json(&outcome),
        false => print_stderr_line("millrace: done; supervisors act on it within minutes"),
    }
    Ok(CommandExit::Completed)
}

async fn show_retention(bus: &Bus, json: bool) -> CommandResult {
    let overview = RetentionJson::from(read_retention(bus).await?);
    if json {
        print_json(&overview);
        return Ok(CommandExit::Completed);
    }
    let age = |millis| format_duration(Duration::from_millis(millis));
    for rule in &overview.rules {
        let labels = rule.labels.iter().map(|label| format!("  label {label}"));
        let states = rule.states.iter().map(|state| format!("  {state}"));
        let conditions: String = labels.chain(states).collect();
        print_stdout_line(&format!(
            "{:20}  older than {}{conditions}  (by {})",
            rule.name,
            age(rule.older_than_ms),
            rule.by
        ));
    }
    if overview.rules.is_empty() {
        print_stderr_line(&complete_hints(
            "millrace: there are no retention rules; runs are kept until `millrace delete` or `millrace prune`",
        ));
    }
    print_stdout_line(&format!("blobs without references stay for {}", age(overview.blob_grace_ms)));
    if overview.deletions_in_progress > 0 {
        print_stdout_line(&format!("{} runs are being deleted", overview.deletions_in_progress));
    }
    if let Some(sweep) = &overview.last_sweep {
        let report = &sweep.report;
        print_stdout_line(&format!(
            "the last sweep removed {} of {} blobs, {} bytes; {} unreferenced ones are too young",
            report.removed, report.blobs, report.removed_bytes, report.too_young
        ));
    }
    Ok(CommandExit::Completed)
}
