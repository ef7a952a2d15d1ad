//! Simulated machines: network namespaces, each connected to a bridge of this machine and with an address of its own.
//! Each can be disconnected from the network and reconnected.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Machines on one network with this one. Dropping them removes their namespaces.
pub struct TestMachines {
    /// The prefix of the names of all devices and namespaces.
    name: String,
    network: [u8; 2],
    count: usize,
}

/// A kind of network partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkPartition {
    /// The link is down, which the machine notices.
    LinkDown,
    /// All packets in both directions are lost; neither side notices.
    PacketLoss,
}

impl TestMachines {
    /// Creates so many machines.
    ///
    /// # Errors
    /// There is no `ip` command, or no permission to create namespaces.
    pub fn new(count: usize) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        // Device names have at most 15 characters. 10.200/13 has room for the networks of many processes.
        let place = (process.wrapping_mul(7).wrapping_add(number)) % 2000;
        let network = [200 + (place / 250) as u8, (place % 250) as u8];
        let machines = Self { name: format!("mr{}x{number}", process % 10_000_000), network, count };
        machines.create_namespaces()?;
        Ok(machines)
    }

    fn create_namespaces(&self) -> Result<(), String> {
        let Self { name, count, .. } = self;
        run_ip_command(&format!("link add {name} type bridge"))?;
        run_ip_command(&format!("addr add {}/24 dev {name}", self.host_address()))?;
        run_ip_command(&format!("link set {name} up"))?;
        for number in 0..*count {
            let (machine, port) = (self.namespace_name(number), self.bridge_port_name(number));
            run_ip_command(&format!("netns add {machine}"))?;
            run_ip_command(&format!("link add {port} type veth peer name eth0 netns {machine}"))?;
            run_ip_command(&format!("link set {port} master {name} up"))?;
            run_ip_command(&format!("-n {machine} addr add {}/24 dev eth0", self.machine_address(number)))?;
            run_ip_command(&format!("-n {machine} link set eth0 up"))?;
            run_ip_command(&format!("-n {machine} link set lo up"))?;
        }
        Ok(())
    }

    /// The address of this machine on their network.
    #[must_use]
    pub fn host_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.network[0], self.network[1], 1)
    }

    /// The address of a machine; machines are numbered from 0.
    #[must_use]
    pub fn machine_address(&self, machine: usize) -> Ipv4Addr {
        let last = u8::try_from(10 + machine).expect("there are at most 245 machines");
        Ipv4Addr::new(10, self.network[0], self.network[1], last)
    }

    /// A command that runs a program on a machine. The process id is the program's own.
    #[must_use]
    pub fn command_on_machine(&self, machine: usize, program: &Path) -> Command {
        command_in_namespace(&self.namespace_name(machine), program)
    }

    /// The name of a machine's network namespace.
    #[must_use]
    pub fn namespace_name(&self, machine: usize) -> String {
        format!("{}-{machine}", self.name)
    }

    /// Disconnects a machine from all others.
    ///
    /// # Panics
    /// There is no such machine.
    pub fn disconnect_machine(&self, machine: usize, partition: NetworkPartition) {
        let port = self.bridge_port_name(machine);
        let result = match partition {
            NetworkPartition::LinkDown => run_ip_command(&format!("link set {port} down")),
            NetworkPartition::PacketLoss => run_ip_command(&format!("link set {port} nomaster")),
        };
        result.expect("its port exists");
    }

    /// Reconnects a machine to the network.
    ///
    /// # Panics
    /// There is no such machine.
    pub fn reconnect_machine(&self, machine: usize) {
        run_ip_command(&format!("link set {} master {} up", self.bridge_port_name(machine), self.name))
            .expect("its port exists");
    }

    fn bridge_port_name(&self, machine: usize) -> String {
        format!("{}p{machine}", self.name)
    }
}

impl Drop for TestMachines {
    fn drop(&mut self) {
        // Errors are ignored: some of these may never have been created.
        for number in 0..self.count {
            drop(run_ip_command(&format!("link del {}", self.bridge_port_name(number))));
            drop(run_ip_command(&format!("netns del {}", self.namespace_name(number))));
        }
        drop(run_ip_command(&format!("link del {}", self.name)));
    }
}

/// A command that runs a program in a network namespace.
#[must_use]
pub fn command_in_namespace(namespace: &str, program: &Path) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]).arg(program);
    command
}

fn run_ip_command(words: &str) -> Result<(), String> {
    let output =
        Command::new("ip").args(words.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
    let text = || format!("ip {words}: {}", String::from_utf8_lossy(&output.stderr).trim());
    if output.status.success() { Ok(()) } else { Err(text()) }
}
