//! Another capability is a file of ten lines.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::overlay::{
    Overlay, copy_folder, differing_documents, document_title, list_at, string_at, workspace_folder,
};

const FILE: &str = "name: analyst\ndescription: Looks into data files.\ninstructions: Look into the files.\n";

/// The example in the comment of `capabilities/kustomization.yaml`.
fn extract_example(capabilities: &str) -> String {
    let lines = capabilities.lines().filter_map(|line| line.strip_prefix("#   "));
    lines.map(|line| format!("{line}\n")).collect()
}

/// A production overlay of the manifests with the capability.
fn overlay_with_analyst(deploy: &Path) -> Option<Overlay> {
    let capabilities = deploy.join("kubernetes/capabilities");
    let list = capabilities.join("kustomization.yaml");
    let before = fs::read_to_string(&list).expect("it was copied");
    let kustomization = extract_example(&before);
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
fn added_capability_is_ten_lines_and_changes_nothing_else() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let deploy = folder.path().join("deploy");
    copy_folder(&workspace_folder().join("deploy/kubernetes"), &deploy.join("kubernetes"));
    copy_folder(&workspace_folder().join("deploy/observability"), &deploy.join("observability"));
    let Some(before) = Overlay::render(&deploy.join("kubernetes/overlays/production")) else {
        return eprintln!("passed over: neither kubectl nor kustomize is on PATH");
    };
    let after = overlay_with_analyst(&deploy).expect("it was there a moment ago");
    let workers = after.millrace_containers();
    let worker =
        workers.iter().find(|one| one.workload_name() == "worker-analyst").expect("it has a Deployment");
    let volumes = list_at(worker.pod_template(), "/volumes");
    let settings = volumes.iter().find_map(|volume| volume.pointer("/configMap/name")).expect("its file");
    let settings = settings.as_str().expect("a name is text");
    let mut new: BTreeSet<String> = ["Deployment", "PodDisruptionBudget", "ScaledObject", "ServiceAccount"]
        .iter()
        .map(|kind| format!("{kind}/worker-analyst"))
        .collect();
    new.insert(format!("ConfigMap/{settings}"));
    assert_eq!(differing_documents(&before, &after), new);

    let path = worker.argument_value("--capability").expect("its capability is an argument");
    let mounts = list_at(worker.its, "/volumeMounts");
    let mount = mounts.iter().find(|mount| mount["name"] == "capability").expect("the file is mounted");
    let file =
        path.strip_prefix(string_at(mount, "/mountPath")).expect("it lies there").trim_start_matches('/');
    let map = after.find_document("ConfigMap", settings).expect("it is there");
    assert_eq!(map["data"][file], FILE);
    let described = folder.path().join(file);
    fs::write(&described, FILE).expect("a temporary folder");
    let capability = millrace_worker::file::describe_capability_file(&described).expect("a capability");
    assert_eq!(capability.name.as_str(), "analyst");
    let identity = volumes
        .iter()
        .find_map(|volume| volume.pointer("/secret/secretName").filter(|_| volume["name"] == "identity"));
    assert_eq!(identity.expect("an identity"), "millrace-nkey-worker-analyst");
    let scaled = after.find_document("ScaledObject", "worker-analyst").expect("it was found");
    assert_eq!(list_at(scaled, "/spec/triggers")[0]["metadata"]["consumer"], "analyst");
    assert_eq!(scaled["spec"]["maxReplicaCount"], 10);
}

#[test]
fn changed_capability_file_restarts_its_own_pods_only() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let deploy = folder.path().join("deploy");
    copy_folder(&workspace_folder().join("deploy/kubernetes"), &deploy.join("kubernetes"));
    copy_folder(&workspace_folder().join("deploy/observability"), &deploy.join("observability"));
    let Some(before) = overlay_with_analyst(&deploy) else {
        return eprintln!("passed over: neither kubectl nor kustomize is on PATH");
    };
    let file = deploy.join("kubernetes/capabilities/analyst/analyst.yaml");
    fs::write(file, FILE.replace("Look into", "Look closely into")).expect("a temporary folder");
    let after = Overlay::render(&deploy.join("kubernetes/overlays/production")).expect("it is there");
    let changed = differing_documents(&before, &after);
    let deployments: Vec<&String> = changed.iter().filter(|title| title.starts_with("Deployment/")).collect();
    assert_eq!(deployments, ["Deployment/worker-analyst"]);
    assert!(changed.iter().all(|title| title.contains("analyst")), "{changed:?}");
    let maps = after
        .documents
        .iter()
        .map(document_title)
        .filter(|title| title.starts_with("ConfigMap/capability-analyst"));
    assert_eq!(maps.count(), 1);
}
