//! Identities and limits at a real gateway: tokens of an identity provider, TLS, limits of single callers.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millrace_tests::cluster::{ClusterSetup, TestCluster};
use millrace_tests::machine::share_machine;
use millrace_tests::wait_for_value;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::gateway::http::{Answer, Request};
use crate::gateway::process::GatewayProcess;
use crate::gateway::provider::{IdentityProvider, SigningKey};

const TIMEOUT: Duration = Duration::from_secs(60);

fn local() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn seconds_from_now(seconds: i64) -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap() + seconds
}

async fn get(gateway: &GatewayProcess, path: &str, token: &str) -> Answer {
    let request = Request::new("GET", format!("/api/v1{path}"));
    gateway.send(request.header("Authorization", &format!("Bearer {token}"))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_a_provider_are_accepted_by_their_claims() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    cluster.connect_bus().await;
    let (first, second) = (SigningKey::generate("k1"), SigningKey::generate("k2"));
    let provider = IdentityProvider::start(&[&first]).await;
    let issuer = provider.issuer();
    let options = [
        "--require-token",
        "--oidc-issuer",
        &issuer,
        "--oidc-audience",
        "millrace",
        "--oidc-require",
        "tenant=acme",
    ];
    let gateway = GatewayProcess::start_with_options(&cluster, "gateway", local(), &options).await;
    let claims = |change: Value| {
        let mut all = json!({
            "iss": issuer, "aud": ["millrace", "other"], "sub": "ann", "tenant": "acme",
            "exp": seconds_from_now(300), "scope": "openid millrace:read millrace:submit",
        });
        for (name, value) in change.as_object().unwrap() {
            all[name] = value.clone();
        }
        all
    };

    let good = first.sign(&json!({ "alg": "ES256", "kid": "k1" }), &claims(json!({})));
    let me = get(&gateway, "/me", &good).await;
    assert_eq!(me.json(), json!({ "type": "caller", "name": "ann", "scopes": ["read", "submit"] }));
    assert_eq!(get(&gateway, "/runs", &good).await.status, 200);
    assert_eq!(get(&gateway, "/tokens", &good).await.status, 403, "the token lacks the scope admin");
    let login = gateway.send(Request::new("POST", "/api/v1/login").json(&json!({ "token": good }))).await;
    assert_eq!(login.status, 200, "{}", login.text());

    for change in [
        json!({ "iss": "http://other.example" }),
        json!({ "aud": "other" }),
        json!({ "exp": seconds_from_now(-120) }),
        json!({ "nbf": seconds_from_now(120) }),
        json!({ "tenant": "other" }),
        json!({ "tenant": null }),
        json!({ "sub": "" }),
    ] {
        let token = first.sign(&json!({ "alg": "ES256", "kid": "k1" }), &claims(change.clone()));
        let refused = get(&gateway, "/me", &token).await;
        assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("bearer")), "{change}");
    }
    let stranger = SigningKey::generate("k1");
    for token in [
        stranger.sign(&json!({ "alg": "ES256", "kid": "k1" }), &claims(json!({}))),
        first.sign(&json!({ "alg": "none" }), &claims(json!({}))),
        first.sign(&json!({ "alg": "HS256", "kid": "k1" }), &claims(json!({}))),
        format!("{}.", good.rsplit_once('.').unwrap().0),
        "a.b.c".into(),
    ] {
        assert_eq!(get(&gateway, "/me", &token).await.status, 401, "{token}");
    }

    // A new key is found when a token names it; the provider is not asked for each unknown one.
    let rotated = second.sign(&json!({ "alg": "ES256", "kid": "k2" }), &claims(json!({ "sub": "bob" })));
    assert_eq!(get(&gateway, "/me", &rotated).await.status, 401);
    provider.publish(&[&second]);
    wait_for_value(TIMEOUT, "the new key", async || {
        (get(&gateway, "/me", &rotated).await.status == 200).then_some(())
    })
    .await;
    assert_eq!(get(&gateway, "/me", &good).await.status, 401, "the key was withdrawn");
    let asked = provider.request_count();
    for number in 0..50 {
        let unknown = first.sign(&json!({ "alg": "ES256", "kid": format!("x{number}") }), &claims(json!({})));
        assert_eq!(get(&gateway, "/me", &unknown).await.status, 401);
    }
    assert!(provider.request_count() <= asked + 4, "unknown keys flood the provider");

    // Keys that are known count while the provider is away.
    provider.stop();
    assert_eq!(get(&gateway, "/me", &rotated).await.json()["name"], "bob");
}

/// Calls the version over TLS in Python, and prints the serial number of the certificate.
const CALL: &str = r#"
import json, ssl, socket, sys
address, port, authority = sys.argv[1], int(sys.argv[2]), sys.argv[3]
context = ssl.create_default_context(cafile=authority)
with socket.create_connection((address, port), timeout=10) as plain:
    with context.wrap_socket(plain, server_hostname="localhost") as stream:
        stream.sendall(b"GET /api/v1/version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b""
        while part := stream.recv(4096):
            answer += part
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        print(stream.version(), stream.getpeercert()["serialNumber"])
"#;

fn write_certificate(folder: &Path) {
    let certificate = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    std::fs::write(folder.join("tls.key"), certificate.signing_key.serialize_pem()).unwrap();
    std::fs::write(folder.join("tls.crt"), certificate.cert.pem()).unwrap();
}

/// Returns the TLS version and the serial number; `None` if the call fails.
async fn call_with_tls(address: SocketAddr, folder: &Path) -> Option<(String, String)> {
    let mut command = tokio::process::Command::new("python3");
    command.args(["-c", CALL, &address.ip().to_string(), &address.port().to_string()]);
    command.arg(folder.join("tls.crt"));
    let output = command.output().await.expect("python3 starts");
    let text = String::from_utf8(output.stdout).unwrap();
    let (version, serial) = text.trim().split_once(' ')?;
    Some((version.to_owned(), serial.to_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_encrypted_and_a_new_certificate_is_used() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    cluster.connect_bus().await;
    let folder = tempfile::tempdir().unwrap();
    write_certificate(folder.path());
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (certificate, key) = (file("tls.crt"), file("tls.key"));
    // On all addresses: that needs encryption.
    let options = ["--tls-cert", &certificate, "--tls-key", &key];
    let gateway =
        GatewayProcess::start_with_options(&cluster, "gateway", "0.0.0.0:0".parse().unwrap(), &options).await;
    let address = SocketAddr::from(([127, 0, 0, 1], gateway.address.port()));
    let (version, serial) = call_with_tls(address, folder.path()).await.expect("a call with TLS");
    assert!(["TLSv1.2", "TLSv1.3"].contains(&version.as_str()), "{version}");
    let plain = Request::new("GET", "/api/v1/version").try_send(address).await;
    assert!(plain.is_none_or(|answer| answer.status >= 400), "the gateway serves without encryption");

    write_certificate(folder.path());
    wait_for_value(TIMEOUT, "the new certificate", async || {
        call_with_tls(address, folder.path()).await.filter(|(_, other)| *other != serial)
    })
    .await;
    // An invalid key file replaces no certificate.
    let log = cluster.test_folder().join("gateway.log");
    let count_refused =
        || std::fs::read_to_string(&log).unwrap().matches("keeping the TLS certificate before").count();
    let before = count_refused();
    std::fs::write(&key, "no key").unwrap();
    wait_for_value(TIMEOUT, "the refusal of the key", async || (count_refused() > before).then_some(()))
        .await;
    assert!(call_with_tls(address, folder.path()).await.is_some());
}

/// Returns an address of this machine that is no loopback address: those have no limit. Nothing is sent.
fn outer_address() -> IpAddr {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("192.0.2.1:9").expect("this test needs a network interface besides loopback");
    socket.local_addr().unwrap().ip()
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_beyond_the_limit_of_an_address_are_closed() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    cluster.connect_bus().await;
    let folder = tempfile::tempdir().unwrap();
    write_certificate(folder.path());
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (certificate, key) = (file("tls.crt"), file("tls.key"));
    let options = ["--tls-cert", &certificate, "--tls-key", &key, "--max-connections", "20"];
    let gateway =
        GatewayProcess::start_with_options(&cluster, "gateway", "0.0.0.0:0".parse().unwrap(), &options).await;
    let address = SocketAddr::from((outer_address(), gateway.address.port()));
    let mut streams = Vec::new();
    for _ in 0..30 {
        streams.push(TcpStream::connect(address).await.unwrap());
    }
    // The gateway says nothing to a client that says nothing: a connection can be read only when it is closed.
    let is_open = |stream: &TcpStream| {
        let read = stream.try_read(&mut [0; 1]);
        read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    wait_for_value(TIMEOUT, "ten closed connections", async || {
        (streams.iter().filter(|stream| is_open(stream)).count() <= 20).then_some(())
    })
    .await;
    assert_eq!(streams.iter().filter(|stream| is_open(stream)).count(), 20);
    assert!(call_with_tls(address, folder.path()).await.is_none(), "there is room for another connection");
    let loopback = SocketAddr::from(([127, 0, 0, 1], address.port()));
    assert!(call_with_tls(loopback, folder.path()).await.is_some(), "this machine has a limit");
    streams.retain(is_open);
    drop(streams.pop());
    wait_for_value(TIMEOUT, "room for a connection", async || call_with_tls(address, folder.path()).await)
        .await;
}

/// Opens a stream of events, and returns its connection and the status.
async fn open_stream(gateway: &GatewayProcess, token: &str) -> (TcpStream, u16) {
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let request = Request::new("GET", "/api/v1/events").header("Authorization", &format!("Bearer {token}"));
    stream.write_all(&request.to_bytes(gateway.address)).await.unwrap();
    let (mut bytes, mut chunk) = (Vec::new(), [0; 1024]);
    loop {
        let count = stream.read(&mut chunk).await.unwrap();
        bytes.extend_from_slice(&chunk[..count]);
        if let Some(answer) = Answer::parse(&bytes) {
            return (stream, answer.status);
        }
        assert!(count > 0, "no answer");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_are_limited_one_by_one() {
    let _shared = share_machine();
    let cluster = TestCluster::start_with_workers(ClusterSetup::default(), 0);
    cluster.connect_bus().await;
    let options = ["--require-token", "--max-requests", "20", "--max-streams", "2"];
    let gateway = GatewayProcess::start_with_options(&cluster, "gateway", local(), &options).await;
    let create = |name: &str| {
        let command = ["token", "create", name, "--scope", "read"];
        let output = cluster.millrace_command().args(command).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let (ann, bob) = (create("ann"), create("bob"));
    let (mut accepted, mut limited) = (0, 0);
    for _ in 0..100 {
        let answer = get(&gateway, "/me", &ann).await;
        match answer.status {
            200 => accepted += 1,
            429 => {
                assert_eq!(answer.header("retry-after"), Some("1"));
                limited += 1;
            }
            other => panic!("{other}: {}", answer.text()),
        }
    }
    assert!(accepted >= 20 && limited >= 10, "{accepted} accepted, {limited} limited");
    assert_eq!(get(&gateway, "/me", &bob).await.status, 200, "another caller is limited too");

    let (first, status) = open_stream(&gateway, &bob).await;
    assert_eq!(status, 200);
    let (_second, status) = open_stream(&gateway, &bob).await;
    assert_eq!(status, 200);
    assert_eq!(open_stream(&gateway, &bob).await.1, 429);
    drop(first);
    wait_for_value(TIMEOUT, "room for another stream", async || {
        let (stream, status) = open_stream(&gateway, &bob).await;
        (status == 200).then_some(stream)
    })
    .await;
}
