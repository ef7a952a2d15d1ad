//! Several tenants at one gateway: a real server with an account for each, and the tokens of each at every operation.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use millrace_runtime::nats::topology::ClusterOptions;
use millrace_runtime::{Bus, ConnectionSettings};
use millrace_tests::machine::share_machine;
use millrace_tests::{NatsServer, wait_for_value};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::access::place::RestrictedServer;
use crate::gateway::http::{Answer, Request};
use crate::gateway::process::GatewayProcess;
use crate::gateway::provider::{IdentityProvider, SigningKey};

const TIMEOUT: Duration = Duration::from_secs(60);
const ALL_SCOPES: &str = "read,submit,steer,answer,admin";

fn local() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Starts a server with the accounts of two tenants.
async fn start_two_tenants() -> RestrictedServer {
    let place = RestrictedServer::start_for_tenants(&["acme", "globex"]);
    for tenant in ["acme", "globex"] {
        drop(place.connect_supervisor(tenant).await);
    }
    place
}

/// Starts a gateway of the tenants in a folder.
async fn start_gateway(place: &RestrictedServer, tenants: &Path, options: &[&str]) -> GatewayProcess {
    // The identity of the process itself is not used: it has none of this tenant.
    let command = place.millrace_command_of("none", "none");
    let options = [&["--tenants", tenants.to_str().unwrap()], options].concat();
    GatewayProcess::spawn(command, place.folder.path(), "gateway", local(), &options).await
}

fn log_of(place: &RestrictedServer) -> String {
    fs::read_to_string(place.folder.path().join("gateway.log")).unwrap()
}

/// Creates a token by the command.
fn create_token(place: &RestrictedServer, tenant: &str, name: &str, scopes: &str) -> String {
    let mut command = place.millrace_command_of(tenant, "client");
    let output =
        command.args(["token", "create", name, "--scope", scopes, "--tenant", tenant]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn bearer(request: Request, token: &str) -> Request {
    request.header("Authorization", &format!("Bearer {token}"))
}

async fn get(gateway: &GatewayProcess, path: &str, token: &str) -> Answer {
    gateway.send(bearer(Request::new("GET", format!("/api/v1{path}")), token)).await
}

/// Submits a run, which no supervisor starts.
async fn submit(gateway: &GatewayProcess, token: &str) -> String {
    let submission = Request::new("POST", "/api/v1/runs").json(&json!({ "objective": "a secret" }));
    let answer = gateway.send(bearer(submission, token)).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    answer.json()["run"].as_str().unwrap().to_owned()
}

/// Sends a request and reads the beginning of its answer: a stream of events has no end.
async fn read_beginning(gateway: &GatewayProcess, request: &Request) -> Answer {
    let (_, bytes) = open(gateway, request).await;
    Answer::parse(&bytes).unwrap()
}

/// Sends a request, and returns the connection and the beginning of the answer.
async fn open(gateway: &GatewayProcess, request: &Request) -> (TcpStream, Vec<u8>) {
    let exchange = async {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        stream.write_all(&request.to_bytes(gateway.address)).await.unwrap();
        let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
        while Answer::parse(&bytes).is_none() {
            let read = stream.read(&mut chunk).await.unwrap();
            assert!(read > 0, "{} {}: no answer", request.method, request.path);
            bytes.extend_from_slice(&chunk[..read]);
        }
        (stream, bytes)
    };
    tokio::time::timeout(TIMEOUT, exchange).await.expect("an answer in time")
}

/// Reads a stream until it has a text, and returns all of it.
async fn read_until(stream: &mut TcpStream, mut bytes: Vec<u8>, text: &str) -> String {
    let reading = async {
        let mut chunk = [0; 4096];
        while !String::from_utf8_lossy(&bytes).contains(text) {
            let read = stream.read(&mut chunk).await.unwrap();
            assert!(read > 0, "the stream has ended: {}", String::from_utf8_lossy(&bytes));
            bytes.extend_from_slice(&chunk[..read]);
        }
    };
    tokio::time::timeout(TIMEOUT, reading).await.expect("the text in time");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The operations that need a token: the method and the path with its parameters.
fn operations() -> Vec<(&'static str, String)> {
    let document: Value = serde_json::from_str(include_str!("../../gateway/openapi.json")).unwrap();
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let method = match method.as_str() {
                "get" => "GET",
                "post" => "POST",
                "put" => "PUT",
                "patch" => "PATCH",
                "delete" => "DELETE",
                other => panic!("{other}"),
            };
            if operation["security"].as_array().is_some_and(|security| !security.is_empty()) {
                all.push((method, path.clone()));
            }
        }
    }
    assert!(all.len() > 30, "{}", all.len());
    all
}

/// A path with a run and other parameters that name nothing.
fn path_of_run(template: &str, run: &str) -> String {
    let part = |part: &str| match part {
        "{run}" => run.to_owned(),
        part if part.starts_with('{') => "none".to_owned(),
        part => part.to_owned(),
    };
    template.split('/').map(part).collect::<Vec<_>>().join("/")
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_see_nothing_of_each_other() {
    let _shared = share_machine();
    let place = start_two_tenants().await;
    let gateway = start_gateway(&place, &place.folder.path().join("nats/seeds"), &[]).await;
    let (acme, globex) =
        (create_token(&place, "acme", "ann", ALL_SCOPES), create_token(&place, "globex", "gus", ALL_SCOPES));
    let me = get(&gateway, "/me", &acme).await.json();
    assert_eq!((&me["name"], &me["tenant"]), (&json!("ann"), &json!("acme")));
    let run = submit(&gateway, &acme).await;

    // Every operation refuses what names no tenant, another one, or one that does not exist, with the same words.
    let refused = [
        acme.replacen("mrt_acme_", "mrt_globex_", 1),
        acme.replacen("mrt_acme_", "mrt_initech_", 1),
        acme.replacen("mrt_acme_", "mrt_", 1),
        acme.replacen("mrt_acme_", "mrt_system_", 1),
        format!("{}{}", &acme[..acme.len() - 4], "aaaa"),
    ];
    let mut checked = 0;
    for (method, template) in operations() {
        let wait = if template.ends_with("/wait") { "?timeout=1" } else { "" };
        let path = path_of_run(&template, &run) + wait;
        let place = format!("{method} {path}");
        let request = Request::new(method, path.clone());
        let mut texts: Vec<String> = Vec::new();
        for token in &refused {
            let answer = read_beginning(&gateway, &bearer(request.clone(), token)).await;
            assert_eq!(answer.status, 401, "{place} with {token}: {}", answer.text());
            texts.push(answer.text());
        }
        texts.dedup();
        assert_eq!(texts.len(), 1, "{place}: {texts:?}");
        let local = read_beginning(&gateway, &request).await;
        assert_eq!(local.status, 401, "{place}");
        assert!(local.text().contains("serves several tenants"), "{}", local.text());
        if method == "GET" && template.contains("{run}") {
            let own = read_beginning(&gateway, &bearer(request.clone(), &acme)).await;
            let other = read_beginning(&gateway, &bearer(request, &globex)).await;
            assert!(other.status >= 400, "{place}: {}", other.text());
            if own.status == 200 {
                assert_eq!(other.status, 404, "{place}: {}", other.text());
                checked += 1;
            }
        }
    }
    assert!(checked >= 5, "{checked} operations show a run that no supervisor has started");
    let runs = |answer: Answer| answer.json()["runs"].as_array().unwrap().len();
    assert_eq!(runs(get(&gateway, "/runs", &globex).await), 0);

    // The façades use the same checks.
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": "get_run", "arguments": { "run": run } } });
    for (token, sees) in [(&acme, true), (&globex, false)] {
        let request = Request::new("POST", "/mcp").header("Accept", "application/json, text/event-stream");
        let answer = bearer(request.json(&call), token).send(gateway.address).await;
        assert_eq!(answer.text().contains("there is no run"), !sees, "{}", answer.text());
        let task = bearer(Request::new("GET", format!("/a2a/tasks/{run}")), token);
        assert_eq!(task.send(gateway.address).await.status, if sees { 200 } else { 404 });
    }
    let path = format!("/a2a/tasks/{run}/pushNotificationConfigs");
    let config = json!({ "id": "c1", "url": "https://receiver.invalid/" });
    for (token, status) in [(&globex, 404), (&acme, 200), (&globex, 404)] {
        let set = bearer(Request::new("POST", &path).json(&config), token).send(gateway.address).await;
        assert_eq!(set.status, status, "{}", set.text());
        for path in [path.clone(), format!("{path}/c1")] {
            let read = bearer(Request::new("GET", &path), token).send(gateway.address).await;
            assert_eq!(read.status, status, "{path}: {}", read.text());
        }
    }
    let delete = bearer(Request::new("DELETE", format!("{path}/c1")), &globex);
    assert_eq!(delete.send(gateway.address).await.status, 404);
    // Public pages name no tenant.
    for path in ["/docs", "/api/v1/openapi.json", "/api/v1/version", "/runs", "/.well-known/agent-card.json"]
    {
        let page = Request::new("GET", path).send(gateway.address).await;
        assert_eq!(page.status, 200, "{path}");
        assert!(!page.text().contains("acme"), "{path}");
    }

    // The cookie of a page, and the choice of another tenant, which the token does not have.
    let login = Request::new("POST", "/api/v1/login").json(&json!({ "token": globex }));
    let login = gateway.send(login).await;
    let cookie =
        login.header("set-cookie").unwrap().split(';').next().unwrap().replace("millrace_token=", "");
    let with_cookie = |path: &str| {
        Request::new("GET", path.to_owned()).header("Cookie", &format!("millrace_token={cookie}"))
    };
    assert_eq!(gateway.send(with_cookie("/api/v1/me")).await.json()["tenant"], "globex");
    assert_eq!(gateway.send(with_cookie(&format!("/api/v1/runs/{run}"))).await.status, 404);
    for choice in ["acme", "initech", "ACME", ""] {
        let request = bearer(Request::new("GET", "/api/v1/me"), &globex).header("Millrace-Tenant", choice);
        assert_eq!(gateway.send(request).await.status, 401, "{choice:?}");
    }

    // Tokens that a tenant creates name it, and a revocation takes effect within a second.
    let body = json!({ "name": "bob", "scopes": ["read"] });
    let created =
        gateway.send(bearer(Request::new("POST", "/api/v1/tokens").json(&body), &acme)).await.json();
    let (token, id) = (created["token"].as_str().unwrap(), created["id"].as_str().unwrap());
    assert!(token.starts_with("mrt_acme_"), "{created}");
    assert_eq!(get(&gateway, "/me", token).await.status, 200);
    let revoke = |by: &str| bearer(Request::new("DELETE", format!("/api/v1/tokens/{id}")), by);
    assert_eq!(gateway.send(revoke(&globex)).await.status, 404);
    assert_eq!(gateway.send(revoke(&acme)).await.status, 200);
    let revoked = Instant::now();
    wait_for_value(TIMEOUT, "the refusal", async || {
        (get(&gateway, "/me", token).await.status == 401).then_some(())
    })
    .await;
    assert!(revoked.elapsed() < Duration::from_secs(1), "{:?}", revoked.elapsed());

    assert_eq!(place.logged_permission_violations(), Vec::<String>::new());
    assert!(!log_of(&place).contains("ignoring an entry"), "{}", log_of(&place));
}

#[tokio::test(flavor = "multi_thread")]
async fn tenant_that_is_away_holds_no_other_up() {
    let _shared = share_machine();
    let place = start_two_tenants().await;
    let mut server = NatsServer::start();
    let url = server.url.clone();
    let wanted = ClusterOptions { lanes: Some(1), ..ClusterOptions::default() };
    let connection = ConnectionSettings::unauthenticated(url.clone());
    let bus = Bus::connect_and_ensure_cluster(&connection, "test", &wanted).await.unwrap();
    let initech: millrace_protocol::tenant::TenantName = "initech".parse().unwrap();
    let new = millrace_runtime::store::tokens::NewToken {
        name: "ian".into(),
        scopes: ALL_SCOPES.parse().unwrap(),
        expires: None,
        by: "test".into(),
        tenant: Some(initech),
    };
    let initech = millrace_runtime::store::tokens::create_token(&bus, new).await.unwrap().0.reveal();
    drop(bus);

    let folder = place.folder.path().join("tenants");
    for tenant in ["initech", "lost"] {
        fs::create_dir_all(folder.join(tenant)).unwrap();
    }
    fs::copy(place.seed_path("acme", "gateway"), folder.join("acme.nk")).unwrap();
    fs::write(folder.join("initech/url"), &url).unwrap();
    fs::write(folder.join("lost/url"), "nats://127.0.0.1:1").unwrap();
    let gateway = start_gateway(&place, &folder, &["--max-in-progress", "40"]).await;
    let log = log_of(&place);
    assert!(log.contains("cannot connect the tenant") && log.contains("tenant=lost"), "{log}");
    let acme = create_token(&place, "acme", "ann", ALL_SCOPES);
    assert_eq!(get(&gateway, "/me", &acme).await.json()["tenant"], "acme");
    assert_eq!(get(&gateway, "/me", &initech).await.json()["tenant"], "initech");
    let lost = acme.replacen("mrt_acme_", "mrt_lost_", 1);
    let me = |token: &str| bearer(Request::new("GET", "/api/v1/me"), token);
    let away = me(&lost).send(gateway.address).await;
    assert_eq!((away.status, away.header("retry-after")), (503, Some("1")), "{}", away.text());

    // The server of one tenant hangs: its requests fail in time, and those of another one are as fast as before.
    let pid = rustix::process::Pid::from_raw(server.pid().unwrap().try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    wait_for_value(TIMEOUT, "the end of the cached token", async || {
        let asked =
            tokio::time::timeout(Duration::from_millis(200), me(&initech).send(gateway.address)).await;
        asked.is_err().then_some(())
    })
    .await;
    let address = gateway.address;
    let waiting: Vec<_> = (0..64)
        .map(|_| {
            let request = me(&initech);
            tokio::spawn(async move { request.send(address).await.status })
        })
        .collect();
    let started = Instant::now();
    for _ in 0..50 {
        assert_eq!(get(&gateway, "/runs", &acme).await.status, 200);
    }
    let elapsed = started.elapsed();
    println!("50 requests of a tenant while the account of another hangs: {elapsed:?}");
    assert!(waiting.iter().any(|request| !request.is_finished()), "no request waits");
    assert!(elapsed < Duration::from_secs(4), "{elapsed:?}");
    let mut statuses = Vec::new();
    for request in waiting {
        statuses.push(request.await.unwrap());
    }
    // No more requests than allowed wait; the others are refused at once.
    let count = |status: u16| statuses.iter().filter(|one| **one == status).count();
    assert!((1..=40).contains(&count(503)) && count(503) + count(429) == 64, "{statuses:?}");
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    let returned = async |token: &str| (me(token).send(gateway.address).await.status == 200).then_some(());
    wait_for_value(TIMEOUT, "the account again", async || returned(&initech).await).await;
    server.kill();
    server.restart();
    wait_for_value(TIMEOUT, "the server again", async || returned(&initech).await).await;

    // Entries that are added and removed are noticed, and the streams of a removed tenant end.
    let (mut stream, bytes) = open(&gateway, &bearer(Request::new("GET", "/api/v1/events"), &acme)).await;
    fs::copy(place.seed_path("globex", "gateway"), folder.join("globex.nk")).unwrap();
    fs::remove_file(folder.join("acme.nk")).unwrap();
    let globex = create_token(&place, "globex", "gus", ALL_SCOPES);
    wait_for_value(TIMEOUT, "the new tenant", async || returned(&globex).await).await;
    assert_eq!(get(&gateway, "/me", &acme).await.status, 401);
    let mut rest = Vec::new();
    tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut rest)).await.expect("the stream ends").unwrap();
    assert!(Answer::parse(&bytes).unwrap().status == 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_and_streams_belong_to_one_tenant() {
    let _shared = share_machine();
    let place = start_two_tenants().await;
    let key = SigningKey::generate("k1");
    let provider = IdentityProvider::start(&[&key]).await;
    let issuer = provider.issuer();
    let (page, folder) = (millrace_tests::free_port(), place.folder.path().join("nats/seeds"));
    let page = format!("127.0.0.1:{page}");
    let provider_options = ["--oidc-issuer", &issuer, "--oidc-audience", "millrace"];
    let options = [&provider_options[..], &["--oidc-tenant-claim", "groups", "--http", &page]].concat();
    let gateway = start_gateway(&place, &folder, &options).await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let token = |groups: Value| {
        let claims = json!({
            "iss": issuer, "aud": "millrace", "sub": "ann", "groups": groups, "exp": now + 300,
            "scope": "millrace:read millrace:submit",
        });
        key.sign(&json!({ "alg": "ES256", "kid": "k1" }), &claims)
    };
    let (acme, globex) = (token(json!("acme")), token(json!(["staff", "globex"])));
    assert_eq!(get(&gateway, "/me", &acme).await.json()["tenant"], "acme");
    assert_eq!(get(&gateway, "/me", &globex).await.json()["tenant"], "globex");
    for groups in [json!(null), json!("initech"), json!(["staff"]), json!("system")] {
        assert_eq!(get(&gateway, "/me", &token(groups.clone())).await.status, 401, "{groups}");
    }

    // A holder in several tenants chooses one of its own.
    let both = token(json!(["globex", "staff", "acme"]));
    let unclear = get(&gateway, "/me", &both).await;
    assert_eq!(unclear.status, 400);
    assert!(unclear.text().contains("Millrace-Tenant: acme or globex"), "{}", unclear.text());
    let choose = |token: &str, tenant: &str| {
        bearer(Request::new("GET", "/api/v1/me"), token).header("Millrace-Tenant", tenant)
    };
    assert_eq!(gateway.send(choose(&both, "globex")).await.json()["tenant"], "globex");
    for (token, tenant) in [(&both, "initech"), (&both, "staff"), (&acme, "globex")] {
        assert_eq!(gateway.send(choose(token, tenant)).await.status, 401, "{tenant}");
    }
    let login = Request::new("POST", "/api/v1/login").json(&json!({ "token": both }));
    assert_eq!(gateway.send(login.clone()).await.status, 400);
    let login = gateway.send(login.header("Millrace-Tenant", "acme")).await;
    let cookies: Vec<&str> =
        login.head.lines().filter_map(|line| line.strip_prefix("set-cookie: ")).collect();
    assert!(cookies.len() == 2 && cookies[1].starts_with("millrace_tenant=acme;"), "{cookies:?}");
    let cookies = format!("millrace_token={both}; millrace_tenant=acme");
    let with_cookies = Request::new("GET", "/api/v1/me").header("Cookie", &cookies);
    assert_eq!(gateway.send(with_cookies).await.json()["tenant"], "acme");

    // Streams have the runs of their tenant only; supervisors start the runs.
    let mut supervisors: Vec<_> = ["acme", "globex"]
        .map(|tenant| {
            place
                .millrace_command_of(tenant, "supervisor")
                .args(["supervisor", "--id", tenant])
                .spawn()
                .unwrap()
        })
        .into();
    let events = |token: &str| bearer(Request::new("GET", "/api/v1/events"), token);
    let (mut of_acme, first) = open(&gateway, &events(&acme)).await;
    let (mut of_globex, second) = open(&gateway, &events(&globex)).await;
    let (one, two) = (submit(&gateway, &acme).await, submit(&gateway, &globex).await);
    let text = read_until(&mut of_acme, first, &one).await;
    assert!(!text.contains(&two), "{text}");
    let text = read_until(&mut of_globex, second, &two).await;
    assert!(!text.contains(&one), "{text}");
    let metrics = Request::new("GET", "/metrics").send(page.parse().unwrap()).await.text();
    for line in [
        r#"millrace_tenant_connected{tenant="acme"} 1"#,
        r#"millrace_tenant_connected{tenant="globex"} 1"#,
        r#"millrace_tenant_streams{tenant="globex"} 1"#,
        r#"millrace_tenant_requests_total{outcome="accepted",tenant="acme"} "#,
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    let ready = Request::new("GET", "/readyz").send(page.parse().unwrap()).await;
    assert!(ready.status == 200 && ready.text().contains("[+]tenants ok"), "{}", ready.text());
    for supervisor in &mut supervisors {
        supervisor.kill().unwrap();
        supervisor.wait().unwrap();
    }
}
