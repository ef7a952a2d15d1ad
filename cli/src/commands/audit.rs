//! `millrace audit`: lists administrative actions.

use std::time::Duration;

use clap::Args;
use millrace_protocol::audit::{Actor, AuditAction, AuditRecord};
use millrace_protocol::retention::PruneSelection;
use millrace_runtime::clock::format_duration;
use millrace_runtime::store::tokens::read_actions;

use crate::exit::{CommandExit, CommandResult};
use crate::json::{AuditLine, print_json};
use crate::target::ClusterTarget;
use crate::view::write_stdout_line;

const EXAMPLES: &str = "\
What was done to a run, and by whom, is in its log: `millrace show --json RUN`, `millrace watch --json RUN`.

Examples:
  millrace audit
  millrace audit --json";

/// The arguments of `millrace audit`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct AuditArguments {
    /// List only actions after this sequence
    #[arg(long, value_name = "SEQUENCE", default_value_t = 0)]
    after: u64,
    /// Print a JSON object for each action
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Cluster")]
    target: ClusterTarget,
}

/// Lists the actions, oldest first.
pub async fn run_command(arguments: AuditArguments) -> CommandResult {
    let after = arguments.after;
    let actions = arguments.target.read(async |bus| Ok(read_actions(bus, after, usize::MAX).await?)).await?;
    for (sequence, record) in &actions {
        if arguments.json {
            print_json(&AuditLine::new(*sequence, record));
        } else if write_stdout_line(&format_action(record)).is_err() {
            // A closed pipe ends the listing.
            break;
        }
    }
    Ok(CommandExit::Completed)
}

fn format_action(record: &AuditRecord) -> String {
    let AuditRecord { at, by: Actor { name, token, address }, action } = record;
    let token = token.as_ref().map_or(String::new(), |token| format!(" (token {token})"));
    let address = address.as_ref().map_or(String::new(), |address| format!(" from {address}"));
    let what = match action {
        AuditAction::TokenCreated { token_name, scopes, expires } => {
            let until = expires.map_or(String::new(), |at| format!(" until {}", at.strftime("%Y-%m-%d")));
            format!("created a token of {token_name} ({scopes}){until}")
        }
        AuditAction::TokenRevoked { token_id, token_name } => {
            format!("revoked the token {token_id} of {token_name}")
        }
        AuditAction::LimitSet { model, requests, tokens } => {
            let part = |number: &Option<u64>, what: &str| number.map(|number| format!("{number} {what}"));
            let parts: Vec<String> =
                [part(requests, "requests"), part(tokens, "tokens")].into_iter().flatten().collect();
            format!("limited {model} to {} per minute", parts.join(" and "))
        }
        AuditAction::WebhookCreated { webhook, url } => format!("created webhook {webhook} for {url}"),
        AuditAction::WebhookChanged { webhook, url } => format!("changed webhook {webhook} for {url}"),
        AuditAction::WebhookDeleted { webhook, url } => format!("deleted webhook {webhook} for {url}"),
        AuditAction::WebhookSecretReplaced { webhook } => format!("replaced the secret of webhook {webhook}"),
        AuditAction::LimitCleared { model } => format!("removed the limit of {model}"),
        AuditAction::RunCapsSet { caps } => format!("limited the number of runs ({caps})"),
        AuditAction::RunDeletionRequested { run } => format!("requested the deletion of run {run}"),
        AuditAction::PruneRequested { selection, runs } => {
            format!("requested the deletion of {runs} runs that ended {}", describe_selection(selection))
        }
        AuditAction::RetentionRuleSet { rule, selection } => {
            format!("set the retention rule {rule}: runs that ended {}", describe_selection(selection))
        }
        AuditAction::RetentionRuleRemoved { rule } => format!("removed the retention rule {rule}"),
        AuditAction::BlobGraceSet { blob_grace_ms } => {
            let grace = format_duration(Duration::from_millis(*blob_grace_ms));
            format!("changed the time for which unused blobs stay to {grace}")
        }
        AuditAction::SweepRequested => "requested a sweep of unused blobs".into(),
    };
    format!("{}  {name}{token}{address} {what}", at.strftime("%Y-%m-%d %H:%M:%S UTC"))
}

/// Describes the runs that a selection selects.
fn describe_selection(PruneSelection { older_than, labels, states }: &PruneSelection) -> String {
    let labels = labels.iter().map(|label| format!("label {label}"));
    let states = states.iter().map(|state| format!("state {}", state.name()));
    let age = format!("more than {} ago", format_duration(*older_than));
    [age].into_iter().chain(labels).chain(states).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_is_shown_with_its_author() {
        let record = AuditRecord {
            at: jiff::Timestamp::UNIX_EPOCH,
            by: Actor { name: "ann".into(), token: None, address: Some("10.0.0.1".into()) },
            action: AuditAction::LimitSet { model: "openai:*".into(), requests: Some(5), tokens: None },
        };
        assert_eq!(
            format_action(&record),
            "1970-01-01 00:00:00 UTC  ann from 10.0.0.1 limited openai:* to 5 requests per minute"
        );
    }
}
