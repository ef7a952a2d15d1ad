//! The part of `millrace doctor` that looks at what a process would show to the NATS server: the files that the
//! environment names, without asking the server. It prints no seed and no password.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use millrace_runtime::connection::{Credentials, Tls};
use nkeys::{KeyPair, KeyPairType};
use secrecy::ExposeSecret;

use super::Check;
use crate::certificate::{Certificates, Fault, Purpose};

/// How long before its end a certificate is worth a warning.
const SOON: SignedDuration = SignedDuration::from_hours(30 * 24);
/// What makes everything that is looked for here.
const CONFIGURE: &str = "`millrace nats-config --out DIR` writes it";

/// Who this process says that it is.
pub fn identity(credentials: &Credentials) -> Check {
    const NAME: &str = "identity";
    match credentials {
        Credentials::None => Check::ok(NAME, "none named: good for a server that lets anybody in"),
        Credentials::Password { .. } => Check::ok(NAME, "the user in MILLRACE_NATS_USER, by password"),
        Credentials::File(path) => of_file(NAME, path, "MILLRACE_NATS_CREDS", "NAME.creds"),
        Credentials::NkeyFile(path) => of_file(NAME, path, "MILLRACE_NATS_NKEY", "NAME.nk"),
        Credentials::Nkey(seed) => match user_key(seed.expose_secret()) {
            Ok(key) => Check::ok(NAME, format!("nkey {key}, of MILLRACE_NATS_NKEY_SEED")),
            Err(why) => Check::missing(
                NAME,
                format!("MILLRACE_NATS_NKEY_SEED holds no seed of a user: {why}"),
                "a seed is 58 capital letters and digits that begin with SU; MILLRACE_NATS_NKEY takes a file with one",
            ),
        },
    }
}

fn of_file(name: &'static str, path: &Path, variable: &str, like: &str) -> Check {
    let shown = path.display();
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            let advice = format!(
                "{variable} is to name a file that this user may read; {CONFIGURE}: {like} below DIR/seeds"
            );
            return Check::missing(name, format!("{shown} can't be read: {error}"), advice);
        }
    };
    let line = text.lines().map(str::trim).find(|line| line.starts_with("SU"));
    let key = match user_key(line.unwrap_or(text.trim())) {
        Ok(key) => key,
        Err(why) => {
            let advice =
                format!("{variable} is to name the file of an identity; {CONFIGURE}: {like} below DIR/seeds");
            return Check::missing(name, format!("{shown} holds no seed of a user: {why}"), advice);
        }
    };
    let found = format!("nkey {key}, of {shown}");
    match fs::metadata(path) {
        Ok(metadata) if metadata.mode() & 0o007 != 0 => Check::warn(
            name,
            format!("{found}, which everybody on this machine can read"),
            format!(
                "`chmod 600 {shown}`; if somebody else may have read it, `millrace nats-config --rotate` it"
            ),
        ),
        _ => Check::ok(name, found),
    }
}

/// The public half of a user's seed; or why it is none, without a word of it.
fn user_key(seed: &str) -> Result<String, String> {
    let pair = KeyPair::from_seed(seed.trim()).map_err(|error| error.to_string())?;
    let kind = pair.key_pair_type();
    if kind == KeyPairType::User { Ok(pair.public_key()) } else { Err(format!("it is one of kind {kind:?}")) }
}

/// By what connections are encrypted. The environment names a certificate and its key together, or neither.
pub fn certificates(tls: &Tls, is_half: bool, now: Timestamp) -> Check {
    const NAME: &str = "certificates";
    if is_half {
        return Check::missing(
            NAME,
            "one of MILLRACE_NATS_CERT and MILLRACE_NATS_KEY is set, and the other is not",
            "set both: a certificate is nothing without its key",
        );
    }
    match examine(tls, now) {
        Ok(Examined { found, soon: None }) => Check::ok(NAME, found),
        Ok(Examined { found, soon: Some(until) }) => Check::warn(
            NAME,
            format!("{found}; the first ends on {}", until.strftime("%Y-%m-%d")),
            "`millrace nats-config --out DIR` renews what ends within 60 days; then start the servers again",
        ),
        Err((found, advice)) => Check::missing(NAME, found, advice),
    }
}

struct Examined {
    found: String,
    /// When the first of them ends, if that is soon.
    soon: Option<Timestamp>,
}

/// What was found, and what to do.
type Wrong = (String, String);

fn examine(tls: &Tls, now: Timestamp) -> Result<Examined, Wrong> {
    let mut found = Vec::new();
    let mut ends = Vec::new();
    let authorities = match &tls.authorities {
        None => {
            found.push("no authority named: servers are trusted that this machine trusts".to_owned());
            None
        }
        Some(path) => {
            let authorities = authority(path, now)?;
            found.push(format!("servers by {}", path.display()));
            ends.extend(authorities.until());
            Some(authorities)
        }
    };
    match &tls.identity {
        None => found.push("none shown to servers".to_owned()),
        Some((certificate, key)) => {
            let shown = own(certificate, key, authorities.as_ref(), now)?;
            found.push(format!("{} shown to servers", certificate.display()));
            ends.extend(shown.until());
        }
    }
    let soon = ends.into_iter().min().filter(|until| until.duration_since(now) < SOON);
    Ok(Examined { found: found.join("; "), soon })
}

fn authority(path: &Path, now: Timestamp) -> Result<Certificates, Wrong> {
    let authorities = Certificates::read(path).map_err(|fault| {
        (
            fault.to_string(),
            format!("MILLRACE_NATS_CA is to name the authority's certificate; {CONFIGURE}: DIR/tls/ca.crt"),
        )
    })?;
    match authorities.until() {
        Some(until) if until < now => Err((
            format!("{}: {}", path.display(), Fault::Expired(until)),
            "a new authority is needed, for every server and every process".into(),
        )),
        Some(_) | None => Ok(authorities),
    }
}

fn own(
    path: &Path,
    key: &Path,
    authorities: Option<&Certificates>,
    now: Timestamp,
) -> Result<Certificates, Wrong> {
    let at = |fault: &Fault| format!("{}: {fault}", path.display());
    let certificate = Certificates::read(path).map_err(|fault| {
        (
            fault.to_string(),
            format!("MILLRACE_NATS_CERT is to name a certificate; {CONFIGURE}: DIR/tls/client.crt"),
        )
    })?;
    certificate.check_key(key).map_err(|fault| {
        let found = if fault == Fault::OtherKey {
            format!("{} is not the key of {}", key.display(), path.display())
        } else {
            fault.to_string()
        };
        (
            found,
            format!(
                "MILLRACE_NATS_KEY is to name the key of MILLRACE_NATS_CERT; {CONFIGURE}: DIR/tls/client.key"
            ),
        )
    })?;
    // Who is not known here may be known to the server: only what its own authority would say of it counts.
    match certificate.check(authorities.unwrap_or(&certificate), Purpose::Client, now) {
        Err(fault @ (Fault::Expired(_) | Fault::NotYet)) => Err((
            at(&fault),
            "`millrace nats-config --out DIR` makes a new one; then start whatever uses it again".into(),
        )),
        Err(fault @ Fault::OtherAuthority) if authorities.is_some() => Err((
            at(&fault) + " than MILLRACE_NATS_CA holds",
            "take the certificate and the authority of one folder of `millrace nats-config`, or name in \
             MILLRACE_NATS_CA both authorities"
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

    use super::super::Status;
    use super::*;
    use crate::nats_config::{Request, write};

    /// A folder as `millrace nats-config` wrote it then.
    fn written(then: Timestamp) -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("nats");
        write(&Request::plain(out.clone(), then)).unwrap();
        (folder, out)
    }

    fn tls(out: &Path) -> Tls {
        let file = |name| out.join("tls").join(name);
        Tls { authorities: Some(file("ca.crt")), identity: Some((file("client.crt"), file("client.key"))) }
    }

    #[test]
    fn certificates_that_end_are_told_before_and_after() {
        let then: Timestamp = "2026-11-22T10:00:00Z".parse().unwrap();
        let (_folder, out) = written(then);
        let check = |days: i64| certificates(&tls(&out), false, then + SignedDuration::from_hours(24 * days));
        for (days, status, found) in [
            (0, Status::Ok, "client.crt shown to servers"),
            (330, Status::Ok, "client.crt shown to servers"),
            (340, Status::Warn, "the first ends on 2027-11-22"),
            (370, Status::Missing, "client.crt: it was valid until 2027-11-22"),
            (-1, Status::Missing, "client.crt: it is not valid yet"),
            (3660, Status::Missing, "ca.crt: it was valid until 2036-11-21"),
        ] {
            let check = check(days);
            assert_eq!(check.status, status, "after {days} days: {check:?}");
            assert!(check.found.contains(found), "after {days} days: {check:?}");
            assert_eq!(check.advice.is_some(), status != Status::Ok);
        }
    }

    #[test]
    fn a_seed_is_told_by_its_public_half_and_no_seed_by_why() {
        let (_folder, out) = written(Timestamp::now());
        let file = out.join("seeds/millrace/critic.nk");
        let seed = fs::read_to_string(&file).unwrap();
        let key = KeyPair::from_seed(seed.trim()).unwrap().public_key();
        let check = identity(&Credentials::NkeyFile(file.clone()));
        assert_eq!((check.status, check.found.contains(&key)), (Status::Ok, true), "{check:?}");
        assert_eq!(identity(&Credentials::Nkey(seed.clone().into())).status, Status::Ok);

        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let exposed = identity(&Credentials::NkeyFile(file.clone()));
        assert_eq!(exposed.status, Status::Warn);
        assert!(exposed.advice.unwrap().contains("chmod 600"));

        let account = KeyPair::new_account().seed().unwrap();
        for no_seed in ["", "SUAA", &seed.to_lowercase(), &account] {
            let check = identity(&Credentials::Nkey(no_seed.to_owned().into()));
            assert_eq!(check.status, Status::Missing, "{check:?}");
            assert!(no_seed.is_empty() || !format!("{check:?}").contains(no_seed), "a seed is never printed");
        }
    }
}
