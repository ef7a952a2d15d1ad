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
