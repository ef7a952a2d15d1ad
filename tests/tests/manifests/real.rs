//! The smallest overlay as real processes: every container of the manifests, with Secrets from `millrace nats-config`,
//! on one machine instead of in pods. The test imitates Kubernetes: it mounts, probes, and stops.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use millrace_tests::program::millrace_program;
use millrace_tests::{find_nats_server_program, web};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::backup;
use super::overlay::{Overlay, WorkloadContainer, find_overlay, list_at, string_at};

/// The time within which all must be ready, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The name of an exited pod.
const POD: &str = "backup-29384756-x7k2p";

/// A machine that runs containers without isolation.
struct UnisolatedNode<'a> {
    overlay: &'a Overlay,
    folder: TempDir,
    /// A free port for each port of each container, since they share a machine.
    ports: BTreeMap<(String, u64), u16>,
    pods: Vec<RunningPod<'a>>,
}

/// A running container.
struct RunningPod<'a> {
    container: WorkloadContainer<'a>,
    command: Command,
    child: Child,
    log: PathBuf,
}

impl Drop for RunningPod<'_> {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A free port.
pub fn find_free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a listener has an address").port()
}

impl<'a> UnisolatedNode<'a> {
    fn new(overlay: &'a Overlay) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let made = Command::new(millrace_program())
            .arg("nats-config")
            .arg("--out")
            .arg(folder.path().join("made"))
            .output();
        let made = made.expect("it can be started");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut ports = BTreeMap::new();
        for container in overlay.long_running_containers() {
            for number in
                list_at(container.its, "/ports").iter().filter_map(|port| port["containerPort"].as_u64())
            {
                ports.insert((container.workload_name().to_owned(), number), find_free_port());
            }
        }
        Self { overlay, ports, folder, pods: Vec::new() }
    }

    fn output_path(&self, path: &str) -> PathBuf {
        self.folder.path().join("made").join(path)
    }

    fn mapped_port(&self, name: &str, number: u64) -> u16 {
        self.ports[&(name.to_owned(), number)]
    }

    /// Writes the files of a Secret as `kubectl apply -k` would create them from the output of nats-config.
    fn write_secret(&self, name: &str, to: &Path) {
        let text = fs::read_to_string(self.output_path("kustomization.yaml")).expect("it was written");
        let made: Value = serde_saphyr::from_str(&text).expect("it is YAML");
        let secrets = list_at(&made, "/secretGenerator");
        let secret = secrets.iter().find(|secret| secret["name"] == name).expect("the Secret is made");
        for file in list_at(secret, "/files").iter().filter_map(Value::as_str) {
            let (key, path) = file.split_once('=').expect("KEY=FILE");
            fs::copy(self.output_path(path), to.join(key)).expect("the file was made");
        }
    }

    fn write_config_map(&self, name: &str, to: &Path) {
        let map = self.overlay.find_document("ConfigMap", name).expect("the ConfigMap is there");
        for (key, text) in map["data"].as_object().expect("it has data") {
            fs::write(to.join(key), text.as_str().expect("data is text")).expect("a temporary folder");
        }
    }

    /// Creates the content of a volume and returns its folder.
    fn create_volume(&self, container: &WorkloadContainer<'_>, name: &str) -> PathBuf {
        let place = self.folder.path().join("volumes").join(container.workload_name()).join(name);
        fs::create_dir_all(&place).expect("a temporary folder");
        let volume =
            list_at(container.pod_template(), "/volumes").iter().find(|volume| volume["name"] == name);
        // Volumes of claims are not in the pod's list.
        let Some(volume) = volume else { return place };
        for source in std::iter::once(volume).chain(list_at(volume, "/projected/sources")) {
            let named = |kind: &str, key: &str| {
                source.get(kind).map(|_| string_at(source, &format!("/{kind}/{key}")))
            };
            if let Some(name) = named("configMap", "name") {
                self.write_config_map(name, &place);
            }
            let key = if source.get("name").is_some() { "secretName" } else { "name" };
            if let Some(name) = named("secret", key) {
                self.write_secret(name, &place);
            }
        }
        place
    }

    /// Translates a container's argument to this machine.
    fn translate_argument(
        &self,
        container: &WorkloadContainer<'_>,
        mounts: &[(String, PathBuf)],
        word: &str,
    ) -> String {
        let (before, value) =
            word.split_once('=').map_or(("", word), |(name, _)| word.split_at(name.len() + 1));
        let within =
            |mount: &str| value.strip_prefix(mount).filter(|rest| rest.is_empty() || rest.starts_with('/'));
        if let Some((rest, place)) = mounts.iter().find_map(|(mount, place)| Some((within(mount)?, place))) {
            return format!("{before}{}{rest}", place.display());
        }
        if let Some(port) = value.strip_prefix("0.0.0.0:").and_then(|port| port.parse().ok()) {
            // Port 0 is kept.
            let port = if port == 0 { 0 } else { self.mapped_port(container.workload_name(), port) };
            return format!("{before}127.0.0.1:{port}");
        }
        if let Some(port) = value.strip_prefix("nats://nats:").and_then(|port| port.parse().ok()) {
            return format!("{before}nats://localhost:{}", self.mapped_port("nats", port));
        }
        word.to_owned()
    }

    /// The command of a container, translated to this machine.
    fn container_command(&self, container: &WorkloadContainer<'_>) -> Command {
        let mounts = list_at(container.its, "/volumeMounts").iter().map(|mount| {
            (
                string_at(mount, "/mountPath").to_owned(),
                self.create_volume(container, string_at(mount, "/name")),
            )
        });
        let mounts: Vec<(String, PathBuf)> = mounts.collect();
        let words: Vec<String> = container
            .command_line()
            .iter()
            .map(|word| self.translate_argument(container, &mounts, &word.replace("$(POD_NAME)", POD)))
            .collect();
        let mut command = match words[0].strip_prefix("/usr/bin/") {
            None => Command::new(find_nats_server_program()),
            Some("millrace") => Command::new(millrace_program()),
            Some(program) => {
                let mut command = Command::new(millrace_program());
                command.arg(program.strip_prefix("millrace-").expect("a role's program"));
                command
            }
        };
        command.args(&words[1..]).env_clear().current_dir(self.folder.path());
        for (name, value) in container.resolved_environment() {
            command.env(name, self.translate_argument(container, &mounts, &value));
        }
        if container.process_role() == "nats" {
            command.env("NATS_SERVER_NAME", "nats-0");
        }
        command
    }

    /// Starts a container.
    fn start_container(&mut self, container: WorkloadContainer<'a>) {
        let mut command = self.container_command(&container);
        let log = self.folder.path().join(container.workload_name());
        let file = fs::File::create(&log).expect("a temporary folder");
        let other = file.try_clone().expect("a file can be shared");
        command.stdin(Stdio::null()).stdout(other).stderr(file);
        let child = command.spawn().expect("it can be started");
        self.pods.push(RunningPod { container, command, child, log });
    }

    /// Waits until all probes succeed; restarts containers that exit meanwhile.
    async fn wait_until_ready(&mut self) {
        let started = Instant::now();
        loop {
            self.pods.iter_mut().for_each(RunningPod::restart_if_exited);
            let mut ill = Vec::new();
            for pod in &self.pods {
                for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
                    let answer = self.probe_response(pod, probe).await;
                    if answer.as_ref().is_none_or(|(status, _)| *status != 200) {
                        ill.push(format!(
                            "{probe} of {}: {answer:?}; {}",
                            pod.container.workload_name(),
                            pod.read_log_tail()
                        ));
                    }
                }
            }
            if ill.is_empty() {
                return;
            }
            assert!(started.elapsed() < TIMEOUT, "{}", ill.join("\n"));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The response to a probe.
    async fn probe_response(&self, pod: &RunningPod<'_>, probe: &str) -> Option<(u16, String)> {
        let request = &pod.container.its[probe]["httpGet"];
        let port = pod.container.port_number(string_at(request, "/port")).expect("it has a name");
        web::http_get(
            Ipv4Addr::LOCALHOST,
            self.mapped_port(pod.container.workload_name(), port),
            string_at(request, "/path"),
        )
        .await
    }

    /// Runs a command as a client outside the cluster.
    fn run_client(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(millrace_program());
        command.args(arguments).env_clear().current_dir(self.folder.path());
        command.env("HOME", self.folder.path());
        command.env("MILLRACE_NATS_URL", format!("nats://localhost:{}", self.mapped_port("nats", 4222)));
        command.env("MILLRACE_NATS_NKEY", self.output_path("seeds/millrace/client.nk"));
        for (variable, file) in [
            ("MILLRACE_NATS_CA", "ca.crt"),
            ("MILLRACE_NATS_CERT", "client.crt"),
            ("MILLRACE_NATS_KEY", "client.key"),
        ] {
            command.env(variable, self.output_path("tls").join(file));
        }
        command.output().expect("it can be started")
    }
}

impl RunningPod<'_> {
    /// Restarts it if it has exited.
    fn restart_if_exited(&mut self) {
        if self.child.try_wait().expect("the status of a child can be read").is_some() {
            self.child = self.command.spawn().expect("it can be started");
        }
    }

    fn read_log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The end of its log.
    fn read_log_tail(&self) -> String {
        let log = self.read_log();
        log.lines().rev().take(2).map(|line| format!("\n  {line}")).collect()
    }

    /// Stops it as Kubernetes does; returns its exit code and the time it took.
    fn stop_and_measure(&mut self) -> (Option<i32>, Duration) {
        let started = Instant::now();
        let hook = list_at(self.container.its, "/lifecycle/preStop/exec/command");
        if !hook.is_empty() {
            // In its container the process has the id 1.
            let number = format!("ldm={}", self.child.id());
            let words: Vec<&str> = hook.iter().filter_map(Value::as_str).collect();
            assert_eq!(words, ["nats-server", "--signal", "ldm=1"]);
            let done = Command::new(find_nats_server_program()).args(["--signal", &number]).status();
            assert!(done.is_ok_and(|status| status.success()), "the server can be signalled");
        }
        let signalled = kill_process(Pid::from_child(&self.child), Signal::TERM);
        assert!(signalled.is_ok() || self.child.try_wait().is_ok(), "it can be signalled");
        let grace =
            self.container.pod_template()["terminationGracePeriodSeconds"].as_u64().expect("it is said");
        loop {
            if let Some(status) = self.child.try_wait().expect("the status of a child can be read") {
                return (status.code(), started.elapsed());
            }
            assert!(started.elapsed() < Duration::from_secs(grace), "{}", self.read_log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn combined_output(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn smallest_overlay_starts_completes_a_run_and_stops() {
    let (Some(overlay), Some(production)) = (find_overlay("local"), find_overlay("production")) else {
        return;
    };
    let mut node = UnisolatedNode::new(overlay);
    let (servers, processes): (Vec<_>, Vec<_>) = overlay
        .long_running_containers()
        .into_iter()
        .partition(|container| container.process_role() == "nats");
    assert_eq!((servers.len(), processes.len()), (1, 9));
    // In a cluster the order of starts is random: processes that start before NATS exit and are restarted.
    for container in processes.into_iter().chain(servers) {
        node.start_container(container);
    }
    node.wait_until_ready().await;
    let documents = super::overlay::workspace_folder().join("examples/licences");
    let documents = documents.to_str().expect("a path in letters");
    let submitted = node.run_client(&["submit", "How do these licences treat patents?", "--docs", documents]);
    assert!(submitted.status.success(), "{}", combined_output(&submitted));
    let run = String::from_utf8_lossy(&submitted.stdout).trim().to_owned();
    let watched = node.run_client(&["watch", &run]);
    assert_eq!(watched.status.code(), Some(0), "{}", combined_output(&watched));
    // The nightly backup of another overlay.
    let (takes, _) = backup::backup_containers(production);
    let taken = node.container_command(&takes).output().expect("it can be started");
    assert!(taken.status.success(), "{}", combined_output(&taken));
    let folder = node.create_volume(&takes, "backups").join(POD);
    let verified = node.run_client(&["backup", "--verify", folder.to_str().expect("a path in letters")]);
    assert!(verified.status.success(), "{}", combined_output(&verified));
    for pod in &mut node.pods {
        let (code, _) = pod.stop_and_measure();
        let refused = pod.read_log().matches("permission denied by the NATS server").count();
        assert_eq!((code, refused), (Some(0), 0), "{}: {}", pod.container.workload_name(), pod.read_log());
    }
}
