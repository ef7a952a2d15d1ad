//! `compose.yaml` and the files next to it match the programs and each other. No container has more privileges than it
//! needs, and none is reachable from other machines.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use millrace_tests::nats_cluster::NatsIdentities;
use millrace_tests::program::millrace_program;
use serde_json::Value;

use super::compose::{ComposeFile, ComposeService, compose_folder};
use super::roots::{repository_folder, run_and_read_output};

/// The services with a Millrace image.
fn millrace_services(compose: &ComposeFile) -> Vec<ComposeService<'_>> {
    compose.services().filter(|service| service.image_name_and_tag().0.starts_with("millrace")).collect()
}

fn nats_services(compose: &ComposeFile) -> Vec<ComposeService<'_>> {
    compose.services().filter(|service| service.name.starts_with("nats-")).collect()
}

fn environment_variable(service: &ComposeService<'_>, name: &str) -> String {
    let variable = service.environment().into_iter().find(|(known, _)| known == name);
    variable.unwrap_or_else(|| panic!("{} has no {name}", service.name)).1
}

fn port_of_address(address: &str) -> &str {
    address.rsplit_once(':').unwrap().1.trim_end_matches(']')
}

fn read_yaml(file: &str) -> Value {
    serde_saphyr::from_str(&fs::read_to_string(compose_folder().join(file)).unwrap()).unwrap()
}

#[test]
fn compose_arguments_and_variables_exist() {
    let compose = ComposeFile::read_compose_file();
    let connection =
        fs::read_to_string(repository_folder().join("crates/runtime/src/nats/connection.rs")).unwrap();
    for service in millrace_services(&compose) {
        let (image, tag) = service.image_name_and_tag();
        assert_eq!(tag, env!("CARGO_PKG_VERSION"), "{}", service.name);
        let mut arguments = service.command_arguments();
        let command = image.strip_prefix("millrace-").map_or_else(|| arguments.remove(0), str::to_owned);
        let help = run_and_read_output(Command::new(millrace_program()).args([&command, "--help"]));
        for option in arguments.iter().filter(|argument| argument.starts_with("--")) {
            assert!(help.contains(&format!("{option} ")), "millrace {command} has no option {option}");
        }
        for (name, _) in service.environment() {
            let is_documented = help.contains(&name) || connection.contains(&format!("(\"{name}\")"));
            assert!(is_documented, "millrace {command} has no variable {name}");
        }
    }
}

#[test]
fn every_process_has_the_identity_of_its_role_only() {
    let compose = ComposeFile::read_compose_file();
    for service in millrace_services(&compose) {
        let capability =
            service.command_arguments().iter().skip_while(|word| *word != "--capability").nth(1).cloned();
        let identity = capability.map_or_else(|| service.name.to_owned(), |name| format!("worker-{name}"));
        let secrets = service.mounted_files("secrets");
        let seeds: Vec<_> = secrets.iter().filter(|(place, _)| place == "/run/secrets/nkey").collect();
        assert_eq!(seeds.len(), 1, "{}", service.name);
        assert!(seeds[0].1.ends_with(format!("seeds/millrace/{identity}.nk")), "{}: {seeds:?}", service.name);
        let mounted: BTreeSet<&str> = secrets.iter().map(|(place, _)| place.as_str()).collect();
        for (name, value) in service.environment() {
            assert!(!value.starts_with('/') || mounted.contains(value.as_str()), "{}: {name}", service.name);
        }
    }
}

#[test]
fn compose_files_exist_or_are_written_by_nats_config() {
    let compose = ComposeFile::read_compose_file();
    for file in compose.config_and_secret_files("configs") {
        assert!(file.is_file(), "{}", file.display());
    }
    let identities = NatsIdentities::generate(&[]);
    for file in compose.config_and_secret_files("secrets") {
        let inside = file.strip_prefix(compose_folder().join("secrets")).unwrap();
        assert!(
            identities.folder().join(inside).is_file(),
            "nats-config does not write {}",
            inside.display()
        );
    }
    for (what, _) in compose.services().flat_map(|service| service.volumes()) {
        assert!(!what.contains('/') || compose_folder().join(&what).is_dir(), "{what}");
    }
    let ignored = fs::read_to_string(repository_folder().join(".gitignore")).unwrap();
    assert!(ignored.lines().any(|line| line == "/deploy/compose/secrets/"), "secrets are never committed");
}

#[test]
fn servers_get_all_files_of_their_configuration() {
    let compose = ComposeFile::read_compose_file();
    let text =
        fs::read_to_string(repository_folder().join("deploy/kubernetes/components/nats/nats.conf")).unwrap();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let needed: BTreeSet<&str> =
        lines.filter_map(|line| line.split_once(": $")).map(|(_, name)| name).collect();
    assert!(needed.len() > 5, "{needed:?}");
    let servers = nats_services(&compose);
    for server in &servers {
        needed.iter().for_each(|name| drop(environment_variable(server, name)));
        let secrets: Vec<String> =
            server.mounted_files("secrets").into_iter().map(|(place, _)| place).collect();
        for name in ["NATS_TLS_CERT", "NATS_TLS_KEY", "NATS_TLS_CA"] {
            assert!(secrets.contains(&environment_variable(server, name)), "{}: {name}", server.name);
        }
        let store = environment_variable(server, "NATS_STORE_DIR");
        assert!(
            server.volumes().iter().any(|(_, place)| *place == store),
            "{} has no volume for its store",
            server.name
        );
        let probe = server.setting_value("healthcheck")["test"].to_string();
        assert!(
            probe.contains(&format!(
                "127.0.0.1:{}/",
                port_of_address(&environment_variable(server, "NATS_HTTP"))
            )),
            "{probe}"
        );
    }
    let names: BTreeSet<String> =
        servers.iter().map(|server| environment_variable(server, "NATS_SERVER_NAME")).collect();
    assert_eq!(names.len(), 3);
}

#[test]
fn clients_use_the_ports_that_servers_listen_on() {
    let compose = ComposeFile::read_compose_file();
    let servers = nats_services(&compose);
    let reached = |port: &str| -> BTreeSet<String> {
        servers.iter().map(|server| format!("{}:{port}", server.host_names()[0])).collect()
    };
    let hosts = |list: &str| -> BTreeSet<String> {
        let urls = list.trim_matches(['[', ']']).split(',');
        urls.map(|url| url.trim().split_once("://").unwrap().1.to_owned()).collect()
    };
    for server in &servers {
        let routes = hosts(&environment_variable(server, "NATS_ROUTES"));
        assert_eq!(routes, reached(port_of_address(&environment_variable(server, "NATS_CLUSTER_LISTEN"))));
    }
    let clients = reached(port_of_address(&environment_variable(&servers[0], "NATS_LISTEN")));
    for service in millrace_services(&compose) {
        assert_eq!(hosts(&environment_variable(&service, "MILLRACE_NATS_URL")), clients, "{}", service.name);
    }
    let scrape = &read_yaml("collector.yaml")["receivers"]["prometheus"]["config"]["scrape_configs"][0];
    let scraped = &scrape["dns_sd_configs"][0];
    let names: BTreeSet<String> = serde_json::from_value(scraped["names"].clone()).unwrap();
    let processes: Vec<_> =
        millrace_services(&compose).into_iter().filter(|service| service.name != "client").collect();
    assert_eq!(names, processes.iter().map(|service| service.name.to_owned()).collect());
    for service in processes {
        assert_eq!(
            port_of_address(&environment_variable(&service, "MILLRACE_HTTP")),
            scraped["port"].to_string(),
            "{}",
            service.name
        );
    }
    let written = &read_yaml("collector.yaml")["exporters"]["prometheusremotewrite"]["endpoint"];
    assert_eq!(written, "http://prometheus:9090/api/v1/write");
    assert_eq!(read_yaml("grafana/datasource.yaml")["datasources"][0]["url"], "http://prometheus:9090");
    let (prometheus, grafana) = (compose.service("prometheus"), compose.service("grafana"));
    assert!(prometheus.command_arguments().contains(&"--web.enable-remote-write-receiver".to_owned()));
    let places = |service: &ComposeService<'_>| -> Vec<String> {
        let files = service.mounted_files("configs").into_iter().map(|(place, _)| place);
        files.chain(service.volumes().into_iter().map(|(_, place)| place)).collect()
    };
    let rules = read_yaml("prometheus.yaml")["rule_files"][0].as_str().unwrap().to_owned();
    assert!(places(&prometheus).contains(&rules));
    let dashboards =
        read_yaml("grafana/dashboards.yaml")["providers"][0]["options"]["path"].as_str().unwrap().to_owned();
    assert!(places(&grafana).contains(&dashboards));
}

#[test]
fn containers_have_least_privileges_and_private_ports() {
    let compose = ComposeFile::read_compose_file();
    for service in compose.services() {
        let name = service.name;
        assert_eq!(*service.setting_value("read_only"), true, "{name}");
        assert_eq!(*service.setting_value("cap_drop"), serde_json::json!(["ALL"]), "{name}");
        assert_eq!(
            *service.setting_value("security_opt"),
            serde_json::json!(["no-new-privileges:true"]),
            "{name}"
        );
        assert!(service.setting_value("pids_limit").is_u64(), "{name}");
        let user = service.setting_value("user").as_str().unwrap();
        let (_, tag) = service.image_name_and_tag();
        assert!(
            tag.starts_with(|c: char| c.is_ascii_digit() || c == 'v'),
            "{name}: an image without a version"
        );
        // One service changes the owners of folders, has no network, and exits.
        let gives = name == "volumes";
        assert_eq!(user.starts_with("0:"), gives, "{name} runs as {user}");
        assert_eq!(!service.setting_value("cap_add").is_null(), gives, "{name}");
        assert_eq!(service.setting_value("mem_limit").is_null(), gives, "{name}");
        for port in service.published_ports() {
            assert!(port.starts_with("127.0.0.1:"), "{name} has a public port: {port}");
        }
    }
    let (networks, mut outward) = (compose.networks_with_access(), BTreeSet::new());
    for service in compose.services() {
        if service.network_names().iter().any(|network| networks[network]) {
            outward.insert(service.name.to_owned());
        }
    }
    // The services that call models, and those with published ports.
    let meant = [
        "worker-research",
        "worker-worker",
        "worker-producer",
        "worker-verify",
        "planner",
        "critic",
        "gateway",
        "grafana",
    ];
    assert_eq!(outward, meant.map(str::to_owned).into());
}

#[test]
fn no_user_authenticates_with_a_password() {
    let text = fs::read_to_string(compose_folder().join("compose.yaml")).unwrap();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let passwords: Vec<&str> = lines.filter(|line| line.to_lowercase().contains("password")).collect();
    assert_eq!(passwords, Vec::<&str>::new());
}
