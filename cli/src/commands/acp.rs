//! `millrace acp`: an agent of the Agent Client Protocol over standard input and output, for editors.

use clap::Args;
use millrace_local_cluster::LocalOptions;
use millrace_protocol::ids::Capability;
use millrace_protocol::plan::Budget;
use millrace_runtime::nats::connection::parse_server_urls;
use tokio_util::sync::CancellationToken;

use crate::acp::{AgentSettings, ClusterChoice, RunDefaults, serve_editor};
use crate::budget::BudgetArguments;
use crate::commands::run::{find_running_cluster, provided_capabilities};
use crate::exit::{CommandError, CommandExit, CommandResult};
use crate::steer::author_name;
use crate::submission::{open_models_to_check, parse_model_preferences};
use crate::target::ClusterTarget;

const EXAMPLES: &str = "\
An editor starts this command. Each of its sessions is a session of the cluster, and each prompt a run of it. The cluster keeps \
running when the editor ends, until `millrace down`; the editor loads the session again and continues.

Example, in the settings of Zed:
  {\"agent_servers\": {\"Millrace\": {\"command\": \"millrace\", \"args\": [\"acp\", \"--model\", \"openai:gpt-5.2\"]}}}";

/// The arguments of `millrace acp`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct AcpArguments {
    /// Give each prompt to this capability as one task [default: a planner makes a plan of tasks]
    #[arg(long, value_name = "CAPABILITY", help_heading = "Run")]
    agent: Option<Capability>,
    #[command(flatten, next_help_heading = "Run")]
    budget: BudgetArguments,
    /// Start no task before the user has approved the plan
    #[arg(long, help_heading = "Run")]
    approve_plan: bool,
    /// Author of commands and answers, recorded in the log [default: your login name]
    #[arg(long, value_name = "NAME", help_heading = "Run")]
    by: Option<String>,
    /// NATS server of the cluster, with credentials as for other commands [default: a local cluster on the data folder, which is
    /// started if none runs]
    #[arg(long, env = "MILLRACE_NATS_URL", hide_env_values = true, value_name = "URL", value_parser = parse_server_urls, help_heading = "Cluster")]
    nats: Option<String>,
    #[command(flatten, next_help_heading = "Cluster")]
    options: LocalOptions,
}

/// Serves one editor until it closes its end.
pub async fn run_command(arguments: AcpArguments, shutdown: CancellationToken) -> CommandResult {
    let AcpArguments { agent, budget, approve_plan, by, nats, options } = arguments;
    let models = parse_model_preferences(&options.model)?;
    let budget = budget.override_budget(Budget::default()).map_err(|why| refused!(why))?;
    let cluster = match nats {
        Some(_) => ClusterChoice::Server(ClusterTarget { nats, data: options.data.clone() }),
        None => {
            if find_running_cluster(&options)?.is_none() {
                open_models_to_check(&options)?;
                refuse_unknown_agent(agent.as_ref(), &options)?;
            }
            ClusterChoice::Local(Box::new(options))
        }
    };
    let defaults = RunDefaults { capability: agent, models, budget, approve_plan, by: author_name(by) };
    let served = serve_editor(AgentSettings { cluster, defaults }, shutdown).await;
    served.map_err(|error| {
        CommandError::unusable_environment(anyhow::anyhow!("the connection to the editor failed: {error}"))
    })?;
    Ok(CommandExit::Completed)
}

/// Refuses a capability that the workers of the cluster to start do not provide.
fn refuse_unknown_agent(agent: Option<&Capability>, options: &LocalOptions) -> Result<(), CommandError> {
    let Some(agent) = agent else { return Ok(()) };
    let provided = provided_capabilities(options)?;
    if provided.contains(agent.as_str()) {
        return Ok(());
    }
    let hint = millrace_strict_yaml::did_you_mean_hint(agent.as_str(), provided.iter().map(String::as_str));
    let provided = provided.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    Err(refused!(
        "no worker provides {:?}{hint}; available: {provided} (add others with --capability FILE)",
        agent.as_str()
    ))
}
