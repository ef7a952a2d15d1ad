//! The settings of a folder: tenants, workers, lanes, hosts. They are stored in `settings.json` in the folder, so that
//! running the command again with one more option changes only that. Also the text of `nats.conf`, the same file that `deploy/kubernetes` and
//! compose mount, and the limits of a tenant's account besides its disk space, which are far above what a large cluster needs, and keep one
//! stolen key from taking the connections, the memory or the consumers of all tenants.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use millrace_protocol::ids::Capability;
use millrace_runtime::nats::access::AccessRole;
use millrace_runtime::nats::topology::cluster_stream_names;
use serde::{Deserialize, Serialize};

use crate::{ConfigError, ConfigRequest};

/// Name of the settings file.
pub const FILE: &str = "settings.json";
/// Default number of lanes, more than a cluster starts with: permissions list each lane, and unused ones do no harm.
const LANES: u16 = 16;

/// Name of a tenant, of its account and of its folder of seeds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TenantName(String);

impl TenantName {
    /// The default tenant.
    pub const DEFAULT: &'static str = "millrace";

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TenantName {
    type Err = String;

    /// Parses a name; it is also valid as a Kubernetes namespace.
    fn from_str(text: &str) -> Result<Self, String> {
        let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let ends = |c: char| c != '-';
        let is_name = text.starts_with(|c: char| c.is_ascii_lowercase())
            && text.ends_with(ends)
            && text.chars().all(inside)
            && text.len() <= 40;
        if is_name {
            Ok(Self(text.into()))
        } else {
            Err("a tenant name has up to 40 characters a-z, 0-9 and '-', and begins with a letter".into())
        }
    }
}

impl TryFrom<String> for TenantName {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<TenantName> for String {
    fn from(tenant: TenantName) -> Self {
        tenant.0
    }
}

impl fmt::Display for TenantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A number of bytes, as the NATS server reads it: `10GB` and `10GiB` are 10 · 2³⁰, `10G` is 10 · 10⁹.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ByteSize(pub u64);

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let factor: u64 = match unit.to_ascii_lowercase().as_str() {
            "" => 1,
            "k" => 1000,
            "m" => 1_000_000,
            "g" => 1_000_000_000,
            "t" => 1_000_000_000_000,
            "kb" | "ki" | "kib" => 1 << 10,
            "mb" | "mi" | "mib" => 1 << 20,
            "gb" | "gi" | "gib" => 1 << 30,
            "tb" | "ti" | "tib" => 1 << 40,
            _ => return Err("expected a number followed by KB, MB, GB or TB, such as 50GB".into()),
        };
        let number: u64 = number.parse().map_err(|_| "expected a number first, such as 50GB".to_owned())?;
        match number.checked_mul(factor) {
            Some(bytes) if bytes > 0 && i64::try_from(bytes).is_ok() => Ok(Self(bytes)),
            _ => Err("expected more than 0 and less than 8 EiB".into()),
        }
    }
}

/// The settings of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigSettings {
    /// Maximum number of lanes.
    pub lanes: u16,
    /// `true` if identities are operator-signed JWTs instead of bare nkeys.
    pub jwt: bool,
    /// `true` if connections are encrypted.
    pub tls: bool,
    /// Additional hosts in the server certificate.
    pub hosts: BTreeSet<String>,
    pub tenants: BTreeMap<TenantName, TenantSettings>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantSettings {
    /// Maximum disk space of its streams in bytes, all replicas together; `None` for unlimited.
    pub max_store: Option<ByteSize>,
    /// The capabilities of each kind of worker.
    pub workers: BTreeSet<BTreeSet<Capability>>,
}

impl Default for ConfigSettings {
    fn default() -> Self {
        Self { lanes: LANES, jwt: false, tls: true, hosts: BTreeSet::new(), tenants: BTreeMap::new() }
    }
}

impl ConfigSettings {
    /// Parses the settings file.
    /// Errors: it is invalid; the text says what and where.
    pub fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// Returns the text of the settings file.
    pub fn to_file_text(&self) -> String {
        serde_json::to_string_pretty(self).expect("settings can be serialized") + "\n"
    }

    /// Refuses requests with unintended effects; `path` is the settings file.
    /// Errors: fewer lanes, which would revoke permissions of an existing cluster; or a limit without saying for which of
    /// several tenants.
    pub fn check_request(&self, request: &ConfigRequest, path: &Path) -> Result<(), ConfigError> {
        if let Some(requested) = request.lanes.filter(|&requested| requested < self.lanes) {
            return Err(ConfigError::FewerLanes { path: path.to_owned(), held: self.lanes, requested });
        }
        if request.max_store.is_some() && request.tenants.is_empty() && self.tenants.len() > 1 {
            return Err(ConfigError::WhichTenant {
                existing: self.tenants.keys().map(TenantName::to_string).collect(),
            });
        }
        Ok(())
    }

    /// Checks that tenants that share the servers have limits.
    /// Errors: there are several tenants, and one of them has no limit of its disk space.
    pub fn check_store_limits(&self) -> Result<(), ConfigError> {
        let unlimited = self.tenants.iter().filter(|(_, tenant)| tenant.max_store.is_none());
        let tenants: Vec<String> = unlimited.map(|(name, _)| name.to_string()).collect();
        if self.tenants.len() > 1 && !tenants.is_empty() {
            return Err(ConfigError::NoMaxStore { tenants });
        }
        Ok(())
    }

    /// Applies a request.
    pub fn apply_request(&mut self, request: &ConfigRequest) {
        self.lanes = request.lanes.unwrap_or(self.lanes);
        self.jwt |= request.jwt;
        self.tls &= !request.no_tls;
        self.hosts.extend(request.hosts.iter().cloned());
        for tenant in self.selected_tenants(&request.tenants) {
            let is_new = !self.tenants.contains_key(&tenant);
            let settings = self.tenants.entry(tenant).or_default();
            settings.max_store = request.max_store.or(settings.max_store);
            settings.workers.extend(request.workers.iter().cloned());
            if is_new && request.workers.is_empty() {
                settings.workers = default_worker_capabilities();
            }
        }
    }

    /// Returns the tenants of a request: those it lists, or else all existing ones, or else the default one.
    pub fn selected_tenants(&self, tenants: &[TenantName]) -> Vec<TenantName> {
        if !tenants.is_empty() {
            tenants.to_vec()
        } else if self.tenants.is_empty() {
            vec![TenantName(TenantName::DEFAULT.into())]
        } else {
            self.tenants.keys().cloned().collect()
        }
    }
}

/// Returns a worker for each built-in capability, including the planner.
fn default_worker_capabilities() -> BTreeSet<BTreeSet<Capability>> {
    millrace_worker::builtin::NAMES
        .iter()
        .map(|name| BTreeSet::from([Capability::new(name).expect("built-in capability names are valid")]))
        .collect()
}

/// A user of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserIdentity {
    /// Its name in files and Secrets.
    pub name: String,
    /// Its role, which determines its permissions.
    pub role: AccessRole,
}

impl UserIdentity {
    /// Returns the name of its Secret in Kubernetes, where capitals and `_` are not allowed.
    pub fn secret_name(&self) -> String {
        format!("millrace-nkey-{}", self.name.to_ascii_lowercase().replace('_', "-"))
    }
}

impl TenantSettings {
    /// Returns all users of the tenant's account.
    pub fn user_identities(&self) -> Result<Vec<UserIdentity>, ConfigError> {
        let fixed = |name: &str, role| UserIdentity { name: name.into(), role };
        let mut all = vec![fixed("supervisor", AccessRole::Supervisor)];
        all.extend(self.workers.iter().map(worker_identity));
        all.extend([
            fixed("critic", AccessRole::Critic),
            fixed("client", AccessRole::Client),
            fixed("gateway", AccessRole::Gateway),
            fixed("viewer", AccessRole::Viewer),
            fixed("answerer", AccessRole::Answerer),
            fixed("metrics", AccessRole::Metrics),
            fixed("backup", AccessRole::Backup),
        ]);
        let mut by_secret: BTreeMap<String, &UserIdentity> = BTreeMap::new();
        for identity in &all {
            if let Some(other) = by_secret.insert(identity.secret_name(), identity) {
                return Err(ConfigError::SameName { one: other.name.clone(), other: identity.name.clone() });
            }
        }
        Ok(all)
    }
}

fn worker_identity(capabilities: &BTreeSet<Capability>) -> UserIdentity {
    let names: Vec<&str> = capabilities.iter().map(Capability::as_str).collect();
    let name = format!("worker-{}", names.join("-"));
    UserIdentity { name, role: AccessRole::Worker(capabilities.iter().cloned().collect()) }
}

/// The configuration common to all servers; differences between servers come from environment variables.
const TEXT: &str = include_str!("../../../deploy/kubernetes/components/nats/nats.conf");

/// Returns the text, with or without TLS.
#[must_use]
pub fn nats_conf_text(tls: bool) -> String {
    if tls { TEXT.to_owned() } else { remove_tls_blocks(TEXT) }
}

/// Removes the blocks that begin with `tls {` and the comments directly above them.
fn remove_tls_blocks(text: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        let word = line.trim();
        if word == "tls {" {
            inside = true;
            while lines.last().is_some_and(|line| line.trim().starts_with('#')) {
                lines.pop();
            }
        }
        if !inside {
            lines.push(line);
        }
        inside &= word != "}";
    }
    lines.join("\n") + "\n"
}

/// The maximum number of connections of an account, of the servers' 20,000: one per process, and one per client command.
pub const MAX_CONNECTIONS: u32 = 5_000;
/// The maximum number of subscriptions of an account on a server. A process has fewer than 20, and one per read in
/// progress.
pub const MAX_SUBSCRIPTIONS: u32 = 200_000;
/// The maximum memory of the streams and consumers of an account: only readers of lanes are in memory.
pub const MAX_MEMORY: u32 = 64 << 20;
/// The maximum number of consumers of one stream: a queue per capability, and readers of lanes.
pub const MAX_CONSUMERS: u32 = 10_000;

/// Returns the maximum number of streams of an account: those of a cluster, and a few of the operator.
pub fn max_streams(lanes: u16) -> usize {
    cluster_stream_names(lanes).len() + 10
}
