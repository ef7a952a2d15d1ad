//! What `deploy/README.md` has an operator type does what the page says. The functions in it are run as they stand there,
//! against a `kubectl` that is played by hand.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::overlay::{at, list, overlay, root};

/// What stands in for programs of the operator's machine. Of a pod there is its folder, and a signal leaves a copy of
/// what the server in it would read. It takes some asking until what was applied has come to a pod.
const KUBECTL: &str = r#"#!/bin/sh
case "$3" in
get) printf 'pod/nats-0\npod/nats-1\n' ;;
exec)
    pod=$PWD/${4#pod/}
    [ "$6" != nats-server ] || exec cp -r "$pod/etc" "$pod/loaded"
    echo x >>"$pod/asked"
    [ "$(wc -l <"$pod/asked")" != 3 ] || cp -r new/etc "$pod"
    program=$6; shift 6
    for path; do set -- "$@" "$pod$1"; shift; done
    exec "$program" "$@" ;;
esac
"#;

/// A function of the page's commands, by its name.
fn function(name: &str) -> String {
    let page = fs::read_to_string(root().join("deploy/README.md")).expect("there is a page");
    let (_, rest) = page.split_once(&format!("$ {name}() {{")).expect("it is on the page");
    let (body, _) = rest.split_once("\n  }\n").expect("it has an end");
    format!("{name}() {{{body}\n}}\n")
}

fn program(path: &Path, text: &str) {
    fs::write(path, text).expect("a temporary folder");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it was just written");
}

/// Writes these files, each with the word as its content.
fn written(folder: &Path, files: &[&str], word: &str) {
    for file in files {
        let file = folder.join(file.trim_start_matches('/'));
        fs::create_dir_all(file.parent().expect("it is in a folder")).expect("a temporary folder");
        fs::write(&file, format!("{word}\n")).expect("a temporary folder");
    }
}

#[test]
fn a_server_is_told_to_reload_when_it_has_all_that_was_applied_and_not_before() {
    let applied = ["secrets/accounts.conf", "secrets/tls/ca.crt", "secrets/tls/server.crt"];
    let mounted = ["/etc/nats/accounts.conf", "/etc/nats-tls/ca.crt", "/etc/nats-tls/tls.crt"];
    for (changed, place) in applied.iter().zip(mounted) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let home = folder.path();
        written(home, &applied, "old");
        written(home, &[changed], "new");
        for pod in ["nats-0", "nats-1", "new"] {
            written(&home.join(pod), &mounted, "old");
        }
        written(&home.join("new"), &[place], "new");
        fs::create_dir(home.join("bin")).expect("a temporary folder");
        program(&home.join("bin/kubectl"), KUBECTL);
        program(&home.join("bin/sleep"), "#!/bin/sh\n");
        let path = format!("{}:{}", home.join("bin").display(), std::env::var("PATH").expect("there is one"));
        let script = function("reload") + "reload";
        let mut bash = Command::new("timeout");
        bash.args(["60", "bash", "-ec", &script]).current_dir(home).env("PATH", path);
        let done = bash.output().expect("there is a shell");
        assert!(done.status.success(), "{changed}: {}", String::from_utf8_lossy(&done.stderr));
        for pod in ["nats-0", "nats-1"] {
            let loaded = home.join(pod).join("loaded").join(place.trim_start_matches("/etc/"));
            let loaded = fs::read_to_string(loaded).expect("it was told");
            assert_eq!(loaded, "new\n", "{pod} was told before it had the new {changed}");
        }
    }
}

#[test]
fn what_a_reload_looks_at_is_where_a_server_has_it() {
    let Some(overlay) = overlay("production") else { return };
    let containers = overlay.containers();
    let server = containers.iter().find(|one| one.role() == "nats").expect("there is one");
    let mounts: Vec<&str> =
        list(server.its, "/volumeMounts").iter().map(|mount| at(mount, "/mountPath")).collect();
    let told = server.environment();
    let body = function("reload");
    for file in [&told["NATS_TLS_CA"], &told["NATS_TLS_CERT"]] {
        assert!(body.contains(file.as_str()), "{file}");
    }
    let looked_at = body.split([' ', '\n']).filter(|word| word.starts_with("/etc/"));
    for path in looked_at {
        assert!(mounts.iter().any(|mount| path.starts_with(&format!("{mount}/"))), "nothing is at {path}");
    }
    let selector =
        &overlay.named("StatefulSet", "nats").expect("there is one")["spec"]["selector"]["matchLabels"];
    let label = format!("app.kubernetes.io/name={}", at(selector, "/app.kubernetes.io~1name"));
    assert!(body.contains(&label), "{label}");
}
