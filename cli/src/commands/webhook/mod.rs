//! `millrace webhook`: creates, lists, changes, tests and deletes webhooks, and shows their deliveries.

mod text;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand, ValueEnum};
use jiff::SignedDuration;
use millrace_address_policy::{Cidr, ReceiverPolicy};
use millrace_client::author_name;
use millrace_client::webhooks::{self, NewWebhook, SECRET_OVERLAP, WebhookChange, WebhookError};
use millrace_protocol::audit::Actor;
use millrace_protocol::labels::LabelSelector;
use millrace_protocol::webhook::{SigningSecret, StoredDelivery, StoredWebhook, WebhookEventKind};
use millrace_runtime::clock::{format_duration, parse_duration};
use millrace_runtime::store::webhooks::read_webhooks;
use millrace_runtime::{Bus, clock};

use crate::exit::{CommandError, CommandExit, CommandResult};
use crate::invocation::command_hint;
use crate::json::{CommandOutcome, DeliveryJson, DeliveryStateName, WebhookJson, print_json};
use crate::target::{ClusterTarget, ReadConnection};
use crate::view::{print_stderr_line, print_stdout_line, write_stdout_line};

/// The interval at which a delivery is read whose outcome is awaited.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

const EXAMPLES: &str = "\
A webhook sends a message with the ids of an event to a URL, signed as Standard Webhooks defines it. `millrace serve` delivers. The
secret is shown once, when it is created.

Examples:
  millrace webhook add https://example.com/millrace --event run_ended --label team=search
  millrace webhook test wh_0198c2d4e7f17b3c9a51d2c0a4b6e8f0
  millrace webhook deliveries wh_0198c2d4e7f17b3c9a51d2c0a4b6e8f0 --state failed";

/// The arguments of `millrace webhook`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct WebhookArguments {
    #[command(subcommand)]
    command: Option<WebhookCommand>,
    #[command(flatten)]
    common: CommonArguments,
}

#[derive(Args, Debug)]
struct CommonArguments {
    /// Print JSON objects
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Cluster")]
    target: ClusterTarget,
}

/// The arguments of a subcommand that changes something.
#[derive(Args, Debug)]
struct ChangeArguments {
    /// Author of the command, recorded in the audit [default: your login name]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    #[command(flatten)]
    common: CommonArguments,
}

/// The receivers that are allowed, as those of `millrace serve`.
#[derive(Args, Debug)]
struct ReceiverArguments {
    /// Network outside the public internet in which the receiver may be, such as 10.1.0.0/16; `millrace serve` needs it too
    #[arg(
        long,
        env = "MILLRACE_ALLOW_PRIVATE_WEBHOOKS",
        hide_env_values = true,
        value_name = "NETWORK",
        value_delimiter = ','
    )]
    allow_private_webhooks: Vec<Cidr>,
}

impl ReceiverArguments {
    fn parse_url(&self, url: &str) -> Result<url::Url, CommandError> {
        let policy = ReceiverPolicy::new(self.allow_private_webhooks.clone());
        policy.parse_url(url).map_err(|error| refused!(error))
    }
}

#[derive(Subcommand, Debug)]
enum WebhookCommand {
    /// Create a webhook and print its secret
    Add {
        /// URL of the receiver
        url: String,
        /// Event that it tells of: run_started, run_paused, run_resumed, run_ended, question_asked, task_failed, budget_low; may be
        /// repeated [default: run_ended, question_asked, budget_low]
        #[arg(long = "event", value_name = "EVENT", value_delimiter = ',')]
        events: Vec<WebhookEventKind>,
        /// Only events of runs with this label, or any value of it; may be repeated
        #[arg(long = "label", value_name = "NAME[=VALUE]")]
        labels: Vec<LabelSelector>,
        /// Description for people
        #[arg(long, value_name = "TEXT", default_value = "")]
        description: String,
        /// File with the secret, `-` for standard input [default: a new secret]
        #[arg(long, value_name = "FILE")]
        secret_file: Option<PathBuf>,
        #[command(flatten)]
        receivers: ReceiverArguments,
        #[command(flatten)]
        change: ChangeArguments,
    },
    /// List the webhooks, as without a subcommand
    List(CommonArguments),
    /// Show a webhook
    Show {
        /// Id of the webhook
        id: String,
        #[command(flatten)]
        common: CommonArguments,
    },
    /// Change the URL, events, labels or description of a webhook
    Update {
        /// Id of the webhook
        id: String,
        /// URL of the receiver
        #[arg(long, value_name = "URL")]
        url: Option<String>,
        /// Event that it tells of, instead of those before; may be repeated
        #[arg(long = "event", value_name = "EVENT", value_delimiter = ',')]
        events: Vec<WebhookEventKind>,
        /// Only events of runs with this label, instead of those before; may be repeated
        #[arg(long = "label", value_name = "NAME[=VALUE]", conflicts_with = "all_labels")]
        labels: Vec<LabelSelector>,
        /// Events of all runs, whatever their labels
        #[arg(long)]
        all_labels: bool,
        /// Description for people
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        #[command(flatten)]
        receivers: ReceiverArguments,
        #[command(flatten)]
        change: ChangeArguments,
    },
    /// Disable a webhook: events until it is resumed are not sent
    Pause {
        /// Id of the webhook
        id: String,
        #[command(flatten)]
        change: ChangeArguments,
    },
    /// Enable a webhook that was paused, or that failed for too long
    Resume {
        /// Id of the webhook
        id: String,
        #[command(flatten)]
        change: ChangeArguments,
    },
    /// Replace the secret of a webhook and print the new one
    Rotate {
        /// Id of the webhook
        id: String,
        /// File with the new secret, `-` for standard input [default: a new secret]
        #[arg(long, value_name = "FILE")]
        secret_file: Option<PathBuf>,
        /// Time for which the earlier secret signs messages too, at most 30d [default: 1d]
        #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
        keep_earlier_for: Option<Duration>,
        #[command(flatten)]
        change: ChangeArguments,
    },
    /// Delete a webhook; its waiting deliveries end
    Delete {
        /// Id of the webhook
        id: String,
        #[command(flatten)]
        change: ChangeArguments,
    },
    /// List the deliveries of a webhook, last changes first
    Deliveries {
        /// Id of the webhook
        id: String,
        /// Only deliveries in this state
        #[arg(long, value_name = "STATE")]
        state: Option<StateArgument>,
        /// Maximum number of deliveries
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: usize,
        #[command(flatten)]
        common: CommonArguments,
    },
    /// Deliver a message again, with the same id
    Redeliver {
        /// Id of the webhook
        id: String,
        /// Id of the delivery
        delivery: String,
        #[command(flatten)]
        attempt: AttemptArguments,
    },
    /// Send a test message to the receiver
    Test {
        /// Id of the webhook
        id: String,
        #[command(flatten)]
        attempt: AttemptArguments,
    },
}

#[derive(Args, Debug)]
struct AttemptArguments {
    /// Time in which a gateway must have made an attempt
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "20s")]
    wait: Duration,
    #[command(flatten)]
    common: CommonArguments,
}

/// The states of deliveries by which they are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StateArgument {
    Waiting,
    Sending,
    Delivered,
    Failed,
}

impl From<StateArgument> for DeliveryStateName {
    fn from(state: StateArgument) -> Self {
        match state {
            StateArgument::Waiting => Self::Waiting,
            StateArgument::Sending => Self::Sending,
            StateArgument::Delivered => Self::Delivered,
            StateArgument::Failed => Self::Failed,
        }
    }
}

/// Shows or changes webhooks.
pub async fn run_command(arguments: WebhookArguments) -> CommandResult {
    match arguments.command.unwrap_or(WebhookCommand::List(arguments.common)) {
        WebhookCommand::Add { url, events, labels, description, secret_file, receivers, change } => {
            let events = if events.is_empty() { WebhookEventKind::DEFAULT.to_vec() } else { events };
            let secret = secret_file.as_deref().map(read_secret).transpose()?;
            let new = NewWebhook { url: receivers.parse_url(&url)?, description, events, labels, secret };
            let created = change.make(async |bus, by| webhooks::create_webhook(bus, new, by).await).await?;
            show_with_secret(&created, "created the webhook", change.common.json);
        }
        WebhookCommand::List(common) => {
            let stored = common.target.read(async |bus| Ok(read_webhooks(bus).await?)).await?;
            let stored: Vec<StoredWebhook> = stored.into_iter().map(|entry| entry.value).collect();
            list_webhooks(&stored, common.json);
        }
        WebhookCommand::Show { id, common } => {
            let stored = common.target.read(async |bus| Ok(webhooks::find_webhook(bus, &id).await?)).await?;
            show_webhook(&stored.value, common.json);
        }
        WebhookCommand::Update { id, url, events, labels, all_labels, description, receivers, change } => {
            let update = WebhookChange {
                url: url.map(|url| receivers.parse_url(&url)).transpose()?,
                description,
                events: Some(events).filter(|events| !events.is_empty()),
                labels: Some(labels).filter(|labels| all_labels || !labels.is_empty()),
                enabled: None,
            };
            change.apply(&id, update).await?;
        }
        WebhookCommand::Pause { id, change } => change.apply(&id, WebhookChange::enabling(false)).await?,
        WebhookCommand::Resume { id, change } => change.apply(&id, WebhookChange::enabling(true)).await?,
        WebhookCommand::Rotate { id, secret_file, keep_earlier_for, change } => {
            let secret = secret_file.as_deref().map(read_secret).transpose()?;
            let overlap = keep_earlier_for
                .map_or(SECRET_OVERLAP, |time| SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX));
            let replace = async |bus: &Bus, by| webhooks::replace_secret(bus, &id, secret, overlap, by).await;
            let changed = change.make(replace).await?;
            show_with_secret(&changed, "replaced the secret of the webhook", change.common.json);
        }
        WebhookCommand::Delete { id, change } => {
            let deleted = change.make(async |bus, by| webhooks::delete_webhook(bus, &id, by).await).await?;
            match change.common.json {
                true => print_json(&CommandOutcome::WebhookDeleted { id: &deleted.id, url: &deleted.url }),
                false => note!("deleted the webhook {} of {}", deleted.id, deleted.url),
            }
        }
        WebhookCommand::Deliveries { id, state, limit, common } => {
            list_deliveries(&id, state, limit, &common).await?;
        }
        WebhookCommand::Redeliver { id, delivery, attempt } => {
            return attempt.run(&id, async |bus| webhooks::redeliver(bus, &id, &delivery).await).await;
        }
        WebhookCommand::Test { id, attempt } => {
            return attempt.run(&id, async |bus| webhooks::send_test(bus, &id).await).await;
        }
    }
    Ok(CommandExit::Completed)
}

impl From<WebhookError> for CommandError {
    fn from(error: WebhookError) -> Self {
        let hint = match &error {
            WebhookError::NotFound(_) => Some("webhook list".to_owned()),
            WebhookError::Disabled(id) => Some(format!("webhook resume {id}")),
            WebhookError::DeliveryNotFound(id, _) => Some(format!("webhook deliveries {id}")),
            WebhookError::TooMany | WebhookError::Invalid(_) | WebhookError::Fault(_) => None,
        };
        match (error, hint) {
            (WebhookError::Fault(fault), _) => fault.into(),
            (error, Some(hint)) => Self::invalid_input(anyhow!("{error} (`{}`)", command_hint(&hint))),
            (error, None) => Self::invalid_input(error),
        }
    }
}

impl ChangeArguments {
    /// Makes a change on behalf of its author.
    async fn make<T>(
        &self,
        write: impl AsyncFnOnce(&Bus, Actor) -> Result<T, WebhookError>,
    ) -> Result<T, CommandError> {
        let by = Actor::local(author_name(self.by.clone()));
        self.common.target.read(async |bus| Ok(write(bus, by).await?)).await
    }

    async fn apply(&self, id: &str, update: WebhookChange) -> Result<(), CommandError> {
        let changed = self.make(async |bus, by| webhooks::change_webhook(bus, id, update, by).await).await?;
        show_webhook(&changed, self.common.json);
        Ok(())
    }
}

/// Reads a secret, which is not an argument: other users of the machine see those.
fn read_secret(file: &Path) -> Result<SigningSecret, CommandError> {
    let text = match file == Path::new("-") {
        true => std::io::read_to_string(std::io::stdin()),
        false => std::fs::read_to_string(file),
    };
    let text = text.with_context(|| format!("can't read the secret in {}", file.display()));
    let text = text.map_err(CommandError::invalid_input)?;
    let secret = text.trim().parse::<SigningSecret>();
    secret.map_err(|error| refused!("{}: {error}", file.display()))
}

impl AttemptArguments {
    /// Starts a delivery, and waits for the outcome of its next attempt.
    async fn run(
        self,
        webhook: &str,
        start: impl AsyncFnOnce(&Bus) -> Result<StoredDelivery, WebhookError>,
    ) -> CommandResult {
        let reading = ReadConnection::open_for_reading(&self.common.target).await?;
        let wait = if reading.is_offline() { Duration::ZERO } else { self.wait };
        let delivery = reading
            .read_and_close(async |bus| Ok(await_attempt(bus, webhook, start(bus).await?, wait).await?))
            .await?;
        let is_delivered = DeliveryStateName::of(&delivery.state) == DeliveryStateName::Delivered;
        match self.common.json {
            true => print_json(&DeliveryJson::new(&delivery)),
            false => text::describe_delivery(&delivery).iter().for_each(|line| print_stdout_line(line)),
        }
        if delivery.round_attempts == 0 && !self.common.json {
            let waited = format_duration(wait);
            note!("no gateway has made an attempt within {waited}; `{}` delivers", command_hint("serve"));
        }
        Ok(if is_delivered { CommandExit::Completed } else { CommandExit::Failed })
    }
}

/// Returns a delivery after its next attempt, or as it is after this time.
async fn await_attempt(
    bus: &Bus,
    webhook: &str,
    started: StoredDelivery,
    wait: Duration,
) -> Result<StoredDelivery, WebhookError> {
    let deadline = tokio::time::Instant::now() + wait;
    let mut delivery = started;
    while delivery.round_attempts == 0 || DeliveryStateName::of(&delivery.state) == DeliveryStateName::Sending
    {
        if tokio::time::Instant::now() >= deadline {
            break;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        delivery = webhooks::read_delivery(bus, webhook, delivery.id.as_str()).await?;
    }
    Ok(delivery)
}

fn show_with_secret(webhook: &StoredWebhook, what: &str, is_json: bool) {
    if is_json {
        print_json(&WebhookJson::with_secret(webhook, clock::now()));
        return;
    }
    // A closed pipe has lost the secret; it can be replaced.
    let _ = write_stdout_line(&webhook.secret.reveal());
    note!("{what} {} for {}; its secret can't be shown again", webhook.id, webhook.url);
}

fn show_webhook(webhook: &StoredWebhook, is_json: bool) {
    match is_json {
        true => print_json(&WebhookJson::new(webhook, clock::now())),
        false => {
            text::describe_webhook(webhook, clock::now()).iter().for_each(|line| print_stdout_line(line));
        }
    }
}

fn list_webhooks(stored: &[StoredWebhook], is_json: bool) {
    if is_json {
        stored.iter().for_each(|webhook| print_json(&WebhookJson::new(webhook, clock::now())));
    } else if stored.is_empty() {
        let hint = command_hint("webhook add URL");
        note!("there are no webhooks; create one with `{hint}`");
    } else {
        text::webhook_table(stored).iter().for_each(|line| print_stdout_line(line));
    }
}

async fn list_deliveries(
    id: &str,
    state: Option<StateArgument>,
    limit: usize,
    CommonArguments { json, target }: &CommonArguments,
) -> Result<(), CommandError> {
    let is_wanted = |delivery: &StoredDelivery| {
        state.is_none_or(|state| DeliveryStateName::of(&delivery.state) == state.into())
    };
    let list = async |bus: &Bus| Ok(webhooks::list_deliveries(bus, id, None, limit, is_wanted).await?);
    let page = target.read(list).await?;
    if *json {
        page.deliveries.iter().for_each(|delivery| print_json(&DeliveryJson::new(delivery)));
    } else if page.deliveries.is_empty() {
        print_stderr_line("millrace: there are no such deliveries");
    } else {
        text::delivery_table(&page.deliveries, clock::now()).iter().for_each(|line| print_stdout_line(line));
    }
    if page.next.is_some() && !json {
        print_stderr_line("millrace: there are more; --limit shows more of them");
    }
    Ok(())
}
