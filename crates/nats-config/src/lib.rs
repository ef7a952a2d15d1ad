//! Generates the configuration of the NATS servers of a cluster and the credentials of its processes: accounts, nkeys or
//! JWTs, certificates, and Kubernetes Secrets. Permissions are defined in [`millrace_runtime::nats::access`]. This crate contacts
//! no server.
//!
//! | module | contents |
//! |---|---|
//! | `settings` | the stored settings of the folder, and `nats.conf` |
//! | `folder` | the folder: access by its owner only, atomic writes |
//! | [`certificate`] | creating the authority and its certificates, and validating them |
//! | `accounts` | nkeys and their rotation; `accounts.conf` with bare nkeys |
//! | `jwt` | `accounts.conf` with JWTs, and credentials files |
//! | `kustomization` | `kustomization.yaml` |
//!
//! # Invariants
//!
//! - I48: No client connects without an identity and a certificate; a key is rotated without a gap; no seed is printed.
//!   (`cli/tests/nats_config.rs::unknown_identities_are_rejected`,
//!   `cli/tests/nats_config.rs::only_certificates_of_the_own_authority_are_accepted`,
//!   `cli/tests/nats_config.rs::both_keys_work_during_a_rotation`, `cli/tests/nats_config.rs::no_seed_is_ever_printed`)

mod accounts;
pub mod certificate;
mod folder;
mod jwt;
mod kustomization;

mod settings;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::PathBuf;

use jiff::Timestamp;
use millrace_protocol::ids::Capability;
use millrace_runtime::nats::access::{self, Permissions};

use crate::certificate::CertificateProblem;
use accounts::{KeyChange, UserKeys};
use folder::{ConfigFolder, FileAccess};
use settings::{ConfigSettings, UserIdentity};

pub use folder::{FileChange, FileChangeKind};
pub use kustomization::KubernetesNote;
pub use settings::{ByteSize, TenantName};

/// Account and user name of the servers themselves.
const SYSTEM: (&str, &str) = ("SYS", "system");
/// The reason for a change that follows from the request.
const REQUESTED: &str = "as requested";

/// A request to create or change a folder. Fields that are not set keep the existing settings.
#[derive(Debug, Clone)]
pub struct ConfigRequest {
    /// The folder.
    pub out: PathBuf,
    /// The tenants it applies to.
    pub tenants: Vec<TenantName>,
    /// Workers to add.
    pub workers: Vec<BTreeSet<Capability>>,
    /// Maximum number of lanes.
    pub lanes: Option<u16>,
    /// Additional hosts of the servers.
    pub hosts: Vec<String>,
    /// Maximum disk space of a tenant's streams, all replicas together.
    pub max_store: Option<ByteSize>,
    /// `true` to use JWTs.
    pub jwt: bool,
    /// `true` for unencrypted connections.
    pub no_tls: bool,
    /// Identities that get a new key.
    pub rotate: Vec<String>,
    /// Identities whose old key is revoked.
    pub retire: Vec<String>,
    /// The current time.
    pub now: Timestamp,
}

impl ConfigRequest {
    /// A request for the folder `out` with everything else at its default.
    #[must_use]
    pub fn new(out: PathBuf, now: Timestamp) -> Self {
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

/// The outcome of a request.
#[derive(Debug, Clone)]
pub struct ConfigReport {
    /// All changes, in order.
    pub changes: Vec<FileChange>,
    pub tenants: Vec<TenantName>,
    /// `true` if identities are JWTs.
    pub jwt: bool,
    /// `true` if connections are encrypted.
    pub tls: bool,
    /// Notes on what Kubernetes does not accept.
    pub notes: Vec<KubernetesNote>,
}

/// Errors of [`write_configuration`]. Some files may have been written; running the command again continues.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The folder is a file.
    #[error("{0} is not a folder: choose another with --out")]
    NotAFolder(PathBuf),
    /// Another process is writing to the folder.
    #[error("another `millrace nats-config` is writing to {0}: wait for it")]
    Busy(PathBuf),
    /// The folder belongs to another user.
    #[error(
        "{0} belongs to another user, and that user could read the seeds: choose another folder with --out"
    )]
    Foreign(PathBuf),
    /// Other users can read the folder.
    #[error(
        "{path} contains files and is readable by other users (mode {mode:o}): check its contents, then `chmod 700` \
         it, or choose another folder with --out"
    )]
    Exposed {
        /// The folder.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// An operating system error.
    #[error("{path} can't be used")]
    File {
        /// The file or folder.
        path: PathBuf,
        source: std::io::Error,
    },
    /// The settings file is invalid.
    #[error("{path} is not a valid settings file of `millrace nats-config`: {why}")]
    Settings {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// Fewer lanes than before.
    #[error(
        "{path} has {held} lanes; {requested} would revoke permissions of a cluster: lanes are fixed when a cluster is created. \
         Omit --lanes or, if no cluster exists yet, change the number in that file to {requested}"
    )]
    FewerLanes {
        /// The file.
        path: PathBuf,
        /// The number in it.
        held: u16,
        /// The requested number.
        requested: u16,
    },
    /// A limit without saying for which of several tenants.
    #[error("--max-store applies to the tenants given with --tenant, but none is given; existing tenants: {}", existing.join(", "))]
    WhichTenant {
        /// The existing tenants.
        existing: Vec<String>,
    },
    /// Several tenants share the disks, and some of them have no limit.
    #[error(
        "with several tenants each needs a limit of its disk space, or one of them can fill the disks of all: set it with \
         {}", tenants.iter().map(|name| format!("--tenant {name}")).collect::<Vec<_>>().join(" ") + " --max-store SIZE"
    )]
    NoMaxStore {
        /// The tenants without a limit.
        tenants: Vec<String>,
    },
    /// A seed is invalid. The text never contains it.
    #[error("{path} contains no usable seed ({why}): replace it, or remove it to generate a new one")]
    NoSeed {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// There is no such identity.
    #[error("unknown identity {name:?}; existing ones: {}", existing.join(", "))]
    Unknown {
        name: String,
        /// The existing names.
        existing: Vec<String>,
    },
    /// A rotation is in progress.
    #[error("{identity} has an old key already: finish that rotation with --retire first")]
    OldKey { identity: String },
    /// No rotation is in progress.
    #[error("{identity} has only one key, which can't be retired: give it a new one with --rotate first")]
    NoOldKey { identity: String },
    /// Two identities would have the same name.
    #[error("the workers {one} and {other} would have the same name: omit one, or rename a capability")]
    SameName {
        /// One of them.
        one: String,
        other: String,
    },
    /// A certificate or a key is invalid.
    #[error("{0}; replace the file, or remove it to generate a new one")]
    Certificate(CertificateProblem),
    /// The key of the authority is missing.
    #[error(
        "a certificate must be signed, but {key} is missing: put it there; or sign tls/server.crt and tls/client.crt \
         yourself; or remove {certificate} to create a new authority, which every process must then use"
    )]
    NoAuthorityKey {
        /// The key that is missing.
        key: PathBuf,
        /// The certificate that goes with it.
        certificate: PathBuf,
    },
    /// A certificate could not be created.
    #[error("{what} can't be created: {why}")]
    NotCreated {
        /// The file.
        what: String,
        /// The reason.
        why: String,
    },
}

impl ConfigError {
    /// `true` if the request or the folder contents are invalid; `false` for errors of the environment.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::NotAFolder(_)
            | Self::Foreign(_)
            | Self::Exposed { .. }
            | Self::Settings { .. }
            | Self::FewerLanes { .. }
            | Self::WhichTenant { .. }
            | Self::NoMaxStore { .. }
            | Self::NoSeed { .. }
            | Self::Unknown { .. }
            | Self::OldKey { .. }
            | Self::NoOldKey { .. }
            | Self::SameName { .. }
            | Self::Certificate(_)
            | Self::NoAuthorityKey { .. }
            | Self::NotCreated { .. } => true,
            Self::Busy(_) | Self::File { .. } => false,
        }
    }
}

struct AccountWithUsers {
    /// Its name, which is that of the tenant.
    owner: String,
    /// Maximum disk space of its streams, all replicas together.
    max_store: Option<ByteSize>,
    members: Vec<(UserIdentity, UserKeys)>,
}

/// Writes the folder. Existing keys are kept.
/// Errors: See [`ConfigError`]. The request is validated before anything is written.
pub fn write_configuration(request: &ConfigRequest) -> Result<ConfigReport, ConfigError> {
    let mut folder = ConfigFolder::open_and_lock(&request.out)?;
    let settings = read_settings(&folder, request)?;
    let identities = identities_by_tenant(&settings)?;
    let changes = KeyChanges::from_request(request, &settings, &identities)?;
    changes.check_key_changes(&folder)?;
    folder.write_gitignore()?;
    folder.write_file(settings::FILE, FileAccess::Shared, &settings.to_file_text(), REQUESTED)?;

    let system = accounts::read_or_change_user_keys(
        &mut folder,
        SYSTEM.0,
        SYSTEM.1,
        changes.key_change_of(SYSTEM.0, SYSTEM.1),
    )?;
    let accounts = prepare_accounts(&mut folder, &settings, &identities, &changes)?;
    if settings.tls {
        certificate::write_certificates(&mut folder, &settings.hosts, request.now)?;
    }
    let text = if settings.jwt {
        jwt::issue_jwts(&mut folder, &system, &accounts, settings.lanes, request.now)?
    } else {
        accounts::accounts_conf_text(&system, &accounts, settings.lanes)
    };
    folder.write_file("accounts.conf", FileAccess::Shared, &text, REQUESTED)?;
    folder.write_file(
        "nats.conf",
        FileAccess::Shared,
        &settings::nats_conf_text(settings.tls),
        "updated to this version of millrace",
    )?;
    folder.write_file(
        "kustomization.yaml",
        FileAccess::Shared,
        &kustomization::kustomization_text(&settings, &identities),
        REQUESTED,
    )?;
    // Last, because the JWT of an account must list retired keys.
    for (owner, name) in &changes.retire {
        folder.remove_file(&accounts::old_key_file_name(owner, name), "its key was revoked")?;
    }
    let notes = kustomization::find_kubernetes_notes(&settings, &text);
    let tenants = settings.tenants.into_keys().collect();
    Ok(ConfigReport { changes: folder.into_changes(), tenants, jwt: settings.jwt, tls: settings.tls, notes })
}

fn read_settings(folder: &ConfigFolder, request: &ConfigRequest) -> Result<ConfigSettings, ConfigError> {
    let path = folder.file_path(settings::FILE);
    let mut settings = match folder.read_file(settings::FILE)? {
        Some(text) => {
            let stored = ConfigSettings::parse(&text)
                .map_err(|why| ConfigError::Settings { path: path.clone(), why })?;
            stored.check_request(request, &path)?;
            stored
        }
        None => ConfigSettings::default(),
    };
    settings.apply_request(request);
    settings.check_store_limits()?;
    Ok(settings)
}

type IdentitiesByTenant = Vec<(TenantName, Vec<UserIdentity>)>;

fn identities_by_tenant(settings: &ConfigSettings) -> Result<IdentitiesByTenant, ConfigError> {
    settings.tenants.iter().map(|(tenant, of)| Ok((tenant.clone(), of.user_identities()?))).collect()
}

fn prepare_accounts(
    folder: &mut ConfigFolder,
    settings: &ConfigSettings,
    identities: &IdentitiesByTenant,
    changes: &KeyChanges,
) -> Result<Vec<AccountWithUsers>, ConfigError> {
    let mut accounts = Vec::new();
    for (tenant, identities) in identities {
        let owner = tenant.as_str();
        let mut members = Vec::new();
        for identity in identities {
            let change = changes.key_change_of(owner, &identity.name);
            members.push((
                identity.clone(),
                accounts::read_or_change_user_keys(folder, owner, &identity.name, change)?,
            ));
        }
        let max_store = settings.tenants.get(tenant).and_then(|of| of.max_store);
        accounts.push(AccountWithUsers { owner: owner.to_owned(), max_store, members });
    }
    Ok(accounts)
}

/// Returns the permissions of an identity with this key.
fn identity_permissions(identity: &UserIdentity, lanes: u16, key: &str) -> Permissions {
    access::permissions_of_role(&identity.role, lanes, &access::inbox_prefix_of_key(key))
}

/// The identities whose keys change, as (owner, name).
struct KeyChanges {
    rotate: BTreeSet<(String, String)>,
    retire: BTreeSet<(String, String)>,
}

impl KeyChanges {
    /// Resolves identity names in all selected tenants; `system` is the user of the servers themselves.
    fn from_request(
        request: &ConfigRequest,
        settings: &ConfigSettings,
        identities: &IdentitiesByTenant,
    ) -> Result<Self, ConfigError> {
        let selected = settings.selected_tenants(&request.tenants);
        let mut all: Vec<(String, String)> = vec![(SYSTEM.0.into(), SYSTEM.1.into())];
        for (tenant, identities) in identities.iter().filter(|(tenant, _)| selected.contains(tenant)) {
            all.extend(identities.iter().map(|identity| (tenant.to_string(), identity.name.clone())));
        }
        let resolve = |names: &[String]| -> Result<BTreeSet<(String, String)>, ConfigError> {
            let is_unknown = |name: &&String| !all.iter().any(|(_, other)| other == *name);
            if let Some(name) = names.iter().find(is_unknown) {
                let existing: BTreeSet<String> = all.iter().map(|(_, name)| name.clone()).collect();
                return Err(ConfigError::Unknown {
                    name: name.clone(),
                    existing: existing.into_iter().collect(),
                });
            }
            Ok(all.iter().filter(|(_, name)| names.contains(name)).cloned().collect())
        };
        Ok(Self { rotate: resolve(&request.rotate)?, retire: resolve(&request.retire)? })
    }

    fn check_key_changes(&self, folder: &ConfigFolder) -> Result<(), ConfigError> {
        let each = |change| {
            move |(owner, name): &(String, String)| accounts::check_key_change(folder, owner, name, change)
        };
        self.rotate.iter().try_for_each(each(KeyChange::Rotate))?;
        self.retire.iter().try_for_each(each(KeyChange::Retire))
    }

    fn key_change_of(&self, owner: &str, identity: &str) -> KeyChange {
        let key = (owner.to_owned(), identity.to_owned());
        match (self.rotate.contains(&key), self.retire.contains(&key)) {
            (true, _) => KeyChange::Rotate,
            (false, true) => KeyChange::Retire,
            (false, false) => KeyChange::None,
        }
    }
}
