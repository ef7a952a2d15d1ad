//! The local nats-server: its configuration, its credentials, and whether it is ready.
//!
//! Starting and stopping it is the fleet's. Paths in the configuration are relative to the data folder, which is the
//! server's working folder, so that no name of a folder can be misread in it.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

/// The name of the configuration in the data folder.
pub const CONFIGURATION: &str = "nats.conf";
/// How long one attempt to be greeted may take, on the loopback device.
const GREETING_LIMIT: Duration = Duration::from_secs(2);
/// The server's greeting is one line of under 1 KiB.
const GREETING_BYTES: u64 = 64 << 10;

/// What a server is started with.
#[derive(Clone)]
pub struct Configuration {
    /// The port to listen on; `None` lets the server take a free one, which it tells by a file.
    pub port: Option<u16>,
    /// The only user.
    pub user: String,
    /// That user's password.
    pub password: String,
    /// The most bytes that the store may have.
    pub max_file_store: u64,
    /// Whether each write is on disk before it is acknowledged.
    pub sync_always: bool,
}

impl Configuration {
    /// The text of the file.
    pub fn text(&self) -> String {
        let Self { port, user, password, max_file_store, sync_always } = self;
        let port = port.map_or_else(|| "-1".to_owned(), |port| port.to_string());
        let sync = if *sync_always { "  sync_interval: always\n" } else { "" };
        format!(
            "# Written by millrace at each start; changes here are lost.\n\
             server_name: millrace-local\n\
             host: 127.0.0.1\n\
             port: {port}\n\
             ports_file_dir: run\n\
             authorization {{ user: {user}, password: \"{password}\" }}\n\
             jetstream {{\n  store_dir: nats\n  max_file_store: {max_file_store}\n{sync}}}\n"
        )
    }
}

/// The bytes that a store may grow to: what it has and nine tenths of what is free, so that the server refuses what
/// would fill the disk.
pub fn store_limit(used: u64, free: u64) -> u64 {
    used.saturating_add(free / 10 * 9)
}

/// A password of 256 random bits, from the operating system.
pub fn random_password() -> io::Result<String> {
    let mut bytes = [0_u8; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    // A letter first: a value of digits alone would be read as a number.
    Ok(bytes.iter().fold("p".to_owned(), |text, byte| format!("{text}{byte:02x}")))
}

/// Removes what earlier servers told about their ports.
pub fn forget_ports(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        fs::remove_file(entry?.path())?;
    }
    Ok(())
}

/// The address that a server told in `folder`, if one has done so yet.
pub fn told_address(folder: &Path) -> Option<SocketAddr> {
    let files = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let ports = files.filter(|path| path.extension().is_some_and(|extension| extension == "ports"));
    // One that can't be read is being written.
    ports.filter_map(|path| address_in(&fs::read_to_string(path).ok()?)).next()
}

fn address_in(text: &str) -> Option<SocketAddr> {
    #[derive(Deserialize)]
    struct Ports {
        nats: Vec<String>,
    }
    let ports: Ports = serde_json::from_str(text).ok()?;
    let (_, port) = ports.nats.first()?.rsplit_once(':')?;
    Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port.parse().ok()?))
}

/// What a server says of itself to whoever connects.
#[derive(Debug, Deserialize)]
pub struct Greeting {
    /// Whether it keeps streams.
    #[serde(default)]
    pub jetstream: bool,
}

/// Connects to `address` and reads the greeting.
pub fn greet(address: SocketAddr) -> io::Result<Greeting> {
    let stream = TcpStream::connect_timeout(&address, GREETING_LIMIT)?;
    stream.set_read_timeout(Some(GREETING_LIMIT))?;
    let mut line = String::new();
    BufReader::new(stream.take(GREETING_BYTES)).read_line(&mut line)?;
    let json =
        line.strip_prefix("INFO ").ok_or_else(|| io::Error::other("it does not greet as a NATS server"))?;
    Ok(serde_json::from_str(json)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration() -> Configuration {
        Configuration {
            port: None,
            user: "millrace".into(),
            password: "pff".into(),
            max_file_store: 1024,
            sync_always: false,
        }
    }

    #[test]
    fn the_port_is_the_server_s_choice_at_first_and_the_same_from_then_on() {
        assert!(configuration().text().contains("\nport: -1\n"));
        let again = Configuration { port: Some(4222), ..configuration() };
        assert!(again.text().contains("\nport: 4222\n"));
    }

    #[test]
    fn only_a_cluster_that_asks_for_it_syncs_each_write() {
        assert!(!configuration().text().contains("sync_interval"));
        let always = Configuration { sync_always: true, ..configuration() };
        assert!(always.text().contains("  sync_interval: always\n"));
    }

    #[test]
    fn passwords_are_long_and_never_the_same() {
        let (one, other) = (random_password().unwrap(), random_password().unwrap());
        assert_eq!((one.len(), other.len()), (65, 65));
        assert_ne!(one, other);
    }

    #[test]
    fn a_half_written_ports_file_is_no_address_yet() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nats-server_7.ports");
        assert_eq!(told_address(folder.path()), None);
        fs::write(&file, "{\"nats\":[\"nats://127.0").unwrap();
        assert_eq!(told_address(folder.path()), None);
        fs::write(&file, "{\"nats\":[\"nats://127.0.0.1:39083\"]}").unwrap();
        assert_eq!(told_address(folder.path()), Some(SocketAddr::from(([127, 0, 0, 1], 39083))));
        forget_ports(folder.path()).unwrap();
        assert_eq!(told_address(folder.path()), None);
    }

    #[test]
    fn a_store_may_never_fill_the_disk() {
        assert_eq!(store_limit(100, 1000), 1000);
        assert_eq!(store_limit(u64::MAX, 1000), u64::MAX);
    }
}
