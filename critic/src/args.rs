//! The command line of a critic, the same for `millrace critic` and `millrace-critic`.

use millrace_runtime::host::HostArgs;

use crate::Config;

/// Judge results of a cluster's tasks.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// What every hosting program can be told.
    #[command(flatten)]
    pub host: HostArgs,
}

impl Args {
    /// The critic that these arguments ask for.
    #[must_use]
    pub fn into_config(self) -> Config {
        let connection = self.host.connection();
        let HostArgs { nats: _, slots, id, model, grace, document_cache } = self.host;
        Config { connection, id, slots, grace, document_cache: Some(document_cache), model }
    }
}
