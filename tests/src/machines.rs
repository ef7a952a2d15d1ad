//! Several machines on one: network namespaces, each with a cable to a bridge of this machine and an address of its
//! own. Each can be cut off and healed. It knows nothing of what runs on them.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Machines on one network with this one. Gone when they are dropped; so is what still runs on them without an end of
/// its own.
pub struct Machines {
    /// What the names of all that is made begin with.
    name: String,
    network: [u8; 2],
    count: usize,
}

/// How a machine is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Its cable is pulled out, which it notices.
    Cable,
    /// The network swallows what it sends and what is sent to it; no end notices anything.
    Silent,
}

impl Machines {
    /// Makes so many, or says why that can't be.
    ///
    /// # Errors
    /// There is no `ip`, or no right to make namespaces.
    pub fn new(count: usize) -> Result<Self, String> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        // Names of devices have at most 15 characters. Below 10.200/13 there is a network for each of many processes.
        let place = (process.wrapping_mul(7).wrapping_add(number)) % 2000;
        let network = [200 + (place / 250) as u8, (place % 250) as u8];
        let machines = Self { name: format!("mr{}x{number}", process % 10_000_000), network, count };
        machines.make()?;
        Ok(machines)
    }

    fn make(&self) -> Result<(), String> {
        let Self { name, count, .. } = self;
        ip(&format!("link add {name} type bridge"))?;
        ip(&format!("addr add {}/24 dev {name}", self.here()))?;
        ip(&format!("link set {name} up"))?;
        for number in 0..*count {
            let (machine, port) = (self.namespace(number), self.port(number));
            ip(&format!("netns add {machine}"))?;
            ip(&format!("link add {port} type veth peer name eth0 netns {machine}"))?;
            ip(&format!("link set {port} master {name} up"))?;
            ip(&format!("-n {machine} addr add {}/24 dev eth0", self.address(number)))?;
            ip(&format!("-n {machine} link set eth0 up"))?;
            ip(&format!("-n {machine} link set lo up"))?;
        }
        Ok(())
    }

    /// The address at which they reach this machine.
    #[must_use]
    pub fn here(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.network[0], self.network[1], 1)
    }

    /// The address of a machine, counted from 0.
    #[must_use]
    pub fn address(&self, machine: usize) -> Ipv4Addr {
        let last = u8::try_from(10 + machine).expect("there are few machines");
        Ipv4Addr::new(10, self.network[0], self.network[1], last)
    }

    /// A command that runs a program on a machine. Its process is the program's own.
    #[must_use]
    pub fn command(&self, machine: usize, program: &Path) -> Command {
        on(&self.namespace(machine), program)
    }

    /// The name of a machine's namespace.
    #[must_use]
    pub fn namespace(&self, machine: usize) -> String {
        format!("{}-{machine}", self.name)
    }

    /// Cuts a machine off from all others.
    ///
    /// # Panics
    /// There is no such machine.
    pub fn cut(&self, machine: usize, how: Cut) {
        let port = self.port(machine);
        let done = match how {
            Cut::Cable => ip(&format!("link set {port} down")),
            Cut::Silent => ip(&format!("link set {port} nomaster")),
        };
        done.expect("its port is there");
    }

    /// Puts a machine back on the network, however it was cut off.
    ///
    /// # Panics
    /// There is no such machine.
    pub fn heal(&self, machine: usize) {
        ip(&format!("link set {} master {} up", self.port(machine), self.name)).expect("its port is there");
    }

    fn port(&self, machine: usize) -> String {
        format!("{}p{machine}", self.name)
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        // What was never made can't be removed.
        for number in 0..self.count {
            drop(ip(&format!("link del {}", self.port(number))));
            drop(ip(&format!("netns del {}", self.namespace(number))));
        }
        drop(ip(&format!("link del {}", self.name)));
    }
}

/// A command that runs a program in a network namespace.
#[must_use]
pub fn on(namespace: &str, program: &Path) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]).arg(program);
    command
}

fn ip(words: &str) -> Result<(), String> {
    let said = Command::new("ip").args(words.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
    let text = || format!("ip {words}: {}", String::from_utf8_lossy(&said.stderr).trim());
    if said.status.success() { Ok(()) } else { Err(text()) }
}
