//! The credential checks of `millrace doctor`: the files that the environment variables point to, without contacting the
//! server. It never prints a seed or a password.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use millrace_runtime::nats::connection::{Credentials, TlsFiles};
use nkeys::{KeyPair, KeyPairType};
use secrecy::ExposeSecret;

use super::CheckResult;
use millrace_nats_config::certificate::{CertificateProblem, CertificatePurpose, Certificates};

/// Remaining validity below which a certificate leads to a warning.
const SOON: SignedDuration = SignedDuration::from_hours(30 * 24);
/// The command that creates the files that are checked here.
const CONFIGURE: &str = "`millrace nats-config --out DIR` creates it";
/// The command that creates credentials files.
const CONFIGURE_JWT: &str = "`millrace nats-config --out DIR --jwt` creates it";
/// The steps that renew an authority. With its old key it is still the authority of the certificates that it has signed.
const RENEW_AUTHORITY: &str = "remove DIR/tls/ca.crt, and keep DIR/tls/ca.key: `millrace nats-config --out DIR` then renews it with \
                               the same key; every server and every process needs the new file";

/// Checks the identity that this process authenticates with.
pub fn check_identity(credentials: &Credentials) -> CheckResult {
    const NAME: &str = "identity";
    match credentials {
        Credentials::None => {
            CheckResult::new_ok(NAME, "none configured; only works with a server without authentication")
        }
        Credentials::Password { .. } => {
            CheckResult::new_ok(NAME, "user and password in MILLRACE_NATS_USER and MILLRACE_NATS_PASSWORD")
        }
        Credentials::File(path) => {
            check_seed_file(NAME, path, ("MILLRACE_NATS_CREDS", CONFIGURE_JWT, "NAME.creds"))
        }
        Credentials::NkeyFile(path) => {
            check_seed_file(NAME, path, ("MILLRACE_NATS_NKEY", CONFIGURE, "NAME.nk"))
        }
        Credentials::Nkey(seed) => match public_key_of_seed(seed.expose_secret()) {
            Ok(key) => CheckResult::new_ok(NAME, format!("nkey {key}, from MILLRACE_NATS_NKEY_SEED")),
            Err(why) => CheckResult::new_missing(
                NAME,
                format!("MILLRACE_NATS_NKEY_SEED is not a user seed: {why}"),
                "a user seed has 58 capital letters and digits and begins with SU; to use a file, set MILLRACE_NATS_NKEY",
            ),
        },
    }
}

/// Checks a file with a seed. The texts are its variable, the command that creates such files, and the names of these.
fn check_seed_file(
    name: &'static str,
    path: &Path,
    (variable, configure, like): (&str, &str, &str),
) -> CheckResult {
    let file = path.display();
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            let advice = format!(
                "set {variable} to a file that this user may read; {configure}: {like} below DIR/seeds"
            );
            return CheckResult::new_missing(name, format!("{file} can't be read: {error}"), advice);
        }
    };
    let line = text.lines().map(str::trim).find(|line| line.starts_with("SU"));
    let key = match public_key_of_seed(line.unwrap_or(text.trim())) {
        Ok(key) => key,
        Err(why) => {
            let advice =
                format!("set {variable} to the file of an identity; {configure}: {like} below DIR/seeds");
            return CheckResult::new_missing(name, format!("{file} contains no user seed: {why}"), advice);
        }
    };
    let found = format!("nkey {key}, from {file}");
    match fs::metadata(path) {
        Ok(metadata) if metadata.mode() & 0o007 != 0 => CheckResult::new_warning(
            name,
            format!("{found}, which every user of this machine can read"),
            format!(
                "`chmod 600 {file}`; if another user may have read it, replace it: `millrace nats-config --out DIR --rotate \
                 IDENTITY`, and the same with --retire once the new key is in use"
            ),
        ),
        _ => CheckResult::new_ok(name, found),
    }
}

/// Returns the public key of a user seed, or why it is invalid, without revealing any of it.
fn public_key_of_seed(seed: &str) -> Result<String, String> {
    let pair = KeyPair::from_seed(seed.trim()).map_err(|error| error.to_string())?;
    let kind = pair.key_pair_type();
    if kind == KeyPairType::User {
        Ok(pair.public_key())
    } else {
        Err(format!("it is a key of kind {kind:?}"))
    }
}

/// Checks the TLS files. A certificate and its key must be set together.
pub fn check_certificates(tls: &TlsFiles, is_half: bool, now: Timestamp) -> CheckResult {
    const NAME: &str = "certificates";
    if is_half {
        return CheckResult::new_missing(
            NAME,
            "only one of MILLRACE_NATS_CERT and MILLRACE_NATS_KEY is set",
            "set both: a certificate needs its private key",
        );
    }
    match check_tls_files(tls, now) {
        Ok(CertificateSummary { found, soon: None }) => CheckResult::new_ok(NAME, found),
        Ok(CertificateSummary { found, soon: Some(first) }) => CheckResult::new_warning(
            NAME,
            format!("{found}; the first one expires on {}", first.until.strftime("%Y-%m-%d")),
            if first.is_authority {
                RENEW_AUTHORITY
            } else {
                "`millrace nats-config --out DIR` renews certificates that expire within 60 days; then restart the servers"
            },
        ),
        Err((found, advice)) => CheckResult::new_missing(NAME, found, advice),
    }
}

/// The state of the configured certificates.
struct CertificateSummary {
    /// The files in use, as text.
    found: String,
    /// The first certificate that expires, if that is soon.
    soon: Option<CertificateEnd>,
}

/// The end of the validity of a certificate; the earlier one is less.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct CertificateEnd {
    until: Timestamp,
    is_authority: bool,
}

type ProblemWithFix = (String, String);

fn check_tls_files(tls: &TlsFiles, now: Timestamp) -> Result<CertificateSummary, ProblemWithFix> {
    let mut findings = Vec::new();
    let mut ends = Vec::new();
    let authorities = match &tls.authorities {
        None => {
            findings
                .push("no authority configured: using the authorities that this machine trusts".to_owned());
            None
        }
        Some(path) => {
            let authorities = check_authority_certificates(path, now)?;
            findings.push(format!("server certificates are checked against {}", path.display()));
            ends.extend(authorities.valid_until().map(|until| CertificateEnd { until, is_authority: true }));
            Some(authorities)
        }
    };
    match &tls.identity {
        None => findings.push("no client certificate".to_owned()),
        Some((certificate, key)) => {
            let chain = check_own_certificate(certificate, key, authorities.as_ref(), now)?;
            findings.push(format!("client certificate {}", certificate.display()));
            ends.extend(chain.valid_until().map(|until| CertificateEnd { until, is_authority: false }));
        }
    }
    let soon = ends.into_iter().min().filter(|end| end.until.duration_since(now) < SOON);
    Ok(CertificateSummary { found: findings.join("; "), soon })
}

fn check_authority_certificates(path: &Path, now: Timestamp) -> Result<Certificates, ProblemWithFix> {
    let authorities = Certificates::read_file(path).map_err(|fault| {
        (
            fault.to_string(),
            format!("set MILLRACE_NATS_CA to the certificate of the authority; {CONFIGURE}: DIR/tls/ca.crt"),
        )
    })?;
    match authorities.valid_until() {
        Some(until) if until < now => Err((
            format!("{}: {}", path.display(), CertificateProblem::Expired(until)),
            RENEW_AUTHORITY.into(),
        )),
        Some(_) | None => Ok(authorities),
    }
}

fn check_own_certificate(
    path: &Path,
    key: &Path,
    authorities: Option<&Certificates>,
    now: Timestamp,
) -> Result<Certificates, ProblemWithFix> {
    let at = |fault: &CertificateProblem| format!("{}: {fault}", path.display());
    let certificate = Certificates::read_file(path).map_err(|fault| {
        (
            fault.to_string(),
            format!("set MILLRACE_NATS_CERT to a certificate; {CONFIGURE}: DIR/tls/client.crt"),
        )
    })?;
    certificate.check_key(key).map_err(|fault| {
        let found = if fault == CertificateProblem::OtherKey {
            format!("{} is not the key of {}", key.display(), path.display())
        } else {
            fault.to_string()
        };
        (
            found,
            format!(
                "set MILLRACE_NATS_KEY to the key of MILLRACE_NATS_CERT; {CONFIGURE}: DIR/tls/client.key"
            ),
        )
    })?;
    // The server may know authorities that are unknown here: only findings of the certificate's own authority count.
    match certificate.check_validity(authorities.unwrap_or(&certificate), CertificatePurpose::Client, now) {
        Err(fault @ (CertificateProblem::Expired(_) | CertificateProblem::NotYet)) => Err((
            at(&fault),
            "`millrace nats-config --out DIR` creates a new one; then restart the processes that use it".into(),
        )),
        Err(fault @ CertificateProblem::OtherAuthority) if authorities.is_some() => Err((
            at(&fault) + ", not by the one in MILLRACE_NATS_CA",
            "use the certificate and the authority of the same `millrace nats-config` folder, or put both authorities \
             into the file of MILLRACE_NATS_CA"
                .into(),
        )),
        Ok(()) | Err(_) => Ok(certificate),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use tempfile::TempDir;

    use super::super::CheckStatus;
    use super::*;
    use millrace_nats_config::{ConfigRequest, write_configuration};

    /// A folder as `millrace nats-config` would have written it at the time `then`.
    fn write_config_folder_at(then: Timestamp) -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("nats");
        write_configuration(&ConfigRequest::new(out.clone(), then)).unwrap();
        (folder, out)
    }

    fn tls_files_in(out: &Path) -> TlsFiles {
        let file = |name| out.join("tls").join(name);
        TlsFiles {
            authorities: Some(file("ca.crt")),
            identity: Some((file("client.crt"), file("client.key"))),
        }
    }

    #[test]
    fn expiring_certificates_are_reported_before_and_after() {
        let then: Timestamp = "2026-11-22T10:00:00Z".parse().unwrap();
        let (_folder, out) = write_config_folder_at(then);
        let check = |days: i64| {
            check_certificates(&tls_files_in(&out), false, then + SignedDuration::from_hours(24 * days))
        };
        for (days, status, found) in [
            (0, CheckStatus::Ok, "tls/client.crt"),
            (330, CheckStatus::Ok, "tls/client.crt"),
            (340, CheckStatus::Warn, "the first one expires on 2027-11-22"),
            (370, CheckStatus::Missing, "client.crt: expired on 2027-11-22"),
            (-1, CheckStatus::Missing, "client.crt: not valid yet"),
            (3660, CheckStatus::Missing, "ca.crt: expired on 2036-11-21"),
        ] {
            let check = check(days);
            assert_eq!(check.status, status, "after {days} days: {check:?}");
            assert!(check.found.contains(found), "after {days} days: {check:?}");
            assert_eq!(check.advice.is_some(), status != CheckStatus::Ok);
            let renews_authority =
                check.advice.is_some_and(|advice| advice.contains("remove DIR/tls/ca.crt"));
            assert_eq!(renews_authority, days > 3_600, "after {days} days");
        }
        // The advice works: the authority has the same key, and so is that of the certificates that it has signed.
        fs::remove_file(out.join("tls/ca.crt")).unwrap();
        let later = then + SignedDuration::from_hours(24 * 3_660);
        write_configuration(&ConfigRequest::new(out.clone(), later)).unwrap();
        let renewed = check_certificates(&tls_files_in(&out), false, later);
        assert_eq!(renewed.status, CheckStatus::Ok, "{renewed:?}");
    }

    #[test]
    fn a_seed_is_shown_by_its_public_key_only() {
        let (_folder, out) = write_config_folder_at(Timestamp::now());
        let file = out.join("seeds/millrace/critic.nk");
        let seed = fs::read_to_string(&file).unwrap();
        let key = KeyPair::from_seed(seed.trim()).unwrap().public_key();
        let check = check_identity(&Credentials::NkeyFile(file.clone()));
        assert_eq!((check.status, check.found.contains(&key)), (CheckStatus::Ok, true), "{check:?}");
        assert_eq!(check_identity(&Credentials::Nkey(seed.clone().into())).status, CheckStatus::Ok);

        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let exposed = check_identity(&Credentials::NkeyFile(file.clone()));
        assert_eq!(exposed.status, CheckStatus::Warn);
        assert!(exposed.advice.unwrap().contains("chmod 600"));
        let missing = |credentials| check_identity(&credentials).advice.unwrap();
        assert!(
            missing(Credentials::NkeyFile("/nowhere".into()))
                .contains("`millrace nats-config --out DIR` creates")
        );
        assert!(
            missing(Credentials::File("/nowhere".into()))
                .contains("`millrace nats-config --out DIR --jwt` creates")
        );

        let account = KeyPair::new_account().seed().unwrap();
        for no_seed in ["", "SUAA", &seed.to_lowercase(), &account] {
            let check = check_identity(&Credentials::Nkey(no_seed.to_owned().into()));
            assert_eq!(check.status, CheckStatus::Missing, "{check:?}");
            assert!(no_seed.is_empty() || !format!("{check:?}").contains(no_seed), "a seed is never printed");
        }
    }
}
