//! A small DNS server that resolves a fixed set of names to IPv4 addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

const HEADER: usize = 12;
const A: [u8; 2] = [0, 1];
const NO_SUCH_NAME: u8 = 3;

/// The server. Dropping it stops it.
pub struct DnsServer {
    asked: Arc<Mutex<BTreeSet<String>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl DnsServer {
    /// Serves these names on port 53 of an address.
    ///
    /// # Panics
    /// The port is not available.
    pub fn start_serving(at: Ipv4Addr, names: BTreeMap<String, Ipv4Addr>) -> Self {
        let socket = UdpSocket::bind((at, 53)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let (asked, is_over) = (Arc::<Mutex<BTreeSet<String>>>::default(), Arc::<AtomicBool>::default());
        let (seen, over) = (Arc::clone(&asked), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            let mut question = [0; 512];
            while !over.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut question) else { continue };
                let Some((name, reply)) = answer_query(&question[..length], &names) else { continue };
                seen.lock().unwrap().insert(name);
                drop(socket.send_to(&reply, from));
            }
        });
        Self { asked, is_over, thread: Some(thread) }
    }

    /// The names that were queried.
    pub fn queried_names(&self) -> BTreeSet<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for DnsServer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// The name in a query, and the response.
fn answer_query(question: &[u8], names: &BTreeMap<String, Ipv4Addr>) -> Option<(String, Vec<u8>)> {
    let mut at = HEADER;
    let mut labels = Vec::new();
    loop {
        let length = usize::from(*question.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        labels.push(String::from_utf8_lossy(question.get(at..at + length)?).to_lowercase());
        at += length;
    }
    let (name, end) = (labels.join("."), at + 4);
    let address = names.get(&name);
    let is_address = question.get(at..at + 2)? == A;
    let mut reply = question.get(..end)?.to_vec();
    // An authoritative response; it offers recursion because some resolvers require that.
    (reply[2], reply[3]) = (0x85, 0x80 | if address.is_none() { NO_SUCH_NAME } else { 0 });
    // One question, so many answers, nothing more.
    reply[4..HEADER].copy_from_slice(&[0, 1, 0, u8::from(is_address && address.is_some()), 0, 0, 0, 0]);
    if let Some(address) = address.filter(|_| is_address) {
        // The name of the question, A, IN, TTL of one second, four bytes.
        reply.extend([0xc0, HEADER as u8, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
        reply.extend(address.octets());
    }
    Some((name, reply))
}
