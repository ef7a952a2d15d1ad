//! Whether `compose.yaml` and what stands beside it agree with the programs, with each other, and with what is promised:
//! nothing runs with more rights than it needs, and nothing is reachable from elsewhere.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use millrace_tests::program::millrace;
use millrace_tests::trio::Identities;
use serde_json::Value;

use super::compose::{Compose, Service, folder};
use super::roots::{repository, said};

/// The services whose image is ours.
fn ours(compose: &Compose) -> Vec<Service<'_>> {
    compose.services().filter(|service| service.image().0.starts_with("millrace")).collect()
}

fn servers(compose: &Compose) -> Vec<Service<'_>> {
    compose.services().filter(|service| service.name.starts_with("nats-")).collect()
}

fn variable(service: &Service<'_>, name: &str) -> String {
    let found = service.environment().into_iter().find(|(known, _)| known == name);
    found.unwrap_or_else(|| panic!("{} has no {name}", service.name)).1
}

fn port(address: &str) -> &str {
    address.rsplit_once(':').unwrap().1.trim_end_matches(']')
}

fn yaml(file: &str) -> Value {
    serde_saphyr::from_str(&fs::read_to_string(folder().join(file)).unwrap()).unwrap()
}

#[test]
fn every_argument_and_variable_of_the_compose_file_is_known_to_its_program() {
    let compose = Compose::read();
    let connection = fs::read_to_string(repository().join("runtime/src/connection.rs")).unwrap();
    for service in ours(&compose) {
        let (image, tag) = service.image();
        assert_eq!(tag, env!("CARGO_PKG_VERSION"), "{}", service.name);
        let mut arguments = service.command();
        let command = image.strip_prefix("millrace-").map_or_else(|| arguments.remove(0), str::to_owned);
        let help = said(Command::new(millrace()).args([&command, "--help"]));
        for option in arguments.iter().filter(|argument| argument.starts_with("--")) {
            assert!(help.contains(&format!("{option} ")), "millrace {command} knows no {option}");
        }
        for (name, _) in service.environment() {
            let known = help.contains(&name) || connection.contains(&format!("(\"{name}\")"));
            assert!(known, "millrace {command} reads no {name}");
        }
    }
}

#[test]
fn every_process_comes_with_the_identity_of_what_it_does_and_with_no_other() {
    let compose = Compose::read();
    for service in ours(&compose) {
        let capability = service.command().iter().skip_while(|word| *word != "--capability").nth(1).cloned();
        let identity = capability.map_or_else(|| service.name.to_owned(), |name| format!("worker-{name}"));
        let secrets = service.files("secrets");
        let seeds: Vec<_> = secrets.iter().filter(|(place, _)| place == "/run/secrets/nkey").collect();
        assert_eq!(seeds.len(), 1, "{}", service.name);
        assert!(seeds[0].1.ends_with(format!("seeds/millrace/{identity}.nk")), "{}: {seeds:?}", service.name);
        let given: BTreeSet<&str> = secrets.iter().map(|(place, _)| place.as_str()).collect();
        for (name, value) in service.environment() {
            assert!(!value.starts_with('/') || given.contains(value.as_str()), "{}: {name}", service.name);
        }
    }
}

#[test]
fn every_file_of_the_compose_file_is_there_or_is_written_by_nats_config() {
    let compose = Compose::read();
    for file in compose.files("configs") {
        assert!(file.is_file(), "{}", file.display());
    }
    let identities = Identities::write(&[]);
    for file in compose.files("secrets") {
        let inside = file.strip_prefix(folder().join("secrets")).unwrap();
        assert!(identities.folder().join(inside).is_file(), "nats-config writes no {}", inside.display());
    }
    for (what, _) in compose.services().flat_map(|service| service.volumes()) {
        assert!(!what.contains('/') || folder().join(&what).is_dir(), "{what}");
    }
    let ignored = fs::read_to_string(repository().join(".gitignore")).unwrap();
    assert!(ignored.lines().any(|line| line == "/deploy/compose/secrets/"), "secrets are never committed");
}

#[test]
fn servers_get_all_that_their_configuration_asks_for() {
    let compose = Compose::read();
    let text = fs::read_to_string(repository().join("deploy/kubernetes/components/nats/nats.conf")).unwrap();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let wanted: BTreeSet<&str> =
        lines.filter_map(|line| line.split_once(": $")).map(|(_, name)| name).collect();
    assert!(wanted.len() > 5, "{wanted:?}");
    let servers = servers(&compose);
    for server in &servers {
        wanted.iter().for_each(|name| drop(variable(server, name)));
        let secrets: Vec<String> = server.files("secrets").into_iter().map(|(place, _)| place).collect();
        for name in ["NATS_TLS_CERT", "NATS_TLS_KEY", "NATS_TLS_CA"] {
            assert!(secrets.contains(&variable(server, name)), "{}: {name}", server.name);
        }
        let store = variable(server, "NATS_STORE_DIR");
        assert!(server.volumes().iter().any(|(_, place)| *place == store), "{} forgets", server.name);
        let asked = server.setting("healthcheck")["test"].to_string();
        assert!(asked.contains(&format!("127.0.0.1:{}/", port(&variable(server, "NATS_HTTP")))), "{asked}");
    }
    let names: BTreeSet<String> = servers.iter().map(|server| variable(server, "NATS_SERVER_NAME")).collect();
    assert_eq!(names.len(), 3);
}

#[test]
fn everybody_asks_where_the_other_listens() {
    let compose = Compose::read();
    let servers = servers(&compose);
    let reached = |port: &str| -> BTreeSet<String> {
        servers.iter().map(|server| format!("{}:{port}", server.names()[0])).collect()
    };
    let hosts = |list: &str| -> BTreeSet<String> {
        let urls = list.trim_matches(['[', ']']).split(',');
        urls.map(|url| url.trim().split_once("://").unwrap().1.to_owned()).collect()
    };
    for server in &servers {
        let routes = hosts(&variable(server, "NATS_ROUTES"));
        assert_eq!(routes, reached(port(&variable(server, "NATS_CLUSTER_LISTEN"))));
    }
    let clients = reached(port(&variable(&servers[0], "NATS_LISTEN")));
    for service in ours(&compose) {
        assert_eq!(hosts(&variable(&service, "MILLRACE_NATS_URL")), clients, "{}", service.name);
    }
    let scrape = &yaml("collector.yaml")["receivers"]["prometheus"]["config"]["scrape_configs"][0];
    let scraped = &scrape["dns_sd_configs"][0];
    let names: BTreeSet<String> = serde_json::from_value(scraped["names"].clone()).unwrap();
    let processes: Vec<_> = ours(&compose).into_iter().filter(|service| service.name != "client").collect();
    assert_eq!(names, processes.iter().map(|service| service.name.to_owned()).collect());
    for service in processes {
        assert_eq!(
            port(&variable(&service, "MILLRACE_HTTP")),
            scraped["port"].to_string(),
            "{}",
            service.name
        );
    }
    let written = &yaml("collector.yaml")["exporters"]["prometheusremotewrite"]["endpoint"];
    assert_eq!(written, "http://prometheus:9090/api/v1/write");
    assert_eq!(yaml("grafana/datasource.yaml")["datasources"][0]["url"], "http://prometheus:9090");
    let (prometheus, grafana) = (compose.service("prometheus"), compose.service("grafana"));
    assert!(prometheus.command().contains(&"--web.enable-remote-write-receiver".to_owned()));
    let places = |service: &Service<'_>| -> Vec<String> {
        let files = service.files("configs").into_iter().map(|(place, _)| place);
        files.chain(service.volumes().into_iter().map(|(_, place)| place)).collect()
    };
    let rules = yaml("prometheus.yaml")["rule_files"][0].as_str().unwrap().to_owned();
    assert!(places(&prometheus).contains(&rules));
    let dashboards =
        yaml("grafana/dashboards.yaml")["providers"][0]["options"]["path"].as_str().unwrap().to_owned();
    assert!(places(&grafana).contains(&dashboards));
}

#[test]
fn no_container_may_more_than_it_needs_and_none_is_reachable_from_elsewhere() {
    let compose = Compose::read();
    for service in compose.services() {
        let name = service.name;
        assert_eq!(*service.setting("read_only"), true, "{name}");
        assert_eq!(*service.setting("cap_drop"), serde_json::json!(["ALL"]), "{name}");
        assert_eq!(*service.setting("security_opt"), serde_json::json!(["no-new-privileges:true"]), "{name}");
        assert!(service.setting("pids_limit").is_u64(), "{name}");
        let user = service.setting("user").as_str().unwrap();
        let (_, tag) = service.image();
        assert!(tag.starts_with(|c: char| c.is_ascii_digit() || c == 'v'), "{name}: an image of no version");
        // One gives folders away, reaches nothing, and ends.
        let gives = name == "volumes";
        assert_eq!(user.starts_with("0:"), gives, "{name} runs as {user}");
        assert_eq!(!service.setting("cap_add").is_null(), gives, "{name}");
        assert_eq!(service.setting("mem_limit").is_null(), gives, "{name}");
        for port in service.ports() {
            assert!(port.starts_with("127.0.0.1:"), "{name} is open to all: {port}");
        }
    }
    let (networks, mut outward) = (compose.networks(), BTreeSet::new());
    for service in compose.services() {
        if service.networks().iter().any(|network| networks[network]) {
            outward.insert(service.name.to_owned());
        }
    }
    // Those that ask models, and those whose ports are published.
    let meant =
        ["worker-research", "worker-worker", "worker-producer", "planner", "critic", "prometheus", "grafana"];
    assert_eq!(outward, meant.map(str::to_owned).into());
}

#[test]
fn nobody_comes_in_by_a_password() {
    let text = fs::read_to_string(folder().join("compose.yaml")).unwrap();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let told: Vec<&str> = lines.filter(|line| line.to_lowercase().contains("password")).collect();
    assert_eq!(told, Vec::<&str>::new());
}
