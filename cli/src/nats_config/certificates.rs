//! The certificates of a cluster: an authority of its own for ten years, and of it one for the servers and one for
//! those who ask, for a year each. What is good is kept; a certificate that ends soon, or lacks a host, is made anew
//! by the same authority. Who a process is, its nkey says: the certificate only lets it knock.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use sha2::{Digest, Sha256};

use super::Error;
use super::folder::{Folder, Kept};
use crate::certificate::{Certificates, Fault, Purpose};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const AUTHORITY_FOR: Duration = Duration::from_secs(3652 * DAY.as_secs());
const LEAF_FOR: Duration = Duration::from_secs(365 * DAY.as_secs());
/// How long before its end a certificate is made anew.
const RENEWED_BEFORE: SignedDuration = SignedDuration::from_hours(60 * 24);
/// Clocks differ.
const SLACK: Duration = Duration::from_secs(60 * 60);

/// The hosts that the servers are known by in compose, in `deploy/kubernetes`, and on one machine.
pub const HOSTS: [&str; 21] = [
    "localhost",
    "127.0.0.1",
    "::1",
    "nats",
    "nats-0",
    "nats-1",
    "nats-2",
    "nats-3",
    "nats-0.nats",
    "nats-1.nats",
    "nats-2.nats",
    "nats-3.nats",
    "nats-0.nats-headless",
    "nats-1.nats-headless",
    "nats-2.nats-headless",
    "nats.millrace",
    "nats.millrace.svc",
    "nats.millrace.svc.cluster.local",
    "*.nats.millrace.svc.cluster.local",
    "*.nats-headless.millrace.svc",
    "*.nats-headless.millrace.svc.cluster.local",
];

/// More hosts, for larger clusters: servers take these for each other's, Millrace takes no `*` before a single name.
const HOSTS_AMONG_SERVERS: [&str; 2] = ["*.nats", "*.nats-headless"];

const AUTHORITY: (&str, &str) = ("tls/ca.crt", "tls/ca.key");

/// A certificate that the authority signs.
struct Leaf {
    certificate: &'static str,
    key: &'static str,
    name: &'static str,
    hosts: BTreeSet<String>,
}

impl Leaf {
    fn server(more: &BTreeSet<String>) -> Self {
        let hosts = HOSTS.iter().map(|host| (*host).to_owned()).chain(more.iter().cloned()).collect();
        Self { certificate: "tls/server.crt", key: "tls/server.key", name: "millrace nats", hosts }
    }

    fn client() -> Self {
        let hosts = BTreeSet::new();
        Self { certificate: "tls/client.crt", key: "tls/client.key", name: "millrace client", hosts }
    }

    /// Servers ask each other, so theirs are good for both.
    fn purposes(&self) -> impl Iterator<Item = Purpose<'_>> {
        let hosts = self.hosts.iter().map(|host| Purpose::Server(host));
        std::iter::once(Purpose::Client).chain(hosts)
    }
}

/// Makes what is missing, makes anew what is worth nothing or soon will be, and leaves the rest.
///
/// # Errors
/// A file can't be read or written, holds something else, or the authority's key is needed and not there.
pub fn write(folder: &mut Folder, hosts: &BTreeSet<String>, now: Timestamp) -> Result<(), Error> {
    authority(folder, now)?;
    for leaf in [Leaf::server(hosts), Leaf::client()] {
        if let Some(why) = reason(folder, &leaf, now)? {
            sign(folder, &leaf, &why, now)?;
        }
    }
    Ok(())
}

/// An authority that is there is kept, whoever made it.
fn authority(folder: &mut Folder, now: Timestamp) -> Result<(), Error> {
    let (certificate, key) = AUTHORITY;
    if folder.read(certificate)?.is_some() {
        Certificates::read(&folder.path(certificate)).map_err(Error::Certificate)?;
        return Ok(());
    }
    if folder.read(key)?.is_none() {
        let pair = KeyPair::generate().map_err(|error| made_nothing(certificate, &error))?;
        folder.write(key, Kept::Secret, &pair.serialize_pem(), "")?;
    }
    let pair = authority_key(folder)?;
    let mut parameters = authority_parameters(&pair);
    set_validity(&mut parameters, now, AUTHORITY_FOR);
    let made = parameters.self_signed(&pair).map_err(|error| made_nothing(certificate, &error))?;
    folder.write(certificate, Kept::Open, &made.pem(), "")
}

fn authority_key(folder: &Folder) -> Result<KeyPair, Error> {
    let (certificate, key) = AUTHORITY;
    let text = folder.read(key)?.ok_or_else(|| Error::NoAuthorityKey {
        key: folder.path(key),
        certificate: folder.path(certificate),
    })?;
    KeyPair::from_pem(&text)
        .map_err(|_| Error::Certificate(Fault::Other { path: folder.path(key), what: "private key" }))
}

/// What an authority with this key is, but for when. Two authorities never have one name, so that what is signed by
/// another is told from what is broken.
fn authority_parameters(pair: &KeyPair) -> CertificateParams {
    let digest = Sha256::digest(pair.public_key_raw());
    let mark: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = Default::default();
    parameters.distinguished_name.push(DnType::CommonName, format!("millrace nats authority {mark}"));
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    parameters
}

/// Why a certificate has to be made, if it has to.
fn reason(folder: &Folder, leaf: &Leaf, now: Timestamp) -> Result<Option<String>, Error> {
    if folder.read(leaf.certificate)?.is_none() || folder.read(leaf.key)?.is_none() {
        return Ok(Some("its other half was not there".into()));
    }
    let authorities = Certificates::read(&folder.path(AUTHORITY.0)).map_err(Error::Certificate)?;
    let found = Certificates::read(&folder.path(leaf.certificate)).map_err(Error::Certificate)?;
    if let Some(until) = found.until().filter(|until| until.duration_since(now) < RENEWED_BEFORE) {
        return Ok(Some(format!("the one before is valid until {}", until.strftime("%Y-%m-%d"))));
    }
    if let Err(fault) = found.check_key(&folder.path(leaf.key)) {
        return Ok(Some(format!("the one before: {fault}")));
    }
    let mut checks = leaf.purposes().map(|purpose| found.check(&authorities, purpose, now));
    Ok(checks.find_map(Result::err).map(|fault| format!("the one before: {fault}")))
}

fn sign(folder: &mut Folder, leaf: &Leaf, why: &str, now: Timestamp) -> Result<(), Error> {
    let failed = |error| made_nothing(leaf.certificate, &error);
    let authority_key = authority_key(folder)?;
    let issuer = Issuer::new(authority_parameters(&authority_key), authority_key);
    let is_server = !leaf.hosts.is_empty();
    let among_servers = HOSTS_AMONG_SERVERS.iter().filter(|_| is_server).map(|host| (*host).to_owned());
    let hosts: Vec<String> = leaf.hosts.iter().cloned().chain(among_servers).collect();
    let mut parameters = CertificateParams::new(hosts).map_err(failed)?;
    parameters.distinguished_name = Default::default();
    parameters.distinguished_name.push(DnType::CommonName, leaf.name);
    set_validity(&mut parameters, now, LEAF_FOR);
    parameters.use_authority_key_identifier_extension = true;
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if is_server {
        parameters.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    let pair = KeyPair::generate().map_err(failed)?;
    let made = parameters.signed_by(&pair, &issuer).map_err(failed)?;
    folder.write(leaf.key, Kept::Secret, &pair.serialize_pem(), why)?;
    folder.write(leaf.certificate, Kept::Open, &made.pem(), why)
}

fn made_nothing(file: &str, error: &rcgen::Error) -> Error {
    Error::NotMade { what: file.into(), why: error.to_string() }
}

/// From an hour ago, for so long.
fn set_validity(parameters: &mut CertificateParams, now: Timestamp, length: Duration) {
    let now = date_time_ymd(1970, 1, 1) + Duration::from_secs(now.as_second().unsigned_abs());
    (parameters.not_before, parameters.not_after) = (now - SLACK, now + length);
}
