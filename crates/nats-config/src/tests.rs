//! Tests of the generated files: certificates over time, interrupted writes, settings. Without a server.

use std::fs;
use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use tempfile::TempDir;

use crate::certificate::{CertificatePurpose, Certificates};
use crate::settings::{ByteSize, ConfigSettings, TenantName};
use crate::{
    ConfigError, ConfigReport, ConfigRequest, FileChangeKind, certificate, settings, write_configuration,
};

const DAY: SignedDuration = SignedDuration::from_hours(24);

fn sample_request(folder: &TempDir) -> ConfigRequest {
    ConfigRequest::new(folder.path().join("nats"), sample_time())
}

fn sample_time() -> Timestamp {
    "2026-11-22T10:00:00Z".parse().unwrap()
}

fn after_days(days: i32) -> Timestamp {
    sample_time() + DAY * days
}

/// The changed files and their reasons.
fn changed_files(report: &ConfigReport) -> Vec<(&str, &str)> {
    let changed = |change: &crate::FileChange| matches!(change.kind, FileChangeKind::Changed(_));
    report
        .changes
        .iter()
        .filter(|change| changed(change))
        .map(|change| {
            let FileChangeKind::Changed(why) = &change.kind else { unreachable!("filtered above") };
            (change.name.as_str(), why.as_str())
        })
        .collect()
}

fn valid_until(path: &Path) -> Timestamp {
    Certificates::read_file(path).unwrap().valid_until().unwrap()
}

#[test]
fn authority_is_valid_ten_years_its_certificates_one() {
    let folder = tempfile::tempdir().unwrap();
    let request = sample_request(&folder);
    write_configuration(&request).unwrap();
    let file = |name| request.out.join(name);
    assert_eq!(valid_until(&file("tls/ca.crt")), after_days(3652));
    assert_eq!(valid_until(&file("tls/server.crt")), after_days(365));
    assert_eq!(valid_until(&file("tls/client.crt")), after_days(365));

    let authority = Certificates::read_file(&file("tls/ca.crt")).unwrap();
    let server = Certificates::read_file(&file("tls/server.crt")).unwrap();
    let client = Certificates::read_file(&file("tls/client.crt")).unwrap();
    for host in certificate::HOSTS {
        assert_eq!(
            server.check_validity(&authority, CertificatePurpose::Server(host), sample_time()),
            Ok(()),
            "{host}"
        );
    }
    assert_eq!(
        server.check_validity(&authority, CertificatePurpose::Client, sample_time()),
        Ok(()),
        "servers are clients of each other"
    );
    assert_eq!(client.check_validity(&authority, CertificatePurpose::Client, sample_time()), Ok(()));
    assert!(
        client.check_validity(&authority, CertificatePurpose::Server("localhost"), sample_time()).is_err(),
        "a client is no server"
    );
    assert!(
        server
            .check_validity(&authority, CertificatePurpose::Server("nats.example.org"), sample_time())
            .is_err()
    );
}

#[test]
fn certificates_are_renewed_sixty_days_before_expiry() {
    let folder = tempfile::tempdir().unwrap();
    let mut request = sample_request(&folder);
    write_configuration(&request).unwrap();
    let authority = fs::read(request.out.join("tls/ca.crt")).unwrap();

    request.now = after_days(304);
    assert_eq!(write_configuration(&request).unwrap().changes, []);
    request.now = after_days(306);
    let report = write_configuration(&request).unwrap();
    let why = "the previous one expires on 2027-11-22";
    let files = ["tls/server.key", "tls/server.crt", "tls/client.key", "tls/client.crt"];
    assert_eq!(changed_files(&report), files.map(|file| (file, why)));
    assert_eq!(valid_until(&request.out.join("tls/server.crt")), after_days(306 + 365));
    assert_eq!(fs::read(request.out.join("tls/ca.crt")).unwrap(), authority);
    let (authority, server) = ("tls/ca.crt", "tls/server.crt");
    let read = |name| Certificates::read_file(&request.out.join(name)).unwrap();
    let check =
        read(server).check_validity(&read(authority), CertificatePurpose::Server("localhost"), request.now);
    assert_eq!(check, Ok(()));
}

#[test]
fn a_new_host_or_a_wrong_key_renews_the_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let mut request = sample_request(&folder);
    write_configuration(&request).unwrap();
    request.hosts = vec!["*.example.org".into()];
    let report = write_configuration(&request).unwrap();
    let why = "the previous one: not valid for the host *.example.org";
    assert_eq!(
        changed_files(&report)[1..],
        [("tls/server.key", why), ("tls/server.crt", why)],
        "after the settings file"
    );
    request.hosts.clear();
    assert_eq!(write_configuration(&request).unwrap().changes, []);

    fs::copy(request.out.join("tls/client.key"), request.out.join("tls/server.key")).unwrap();
    let report = write_configuration(&request).unwrap();
    let why = "the previous one: its key belongs to another certificate";
    assert_eq!(changed_files(&report), [("tls/server.key", why), ("tls/server.crt", why)]);
}

#[test]
fn without_the_authority_key_valid_certificates_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut request = sample_request(&folder);
    write_configuration(&request).unwrap();
    fs::remove_file(request.out.join("tls/ca.key")).unwrap();
    assert_eq!(write_configuration(&request).unwrap().changes, []);
    request.now = after_days(320);
    let refused = write_configuration(&request).unwrap_err();
    assert!(matches!(refused, ConfigError::NoAuthorityKey { .. }), "{refused}");
}

#[test]
fn leftovers_of_a_killed_process_do_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let request = sample_request(&folder);
    write_configuration(&request).unwrap();
    let seeds = request.out.join("seeds/millrace");
    // Killed between the two steps of a rotation, and during a write.
    fs::rename(seeds.join("critic.nk"), seeds.join("critic.old.nk")).unwrap();
    fs::write(seeds.join(".critic.nk.new"), "half a se").unwrap();
    let old = fs::read_to_string(seeds.join("critic.old.nk")).unwrap();
    write_configuration(&request).unwrap();
    assert!(!seeds.join(".critic.nk.new").exists());
    let accounts = fs::read_to_string(request.out.join("accounts.conf")).unwrap();
    for seed in [old, fs::read_to_string(seeds.join("critic.nk")).unwrap()] {
        let key = nkeys::KeyPair::from_seed(seed.trim()).unwrap().public_key();
        assert_eq!(accounts.matches(&format!("nkey: {key}\n")).count(), 1);
    }
}

#[test]
fn a_second_writer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let request = sample_request(&folder);
    let _folder = crate::folder::ConfigFolder::open_and_lock(&request.out).unwrap();
    assert!(matches!(write_configuration(&request).unwrap_err(), ConfigError::Busy(_)));
}

#[test]
fn nats_conf_without_tls_only_lacks_the_tls_blocks() {
    let (with, without) = (settings::nats_conf_text(true), settings::nats_conf_text(false));
    assert!(without.lines().all(|line| with.contains(line)));
    for word in ["tls", "NATS_TLS_CERT: ", "verify", "cert_file"] {
        assert!(!without.lines().any(|line| line.trim().starts_with(word)), "{word}");
    }
    for word in ["include accounts.conf", "jetstream {", "sync_interval: always", "cluster {"] {
        assert!(without.contains(word), "{word}");
    }
    let braces = |text: &str, word: &str| text.matches(word).count();
    assert_eq!(braces(&without, "{"), braces(&without, "}"));
    assert_eq!(braces(&with, "tls {"), 2, "clients and servers");
    assert_eq!(braces(&with, "verify: true"), 2);
    assert!(!with.contains("no_auth_user"), "anonymous users are rejected");
}

#[test]
fn sizes_are_parsed_like_the_server_parses_them() {
    for (text, bytes) in [
        ("7", 7),
        ("10K", 10_000),
        ("2kb", 2048),
        ("64MiB", 64 << 20),
        ("50GB", 50 << 30),
        ("1T", 1_000_000_000_000),
    ] {
        assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
    }
    for text in ["", "GB", "0", "-1", "1.5GB", "5 GB", "5GG", "9999999TB"] {
        assert!(text.parse::<ByteSize>().is_err(), "{text}");
    }
}

#[test]
fn tenant_names_are_valid_accounts_folders_and_namespaces() {
    for good in ["millrace", "team-a", "t1"] {
        assert!(good.parse::<TenantName>().is_ok(), "{good}");
    }
    for bad in ["", "SYS", "OPERATOR", "a/b", "..", "1a", "a-", "A", "a b", "é", &"a".repeat(41)] {
        assert!(bad.parse::<TenantName>().is_err(), "{bad}");
    }
}

#[test]
fn settings_survive_a_round_trip_and_unknown_fields_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut request = sample_request(&folder);
    (request.jwt, request.lanes, request.max_store) = (true, Some(4), Some(ByteSize(1 << 30)));
    request.hosts = vec!["nats.example.org".into()];
    write_configuration(&request).unwrap();
    let text = fs::read_to_string(request.out.join("settings.json")).unwrap();
    assert_eq!(ConfigSettings::parse(&text).unwrap().to_file_text(), text);

    let path = request.out.join("settings.json");
    fs::write(&path, text.replace("\"lanes\"", "\"roads\"")).unwrap();
    let refused = write_configuration(&request).unwrap_err().to_string();
    assert!(refused.contains("settings.json") && refused.contains("roads"), "{refused}");
}
