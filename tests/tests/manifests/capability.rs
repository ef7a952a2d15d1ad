//! A further capability is a file of ten lines.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::overlay::{Overlay, at, copy, differences, list, root, title};

const FILE: &str = "name: analyst\ndescription: Looks into data files.\ninstructions: Look into the files.\n";

/// What the comment in `capabilities/kustomization.yaml` shows.
fn shown(capabilities: &str) -> String {
    let lines = capabilities.lines().filter_map(|line| line.strip_prefix("#   "));
    lines.map(|line| format!("{line}\n")).collect()
}

/// The manifests, and a production overlay of them with the capability.
fn with_analyst(deploy: &Path) -> Option<Overlay> {
    let capabilities = deploy.join("kubernetes/capabilities");
    let list = capabilities.join("kustomization.yaml");
    let before = fs::read_to_string(&list).expect("it was copied");
    let kustomization = shown(&before);
    let lines = kustomization.lines().count();
    assert!((8..=10).contains(&lines), "a capability is {lines} lines:\n{kustomization}");
    let folder = capabilities.join("analyst");
    fs::create_dir(&folder).expect("it is not there yet");
    fs::write(folder.join("kustomization.yaml"), kustomization).expect("a temporary folder");
    fs::write(folder.join("analyst.yaml"), FILE).expect("a temporary folder");
    fs::write(&list, before + "  - analyst\n").expect("a temporary folder");
    Overlay::render(&deploy.join("kubernetes/overlays/production"))
}

#[test]
fn a_further_capability_is_ten_lines_and_changes_nothing_else() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let deploy = folder.path().join("deploy");
    copy(&root().join("deploy/kubernetes"), &deploy.join("kubernetes"));
    copy(&root().join("deploy/observability"), &deploy.join("observability"));
    let Some(before) = Overlay::render(&deploy.join("kubernetes/overlays/production")) else {
        return eprintln!("passed over: neither kubectl nor kustomize is on PATH");
    };
    let after = with_analyst(&deploy).expect("it was there a moment ago");
    let workers = after.processes();
    let worker = workers.iter().find(|one| one.name() == "worker-analyst").expect("it has a Deployment");
    let volumes = list(worker.pod(), "/volumes");
    let settings = volumes.iter().find_map(|volume| volume.pointer("/configMap/name")).expect("its file");
    let settings = settings.as_str().expect("a name is text");
    let mut new: BTreeSet<String> = ["Deployment", "PodDisruptionBudget", "ScaledObject", "ServiceAccount"]
        .iter()
        .map(|kind| format!("{kind}/worker-analyst"))
        .collect();
    new.insert(format!("ConfigMap/{settings}"));
    assert_eq!(differences(&before, &after), new);

    let path = worker.argument("--capability").expect("what it offers is said");
    let mounts = list(worker.its, "/volumeMounts");
    let mount = mounts.iter().find(|mount| mount["name"] == "capability").expect("the file is mounted");
    let file = path.strip_prefix(at(mount, "/mountPath")).expect("it lies there").trim_start_matches('/');
    let map = after.named("ConfigMap", settings).expect("it is there");
    assert_eq!(map["data"][file], FILE);
    let described = folder.path().join(file);
    fs::write(&described, FILE).expect("a temporary folder");
    assert_eq!(millrace_worker::file::check(&described).expect("a capability"), "analyst");
    let identity = volumes
        .iter()
        .find_map(|volume| volume.pointer("/secret/secretName").filter(|_| volume["name"] == "identity"));
    assert_eq!(identity.expect("it has one"), "millrace-nkey-worker-analyst");
    let scaled = after.named("ScaledObject", "worker-analyst").expect("it was found");
    assert_eq!(list(scaled, "/spec/triggers")[0]["metadata"]["consumer"], "analyst");
    assert_eq!(scaled["spec"]["maxReplicaCount"], 10);
}

#[test]
fn a_capability_file_that_changes_rolls_its_own_pods_and_no_others() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let deploy = folder.path().join("deploy");
    copy(&root().join("deploy/kubernetes"), &deploy.join("kubernetes"));
    copy(&root().join("deploy/observability"), &deploy.join("observability"));
    let Some(before) = with_analyst(&deploy) else {
        return eprintln!("passed over: neither kubectl nor kustomize is on PATH");
    };
    let file = deploy.join("kubernetes/capabilities/analyst/analyst.yaml");
    fs::write(file, FILE.replace("Look into", "Look closely into")).expect("a temporary folder");
    let after = Overlay::render(&deploy.join("kubernetes/overlays/production")).expect("it is there");
    let changed = differences(&before, &after);
    let deployments: Vec<&String> = changed.iter().filter(|title| title.starts_with("Deployment/")).collect();
    assert_eq!(deployments, ["Deployment/worker-analyst"]);
    assert!(changed.iter().all(|title| title.contains("analyst")), "{changed:?}");
    let maps =
        after.documents.iter().map(title).filter(|title| title.starts_with("ConfigMap/capability-analyst"));
    assert_eq!(maps.count(), 1);
}
