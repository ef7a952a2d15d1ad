//! The command line of a worker, the same for `millrace worker` and `millrace-worker`.

use std::sync::Arc;

use millrace_host::AgentHostConfig;
use millrace_host::HostArgs;

use crate::{Capability, ProgramError, WorkerConfig, builtin, file};

/// Run tasks of a cluster.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Capability to offer: the name of a built-in one, or a capability file (a path, or a name that ends in .yaml; see
    /// `millrace schema capability`). Can be given several times. A file replaces the built-in capability of the same
    /// name. Default: all built-in capabilities
    #[arg(long, value_name = "NAME|FILE")]
    pub capability: Vec<String>,
    /// Offer the capability web_research, which searches and reads the web; it is offered too if there is a search engine
    /// (TAVILY_API_KEY or SEARXNG_URL) and no --capability
    #[arg(long, env = "MILLRACE_WEB", value_parser = clap::builder::BoolishValueParser::new())]
    pub web: bool,
    /// The arguments that workers and critics share.
    #[command(flatten)]
    pub host: HostArgs,
}

impl Args {
    /// Opens the capabilities and returns the configuration.
    ///
    /// # Errors
    /// A capability can't be opened, or a `--model` does not name a model.
    pub async fn into_config(self) -> Result<WorkerConfig, ProgramError> {
        let mut names: Vec<&str> = match self.capability.as_slice() {
            [] => builtin::NAMES.into_iter().chain(builtin::web_capability_names(self.web)).collect(),
            names => names.iter().map(String::as_str).collect(),
        };
        if self.web && !names.contains(&builtin::WEB_RESEARCH) {
            names.push(builtin::WEB_RESEARCH);
        }
        // Files first: they replace built-in capabilities.
        let (files, built_in): (Vec<&str>, Vec<&str>) =
            names.into_iter().partition(|name| file::is_capability_file_name(name));
        let mut capabilities: Vec<Arc<dyn Capability>> = Vec::new();
        for name in files {
            capabilities
                .push(file::open_capability_by_name(name).await.map_err(ProgramError::refused_input)?);
        }
        for name in built_in {
            if !capabilities.iter().any(|capability| capability.describe().name.as_str() == name) {
                capabilities
                    .push(file::open_capability_by_name(name).await.map_err(ProgramError::refused_input)?);
            }
        }
        Ok(WorkerConfig { capabilities, host: AgentHostConfig::parse_args(self.host)? })
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches};

    use super::*;

    fn parse_args(arguments: &[&str]) -> Result<Args, clap::Error> {
        let command = Args::augment_args(Command::new("worker").no_binary_name(true));
        command.clone().debug_assert();
        Args::from_arg_matches(&command.try_get_matches_from(arguments)?)
    }

    #[tokio::test]
    async fn arguments_become_the_configuration() {
        let arguments = [
            "--nats",
            "nats://a:1,nats://b:2",
            "--slots",
            "3",
            "--id",
            "me",
            "--model",
            "builtin:extractive",
            "--model=planner=openai:x,ollama:y",
            "--record=calls.jsonl",
            "--grace",
            "2s",
        ];
        let config = parse_args(&arguments).unwrap().into_config().await.unwrap().host;
        assert_eq!(config.connection.url, "nats://a:1,nats://b:2");
        assert_eq!((config.slots, config.id.unwrap().as_str()), (3, "me"));
        assert_eq!(config.models.default.unwrap().models[0].name, "builtin:extractive");
        assert_eq!(config.models.by_capability.values().next().unwrap().models.len(), 2);
        assert_eq!(config.record, Some("calls.jsonl".into()));
        assert_eq!(config.grace, std::time::Duration::from_secs(2));
    }

    #[tokio::test]
    async fn invalid_arguments_are_refused() {
        for arguments in [["--slots", "0"], ["--id", "a b"], ["--grace", "soon"]] {
            assert!(parse_args(&arguments).is_err(), "{arguments:?}");
        }
        for arguments in [["--capability", "x"], ["--capability", "./none.yaml"], ["--model", "a:b,"]] {
            assert!(parse_args(&arguments).unwrap().into_config().await.is_err(), "{arguments:?}");
        }
    }

    #[tokio::test]
    async fn built_in_capabilities_are_the_default_and_files_replace_them() {
        let offered = async |arguments: &[&str]| {
            let capabilities = parse_args(arguments).unwrap().into_config().await.unwrap().capabilities;
            let describe = |one: &Arc<dyn Capability>| one.describe();
            capabilities
                .iter()
                .map(describe)
                .map(|one| (one.name.to_string(), one.description))
                .collect::<Vec<_>>()
        };
        let names = |all: &[(String, String)]| all.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&offered(&[]).await), builtin::NAMES);
        let two = offered(&["--capability", "echo", "--capability", "research"]).await;
        assert_eq!(names(&two), ["echo", "research"]);
        let web = offered(&["--capability", "echo", "--web"]).await;
        assert_eq!(names(&web), ["echo", "web_research"]);

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("own.yaml");
        std::fs::write(&path, "{name: research, description: Mine., instructions: Do it.}").unwrap();
        let own = offered(&["--capability", "research", "--capability", path.to_str().unwrap()]).await;
        assert_eq!(own, [("research".to_owned(), "Mine.".to_owned())]);
    }
}
