//! The text of `accounts.conf` with bare nkeys: who is let in, and what the server lets each do. Pure text.

use std::fmt::Write;

use millrace_runtime::access::Permissions;

use super::keys::Keys;
use super::settings::{Identity, Size};
use super::{Account, permissions};

/// The head of the files that are written anew each time.
pub const HEAD: &str =
    "# Written by `millrace nats-config`, which writes it anew: what is changed here is lost.\n";

/// The whole text. `system` is whoever looks after the servers.
#[must_use]
pub fn text(system: &Keys, accounts: &[Account], lanes: u16) -> String {
    let mut text = format!("{HEAD}\nsystem_account: SYS\n\naccounts {{\n  SYS {{\n    users: [\n");
    for key in system.public() {
        let _ = writeln!(text, "      {{ nkey: {key} }}");
    }
    text += "    ]\n  }\n";
    for account in accounts {
        let (name, store) = (&account.owner, jetstream(account.max_store));
        let _ = write!(text, "  \"{name}\" {{\n    jetstream: {store}\n    users: [\n");
        for (identity, keys) in &account.members {
            keys.public().for_each(|key| text += &user(identity, lanes, &key));
        }
        text += "    ]\n  }\n";
    }
    text + "}\n"
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
