//! One gateway for several tenants.

use std::collections::BTreeSet;
use std::fs;

use super::overlay::{Overlay, copy_folder, differing_documents, list_at, workspace_folder};

#[test]
fn component_of_several_tenants_mounts_their_secret_and_changes_nothing_else() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let deploy = folder.path().join("deploy");
    for part in ["kubernetes", "observability"] {
        copy_folder(&workspace_folder().join("deploy").join(part), &deploy.join(part));
    }
    let production = deploy.join("kubernetes/overlays/production");
    let Some(before) = Overlay::render(&production) else {
        return eprintln!("passed over: neither kubectl nor kustomize is on PATH");
    };
    let list = production.join("kustomization.yaml");
    let text = fs::read_to_string(&list).expect("it was copied");
    let with_component = text.replace("components:\n", "components:\n  - ../../components/gateway-tenants\n");
    assert_ne!(text, with_component);
    fs::write(&list, with_component).expect("a temporary folder");
    let after = Overlay::render(&production).expect("it was there a moment ago");
    assert_eq!(differing_documents(&before, &after), BTreeSet::from(["Deployment/gateway".to_owned()]));

    let containers = after.millrace_containers();
    let gateway = containers.iter().find(|one| one.workload_name() == "gateway").expect("the gateway");
    let tenants = &gateway.resolved_environment()["MILLRACE_TENANTS"];
    let mounts = list_at(gateway.its, "/volumeMounts");
    let mount = mounts.iter().find(|mount| mount["mountPath"] == **tenants).expect("the folder is mounted");
    let volumes = list_at(gateway.pod_template(), "/volumes");
    let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).expect("its volume");
    let secret = volume["secret"]["secretName"].as_str().expect("a Secret");
    let page = fs::read_to_string(workspace_folder().join("deploy/README.md")).expect("the page");
    assert!(page.contains(&format!("create secret generic {secret} ")), "the page does not create {secret}");
}
