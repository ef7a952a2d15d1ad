//! The cluster of `compose.yaml` without an engine: each container on a simulated machine, in the root of its image,
//! with the command, environment, secrets and folders of the file. A DNS server resolves the names.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::Arc;
use std::time::Duration;

use millrace_tests::machines::TestMachines;
use millrace_tests::nats_cluster::NatsIdentities;
use millrace_tests::processes::wait_for_exit;
use millrace_tests::{find_nats_server_program, wait_for_value, web};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::compose::{self, ComposeFile, ComposeService};
use super::container::EmulatedContainer;
use super::names::DnsServer;
use super::roots::{ImageRoots, run_and_read_output};

/// The time within which servers and processes must be ready.
const START: Duration = Duration::from_secs(60);
/// Services that are not tested here or that exit at once.
const OTHERS: [&str; 4] = ["volumes", "collector", "prometheus", "grafana"];
/// The user of the server's image.
const SERVER: &str = "/usr/local/bin/nats-server";
/// Services that resolve names with a hosts file; all others use the DNS server.
const BY_FILE: &str = "supervisor";

/// The cluster. Dropping it kills the remaining processes.
pub struct ComposeCluster {
    compose: ComposeFile,
    roots: Arc<ImageRoots>,
    machines: TestMachines,
    names: DnsServer,
    folder: TempDir,
    running: Vec<RunningContainer>,
}

/// A running container.
struct RunningContainer {
    /// The name of its service with a number.
    name: String,
    machine: usize,
    start: Command,
    child: Child,
}

impl ComposeCluster {
    /// Starts the cluster and waits until it is ready.
    ///
    /// # Panics
    /// A container does not start.
    pub async fn start() -> Result<Self, String> {
        let compose = ComposeFile::read_compose_file();
        let instances = service_instances(&compose);
        let machines = TestMachines::new(instances.len())?;
        let roots = ImageRoots::get_or_create_shared();
        let folder = tempfile::Builder::new().prefix("cluster-").tempdir_in(roots.build_folder()).unwrap();
        let names: BTreeMap<_, _> = (0..)
            .zip(&instances)
            .flat_map(|(machine, (service, _))| {
                let address = machines.machine_address(machine);
                compose.service(service).host_names().into_iter().map(move |name| (name, address))
            })
            .collect();
        prepare_folders(folder.path(), &machines, &names);
        let names = DnsServer::start_serving(machines.host_address(), names);
        let mut cluster = Self { compose, roots, machines, names, folder, running: Vec::new() };
        for ours in [false, true] {
            for (machine, (service, number)) in instances.iter().enumerate() {
                if service != "client" && is_nats_server(service) != ours {
                    cluster.start_container(machine, service, *number);
                }
            }
            cluster.wait_until_ready().await;
        }
        Ok(cluster)
    }

    /// Runs the cluster's client with these arguments.
    pub fn run_client(&self, arguments: &[&str]) -> Output {
        let machine = service_instances(&self.compose).len() - 1;
        let mut container = self.emulated_container("client");
        container.command.truncate(1);
        container.command.extend(arguments.iter().map(|&word| word.to_owned()));
        let view = tempfile::tempdir_in(self.folder.path()).unwrap();
        container.command_on_machine(&self.machines, machine, &view.path().join("view")).output().unwrap()
    }

    /// The DNS server.
    pub fn dns_server(&self) -> &DnsServer {
        &self.names
    }

    /// The responses of all Millrace processes at a path of their HTTP pages, by process name.
    pub async fn get_from_all(&self, path: &str) -> BTreeMap<String, Option<(u16, String)>> {
        let mut all = BTreeMap::new();
        for process in self.running.iter().filter(|process| !is_nats_server(&process.name)) {
            let answer = web::http_get(self.machines.machine_address(process.machine), 8080, path).await;
            all.insert(process.name.clone(), answer);
        }
        all
    }

    /// Stops all containers in order.
    ///
    /// # Panics
    /// A process fails.
    pub fn stop_all(mut self) {
        for RunningContainer { name, mut child, .. } in self.running.drain(..).rev() {
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
            let status = wait_for_exit(&name, &mut child);
            // A nats-server exits with 1 when it is stopped.
            let is_well = status.success() || is_nats_server(&name);
            assert!(is_well, "{name} exited with {status}:\n{}", read_log(self.folder.path(), &name));
        }
    }

    fn start_container(&mut self, machine: usize, service: &str, number: u64) {
        let name = format!("{service}-{number}");
        let view = self.folder.path().join(format!("view-{name}"));
        let mut start = self.emulated_container(service).command_on_machine(&self.machines, machine, &view);
        let log = File::create(self.folder.path().join(format!("{name}.log"))).unwrap();
        start.stdout(log.try_clone().unwrap()).stderr(log);
        let child = start.spawn().unwrap();
        self.running.push(RunningContainer { name, machine, start, child });
    }

    /// Waits until all containers are ready. Those that exit before are restarted, as set in the file.
    async fn wait_until_ready(&mut self) {
        for RunningContainer { name, machine, start, child } in &mut self.running {
            let (port, path) = if is_nats_server(name) { (8222, "/healthz") } else { (8080, "/readyz") };
            let (address, folder, mut starts) =
                (self.machines.machine_address(*machine), self.folder.path(), 1);
            wait_for_value(START, &format!("{name} to be ready"), async || {
                if let Some(status) = child.try_wait().unwrap() {
                    starts += 1;
                    assert!(starts < 4, "{name} exited with {status}:\n{}", read_log(folder, name));
                    *child = start.spawn().unwrap();
                }
                let (status, _) = web::http_get(address, port, path).await?;
                (status == 200).then_some(())
            })
            .await;
        }
    }

    fn emulated_container(&self, service: &str) -> EmulatedContainer {
        let service = self.compose.service(service);
        let (image, _) = service.image_name_and_tag();
        let (root, program) = match image.strip_prefix("millrace-").unwrap_or(&image) {
            "nats" => (self.folder.path().join("nats"), SERVER.to_owned()),
            ours => (self.roots.root_folder(ours), format!("/usr/bin/{image}")),
        };
        let by_file = service.name == BY_FILE;
        let here = |name: &str| self.folder.path().join(name);
        let mut files = vec![
            (here(if by_file { "hosts" } else { "no-hosts" }), "/etc/hosts".to_owned()),
            (here(if by_file { "no-names" } else { "resolv.conf" }), "/etc/resolv.conf".to_owned()),
        ];
        files.extend(self.mounted_files(&service));
        let volumes = service.volumes().into_iter();
        let (shown, own): (Vec<_>, Vec<_>) = volumes.partition(|(what, _)| what.contains('/'));
        files.extend(shown.into_iter().map(|(what, place)| (compose::compose_folder().join(what), place)));
        EmulatedContainer {
            root,
            command: [vec![program], service.command_arguments()].concat(),
            environment: service.environment(),
            user: service.setting_value("user").as_str().unwrap().to_owned(),
            files,
            volumes: own.into_iter().map(|(what, place)| (self.create_volume(&what), place)).collect(),
            temporary: service.temporary_folders(),
        }
    }

    fn mounted_files(&self, service: &ComposeService<'_>) -> Vec<(PathBuf, String)> {
        let secrets = compose::compose_folder().join("secrets");
        let written = self.folder.path().join("secrets");
        let all = service.mounted_files("configs").into_iter().chain(service.mounted_files("secrets"));
        all.map(|(place, file)| match file.strip_prefix(&secrets) {
            Ok(secret) => (written.join(secret), place),
            Err(_) => (file.canonicalize().unwrap(), place),
        })
        .collect()
    }

    /// A volume: created by root and handed over, as the service `volumes` does.
    fn create_volume(&self, name: &str) -> PathBuf {
        let folder = self.folder.path().join("volumes").join(name);
        fs::create_dir_all(&folder).unwrap();
        run_and_read_output(Command::new("chown").arg("65532:65532").arg(&folder));
        folder
    }
}

impl Drop for ComposeCluster {
    fn drop(&mut self) {
        for RunningContainer { name, mut child, .. } in self.running.drain(..) {
            drop(child.kill());
            drop(child.wait());
            if std::thread::panicking() {
                println!("== {name}\n{}", read_log(self.folder.path(), &name));
            }
        }
    }
}

fn is_nats_server(name: &str) -> bool {
    name.starts_with("nats-")
}

/// The instances of each service, the client last.
fn service_instances(compose: &ComposeFile) -> Vec<(String, u64)> {
    let ours =
        compose.services().filter(|service| !OTHERS.contains(&service.name) && service.name != "client");
    let all = ours
        .flat_map(|service| (1..=service.replicas()).map(move |number| (service.name.to_owned(), number)));
    all.chain([("client".to_owned(), 1)]).collect()
}

/// Creates the folders that an engine would create, and the output of `millrace nats-config`.
fn prepare_folders(folder: &Path, machines: &TestMachines, names: &BTreeMap<String, std::net::Ipv4Addr>) {
    let identities = NatsIdentities::generate(&[]);
    let secrets = folder.join("secrets");
    run_and_read_output(
        Command::new("cp").arg("--recursive").arg("--preserve=mode").arg(identities.folder()).arg(&secrets),
    );
    run_and_read_output(Command::new("chown").args(["--recursive", "65532:65532"]).arg(&secrets));
    let server = folder.join("nats").join(SERVER.trim_start_matches('/'));
    fs::create_dir_all(server.parent().unwrap()).unwrap();
    fs::copy(find_nats_server_program(), &server).unwrap();
    let hosts = names.iter().map(|(name, address)| format!("{address} {name}\n"));
    fs::write(folder.join("hosts"), hosts.collect::<String>()).unwrap();
    fs::write(folder.join("no-hosts"), "127.0.0.1 localhost\n").unwrap();
    fs::write(folder.join("resolv.conf"), format!("nameserver {}\n", machines.host_address())).unwrap();
    fs::write(folder.join("no-names"), "").unwrap();
}

fn read_log(folder: &Path, name: &str) -> String {
    let text = fs::read(folder.join(format!("{name}.log"))).unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}
