//! The manifests match the programs: command lines, variables, ports, queues, durations, names of metrics.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use millrace_protocol::ids::Capability;
use millrace_protocol::subject::CRITIC;
use millrace_runtime::clock;
use millrace_runtime::nats::connect::MIN_SERVER;
use millrace_runtime::nats::topology;
use millrace_runtime::ops::metrics::names::ALL;
use millrace_tests::program::millrace_program;

use super::overlay::{
    Overlay, WorkloadContainer, document_title, find_overlay, list_at, manifests_folder, render_all_overlays,
    string_at, workspace_folder,
};

/// The capabilities of the overlays, each with its identity.
const CAPABILITIES: [&str; 5] = ["planner", "producer", "research", "verify", "worker"];

/// The program's help for the command line in the manifests: it fails if the program rejects the arguments.
fn run_help(container: &WorkloadContainer<'_>) -> String {
    let line = container.command_line();
    let (program, arguments) = line.split_first().expect("a command line has a program");
    let program = program.strip_prefix("/usr/bin/").expect("our programs are in /usr/bin");
    // `millrace worker` accepts the arguments of `millrace-worker`: both flatten the same struct.
    let role = program.strip_prefix("millrace-");
    let mut command = Command::new(millrace_program());
    let output = command.args(role).args(arguments).arg("--help").output().expect("it can be started");
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {arguments:?}: {why}", container.workload_name());
    String::from_utf8(output.stdout).expect("help is text")
}

fn read_source(path: &str) -> String {
    fs::read_to_string(workspace_folder().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The variables in a text.
fn millrace_variables(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("MILLRACE_")).map(ToOwned::to_owned).collect()
}

/// The value of a setting in seconds in a NATS configuration.
fn seconds_setting(configuration: &str, name: &str) -> u64 {
    let line = configuration.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let line = line.unwrap_or_else(|| panic!("nats.conf has no {name}"));
    line.trim_matches('"').strip_suffix('s').and_then(|number| number.parse().ok()).expect("seconds")
}

/// A memory size in MiB.
fn parse_mebibytes(text: &str) -> u64 {
    let units = [("MiB", 1), ("GiB", 1024), ("Mi", 1), ("Gi", 1024), ("MB", 1), ("GB", 1024)];
    let read = |(unit, factor): (&str, u64)| Some(text.strip_suffix(unit)?.parse::<u64>().ok()? * factor);
    units.into_iter().find_map(read).unwrap_or_else(|| panic!("{text} is not a memory size"))
}

#[test]
fn programs_accept_their_command_lines() {
    let Some(all) = render_all_overlays() else { return };
    for overlay in all {
        let processes = overlay.millrace_containers();
        assert!(processes.len() >= 7, "{} runs only {} Millrace processes", overlay.name, processes.len());
        for container in overlay.all_containers().into_iter().filter(WorkloadContainer::is_millrace_program) {
            let program = container.command_line()[0].rsplit('/').next().expect("a path has a last part");
            let image = string_at(container.its, "/image");
            assert_eq!(image.split(':').next(), Some(program), "the image of the program");
            run_help(&container);
        }
    }
}

#[test]
fn variables_exist_and_contain_no_secret() {
    let Some(all) = render_all_overlays() else { return };
    let everywhere = [
        read_source("crates/runtime/src/nats/connection.rs"),
        read_source("crates/runtime/src/ops/telemetry.rs"),
    ]
    .concat();
    let everywhere = millrace_variables(&everywhere);
    for container in
        all.iter().flat_map(Overlay::all_containers).filter(WorkloadContainer::is_millrace_program)
    {
        let defined: BTreeSet<String> =
            millrace_variables(&run_help(&container)).union(&everywhere).cloned().collect();
        for (name, value) in container.resolved_environment() {
            let is_named = container.command_line().iter().any(|word| word.contains(&format!("$({name})")));
            assert!(
                defined.contains(&name) || name == "HOME" || is_named,
                "{} does not know {name}",
                container.workload_name()
            );
            let secret = ["MILLRACE_NATS_NKEY_SEED", "MILLRACE_NATS_PASSWORD", "MILLRACE_NATS_USER"];
            assert!(!secret.contains(&name.as_str()) && !value.starts_with("SU"), "{name} is a secret");
        }
    }
}

#[test]
fn probes_use_the_pages_of_the_process() {
    let Some(all) = render_all_overlays() else { return };
    for container in all.iter().flat_map(Overlay::millrace_containers) {
        let address = &container.resolved_environment()["MILLRACE_HTTP"];
        let port = container.port_number("http").expect("there is a port of that name");
        assert_eq!(address, &format!("0.0.0.0:{port}"), "{}", container.workload_name());
        for (probe, path) in
            [("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")]
        {
            let request = &container.its[probe]["httpGet"];
            assert_eq!((&request["path"], &request["port"]), (&path.into(), &"http".into()), "{probe}");
        }
    }
    for monitor in all.iter().flat_map(|overlay| overlay.documents_of_kind("PodMonitor")) {
        let endpoint = &list_at(monitor, "/spec/podMetricsEndpoints")[0];
        assert_eq!((&endpoint["path"], &endpoint["port"]), (&"/metrics".into(), &"http".into()));
    }
}

/// The slots of the pods that a scaler creates, and their queue.
fn slots_and_queue(container: &WorkloadContainer<'_>) -> (String, String) {
    let slots = container.argument_value("--slots").expect("slots are said").to_owned();
    let queue = container.workload["metadata"]["labels"]["capability"].as_str().unwrap_or(CRITIC);
    (queue.to_owned(), slots)
}

#[test]
fn scalers_watch_the_queue_of_their_deployment() {
    let Some(all) = render_all_overlays() else { return };
    for overlay in all {
        let by_keda = overlay.documents_of_kind("ScaledObject").count();
        let by_kubernetes = overlay.documents_of_kind("HorizontalPodAutoscaler").count();
        let expected = match overlay.name.as_str() {
            "local" => (0, 0),
            // That of gateways is by CPU.
            "production-hpa" => (0, 7),
            _ => (6, 1),
        };
        assert_eq!((by_keda, by_kubernetes), expected, "{}", overlay.name);
        for container in overlay
            .millrace_containers()
            .iter()
            .filter(|one| matches!(one.process_role(), "worker" | "critic"))
        {
            let (queue, slots) = slots_and_queue(container);
            let named = Capability::new(&queue).expect("a queue is a capability's");
            assert!(
                container.workload["spec"]["replicas"].is_null(),
                "the number of replicas is left to the scaler"
            );
            if let Some(scaled) = overlay.find_document("ScaledObject", container.workload_name()) {
                assert_eq!(scaled["spec"]["scaleTargetRef"]["name"], container.workload_name());
                let trigger = &list_at(scaled, "/spec/triggers")[0];
                assert_eq!(trigger["type"], "nats-jetstream");
                let of = &trigger["metadata"];
                assert_eq!(of["stream"], topology::WORK);
                assert_eq!(of["consumer"], named.as_str());
                assert_eq!(of["lagThreshold"], slots.as_str(), "one pod per number of slots");
                let home = if overlay.name == "production-existing-nats" { "nats" } else { "millrace" };
                let endpoint = format!("nats-headless.{home}.svc.cluster.local:8222");
                assert_eq!(of["natsServerMonitoringEndpoint"], endpoint.as_str());
            }
            if let Some(scaler) = overlay.find_document("HorizontalPodAutoscaler", container.workload_name())
            {
                assert_eq!(scaler["spec"]["scaleTargetRef"]["name"], container.workload_name());
                for metric in list_at(scaler, "/spec/metrics") {
                    let metric = &metric["external"];
                    let name = string_at(metric, "/metric/name");
                    let defined = ALL.iter().find(|one| one.name == name).expect("it is one of our metrics");
                    assert_eq!(defined.labels, ["capability"]);
                    assert_eq!(metric["metric"]["selector"]["matchLabels"]["capability"], queue.as_str());
                    assert_eq!(metric["target"]["averageValue"], slots.as_str());
                }
            }
        }
    }
}

#[test]
fn workers_provide_builtin_or_described_capabilities() {
    let Some(all) = render_all_overlays() else { return };
    for overlay in all {
        let workers = overlay.millrace_containers().into_iter().filter(|one| one.process_role() == "worker");
        let mut names = BTreeSet::new();
        for container in workers {
            let offer = container.argument_value("--capability").expect("its capability is an argument");
            let name = string_at(container.workload, "/metadata/labels/capability");
            assert!(millrace_worker::builtin::NAMES.contains(&offer), "{offer} is not a built-in capability");
            assert_eq!((offer, container.workload_name()), (name, format!("worker-{name}").as_str()));
            names.insert(name);
        }
        assert_eq!(names, BTreeSet::from(CAPABILITIES), "{}", overlay.name);
    }
}

#[test]
fn pods_have_more_time_to_stop_than_their_process_needs() {
    let Some(all) = render_all_overlays() else { return };
    let configuration = read_source("deploy/kubernetes/components/nats/nats.conf");
    for container in all.iter().flat_map(Overlay::long_running_containers) {
        let grace_period = container.pod_template()["terminationGracePeriodSeconds"]
            .as_u64()
            .expect("it has a grace period");
        let needed = match container.process_role() {
            "worker" | "critic" => {
                let grace =
                    container.resolved_environment().remove("MILLRACE_GRACE").expect("it has a grace period");
                clock::parse_duration(&grace).expect("a time") + millrace_host::SHUTDOWN_TIMEOUT
            }
            "nats" => {
                let parts = ["lame_duck_grace_period", "lame_duck_duration"];
                Duration::from_secs(parts.iter().map(|part| seconds_setting(&configuration, part)).sum())
            }
            // It releases its lanes, or has none.
            _ => Duration::from_secs(10),
        };
        assert!(
            Duration::from_secs(grace_period) >= needed + Duration::from_secs(5),
            "{}",
            container.workload_name()
        );
    }
}

#[test]
fn images_have_this_version_and_a_supported_nats() {
    let Some(all) = render_all_overlays() else { return };
    for container in all.iter().flat_map(Overlay::all_containers) {
        let (image, tag) = string_at(container.its, "/image").split_once(':').expect("images have tags");
        if image == "nats" {
            let mut parts = tag.split(['.', '-']).map_while(|part| part.parse::<i64>().ok());
            let version = (parts.next().expect("a version"), parts.next().expect("a version"));
            assert!(version >= MIN_SERVER, "NATS {tag}");
        } else {
            assert_eq!(tag, env!("CARGO_PKG_VERSION"), "{}", container.workload_name());
        }
    }
}

#[test]
fn nats_server_gets_all_variables_of_its_configuration() {
    let Some(all) = render_all_overlays() else { return };
    let configuration = read_source("deploy/kubernetes/components/nats/nats.conf");
    let lines = configuration.lines().filter(|line| !line.trim().starts_with('#'));
    let referenced: BTreeSet<&str> =
        lines.filter_map(|line| line.split_once('$')).map(|(_, name)| name).collect();
    assert!(referenced.len() >= 10, "its variables are {referenced:?}");
    for container in all.iter().flat_map(Overlay::long_running_containers) {
        if container.process_role() != "nats" {
            continue;
        }
        let variables = container.resolved_environment();
        let named: BTreeSet<&str> =
            variables.keys().map(String::as_str).filter(|name| name.starts_with("NATS_")).collect();
        assert_eq!(named, referenced);
        for (variable, port) in [("NATS_LISTEN", "client"), ("NATS_HTTP", "monitor")] {
            let port = container.port_number(port).expect("it has a name");
            assert_eq!(variables[variable], format!("0.0.0.0:{port}"));
        }
        let mounted =
            list_at(container.its, "/volumeMounts").iter().map(|mount| string_at(mount, "/mountPath"));
        assert!(mounted.collect::<Vec<_>>().contains(&variables["NATS_STORE_DIR"].as_str()));
        let claim =
            &list_at(container.workload, "/spec/volumeClaimTemplates")[0]["spec"]["resources"]["requests"];
        let (store, volume) = (
            parse_mebibytes(&variables["NATS_MAX_FILE_STORE"]),
            parse_mebibytes(string_at(claim, "/storage")),
        );
        assert!(store * 10 <= volume * 9, "{store} MiB in a volume of {volume} MiB");
        let limit = parse_mebibytes(string_at(container.its, "/resources/limits/memory"));
        let collected = parse_mebibytes(&variables["GOMEMLIMIT"]);
        assert!((limit * 8 / 10..=limit * 9 / 10).contains(&collected), "{collected} of {limit} MiB");
    }
}

#[test]
fn routes_use_names_in_the_servers_certificates() {
    let Some(overlay) = find_overlay("production") else { return };
    let set = overlay.find_document("StatefulSet", "nats").expect("there is one");
    let service = string_at(set, "/spec/serviceName");
    let replicas = set["spec"]["replicas"].as_u64().expect("it has a grace period");
    assert!(
        overlay
            .find_document("Service", service)
            .is_some_and(|service| service["spec"]["clusterIP"] == "None")
    );
    let containers = overlay.long_running_containers();
    let server = containers.iter().find(|one| one.process_role() == "nats").expect("there is one");
    let hosts: Vec<String> = (0..replicas).map(|one| format!("nats-{one}.{service}")).collect();
    let port = server.port_number("routes").expect("it has a name");
    let routes: Vec<String> = hosts.iter().map(|host| format!("nats://{host}:{port}")).collect();
    assert_eq!(server.resolved_environment()["NATS_ROUTES"], format!("[{}]", routes.join(", ")));

    let folder = tempfile::tempdir().expect("a temporary folder");
    let made = Command::new(millrace_program()).arg("nats-config").arg("--out").arg(folder.path()).output();
    assert!(made.is_ok_and(|made| made.status.success()));
    let mut openssl = Command::new("openssl");
    openssl.args(["x509", "-noout", "-ext", "subjectAltName", "-in"]);
    match openssl.arg(folder.path().join("tls/server.crt")).output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).replace(", ", "\n") + "\n";
            for host in hosts.iter().map(String::as_str).chain(["nats"]) {
                assert!(text.contains(&format!("DNS:{host}\n")), "the certificate lacks {host}:\n{text}");
            }
        }
        Err(error) => eprintln!("the names in the certificate are not looked at: openssl: {error}"),
    }
}

#[test]
fn all_overlays_are_tested() {
    let folders = fs::read_dir(manifests_folder().join("overlays")).expect("there are overlays");
    let mut names: Vec<String> =
        folders.map(|one| one.expect("a folder").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    assert_eq!(names, super::overlay::NAMES);
    let Some(all) = render_all_overlays() else { return };
    for overlay in all {
        let mut titles = BTreeSet::new();
        for document in &overlay.documents {
            assert!(
                titles.insert(document_title(document)),
                "{} has two {}",
                overlay.name,
                document_title(document)
            );
        }
    }
}
