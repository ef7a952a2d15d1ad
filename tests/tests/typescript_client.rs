//! The TypeScript client in `clients/typescript`: its own tests in Node, with a real gateway, and the types that its compiler finds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use millrace_tests::cluster::{ClusterSetup, TestCluster};
use millrace_tests::machine::share_machine;
use millrace_tests::pages::repository_folder;
use millrace_tests::processes::remove_millrace_variables;
use millrace_tests::wait_for_value;

/// The packages of the type check.
const PACKAGES: [&str; 2] = ["typescript@5.9.3", "@types/node@20.19.43"];

fn client_folder() -> PathBuf {
    repository_folder().join("clients/typescript")
}

fn text_of(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs Node in the folder of the client; `None` if there is no Node 20 or newer.
fn run_node(arguments: &[&str], api: Option<&str>) -> Option<Output> {
    let version = Command::new("node").arg("--version").stdin(Stdio::null()).output().ok()?;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let major: u32 = version.trim().strip_prefix('v')?.split('.').next()?.parse().ok()?;
    if major < 20 {
        return None;
    }
    let mut command = remove_millrace_variables(Command::new("node"));
    command.args(arguments).current_dir(client_folder()).stdin(Stdio::null());
    command.envs(api.map(|api| ("MILLRACE_TEST_API", api)));
    command.output().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn typescript_client_passes_its_tests_with_a_real_gateway() {
    let _shared = share_machine();
    let Some(checked) = run_node(&["scripts/generate.mjs", "--check"], None) else {
        return println!("passed over: node 20 or newer is needed");
    };
    assert!(checked.status.success(), "{}", text_of(&checked));
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 1);
    drop(cluster.connect_bus().await);
    let file = cluster.test_folder().join("gateway.url");
    let mut serve = cluster.millrace_command();
    serve.args(["serve", "--api", "127.0.0.1:0", "--url-file"]).arg(&file);
    let log = fs::File::create(cluster.test_folder().join("gateway.log")).unwrap();
    let mut gateway = serve.stdout(Stdio::null()).stderr(log).spawn().unwrap();
    let url = wait_for_value(Duration::from_secs(30), "the gateway", async || {
        fs::read_to_string(&file).ok().filter(|url| url.ends_with('\n'))
    })
    .await;
    let tested = run_node(&["--test", "tests/"], Some(url.trim())).unwrap();
    gateway.kill().unwrap();
    gateway.wait().unwrap();
    let text = text_of(&tested);
    assert!(tested.status.success(), "{text}");
    assert!(text.contains("# skipped 0"), "{text}");
}

/// Copies the client with these packages into a folder; `None` if npm can't install them.
fn install_compiler(folder: &Path) -> Option<()> {
    let mut install = Command::new("npm");
    install.args(["install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--prefix"]);
    let installed = install.arg(folder).args(PACKAGES).stdin(Stdio::null()).output().ok()?;
    installed.status.success().then_some(())
}

#[test]
fn types_of_the_typescript_client_are_those_of_its_code() {
    let folder = tempfile::tempdir().unwrap();
    let client = folder.path();
    if install_compiler(client).is_none() {
        return println!("passed over: npm and a reachable registry are needed");
    }
    for part in ["src", "tests", "examples", "types"] {
        fs::create_dir_all(client.join(part)).unwrap();
        for entry in fs::read_dir(client_folder().join(part)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), client.join(part).join(entry.file_name())).unwrap();
        }
    }
    for file in ["tsconfig.json", "tsconfig.types.json"] {
        fs::copy(client_folder().join(file), client.join(file)).unwrap();
    }
    for project in ["tsconfig.json", "tsconfig.types.json"] {
        let mut compiler = Command::new(client.join("node_modules/.bin/tsc"));
        let checked = compiler.args(["-p", project]).current_dir(client).output().unwrap();
        assert!(checked.status.success(), "{}", text_of(&checked));
    }
    for entry in fs::read_dir(client.join("types")).unwrap() {
        let name = entry.unwrap().file_name();
        let committed = fs::read_to_string(client_folder().join("types").join(&name)).unwrap_or_default();
        let emitted = fs::read_to_string(client.join("types").join(&name)).unwrap();
        assert!(emitted == committed, "run `npm run generate` in clients/typescript: {name:?} differs");
    }
}
