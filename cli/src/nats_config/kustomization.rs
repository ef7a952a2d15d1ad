//! The text of `kustomization.yaml`: the Secrets that `deploy/kubernetes` refers to, made of the files beside it.

use std::fmt::Write;

use super::accounts::HEAD;
use super::keys::current_file;
use super::settings::{Identity, Settings, Tenant};

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
        for identity in identities {
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
