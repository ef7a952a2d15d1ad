//! The nightly backup of `production`: where it goes, with which identity, and what is kept of those before.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use super::overlay::{Container, Overlay, at, list, overlay, overlays};

/// The container that takes the backup, and the one that comes behind it.
pub fn containers(overlay: &Overlay) -> (Container<'_>, Container<'_>) {
    let jobs = overlay.jobs();
    let [takes, keeps] = jobs[..] else { panic!("{} containers", jobs.len()) };
    (takes, keeps)
}

#[test]
fn production_alone_backs_up_and_one_backup_after_another() {
    let Some(all) = overlays() else { return };
    for overlay in all {
        let count = overlay.kind("CronJob").count();
        assert_eq!(count, usize::from(overlay.name == "production"), "{}", overlay.name);
    }
    let Some(overlay) = overlay("production") else { return };
    let job = overlay.named("CronJob", "backup").expect("there is one");
    assert_eq!(job["spec"]["concurrencyPolicy"], "Forbid");
    let (takes, keeps) = containers(overlay);
    let all = |kind| list(takes.pod(), kind).iter().collect::<Vec<_>>();
    assert_eq!(all("/initContainers"), [takes.its], "it is taken before any is removed");
    assert_eq!(all("/containers"), [keeps.its]);
    // A pod that tries again would find what the one before left under its name.
    assert_eq!(takes.pod()["restartPolicy"], "Never");
    let folder = takes.line()[2].strip_suffix("/$(POD_NAME)").expect("a folder for each pod");
    for container in [takes, keeps] {
        let mounts = list(container.its, "/volumeMounts");
        let mount = mounts.iter().find(|mount| at(mount, "/mountPath") == folder).expect("it is a volume");
        let volumes = list(container.pod(), "/volumes");
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).expect("it is there");
        let claim = overlay.named("PersistentVolumeClaim", at(volume, "/persistentVolumeClaim/claimName"));
        let labels = &claim.expect("it outlives the pod")["metadata"]["labels"];
        assert_ne!(labels["app.kubernetes.io/name"], "nats", "it would go with the volumes of NATS");
    }
    assert!(list(keeps.its, "/volumeMounts").len() == 1, "it sees no key");
}

#[test]
fn backups_of_a_week_are_kept_and_what_else_is_there_stays() {
    let Some(overlay) = overlay("production") else { return };
    let (_, keeps) = containers(overlay);
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
    let line = keeps.line();
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
    let said = String::from_utf8(done.stdout).expect("names");
    let said: BTreeSet<&str> = said.lines().filter_map(|line| line.rsplit('/').next()).collect();
    assert_eq!(said, stays[..2].iter().copied().collect());
}
