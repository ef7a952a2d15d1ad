//! The shell functions in `deploy/README.md` do what the page says. They are run unchanged against a stub of `kubectl`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::overlay::{find_overlay, list_at, string_at, workspace_folder};

/// Stubs of programs on the operator's machine. A pod is a folder; a signal saves a copy of what its server would read.
/// Applied files arrive in a pod only after some polling.
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

/// A shell function on the page, by name.
fn shell_function(name: &str) -> String {
    let page = fs::read_to_string(workspace_folder().join("deploy/README.md")).expect("there is a page");
    let (_, rest) = page.split_once(&format!("$ {name}() {{")).expect("it is on the page");
    let (body, _) = rest.split_once("\n  }\n").expect("it has an end");
    format!("{name}() {{{body}\n}}\n")
}

fn write_program(path: &Path, text: &str) {
    fs::write(path, text).expect("a temporary folder");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it was just written");
}

/// Writes these files, each with this content.
fn write_files(folder: &Path, files: &[&str], word: &str) {
    for file in files {
        let file = folder.join(file.trim_start_matches('/'));
        fs::create_dir_all(file.parent().expect("it is in a folder")).expect("a temporary folder");
        fs::write(&file, format!("{word}\n")).expect("a temporary folder");
    }
}

#[test]
fn server_reloads_only_after_all_files_have_arrived() {
    let applied = ["secrets/accounts.conf", "secrets/tls/ca.crt", "secrets/tls/server.crt"];
    let mounted = ["/etc/nats/accounts.conf", "/etc/nats-tls/ca.crt", "/etc/nats-tls/tls.crt"];
    for (changed, place) in applied.iter().zip(mounted) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let home = folder.path();
        write_files(home, &applied, "old");
        write_files(home, &[changed], "new");
        for pod in ["nats-0", "nats-1", "new"] {
            write_files(&home.join(pod), &mounted, "old");
        }
        write_files(&home.join("new"), &[place], "new");
        fs::create_dir(home.join("bin")).expect("a temporary folder");
        write_program(&home.join("bin/kubectl"), KUBECTL);
        write_program(&home.join("bin/sleep"), "#!/bin/sh\n");
        let path = format!("{}:{}", home.join("bin").display(), std::env::var("PATH").expect("there is one"));
        let script = shell_function("reload") + "reload";
        let mut bash = Command::new("timeout");
        bash.args(["60", "bash", "-ec", &script]).current_dir(home).env("PATH", path);
        let output = bash.output().expect("there is a shell");
        assert!(output.status.success(), "{changed}: {}", String::from_utf8_lossy(&output.stderr));
        for pod in ["nats-0", "nats-1"] {
            let loaded = home.join(pod).join("loaded").join(place.trim_start_matches("/etc/"));
            let loaded = fs::read_to_string(loaded).expect("it was told");
            assert_eq!(loaded, "new\n", "{pod} was reloaded before it had the new {changed}");
        }
    }
}

#[test]
fn paths_in_the_reload_command_are_mounted() {
    let Some(overlay) = find_overlay("production") else { return };
    let containers = overlay.long_running_containers();
    let server = containers.iter().find(|one| one.process_role() == "nats").expect("there is one");
    let mounts: Vec<&str> =
        list_at(server.its, "/volumeMounts").iter().map(|mount| string_at(mount, "/mountPath")).collect();
    let environment = server.resolved_environment();
    let body = shell_function("reload");
    for file in [&environment["NATS_TLS_CA"], &environment["NATS_TLS_CERT"]] {
        assert!(body.contains(file.as_str()), "{file}");
    }
    let looked_at = body.split([' ', '\n']).filter(|word| word.starts_with("/etc/"));
    for path in looked_at {
        assert!(
            mounts.iter().any(|mount| path.starts_with(&format!("{mount}/"))),
            "nothing is mounted at {path}"
        );
    }
    let selector = &overlay.find_document("StatefulSet", "nats").expect("there is one")["spec"]["selector"]["matchLabels"];
    let label = format!("app.kubernetes.io/name={}", string_at(selector, "/app.kubernetes.io~1name"));
    assert!(body.contains(&label), "{label}");
}
