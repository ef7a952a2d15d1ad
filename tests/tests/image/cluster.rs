//! The cluster of `compose.yaml`, by hand: each container on a machine of its own, in the root of its image, with the
//! command, the environment, the secrets and the folders that the file gives it. Names are served as the engine does.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::Arc;
use std::time::Duration;

use millrace_tests::fleet::wait_for;
use millrace_tests::machines::Machines;
use millrace_tests::trio::Identities;
use millrace_tests::{binary, eventually, web};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::compose::{self, Compose, Service};
use super::container::Container;
use super::names::Names;
use super::roots::{Roots, said};

/// How long servers and processes may take to be ready.
const START: Duration = Duration::from_secs(60);
/// Services that are not ours to try, or that end at once.
const OTHERS: [&str; 4] = ["volumes", "collector", "prometheus", "grafana"];
/// Of the server's image.
const SERVER: &str = "/usr/local/bin/nats-server";
/// Reached by names that stand in a file; all others ask the server of names.
const BY_FILE: &str = "supervisor";

/// The cluster. Dropping it kills what is left of it.
pub struct Cluster {
    compose: Compose,
    roots: Arc<Roots>,
    machines: Machines,
    names: Names,
    folder: TempDir,
    running: Vec<Process>,
}

/// What runs.
struct Process {
    /// Its service with a number.
    name: String,
    machine: usize,
    start: Command,
    child: Child,
}

impl Cluster {
    /// Starts it and waits until all of it is ready; or says why that can't be here.
    ///
    /// # Panics
    /// Something does not start.
    pub async fn start() -> Result<Self, String> {
        let compose = Compose::read();
        let instances = instances(&compose);
        let machines = Machines::new(instances.len())?;
        let roots = Roots::shared();
        let folder = tempfile::Builder::new().prefix("cluster-").tempdir_in(roots.folder()).unwrap();
        let names: BTreeMap<_, _> = (0..)
            .zip(&instances)
            .flat_map(|(machine, (service, _))| {
                let address = machines.address(machine);
                compose.service(service).names().into_iter().map(move |name| (name, address))
            })
            .collect();
        lay_out(folder.path(), &machines, &names);
        let names = Names::serve(machines.here(), names);
        let mut cluster = Self { compose, roots, machines, names, folder, running: Vec::new() };
        for ours in [false, true] {
            for (machine, (service, number)) in instances.iter().enumerate() {
                if service != "client" && is_server(service) != ours {
                    cluster.launch(machine, service, *number);
                }
            }
            cluster.is_ready().await;
        }
        Ok(cluster)
    }

    /// Calls the client of the cluster with these arguments.
    pub fn client(&self, arguments: &[&str]) -> Output {
        let machine = instances(&self.compose).len() - 1;
        let mut container = self.container("client");
        container.command.truncate(1);
        container.command.extend(arguments.iter().map(|&word| word.to_owned()));
        let view = tempfile::tempdir_in(self.folder.path()).unwrap();
        container.on(&self.machines, machine, &view.path().join("view")).output().unwrap()
    }

    /// The names that were asked for at the server of names.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// What all our processes answer at a path of their health and metrics, by the name of the process.
    pub async fn ask(&self, path: &str) -> BTreeMap<String, Option<(u16, String)>> {
        let mut all = BTreeMap::new();
        for process in self.running.iter().filter(|process| !is_server(&process.name)) {
            let answer = web::get(self.machines.address(process.machine), 8080, path).await;
            all.insert(process.name.clone(), answer);
        }
        all
    }

    /// Stops everything in order.
    ///
    /// # Panics
    /// A process does not end well.
    pub fn end(mut self) {
        for Process { name, mut child, .. } in self.running.drain(..).rev() {
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
            let status = wait_for(&name, &mut child);
            // A server that is told to stop says so by 1.
            let is_well = status.success() || is_server(&name);
            assert!(is_well, "{name} ended with {status}:\n{}", log(self.folder.path(), &name));
        }
    }

    fn launch(&mut self, machine: usize, service: &str, number: u64) {
        let name = format!("{service}-{number}");
        let view = self.folder.path().join(format!("view-{name}"));
        let mut start = self.container(service).on(&self.machines, machine, &view);
        let log = File::create(self.folder.path().join(format!("{name}.log"))).unwrap();
        start.stdout(log.try_clone().unwrap()).stderr(log);
        let child = start.spawn().unwrap();
        self.running.push(Process { name, machine, start, child });
    }

    /// Waits until all is ready. What ends before that is started again, as the file says.
    async fn is_ready(&mut self) {
        for Process { name, machine, start, child } in &mut self.running {
            let (port, path) = if is_server(name) { (8222, "/healthz") } else { (8080, "/readyz") };
            let (address, folder, mut starts) = (self.machines.address(*machine), self.folder.path(), 1);
            eventually(START, &format!("{name} to be ready"), async || {
                if let Some(status) = child.try_wait().unwrap() {
                    starts += 1;
                    assert!(starts < 4, "{name} ended with {status}:\n{}", log(folder, name));
                    *child = start.spawn().unwrap();
                }
                let (status, _) = web::get(address, port, path).await?;
                (status == 200).then_some(())
            })
            .await;
        }
    }

    fn container(&self, service: &str) -> Container {
        let service = self.compose.service(service);
        let (image, _) = service.image();
        let (root, program) = match image.strip_prefix("millrace-").unwrap_or(&image) {
            "nats" => (self.folder.path().join("nats"), SERVER.to_owned()),
            ours => (self.roots.root(ours), format!("/usr/bin/{image}")),
        };
        let by_file = service.name == BY_FILE;
        let here = |name: &str| self.folder.path().join(name);
        let mut files = vec![
            (here(if by_file { "hosts" } else { "no-hosts" }), "/etc/hosts".to_owned()),
            (here(if by_file { "no-names" } else { "resolv.conf" }), "/etc/resolv.conf".to_owned()),
        ];
        files.extend(self.files(&service));
        let volumes = service.volumes().into_iter();
        let (shown, own): (Vec<_>, Vec<_>) = volumes.partition(|(what, _)| what.contains('/'));
        files.extend(shown.into_iter().map(|(what, place)| (compose::folder().join(what), place)));
        Container {
            root,
            command: [vec![program], service.command()].concat(),
            environment: service.environment(),
            user: service.setting("user").as_str().unwrap().to_owned(),
            files,
            volumes: own.into_iter().map(|(what, place)| (self.volume(&what), place)).collect(),
            temporary: service.temporary(),
        }
    }

    fn files(&self, service: &Service<'_>) -> Vec<(PathBuf, String)> {
        let secrets = compose::folder().join("secrets");
        let written = self.folder.path().join("secrets");
        let all = service.files("configs").into_iter().chain(service.files("secrets"));
        all.map(|(place, file)| match file.strip_prefix(&secrets) {
            Ok(secret) => (written.join(secret), place),
            Err(_) => (file.canonicalize().unwrap(), place),
        })
        .collect()
    }

    /// A volume: made for root, and given away as the service `volumes` does.
    fn volume(&self, name: &str) -> PathBuf {
        let folder = self.folder.path().join("volumes").join(name);
        fs::create_dir_all(&folder).unwrap();
        said(Command::new("chown").arg("65532:65532").arg(&folder));
        folder
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for Process { name, mut child, .. } in self.running.drain(..) {
            drop(child.kill());
            drop(child.wait());
            if std::thread::panicking() {
                println!("== {name}\n{}", log(self.folder.path(), &name));
            }
        }
    }
}

fn is_server(name: &str) -> bool {
    name.starts_with("nats-")
}

/// What runs of each service, the client last.
fn instances(compose: &Compose) -> Vec<(String, u64)> {
    let ours =
        compose.services().filter(|service| !OTHERS.contains(&service.name) && service.name != "client");
    let all = ours
        .flat_map(|service| (1..=service.replicas()).map(move |number| (service.name.to_owned(), number)));
    all.chain([("client".to_owned(), 1)]).collect()
}

/// What an engine would make before it starts anything, and what a person would let `millrace nats-config` write.
fn lay_out(folder: &Path, machines: &Machines, names: &BTreeMap<String, std::net::Ipv4Addr>) {
    let identities = Identities::write(&[]);
    let secrets = folder.join("secrets");
    said(Command::new("cp").arg("--recursive").arg("--preserve=mode").arg(identities.folder()).arg(&secrets));
    said(Command::new("chown").args(["--recursive", "65532:65532"]).arg(&secrets));
    let server = folder.join("nats").join(SERVER.trim_start_matches('/'));
    fs::create_dir_all(server.parent().unwrap()).unwrap();
    fs::copy(binary(), &server).unwrap();
    let hosts = names.iter().map(|(name, address)| format!("{address} {name}\n"));
    fs::write(folder.join("hosts"), hosts.collect::<String>()).unwrap();
    fs::write(folder.join("no-hosts"), "127.0.0.1 localhost\n").unwrap();
    fs::write(folder.join("resolv.conf"), format!("nameserver {}\n", machines.here())).unwrap();
    fs::write(folder.join("no-names"), "").unwrap();
}

fn log(folder: &Path, name: &str) -> String {
    let text = fs::read(folder.join(format!("{name}.log"))).unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}
