//! The text of `kustomization.yaml`: the Secrets that `deploy/kubernetes` refers to, built from the files next to it; and
//! notes on what Kubernetes does not accept.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use millrace_protocol::ids::Capability;
use millrace_runtime::nats::access::AccessRole;

use crate::accounts::{HEAD, current_key_file_name};
use crate::settings::{ConfigSettings, TenantName, UserIdentity};

/// Maximum size of a Secret in bytes.
const MAX_SECRET: usize = 1 << 20;
/// Maximum length of a label value.
const MAX_LABEL: usize = 63;

/// Something that Kubernetes does not accept; everything else works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KubernetesNote {
    /// The name of a capability is not valid in Kubernetes.
    Name(Capability),
    /// `accounts.conf` has this many bytes, too many for a Secret.
    Size(usize),
}

impl fmt::Display for KubernetesNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(
                f,
                "the manifests can't serve {name} under that name: Kubernetes names have up to {MAX_LABEL} characters a-z, 0-9 \
                 and '-', and don't end with '-'"
            ),
            Self::Size(bytes) => write!(
                f,
                "accounts.conf has {bytes} bytes, but a Kubernetes Secret holds at most {MAX_SECRET}, so it can't be applied: \
                 use fewer tenants, workers or lanes"
            ),
        }
    }
}

/// Returns notes on these tenants and the text of their `accounts.conf`.
#[must_use]
pub fn find_kubernetes_notes(settings: &ConfigSettings, accounts: &str) -> Vec<KubernetesNote> {
    let workers = settings.tenants.values().flat_map(|tenant| &tenant.workers);
    let names: BTreeSet<&Capability> =
        workers.flatten().filter(|name| !is_kubernetes_name(name.as_str())).collect();
    let size = Some(accounts.len()).filter(|&bytes| bytes > MAX_SECRET);
    names.into_iter().cloned().map(KubernetesNote::Name).chain(size.map(KubernetesNote::Size)).collect()
}

fn is_kubernetes_name(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    text.len() <= MAX_LABEL && text.chars().all(is_allowed) && !text.ends_with('-')
}

/// `true` for roles of processes in Kubernetes; people use the seed file directly.
fn has_deployment(role: &AccessRole) -> bool {
    match role {
        AccessRole::Supervisor
        | AccessRole::Worker(_)
        | AccessRole::Critic
        | AccessRole::Gateway
        | AccessRole::Metrics
        | AccessRole::Backup => true,
        AccessRole::Client | AccessRole::Viewer | AccessRole::Answerer => false,
    }
}

/// Returns the text for tenants with their identities. Secrets keep their names when they change, because the manifests
/// that refer to them are applied separately.
#[must_use]
pub fn kustomization_text(settings: &ConfigSettings, tenants: &[(TenantName, Vec<UserIdentity>)]) -> String {
    let mut text = format!(
        "{HEAD}apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\ngeneratorOptions:\n  \
         disableNameSuffixHash: true\nsecretGenerator:\n"
    );
    text += &secret_generator_entry(
        TenantName::DEFAULT,
        "millrace-nats-accounts",
        &[("accounts.conf", "accounts.conf")],
    );
    if settings.tls {
        let files = [("ca.crt", "tls/ca.crt"), ("tls.crt", "tls/server.crt"), ("tls.key", "tls/server.key")];
        text += &secret_generator_entry(TenantName::DEFAULT, "millrace-nats-tls", &files);
    }
    for (tenant, identities) in tenants {
        if settings.tls {
            let files =
                [("ca.crt", "tls/ca.crt"), ("tls.crt", "tls/client.crt"), ("tls.key", "tls/client.key")];
            text += &secret_generator_entry(tenant.as_str(), "millrace-client-tls", &files);
        }
        for identity in identities.iter().filter(|identity| has_deployment(&identity.role)) {
            let seed = current_key_file_name(tenant.as_str(), &identity.name);
            let credentials = crate::jwt::credentials_file_name(tenant.as_str(), &identity.name);
            let files = [("nkey", seed.as_str()), ("creds", credentials.as_str())];
            let files = if settings.jwt { &files[..] } else { &files[..1] };
            text += &secret_generator_entry(tenant.as_str(), &identity.secret_name(), files);
        }
    }
    text
}

/// Returns a Secret; the namespace of a tenant has its name.
fn secret_generator_entry(namespace: &str, name: &str, files: &[(&str, &str)]) -> String {
    let mut text = format!("- name: {name}\n  namespace: {namespace}\n  files:\n");
    for (key, file) in files {
        let _ = writeln!(text, "  - {key}={file}");
    }
    text
}
