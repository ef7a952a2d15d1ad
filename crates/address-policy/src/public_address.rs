//! Classifies IP addresses as public or not. A pure table: it does not resolve names.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The class of an address outside the public internet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressClass {
    /// This machine, or no machine.
    Loopback,
    /// A private network, including carrier-grade NAT.
    Private,
    /// The local link, which includes cloud metadata services.
    LinkLocal,
    Multicast,
    /// Reserved for documentation, tests or future use.
    Reserved,
}

impl fmt::Display for AddressClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => "an address of this machine",
            Self::Private => "an address of a private network",
            Self::LinkLocal => "a link-local address, which includes cloud metadata services",
            Self::Multicast => "a multicast address",
            Self::Reserved => "a reserved address",
        })
    }
}

/// Tables of networks: address, prefix length, class. The first match counts.
const V4: &[([u8; 4], u32, AddressClass)] = &[
    ([0, 0, 0, 0], 8, AddressClass::Loopback),
    ([10, 0, 0, 0], 8, AddressClass::Private),
    ([100, 64, 0, 0], 10, AddressClass::Private),
    ([127, 0, 0, 0], 8, AddressClass::Loopback),
    ([169, 254, 0, 0], 16, AddressClass::LinkLocal),
    ([172, 16, 0, 0], 12, AddressClass::Private),
    ([192, 0, 0, 0], 24, AddressClass::Reserved),
    ([192, 0, 2, 0], 24, AddressClass::Reserved),
    ([192, 88, 99, 0], 24, AddressClass::Reserved),
    ([192, 168, 0, 0], 16, AddressClass::Private),
    ([198, 18, 0, 0], 15, AddressClass::Reserved),
    ([198, 51, 100, 0], 24, AddressClass::Reserved),
    ([203, 0, 113, 0], 24, AddressClass::Reserved),
    ([224, 0, 0, 0], 4, AddressClass::Multicast),
    ([240, 0, 0, 0], 4, AddressClass::Reserved),
    // The Azure host that serves metadata and DNS has a public address.
    ([168, 63, 129, 16], 32, AddressClass::LinkLocal),
];

/// Like [`V4`]. Everything else outside 2000::/3 is reserved.
const V6: &[([u16; 8], u32, AddressClass)] = &[
    ([0, 0, 0, 0, 0, 0, 0, 0], 127, AddressClass::Loopback),
    ([0x100, 0, 0, 0, 0, 0, 0, 0], 64, AddressClass::Reserved),
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23, AddressClass::Reserved),
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32, AddressClass::Reserved),
    ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20, AddressClass::Reserved),
    ([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7, AddressClass::Private),
    ([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10, AddressClass::LinkLocal),
    ([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10, AddressClass::Private),
    ([0xff00, 0, 0, 0, 0, 0, 0, 0], 8, AddressClass::Multicast),
];

/// Returns the class of an address outside the public internet, `None` for a public one. If an IPv6 address embeds an
/// IPv4 one, both are checked.
pub fn non_public_class(address: IpAddr) -> Option<AddressClass> {
    match address {
        IpAddr::V4(v4) => classify_v4(v4),
        IpAddr::V6(v6) => match embedded_v4_address(v6) {
            Some(EmbeddedV4::InsteadOf(v4)) => classify_v4(v4),
            Some(EmbeddedV4::Within(v4)) => classify_v4(v4).or_else(|| classify_v6(v6)),
            None => classify_v6(v6),
        },
    }
}

/// Returns an address and the IPv4 address embedded in it, if any.
pub fn equivalent_addresses(address: IpAddr) -> Vec<IpAddr> {
    let inner = match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(v6) => {
            embedded_v4_address(v6).map(|(EmbeddedV4::InsteadOf(v4) | EmbeddedV4::Within(v4))| IpAddr::V4(v4))
        }
    };
    std::iter::once(address).chain(inner).collect()
}

/// An IPv4 address embedded in an IPv6 one.
enum EmbeddedV4 {
    /// The IPv6 address is another notation of it.
    InsteadOf(Ipv4Addr),
    /// The IPv6 address is routed to it through its own network.
    Within(Ipv4Addr),
}

fn embedded_v4_address(v6: Ipv6Addr) -> Option<EmbeddedV4> {
    let s = v6.segments();
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match s {
        [0, 0, 0, 0, 0, 0xffff, high, low] => Some(EmbeddedV4::InsteadOf(v4(high, low))),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(EmbeddedV4::InsteadOf(v4(high, low))),
        [0x2002, high, low, ..] => Some(EmbeddedV4::Within(v4(high, low))),
        // ISATAP: the interface part of an address of any network.
        [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => Some(EmbeddedV4::Within(v4(high, low))),
        _ => None,
    }
}

fn classify_v4(v4: Ipv4Addr) -> Option<AddressClass> {
    let bits = u32::from(v4);
    V4.iter()
        .find(|(net, length, _)| (bits ^ u32::from_be_bytes(*net)) >> (32 - length) == 0)
        .map(|(.., class)| *class)
}

fn classify_v6(v6: Ipv6Addr) -> Option<AddressClass> {
    let bits = u128::from(v6);
    let global = v6.segments()[0] & 0xe000 == 0x2000;
    V6.iter()
        .find(|(net, length, _)| (bits ^ u128::from(Ipv6Addr::from(*net))) >> (128 - length) == 0)
        .map(|(.., class)| *class)
        .or((!global).then_some(AddressClass::Reserved))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `address  class`, one per line.
    const CORPUS: &str = include_str!("addresses.txt");

    #[test]
    fn every_address_of_the_corpus_is_classified() {
        let mut count = 0;
        for line in CORPUS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (address, verdict) = line.split_once(char::is_whitespace).unwrap();
            let actual = non_public_class(address.parse().unwrap());
            let actual = actual.map_or("public".to_owned(), |class| format!("{class:?}").to_lowercase());
            assert_eq!(actual, verdict.trim(), "{address}");
            count += 1;
        }
        assert!(count > 70, "{count}");
    }

    #[test]
    fn embedded_ipv4_addresses_are_equivalent() {
        let inner: IpAddr = "10.1.2.3".parse().unwrap();
        for outer in ["::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "2002:a01:203::1", "2a00::5efe:10.1.2.3"] {
            assert!(equivalent_addresses(outer.parse().unwrap()).contains(&inner), "{outer}");
        }
        assert_eq!(equivalent_addresses(inner), [inner]);
    }
}
