//! The other servers of a cluster with three copies of each stream. They share the machine, so that the copies cost what they
//! cost there and protect from nothing.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Child;

use anyhow::Context;
use millrace_local_cluster::nats_server::{SearchEnvironment, find_or_fetch_server};
use millrace_local_cluster::{Launcher, ServerConfig, ServerRoutes};

/// Number of servers of a cluster with copies.
const SERVERS: usize = 3;
/// Maximum size of a peer's store in bytes; a benchmark needs less.
const MAX_STORE: u64 = 64 << 30;

/// The other servers. Dropping this kills them.
pub struct PeerServers(Vec<Child>);

impl PeerServers {
    /// Starts the peers in subfolders of `folder`, and returns the place of the first server among them.
    pub fn start(folder: &Path, sync_always: bool) -> anyhow::Result<(Self, ServerRoutes)> {
        let mut places = plan_routes()?.into_iter();
        let first = places.next().context("a cluster has a first server")?;
        let launcher = Launcher::from_current_exe()?;
        let server = find_or_fetch_server(&SearchEnvironment::from_process(), &launcher, &mut |line| {
            eprintln!("{line}")
        })?;
        let mut peers = Self(Vec::new());
        for routes in places {
            let folder = folder.join(&routes.name);
            fs::create_dir_all(folder.join("run"))?;
            let config = ServerConfig {
                port: None,
                user: "millrace".into(),
                password: "only-on-loopback".into(),
                max_file_store: MAX_STORE,
                sync_always,
                routes: Some(routes),
            };
            let (file, log) = (folder.join("nats.conf"), fs::File::create(folder.join("nats-server.log"))?);
            fs::write(&file, config.to_nats_conf())?;
            let mut command = launcher.build_attached_command(&server.program);
            command.arg("-c").arg(&file).current_dir(&folder).stdout(log.try_clone()?).stderr(log);
            peers.0.push(command.spawn().context("starting a NATS server")?);
        }
        Ok((peers, first))
    }

    /// The process ids, each with a name.
    pub fn pids(&self) -> impl Iterator<Item = (String, u32)> {
        (2..).zip(&self.0).map(|(number, peer)| (format!("nats-server-{number}"), peer.id()))
    }
}

impl Drop for PeerServers {
    fn drop(&mut self) {
        for peer in &mut self.0 {
            let _ = peer.kill();
            let _ = peer.wait();
        }
    }
}

/// Returns names and free ports for the servers.
fn plan_routes() -> anyhow::Result<Vec<ServerRoutes>> {
    // All are bound at once, so that they differ.
    let listeners: Vec<TcpListener> =
        (0..SERVERS).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<Result<_, _>>()?;
    let ports: Vec<u16> =
        listeners.iter().map(|one| Ok(one.local_addr()?.port())).collect::<std::io::Result<_>>()?;
    let others = |own: u16| ports.iter().copied().filter(|port| *port != own).collect();
    let place = |(number, port): (usize, &u16)| ServerRoutes {
        name: format!("server-{number}"),
        port: *port,
        peers: others(*port),
    };
    Ok((1..).zip(&ports).map(place).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_knows_the_two_others() {
        let places = plan_routes().unwrap();
        assert_eq!(places.len(), SERVERS);
        for place in &places {
            let others = places.iter().filter(|other| other.name != place.name).map(|other| other.port);
            assert_eq!(place.peers, others.collect::<Vec<_>>());
        }
    }
}
