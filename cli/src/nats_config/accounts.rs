//! The text of `accounts.conf` with bare nkeys: who is let in, and what the server lets each do. Pure text.

use std::fmt::Write;

use millrace_runtime::access::{Permissions, gate};

use super::keys::Keys;
use super::settings::{Identity, Size};
use super::{Account, permissions};

/// The head of the files that are written anew each time.
pub const HEAD: &str =
    "# Written by `millrace nats-config`, which writes it anew: what is changed here is lost.\n";

/// The whole text. `system` is whoever looks after the servers.
#[must_use]
pub fn text(system: &Keys, accounts: &[Account], lanes: u16) -> String {
    let lent = format!("exports: [{{ service: \"{}\" }}, {{ service: \"{}\" }}]", gate::API, gate::NOWHERE);
    let mut text =
        format!("{HEAD}\nsystem_account: SYS\n\naccounts {{\n  SYS {{\n    {lent}\n    users: [\n");
    for key in system.public() {
        let _ = writeln!(text, "      {{ nkey: {key} }}");
    }
    text += "    ]\n  }\n";
    for account in accounts {
        let (name, store) = (&account.owner, jetstream(account.max_store));
        let _ = write!(text, "  \"{name}\" {{\n    jetstream: {store}\n{}    users: [\n", at_the_gate());
        for (identity, keys) in &account.members {
            keys.public().for_each(|key| text += &user(identity, lanes, &key));
        }
        text += "    ]\n  }\n";
    }
    text + "}\n"
}

/// Where an account has the servers' API, and how its users get there.
fn at_the_gate() -> String {
    let import = |subject, to, more| {
        format!("      {{ service: {{ account: SYS, subject: \"{subject}\" }}, to: \"{to}\"{more} }}\n")
    };
    let imports = import(gate::NOWHERE, gate::API, "") + &import(gate::API, gate::GATE, ", share: true");
    let ways: String = gate::ways().map(|(from, to)| format!("      \"{from}\": \"{to}\"\n")).collect();
    format!(
        "    # What the server itself says to the API goes nowhere; what users say is mapped to where the API is.\n    \
         imports: [\n{imports}    ]\n    mappings: {{\n{ways}    }}\n"
    )
}

fn jetstream(max_store: Option<Size>) -> String {
    max_store.map_or("enabled".into(), |size| format!("{{ max_file: {} }}", size.0))
}

fn user(identity: &Identity, lanes: u16, key: &str) -> String {
    let Permissions { publish, subscribe } = permissions(identity, lanes, key);
    format!(
        "      # {}\n      {{\n        nkey: {key}\n        permissions {{\n          publish {}\n          \
         subscribe {}\n        }}\n      }}\n",
        identity.name,
        rule(&publish),
        rule(&subscribe)
    )
}

/// The server takes an empty list of what is allowed for everything.
fn rule(subjects: &[String]) -> String {
    if subjects.is_empty() {
        return "{ deny: [\">\"] }".into();
    }
    let lines: String = subjects.iter().map(|subject| format!("            \"{subject}\"\n")).collect();
    format!("{{ allow: [\n{lines}          ] }}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_allowed_is_nothing_allowed() {
        assert_eq!(rule(&[]), "{ deny: [\">\"] }");
        assert!(rule(&["a.*".into(), "b.>".into()]).starts_with("{ allow: [\n            \"a.*\"\n"));
    }
}
