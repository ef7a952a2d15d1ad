//! The command line of a critic, the same for `millrace critic` and `millrace-critic`.

use std::path::PathBuf;

use millrace_host::AgentHostConfig;
use millrace_host::HostArgs;

use crate::{CriticConfig, ProgramError};

/// Review the results of a cluster's tasks.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The arguments that workers and critics share.
    #[command(flatten)]
    pub host: HostArgs,
    /// A folder that check programs may read, in addition to the system's own (can be given several times)
    #[arg(
        long = "check-folder",
        value_name = "FOLDER",
        env = "MILLRACE_CHECK_FOLDERS",
        value_delimiter = ':'
    )]
    pub check_folders: Vec<PathBuf>,
}

impl Args {
    /// Returns the configuration.
    pub fn into_config(self) -> Result<CriticConfig, ProgramError> {
        let Self { host, check_folders } = self;
        Ok(CriticConfig { host: AgentHostConfig::parse_args(host)?, check_folders, launcher: None })
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches};

    use super::*;

    fn parse_args(arguments: &[&str]) -> Result<Args, clap::Error> {
        let command = Args::augment_args(Command::new("critic").no_binary_name(true));
        command.clone().debug_assert();
        Args::from_arg_matches(&command.try_get_matches_from(arguments)?)
    }

    #[test]
    fn arguments_become_the_configuration() {
        let arguments = [
            "--nats",
            "nats://a:1,nats://b:2",
            "--slots",
            "3",
            "--id",
            "me",
            "--model",
            "builtin:extractive;critic=a:b",
            "--grace",
            "2s",
            "--check-folder",
            "/opt/a:/opt/b",
        ];
        let config = parse_args(&arguments).unwrap().into_config().unwrap();
        assert_eq!(config.check_folders, [PathBuf::from("/opt/a"), PathBuf::from("/opt/b")]);
        let config = config.host;
        assert_eq!(config.connection.url, "nats://a:1,nats://b:2");
        assert_eq!((config.slots, config.id.unwrap().as_str()), (3, "me"));
        assert_eq!(config.models.selections().count(), 2);
        assert_eq!(config.grace, std::time::Duration::from_secs(2));
    }

    #[test]
    fn invalid_arguments_are_refused() {
        for arguments in [["--slots", "0"], ["--id", "a b"], ["--grace", "soon"]] {
            assert!(parse_args(&arguments).is_err(), "{arguments:?}");
        }
        assert!(parse_args(&["--model", "a,"]).unwrap().into_config().is_err());
    }
}
