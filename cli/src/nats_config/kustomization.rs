//! The text of `kustomization.yaml`: the Secrets that `deploy/kubernetes` refers to, made of the files beside it; and what
//! Kubernetes can't take of them.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use millrace_protocol::ids::Capability;
use millrace_runtime::access::Role;

use super::accounts::HEAD;
use super::keys::current_file;
use super::settings::{Identity, Settings, Tenant};

/// How many bytes a Secret may hold.
const SECRET: usize = 1 << 20;
/// How many characters the value of a label may have.
const LABEL: usize = 63;

/// What Kubernetes can't take. Everything else works with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A capability has a name that nothing in Kubernetes can have.
    Name(Capability),
    /// `accounts.conf` has so many bytes, which no Secret holds.
    Size(usize),
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(
                f,
                "the manifests can't serve {name} under that name: names of Kubernetes are up to {LABEL} of a-z, 0-9 \
                 and '-', with no '-' at the end"
            ),
            Self::Size(bytes) => write!(
                f,
                "accounts.conf has {bytes} bytes and a Secret of Kubernetes holds {SECRET}, so it can't be applied \
                 there: fewer tenants or workers make it smaller"
            ),
        }
    }
}

/// What Kubernetes can't take of these tenants and the text of their `accounts.conf`.
#[must_use]
pub fn notes(settings: &Settings, accounts: &str) -> Vec<Note> {
    let workers = settings.tenants.values().flat_map(|tenant| &tenant.workers);
    let names: BTreeSet<&Capability> = workers.flatten().filter(|name| !is_name(name.as_str())).collect();
    let size = Some(accounts.len()).filter(|&bytes| bytes > SECRET);
    names.into_iter().cloned().map(Note::Name).chain(size.map(Note::Size)).collect()
}

fn is_name(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    text.len() <= LABEL && text.chars().all(is_allowed) && !text.ends_with('-')
}

/// Whether a process in Kubernetes is this, and not a person, who takes the seed from its file.
fn is_process(role: &Role) -> bool {
    match role {
        Role::Supervisor | Role::Worker(_) | Role::Critic | Role::Metrics | Role::Backup => true,
        Role::Client | Role::Viewer => false,
    }
}

/// The whole text, for tenants with their identities. Secrets keep their names when they change, as whoever refers to
/// them is applied by itself.
#[must_use]
pub fn text(settings: &Settings, tenants: &[(Tenant, Vec<Identity>)]) -> String {
    let mut text = format!(
        "{HEAD}apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\ngeneratorOptions:\n  \
         disableNameSuffixHash: true\nsecretGenerator:\n"
    );
    text += &secret(Tenant::DEFAULT, "millrace-nats-accounts", &[("accounts.conf", "accounts.conf")]);
    if settings.tls {
        let files = [("ca.crt", "tls/ca.crt"), ("tls.crt", "tls/server.crt"), ("tls.key", "tls/server.key")];
        text += &secret(Tenant::DEFAULT, "millrace-nats-tls", &files);
    }
    for (tenant, identities) in tenants {
        if settings.tls {
            let files =
                [("ca.crt", "tls/ca.crt"), ("tls.crt", "tls/client.crt"), ("tls.key", "tls/client.key")];
            text += &secret(tenant.as_str(), "millrace-client-tls", &files);
        }
        for identity in identities.iter().filter(|identity| is_process(&identity.role)) {
            let seed = current_file(tenant.as_str(), &identity.name);
            let credentials = super::jwt::credentials_file(tenant.as_str(), &identity.name);
            let files = [("nkey", seed.as_str()), ("creds", credentials.as_str())];
            let files = if settings.jwt { &files[..] } else { &files[..1] };
            text += &secret(tenant.as_str(), &identity.secret(), files);
        }
    }
    text
}

/// A tenant's Secrets are in the namespace of its name.
fn secret(namespace: &str, name: &str, files: &[(&str, &str)]) -> String {
    let mut text = format!("- name: {name}\n  namespace: {namespace}\n  files:\n");
    for (key, file) in files {
        let _ = writeln!(text, "  - {key}={file}");
    }
    text
}
