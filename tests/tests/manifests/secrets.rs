//! The Secrets to which the manifests refer: `millrace nats-config` writes them, with identities and permissions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use millrace_protocol::ids::Lane;
use millrace_runtime::nats::topology;
use millrace_tests::program::millrace_program;
use serde_json::Value;

use super::overlay::{
    Overlay, WorkloadContainer, copy_folder, list_at, parse_documents, render_all_overlays, render_to_text,
    string_at, workspace_folder,
};

/// The Secrets that `millrace nats-config` writes for a tenant, with their keys, and accounts.conf.
fn generate_secrets(tenant: &str, arguments: &[&str]) -> (BTreeMap<String, BTreeSet<String>>, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(millrace_program());
    command.args(["nats-config", "--tenant", "millrace", "--tenant", tenant, "--max-store", "10GB"]);
    let made = command.args(arguments).arg("--out").arg(folder.path()).output();
    let made = made.expect("it can be started");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let text = render_to_text(folder.path()).expect("overlays are rendered too");
    let all = parse_documents(&text).into_iter();
    let of_it = all.filter(|secret| string_at(secret, "/metadata/namespace") == tenant).map(|secret| {
        assert_eq!(string_at(&secret, "/kind"), "Secret");
        let keys = secret["data"].as_object().expect("a Secret has data").keys().cloned().collect();
        (string_at(&secret, "/metadata/name").to_owned(), keys)
    });
    let accounts = fs::read_to_string(folder.path().join("accounts.conf")).expect("it was written");
    (of_it.collect(), accounts)
}

/// The container of the backup job, which connects to NATS too.
fn backup_job_containers(overlay: &Overlay) -> impl Iterator<Item = WorkloadContainer<'_>> {
    overlay.job_containers().into_iter().filter(WorkloadContainer::is_millrace_program)
}

/// The Secrets to which a workload refers, with the keys it needs, without optional ones.
fn referenced_secrets(container: &WorkloadContainer<'_>) -> BTreeMap<String, BTreeSet<String>> {
    let mut all = BTreeMap::new();
    let volumes = list_at(container.pod_template(), "/volumes");
    let plain = volumes.iter().filter_map(|volume| Some((&volume["name"], volume.get("secret")?)));
    for (volume, secret) in plain {
        let mount = list_at(container.its, "/volumeMounts").iter().find(|mount| mount["name"] == *volume);
        let path = string_at(mount.expect("a volume is mounted"), "/mountPath").to_owned() + "/";
        let words = container.resolved_environment().into_values().collect::<Vec<_>>();
        let keys = words.iter().filter_map(|word| word.strip_prefix(&path)).map(ToOwned::to_owned).collect();
        all.insert(string_at(secret, "/secretName").to_owned(), keys);
    }
    let projected = volumes.iter().flat_map(|volume| list_at(volume, "/projected/sources"));
    for secret in projected.filter_map(|source| source.get("secret")) {
        let keys = list_at(secret, "/items").iter().map(|item| string_at(item, "/key").to_owned()).collect();
        all.insert(string_at(secret, "/name").to_owned(), keys);
    }
    all
}

#[test]
fn secrets_are_written_by_nats_config_and_not_in_manifests() {
    let Some(all) = render_all_overlays() else { return };
    for overlay in all {
        let tenant = string_at(overlay.overlay_namespace(), "/metadata/name");
        let (made, accounts) = generate_secrets(tenant, &[]);
        assert_eq!(overlay.documents_of_kind("Secret").count(), 0, "there are no secrets in the manifests");
        for container in overlay.long_running_containers().into_iter().chain(backup_job_containers(overlay)) {
            let referred = referenced_secrets(&container);
            assert!(referred.len() >= 2, "{} has an identity and certificates", container.workload_name());
            for (secret, keys) in &referred {
                let there =
                    made.get(secret).unwrap_or_else(|| panic!("no command writes the Secret {secret}"));
                assert!(!keys.is_empty() && keys.is_subset(there), "{secret} has {there:?}, not {keys:?}");
            }
            let own = match container.process_role() {
                "worker" => format!("millrace-nkey-{}", container.workload_name()),
                "nats" => "millrace-nats-accounts".to_owned(),
                role => format!("millrace-nkey-{role}"),
            };
            assert!(referred.contains_key(&own), "{} has {referred:?}, not {own}", container.workload_name());
        }
        for scaled in overlay.documents_of_kind("ScaledObject") {
            let account = string_at(&list_at(scaled, "/spec/triggers")[0], "/metadata/account");
            assert!(accounts.contains(&format!("\"{account}\" {{")), "there is no account {account}");
            assert_eq!(account, tenant, "queues belong to its account");
        }
    }
}

#[test]
fn jwt_processes_use_credentials_written_by_nats_config() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (deploy, from) = (folder.path().join("deploy"), workspace_folder().join("deploy"));
    copy_folder(&from.join("kubernetes"), &deploy.join("kubernetes"));
    copy_folder(&from.join("observability"), &deploy.join("observability"));
    let production = deploy.join("kubernetes/overlays/production");
    let file = production.join("kustomization.yaml");
    let text = fs::read_to_string(&file).expect("it was copied");
    fs::write(&file, text + "  - ../../components/jwt\n").expect("a temporary folder");
    let Some(overlay) = Overlay::render(&production) else {
        return eprintln!("passed over: neither kubectl nor kustomize is on PATH");
    };
    let (made, _) = generate_secrets("millrace", &["--jwt"]);
    for container in overlay.millrace_containers().into_iter().chain(backup_job_containers(&overlay)) {
        let referred = referenced_secrets(&container);
        let identity = referred.iter().find(|(secret, _)| secret.starts_with("millrace-nkey-"));
        let (secret, keys) = identity.expect("it has an identity");
        assert!(keys.contains("creds") && keys.is_subset(&made[secret]), "{secret}: {keys:?}");
        assert!(container.resolved_environment()["MILLRACE_NATS_CREDS"].ends_with("/creds"));
    }
}

#[test]
fn only_processes_that_call_models_have_their_keys() {
    let Some(all) = render_all_overlays() else { return };
    for container in all.iter().flat_map(Overlay::all_containers) {
        let secrets: Vec<&Value> =
            list_at(container.its, "/envFrom").iter().filter_map(|from| from.get("secretRef")).collect();
        match container.process_role() {
            "worker" | "critic" => {
                assert_eq!(secrets, [&serde_json::json!({"name": "millrace-models", "optional": true})]);
            }
            _ => assert!(secrets.is_empty(), "{} has {secrets:?}", container.workload_name()),
        }
        let valued = list_at(container.its, "/env").iter().filter(|one| !one["valueFrom"].is_null());
        for variable in valued {
            assert_eq!(variable["valueFrom"]["fieldRef"]["fieldPath"], "metadata.name", "{variable}");
        }
    }
}

#[test]
fn lanes_and_replicas_match_identities_and_servers() {
    let Some(all) = render_all_overlays() else { return };
    let (_, accounts) = generate_secrets("millrace", &[]);
    for overlay in all {
        let processes = overlay.millrace_containers();
        let supervisor =
            processes.iter().find(|one| one.process_role() == "supervisor").expect("there is one");
        let number = |name: &str| supervisor.argument_value(name).and_then(|text| text.parse::<u64>().ok());
        let lanes = number("--lanes").and_then(|lanes| u16::try_from(lanes).ok()).expect("it is said");
        let made =
            |lane| accounts.contains(&format!("STREAM.CREATE.{}\"", topology::lane_stream(Lane(lane))));
        assert!(made(lanes - 1), "no identity may create lane {}", lanes - 1);
        assert!(overlay.name == "local" || !made(lanes), "identities are for more lanes");
        let servers = overlay
            .find_document("StatefulSet", "nats")
            .map_or(Some(3), |set| set["spec"]["replicas"].as_u64());
        assert_eq!(number("--replicas"), servers, "{}", overlay.name);
    }
}
