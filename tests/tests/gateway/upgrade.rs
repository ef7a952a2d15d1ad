//! A cluster of the previous release gets a gateway while its runs go on, and then its processes are replaced one after the other.

use std::ffi::OsString;
use std::ops::DerefMut as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millrace_protocol::registry;
use millrace_tests::cluster::{ClusterSetup, ProcessRole, TestCluster};
use millrace_tests::machine::share_machine;
use millrace_tests::plans::{run_id, wait_for_run_history};
use millrace_tests::program::millrace_program;
use millrace_tests::wait_for_value;
use serde_json::{Value, json};

use super::http::{Request, read_events};
use super::process::GatewayProcess;
use super::{TIMEOUT, chain, events_request, ids_of_log, positioned, wait_for_archive};

/// The processes, in the order in which docs/operations.md upgrades them.
const PROCESSES: [(ProcessRole, &str); 5] = [
    (ProcessRole::Supervisor, "supervisor-1"),
    (ProcessRole::Supervisor, "supervisor-2"),
    (ProcessRole::Worker, "worker-1"),
    (ProcessRole::Worker, "worker-2"),
    (ProcessRole::Critic, "critic-1"),
];

/// A cluster whose processes are of the previous release until they are restarted after `upgrade`.
struct UpgradedCluster {
    cluster: TestCluster,
    is_upgraded: Arc<AtomicBool>,
    previous: PathBuf,
    environment: Vec<(OsString, OsString)>,
}

impl UpgradedCluster {
    fn start(previous: PathBuf) -> Self {
        let setup = ClusterSetup { linger: Duration::from_millis(300), ..ClusterSetup::default() };
        let cluster = TestCluster::with_server_only(setup.clone());
        let command = cluster.millrace_command();
        let environment = command.get_envs().filter_map(|(name, value)| Some((name.into(), value?.into())));
        let environment: Vec<_> = environment.collect();
        let mut started = Self { cluster, is_upgraded: Arc::default(), previous, environment };
        for (role, name) in PROCESSES {
            let (is_upgraded, previous) = (started.is_upgraded.clone(), started.previous.clone());
            let (environment, setup) = (started.environment.clone(), setup.clone());
            started.cluster.deref_mut().start_process(role, name, move |id| {
                let program =
                    if is_upgraded.load(Ordering::SeqCst) { millrace_program() } else { previous.as_path() };
                let mut command = Command::new(program);
                command.envs(environment.iter().cloned()).args(setup.role_arguments(role, id));
                if role == ProcessRole::Worker {
                    command.args(["--capability", "echo"]);
                }
                command
            });
        }
        started
    }

    /// Submits a run with the previous release's command, and returns its id.
    fn submit_with_previous(&self, body: &Value) -> String {
        let file = self.cluster.test_folder().join("plan.yaml");
        let plan = json!({ "objective": body["objective"], "tasks": body["plan"]["tasks"] });
        std::fs::write(&file, plan.to_string()).unwrap();
        let mut command = Command::new(&self.previous);
        command.envs(self.environment.iter().cloned()).args(["submit", "--plan"]).arg(&file);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the program of the previous release: MILLRACE_PREVIOUS_PROGRAM"]
async fn cluster_of_the_previous_release_is_upgraded_while_runs_go_on() {
    let previous = std::env::var_os("MILLRACE_PREVIOUS_PROGRAM").map(PathBuf::from);
    let previous =
        previous.expect("MILLRACE_PREVIOUS_PROGRAM is the path of a program of the previous release");
    let _shared = share_machine();
    let mut old = UpgradedCluster::start(previous);
    let bus = old.cluster.connect_bus().await;
    old.cluster.wait_for_heartbeats(&bus, registry::ProcessRole::Worker, 2).await;

    // Two runs of about 20 s each, one of which is paused and resumed over HTTP by its old supervisor.
    let parameters = json!({ "delay_ms": 500, "steps": 2 });
    let streamed = old.submit_with_previous(&chain(40, &parameters));
    let steered = old.submit_with_previous(&chain(40, &parameters));
    let gateway = GatewayProcess::start(&old.cluster, "gateway").await;
    let reading = {
        let (address, request) = (gateway.address, events_request(&streamed, "steps", None));
        tokio::spawn(async move { read_events(address, &request, None).await })
    };
    for command in ["pause", "resume"] {
        let answer = gateway.post(&format!("/runs/{steered}/{command}?wait=decided"), &json!({})).await;
        assert_eq!(answer.status, 200, "{command}: {}", answer.text());
    }
    let listed = gateway.get("/runs").await.json();
    assert_eq!(listed["runs"].as_array().unwrap().len(), 2, "{listed}");
    let submitted = gateway.submit(&chain(20, &parameters)).await;
    // The previous supervisors have not created the bucket of the keys.
    let keyed = |key: &str| {
        let request = Request::new("POST", "/api/v1/runs").header("Idempotency-Key", key);
        request.json(&chain(1, &json!({})))
    };
    let refused = keyed("first").send(gateway.address).await;
    assert!([201, 503].contains(&refused.status), "{}", refused.text());

    old.is_upgraded.store(true, Ordering::SeqCst);
    for (_, name) in PROCESSES {
        old.cluster.stop_process(name);
        old.cluster.restart_process(name);
    }
    // The buckets of the new supervisors.
    let created = wait_for_value(TIMEOUT, "a run with a key", async || {
        let answer = keyed("second").send(gateway.address).await;
        (answer.status == 201).then(|| answer.json()["run"].as_str().unwrap().to_owned())
    })
    .await;
    let ledger = |cluster: &TestCluster| cluster.read_ledger();
    for run in [&streamed, &steered, &submitted, &created] {
        let ended = gateway.wait_for_end(run).await;
        assert_eq!(ended["state"], "completed", "{run}: {ended}");
        let history = wait_for_run_history(&bus, &run_id(run), TIMEOUT).await;
        assert_eq!(history.find_ledger_violations(&ledger(&old.cluster)), Vec::<String>::new(), "{run}");
        wait_for_archive(&bus, &run_id(run), TIMEOUT).await;
    }
    let frames = reading.await.unwrap();
    let received: Vec<String> = positioned(&frames).into_iter().map(|(id, _)| id).collect();
    assert_eq!(
        received,
        ids_of_log(&bus, &run_id(&streamed)).await,
        "the stream has run through the upgrade"
    );
}
