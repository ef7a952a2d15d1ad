//! The smallest overlay as real processes: every container as the manifest has it, with its Secrets from
//! `millrace nats-config`, on one machine instead of in pods. What a Kubernetes does is played by hand: it mounts,
//! probes, and stops.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use millrace_tests::program::millrace;
use millrace_tests::{binary, web};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::backup;
use super::overlay::{Container, Overlay, at, list, overlay};

/// How long all of it may take to come up, on a machine that has other things to do.
const PATIENCE: Duration = Duration::from_secs(120);
/// What a pod that ends is called.
const POD: &str = "backup-29384756-x7k2p";

/// A machine that runs pods without keeping them apart.
struct Node<'a> {
    overlay: &'a Overlay,
    folder: TempDir,
    /// A number for each port of each container, since they share a machine.
    ports: BTreeMap<(String, u64), u16>,
    pods: Vec<Pod<'a>>,
}

/// A container that runs.
struct Pod<'a> {
    container: Container<'a>,
    command: Command,
    child: Child,
    log: PathBuf,
}

impl Drop for Pod<'_> {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A port that nobody listens on.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a listener has an address").port()
}

impl<'a> Node<'a> {
    fn new(overlay: &'a Overlay) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let made =
            Command::new(millrace()).arg("nats-config").arg("--out").arg(folder.path().join("made")).output();
        let made = made.expect("it can be started");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut ports = BTreeMap::new();
        for container in overlay.containers() {
            for number in
                list(container.its, "/ports").iter().filter_map(|port| port["containerPort"].as_u64())
            {
                ports.insert((container.name().to_owned(), number), free_port());
            }
        }
        Self { overlay, ports, folder, pods: Vec::new() }
    }

    fn made(&self, path: &str) -> PathBuf {
        self.folder.path().join("made").join(path)
    }

    fn port(&self, name: &str, number: u64) -> u16 {
        self.ports[&(name.to_owned(), number)]
    }

    /// Writes the files of a Secret as `kubectl apply -k` of what nats-config made would make them.
    fn secret(&self, name: &str, to: &Path) {
        let text = fs::read_to_string(self.made("kustomization.yaml")).expect("it was written");
        let made: Value = serde_saphyr::from_str(&text).expect("it is YAML");
        let secrets = list(&made, "/secretGenerator");
        let secret = secrets.iter().find(|secret| secret["name"] == name).expect("the Secret is made");
        for file in list(secret, "/files").iter().filter_map(Value::as_str) {
            let (key, path) = file.split_once('=').expect("KEY=FILE");
            fs::copy(self.made(path), to.join(key)).expect("the file was made");
        }
    }

    fn configuration(&self, name: &str, to: &Path) {
        let map = self.overlay.named("ConfigMap", name).expect("the ConfigMap is there");
        for (key, text) in map["data"].as_object().expect("it has data") {
            fs::write(to.join(key), text.as_str().expect("data is text")).expect("a temporary folder");
        }
    }

    /// Makes what a volume holds; gives where.
    fn volume(&self, container: &Container<'_>, name: &str) -> PathBuf {
        let place = self.folder.path().join("volumes").join(container.name()).join(name);
        fs::create_dir_all(&place).expect("a temporary folder");
        let volume = list(container.pod(), "/volumes").iter().find(|volume| volume["name"] == name);
        // One that a claim is for is in the list of no pod.
        let Some(volume) = volume else { return place };
        for source in std::iter::once(volume).chain(list(volume, "/projected/sources")) {
            let named =
                |kind: &str, key: &str| source.get(kind).map(|_| at(source, &format!("/{kind}/{key}")));
            if let Some(name) = named("configMap", "name") {
                self.configuration(name, &place);
            }
            let key = if source.get("name").is_some() { "secretName" } else { "name" };
            if let Some(name) = named("secret", key) {
                self.secret(name, &place);
            }
        }
        place
    }

    /// What a container's word means on this machine.
    fn here(&self, container: &Container<'_>, mounts: &[(String, PathBuf)], word: &str) -> String {
        let (before, value) =
            word.split_once('=').map_or(("", word), |(name, _)| word.split_at(name.len() + 1));
        let within =
            |mount: &str| value.strip_prefix(mount).filter(|rest| rest.is_empty() || rest.starts_with('/'));
        if let Some((rest, place)) = mounts.iter().find_map(|(mount, place)| Some((within(mount)?, place))) {
            return format!("{before}{}{rest}", place.display());
        }
        if let Some(port) = value.strip_prefix("0.0.0.0:").and_then(|port| port.parse().ok()) {
            // A port of 0 is none, and stays so.
            let port = if port == 0 { 0 } else { self.port(container.name(), port) };
            return format!("{before}127.0.0.1:{port}");
        }
        if let Some(port) = value.strip_prefix("nats://nats:").and_then(|port| port.parse().ok()) {
            return format!("{before}nats://localhost:{}", self.port("nats", port));
        }
        word.to_owned()
    }

    /// What a container starts with, and where on this machine that is.
    fn command(&self, container: &Container<'_>) -> Command {
        let mounts = list(container.its, "/volumeMounts")
            .iter()
            .map(|mount| (at(mount, "/mountPath").to_owned(), self.volume(container, at(mount, "/name"))));
        let mounts: Vec<(String, PathBuf)> = mounts.collect();
        let words: Vec<String> = container
            .line()
            .iter()
            .map(|word| self.here(container, &mounts, &word.replace("$(POD_NAME)", POD)))
            .collect();
        let mut command = match words[0].strip_prefix("/usr/bin/") {
            None => Command::new(binary()),
            Some("millrace") => Command::new(millrace()),
            Some(program) => {
                let mut command = Command::new(millrace());
                command.arg(program.strip_prefix("millrace-").expect("a role's program"));
                command
            }
        };
        command.args(&words[1..]).env_clear().current_dir(self.folder.path());
        for (name, value) in container.environment() {
            command.env(name, self.here(container, &mounts, &value));
        }
        if container.role() == "nats" {
            command.env("NATS_SERVER_NAME", "nats-0");
        }
        command
    }

    /// Starts a container.
    fn start(&mut self, container: Container<'a>) {
        let mut command = self.command(&container);
        let log = self.folder.path().join(container.name());
        let file = fs::File::create(&log).expect("a temporary folder");
        let other = file.try_clone().expect("a file can be shared");
        command.stdin(Stdio::null()).stdout(other).stderr(file);
        let child = command.spawn().expect("it can be started");
        self.pods.push(Pod { container, command, child, log });
    }

    /// Waits until all probes of all pods are well; meanwhile whatever ends is started again.
    async fn come_up(&mut self) {
        let started = Instant::now();
        loop {
            self.pods.iter_mut().for_each(Pod::keep);
            let mut ill = Vec::new();
            for pod in &self.pods {
                for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
                    let answer = self.probed(pod, probe).await;
                    if answer.as_ref().is_none_or(|(status, _)| *status != 200) {
                        ill.push(format!(
                            "{probe} of {}: {answer:?}; {}",
                            pod.container.name(),
                            pod.last_words()
                        ));
                    }
                }
            }
            if ill.is_empty() {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "{}", ill.join("\n"));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// What a probe of a pod gets for an answer.
    async fn probed(&self, pod: &Pod<'_>, probe: &str) -> Option<(u16, String)> {
        let asked = &pod.container.its[probe]["httpGet"];
        let port = pod.container.port(at(asked, "/port")).expect("it has a name");
        web::get(Ipv4Addr::LOCALHOST, self.port(pod.container.name(), port), at(asked, "/path")).await
    }

    /// A command as a client outside the cluster gives it.
    fn client(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(millrace());
        command.args(arguments).env_clear().current_dir(self.folder.path());
        command.env("HOME", self.folder.path());
        command.env("MILLRACE_NATS_URL", format!("nats://localhost:{}", self.port("nats", 4222)));
        command.env("MILLRACE_NATS_NKEY", self.made("seeds/millrace/client.nk"));
        for (variable, file) in [
            ("MILLRACE_NATS_CA", "ca.crt"),
            ("MILLRACE_NATS_CERT", "client.crt"),
            ("MILLRACE_NATS_KEY", "client.key"),
        ] {
            command.env(variable, self.made("tls").join(file));
        }
        command.output().expect("it can be started")
    }
}

impl Pod<'_> {
    /// Starts it again if it has ended.
    fn keep(&mut self) {
        if self.child.try_wait().expect("a child can be asked").is_some() {
            self.child = self.command.spawn().expect("it can be started");
        }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The last of what it said.
    fn last_words(&self) -> String {
        let said = self.said();
        said.lines().rev().take(2).map(|line| format!("\n  {line}")).collect()
    }

    /// Stops it as a Kubernetes does; gives what it ended with, and how long that took.
    fn stop(&mut self) -> (Option<i32>, Duration) {
        let started = Instant::now();
        let hook = list(self.container.its, "/lifecycle/preStop/exec/command");
        if !hook.is_empty() {
            // In its container a process has the number 1.
            let number = format!("ldm={}", self.child.id());
            let words: Vec<&str> = hook.iter().filter_map(Value::as_str).collect();
            assert_eq!(words, ["nats-server", "--signal", "ldm=1"]);
            let done = Command::new(binary()).args(["--signal", &number]).status();
            assert!(done.is_ok_and(|status| status.success()), "the server can be told");
        }
        let told = kill_process(Pid::from_child(&self.child), Signal::TERM);
        assert!(told.is_ok() || self.child.try_wait().is_ok(), "it can be told");
        let given = self.container.pod()["terminationGracePeriodSeconds"].as_u64().expect("it is said");
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be asked") {
                return (status.code(), started.elapsed());
            }
            assert!(started.elapsed() < Duration::from_secs(given), "{}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_smallest_overlay_comes_up_does_a_run_and_goes_down() {
    let (Some(overlay), Some(production)) = (overlay("local"), overlay("production")) else { return };
    let mut node = Node::new(overlay);
    let (servers, processes): (Vec<_>, Vec<_>) =
        overlay.containers().into_iter().partition(|container| container.role() == "nats");
    assert_eq!((servers.len(), processes.len()), (1, 7));
    // In a cluster nothing is in order: those who come before NATS end, and are started again.
    for container in processes.into_iter().chain(servers) {
        node.start(container);
    }
    node.come_up().await;
    let documents = super::overlay::root().join("examples/licences");
    let documents = documents.to_str().expect("a path in letters");
    let submitted = node.client(&["submit", "How do these licences treat patents?", "--docs", documents]);
    assert!(submitted.status.success(), "{}", said(&submitted));
    let run = String::from_utf8_lossy(&submitted.stdout).trim().to_owned();
    let watched = node.client(&["watch", &run]);
    assert_eq!(watched.status.code(), Some(0), "{}", said(&watched));
    // What another overlay does by night.
    let (takes, _) = backup::containers(production);
    let taken = node.command(&takes).output().expect("it can be started");
    assert!(taken.status.success(), "{}", said(&taken));
    let folder = node.volume(&takes, "backups").join(POD);
    let verified = node.client(&["backup", "--verify", folder.to_str().expect("a path in letters")]);
    assert!(verified.status.success(), "{}", said(&verified));
    for pod in &mut node.pods {
        let (code, _) = pod.stop();
        let refused = pod.said().matches("does not let this process").count();
        assert_eq!((code, refused), (Some(0), 0), "{}: {}", pod.container.name(), pod.said());
    }
}
