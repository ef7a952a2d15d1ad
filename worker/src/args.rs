//! The command line of a worker, the same for `millrace worker` and `millrace-worker`.

use std::sync::Arc;

use millrace_agent::desk::Preferences;
use millrace_runtime::host::HostArgs;

use crate::{Capability, Config, Error, builtin, file};

/// Take tasks of a cluster and carry them out.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Capability to offer: the name of one that is built in, or a capability file (a path, or a name that ends in .yaml;
    /// see `millrace schema capability`); can be given several times. A file stands in for the built-in capability of its
    /// name. All that are built in are offered where none is named
    #[arg(long, value_name = "NAME|FILE")]
    pub capability: Vec<String>,
    /// What every hosting program can be told.
    #[command(flatten)]
    pub host: HostArgs,
}

impl Args {
    /// A worker with the capabilities that these arguments name.
    ///
    /// # Errors
    /// One of them can't be offered, or a model has no name.
    pub async fn into_config(self) -> Result<Config, Error> {
        let names: Vec<&str> = match self.capability.as_slice() {
            [] => builtin::NAMES.to_vec(),
            named => named.iter().map(String::as_str).collect(),
        };
        // Files first: they stand in for what is built in.
        let (files, built_in): (Vec<&str>, Vec<&str>) =
            names.into_iter().partition(|name| file::is_file(name));
        let mut capabilities: Vec<Arc<dyn Capability>> = Vec::new();
        for name in files {
            capabilities.push(file::open(name).await?);
        }
        for name in built_in {
            if !capabilities.iter().any(|known| known.describe().name.as_str() == name) {
                capabilities.push(file::open(name).await?);
            }
        }
        Self::configure(self.host, capabilities)
    }

    /// A worker with these capabilities.
    ///
    /// # Errors
    /// A model has no name.
    pub fn configure(host: HostArgs, capabilities: Vec<Arc<dyn Capability>>) -> Result<Config, Error> {
        let connection = host.connection();
        let HostArgs { nats: _, slots, id, model, record, grace, document_cache, http } = host;
        let models = Preferences::parse(model.iter().map(String::as_str))?;
        let document_cache = Some(document_cache);
        let http = http.address;
        Ok(Config { connection, id, capabilities, slots, grace, document_cache, models, record, http })
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches};

    use super::*;

    fn parse(arguments: &[&str]) -> Result<Args, clap::Error> {
        let command = Args::augment_args(Command::new("worker").no_binary_name(true));
        command.clone().debug_assert();
        Args::from_arg_matches(&command.try_get_matches_from(arguments)?)
    }

    #[tokio::test]
    async fn what_is_asked_for_is_configured() {
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
        let config = parse(&arguments).unwrap().into_config().await.unwrap();
        assert_eq!(config.connection.url, "nats://a:1,nats://b:2");
        assert_eq!((config.slots, config.id.unwrap().as_str()), (3, "me"));
        assert_eq!(config.models.general.unwrap().models[0].name, "builtin:extractive");
        assert_eq!(config.models.own.values().next().unwrap().models.len(), 2);
        assert_eq!(config.record, Some("calls.jsonl".into()));
        assert_eq!(config.grace, std::time::Duration::from_secs(2));
    }

    #[tokio::test]
    async fn what_makes_no_sense_is_refused() {
        for arguments in [["--slots", "0"], ["--id", "a b"], ["--grace", "soon"]] {
            assert!(parse(&arguments).is_err(), "{arguments:?}");
        }
        for arguments in [["--capability", "x"], ["--capability", "./none.yaml"], ["--model", "a:b,"]] {
            assert!(parse(&arguments).unwrap().into_config().await.is_err(), "{arguments:?}");
        }
    }

    #[tokio::test]
    async fn what_is_built_in_is_offered_where_nothing_is_named_and_files_stand_in_for_it() {
        let offered = async |arguments: &[&str]| {
            let capabilities = parse(arguments).unwrap().into_config().await.unwrap().capabilities;
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

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("own.yaml");
        std::fs::write(&path, "{name: research, description: Mine., instructions: Do it.}").unwrap();
        let own = offered(&["--capability", "research", "--capability", path.to_str().unwrap()]).await;
        assert_eq!(own, [("research".to_owned(), "Mine.".to_owned())]);
    }
}
