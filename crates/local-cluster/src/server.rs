//! The local nats-server: its configuration, credentials and readiness.
//!
//! [`crate::processes`] starts and stops it. Paths in the configuration are relative to the data folder, which is the
//! working directory of the server, so that no folder name needs quoting.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use crate::data::{self, DataFolderError, DataLayout};

/// File name of the configuration in the data folder.
pub const CONFIGURATION: &str = "nats.conf";
/// The setting with the maximum size of the store.
const STORE_LIMIT: &str = "max_file_store:";
/// Timeout of one connection attempt on the loopback device.
const GREETING_LIMIT: Duration = Duration::from_secs(2);
/// The server's greeting is one line of under 1 KiB.
const GREETING_BYTES: u64 = 64 << 10;

/// A server's place among several that form one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRoutes {
    pub name: String,
    /// Its port for the other servers.
    pub port: u16,
    /// Their ports.
    pub peers: Vec<u16>,
}

/// The configuration of the server.
#[derive(Clone)]
pub struct ServerConfig {
    /// The port to listen on; `None` lets the server choose a free one and write it to its ports file.
    pub port: Option<u16>,
    /// The only user.
    pub user: String,
    /// That user's password.
    pub password: String,
    /// Maximum size of the store in bytes.
    pub max_file_store: u64,
    /// `true` to sync each write to disk before it is acknowledged.
    pub sync_always: bool,
    /// The servers with which it forms a cluster; `None` if it is alone.
    pub routes: Option<ServerRoutes>,
}

impl ServerConfig {
    /// Returns the text of the configuration file.
    pub fn to_nats_conf(&self) -> String {
        let Self { port, user, password, max_file_store, sync_always, routes } = self;
        let name = routes.as_ref().map_or("millrace-local", |routes| routes.name.as_str());
        let cluster = routes.as_ref().map(ServerRoutes::to_nats_conf).unwrap_or_default();
        let port = port.map_or_else(|| "-1".to_owned(), |port| port.to_string());
        let sync = if *sync_always { "  sync_interval: always\n" } else { "" };
        format!(
            "# Written by millrace at each start; changes here are lost.\n\
             server_name: {name}\n\
             host: 127.0.0.1\n\
             port: {port}\n\
             ports_file_dir: run\n\
             authorization {{ user: {user}, password: \"{password}\" }}\n\
             jetstream {{\n  store_dir: nats\n  {STORE_LIMIT} {max_file_store}\n{sync}}}\n{cluster}"
        )
    }
}

impl ServerRoutes {
    fn to_nats_conf(&self) -> String {
        let Self { port, peers, .. } = self;
        let routes: Vec<String> = peers.iter().map(|peer| format!("nats://127.0.0.1:{peer}")).collect();
        let routes = routes.join(", ");
        format!("cluster {{ name: millrace-local, listen: \"127.0.0.1:{port}\", routes: [{routes}] }}\n")
    }
}

/// Returns the maximum size of the store: its current size and 90% of the free space, so that the server rejects writes
/// before the disk is full.
pub fn compute_store_limit(used: u64, free: u64) -> u64 {
    used.saturating_add(free / 10 * 9)
}

/// Computes the maximum size of the store anew and writes it into the configuration of the server.
pub fn update_store_limit(layout: &DataLayout) -> Result<(), DataFolderError> {
    let path = layout.nats_conf_path();
    let io_error = |source| layout.io_error_at(&path, source);
    let text = fs::read_to_string(&path).map_err(io_error)?;
    let free = data::free_space(layout.root_path()).map_err(io_error)?;
    let limit = compute_store_limit(data::total_file_size(&layout.nats_store_path()), free);
    let line = |line: &str| match line.trim_start().strip_prefix(STORE_LIMIT) {
        Some(_) => format!("  {STORE_LIMIT} {limit}\n"),
        None => format!("{line}\n"),
    };
    let text: String = text.lines().map(line).collect();
    layout.write_private_file(&path, &text)
}

/// Returns a random password of 256 bits from the operating system.
pub fn random_password() -> io::Result<String> {
    let mut bytes = [0_u8; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    // A letter first: a value of digits alone would be read as a number.
    Ok(bytes.iter().fold("p".to_owned(), |text, byte| format!("{text}{byte:02x}")))
}

/// Removes the ports files of earlier servers.
pub fn remove_ports_files(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        fs::remove_file(entry?.path())?;
    }
    Ok(())
}

/// Returns the address in the ports file in `folder`, once the server has written it.
pub fn read_server_address(folder: &Path) -> Option<SocketAddr> {
    let files = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let ports = files.filter(|path| path.extension().is_some_and(|extension| extension == "ports"));
    // A file that can't be parsed is still being written.
    ports.filter_map(|path| parse_server_address(&fs::read_to_string(path).ok()?)).next()
}

fn parse_server_address(text: &str) -> Option<SocketAddr> {
    #[derive(Deserialize)]
    struct PortsFile {
        nats: Vec<String>,
    }
    let ports: PortsFile = serde_json::from_str(text).ok()?;
    let (_, port) = ports.nats.first()?.rsplit_once(':')?;
    Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port.parse().ok()?))
}

/// The INFO message that a server sends on connect.
#[derive(Debug, Deserialize)]
pub struct ServerGreeting {
    /// `true` if JetStream is enabled.
    #[serde(default)]
    pub jetstream: bool,
}

/// Connects to `address` and reads the INFO message.
pub fn read_greeting(address: SocketAddr) -> io::Result<ServerGreeting> {
    let stream = TcpStream::connect_timeout(&address, GREETING_LIMIT)?;
    stream.set_read_timeout(Some(GREETING_LIMIT))?;
    let mut line = String::new();
    BufReader::new(stream.take(GREETING_BYTES)).read_line(&mut line)?;
    let json =
        line.strip_prefix("INFO ").ok_or_else(|| io::Error::other("not a NATS server: no INFO message"))?;
    Ok(serde_json::from_str(json)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_server_config() -> ServerConfig {
        ServerConfig {
            port: None,
            user: "millrace".into(),
            password: "pff".into(),
            max_file_store: 1024,
            sync_always: false,
            routes: None,
        }
    }

    #[test]
    fn the_server_chooses_its_port_once() {
        assert!(sample_server_config().to_nats_conf().contains("\nport: -1\n"));
        let fixed = ServerConfig { port: Some(4222), ..sample_server_config() };
        assert!(fixed.to_nats_conf().contains("\nport: 4222\n"));
    }

    #[test]
    fn writes_are_synced_only_with_sync_always() {
        assert!(!sample_server_config().to_nats_conf().contains("sync_interval"));
        let always = ServerConfig { sync_always: true, ..sample_server_config() };
        assert!(always.to_nats_conf().contains("  sync_interval: always\n"));
    }

    #[test]
    fn passwords_are_long_and_unique() {
        let (one, other) = (random_password().unwrap(), random_password().unwrap());
        assert_eq!((one.len(), other.len()), (65, 65));
        assert_ne!(one, other);
    }

    #[test]
    fn a_partial_ports_file_has_no_address() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nats-server_7.ports");
        assert_eq!(read_server_address(folder.path()), None);
        fs::write(&file, "{\"nats\":[\"nats://127.0").unwrap();
        assert_eq!(read_server_address(folder.path()), None);
        fs::write(&file, "{\"nats\":[\"nats://127.0.0.1:39083\"]}").unwrap();
        assert_eq!(read_server_address(folder.path()), Some(SocketAddr::from(([127, 0, 0, 1], 39083))));
        remove_ports_files(folder.path()).unwrap();
        assert_eq!(read_server_address(folder.path()), None);
    }

    #[test]
    fn the_store_never_fills_the_disk() {
        assert_eq!(compute_store_limit(100, 1000), 1000);
        assert_eq!(compute_store_limit(u64::MAX, 1000), u64::MAX);
    }
}
