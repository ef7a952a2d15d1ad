//! What the manifests refer to without holding it: the Secrets that `millrace nats-config` makes, and what the identities
//! in them may do.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use millrace_protocol::ids::Lane;
use millrace_runtime::topology;
use millrace_tests::program::millrace;
use serde_json::Value;

use super::overlay::{Container, Overlay, at, copy, documents, list, overlays, rendered, root};

/// The Secrets that `millrace nats-config` makes for a tenant, with their keys, and accounts.conf.
fn secrets(tenant: &str, arguments: &[&str]) -> (BTreeMap<String, BTreeSet<String>>, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(millrace());
    command.args(["nats-config", "--tenant", "millrace", "--tenant", tenant]);
    let made = command.args(arguments).arg("--out").arg(folder.path()).output();
    let made = made.expect("it can be started");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let text = rendered(folder.path()).expect("overlays are rendered too");
    let all = documents(&text).into_iter();
    let of_it = all.filter(|secret| at(secret, "/metadata/namespace") == tenant).map(|secret| {
        assert_eq!(at(&secret, "/kind"), "Secret");
        let keys = secret["data"].as_object().expect("a Secret has data").keys().cloned().collect();
        (at(&secret, "/metadata/name").to_owned(), keys)
    });
    let accounts = fs::read_to_string(folder.path().join("accounts.conf")).expect("it was written");
    (of_it.collect(), accounts)
}

/// The container that shows who it is now and then: that of the backup.
fn takes_backups(overlay: &Overlay) -> impl Iterator<Item = Container<'_>> {
    overlay.jobs().into_iter().filter(Container::is_ours)
}

/// The Secrets that a workload refers to, with the keys that it needs; optional ones are left out.
fn referred(container: &Container<'_>) -> BTreeMap<String, BTreeSet<String>> {
    let mut all = BTreeMap::new();
    let volumes = list(container.pod(), "/volumes");
    let plain = volumes.iter().filter_map(|volume| Some((&volume["name"], volume.get("secret")?)));
    for (volume, secret) in plain {
        let mount = list(container.its, "/volumeMounts").iter().find(|mount| mount["name"] == *volume);
        let path = at(mount.expect("a volume is mounted"), "/mountPath").to_owned() + "/";
        let words = container.environment().into_values().collect::<Vec<_>>();
        let keys = words.iter().filter_map(|word| word.strip_prefix(&path)).map(ToOwned::to_owned).collect();
        all.insert(at(secret, "/secretName").to_owned(), keys);
    }
    let projected = volumes.iter().flat_map(|volume| list(volume, "/projected/sources"));
    for secret in projected.filter_map(|source| source.get("secret")) {
        let keys = list(secret, "/items").iter().map(|item| at(item, "/key").to_owned()).collect();
        all.insert(at(secret, "/name").to_owned(), keys);
    }
    all
}

#[test]
fn every_secret_is_one_that_nats_config_makes_and_there_is_none_in_the_manifests() {
    let Some(all) = overlays() else { return };
    for overlay in all {
        let tenant = at(overlay.namespace(), "/metadata/name");
        let (made, accounts) = secrets(tenant, &[]);
        assert_eq!(overlay.kind("Secret").count(), 0, "secrets are referred to");
        for container in overlay.containers().into_iter().chain(takes_backups(overlay)) {
            let referred = referred(&container);
            assert!(referred.len() >= 2, "{} has an identity and certificates", container.name());
            for (secret, keys) in &referred {
                let there = made.get(secret).unwrap_or_else(|| panic!("nobody makes the Secret {secret}"));
                assert!(!keys.is_empty() && keys.is_subset(there), "{secret} has {there:?}, not {keys:?}");
            }
            let own = match container.role() {
                "worker" => format!("millrace-nkey-{}", container.name()),
                "nats" => "millrace-nats-accounts".to_owned(),
                role => format!("millrace-nkey-{role}"),
            };
            assert!(referred.contains_key(&own), "{} has {referred:?}, not {own}", container.name());
        }
        for scaled in overlay.kind("ScaledObject") {
            let account = at(&list(scaled, "/spec/triggers")[0], "/metadata/account");
            assert!(accounts.contains(&format!("\"{account}\" {{")), "there is no account {account}");
            assert_eq!(account, tenant, "queues are those of its account");
        }
    }
}

#[test]
fn with_jwts_every_process_shows_credentials_that_nats_config_makes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (deploy, from) = (folder.path().join("deploy"), root().join("deploy"));
    copy(&from.join("kubernetes"), &deploy.join("kubernetes"));
    copy(&from.join("observability"), &deploy.join("observability"));
    let production = deploy.join("kubernetes/overlays/production");
    let file = production.join("kustomization.yaml");
    let text = fs::read_to_string(&file).expect("it was copied");
    fs::write(&file, text + "  - ../../components/jwt\n").expect("a temporary folder");
    let Some(overlay) = Overlay::render(&production) else {
        return eprintln!("passed over: neither kubectl nor kustomize is on PATH");
    };
    let (made, _) = secrets("millrace", &["--jwt"]);
    for container in overlay.processes().into_iter().chain(takes_backups(&overlay)) {
        let referred = referred(&container);
        let identity = referred.iter().find(|(secret, _)| secret.starts_with("millrace-nkey-"));
        let (secret, keys) = identity.expect("it has an identity");
        assert!(keys.contains("creds") && keys.is_subset(&made[secret]), "{secret}: {keys:?}");
        assert!(container.environment()["MILLRACE_NATS_CREDS"].ends_with("/creds"));
    }
}

#[test]
fn keys_of_models_are_with_those_who_ask_models_alone() {
    let Some(all) = overlays() else { return };
    for container in all.iter().flat_map(Overlay::all) {
        let secrets: Vec<&Value> =
            list(container.its, "/envFrom").iter().filter_map(|from| from.get("secretRef")).collect();
        match container.role() {
            "worker" | "critic" => {
                assert_eq!(secrets, [&serde_json::json!({"name": "millrace-models", "optional": true})]);
            }
            _ => assert!(secrets.is_empty(), "{} has {secrets:?}", container.name()),
        }
        let valued = list(container.its, "/env").iter().filter(|one| !one["valueFrom"].is_null());
        for variable in valued {
            assert_eq!(variable["valueFrom"]["fieldRef"]["fieldPath"], "metadata.name", "{variable}");
        }
    }
}

#[test]
fn supervisors_make_as_many_lanes_as_the_identities_are_for_and_as_many_copies_as_there_are_servers() {
    let Some(all) = overlays() else { return };
    let (_, accounts) = secrets("millrace", &[]);
    for overlay in all {
        let processes = overlay.processes();
        let supervisor = processes.iter().find(|one| one.role() == "supervisor").expect("there is one");
        let number = |name: &str| supervisor.argument(name).and_then(|text| text.parse::<u64>().ok());
        let lanes = number("--lanes").and_then(|lanes| u16::try_from(lanes).ok()).expect("it is said");
        let made =
            |lane| accounts.contains(&format!("STREAM.CREATE.{}\"", topology::lane_stream(Lane(lane))));
        assert!(made(lanes - 1), "no identity may make lane {}", lanes - 1);
        assert!(overlay.name == "local" || !made(lanes), "identities are for more lanes");
        let servers =
            overlay.named("StatefulSet", "nats").map_or(Some(3), |set| set["spec"]["replicas"].as_u64());
        assert_eq!(number("--replicas"), servers, "{}", overlay.name);
    }
}
