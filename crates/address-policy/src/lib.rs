//! The addresses that requests on behalf of others may go to: pages that agents read, receivers of webhooks. Only the public
//! internet is allowed, and private networks that an operator names. An address is checked in the resolver of the HTTP client,
//! so that the connection goes to the address that was checked.
//!
//! # Invariants
//!
//! - I32: No tool reaches a private address, for any answer of a resolver and any redirect of a page.
//!   (`crates/address-policy/src/public_address.rs::every_address_of_the_corpus_is_classified`,
//!   `crates/tools/tests/web.rs::dns_rebinding_is_prevented`, `crates/tools/tests/web.rs::redirects_are_limited_and_checked`)
//! - I196: No webhook connects to an address outside the public internet, unless the operator names its network.
//!   (`tests/tests/gateway_webhooks.rs::names_of_private_addresses_are_refused_when_the_connection_is_made`,
//!   `crates/address-policy/src/receiver.rs::receivers_are_public_unless_the_operator_names_their_networks`)

mod public_address;
mod receiver;
mod resolver;

use std::borrow::Cow;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

pub use public_address::AddressClass;
use public_address::{equivalent_addresses, non_public_class};
pub use receiver::ReceiverPolicy;
pub use resolver::{CheckedResolver, DnsLookup, SystemDns};

/// A network: an address and a prefix length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr(IpNet);

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self).map_err(|_| format!("{text:?} is not a network; write it as \"10.1.0.0/16\""))
    }
}

impl TryFrom<String> for Cidr {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> Self {
        cidr.0.to_string()
    }
}

impl JsonSchema for Cidr {
    fn schema_name() -> Cow<'static, str> {
        "Cidr".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "description": "a network, such as \"10.1.0.0/16\" or \"fd12::/32\""})
    }
}

/// A host that is, or resolves to, a forbidden address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{host} resolves to {class}; only the public internet is allowed")]
pub struct AddressRefusal {
    pub host: String,
    pub class: AddressClass,
}

/// Checks an address of a host. Addresses outside the public internet must be in one of the allowed networks.
pub fn check_address(allowed: &[Cidr], host: &str, address: IpAddr) -> Result<(), AddressRefusal> {
    let is_allowed =
        || equivalent_addresses(address).iter().any(|one| allowed.iter().any(|net| net.0.contains(one)));
    match non_public_class(address) {
        Some(class) if !is_allowed() => Err(AddressRefusal { host: host.to_owned(), class }),
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_private_networks_are_allowed() {
        let allowed = ["10.1.0.0/16".parse().unwrap()];
        let check = |address: &str| check_address(&allowed, "a.example", address.parse().unwrap());
        for open in ["10.1.2.3", "::ffff:10.1.2.3", "9.9.9.9"] {
            assert_eq!(check(open), Ok(()), "{open}");
        }
        for closed in ["10.2.0.1", "127.0.0.1", "169.254.169.254", "::1"] {
            assert!(check(closed).is_err(), "{closed}");
        }
        assert!("10.0.0.0".parse::<Cidr>().unwrap_err().contains("write it as"));
    }
}
