//! The agent card, which the server shows: the addresses of both bindings, and the capabilities of the cluster as skills.

use std::collections::HashMap;

use a2a::agent_card::{
    AgentCapabilities, AgentCard, AgentInterface, AgentSkill, HttpAuthSecurityScheme, SecurityScheme,
};
use a2a::{TRANSPORT_PROTOCOL_HTTP_JSON, TRANSPORT_PROTOCOL_JSONRPC};
use axum::http::{HeaderMap, header};
use millrace_protocol::token::Scope;
use serde::Deserialize;

use crate::problem::Problem;
use crate::resources::cluster::list_capabilities;
use crate::standards::api::{Operator, value_of};

/// The path below which A2A is served.
pub const ROOT: &str = "/a2a";
/// The skill of a run that a planner plans.
pub const OBJECTIVE_SKILL: &str = "objective";
/// Capabilities that no task of a client names.
const INTERNAL: [&str; 2] = ["planner", "critic"];
/// The name of the security scheme.
const TOKEN: &str = "token";

#[derive(Deserialize)]
struct Capabilities {
    capabilities: Vec<CapabilityLine>,
}

#[derive(Deserialize)]
struct CapabilityLine {
    name: String,
    description: Option<String>,
}

/// The A2A server.
#[derive(Clone)]
pub struct A2aServer {
    /// `true` if clients connect over TLS, which a proxy ends.
    is_encrypted: bool,
    needs_token: bool,
}

impl A2aServer {
    #[must_use]
    pub fn new(is_encrypted: bool, needs_token: bool) -> Self {
        Self { is_encrypted, needs_token }
    }

    /// Returns the card, with the capabilities of the cluster as far as the client may know them.
    pub fn card(&self, headers: &HeaderMap, skills: Vec<AgentSkill>) -> AgentCard {
        let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or("localhost");
        let scheme = if self.is_encrypted { "https" } else { "http" };
        build_card(&format!("{scheme}://{host}"), skills, self.needs_token)
    }
}

/// Reads the capabilities of the cluster as skills.
pub async fn read_skills(operator: &Operator) -> Result<Vec<AgentSkill>, Problem> {
    let all: Capabilities = value_of(list_capabilities(operator.with(Scope::Read)?).await).await?;
    let usable = all.capabilities.into_iter().filter(|one| !INTERNAL.contains(&one.name.as_str()));
    Ok(usable
        .map(|one| {
            let description = one.description.unwrap_or_else(|| format!("The capability {}", one.name));
            skill(&one.name, &one.name, description)
        })
        .collect())
}

fn skill(id: &str, name: &str, description: String) -> AgentSkill {
    AgentSkill {
        id: id.to_owned(),
        name: name.to_owned(),
        description,
        tags: vec!["agents".into()],
        examples: None,
        input_modes: None,
        output_modes: None,
        security_requirements: None,
    }
}

/// Returns the card of a gateway at an address. `needs_token` is `true` if it refuses clients without a token.
fn build_card(address: &str, skills: Vec<AgentSkill>, needs_token: bool) -> AgentCard {
    let url = format!("{address}{ROOT}");
    let token = HttpAuthSecurityScheme {
        scheme: "Bearer".into(),
        description: Some("A token of `millrace token create`".into()),
        bearer_format: None,
    };
    let objective = "Plans an objective, has agents carry it out and review each other, and returns a report with sources";
    let objective = skill(OBJECTIVE_SKILL, "Carry out an objective", objective.into());
    AgentCard {
        name: "Millrace".into(),
        description: "Carries out objectives as durable plans of agent tasks; work survives restarts".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        supported_interfaces: vec![
            AgentInterface::new(url.clone(), TRANSPORT_PROTOCOL_HTTP_JSON),
            AgentInterface::new(url, TRANSPORT_PROTOCOL_JSONRPC),
        ],
        capabilities: AgentCapabilities {
            streaming: Some(true),
            push_notifications: Some(true),
            extensions: None,
            extended_agent_card: Some(true),
        },
        default_input_modes: ["text/plain", "text/markdown", "application/json", "application/pdf"]
            .map(str::to_owned)
            .into(),
        default_output_modes: ["text/markdown", "application/json", "application/octet-stream"]
            .map(str::to_owned)
            .into(),
        skills: std::iter::once(objective).chain(skills).collect(),
        provider: None,
        documentation_url: None,
        icon_url: None,
        security_schemes: needs_token
            .then(|| HashMap::from([(TOKEN.to_owned(), SecurityScheme::HttpAuth(token))])),
        security_requirements: needs_token.then(|| vec![HashMap::from([(TOKEN.to_owned(), Vec::new())])]),
        signatures: None,
    }
}
