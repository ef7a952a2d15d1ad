//! Writes what a NATS server of a cluster needs to know, and what each process needs to get in: configuration,
//! identities, certificates, and the Secrets of Kubernetes. It decides nothing about who may do what: that is
//! [`millrace_runtime::access`]. It talks to no server.
//!
//! | module | what it owns |
//! |---|---|
//! | [`settings`] | what the folder is for, as it was asked for so far |
//! | [`folder`] | the folder: closed to others, files whole or not there |
//! | [`keys`] | the nkeys, and their exchange |
//! | [`certificates`] | the authority and its certificates |
//! | [`accounts`] | `accounts.conf` with bare nkeys |
//! | [`office`], [`jwt`] | `accounts.conf` with JWTs, and the credentials |
//! | [`server`] | `nats.conf` |
//! | [`kustomization`] | `kustomization.yaml` |

mod accounts;
mod certificates;
mod folder;
mod jwt;
mod keys;
mod kustomization;
mod office;
mod server;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::PathBuf;

use jiff::Timestamp;
use millrace_protocol::ids::Capability;
use millrace_runtime::access::{self, Permissions};

use crate::certificate::Fault;
use folder::{Folder, Kept};
use keys::{Exchange, Keys};
use settings::{Identity, Settings};

pub use folder::{Change, What};
pub use kustomization::Note;
pub use settings::{Size, Tenant};

/// Who owns the servers' own account, and what it is called.
const SYSTEM: (&str, &str) = ("SYS", "system");
/// Why a file changes that is made of others.
const FOLLOWS: &str = "as asked for";

/// What is asked for. What is not named stays as it is.
#[derive(Debug, Clone)]
pub struct Request {
    /// The folder.
    pub out: PathBuf,
    /// The tenants that are meant.
    pub tenants: Vec<Tenant>,
    /// Workers that they are to have beside those that they have.
    pub workers: Vec<BTreeSet<Capability>>,
    /// How many lanes the log may have.
    pub lanes: Option<u16>,
    /// Hosts of the servers, beside the usual ones.
    pub hosts: Vec<String>,
    /// How much the streams of a tenant may take on disk, all copies together.
    pub max_store: Option<Size>,
    /// Whether identities are JWTs.
    pub jwt: bool,
    /// Whether connections are in the clear.
    pub no_tls: bool,
    /// The identities that get another key.
    pub rotate: Vec<String>,
    /// The identities whose old key is let in no more.
    pub retire: Vec<String>,
    /// The time.
    pub now: Timestamp,
}

#[cfg(test)]
impl Request {
    /// What somebody asks for who names nothing but the folder.
    pub fn plain(out: PathBuf, now: Timestamp) -> Self {
        Self {
            out,
            tenants: Vec::new(),
            workers: Vec::new(),
            lanes: None,
            hosts: Vec::new(),
            max_store: None,
            jwt: false,
            no_tls: false,
            rotate: Vec::new(),
            retire: Vec::new(),
            now,
        }
    }
}

/// What became of it.
#[derive(Debug, Clone)]
pub struct Report {
    /// What was written, in that order.
    pub changes: Vec<Change>,
    /// The tenants that there are now.
    pub tenants: Vec<Tenant>,
    /// Whether identities are JWTs.
    pub jwt: bool,
    /// Whether connections are encrypted.
    pub tls: bool,
    /// What Kubernetes can't take of it.
    pub notes: Vec<Note>,
}

/// Why nothing, or not everything, was written. Running the command again goes on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder is a file.
    #[error("{0} is not a folder: name another with --out")]
    NotAFolder(PathBuf),
    /// Another process is at it.
    #[error("another `millrace nats-config` is writing to {0}: wait for it")]
    Busy(PathBuf),
    /// The folder is somebody else's.
    #[error("{0} belongs to another user, who could read the seeds: name another folder with --out")]
    Foreign(PathBuf),
    /// Others can read the folder.
    #[error(
        "{path} holds files and others can read it (mode {mode:o}): look at what is in it, then `chmod 700` it, or \
         name another folder with --out"
    )]
    Exposed {
        /// The folder.
        path: PathBuf,
        /// Its rights.
        mode: u32,
    },
    /// The system says no.
    #[error("{path} can't be used")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What it says.
        source: std::io::Error,
    },
    /// The settings can't be read.
    #[error("{path} holds no settings of `millrace nats-config`: {why}")]
    Settings {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Lanes are to be fewer.
    #[error(
        "{path} holds {held} lanes, and {asked} would take from a cluster what it has: lanes are fixed when a cluster is \
         made; leave --lanes out, or, where none is made yet, write {asked} into that file"
    )]
    FewerLanes {
        /// The file.
        path: PathBuf,
        /// How many it holds.
        held: u16,
        /// How many are asked for.
        asked: u16,
    },
    /// A limit is for one of several tenants, and it is not said for which.
    #[error("--max-store is for the tenants that --tenant names, and it names none; there are {}", known.join(", "))]
    WhichTenant {
        /// The tenants that there are.
        known: Vec<String>,
    },
    /// A seed can't be read. The text never holds it.
    #[error(
        "{path} holds no seed that can be used ({why}): put the right one there, or remove it to have a new one"
    )]
    NoSeed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Nobody is called so.
    #[error("nobody is called {name:?}; there are {}", known.join(", "))]
    Unknown {
        /// The name.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// An exchange is under way.
    #[error("{identity} has an old key already: end that exchange with --retire first")]
    OldKey {
        /// Whose.
        identity: String,
    },
    /// No exchange is under way.
    #[error("{identity} has one key only, and it stays: --rotate gives it another first")]
    NoOldKey {
        /// Whose.
        identity: String,
    },
    /// Two identities would be one.
    #[error(
        "the workers {one} and {other} would have one name: leave one out, or call a capability otherwise"
    )]
    SameName {
        /// One of them.
        one: String,
        /// The other.
        other: String,
    },
    /// A certificate or a key is none.
    #[error("{0}; put the right file there, or remove it to have a new one")]
    Certificate(Fault),
    /// The authority is somebody else's.
    #[error(
        "a certificate has to be signed, and {key} is not there: put it there; or sign tls/server.crt and \
         tls/client.crt yourself; or remove {certificate} to have a new authority, which every process has to be told"
    )]
    NoAuthorityKey {
        /// The key that is missing.
        key: PathBuf,
        /// The certificate that goes with it.
        certificate: PathBuf,
    },
    /// A certificate could not be made.
    #[error("{what} can't be made: {why}")]
    NotMade {
        /// The file.
        what: String,
        /// What is wrong.
        why: String,
    },
}

impl Error {
    /// Whether what was asked for is at fault, and not the machine.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::NotAFolder(_)
            | Self::Foreign(_)
            | Self::Exposed { .. }
            | Self::Settings { .. }
            | Self::FewerLanes { .. }
            | Self::WhichTenant { .. }
            | Self::NoSeed { .. }
            | Self::Unknown { .. }
            | Self::OldKey { .. }
            | Self::NoOldKey { .. }
            | Self::SameName { .. }
            | Self::Certificate(_)
            | Self::NoAuthorityKey { .. }
            | Self::NotMade { .. } => true,
            Self::Busy(_) | Self::File { .. } => false,
        }
    }
}

/// An account with all whom it lets in.
struct Account {
    /// Its name: the tenant's.
    owner: String,
    /// How much its streams may take on disk, all copies on all servers together.
    max_store: Option<Size>,
    /// Those whom it lets in, with their keys.
    members: Vec<(Identity, Keys)>,
}

/// Writes the folder. What it holds already is kept, whatever is asked for.
///
/// # Errors
/// See [`Error`]. Nothing is written before what is asked for was found to make sense.
pub fn write(request: &Request) -> Result<Report, Error> {
    let mut folder = Folder::open(&request.out)?;
    let settings = settings(&folder, request)?;
    let identities = identities(&settings)?;
    let exchanges = Exchanges::of(request, &settings, &identities)?;
    exchanges.check(&folder)?;
    folder.keep_out_of_git()?;
    folder.write(settings::FILE, Kept::Open, &settings.text(), FOLLOWS)?;

    let system = keys::of_user(&mut folder, SYSTEM.0, SYSTEM.1, exchanges.with(SYSTEM.0, SYSTEM.1))?;
    let accounts = accounts(&mut folder, &settings, &identities, &exchanges)?;
    if settings.tls {
        certificates::write(&mut folder, &settings.hosts, request.now)?;
    }
    let text = if settings.jwt {
        office::write(&mut folder, &system, &accounts, settings.lanes, request.now)?
    } else {
        accounts::text(&system, &accounts, settings.lanes)
    };
    folder.write("accounts.conf", Kept::Open, &text, FOLLOWS)?;
    folder.write("nats.conf", Kept::Open, &server::text(settings.tls), "it was of another version")?;
    folder.write("kustomization.yaml", Kept::Open, &kustomization::text(&settings, &identities), FOLLOWS)?;
    // Last, as an account's JWT has to name what is retired.
    for (owner, name) in &exchanges.retire {
        folder.remove(&keys::old_file(owner, name), "its key is let in no more")?;
    }
    let notes = kustomization::notes(&settings, &text);
    let tenants = settings.tenants.into_keys().collect();
    Ok(Report { changes: folder.changes(), tenants, jwt: settings.jwt, tls: settings.tls, notes })
}

fn settings(folder: &Folder, request: &Request) -> Result<Settings, Error> {
    let path = folder.path(settings::FILE);
    let mut settings = match folder.read(settings::FILE)? {
        Some(text) => {
            let held = Settings::parse(&text).map_err(|why| Error::Settings { path: path.clone(), why })?;
            held.check(request, &path)?;
            held
        }
        None => Settings::default(),
    };
    settings.add(request);
    Ok(settings)
}

type Identities = Vec<(Tenant, Vec<Identity>)>;

fn identities(settings: &Settings) -> Result<Identities, Error> {
    settings.tenants.iter().map(|(tenant, of)| Ok((tenant.clone(), of.identities()?))).collect()
}

fn accounts(
    folder: &mut Folder,
    settings: &Settings,
    identities: &Identities,
    exchanges: &Exchanges,
) -> Result<Vec<Account>, Error> {
    let mut accounts = Vec::new();
    for (tenant, identities) in identities {
        let owner = tenant.as_str();
        let mut members = Vec::new();
        for identity in identities {
            let exchange = exchanges.with(owner, &identity.name);
            members.push((identity.clone(), keys::of_user(folder, owner, &identity.name, exchange)?));
        }
        let max_store = settings.tenants.get(tenant).and_then(|of| of.max_store);
        accounts.push(Account { owner: owner.to_owned(), max_store, members });
    }
    Ok(accounts)
}

/// What an identity may do with this key.
fn permissions(identity: &Identity, lanes: u16, key: &str) -> Permissions {
    access::permissions(&identity.role, lanes, &access::inbox(key))
}

/// Whose keys are exchanged: owners and names.
struct Exchanges {
    rotate: BTreeSet<(String, String)>,
    retire: BTreeSet<(String, String)>,
}

impl Exchanges {
    /// An identity's name means that of each tenant that is meant; `system` is the servers' own.
    fn of(request: &Request, settings: &Settings, identities: &Identities) -> Result<Self, Error> {
        let meant = settings.named(&request.tenants);
        let mut all: Vec<(String, String)> = vec![(SYSTEM.0.into(), SYSTEM.1.into())];
        for (tenant, identities) in identities.iter().filter(|(tenant, _)| meant.contains(tenant)) {
            all.extend(identities.iter().map(|identity| (tenant.to_string(), identity.name.clone())));
        }
        let named = |names: &[String]| -> Result<BTreeSet<(String, String)>, Error> {
            let known = |name: &&String| !all.iter().any(|(_, known)| known == *name);
            if let Some(name) = names.iter().find(known) {
                let known: BTreeSet<String> = all.iter().map(|(_, name)| name.clone()).collect();
                return Err(Error::Unknown { name: name.clone(), known: known.into_iter().collect() });
            }
            Ok(all.iter().filter(|(_, name)| names.contains(name)).cloned().collect())
        };
        Ok(Self { rotate: named(&request.rotate)?, retire: named(&request.retire)? })
    }

    fn check(&self, folder: &Folder) -> Result<(), Error> {
        let each =
            |exchange| move |(owner, name): &(String, String)| keys::check(folder, owner, name, exchange);
        self.rotate.iter().try_for_each(each(Exchange::Rotate))?;
        self.retire.iter().try_for_each(each(Exchange::Retire))
    }

    fn with(&self, owner: &str, identity: &str) -> Exchange {
        let key = (owner.to_owned(), identity.to_owned());
        match (self.rotate.contains(&key), self.retire.contains(&key)) {
            (true, _) => Exchange::Rotate,
            (false, true) => Exchange::Retire,
            (false, false) => Exchange::None,
        }
    }
}
