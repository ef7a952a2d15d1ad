//! Access to the HTTP API: every operation of the description with every kind of token, against a real gateway.

use std::time::{Duration, Instant};

use millrace_tests::cluster::{ClusterSetup, TestCluster};
use millrace_tests::machine::share_machine;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::gateway::http::{Answer, Request};
use crate::gateway::process::GatewayProcess;

const SCOPES: [&str; 5] = ["read", "submit", "steer", "answer", "admin"];

/// An operation of the description.
struct Operation {
    method: &'static str,
    path: String,
    /// `None` for a public one; empty if any token is enough.
    scopes: Option<Vec<String>>,
}

fn operations() -> Vec<Operation> {
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
            let security = operation["security"].as_array().expect("each operation has its scope");
            let scopes = security.first().map(|one| serde_json::from_value(one["token"].clone()).unwrap());
            let parts = path.split('/').map(|part| if part.starts_with('{') { "none" } else { part });
            all.push(Operation { method, path: parts.collect::<Vec<_>>().join("/"), scopes });
        }
    }
    assert!(all.len() > 30, "{}", all.len());
    all
}

/// Runs `millrace token` and returns what it prints.
fn run_token_command(cluster: &TestCluster, arguments: &[&str]) -> String {
    let output = cluster.millrace_command().arg("token").args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn create_token(cluster: &TestCluster, name: &str, scope: &str) -> String {
    run_token_command(cluster, &["create", name, "--scope", scope])
}

/// Sends a request and reads the beginning of its answer: a stream of events has no end.
async fn read_beginning(gateway: &GatewayProcess, request: &Request) -> Answer {
    let exchange = async {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        stream.write_all(&request.to_bytes(gateway.address)).await.unwrap();
        let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
        loop {
            let read = stream.read(&mut chunk).await.unwrap();
            bytes.extend_from_slice(&chunk[..read]);
            match Answer::parse(&bytes) {
                Some(answer) => return answer,
                None => assert!(read > 0, "{} {}: no answer", request.method, request.path),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), exchange).await.expect("an answer in time")
}

async fn send(gateway: &GatewayProcess, operation: &Operation, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::new(operation.method, operation.path.clone());
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let answer = read_beginning(gateway, &request).await;
    let place = format!("{} {}: {}", operation.method, operation.path, answer.text());
    assert!(answer.status < 500, "{place}");
    answer
}

async fn send_with_token(gateway: &GatewayProcess, operation: &Operation, token: &str) -> u16 {
    send(gateway, operation, &[("Authorization", &format!("Bearer {token}"))]).await.status
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_accepts_the_tokens_with_its_scope_only() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    cluster.connect_bus().await;
    let local = "127.0.0.1:0".parse().unwrap();
    let gateway = GatewayProcess::start_with_options(&cluster, "closed", local, &["--require-token"]).await;
    let tokens = SCOPES.map(|scope| (scope, create_token(&cluster, scope, scope)));
    let revoked = create_token(&cluster, "gone", "read,submit,steer,answer,admin");
    run_token_command(&cluster, &["revoke", &revoked]);
    let expired = run_token_command(
        &cluster,
        &["create", "late", "--scope", "read,submit,steer,answer,admin", "--expires", "1ms"],
    );
    let (kept, last) = tokens[0].1.split_at(tokens[0].1.len() - 1);
    let forged = format!("{kept}{}", if last == "a" { "q" } else { "a" });
    let of_tenant = tokens[0].1.replacen("mrt_", "mrt_other_", 1);
    for operation in operations() {
        let place = format!("{} {}", operation.method, operation.path);
        let Some(scopes) = &operation.scopes else {
            assert_ne!(send(&gateway, &operation, &[]).await.status, 403, "{place}");
            continue;
        };
        let without = send(&gateway, &operation, &[]).await;
        assert_eq!((without.status, without.header("www-authenticate")), (401, Some("bearer")), "{place}");
        for wrong in [&revoked, &expired, &forged, &of_tenant, "x", "mrt_a_b"] {
            assert_eq!(send_with_token(&gateway, &operation, wrong).await, 401, "{place} {wrong}");
        }
        for (scope, token) in &tokens {
            let is_allowed = scopes.is_empty() || scopes.iter().any(|one| one == scope);
            let status = send_with_token(&gateway, &operation, token).await;
            assert_eq!(![401, 403].contains(&status), is_allowed, "{place} with {scope}: {status}");
            assert!(is_allowed || status == 403, "{place} with {scope}: {status}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_created_used_and_revoked() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    cluster.connect_bus().await;
    let local = "127.0.0.1:0".parse().unwrap();
    let gateway = GatewayProcess::start_with_options(&cluster, "closed", local, &["--require-token"]).await;
    let admin = create_token(&cluster, "root", "admin,read");
    let bearer = |token: &str| format!("Bearer {token}");
    let as_admin = |request: Request| request.header("Authorization", &bearer(&admin));

    // A token can't grant what its holder lacks.
    let wanted = json!({ "name": "ci", "scopes": ["read", "steer"] });
    let refused = gateway.send(as_admin(Request::new("POST", "/api/v1/tokens").json(&wanted))).await;
    assert_eq!(refused.status, 403, "{}", refused.text());
    let wanted = json!({ "name": "ci", "scopes": ["read"], "expires_in": "30d" });
    let created = gateway.send(as_admin(Request::new("POST", "/api/v1/tokens").json(&wanted))).await;
    assert_eq!(created.status, 201, "{}", created.text());
    let (id, token) = (created.json()["id"].as_str().unwrap().to_owned(), created.json()["token"].clone());
    let token = token.as_str().unwrap();
    let me = gateway.send(Request::new("GET", "/api/v1/me").header("Authorization", &bearer(token))).await;
    assert_eq!(me.json(), json!({ "type": "caller", "name": "ci", "scopes": ["read"], "token": id }));
    let listed = gateway.send(as_admin(Request::new("GET", "/api/v1/tokens"))).await;
    assert!(
        !listed.text().contains("sha256") && listed.json()["tokens"][1]["created_by"] == "root",
        "{listed:?}"
    );

    // A cookie counts for requests of the gateway's own pages.
    let login = Request::new("POST", "/api/v1/login").json(&json!({ "token": admin }));
    let login = gateway.send(login).await;
    assert_eq!((login.status, login.json()["name"].as_str()), (200, Some("root")));
    let cookie = login.header("set-cookie").unwrap().to_owned();
    assert!(cookie.contains("httponly") && cookie.contains("samesite=strict"), "{cookie}");
    let cookie = format!("millrace_token={admin}");
    let with_cookie = |request: Request| request.header("Cookie", &cookie);
    let read = gateway.send(with_cookie(Request::new("GET", "/api/v1/runs"))).await;
    assert_eq!(read.status, 200);
    let limit = || Request::new("PUT", "/api/v1/limits/openai:x").json(&json!({ "requests": 5 }));
    assert_eq!(gateway.send(with_cookie(limit())).await.status, 403, "it does not say where it comes from");
    let own = format!("http://{}", gateway.address);
    for (origin, status) in [("http://evil.example", 403), (own.as_str(), 200)] {
        assert_eq!(
            gateway.send(with_cookie(limit()).header("Origin", origin)).await.status,
            status,
            "{origin}"
        );
    }
    let wrong = Request::new("POST", "/api/v1/login").json(&json!({ "token": "mrt_a_b" }));
    assert_eq!(gateway.send(wrong).await.status, 401);
    assert_eq!(gateway.send(Request::new("POST", "/api/v1/logout")).await.status, 204);

    // A revocation takes effect within a second.
    let deleted = gateway.send(as_admin(Request::new("DELETE", format!("/api/v1/tokens/{id}")))).await;
    let started = Instant::now();
    assert_eq!(deleted.status, 200, "{}", deleted.text());
    while gateway.send(Request::new("GET", "/api/v1/me").header("Authorization", &bearer(token))).await.status
        == 200
    {
        assert!(started.elapsed() < Duration::from_secs(1), "a revoked token is accepted");
    }
    let missing = gateway.send(as_admin(Request::new("DELETE", "/api/v1/tokens/aaaaaaaaaaaaaaaa"))).await;
    assert_eq!(missing.status, 404);

    let audit = gateway.send(as_admin(Request::new("GET", "/api/v1/audit"))).await.json();
    let actions: Vec<(&str, &str)> = audit["actions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|action| (action["by"]["name"].as_str().unwrap(), action["action"]["type"].as_str().unwrap()))
        .collect();
    assert_eq!(actions[1..], [("root", "token_created"), ("root", "limit_set"), ("root", "token_revoked")]);
    assert_eq!(audit["actions"][2]["by"]["address"], "127.0.0.1");
}

/// Sends a head as it is and returns the answer.
async fn send_head(gateway: &GatewayProcess, head: &str) -> Answer {
    let exchange = async {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        stream.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        Answer::parse(&bytes).unwrap_or_else(|| panic!("no answer to {head:?}"))
    };
    tokio::time::timeout(Duration::from_secs(60), exchange).await.expect("an answer in time")
}

#[tokio::test(flavor = "multi_thread")]
async fn ambiguous_headers_are_refused() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    cluster.connect_bus().await;
    let gateway = GatewayProcess::start(&cluster, "gateway").await;
    let host = gateway.address.to_string();
    let port = gateway.address.port();
    let cancel = "POST /api/v1/runs/none/cancel HTTP/1.1\r\nContent-Length: 0\r\n";
    for (head, status) in [
        (format!("GET /api/v1/version HTTP/1.1\r\nHost: {host}\r\n"), 200),
        (format!("GET http://{host}/api/v1/version HTTP/1.1\r\nHost: {host}\r\n"), 200),
        (format!("GET http://LOCALHOST:{port}/api/v1/version HTTP/1.1\r\nHost: localhost:{port}\r\n"), 200),
        ("GET /api/v1/version HTTP/1.1\r\n".into(), 400),
        (format!("GET /api/v1/version HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\n"), 400),
        (format!("GET /api/v1/version HTTP/1.1\r\nHost: {host}\r\nHost: evil.example\r\n"), 400),
        ("GET /api/v1/version HTTP/1.1\r\nHost: localhost:99999\r\n".into(), 400),
        ("GET /api/v1/version HTTP/1.1\r\nHost: localhost:0\r\n".into(), 400),
        ("GET /api/v1/version HTTP/1.1\r\nHost: localhost:x\r\n".into(), 400),
        ("GET /api/v1/version HTTP/1.1\r\nHost: ann@localhost\r\n".into(), 400),
        (format!("GET http://evil.example/api/v1/version HTTP/1.1\r\nHost: {host}\r\n"), 400),
        (format!("GET http://localhost:{port}/api/v1/version HTTP/1.1\r\nHost: {host}\r\n"), 400),
        (format!("GET http://{host}/api/v1/version HTTP/1.1\r\n"), 400),
        (format!("GET http://{host}/api/v1/version HTTP/1.1\r\nHost: evil.example\r\n"), 400),
        (format!("{cancel}Host: {host}\r\nIdempotency-Key: a\r\n"), 404),
        (format!("{cancel}Host: {host}\r\nIdempotency-Key: a\r\nIdempotency-Key: b\r\n"), 400),
        (format!("{cancel}Host: {host}\r\nOrigin: http://{host}\r\n"), 404),
        (format!("{cancel}Host: {host}\r\nOrigin: http://{host}\r\nOrigin: http://evil.example\r\n"), 400),
        (format!("{cancel}Host: {host}\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n"), 400),
        // Pages and files are refused as the API is.
        (format!("GET /runs HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\n"), 400),
        (format!("GET /mcp HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\n"), 400),
        (format!("GET /nothing HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\n"), 400),
    ] {
        let answer = send_head(&gateway, &head).await;
        assert_eq!(answer.status, status, "{head:?}: {}", answer.text());
        let is_ambiguous = answer.text().contains("urn:millrace:problem:invalid-request");
        assert_eq!(is_ambiguous, status == 400, "{head:?}: {}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_response_has_the_security_headers() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    cluster.connect_bus().await;
    let gateway = GatewayProcess::start(&cluster, "gateway").await;
    for (request, status) in [
        (Request::new("GET", "/"), 307),
        (Request::new("GET", "/runs"), 200),
        (Request::new("HEAD", "/runs"), 200),
        (Request::new("GET", "/runs/"), 308),
        (Request::new("GET", "/runs/none"), 200),
        (Request::new("POST", "/runs"), 405),
        (Request::new("GET", "/assets/none/app/main.mjs"), 404),
        (Request::new("GET", "/assets/%ff/x"), 400),
        (Request::new("GET", "/docs"), 200),
        (Request::new("GET", "/nothing"), 404),
        (Request::new("GET", "/runs").header("Host", "evil.example"), 421),
        (Request::new("GET", "/runs").header("Host", "localhost:0"), 400),
        (Request::new("GET", "/api/v1/runs"), 200),
        (Request::new("GET", "/api/v1/runs/none"), 404),
        (Request::new("PUT", "/api/v1/runs"), 405),
        (Request::new("POST", "/api/v1/runs").header("Origin", "http://evil.example"), 403),
    ] {
        let answer = request.send(gateway.address).await;
        let place = format!("{} {}: {}", request.method, request.path, answer.head);
        assert_eq!(answer.status, status, "{place}");
        let policy = answer.header("content-security-policy").expect(&place);
        assert!(policy.contains("default-src 'none'") || policy.contains("default-src 'self'"), "{place}");
        assert!(policy.contains("frame-ancestors 'none'"), "{place}");
        assert_eq!(answer.head.matches("content-security-policy:").count(), 1, "{place}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{place}");
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"), "{place}");
    }
}
