//! The nightly backup of `production`: its target, its identity, and the retention of old backups.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use super::overlay::{Overlay, WorkloadContainer, find_overlay, list_at, render_all_overlays, string_at};

/// The container that takes the backup, and the one that runs after it.
pub fn backup_containers(overlay: &Overlay) -> (WorkloadContainer<'_>, WorkloadContainer<'_>) {
    let jobs = overlay.job_containers();
    let [takes, keeps] = jobs[..] else { panic!("{} containers", jobs.len()) };
    (takes, keeps)
}

#[test]
fn only_production_takes_backups_and_one_at_a_time() {
    let Some(all) = render_all_overlays() else { return };
    for overlay in all {
        let count = overlay.documents_of_kind("CronJob").count();
        assert_eq!(count, usize::from(overlay.name == "production"), "{}", overlay.name);
    }
    let Some(overlay) = find_overlay("production") else { return };
    let job = overlay.find_document("CronJob", "backup").expect("there is one");
    assert_eq!(job["spec"]["concurrencyPolicy"], "Forbid");
    let (takes, keeps) = backup_containers(overlay);
    let all = |kind| list_at(takes.pod_template(), kind).iter().collect::<Vec<_>>();
    assert_eq!(all("/initContainers"), [takes.its], "the backup is taken before old ones are removed");
    assert_eq!(all("/containers"), [keeps.its]);
    // A retry in the same pod would find the leftovers of the first try under its name.
    assert_eq!(takes.pod_template()["restartPolicy"], "Never");
    let folder = takes.command_line()[2].strip_suffix("/$(POD_NAME)").expect("a folder for each pod");
    for container in [takes, keeps] {
        let mounts = list_at(container.its, "/volumeMounts");
        let mount =
            mounts.iter().find(|mount| string_at(mount, "/mountPath") == folder).expect("it is a volume");
        let volumes = list_at(container.pod_template(), "/volumes");
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).expect("it is there");
        let claim = overlay
            .find_document("PersistentVolumeClaim", string_at(volume, "/persistentVolumeClaim/claimName"));
        let labels = &claim.expect("it outlives the pod")["metadata"]["labels"];
        assert_ne!(labels["app.kubernetes.io/name"], "nats", "it would be deleted with the volumes of NATS");
    }
    assert!(list_at(keeps.its, "/volumeMounts").len() == 1, "it has no access to keys");
}

#[test]
fn backups_of_a_week_and_other_files_are_kept() {
    let Some(overlay) = find_overlay("production") else { return };
    let (_, keeps) = backup_containers(overlay);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let old = ["backup-29384756-x7k2p", ".backup-29384756-x7k2p.1.unfinished"];
    let stays = ["backup-29393396-b4hzq", ".backup-29393396-b4hzq.1.unfinished", "lost+found", "by-hand"];
    for name in old.iter().chain(&stays) {
        fs::create_dir(folder.path().join(name)).expect("a temporary folder");
        fs::write(folder.path().join(name).join("manifest.json"), "{}").expect("a temporary folder");
    }
    let aged = old.iter().chain(&stays[2..]).map(|name| (name, "8 days ago"));
    for (name, when) in aged.chain([(&stays[0], "6 days ago")]) {
        let done = Command::new("touch").args(["-d", when]).arg(folder.path().join(name)).status();
        assert!(done.is_ok_and(|status| status.success()));
    }
    let line = keeps.command_line();
    let mut find = Command::new(line[0]);
    find.args(
        line[1..].iter().map(|word| word.replace("/backups", folder.path().to_str().expect("letters"))),
    );
    let done = find.output().expect("there is a find");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let entries = fs::read_dir(folder.path()).expect("a temporary folder");
    let left: BTreeSet<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("letters")).collect();
    assert_eq!(left, stays.map(ToOwned::to_owned).into());
    let names = String::from_utf8(done.stdout).expect("names");
    let names: BTreeSet<&str> = names.lines().filter_map(|line| line.rsplit('/').next()).collect();
    assert_eq!(names, stays[..2].iter().copied().collect());
}
