//! Which addresses belong to the public internet. A pure table: it resolves nothing.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an address is not one of the public internet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreachable {
    /// This very machine, or no machine.
    Loopback,
    /// A private network, or a provider's own (CGNAT).
    Private,
    /// The local link. Cloud metadata is here.
    LinkLocal,
    /// Many machines at once.
    Multicast,
    /// Set aside for documentation, tests or the future.
    Reserved,
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => "an address of this machine itself",
            Self::Private => "an address of a private network",
            Self::LinkLocal => "an address of the local link, where cloud metadata is",
            Self::Multicast => "a multicast address",
            Self::Reserved => "a reserved address",
        })
    }
}

/// Tables of networks: address, length of its prefix, what it is. The first that fits counts.
const V4: &[([u8; 4], u32, Unreachable)] = &[
    ([0, 0, 0, 0], 8, Unreachable::Loopback),
    ([10, 0, 0, 0], 8, Unreachable::Private),
    ([100, 64, 0, 0], 10, Unreachable::Private),
    ([127, 0, 0, 0], 8, Unreachable::Loopback),
    ([169, 254, 0, 0], 16, Unreachable::LinkLocal),
    ([172, 16, 0, 0], 12, Unreachable::Private),
    ([192, 0, 0, 0], 24, Unreachable::Reserved),
    ([192, 0, 2, 0], 24, Unreachable::Reserved),
    ([192, 88, 99, 0], 24, Unreachable::Reserved),
    ([192, 168, 0, 0], 16, Unreachable::Private),
    ([198, 18, 0, 0], 15, Unreachable::Reserved),
    ([198, 51, 100, 0], 24, Unreachable::Reserved),
    ([203, 0, 113, 0], 24, Unreachable::Reserved),
    ([224, 0, 0, 0], 4, Unreachable::Multicast),
    ([240, 0, 0, 0], 4, Unreachable::Reserved),
    // Azure's host, which answers for its metadata and DNS, has a public address.
    ([168, 63, 129, 16], 32, Unreachable::LinkLocal),
];

/// As [`V4`]. What is outside 2000::/3 and not named here is reserved.
const V6: &[([u16; 8], u32, Unreachable)] = &[
    ([0, 0, 0, 0, 0, 0, 0, 0], 127, Unreachable::Loopback),
    ([0x100, 0, 0, 0, 0, 0, 0, 0], 64, Unreachable::Reserved),
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23, Unreachable::Reserved),
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32, Unreachable::Reserved),
    ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20, Unreachable::Reserved),
    ([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7, Unreachable::Private),
    ([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10, Unreachable::LinkLocal),
    ([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10, Unreachable::Private),
    ([0xff00, 0, 0, 0, 0, 0, 0, 0], 8, Unreachable::Multicast),
];

/// Why an address is not one of the public internet, if it is not. Of an IPv6 address that stands for an IPv4 one,
/// both are asked.
pub(crate) fn unreachable(address: IpAddr) -> Option<Unreachable> {
    match address {
        IpAddr::V4(v4) => unreachable_v4(v4),
        IpAddr::V6(v6) => match embedded(v6) {
            Some(Embedded::InsteadOf(v4)) => unreachable_v4(v4),
            Some(Embedded::Within(v4)) => unreachable_v4(v4).or_else(|| unreachable_v6(v6)),
            None => unreachable_v6(v6),
        },
    }
}

/// The addresses that reaching this one may mean: itself, and the IPv4 address in it.
pub(crate) fn meanings(address: IpAddr) -> Vec<IpAddr> {
    let inner = match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(v6) => embedded(v6).map(|(Embedded::InsteadOf(v4) | Embedded::Within(v4))| IpAddr::V4(v4)),
    };
    std::iter::once(address).chain(inner).collect()
}

/// An IPv4 address within an IPv6 one.
enum Embedded {
    /// The IPv6 address is nothing but a form of it.
    InsteadOf(Ipv4Addr),
    /// The IPv6 address leads there, by way of its own network.
    Within(Ipv4Addr),
}

fn embedded(v6: Ipv6Addr) -> Option<Embedded> {
    let s = v6.segments();
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match s {
        [0, 0, 0, 0, 0, 0xffff, high, low] => Some(Embedded::InsteadOf(v4(high, low))),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(Embedded::InsteadOf(v4(high, low))),
        [0x2002, high, low, ..] => Some(Embedded::Within(v4(high, low))),
        // ISATAP: the local part of any network's address.
        [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => Some(Embedded::Within(v4(high, low))),
        _ => None,
    }
}

fn unreachable_v4(v4: Ipv4Addr) -> Option<Unreachable> {
    let bits = u32::from(v4);
    V4.iter()
        .find(|(net, length, _)| (bits ^ u32::from_be_bytes(*net)) >> (32 - length) == 0)
        .map(|(.., why)| *why)
}

fn unreachable_v6(v6: Ipv6Addr) -> Option<Unreachable> {
    let bits = u128::from(v6);
    let global = v6.segments()[0] & 0xe000 == 0x2000;
    V6.iter()
        .find(|(net, length, _)| (bits ^ u128::from(Ipv6Addr::from(*net))) >> (128 - length) == 0)
        .map(|(.., why)| *why)
        .or((!global).then_some(Unreachable::Reserved))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `address  verdict`, one a line.
    const CORPUS: &str = include_str!("../../tests/corpora/addresses.txt");

    #[test]
    fn every_address_of_the_corpus_gets_its_verdict() {
        let mut seen = 0;
        for line in CORPUS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (address, verdict) = line.split_once(char::is_whitespace).unwrap();
            let found = unreachable(address.parse().unwrap());
            let found = found.map_or("public".to_owned(), |why| format!("{why:?}").to_lowercase());
            assert_eq!(found, verdict.trim(), "{address}");
            seen += 1;
        }
        assert!(seen > 70, "{seen}");
    }

    #[test]
    fn an_ipv4_address_in_an_ipv6_one_is_a_meaning_of_it() {
        let inner: IpAddr = "10.1.2.3".parse().unwrap();
        for outer in ["::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "2002:a01:203::1", "2a00::5efe:10.1.2.3"] {
            assert!(meanings(outer.parse().unwrap()).contains(&inner), "{outer}");
        }
        assert_eq!(meanings(inner), [inner]);
    }
}
