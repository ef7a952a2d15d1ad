//! What a folder is for: its tenants with their workers, lanes, hosts. It stands in `settings.json` in the folder, so
//! that running the command again with one option more changes that one thing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use millrace_protocol::ids::Capability;
use millrace_runtime::access::Role;
use serde::{Deserialize, Serialize};

use super::{Error, Request};

/// The file that settings are kept in.
pub const FILE: &str = "settings.json";
/// More lanes than a cluster starts with: permissions name each, and one that is not used harms nobody.
const LANES: u16 = 16;

/// The name of a tenant, which is the name of its account and of its folder of seeds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Tenant(String);

impl Tenant {
    /// The tenant of a folder that names none.
    pub const DEFAULT: &'static str = "millrace";

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Tenant {
    type Err = String;

    /// A name that is good for a Kubernetes namespace too.
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
            Err("a tenant is up to 40 of a-z, 0-9 and '-', and begins with a letter".into())
        }
    }
}

impl TryFrom<String> for Tenant {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Tenant> for String {
    fn from(tenant: Tenant) -> Self {
        tenant.0
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A number of bytes, as the NATS server reads it: `10GB` and `10GiB` are 10 · 2³⁰, `10G` is 10 · 10⁹.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Size(pub u64);

impl FromStr for Size {
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
            _ => return Err("a size is a number with KB, MB, GB or TB behind it, such as 50GB".into()),
        };
        let number: u64 =
            number.parse().map_err(|_| "a size begins with a number, such as 50GB".to_owned())?;
        match number.checked_mul(factor) {
            Some(bytes) if bytes > 0 && i64::try_from(bytes).is_ok() => Ok(Self(bytes)),
            _ => Err("a size is more than nothing and less than 8 EiB".into()),
        }
    }
}

/// What a folder is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// How many lanes the log may have.
    pub lanes: u16,
    /// Whether identities are JWTs, signed by an operator, in the place of bare nkeys.
    pub jwt: bool,
    /// Whether connections are encrypted.
    pub tls: bool,
    /// Hosts in the server's certificate, beside those that are always in it.
    pub hosts: BTreeSet<String>,
    /// The tenants by name.
    pub tenants: BTreeMap<Tenant, TenantSettings>,
}

/// What a tenant has.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantSettings {
    /// How many bytes its streams may take on disk, all copies on all servers together, as the server counts each;
    /// `None` for what the servers have.
    pub max_store: Option<Size>,
    /// The capabilities of each kind of worker.
    pub workers: BTreeSet<BTreeSet<Capability>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { lanes: LANES, jwt: false, tls: true, hosts: BTreeSet::new(), tenants: BTreeMap::new() }
    }
}

impl Settings {
    /// Reads the text of the file.
    ///
    /// # Errors
    /// It is something else; the text says what and where.
    pub fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// The text of the file.
    #[must_use]
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("names and numbers are JSON") + "\n"
    }

    /// Refuses what would change more than whoever asks can mean; `path` is the file that these settings stand in.
    ///
    /// # Errors
    /// Fewer lanes, which would take permissions away from a cluster that has them; or a limit for one of several
    /// tenants that is not named.
    pub fn check(&self, request: &Request, path: &Path) -> Result<(), Error> {
        if let Some(asked) = request.lanes.filter(|&asked| asked < self.lanes) {
            return Err(Error::FewerLanes { path: path.to_owned(), held: self.lanes, asked });
        }
        if request.max_store.is_some() && request.tenants.is_empty() && self.tenants.len() > 1 {
            return Err(Error::WhichTenant { known: self.tenants.keys().map(Tenant::to_string).collect() });
        }
        Ok(())
    }

    /// Adds what is asked for.
    pub fn add(&mut self, request: &Request) {
        self.lanes = request.lanes.unwrap_or(self.lanes);
        self.jwt |= request.jwt;
        self.tls &= !request.no_tls;
        self.hosts.extend(request.hosts.iter().cloned());
        for tenant in self.named(&request.tenants) {
            let is_new = !self.tenants.contains_key(&tenant);
            let settings = self.tenants.entry(tenant).or_default();
            settings.max_store = request.max_store.or(settings.max_store);
            settings.workers.extend(request.workers.iter().cloned());
            if is_new && request.workers.is_empty() {
                settings.workers = default_workers();
            }
        }
    }

    /// The tenants that are meant: those that are named, else all that there are, else the default one.
    #[must_use]
    pub fn named(&self, tenants: &[Tenant]) -> Vec<Tenant> {
        if !tenants.is_empty() {
            tenants.to_vec()
        } else if self.tenants.is_empty() {
            vec![Tenant(Tenant::DEFAULT.into())]
        } else {
            self.tenants.keys().cloned().collect()
        }
    }
}

/// A worker for each built-in capability, and the planner's is one.
fn default_workers() -> BTreeSet<BTreeSet<Capability>> {
    millrace_worker::builtin::NAMES
        .iter()
        .map(|name| {
            BTreeSet::from([Capability::new(name).expect("the names of built-in capabilities are names")])
        })
        .collect()
}

/// Somebody whom the server lets in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its name in files and Secrets.
    pub name: String,
    /// What it may do.
    pub role: Role,
}

impl Identity {
    /// The name of its Secret in Kubernetes, which knows neither capitals nor `_`.
    #[must_use]
    pub fn secret(&self) -> String {
        format!("millrace-nkey-{}", self.name.to_ascii_lowercase().replace('_', "-"))
    }
}

impl TenantSettings {
    /// All whom the tenant's account lets in.
    ///
    /// # Errors
    /// Two of them would have the same name.
    pub fn identities(&self) -> Result<Vec<Identity>, Error> {
        let fixed = |name: &str, role| Identity { name: name.into(), role };
        let mut all = vec![fixed("supervisor", Role::Supervisor)];
        all.extend(self.workers.iter().map(worker));
        all.extend([
            fixed("critic", Role::Critic),
            fixed("client", Role::Client),
            fixed("viewer", Role::Viewer),
            fixed("metrics", Role::Metrics),
            fixed("backup", Role::Backup),
        ]);
        let mut known: BTreeMap<String, &Identity> = BTreeMap::new();
        for identity in &all {
            if let Some(other) = known.insert(identity.secret(), identity) {
                return Err(Error::SameName { one: other.name.clone(), other: identity.name.clone() });
            }
        }
        Ok(all)
    }
}

fn worker(capabilities: &BTreeSet<Capability>) -> Identity {
    let names: Vec<&str> = capabilities.iter().map(Capability::as_str).collect();
    let name = format!("worker-{}", names.join("-"));
    Identity { name, role: Role::Worker(capabilities.iter().cloned().collect()) }
}
