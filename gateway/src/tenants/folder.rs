//! The folder of tenants: an entry for each, in one of two forms.
//!
//! ```text
//! acme/gateway.nk       as `millrace nats-config` writes it: FOLDER is its folder `seeds`
//! acme/gateway.creds    the same with --jwt; it has precedence
//! acme/url              another NATS server than that of the gateway; without a key if that server demands none
//! acme/ca.crt  acme/tls.crt  acme/tls.key      other certificates than those of the gateway
//! acme.nk, acme.creds   the key alone, as a Secret that is mounted as a folder has it
//! ```
//!
//! Other files, hidden entries and the folder of the servers' own account are ignored.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use millrace_protocol::tenant::TenantName;
use millrace_runtime::ConnectionSettings;
use millrace_runtime::nats::connection::{Credentials, TlsFiles, parse_server_urls};
use millrace_runtime::store::blobs::sha256_hex;

/// The files of a tenant's own folder that count.
const FILES: [&str; 6] = ["gateway.creds", "gateway.nk", "url", "ca.crt", "tls.crt", "tls.key"];
/// The folder in which `millrace nats-config` has the key of the servers' own account.
const SYSTEM_ACCOUNT: &str = "SYS";
/// The maximum size of a file.
const MAX_FILE: u64 = 64 * 1024;

#[derive(Debug, Clone)]
pub struct TenantEntry {
    pub connection: ConnectionSettings,
    /// A digest of its files: another one means that the tenant must be connected again.
    pub version: String,
}

#[derive(Debug, Default)]
pub struct FolderContents {
    pub tenants: BTreeMap<TenantName, TenantEntry>,
    /// The entries that can't be used, with the reason: texts for the log.
    pub problems: Vec<String>,
}

/// Reads the folder. Tenants without a server or certificates of their own have those of `shared`.
pub fn read_folder(folder: &Path, shared: &ConnectionSettings) -> io::Result<FolderContents> {
    let mut contents = FolderContents::default();
    let mut names: Vec<String> = Vec::new();
    for entry in fs::read_dir(folder)? {
        match entry?.file_name().into_string() {
            Ok(name) => names.push(name),
            Err(name) => contents.problems.push(format!("{}: the name is not UTF-8", name.display())),
        }
    }
    names.sort();
    for name in names.iter().filter(|name| !name.starts_with('.') && *name != SYSTEM_ACCOUNT) {
        let path = folder.join(name);
        // Links are followed: a mounted Secret consists of links.
        let entry = if path.is_dir() {
            read_tenant_folder(&path, shared).map(|entry| (name.as_str(), entry))
        } else {
            let Some(tenant) = name.strip_suffix(".creds").or_else(|| name.strip_suffix(".nk")) else {
                continue;
            };
            read_key_file(&path, shared).map(|entry| (tenant, entry))
        };
        let added = entry.and_then(|(tenant, entry)| contents.add(tenant, entry));
        if let Err(reason) = added {
            contents.problems.push(format!("{name}: {reason}"));
        }
    }
    Ok(contents)
}

impl FolderContents {
    fn add(&mut self, name: &str, entry: TenantEntry) -> Result<(), String> {
        let name: TenantName = name.parse().map_err(|error| format!("{error}"))?;
        if self.tenants.contains_key(&name) {
            return Err(format!("the tenant {name} has another entry, which counts"));
        }
        self.tenants.insert(name, entry);
        Ok(())
    }
}

/// Reads a key that is the whole entry of a tenant.
fn read_key_file(path: &Path, shared: &ConnectionSettings) -> Result<TenantEntry, String> {
    let text = read_text(path)?.ok_or("it was removed meanwhile")?;
    let credentials = match path.extension().is_some_and(|extension| extension == "creds") {
        true => Credentials::File(path.to_owned()),
        false => Credentials::NkeyFile(path.to_owned()),
    };
    let connection = ConnectionSettings { credentials, ..shared.clone() };
    Ok(TenantEntry { connection, version: sha256_hex(text.as_bytes()) })
}

fn read_tenant_folder(path: &Path, shared: &ConnectionSettings) -> Result<TenantEntry, String> {
    let mut texts = BTreeMap::new();
    for file in FILES {
        if let Some(text) = read_text(&path.join(file)).map_err(|error| format!("{file}: {error}"))? {
            texts.insert(file, text);
        }
    }
    let file = |name: &str| texts.contains_key(name).then(|| path.join(name));
    let credentials = match (file("gateway.creds"), file("gateway.nk")) {
        (Some(creds), _) => Credentials::File(creds),
        (None, Some(key)) => Credentials::NkeyFile(key),
        (None, None) if texts.contains_key("url") => Credentials::None,
        (None, None) => {
            return Err("it has no gateway.nk, gateway.creds or url, so that it is no tenant".into());
        }
    };
    let url = match texts.get("url") {
        Some(url) => parse_server_urls(url.trim()).map_err(|error| format!("url: {error}"))?,
        None => shared.url.clone(),
    };
    let identity = match (file("tls.crt"), file("tls.key")) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => shared.tls.identity.clone(),
        (Some(_), None) | (None, Some(_)) => return Err("tls.crt and tls.key belong together".into()),
    };
    let authorities = file("ca.crt").or_else(|| shared.tls.authorities.clone());
    let connection = ConnectionSettings { url, credentials, tls: TlsFiles { authorities, identity } };
    let parts: Vec<String> =
        texts.iter().map(|(name, text)| format!("{name} {}", sha256_hex(text.as_bytes()))).collect();
    Ok(TenantEntry { connection, version: sha256_hex(parts.join("\n").as_bytes()) })
}

/// Reads a file; `None` if there is none.
fn read_text(path: &Path) -> Result<Option<String>, String> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.len() > MAX_FILE => Err(format!("it has more than {MAX_FILE} bytes")),
        Ok(_) => fs::read_to_string(path).map(Some).map_err(|error| error.to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn write(folder: &Path, file: &str, text: &str) -> PathBuf {
        let path = folder.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn read(folder: &Path) -> FolderContents {
        let mut shared = ConnectionSettings::unauthenticated("tls://shared");
        shared.credentials = Credentials::NkeyFile("own.nk".into());
        shared.tls.authorities = Some("shared.crt".into());
        read_folder(folder, &shared).unwrap()
    }

    fn describe(contents: &FolderContents) -> Vec<String> {
        let describe = |(name, entry): (&TenantName, &TenantEntry)| {
            let ConnectionSettings { url, credentials, tls } = &entry.connection;
            let file_name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
            let credentials = match credentials {
                Credentials::NkeyFile(file) | Credentials::File(file) => file_name(file),
                Credentials::None => "none".into(),
                Credentials::Password { .. } | Credentials::Nkey(_) => "other".into(),
            };
            let authorities = tls.authorities.as_deref().map(file_name).unwrap_or_default();
            format!("{name} {url} {credentials} {authorities} {}", tls.identity.is_some())
        };
        contents.tenants.iter().map(describe).collect()
    }

    #[test]
    fn folders_and_single_keys_are_tenants() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        write(path, "acme/gateway.nk", "seed");
        write(path, "acme/client.nk", "seed");
        write(path, "globex/gateway.nk", "seed");
        write(path, "globex/gateway.creds", "creds");
        write(path, "initech/url", "nats://other\n");
        write(path, "initech/ca.crt", "pem");
        write(path, "initech/tls.crt", "pem");
        write(path, "initech/tls.key", "pem");
        write(path, "umbrella.nk", "seed");
        write(path, "wayne.creds", "creds");
        write(path, "README.md", "read me");
        write(path, ".hidden/gateway.nk", "seed");
        let contents = read(path);
        assert_eq!(
            describe(&contents),
            [
                "acme tls://shared gateway.nk shared.crt false",
                "globex tls://shared gateway.creds shared.crt false",
                "initech nats://other none ca.crt true",
                "umbrella tls://shared umbrella.nk shared.crt false",
                "wayne tls://shared wayne.creds shared.crt false",
            ]
        );
        assert_eq!(contents.problems, Vec::<String>::new());
    }

    #[test]
    fn entries_that_cannot_be_used_are_named_and_the_others_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        write(path, "acme/gateway.nk", "seed");
        write(path, "acme.nk", "seed");
        write(path, "Globex.nk", "seed");
        write(path, "half/gateway.nk", "seed");
        write(path, "half/tls.crt", "pem");
        write(path, "large.nk", &"x".repeat(70_000));
        write(path, "others/client.nk", "seed");
        write(path, "SYS/system.nk", "seed");
        write(path, "wrong/url", "http://x");
        let contents = read(path);
        assert_eq!(describe(&contents), ["acme tls://shared gateway.nk shared.crt false"]);
        let problems = contents.problems.join("\n");
        for part in [
            "acme.nk: the tenant acme has another entry",
            "Globex.nk: a tenant name has up to 40",
            "half: tls.crt and tls.key belong together",
            "large.nk: it has more than 65536 bytes",
            "others: it has no gateway.nk, gateway.creds or url",
            "wrong: url: http://x: ",
        ] {
            assert!(problems.contains(part), "{part}: {problems}");
        }
        assert_eq!(contents.problems.len(), 6, "{problems}");
        assert!(read_folder(&path.join("none"), &ConnectionSettings::unauthenticated("x")).is_err());
    }

    #[test]
    fn every_change_of_a_file_changes_the_version() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let version = || read(path).tenants.values().next().unwrap().version.clone();
        write(path, "acme/gateway.nk", "one");
        let first = version();
        write(path, "acme/other", "text");
        assert_eq!(version(), first);
        write(path, "acme/gateway.nk", "two");
        let second = version();
        write(path, "acme/ca.crt", "two");
        assert!(first != second && version() != second);
    }
}
