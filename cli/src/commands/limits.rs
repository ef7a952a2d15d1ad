//! `millrace limits`: the rates that the models of a cluster may be asked at, and what is used of them.

use std::io::Write;
use std::time::Duration;

use anyhow::anyhow;
use clap::{Args, Subcommand};
use millrace_runtime::Bus;
use millrace_runtime::limits::{self, Allowed, LimitName, Standing};
use tokio_util::sync::CancellationToken;

use crate::client::{Reading, Target};
use crate::exit::{Exit, Stop};
use crate::view::{emit, say};

/// How often a watched listing is printed.
const BEAT: Duration = Duration::from_secs(1);

/// The arguments of `millrace limits`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Change>,
    /// Print a JSON object for each limit
    #[arg(long)]
    json: bool,
    /// Print them again each second, until interrupted
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Subcommand, Debug)]
enum Change {
    /// Set what is allowed a minute, in the place of what was set before
    Set {
        /// The model (`provider:model`), or all of a provider (`provider:*`)
        model: LimitName,
        /// Requests a minute [default: not limited]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), required_unless_present = "tokens")]
        requests: Option<u64>,
        /// Tokens a minute, in and out [default: not limited]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        tokens: Option<u64>,
        #[command(flatten)]
        target: Target,
    },
    /// Lift a limit, and the pause that a provider asked for
    Clear {
        /// The model (`provider:model`), or all of a provider (`provider:*`)
        model: LimitName,
        #[command(flatten)]
        target: Target,
    },
}

/// Shows or changes the limits.
pub async fn command(arguments: Arguments, shutdown: CancellationToken) -> Result<Exit, Stop> {
    match arguments.command {
        Some(Change::Set { model, requests, tokens, target }) => {
            let allowed = Allowed { requests, tokens };
            let reading = Reading::open(&target).await?;
            reading.with(async |bus| Ok(limits::set(bus, &model, allowed).await?)).await?;
            say(&format!("millrace: {model} is limited to {} a minute", in_words(&allowed)));
            Ok(Exit::Completed)
        }
        Some(Change::Clear { model, target }) => {
            let reading = Reading::open(&target).await?;
            match reading.with(async |bus| Ok(limits::clear(bus, &model).await?)).await? {
                true => say(&format!("millrace: {model} is not limited any more")),
                false => return Err(Stop::refused(anyhow!("{model} has no limit"))),
            }
            Ok(Exit::Completed)
        }
        None => {
            let reading = Reading::open(&arguments.target).await?;
            let (json, watch) = (arguments.json, arguments.watch);
            reading.with(async |bus| show(bus, json, watch, &shutdown).await).await
        }
    }
}

async fn show(bus: &Bus, json: bool, watch: bool, shutdown: &CancellationToken) -> Result<Exit, Stop> {
    loop {
        let standings = limits::standings(bus).await?;
        if standings.is_empty() && !json {
            say("millrace: no model is limited; `millrace limits set MODEL --requests N --tokens N` does it");
        }
        for standing in &standings {
            if json {
                emit(&described(standing));
            } else {
                // A closed output has seen enough.
                if writeln!(std::io::stdout(), "{}", line(standing)).is_err() {
                    return Ok(Exit::Completed);
                }
            }
        }
        if !watch {
            return Ok(Exit::Completed);
        }
        tokio::select! {
            () = tokio::time::sleep(BEAT) => {}
            () = shutdown.cancelled() => return Ok(Exit::Completed),
        }
    }
}

/// What is left of an allowance this minute.
fn headroom(allowed: Option<u64>, used: u64) -> Option<u64> {
    allowed.map(|allowed| allowed.saturating_sub(used))
}

fn line(standing: &Standing) -> String {
    let Standing { name, allowed, requests, tokens, paused_until } = standing;
    let part = |what: &str, used: u64, allowed: Option<u64>| match headroom(allowed, used) {
        Some(left) => format!("{what} {used} of {} a minute, {left} left", allowed.unwrap_or_default()),
        None => format!("{what} {used} in the last minute, not limited"),
    };
    let paused = paused_until
        .map_or(String::new(), |until| format!("  paused until {}", until.strftime("%Y-%m-%d %H:%M:%S UTC")));
    format!(
        "{name:30}  {}  {}{paused}",
        part("requests", *requests, allowed.requests),
        part("tokens", *tokens, allowed.tokens)
    )
}

fn described(standing: &Standing) -> serde_json::Value {
    let Standing { name, allowed, requests, tokens, paused_until } = standing;
    let part = |used: u64, allowed: Option<u64>| serde_json::json!({ "allowed": allowed, "used": used, "headroom": headroom(allowed, used) });
    serde_json::json!({
        "name": name,
        "requests": part(*requests, allowed.requests),
        "tokens": part(*tokens, allowed.tokens),
        "paused_until": paused_until.map(|until| until.to_string()),
    })
}

fn in_words(allowed: &Allowed) -> String {
    let part = |number: Option<u64>, what: &str| number.map(|number| format!("{number} {what}"));
    let parts = [part(allowed.requests, "requests"), part(allowed.tokens, "tokens")];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_shown_with_what_is_used_and_left() {
        let standing = Standing {
            name: "openai:x".into(),
            allowed: Allowed { requests: Some(60), tokens: None },
            requests: 12,
            tokens: 3_400,
            paused_until: Some("2026-11-22T01:02:03Z".parse().unwrap()),
        };
        assert_eq!(
            line(&standing),
            "openai:x                        requests 12 of 60 a minute, 48 left  tokens 3400 in the last minute, not \
             limited  paused until 2026-11-22 01:02:03 UTC"
        );
        assert_eq!(described(&standing)["requests"]["headroom"], 48);
        assert_eq!(described(&standing)["tokens"]["headroom"], serde_json::Value::Null);
    }
}
