//! What the command writes as time goes by, and what it makes of what it finds. No server takes part.

use std::fs;
use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use tempfile::TempDir;

use super::settings::{Settings, Size, Tenant};
use super::{Error, Report, Request, What, certificates, server, write};
use crate::certificate::{Certificates, Purpose};

const DAY: SignedDuration = SignedDuration::from_hours(24);

fn request(folder: &TempDir) -> Request {
    Request::plain(folder.path().join("nats"), now())
}

fn now() -> Timestamp {
    "2026-11-22T10:00:00Z".parse().unwrap()
}

fn after_days(days: i32) -> Timestamp {
    now() + DAY * days
}

/// The files that changed, with why.
fn changed(report: &Report) -> Vec<(&str, &str)> {
    let changed = |change: &super::Change| matches!(change.what, What::Changed(_));
    report
        .changes
        .iter()
        .filter(|change| changed(change))
        .map(|change| {
            let What::Changed(why) = &change.what else { unreachable!("others are passed over") };
            (change.name.as_str(), why.as_str())
        })
        .collect()
}

fn until(path: &Path) -> Timestamp {
    Certificates::read(path).unwrap().until().unwrap()
}

#[test]
fn the_authority_is_for_ten_years_and_its_certificates_for_one() {
    let folder = tempfile::tempdir().unwrap();
    let request = request(&folder);
    write(&request).unwrap();
    let file = |name| request.out.join(name);
    assert_eq!(until(&file("tls/ca.crt")), after_days(3652));
    assert_eq!(until(&file("tls/server.crt")), after_days(365));
    assert_eq!(until(&file("tls/client.crt")), after_days(365));

    let authority = Certificates::read(&file("tls/ca.crt")).unwrap();
    let server = Certificates::read(&file("tls/server.crt")).unwrap();
    let client = Certificates::read(&file("tls/client.crt")).unwrap();
    for host in certificates::HOSTS {
        assert_eq!(server.check(&authority, Purpose::Server(host), now()), Ok(()), "{host}");
    }
    assert_eq!(server.check(&authority, Purpose::Client, now()), Ok(()), "servers ask each other");
    assert_eq!(client.check(&authority, Purpose::Client, now()), Ok(()));
    assert!(client.check(&authority, Purpose::Server("localhost"), now()).is_err(), "a client is no server");
    assert!(server.check(&authority, Purpose::Server("nats.example.org"), now()).is_err());
}

#[test]
fn a_certificate_is_renewed_when_less_than_sixty_days_are_left_and_the_authority_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut request = request(&folder);
    write(&request).unwrap();
    let authority = fs::read(request.out.join("tls/ca.crt")).unwrap();

    request.now = after_days(304);
    assert_eq!(write(&request).unwrap().changes, []);
    request.now = after_days(306);
    let report = write(&request).unwrap();
    let why = "the one before is valid until 2027-11-22";
    let files = ["tls/server.key", "tls/server.crt", "tls/client.key", "tls/client.crt"];
    assert_eq!(changed(&report), files.map(|file| (file, why)));
    assert_eq!(until(&request.out.join("tls/server.crt")), after_days(306 + 365));
    assert_eq!(fs::read(request.out.join("tls/ca.crt")).unwrap(), authority);
    let (authority, server) = ("tls/ca.crt", "tls/server.crt");
    let read = |name| Certificates::read(&request.out.join(name)).unwrap();
    let check = read(server).check(&read(authority), Purpose::Server("localhost"), request.now);
    assert_eq!(check, Ok(()));
}

#[test]
fn a_host_more_is_a_certificate_more_and_a_torn_pair_is_mended() {
    let folder = tempfile::tempdir().unwrap();
    let mut request = request(&folder);
    write(&request).unwrap();
    request.hosts = vec!["*.example.org".into()];
    let report = write(&request).unwrap();
    let why = "the one before: it is not for the host *.example.org";
    assert_eq!(
        changed(&report)[1..],
        [("tls/server.key", why), ("tls/server.crt", why)],
        "after the settings, which remember it"
    );
    request.hosts.clear();
    assert_eq!(write(&request).unwrap().changes, []);

    fs::copy(request.out.join("tls/client.key"), request.out.join("tls/server.key")).unwrap();
    let report = write(&request).unwrap();
    let why = "the one before: its key belongs to another certificate";
    assert_eq!(changed(&report), [("tls/server.key", why), ("tls/server.crt", why)]);
}

#[test]
fn without_the_authority_s_key_what_is_good_stays_and_what_is_not_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut request = request(&folder);
    write(&request).unwrap();
    fs::remove_file(request.out.join("tls/ca.key")).unwrap();
    assert_eq!(write(&request).unwrap().changes, []);
    request.now = after_days(320);
    let refused = write(&request).unwrap_err();
    assert!(matches!(refused, Error::NoAuthorityKey { .. }), "{refused}");
}

#[test]
fn what_a_killed_process_left_behind_is_in_nobody_s_way() {
    let folder = tempfile::tempdir().unwrap();
    let request = request(&folder);
    write(&request).unwrap();
    let seeds = request.out.join("seeds/millrace");
    // It was killed between the two steps of an exchange, and while it wrote.
    fs::rename(seeds.join("critic.nk"), seeds.join("critic.old.nk")).unwrap();
    fs::write(seeds.join(".critic.nk.new"), "half a se").unwrap();
    let old = fs::read_to_string(seeds.join("critic.old.nk")).unwrap();
    write(&request).unwrap();
    assert!(!seeds.join(".critic.nk.new").exists());
    let accounts = fs::read_to_string(request.out.join("accounts.conf")).unwrap();
    for seed in [old, fs::read_to_string(seeds.join("critic.nk")).unwrap()] {
        let key = nkeys::KeyPair::from_seed(seed.trim()).unwrap().public_key();
        assert_eq!(accounts.matches(&format!("nkey: {key}\n")).count(), 1);
    }
}

#[test]
fn two_at_once_are_one_too_many() {
    let folder = tempfile::tempdir().unwrap();
    let request = request(&folder);
    let _held = super::folder::Folder::open(&request.out).unwrap();
    assert!(matches!(write(&request).unwrap_err(), Error::Busy(_)));
}

#[test]
fn the_servers_file_without_tls_is_the_other_one_less_what_encrypts() {
    let (with, without) = (server::text(true), server::text(false));
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
    assert!(!with.contains("no_auth_user"), "nobody is let in without a name");
}

#[test]
fn sizes_are_read_as_the_server_reads_them() {
    for (text, bytes) in [
        ("7", 7),
        ("10K", 10_000),
        ("2kb", 2048),
        ("64MiB", 64 << 20),
        ("50GB", 50 << 30),
        ("1T", 1_000_000_000_000),
    ] {
        assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
    }
    for text in ["", "GB", "0", "-1", "1.5GB", "5 GB", "5GG", "9999999TB"] {
        assert!(text.parse::<Size>().is_err(), "{text}");
    }
}

#[test]
fn tenants_have_names_that_are_good_for_accounts_folders_and_namespaces() {
    for good in ["millrace", "team-a", "t1"] {
        assert!(good.parse::<Tenant>().is_ok(), "{good}");
    }
    for bad in ["", "SYS", "OPERATOR", "a/b", "..", "1a", "a-", "A", "a b", "é", &"a".repeat(41)] {
        assert!(bad.parse::<Tenant>().is_err(), "{bad}");
    }
}

#[test]
fn settings_are_remembered_word_for_word_and_others_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let mut request = request(&folder);
    (request.jwt, request.lanes, request.max_store) = (true, Some(4), Some(Size(1 << 30)));
    request.hosts = vec!["nats.example.org".into()];
    write(&request).unwrap();
    let text = fs::read_to_string(request.out.join("settings.json")).unwrap();
    assert_eq!(Settings::parse(&text).unwrap().text(), text);

    let path = request.out.join("settings.json");
    fs::write(&path, text.replace("\"lanes\"", "\"roads\"")).unwrap();
    let refused = write(&request).unwrap_err().to_string();
    assert!(refused.contains("settings.json") && refused.contains("roads"), "{refused}");
}
