//! What the manifests say of our programs is what the programs know: command lines, variables, ports, queues, times,
//! names of metrics.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use millrace_protocol::ids::Capability;
use millrace_protocol::subject::CRITIC;
use millrace_runtime::bus::MIN_SERVER;
use millrace_runtime::metrics::names::ALL;
use millrace_runtime::{duration, topology};
use millrace_tests::program::millrace;

use super::overlay::{Container, Overlay, at, list, manifests, overlay, overlays, root, title};

/// The capabilities that the overlays have, each with its identity.
const CAPABILITIES: [&str; 4] = ["planner", "producer", "research", "worker"];

/// What the program says of the command line that the manifests give it, up to the point where it would begin to work.
fn help(container: &Container<'_>) -> String {
    let line = container.line();
    let (program, arguments) = line.split_first().expect("a command line has a program");
    let program = program.strip_prefix("/usr/bin/").expect("our programs are in /usr/bin");
    // `millrace worker` takes what `millrace-worker` takes: both flatten the same arguments.
    let role = program.strip_prefix("millrace-");
    let mut command = Command::new(millrace());
    let done = command.args(role).args(arguments).arg("--help").output().expect("it can be started");
    let why = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{} {arguments:?}: {why}", container.name());
    String::from_utf8(done.stdout).expect("help is text")
}

fn source(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The variables that a text names.
fn variables(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("MILLRACE_")).map(ToOwned::to_owned).collect()
}

/// What waits behind a number of seconds in a configuration of NATS.
fn seconds(configuration: &str, name: &str) -> u64 {
    let line = configuration.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let line = line.unwrap_or_else(|| panic!("nats.conf has no {name}"));
    line.trim_matches('"').strip_suffix('s').and_then(|number| number.parse().ok()).expect("seconds")
}

/// What is given of a unit of memory.
fn mebibytes(text: &str) -> u64 {
    let units = [("MiB", 1), ("GiB", 1024), ("Mi", 1), ("Gi", 1024), ("MB", 1), ("GB", 1024)];
    let read = |(unit, factor): (&str, u64)| Some(text.strip_suffix(unit)?.parse::<u64>().ok()? * factor);
    units.into_iter().find_map(read).unwrap_or_else(|| panic!("{text} is no memory"))
}

#[test]
fn every_command_line_is_one_that_its_program_takes() {
    let Some(all) = overlays() else { return };
    for overlay in all {
        let processes = overlay.processes();
        assert!(processes.len() >= 7, "{} runs {} of our programs", overlay.name, processes.len());
        for container in overlay.all().into_iter().filter(Container::is_ours) {
            let program = container.line()[0].rsplit('/').next().expect("a path has a last part");
            let image = at(container.its, "/image");
            assert_eq!(image.split(':').next(), Some(program), "the image is the program's");
            help(&container);
        }
    }
}

#[test]
fn every_variable_is_one_that_its_program_knows_and_none_of_them_is_a_secret() {
    let Some(all) = overlays() else { return };
    let everywhere = [source("runtime/src/connection.rs"), source("runtime/src/telemetry.rs")].concat();
    let everywhere = variables(&everywhere);
    for container in all.iter().flat_map(Overlay::all).filter(Container::is_ours) {
        let known: BTreeSet<String> = variables(&help(&container)).union(&everywhere).cloned().collect();
        for (name, value) in container.environment() {
            let is_named = container.line().iter().any(|word| word.contains(&format!("$({name})")));
            assert!(
                known.contains(&name) || name == "HOME" || is_named,
                "{} does not know {name}",
                container.name()
            );
            let secret = ["MILLRACE_NATS_NKEY_SEED", "MILLRACE_NATS_PASSWORD", "MILLRACE_NATS_USER"];
            assert!(!secret.contains(&name.as_str()) && !value.starts_with("SU"), "{name} is a secret");
        }
    }
}

#[test]
fn what_is_probed_is_where_a_process_says_how_it_is() {
    let Some(all) = overlays() else { return };
    for container in all.iter().flat_map(Overlay::processes) {
        let address = &container.environment()["MILLRACE_HTTP"];
        let port = container.port("http").expect("there is a port of that name");
        assert_eq!(address, &format!("0.0.0.0:{port}"), "{}", container.name());
        for (probe, path) in
            [("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")]
        {
            let asked = &container.its[probe]["httpGet"];
            assert_eq!((&asked["path"], &asked["port"]), (&path.into(), &"http".into()), "{probe}");
        }
    }
    for monitor in all.iter().flat_map(|overlay| overlay.kind("PodMonitor")) {
        let endpoint = &list(monitor, "/spec/podMetricsEndpoints")[0];
        assert_eq!((&endpoint["path"], &endpoint["port"]), (&"/metrics".into(), &"http".into()));
    }
}

/// The slots of the pods that a scaler makes, and the queue that they serve.
fn served(container: &Container<'_>) -> (String, String) {
    let slots = container.argument("--slots").expect("slots are said").to_owned();
    let queue = container.workload["metadata"]["labels"]["capability"].as_str().unwrap_or(CRITIC);
    (queue.to_owned(), slots)
}

#[test]
fn what_scales_a_deployment_looks_at_the_queue_that_it_serves() {
    let Some(all) = overlays() else { return };
    for overlay in all {
        let by_keda = overlay.kind("ScaledObject").count();
        let by_kubernetes = overlay.kind("HorizontalPodAutoscaler").count();
        let expected = match overlay.name.as_str() {
            "local" => (0, 0),
            "production-hpa" => (0, 5),
            _ => (5, 0),
        };
        assert_eq!((by_keda, by_kubernetes), expected, "{}", overlay.name);
        for container in overlay.processes().iter().filter(|one| matches!(one.role(), "worker" | "critic")) {
            let (queue, slots) = served(container);
            let named = Capability::new(&queue).expect("a queue is a capability's");
            assert!(container.workload["spec"]["replicas"].is_null(), "how many there are is not said twice");
            if let Some(scaled) = overlay.named("ScaledObject", container.name()) {
                assert_eq!(scaled["spec"]["scaleTargetRef"]["name"], container.name());
                let trigger = &list(scaled, "/spec/triggers")[0];
                assert_eq!(trigger["type"], "nats-jetstream");
                let of = &trigger["metadata"];
                assert_eq!(of["stream"], topology::WORK);
                assert_eq!(of["consumer"], named.as_str());
                assert_eq!(of["lagThreshold"], slots.as_str(), "a pod for every so many tasks");
                let home = if overlay.name == "production-existing-nats" { "nats" } else { "millrace" };
                let endpoint = format!("nats-headless.{home}.svc.cluster.local:8222");
                assert_eq!(of["natsServerMonitoringEndpoint"], endpoint.as_str());
            }
            if let Some(scaler) = overlay.named("HorizontalPodAutoscaler", container.name()) {
                assert_eq!(scaler["spec"]["scaleTargetRef"]["name"], container.name());
                for metric in list(scaler, "/spec/metrics") {
                    let metric = &metric["external"];
                    let name = at(metric, "/metric/name");
                    let known = ALL.iter().find(|one| one.name == name).expect("it is one of our metrics");
                    assert_eq!(known.labels, ["capability"]);
                    assert_eq!(metric["metric"]["selector"]["matchLabels"]["capability"], queue.as_str());
                    assert_eq!(metric["target"]["averageValue"], slots.as_str());
                }
            }
        }
    }
}

#[test]
fn every_worker_offers_what_is_built_in_or_what_its_own_file_describes() {
    let Some(all) = overlays() else { return };
    for overlay in all {
        let workers = overlay.processes().into_iter().filter(|one| one.role() == "worker");
        let mut names = BTreeSet::new();
        for container in workers {
            let offer = container.argument("--capability").expect("what it offers is said");
            let name = at(container.workload, "/metadata/labels/capability");
            assert!(millrace_worker::builtin::NAMES.contains(&offer), "{offer} is not built in");
            assert_eq!((offer, container.name()), (name, format!("worker-{name}").as_str()));
            names.insert(name);
        }
        assert_eq!(names, BTreeSet::from(CAPABILITIES), "{}", overlay.name);
    }
}

#[test]
fn a_pod_has_longer_to_end_than_its_process_takes() {
    let Some(all) = overlays() else { return };
    let configuration = source("deploy/kubernetes/components/nats/nats.conf");
    for container in all.iter().flat_map(Overlay::containers) {
        let given = container.pod()["terminationGracePeriodSeconds"].as_u64().expect("it is said");
        let needed = match container.role() {
            "worker" | "critic" => {
                let grace = container.environment().remove("MILLRACE_GRACE").expect("it is said");
                duration::parse(&grace).expect("a time") + millrace_runtime::host::GOODBYE
            }
            "nats" => {
                let parts = ["lame_duck_grace_period", "lame_duck_duration"];
                Duration::from_secs(parts.iter().map(|part| seconds(&configuration, part)).sum())
            }
            // It gives its lanes away, or has nothing to give.
            _ => Duration::from_secs(10),
        };
        assert!(Duration::from_secs(given) >= needed + Duration::from_secs(5), "{}", container.name());
    }
}

#[test]
fn the_images_are_those_of_this_version_and_a_nats_that_is_new_enough() {
    let Some(all) = overlays() else { return };
    for container in all.iter().flat_map(Overlay::all) {
        let (image, tag) = at(container.its, "/image").split_once(':').expect("images have tags");
        if image == "nats" {
            let mut parts = tag.split(['.', '-']).map_while(|part| part.parse::<i64>().ok());
            let version = (parts.next().expect("a version"), parts.next().expect("a version"));
            assert!(version >= MIN_SERVER, "NATS {tag}");
        } else {
            assert_eq!(tag, env!("CARGO_PKG_VERSION"), "{}", container.name());
        }
    }
}

#[test]
fn a_nats_server_is_told_what_its_configuration_asks_for() {
    let Some(all) = overlays() else { return };
    let configuration = source("deploy/kubernetes/components/nats/nats.conf");
    let lines = configuration.lines().filter(|line| !line.trim().starts_with('#'));
    let asked: BTreeSet<&str> = lines.filter_map(|line| line.split_once('$')).map(|(_, name)| name).collect();
    assert!(asked.len() >= 10, "it asks for {asked:?}");
    for container in all.iter().flat_map(Overlay::containers) {
        if container.role() != "nats" {
            continue;
        }
        let told = container.environment();
        let named: BTreeSet<&str> =
            told.keys().map(String::as_str).filter(|name| name.starts_with("NATS_")).collect();
        assert_eq!(named, asked);
        for (variable, port) in [("NATS_LISTEN", "client"), ("NATS_HTTP", "monitor")] {
            let port = container.port(port).expect("it has a name");
            assert_eq!(told[variable], format!("0.0.0.0:{port}"));
        }
        let mounted = list(container.its, "/volumeMounts").iter().map(|mount| at(mount, "/mountPath"));
        assert!(mounted.collect::<Vec<_>>().contains(&told["NATS_STORE_DIR"].as_str()));
        let claim =
            &list(container.workload, "/spec/volumeClaimTemplates")[0]["spec"]["resources"]["requests"];
        let (store, volume) = (mebibytes(&told["NATS_MAX_FILE_STORE"]), mebibytes(at(claim, "/storage")));
        assert!(store * 10 <= volume * 9, "{store} MiB in a volume of {volume} MiB");
        let limit = mebibytes(at(container.its, "/resources/limits/memory"));
        let collected = mebibytes(&told["GOMEMLIMIT"]);
        assert!((limit * 8 / 10..=limit * 9 / 10).contains(&collected), "{collected} of {limit} MiB");
    }
}

#[test]
fn routes_lead_to_every_nats_server_by_a_name_that_its_certificate_has() {
    let Some(overlay) = overlay("production") else { return };
    let set = overlay.named("StatefulSet", "nats").expect("there is one");
    let service = at(set, "/spec/serviceName");
    let replicas = set["spec"]["replicas"].as_u64().expect("it is said");
    assert!(overlay.named("Service", service).is_some_and(|service| service["spec"]["clusterIP"] == "None"));
    let containers = overlay.containers();
    let server = containers.iter().find(|one| one.role() == "nats").expect("there is one");
    let hosts: Vec<String> = (0..replicas).map(|one| format!("nats-{one}.{service}")).collect();
    let port = server.port("routes").expect("it has a name");
    let routes: Vec<String> = hosts.iter().map(|host| format!("nats://{host}:{port}")).collect();
    assert_eq!(server.environment()["NATS_ROUTES"], format!("[{}]", routes.join(", ")));

    let folder = tempfile::tempdir().expect("a temporary folder");
    let made = Command::new(millrace()).arg("nats-config").arg("--out").arg(folder.path()).output();
    assert!(made.is_ok_and(|made| made.status.success()));
    let mut openssl = Command::new("openssl");
    openssl.args(["x509", "-noout", "-ext", "subjectAltName", "-in"]);
    match openssl.arg(folder.path().join("tls/server.crt")).output() {
        Ok(said) => {
            let said = String::from_utf8_lossy(&said.stdout).replace(", ", "\n") + "\n";
            for host in hosts.iter().map(String::as_str).chain(["nats"]) {
                assert!(said.contains(&format!("DNS:{host}\n")), "the certificate lacks {host}:\n{said}");
            }
        }
        Err(error) => eprintln!("the names in the certificate are not looked at: openssl: {error}"),
    }
}

#[test]
fn every_overlay_is_tried() {
    let folders = fs::read_dir(manifests().join("overlays")).expect("there are overlays");
    let mut names: Vec<String> =
        folders.map(|one| one.expect("a folder").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    assert_eq!(names, super::overlay::NAMES);
    let Some(all) = overlays() else { return };
    for overlay in all {
        let mut titles = BTreeSet::new();
        for document in &overlay.documents {
            assert!(titles.insert(title(document)), "{} has two {}", overlay.name, title(document));
        }
    }
}
