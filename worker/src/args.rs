//! The command line of a worker, the same for `millrace worker` and `millrace-worker`.

use std::sync::Arc;

use clap::builder::PossibleValuesParser;
use millrace_runtime::host::HostArgs;

use crate::{Capability, Config, builtin};

/// Take tasks of a cluster and carry them out.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Capability to offer; can be given several times. All are offered where none is named
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(builtin::NAMES))]
    pub capability: Vec<String>,
    /// What every hosting program can be told.
    #[command(flatten)]
    pub host: HostArgs,
}

impl Args {
    /// A worker with the built-in capabilities that these arguments name.
    #[must_use]
    pub fn into_config(self) -> Config {
        let offered =
            |name: &&str| self.capability.is_empty() || self.capability.iter().any(|chosen| chosen == name);
        let capabilities =
            builtin::NAMES.iter().filter(|name| offered(name)).filter_map(|name| builtin::open(name));
        let capabilities = capabilities.collect();
        Self::configure(self.host, capabilities)
    }

    /// A worker with these capabilities.
    #[must_use]
    pub fn configure(host: HostArgs, capabilities: Vec<Arc<dyn Capability>>) -> Config {
        let connection = host.connection();
        let HostArgs { nats: _, slots, id, model, grace, document_cache } = host;
        Config { connection, id, capabilities, slots, grace, document_cache: Some(document_cache), model }
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

    #[test]
    fn what_is_asked_for_is_configured() {
        let arguments = [
            "--nats",
            "nats://a:1,nats://b:2",
            "--slots",
            "3",
            "--id",
            "me",
            "--model",
            "m",
            "--grace",
            "2s",
        ];
        let config = parse(&arguments).unwrap().into_config();
        assert_eq!(config.connection.url, "nats://a:1,nats://b:2");
        assert_eq!(
            (config.slots, config.id.unwrap().as_str(), config.model.as_deref()),
            (3, "me", Some("m"))
        );
        assert_eq!(config.grace, std::time::Duration::from_secs(2));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for arguments in [["--slots", "0"], ["--id", "a b"], ["--grace", "soon"], ["--capability", "x"]] {
            assert!(parse(&arguments).is_err(), "{arguments:?}");
        }
    }

    #[test]
    fn all_built_in_capabilities_are_offered_where_none_is_named() {
        let offered = |arguments: &[&str]| {
            let capabilities = parse(arguments).unwrap().into_config().capabilities;
            capabilities.iter().map(|one| one.describe().name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(offered(&[]), builtin::NAMES);
        assert_eq!(offered(&["--capability", "echo", "--capability", "research"]), ["research", "echo"]);
    }
}
