//! `millrace token`: creates, lists and revokes tokens of the HTTP API.

use std::time::Duration;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use millrace_client::{Administrator, author_name, expiry_after};
use millrace_protocol::audit::Actor;
use millrace_protocol::tenant::TenantName;
use millrace_protocol::token::{
    ScopeSet, StoredToken, TokenId, TokenState, TokenText, find_token_name_problem,
};
use millrace_runtime::Bus;
use millrace_runtime::clock::parse_duration;
use millrace_runtime::store::tokens::{CreateTokenError, NewToken, read_tokens};

use crate::exit::{CommandError, CommandExit, CommandResult};
use crate::invocation::command_hint;
use crate::json::{CommandOutcome, TokenJson, print_json};
use crate::target::ClusterTarget;
use crate::view::write_stdout_line;

const EXAMPLES: &str = "\
A token is shown once, when it is created. Clients send it in the header `Authorization: Bearer TOKEN`. Each scope allows its
own operations only: read, submit (runs), steer (commands), answer (questions), admin (tokens, limits).

Examples:
  millrace token create ci --scope read,submit --expires 90d
  millrace token create ci --scope read --tenant acme    # for a gateway that serves several tenants
  millrace token list
  millrace token revoke 5kqx3w7vbn2mdlrt";

/// The arguments of `millrace token`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct TokenArguments {
    #[command(subcommand)]
    command: Option<TokenCommand>,
    #[command(flatten)]
    list: ListArguments,
}

/// The arguments of a list of tokens.
#[derive(Args, Debug)]
struct ListArguments {
    /// List expired and revoked tokens too
    #[arg(long)]
    all: bool,
    /// Print a JSON object for each token
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Cluster")]
    target: ClusterTarget,
}

#[derive(Subcommand, Debug)]
enum TokenCommand {
    /// Create a token and print it
    Create {
        /// Name of its holder, which is the author of its commands and answers in the log
        #[arg(value_parser = parse_token_name)]
        name: String,
        /// Operations that it allows, separated by commas: read, submit, steer, answer, admin
        #[arg(long = "scope", value_name = "SCOPES")]
        scopes: ScopeSet,
        /// Time after which it is refused, such as 30d [default: never]
        #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
        expires: Option<Duration>,
        /// Tenant in the token, if the gateway serves several: the name of this account in its `--tenants` folder
        #[arg(long, value_name = "NAME")]
        tenant: Option<TenantName>,
        /// Author of the command, recorded in the audit [default: your login name]
        #[arg(long, value_name = "NAME")]
        by: Option<String>,
        /// Print the outcome as a JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten, next_help_heading = "Cluster")]
        target: ClusterTarget,
    },
    /// List the tokens, as without a subcommand
    List(ListArguments),
    /// Revoke a token; every gateway refuses it within a second
    Revoke {
        /// Id of the token, or the token itself
        #[arg(value_parser = parse_token_id)]
        id: TokenId,
        /// Author of the command, recorded in the audit [default: your login name]
        #[arg(long, value_name = "NAME")]
        by: Option<String>,
        /// Print the outcome as a JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten, next_help_heading = "Cluster")]
        target: ClusterTarget,
    },
}

fn parse_token_name(text: &str) -> Result<String, String> {
    find_token_name_problem(text).map_or_else(|| Ok(text.to_owned()), Err)
}

fn parse_token_id(text: &str) -> Result<TokenId, String> {
    let of_whole = || text.parse::<TokenText>().map(|token| token.id);
    text.parse().or_else(|_| of_whole()).map_err(|_| {
        "this is neither the id of a token (16 characters; `millrace token list` shows it) nor a token"
            .to_owned()
    })
}

/// Creates, lists or revokes tokens.
pub async fn run_command(arguments: TokenArguments) -> CommandResult {
    match arguments.command.unwrap_or(TokenCommand::List(arguments.list)) {
        TokenCommand::Create { name, scopes, expires, tenant, by, json, target } => {
            let by = author_name(by);
            let expires =
                expires.map(expiry_after).transpose().map_err(|why| refused!("--expires: {why}"))?;
            let new = NewToken { name, scopes, expires, by, tenant };
            let (text, stored) = target.read(async |bus| create(bus, new).await).await?;
            if json {
                print_json(&CommandOutcome::token_created(&text, &stored));
            } else {
                // A closed pipe has lost the token; it can be revoked.
                let _ = write_stdout_line(&text.reveal());
                note!(
                    "created the token {} of {} ({}{}); it can't be shown again",
                    stored.id,
                    stored.name,
                    stored.scopes,
                    stored.expires.map_or(String::new(), |at| format!(", until {}", format_time(at)))
                );
            }
        }
        TokenCommand::List(ListArguments { all, json, target }) => {
            let tokens = target.read(async |bus| Ok(read_tokens(bus).await?)).await?;
            show_tokens(&tokens, all, json);
        }
        TokenCommand::Revoke { id, by, json, target } => {
            let by = author_name(by);
            let revoked = target.read(async |bus| revoke(bus, &id, by).await).await?;
            match json {
                true => print_json(&CommandOutcome::TokenRevoked { id: &revoked.id, name: &revoked.name }),
                false => note!("revoked the token {id} of {}", revoked.name),
            }
        }
    }
    Ok(CommandExit::Completed)
}

async fn create(bus: &Bus, new: NewToken) -> Result<(TokenText, StoredToken), CommandError> {
    let administrator = Administrator::new(bus, Actor::local(new.by.clone()));
    administrator.create_token(new).await.map_err(|error| match error {
        CreateTokenError::TooMany => CommandError::invalid_input(error),
        CreateTokenError::Fault(fault) => fault.into(),
    })
}

async fn revoke(bus: &Bus, id: &TokenId, by: String) -> Result<StoredToken, CommandError> {
    let unknown = || {
        let hint = command_hint("token list");
        refused!("there is no token {id}; `{hint}` lists them")
    };
    Administrator::new(bus, Actor::local(by)).revoke_token(id).await?.ok_or_else(unknown)
}

fn show_tokens(tokens: &[StoredToken], all: bool, json: bool) {
    let now = Timestamp::now();
    let shown = tokens.iter().filter(|token| all || token.state_at(now) == TokenState::Active);
    let mut count = 0;
    for token in shown {
        count += 1;
        if json {
            print_json(&TokenJson::new(token, now));
        } else if write_stdout_line(&format_token_line(token, now)).is_err() {
            // A closed pipe ends the listing.
            return;
        }
    }
    if count == 0 && !json {
        let hint = command_hint("token create NAME --scope read");
        note!("there are no tokens; create one with `{hint}`");
    }
}

fn format_token_line(token: &StoredToken, now: Timestamp) -> String {
    let until = token.expires.map_or("does not expire".into(), |at| format!("until {}", format_time(at)));
    let state = match (token.state_at(now), &token.revoked) {
        (TokenState::Revoked, Some(revoked)) => {
            format!("revoked {} by {}", format_time(revoked.at), revoked.by)
        }
        (TokenState::Expired, _) => format!("expired, {until}"),
        (TokenState::Active | TokenState::Revoked, _) => until,
    };
    let StoredToken { id, name, scopes, created, created_by, .. } = token;
    format!("{id}  {name:20}  {scopes:30}  {state}, created {} by {created_by}", format_time(*created))
}

fn format_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_named_by_their_id_or_text() {
        let text = TokenText::from_random(None, [3; 10], [4; 32]);
        assert_eq!(parse_token_id(text.id.as_str()), Ok(text.id.clone()));
        assert_eq!(parse_token_id(&text.reveal()), Ok(text.id.clone()));
        let error = parse_token_id("ci").unwrap_err();
        assert!(error.contains("token list"), "{error}");
    }

    #[test]
    fn a_token_is_shown_with_its_state() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let token = StoredToken {
            id: TokenText::from_random(None, [3; 10], [4; 32]).id,
            name: "ci".into(),
            scopes: "read,submit".parse().unwrap(),
            sha256: String::new(),
            created: at(0),
            created_by: "ann".into(),
            expires: Some(at(86_400)),
            revoked: None,
        };
        let line = format_token_line(&token, at(1));
        assert!(line.contains("read,submit ") && line.contains("until 1970-01-02 00:00 UTC"), "{line}");
        assert!(format_token_line(&token, at(86_400)).contains("expired, until 1970-01-02"));
    }
}
