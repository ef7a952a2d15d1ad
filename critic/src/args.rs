//! The command line of a critic, the same for `millrace critic` and `millrace-critic`.

use std::path::PathBuf;

use millrace_agent::desk::Preferences;
use millrace_runtime::host::HostArgs;

use crate::{Config, Error};

/// Judge results of a cluster's tasks.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// What every hosting program can be told.
    #[command(flatten)]
    pub host: HostArgs,
    /// A folder that the programs of checks may read, besides the system's own (may be given several times)
    #[arg(
        long = "check-folder",
        value_name = "FOLDER",
        env = "MILLRACE_CHECK_FOLDERS",
        value_delimiter = ':'
    )]
    pub check_folders: Vec<PathBuf>,
}

impl Args {
    /// The critic that these arguments ask for.
    ///
    /// # Errors
    /// A model has no name.
    pub fn into_config(self) -> Result<Config, Error> {
        let connection = self.host.connection();
        let HostArgs { nats: _, slots, id, model, record, grace, document_cache, http } = self.host;
        let models = Preferences::parse(model.iter().map(String::as_str))?;
        let document_cache = Some(document_cache);
        let check_folders = self.check_folders;
        Ok(Config {
            id,
            slots,
            grace,
            document_cache,
            models,
            record,
            check_folders,
            http: http.address,
            ..Config::new(connection)
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches};

    use super::*;

    fn parse(arguments: &[&str]) -> Result<Args, clap::Error> {
        let command = Args::augment_args(Command::new("critic").no_binary_name(true));
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
            "builtin:extractive;critic=a:b",
            "--grace",
            "2s",
            "--check-folder",
            "/opt/a:/opt/b",
        ];
        let config = parse(&arguments).unwrap().into_config().unwrap();
        assert_eq!(config.connection.url, "nats://a:1,nats://b:2");
        assert_eq!((config.slots, config.id.unwrap().as_str()), (3, "me"));
        assert_eq!(config.models.choices().count(), 2);
        assert_eq!(config.check_folders, [PathBuf::from("/opt/a"), PathBuf::from("/opt/b")]);
        assert_eq!(config.grace, std::time::Duration::from_secs(2));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for arguments in [["--slots", "0"], ["--id", "a b"], ["--grace", "soon"]] {
            assert!(parse(&arguments).is_err(), "{arguments:?}");
        }
        assert!(parse(&["--model", "a,"]).unwrap().into_config().is_err());
    }
}
