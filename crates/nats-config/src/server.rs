//! The text of `nats.conf`: the same file that `deploy/kubernetes` and compose mount.

/// The configuration common to all servers; differences between servers come from environment variables.
const TEXT: &str = include_str!("../../../deploy/kubernetes/components/nats/nats.conf");

/// Returns the text, with or without TLS.
#[must_use]
pub fn nats_conf_text(tls: bool) -> String {
    if tls { TEXT.to_owned() } else { remove_tls_blocks(TEXT) }
}

/// Removes the blocks that begin with `tls {` and the comments directly above them.
fn remove_tls_blocks(text: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        let word = line.trim();
        if word == "tls {" {
            inside = true;
            while lines.last().is_some_and(|line| line.trim().starts_with('#')) {
                lines.pop();
            }
        }
        if !inside {
            lines.push(line);
        }
        inside &= word != "}";
    }
    lines.join("\n") + "\n"
}
